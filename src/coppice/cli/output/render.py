"""How commands print: aligned fields, exact rates, sizes, bars, and progress that only a terminal sees."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Self, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from coppice.bounds.describe import rate_text
from coppice.text import percent_text

__all__ = [
    "Stages",
    "bandwidth_text",
    "bar",
    "percent_text",
    "print_fields",
    "print_json",
    "print_lines",
    "rate_line",
    "seconds_text",
    "size_text",
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


def bandwidth_text(algbw: Fraction, busbw: Fraction) -> str:
    """Both bandwidths of nccl-tests.

    >>> bandwidth_text(Fraction(50), Fraction(175, 4))
    'algbw 50 GB/s, busbw 43.75 GB/s'
    """
    return f"algbw {rate_line(algbw)}, busbw {rate_line(busbw)}"


def rate_line(rate: Fraction) -> str:
    """A rate in GB/s with its exact value where the decimals do not show it.

    >>> rate_line(Fraction(2400, 7)), rate_line(Fraction(50))
    ('342.857 GB/s (2400/7)', '50 GB/s')
    """
    exact = rate_text(rate)
    if Fraction(exact) == rate:
        return f"{exact} GB/s"
    return f"{float(rate):.6g} GB/s ({rate})"


def size_text(size_bytes: float) -> str:
    """Bytes with a binary unit.

    >>> size_text(1536), size_text(512), size_text(3 * 2**30)
    ('1.5 KiB', '512 B', '3 GiB')
    """
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def seconds_text(seconds: float) -> str:
    """A duration with a fitting unit.

    >>> seconds_text(0.00042), seconds_text(0.21), seconds_text(12.3)
    ('0.42 ms', '210 ms', '12.3 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def bar(share: float, *, width: int = 30) -> str:
    """A bar of ``width`` characters for a share between 0 and 1.

    >>> bar(0.5, width=8), bar(1, width=4)
    ('████    ', '████')
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + " " * (width - filled)
