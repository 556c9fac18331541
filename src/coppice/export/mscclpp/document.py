"""A JSON file whose values know where they stand: by path, and by line where something is wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from coppice.errors import InputError
from coppice.files import decode_utf8

_BLANK = re.compile(r"[ \t\n\r]*")
_PathPart = str | int


@dataclass(frozen=True)
class JsonText:
    """A JSON file."""

    file: str  # Its name, for messages
    text: str  # Its text
    tree: Any  # Its values

    @property
    def top(self) -> Value:
        """The outermost value."""
        return Value(self, (), self.tree)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the file, asked for what it should be."""

    document: JsonText  # The file
    path: tuple[_PathPart, ...]  # Keys and indices that lead to it
    data: Any  # The value

    def refuse(self, expected: str) -> NoReturn:
        """Refuse the file for this value."""
        place = f"{self.document.file}:{line_of(self.document.text, self.path)} {path_text(self.path)}"
        raise InputError(f"{place}: expected {expected}, found {_shown(self.data)}.")

    def __getitem__(self, key: str) -> Value:
        """The value of a key that must be there."""
        if key not in self.mapping():
            place = f"{self.document.file}:{line_of(self.document.text, self.path)} {path_text(self.path)}"
            raise InputError(f"{place}: expected the key {key!r}, which is missing: add it.")
        return Value(self.document, (*self.path, key), self.data[key])

    def has(self, key: str) -> bool:
        """Whether there is such a key."""
        return key in self.mapping()

    def mapping(self) -> dict[str, Any]:
        """The value as an object."""
        if not isinstance(self.data, dict):
            self.refuse("an object {..}")
        return self.data

    def items(self) -> Iterator[Value]:
        """The values of a list."""
        if not isinstance(self.data, list):
            self.refuse("a list [..]")
        for number, each in enumerate(self.data):
            yield Value(self.document, (*self.path, number), each)

    def integer(self, least: int = 0, below: int | None = None) -> int:
        """The value as an integer, ``least`` or more and smaller than ``below``."""
        data = self.data
        if (
            not isinstance(data, int)
            or isinstance(data, bool)
            or data < least
            or (below is not None and data >= below)
        ):
            self.refuse(
                f"an integer of {least} or more"
                if below is None
                else f"an integer from {least} to {below - 1}"
            )
        return data

    def string(self, *choices: str) -> str:
        """The value as text, one of ``choices`` if any are given."""
        if not isinstance(self.data, str) or (choices and self.data not in choices):
            self.refuse(f"one of {', '.join(choices)}" if choices else "text")
        return self.data

    def flag(self) -> bool:
        """The value as true or false."""
        if not isinstance(self.data, bool):
            self.refuse("true or false")
        return self.data


def parse_document(data: bytes, *, file: str) -> JsonText:
    """Read a JSON text.

    Args:
        data: The text, in UTF-8.
    """
    text = decode_utf8(data, file=file)

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{file} has the key {twice!r} twice in one object: keep one.")
        return made

    try:
        tree = json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file}:{error.lineno}:{error.colno} is not JSON ({error.msg}): mend it, or write the file again if it "
            "was cut short."
        ) from None
    except (RecursionError, ValueError):
        raise InputError(
            f"{file} is nested, or has numbers, beyond reason: it is no execution plan."
        ) from None
    return JsonText(file, text, tree)


def is_mscclpp(data: bytes) -> bool:
    """Whether a file is an execution plan of MSCCL++, rather than another JSON file.

    >>> is_mscclpp(b'{"name": "x", "collective": "allreduce", "gpus": []}')
    True
    >>> is_mscclpp(b'{"format": "coppice-plan", "version": 1}')
    False
    """
    if b'"gpus"' not in data or b'"coppice-' in data[:4096]:
        return False
    try:
        tree = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and "gpus" in tree and "format" not in tree


def path_text(path: tuple[_PathPart, ...]) -> str:
    """A path as text.

    >>> path_text(("gpus", 0, "id"))
    '$.gpus[0].id'
    """
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def line_of(text: str, path: tuple[_PathPart, ...]) -> int:
    """Line of a JSON text on which the value at a path begins.

    >>> line_of(chr(10).join(['{"a": [1,', "2]}"]), ("a", 1))
    2
    """
    decoder = json.JSONDecoder()

    def skip(place: int) -> int:
        found = _BLANK.match(text, place)
        return found.end() if found else place

    place = skip(1 if text.startswith("\ufeff") else 0)
    for part in path:
        wanted = part if isinstance(part, int) else -1
        place = skip(place + 1)
        number = 0
        while True:
            if isinstance(part, int):
                here = number == wanted
            else:
                key, place = decoder.raw_decode(text, place)
                place = skip(skip(place) + 1)
                here = key == part
            if here:
                break
            _, place = decoder.raw_decode(text, place)
            place = skip(skip(place) + 1)
            number += 1
    return text.count("\n", 0, place) + 1


def _shown(data: Any) -> str:
    if isinstance(data, (dict, list)):
        kind = "an object" if isinstance(data, dict) else "a list"
        return f"{kind} of {len(data)}"
    text = json.dumps(data)
    return text if len(text) <= 40 else f"{text[:37]}..."
