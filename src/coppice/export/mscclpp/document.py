"""JSON document whose values know their path, and their line for error messages."""

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
    """A parsed JSON file."""

    file: str  # Its name, for messages
    text: str  # Its text
    tree: Any  # Its values

    @property
    def top(self) -> Value:
        """Top-level value."""
        return Value(self, (), self.tree)


@dataclass(frozen=True, slots=True)
class Value:
    """A value with its path, with typed accessors that refuse other types."""

    document: JsonText  # The file
    path: tuple[_PathPart, ...]  # Keys and indices that lead to it
    data: Any  # The value

    def refuse(self, expected: str) -> NoReturn:
        """Raise an error about this value."""
        place = f"{self.document.file}:{line_of(self.document.text, self.path)} {path_text(self.path)}"
        raise InputError(f"{place}: expected {expected}, found {_shown(self.data)}.")

    def __getitem__(self, key: str) -> Value:
        """The value of a key that must be there."""
        if key not in self.mapping():
            place = f"{self.document.file}:{line_of(self.document.text, self.path)} {path_text(self.path)}"
            raise InputError(f"{place}: expected the key {key!r}, which is missing: add it.")
        return Value(self.document, (*self.path, key), self.data[key])

    def has(self, key: str) -> bool:
        """Whether the key exists."""
        return key in self.mapping()

    def mapping(self) -> dict[str, Any]:
        """Require an object."""
        if not isinstance(self.data, dict):
            self.refuse("an object {..}")
        return self.data

    def items(self) -> Iterator[Value]:
        """Require a list."""
        if not isinstance(self.data, list):
            self.refuse("a list [..]")
        for number, each in enumerate(self.data):
            yield Value(self.document, (*self.path, number), each)

    def integer(self, least: int = 0, below: int | None = None) -> int:
        """Require an integer, at least ``least`` and below ``below``."""
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
        """Require text, one of ``choices`` if given."""
        if not isinstance(self.data, str) or (choices and self.data not in choices):
            self.refuse(f"one of {', '.join(choices)}" if choices else "text")
        return self.data

    def flag(self) -> bool:
        """Require a boolean."""
        if not isinstance(self.data, bool):
            self.refuse("true or false")
        return self.data


def parse_document(data: bytes, *, file: str) -> JsonText:
    """Parse JSON text.

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
    """Whether a JSON file is an execution plan of MSCCL++.

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
    """Format a path.

    >>> path_text(("gpus", 0, "id"))
    '$.gpus[0].id'
    """
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def line_of(text: str, path: tuple[_PathPart, ...]) -> int:
    """Line of the value at a path.

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
