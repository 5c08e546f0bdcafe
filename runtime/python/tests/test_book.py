"""The programs in the book's chapter and in the README of the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def programs():
    for path in (ROOT / "docs/book/src/python.md", ROOT / "runtime/python/README.md"):
        blocks = re.findall(r"^```python(.*?)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        for i, (flags, code) in enumerate(blocks):
            yield pytest.param(flags, code, id=f"{path.stem}-{i}")


@pytest.mark.parametrize(("flags", "code"), list(programs()))
def test_program(flags, code, tmp_path):
    compile(code, "program", "exec")
    if "no_run" in flags:
        return
    # The compiler of torch reads the source of a program.
    program = tmp_path / "program.py"
    program.write_text(code)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
