"""Lines as wide as a terminal: long ones go on below their last field.

In a pipe or a file nothing is cut and nothing is broken: a line is a row.
"""

from __future__ import annotations

import re
import shutil
import sys
from textwrap import wrap
from typing import TextIO

LEAST_ROOM = 20
"""Columns that words need to be wrapped in; where less is left, they go on further to the left."""

_FIELD = re.compile(r"(?<=\S) {2,}(?=\S)")


def room_of(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal that a stream (standard output) goes to; None where it is none."""
    found = stream or sys.stdout
    return shutil.get_terminal_size().columns if found.isatty() else None


def broken(line: str, room: int | None) -> list[str]:
    """A line as lines of at most ``room`` characters, the further ones set below the last field that leaves them room.

    Args:
        line: Fields are two blanks or more apart; a ``#`` at its beginning is repeated.
        room: Most characters, None for any number. Words are never broken.

    Examples:
        >>> broken("  ring  one of the oldest algorithms of all", 30)
        ['  ring  one of the oldest', '        algorithms of all']
        >>> broken("# a comment that is too long for this", 24)
        ['# a comment that is too', '#   long for this']
    """
    if room is None or len(line) <= room:
        return [line]
    head = "# " if line.startswith("# ") else ""
    blank = len(line[len(head) :]) - len(line[len(head) :].lstrip())
    starts = [each.end() for each in _FIELD.finditer(line) if each.end() <= room - LEAST_ROOM]
    hang = starts[-1] if starts else min(len(head) + blank + 2, max(room - LEAST_ROOM, 0))
    first = line[:hang] if starts else line[: len(head) + blank]
    return wrap(
        line[len(first) :],
        max(room, len(first) + 1),
        initial_indent=first,
        subsequent_indent=head + " " * (hang - len(head)),
        break_long_words=False,
        break_on_hyphens=False,
    )
