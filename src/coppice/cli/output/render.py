"""How commands print: aligned fields, exact rates, sizes, bars, and progress that only a terminal sees."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

__all__ = [
    "Stages",
    "bar",
    "print_fields",
    "print_json",
    "print_lines",
]


def print_json(value: Mapping[str, Any]) -> None:
    """Print ``value`` as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_fields(title: str, fields: Sequence[tuple[str, str]], *, file: TextIO | None = None) -> None:
    """Print a title and named values in two columns; names are dimmed on a terminal."""
    console = Console(highlight=False, soft_wrap=True, file=file)
    width = max((len(name) for name, _ in fields), default=0)
    console.print(Text(title, style="bold"))
    for name, value in fields:
        console.print(Text.assemble((f"  {name:<{width}}  ", "dim"), value))


class Stages:
    """A spinner on standard error that says what goes on, and nothing where that is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, words: str) -> None:
        """Say that a stage begins."""
        if self._status is not None:
            self._status.update(words)


def bar(share: float, *, width: int = 30) -> str:
    """A bar of ``width`` characters for a share between 0 and 1.

    >>> bar(0.5, width=8), bar(1, width=4)
    ('████    ', '████')
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + " " * (width - filled)
