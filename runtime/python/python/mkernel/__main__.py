"""The command line: ``mkernel-gen``, or ``python -m mkernel``."""

import signal
import sys

import mkernel  # noqa: F401
from mkernel import _native


def main() -> int:
    """Run the command that the arguments give, and return the exit code."""
    # A command that waits ends at once when it is interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command_line(["mkernel-gen", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
