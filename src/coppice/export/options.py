"""Options of exports: of which kind each is, and its value from what a program or a command line gives."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coppice.errors import InputError
from coppice.text import parse_size, parse_sizes

__all__ = ["ExportOption", "OptionKind"]


class OptionKind(enum.StrEnum):
    """What an option of an export is; every kind is also taken as text, in the words of the command line."""

    TEXT = "text"
    CHOICE = "choice"
    NUMBER = "number"
    FLAG = "flag"
    NAMES = "names"
    SIZE = "size"
    SIZES = "sizes"
    SIZE_RANGE = "range of sizes"
    FILE = "file"


@dataclass(frozen=True, kw_only=True)
class ExportOption:
    """An option of an export.

    Attributes:
        kind: What it is.
        help: What it means.
        choices: Values of a choice; words that a number may be instead.
    """

    kind: OptionKind
    help: str
    choices: tuple[str, ...] = ()

    def value(self, name: str, given: Any) -> Any:
        """The value that an export is called with.

        Args:
            name: Name of the option, for messages.
            given: What the caller gave: a value of the kind, or its text.

        Raises:
            InputError: If it is no such value.

        Examples:
            >>> ExportOption(kind=OptionKind.SIZES, help="sizes").value("sizes", "1K:4K")
            (1024, 2048, 4096)
            >>> ExportOption(kind=OptionKind.FLAG, help="whether").value("whole", "no")
            False
        """
        match self.kind:
            case OptionKind.TEXT:
                return _of_type(str, name, given, "text")
            case OptionKind.CHOICE:
                if given not in self.choices:
                    msg = f"expected {name} to be one of {', '.join(self.choices)}, found {given!r}."
                    raise InputError(msg)
                return str(given)
            case OptionKind.NUMBER:
                return self._number(name, given)
            case OptionKind.FLAG:
                if given not in (True, False, "yes", "no"):
                    msg = f"expected {name} to be yes or no, found {given!r}."
                    raise InputError(msg)
                return given in (True, "yes")
            case OptionKind.NAMES:
                parts = given.split(",") if isinstance(given, str) else _items(name, given, "names")
                return tuple(_of_type(str, name, part, "names").strip() for part in parts)
            case OptionKind.FILE:
                return Path(_of_type((str, os.PathLike), name, given, "the name of a file"))
            case _:
                return self._sizes(name, given)

    def _number(self, name: str, given: Any) -> int | str:
        if given in self.choices:
            return str(given)
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        if not (isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10):
            msg = f"expected {name} to be a number ({self.help}), found {given!r}."
            raise InputError(msg)
        return int(given)

    def _sizes(self, name: str, given: Any) -> Any:
        """One size in bytes, several in rising order, or a range: its text, or the sizes in it."""
        if isinstance(given, str):
            if self.kind is OptionKind.SIZE:
                return parse_size(given, option=f"`{name}`")
            return given if self.kind is OptionKind.SIZE_RANGE else parse_sizes(given, option=name)
        one = self.kind is OptionKind.SIZE or isinstance(given, int)
        sizes = [given] if one else _items(name, given, "sizes in bytes")
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            msg = f"expected {name} in bytes, or as text such as 64K or 1M:1G, found {given!r}."
            raise InputError(msg)
        return given if self.kind is OptionKind.SIZE else tuple(sorted(set(sizes)))


def _of_type(kind: type | tuple[type, ...], name: str, given: Any, words: str) -> Any:
    if not isinstance(given, kind):
        msg = f"expected {name} to be {words}, found {given!r}."
        raise InputError(msg)
    return given


def _items(name: str, given: Any, words: str) -> list[Any]:
    if not isinstance(given, Iterable):
        msg = f"expected {name} to be {words}, found {given!r}."
        raise InputError(msg)
    return list(given)
