"""Parse JSON with line numbers: one value, or a stream of values; size and depth are bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from coppice.errors import InputError

_MOST_OBJECTS = 5_000_000
_MOST_DIGITS = 18


def json_objects(text: str, *, file: str, warnings: list[str] | None = None) -> Iterator[tuple[int, Any]]:
    r"""JSON values of a text with their first lines; elements of a top-level list one by one.

    Args:
        warnings: Gets a sentence where the last line is cut off, as when a job was killed; None makes that an
            error.

    Examples:
        >>> list(json_objects('{"a": 1}\n\n{"a":\n 2}\n', file="x"))
        [(1, {'a': 1}), (3, {'a': 2})]
    """
    decoder = json.JSONDecoder()
    at, line, counted = 0, 1, 0
    for found in range(_MOST_OBJECTS):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            return
        line += text.count("\n", counted, at)
        counted = at
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if warnings is not None and found and "\n" not in text[at:].rstrip():
                warnings.append(f"{file}:{line} is cut off: the last record is left out")
                return
            raise InputError(
                f"{file}:{error.lineno} is no JSON ({error.msg}): is the file complete?"
            ) from None
        except (RecursionError, ValueError):
            raise InputError(
                f"{file}:{line} has a value that is nested too deeply or too large: is this the right file?"
            ) from None
        if isinstance(value, list) and found == 0:
            yield from ((line, each) for each in value)
        else:
            yield line, value
    raise InputError(f"{file} holds more than {_MOST_OBJECTS} records: split it.")


def mapping(value: Any, key: str, where: str) -> dict[str, Any]:
    """Object under a key."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else _refuse(f"an object {key!r}", where, found)


def integer(value: Any, key: str, where: str, *, low: int = 0, high: int = 1 << 62) -> int:
    """Integer under a key, also if written as text."""
    found = value.get(key)
    if isinstance(found, str) and len(found.strip()) <= _MOST_DIGITS:
        text = found.strip()
        found = int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else found
    if isinstance(found, int) and not isinstance(found, bool) and low <= found <= high:
        return found
    return _refuse(f"{key!r} as an integer {low} .. {high}", where, found)


def number(value: Any, key: str, where: str) -> float:
    """Non-negative number under a key."""
    found = value.get(key)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < math.inf:
        return float(found)
    return _refuse(f"{key!r} as a number of 0 or more", where, found)


def text_of(value: Any, key: str, where: str) -> str:
    """Text under a key."""
    found = value.get(key)
    return found if isinstance(found, str) else _refuse(f"{key!r} as a text", where, found)


def _refuse(expected: str, where: str, found: Any) -> NoReturn:
    words = "nothing" if found is None else repr(found)[:40]
    raise InputError(f"expected {expected} at {where}, found {words}.")
