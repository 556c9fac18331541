"""What is a terminal, and ASCII on those whose encoding lacks box-drawing characters."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

_ASCII = {"█": "#", "─": "-", "│": "|", "├": "|", "└": "`", "→": ">", "…": "."}


def use_terminal_characters() -> None:
    """Replace characters that the encoding of standard output and error lacks by ASCII."""
    codecs.register_error("coppice-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="coppice-ascii")


def may_be_terminal(stream: TextIO) -> bool:
    """Whether rich could take a stream for a terminal: where not, it need not be loaded."""
    return stream.isatty() or any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for characters that an encoding lacks; bytes of file names that are no text go out as they are."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    if "\udc80" <= missing[0] <= "\udcff":
        return bytes([ord(missing[0]) - 0xDC00]), error.start + 1
    return _ASCII.get(missing[0], "?"), error.start + 1
