"""Types that several threads may decode at once."""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

__all__ = ["decodable"]

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
