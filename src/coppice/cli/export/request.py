"""What `coppice export` was asked for, and what a format of it is: the options that it takes, and who writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

__all__ = ["Format", "Request"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `coppice export`; None, False or nothing where an option was left out.

    Attributes:
        source: Plan, topology or algorithm file; ``-`` is standard input.
        to: Name of the format.
        output: File or directory to write; None or ``-`` is standard output.
    """

    source: str
    to: str
    output: Path | None = None
    target: str | None = field(default=None, metadata={"flag": "--target"})
    channels: int | None = field(default=None, metadata={"flag": "--channels"})
    instances: int | None = field(default=None, metadata={"flag": "--instances"})
    protocol: str | None = field(default=None, metadata={"flag": "--protocol"})
    trees: str | None = field(default=None, metadata={"flag": "--trees"})
    size: str | None = field(default=None, metadata={"flag": "--size"})
    name: str | None = field(default=None, metadata={"flag": "--name"})
    in_place: bool = field(default=False, metadata={"flag": "--in-place"})
    out_of_place: bool = field(default=False, metadata={"flag": "--out-of-place"})
    options: tuple[str, ...] = field(default=(), metadata={"flag": "--option"})
    boxes: int | None = field(default=None, metadata={"flag": "--boxes"})
    rates: str | None = field(default=None, metadata={"flag": "--rates"})
    settings: tuple[str, ...] = field(default=(), metadata={"flag": "--set"})
    ranks: str | None = field(default=None, metadata={"flag": "--ranks"})

    @property
    def given(self) -> tuple[str, ...]:
        """The options that stand on the command line.

        Examples:
            >>> Request(source="plan.json", to="chakra", size="64M", settings=("a=1",)).given
            ('--size', '--set')
        """
        return tuple(
            each.metadata["flag"]
            for each in fields(self)
            if each.metadata and getattr(self, each.name) not in (None, False, ())
        )


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of `coppice export`.

    Attributes:
        summary: What it is and who reads it.
        takes: Options that go with it, such as ``--size``; all others are refused before it is called.
        write: Writes it.
    """

    summary: str
    takes: frozenset[str]
    write: Callable[[Request], None]
