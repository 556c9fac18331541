"""The terminal: its width, characters that it has, and the message that an interrupted command leaves there.

In a pipe or a file nothing is cut and nothing is broken: a line is a row.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import shutil
import sys
from contextvars import ContextVar
from pathlib import Path
from textwrap import wrap
from typing import TextIO

from coppice.text import plural

LEAST_WIDTH = 20
"""Columns that words need to be wrapped in; where less is left, they go on further to the left."""

_FIELD = re.compile(r"(?<=\S) {2,}(?=\S)")


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Width of the terminal behind a stream (standard output); None where it is none."""
    found = stream or sys.stdout
    return shutil.get_terminal_size().columns if found.isatty() else None


def broken(line: str, max_width: int | None) -> list[str]:
    """Wrap a line; the further lines are indented to its last field that leaves them enough characters.

    Args:
        line: Fields are two blanks or more apart; a ``#`` at its beginning is repeated.
        max_width: Most characters, None for any number. Words are never broken.

    Examples:
        >>> broken("  ring  one of the oldest algorithms of all", 30)
        ['  ring  one of the oldest', '        algorithms of all']
        >>> broken("# a comment that is too long for this", 24)
        ['# a comment that is too', '#   long for this']
    """
    if max_width is None or len(line) <= max_width:
        return [line]
    head = "# " if line.startswith("# ") else ""
    blank = len(line[len(head) :]) - len(line[len(head) :].lstrip())
    starts = [each.end() for each in _FIELD.finditer(line) if each.end() <= max_width - LEAST_WIDTH]
    hang = starts[-1] if starts else min(len(head) + blank + 2, max(max_width - LEAST_WIDTH, 0))
    first = line[:hang] if starts else line[: len(head) + blank]
    return wrap(
        line[len(first) :],
        max(max_width, len(first) + 1),
        initial_indent=first,
        subsequent_indent=head + " " * (hang - len(head)),
        break_long_words=False,
        break_on_hyphens=False,
    )


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
