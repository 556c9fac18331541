"""Sizes and shares as people write and read them: ``64K`` is 65,536 bytes, ``1K:4G`` doubles from one to the other."""

from __future__ import annotations

import re
from fractions import Fraction

from coppice.errors import InputError

__all__ = ["parse_size", "parse_sizes", "percent_text", "short_size"]

MOST_BYTES = 2**63 - 1
"""Largest size: sizes are 64-bit integers everywhere else."""

MOST_SIZES = 10_000
"""Most sizes of one list."""

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d{1,19})(?:\.(\d{1,12}))?\s*([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)


def parse_size(text: str, *, option: str = "--size") -> int:
    """A size in bytes; the units K, M, G and T are powers of 1024, as in nccl-tests.

    Args:
        text: Such as ``4096``, ``64K``, ``1.5M`` or ``1GiB``.
        option: The option that it was given to, for messages.

    Examples:
        >>> parse_size("64K"), parse_size("1.5m"), parse_size("0")
        (65536, 1572864, 0)

    Raises:
        InputError: If it is no size, not whole bytes, or more than a 64-bit integer holds.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        msg = f"expected {option} to be bytes such as 4096, 64K, 1.5M or 1G (powers of 1024), found {text!r}."
        raise InputError(msg)
    whole, decimals, unit = match[1], match[2] or "0", match[3].upper()
    size = (int(whole) + Fraction(int(decimals), 10 ** len(decimals))) * 1024 ** _UNITS[unit]
    if size.denominator != 1:
        msg = f"expected {option} to be whole bytes, found {text!r}, which is {float(size):g} bytes."
        raise InputError(msg)
    if size > MOST_BYTES:
        msg = f"expected {option} to be at most {MOST_BYTES:,} bytes, found {text!r}."
        raise InputError(msg)
    return int(size)


def parse_sizes(text: str, *, option: str = "--sizes") -> tuple[int, ...]:
    """Sizes in bytes, ascending and without repetition.

    A range starts at its first size and multiplies by its factor (2 where none is given) while it does not pass its
    last; ranges and single sizes may be mixed in a list with commas.

    Args:
        text: Such as ``1K,64K,1M``, ``1K:4G`` or ``1K:4G:4``.
        option: The option that it was given to, for messages.

    Examples:
        >>> parse_sizes("1K:8K")
        (1024, 2048, 4096, 8192)
        >>> parse_sizes("1K:20K:4,100")
        (100, 1024, 4096, 16384)

    Raises:
        InputError: If it is no such list, or too long a one.
    """
    sizes: set[int] = set()
    for item in text.split(","):
        bounds = item.split(":")
        if len(bounds) == 1:
            sizes.add(parse_size(item, option=option))
            continue
        if len(bounds) > 3:
            msg = f"expected {option} to have ranges such as 1K:4G or 1K:4G:4, found {item!r}."
            raise InputError(msg)
        first, last = (parse_size(bound, option=option) for bound in bounds[:2])
        factor = _factor(bounds[2] if len(bounds) == 3 else "2", option)
        if not 1 <= first <= last:
            msg = (
                f"expected a range in {option} to rise from 1 byte or more, found {item!r}: write FIRST:LAST."
            )
            raise InputError(msg)
        size = first
        while size <= last:
            sizes.add(size)
            size *= factor
    if len(sizes) > MOST_SIZES:
        msg = f"expected at most {MOST_SIZES:,} sizes in {option}, found {len(sizes):,}."
        raise InputError(msg)
    return tuple(sorted(sizes))


def short_size(size_bytes: int) -> str:
    """The shortest exact text that :func:`parse_size` reads back.

    Examples:
        >>> short_size(65536), short_size(1000), short_size(0)
        ('64K', '1000', '0')
    """
    unit, units = 0, "KMGT"
    while size_bytes and size_bytes % 1024 == 0 and unit < len(units):
        size_bytes, unit = size_bytes // 1024, unit + 1
    return f"{size_bytes}{units[unit - 1] if unit else ''}"


def _factor(text: str, option: str) -> int:
    """The factor of a range."""
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) or int(text) < 2:
        msg = f"expected a factor of 2 or more in {option}, found {text!r}: write FIRST:LAST:FACTOR."
        raise InputError(msg)
    return int(text)


def percent_text(share: Fraction) -> str:
    """A share in percent, never rounded up to a whole 100%.

    >>> percent_text(Fraction(1)), percent_text(Fraction(9999, 10000)), percent_text(Fraction(1, 3))
    ('100%', '99.99%', '33.3%')
    """
    if share == 1:
        return "100%"
    for digits in range(1, 7):
        text = f"{100 * float(share):.{digits}f}"
        if float(text) != 100:
            break
    return f"{text.rstrip('0').rstrip('.')}%"
