"""Records with exact rates from documents and from texts: what cluster files and command lines share."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

import msgspec

from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.composition.fabric import FABRIC_KINDS, Fabric
from coppice.topology.model import exact_rate

__all__ = ["converted", "fabric_from_fields"]

_T = TypeVar("_T")


def fabric_from_fields(kind: str, fields: Mapping[str, object]) -> Fabric:
    """A fabric from its kind and fields; values may be texts, as a command line gives them.

    >>> fabric_from_fields("rail", {"spines": "4", "oversubscription": "2"}).spines
    4

    Raises:
        InputError: If the kind, a field or its value does not exist.
    """
    if kind not in FABRIC_KINDS:
        msg = f"there is no kind of fabric {kind!r}: {suggestion(kind, FABRIC_KINDS)}"
        raise InputError(msg)
    record = FABRIC_KINDS[kind]
    for field in fields:
        if field not in record.__struct_fields__:
            hint = suggestion(field, record.__struct_fields__)
            msg = f"a fabric of kind {kind} has no field {field!r}: {hint}"
            raise InputError(msg)
    return converted({"kind": kind, **fields}, record, f"fabric {kind}", strict=False)


def converted(document: object, kind: type[_T], where: str, *, strict: bool = True) -> _T:
    """``document`` as a record of type ``kind``.

    Args:
        document: Mappings, lists, text and numbers.
        kind: A msgspec struct.
        where: Named in messages, before the path.
        strict: Refuse numbers written as text, other than rates.

    Raises:
        InputError: With the path of what is wrong.
    """
    try:
        return msgspec.convert(document, kind, strict=strict, dec_hook=_custom)
    except msgspec.ValidationError as error:
        msg = f"{where}: {error}; mend it there."
        raise InputError(msg) from None


def _custom(kind: type, value: object) -> object:
    """Rates: numbers or fractions as text."""
    if kind is not Fraction:
        msg = f"no way to read a {kind.__name__}"
        raise NotImplementedError(msg)
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)):
        msg = f'Expected a number or a fraction like "75/2", got {type(value).__name__}'
        raise ValueError(msg)
    try:
        return exact_rate(value, where="")
    except InputError:
        msg = f'Expected a number >= 0 or a fraction like "75/2", got {str(value)[:40]!r}'
        raise ValueError(msg) from None
