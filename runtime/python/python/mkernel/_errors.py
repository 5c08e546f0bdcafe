"""The exception of this package."""

from ._native import Error

__all__ = ["Error", "error"]


def error(kind: str, text: str, *, rank: int | None = None, awaited: str | None = None) -> Error:
    """Return an exception of a kind, for mistakes that the Python sources find."""
    exception = Error(text)
    exception.kind, exception.rank, exception.awaited = kind, rank, awaited
    return exception
