"""Wrap lines to the width of the terminal.

In a pipe or a file nothing is cut and nothing is broken: a line is a row.
"""

from __future__ import annotations

import re
import shutil
import sys
from textwrap import wrap
from typing import TextIO

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
