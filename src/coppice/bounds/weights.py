"""Read relative shard sizes from files: one weight per rank, or a demand matrix for all-to-all.

JSON (`[1, 1, 2]`, `[[0, 3], [1, 0]]`) or text with one rank (one row) to a line. Numbers are decimals or
fractions; they are scaled to whole numbers where they are not whole, so only their ratios count then.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import msgspec

from coppice.decoding import JSON_FAULTS, json_fault
from coppice.errors import InputError
from coppice.files import read_text

_LARGEST_WEIGHT = 2**31
_LARGEST_DEMAND = 2**62


def read_weights(path: str) -> tuple[int, ...]:
    """Read one weight for each rank from a file (``-``: standard input)."""
    return parse_weights(
        read_text(path, what="the weights", hint="name a file with one weight for each rank"), where=path
    )


def read_demands(path: str) -> tuple[tuple[int, ...], ...]:
    """Read a matrix of demands, one row for each sender, from a file (``-``: standard input)."""
    return parse_demands(
        read_text(path, what="the demands", hint="name a file with one row for each sender"), where=path
    )


def parse_weights(text: str, *, where: str) -> tuple[int, ...]:
    r"""Parse weights.

    Examples:
        >>> parse_weights("[1, 1, 2]", where="w.json"), parse_weights("0.5\n1/3\n", where="w.txt")
        ((1, 1, 2), (3, 2))
    """
    rows = _rows(text, where)
    flat = rows[0] if len(rows) == 1 else [value for row in rows for value in row if len(row) == 1]
    if len(rows) > 1 and len(flat) != len(rows):
        raise InputError(
            f"expected one weight for each rank in {where}, found rows of numbers: give a list like [1, 2]."
        )
    return tuple(_whole(flat, below=_LARGEST_WEIGHT, what="weights"))


def parse_demands(text: str, *, where: str) -> tuple[tuple[int, ...], ...]:
    r"""Parse a square demand matrix.

    Examples:
        >>> parse_demands("0 0.5\n1 0", where="d.txt")
        ((0, 1), (2, 0))
    """
    rows = _rows(text, where)
    size = len(rows)
    for position, row in enumerate(rows):
        if len(row) != size:
            raise InputError(
                f"expected a square matrix of demands in {where}, found {len(row)} numbers in row {position} "
                f"of {size}: give one row for each sender and one column for each receiver."
            )
    whole = _whole([value for row in rows for value in row], below=_LARGEST_DEMAND, what="demands")
    return tuple(tuple(whole[i * size : (i + 1) * size]) for i in range(size))


def _rows(text: str, where: str) -> list[list[Fraction]]:
    """Rows of numbers; a flat JSON list is one row."""
    if text.lstrip().startswith("["):
        try:
            loaded: list[Any] = msgspec.json.Decoder(list, float_hook=str).decode(text)
        except JSON_FAULTS as error:
            raise InputError(
                f"expected a JSON list of weights in {where}, found otherwise: {json_fault(error, text)}."
            ) from None
        nested = bool(loaded) and all(isinstance(row, list) for row in loaded)
        table = loaded if nested else [loaded]
        place = "$[{0}][{1}]" if nested else "$[{1}]"
    else:
        lines = [line.split("#")[0].replace(",", " ").split() for line in text.splitlines()]
        table = [line for line in lines if line]
        place = "row {0}, column {1}"
    rows = [
        [_number(value, f"{where}: {place.format(i, j)}") for j, value in enumerate(row)]
        for i, row in enumerate(table)
    ]
    if not rows or not rows[0]:
        raise InputError(f"expected a list of weights in {where}, found none.")
    return rows


def _number(value: object, where: str) -> Fraction:
    """One number >= 0, exact."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | str) or len(str(value)) > 64:
            raise ValueError
        if abs(int(str(value).lower().partition("e")[2] or 0)) > 30:
            raise ValueError
        number = Fraction(value)
        if number < 0:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f'expected a number >= 0 or a fraction such as "1/3", found {str(value)[:40]!r} at {where}.'
        ) from None
    return number


def _whole(values: Sequence[Fraction], *, below: int, what: str) -> list[int]:
    """The values in their ratios as whole numbers, unchanged where they are whole."""
    scale = 1
    for value in values:
        scale = lcm(scale, value.denominator)
        if scale * max(values) >= below:
            limit = f"2^{below.bit_length() - 1}"
            raise InputError(
                f"expected {what} that are ratios of numbers below {limit}, found {values[0]}, ..: round them."
            )
    return [int(value * scale) for value in values]
