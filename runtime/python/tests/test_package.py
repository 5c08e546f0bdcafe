"""The package without torch, and its errors."""

import os
import subprocess
import sys
import time
from pathlib import Path

import mkernel
import pytest


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    # The import of mkernel in this process may have set the variable.
    inherited = {name: value for name, value in os.environ.items() if name != "MKERNEL_NVRTC"}
    return subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, timeout=120
    )


def test_torch_is_not_imported():
    code = """
import mkernel, sys
groups = mkernel.run(lambda group: (group.rank, group.all_gather_bytes(bytes([group.rank]))), ranks=4)
assert groups == [(rank, [b"\\0", b"\\1", b"\\2", b"\\3"]) for rank in range(4)], groups
assert "torch" not in sys.modules and "numpy" not in sys.modules
assert not hasattr(mkernel, "no_such_name_")
"""
    ran = python(code)
    assert ran.returncode == 0, ran.stderr


def test_the_command_line():
    code = "import sys; sys.argv[1:] = {!r}; from mkernel.__main__ import main; sys.exit(main())"
    gemm = ["--op", "gemm_rs", "--world", "2", "--m", "16", "--n", "64", "--k", "64"]
    ran = python(code.format(["run", "--device", "sim", *gemm]))
    assert ran.returncode == 0, ran.stderr
    wrong = python(code.format(["check", *gemm, "--tile-m", "3"]))
    assert wrong.returncode == 1 and "tile_m: 3" in wrong.stderr


def test_nvrtc_of_a_package_is_found(tmp_path: Path):
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    path = os.pathsep.join([str(tmp_path), str(Path(mkernel.__file__).parent.parent)])
    found = python("import mkernel, os; print(os.environ['MKERNEL_NVRTC'])", PYTHONPATH=path)
    assert found.stdout.strip() == str(library), found.stderr
    kept = python("import mkernel, os; print(os.environ['MKERNEL_NVRTC'])", PYTHONPATH=path, MKERNEL_NVRTC="/mine")
    assert kept.stdout.strip() == "/mine", kept.stderr


def test_all_mistakes_of_options_are_named_at_once():
    def rank(group):
        with pytest.raises(mkernel.Error) as caught:
            group.prepare("ag_gem", m=64, n=64, k=64, tile_q=3, stages=True)
        return caught.value

    [mistakes] = mkernel.run(rank, 1)
    assert mistakes.kind == "configuration" and mistakes.rank is None and mistakes.awaited is None
    for part in ("`ag_gem` is not possible; did you mean `ag_gemm`?", "no option `tile_q`", "stages: a boolean"):
        assert part in str(mistakes)


@pytest.mark.parametrize("name", ['m = 8, "', "\0", "ü", "a\nb"])
def test_any_text_is_an_error_and_no_panic(name):
    def rank(group):
        for options in ({"name": name}, {name: 3}):
            with pytest.raises(mkernel.Error) as caught:
                group.prepare("all_reduce", m=8, n=8, **options)
            assert caught.value.kind == "configuration"

    mkernel.run(rank, 1)


def test_groups_end():
    def counts():
        return [len(os.listdir(f"/proc/self/{folder}")) for folder in ("task", "fd")]

    mkernel.run(lambda group: group.barrier(), 2)
    before = counts()
    for _ in range(100):
        groups = mkernel.run(lambda group: (group.barrier(), group)[1], 2)
    # Threads end a little later than their group.
    deadline = time.monotonic() + 20
    while any(now > then + 2 for now, then in zip(counts(), before, strict=True)):
        assert time.monotonic() < deadline, (counts(), before)
        time.sleep(0.1)
    for group in groups:
        group.close()
        with pytest.raises(mkernel.Error, match="closed"):
            group.barrier()
    with pytest.raises(mkernel.Error) as caught:
        mkernel._groups.find("default")
    assert caught.value.kind == "setup"


def test_wrong_options_of_the_simulator():
    with pytest.raises(mkernel.Error) as caught:
        mkernel.run(lambda group: None, 9)
    assert caught.value.kind in ("setup", "configuration")
    with pytest.raises(mkernel.Error, match="a GPU of its own"):
        mkernel.run(lambda group: None, devices=[0, 0])
    with pytest.raises(mkernel.Error, match="skew = 101"):
        mkernel.run(lambda group: None, 2, skew=101)
