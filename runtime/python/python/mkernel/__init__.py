"""Fused communication and compute kernels for several GPUs.

The operators take tensors of torch, which is imported when a program uses them first::

    import mkernel, torch

    def layer(group):
        x, w = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
        return mkernel.ag_gemm(x, w.t())

    print(mkernel.run(layer, ranks=2))

- :func:`init` creates the group of a process that torchrun has started, or that has a process group of ``torch.distributed``.
- :func:`run` calls a function for ranks that are threads, on simulated GPUs or real ones.
- The functions of :mod:`mkernel.ops` are the operators. ``torch.ops.mkernel`` has them too, for compiler passes.
- :mod:`mkernel.nn` has linear layers that are divided among ranks.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _nvrtc  # noqa: F401
from ._errors import Error
from ._groups import Group
from ._native import __version__
from ._operators import Operand, Operator
from ._startup import init, run

if TYPE_CHECKING:
    from . import nn, ops
    from .ops import *  # noqa: F403

__all__ = ["Error", "Group", "Operand", "Operator", "__version__", "init", "nn", "ops", "run"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is used first."""
    if name in ("nn", "ops"):
        return importlib.import_module(f".{name}", __name__)
    if not name.startswith("_"):
        ops = importlib.import_module(".ops", __name__)
        if name in ops.__all__:
            return getattr(ops, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
