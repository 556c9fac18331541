"""The native JSON file, read exactly: numbers as the decimals they are written as, keys at most once."""

from __future__ import annotations

import json
from typing import Any

from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.readers.document import DuplicateKey, NumberText, topology_from_document
from coppice.topology.readers.reading import ReadOptions

__all__ = ["parse_json", "read_json"]

_LONGEST_INT = 19


def read_json(
    data: bytes, *, file: str, name: str | None, default_name: str, options: ReadOptions
) -> Topology:
    """The topology of a native JSON file.

    Args:
        data: The text, in UTF-8.
        file: Name of the file, for messages.
        name: Replaces the name in the file.
        default_name: Stands in where the file has no name.
        options: Only ``round`` has a meaning here.

    Raises:
        InputError: If it is no JSON (with line and column) or no topology (with the path).
    """
    document = parse_json(data, file=file)
    return topology_from_document(
        document, where=f"{file} $", name=name, default_name=default_name, options=options
    )


def parse_json(data: bytes, *, file: str) -> Any:
    """The tree of a JSON text, with numbers that are not plain integers as :class:`NumberText`.

    >>> parse_json(b'{"a": 0.10}', file="a.json")
    {'a': '0.10'}

    Raises:
        InputError: If it is not JSON in UTF-8, or nested beyond reason.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        raise InputError(msg) from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_mapping,
            parse_float=NumberText,
            parse_int=_integer,
            parse_constant=NumberText,
        )
    except json.JSONDecodeError as error:
        msg = (
            f"{file}:{error.lineno}:{error.colno} is not JSON ({error.msg}): mend it, or write the file "
            "again if it "
            "was cut short."
        )
        raise InputError(msg) from None
    except RecursionError:
        msg = f"{file} is nested beyond reason: a topology needs three levels."
        raise InputError(msg) from None


def _integer(text: str) -> int | NumberText:
    return int(text) if len(text) <= _LONGEST_INT else NumberText(text)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any] | DuplicateKey:
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return DuplicateKey(key)
        seen.add(key)
    return mapping
