"""Where somebody's program is: the file and line that called into Coppice."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"


def caller() -> str:
    """``ring.py:12``: the innermost line on the way here that is not Coppice's own."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (as loggers do; a traceback costs too much)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else _place(frame.f_code.co_filename, frame.f_lineno)


def raised_at(trace: TracebackType | None, file: str) -> str:
    """The innermost line of a file that an exception went through, or its first line.

    Args:
        file: Name under which the file was compiled.
    """
    line = 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return _place(file, line)


def _place(file: str, line: int) -> str:
    return f"{_name(file)}:{line}"


@cache
def _name(file: str) -> str:
    return Path(file).name
