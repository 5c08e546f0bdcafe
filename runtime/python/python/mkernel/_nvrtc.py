"""Finds the NVRTC of pip packages for the native module, when this module is imported."""

import importlib.util
import os
from pathlib import Path

_LIBRARY = "libnvrtc.so.13"


def find() -> None:
    """Name the NVRTC of the package ``nvidia-cuda-nvrtc`` in ``MKERNEL_NVRTC``, unless the variable is set.

    The native module searches the environments of interpreters in ``PATH``. Only Python knows the folders of ``pip --target``,
    of ``PYTHONPATH`` and of other interpreters.
    """
    if os.environ.get("MKERNEL_NVRTC"):
        return
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder) / "cu13" / "lib" / _LIBRARY
        if library.exists():
            os.environ["MKERNEL_NVRTC"] = str(library)
            return


find()
