"""Message of an interrupted command about the measurements that it has kept."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path

from coppice.text import plural

_KEPT: ContextVar[tuple[Path, int] | None] = ContextVar("kept", default=None)


def keeps(path: Path | None, *, heads: int = 1) -> None:
    """Declare that a command appends measurements to a file, and resumes from it.

    Args:
        path: The file, a measurement a line; None where nothing is kept.
        heads: Lines at its beginning that are none.
    """
    _KEPT.set(None if path is None else (path, heads))


def interrupted_words() -> str | None:
    """Message about kept measurements, or None."""
    kept = _KEPT.get()
    if kept is None:
        return None
    path, heads = kept
    lines = path.read_bytes().count(b"\n") - heads if path.is_file() else 0
    if lines < 1:
        return f"{path} keeps nothing yet"
    return f"{path} keeps {plural(lines, 'measurement')}, from which the same command goes on"
