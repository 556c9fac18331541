"""Decode foreign JSON: types that several threads may decode concurrently, and errors with line and column."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import msgspec

from coppice.errors import InputError

JSON_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a JSON text may raise."""

_Kind = TypeVar("_Kind")
_MEETING = Lock()
_MET: set[Any] = set()


def decodable(kind: _Kind) -> _Kind:
    """A type that msgspec knows, of which several threads may decode at once from now on.

    What msgspec makes of a type when it first meets it can be seen half made by another thread, which crashes the
    process (msgspec 0.22). So it is made here, by one thread at a time.

    >>> msgspec.json.decode(b"[1, 2]", type=decodable(list[int]))
    [1, 2]
    """
    with _MEETING:
        if kind not in _MET:
            msgspec.json.Decoder(kind)
            _MET.add(kind)
    return kind


def decode_json(data: bytes | str, kind: type[_Kind], fault: Callable[[str], str]) -> _Kind:
    """Decode JSON that others wrote.

    Args:
        fault: The sentence of the error, for what is wrong with the text.

    Examples:
        >>> decode_json(b"[1, 2", list[int], lambda wrong: f"expected numbers in a.json, found otherwise: {wrong}.")
        Traceback (most recent call last):
        coppice.errors.InputError: expected numbers in a.json, found otherwise: not JSON: cut off at line 1, column 6.
    """
    try:
        return msgspec.json.decode(data, type=decodable(kind))
    except JSON_FAULTS as error:
        raise InputError(fault(json_fault(error, data))) from None


_BYTE = re.compile(r"^JSON is malformed: (?P<what>.*) \(byte (?P<byte>\d+)\)$")
_NO_NUMBER = re.compile(rb"[+-]?(inf(inity)?|nan)\b", re.IGNORECASE)


def json_fault(error: Exception, data: bytes | str) -> str:
    r"""Describe a JSON syntax error, with line and column.

    Args:
        error: What decoding it raised, one of ``JSON_FAULTS``.
        data: The text.

    Examples:
        >>> def fault(text):
        ...     try:
        ...         msgspec.json.decode(text)
        ...     except JSON_FAULTS as error:
        ...         return json_fault(error, text)
        >>> fault(b'{"rate":\n 1e3 GB}')
        "not JSON: expected ',' or '}' at line 2, column 6"
        >>> fault(b'{"rate":\n inf}')
        'not JSON: inf, which JSON has no number for, at line 2, column 2'
        >>> fault(b'{"rate": ')
        'not JSON: cut off at line 1, column 10'
    """
    raw = data.encode() if isinstance(data, str) else data
    if isinstance(error, RecursionError):
        return "nested beyond reason"
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    if "truncated" in str(error):
        return f"not JSON: {'empty' if not raw.strip() else f'cut off at {_place(raw, len(raw))}'}"
    found = _BYTE.match(str(error))
    if (
        found is None
    ):  # text that is no UTF-8 is told in other words, or by another class, by each version of msgspec
        return f"not JSON: {_not_utf8(raw) or error}"
    at = int(found["byte"])
    if raw.startswith(b"\xef\xbb\xbf") and at == 0:
        return "not JSON: a byte order mark at line 1, column 1"
    # The byte is the one behind a sign, the first one, or the one behind four: `nan` begins like `null`.
    starts = (begin for begin in (at - 1, at, at - 4) if begin >= 0)
    number = next(filter(None, (_NO_NUMBER.match(raw, begin) for begin in starts)), None)
    if number is not None:
        return (
            f"not JSON: {number[0].decode()}, which JSON has no number for, at {_place(raw, number.start())}"
        )
    behind = found["what"] == "trailing characters"  # msgspec has read one of them
    return f"not JSON: {found['what']} at {_place(raw, at - behind)}"


def _place(raw: bytes, at: int) -> str:
    """Line and column of a byte, counted from 1; columns are characters."""
    begin = raw.rfind(b"\n", 0, at) + 1
    column = len(raw[begin:at].decode("utf-8", "replace")) + 1
    line = raw.count(b"\n", 0, at) + 1
    return f"line {line}, column {column}"


def _not_utf8(raw: bytes) -> str | None:
    """The first byte that is no text in UTF-8, which the error itself need not tell."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 text at {_place(raw, error.start)}"
    return None
