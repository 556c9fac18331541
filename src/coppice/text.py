"""Format numbers for people, and parse message sizes as nccl-tests does.

Sizes are in powers of 1024: ``64K`` is 65,536 bytes, and ``1K:4G`` doubles from one to the other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

from coppice.errors import InputError

MOST_BYTES = 2**63 - 1
"""Largest size: sizes are 64-bit integers everywhere else."""

MOST_SIZES = 10_000
"""Most sizes of one list."""

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_BITS = re.compile("bit|bps|Gb|Mb")
_SIZE = re.compile(r"(\d{1,19})(?:\.(\d{1,12}))?\s*([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)


def parse_size(text: str, *, option: str = "the size") -> int:
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
    if match is None and ("," in text or ":" in text):
        raise InputError(
            f"expected {option} to be one size, as only one makes sense here, found {text!r}: give one, such as 1M."
        )
    if match is None:
        raise InputError(
            f"expected {option} to be bytes such as 4096, 64K, 1.5M or 1G (powers of 1024), found {text!r}."
        )
    whole, decimals, unit = match[1], match[2] or "0", match[3].upper()
    size = (int(whole) + Fraction(int(decimals), 10 ** len(decimals))) * 1024 ** _UNITS[unit]
    if size.denominator != 1:
        raise InputError(
            f"expected {option} to be whole bytes, found {text!r}, which is {float(size):g} bytes."
        )
    if size > MOST_BYTES:
        raise InputError(f"expected {option} to be at most {MOST_BYTES:,} bytes, found {text!r}.")
    return int(size)


def parse_sizes(text: str, *, option: str = "the sizes") -> tuple[int, ...]:
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
            raise InputError(f"expected {option} to have ranges such as 1K:4G or 1K:4G:4, found {item!r}.")
        first, last = (parse_size(bound, option=option) for bound in bounds[:2])
        factor = _factor(bounds[2] if len(bounds) == 3 else "2", option)
        if not 1 <= first <= last:
            raise InputError(
                f"expected a range in {option} to rise from 1 byte or more, found {item!r}: write FIRST:LAST."
            )
        size = first
        while size <= last:
            sizes.add(size)
            size *= factor
    if len(sizes) > MOST_SIZES:
        raise InputError(f"expected at most {MOST_SIZES:,} sizes in {option}, found {len(sizes):,}.")
    return tuple(sorted(sizes))


def size_of(size: int | str) -> int:
    """Coerce a message size: bytes as a number, or a text for :func:`parse_size`.

    Args:
        size: Such as ``65536`` or ``"64K"``.

    Examples:
        >>> size_of("64K"), size_of(1000)
        (65536, 1000)

    Raises:
        InputError: If it is no size.
    """
    if isinstance(size, str):
        return parse_size(size)
    if 0 <= size <= MOST_BYTES:
        return int(size)
    raise InputError(f"expected a size of 0 to {MOST_BYTES:,} bytes, found {size}.")


def sizes_of(sizes: str | int | Sequence[int | str]) -> tuple[int, ...]:
    """Coerce message sizes: one, a list, or a text for :func:`parse_sizes`; ascending and distinct.

    Args:
        sizes: Such as ``"1K:4G"``, ``[1024, "64K"]`` or ``65536``.

    Examples:
        >>> sizes_of("1K:4K"), sizes_of([4096, "1K"])
        ((1024, 2048, 4096), (1024, 4096))

    Raises:
        InputError: If one is no size.
    """
    if isinstance(sizes, str):
        return parse_sizes(sizes)
    return tuple(sorted({size_of(each) for each in ([sizes] if isinstance(sizes, int) else sizes)}))


def short_size(size_bytes: int) -> str:
    """Shortest exact text that :func:`parse_size` reads back.

    Examples:
        >>> short_size(65536), short_size(1000), short_size(0)
        ('64K', '1000', '0')
    """
    unit, units = 0, "KMGT"
    while size_bytes and size_bytes % 1024 == 0 and unit < len(units):
        size_bytes, unit = size_bytes // 1024, unit + 1
    return f"{size_bytes}{units[unit - 1] if unit else ''}"


def size_text(size_bytes: float) -> str:
    """Bytes with a binary unit.

    >>> size_text(1536), size_text(512), size_text(3 * 2**30)
    ('1.5 KiB', '512 B', '3 GiB')
    """
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def time_text(time_us: float) -> str:
    """A time with a fitting unit.

    >>> time_text(0.5), time_text(1234.5), time_text(2.5e6)
    ('0.5 us', '1.23 ms', '2.5 s')
    """
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if time_us >= size:
            return f"{time_us / size:.3g} {unit}"
    return f"{time_us:.3g} us"


def seconds_text(seconds: float) -> str:
    """A duration with a fitting unit.

    >>> seconds_text(0.00042), seconds_text(0.21), seconds_text(12.3)
    ('0.42 ms', '210 ms', '12.3 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def rate_text(rate: Fraction) -> str:
    """Format a rate: exact where four decimals suffice, otherwise rounded.

    >>> rate_text(Fraction(25, 2)), rate_text(Fraction(200)), rate_text(Fraction(2400, 7))
    ('12.5', '200', '342.8571')
    """
    text = f"{float(rate):.4f}".rstrip("0").rstrip(".")
    return text if text not in ("0", "-0") or not rate else f"{float(rate):.4g}"


def rate_line(rate: Fraction) -> str:
    """Format a rate in GB/s, with its exact value where the decimals do not show it.

    >>> rate_line(Fraction(2400, 7)), rate_line(Fraction(50))
    ('342.857 GB/s (2400/7)', '50 GB/s')
    """
    exact = rate_text(rate)
    if Fraction(exact) == rate:
        return f"{exact} GB/s"
    return f"{float(rate):.6g} GB/s ({rate})"


def bandwidth_text(algbw: Fraction, busbw: Fraction) -> str:
    """Format both bandwidths of nccl-tests.

    >>> bandwidth_text(Fraction(50), Fraction(175, 4))
    'algbw 50 GB/s, busbw 43.75 GB/s'
    """
    return f"algbw {rate_line(algbw)}, busbw {rate_line(busbw)}"


def percent_text(share: Fraction, *, most_decimals: int = 6) -> str:
    """A share in percent with one decimal, or more where fewer would make it all or nothing, which it never becomes.

    Args:
        share: The share.
        most_decimals: Most decimals; what still rounds to 100% with them is cut off there, and what rounds to 0% is the
            least that they show.

    Examples:
        >>> percent_text(Fraction(1)), percent_text(Fraction(9999, 10000)), percent_text(Fraction(1, 3))
        ('100%', '99.99%', '33.3%')
        >>> percent_text(Fraction(9999, 10000), most_decimals=1)
        '99.9%'
        >>> percent_text(Fraction(0)), percent_text(Fraction(8, 10**5)), percent_text(Fraction(1, 10**10))
        ('0%', '0.008%', '0.000001%')
    """
    if share in (0, 1):
        return f"{100 * int(share)}%"
    for decimals in range(1, most_decimals + 1):
        text = f"{100 * float(share):.{decimals}f}"
        if float(text) in (0, 100):
            continue
        if decimals == 1 or share > Fraction(1, 2) or abs(float(text) / 100 - share) <= abs(share) / 10:
            return f"{text.rstrip('0').rstrip('.')}%"
    if abs(share) < Fraction(1, 2):
        return f"{'-' if share < 0 else ''}0.{'0' * (most_decimals - 1)}1%"
    return f"99.{'9' * most_decimals}%" if share < 1 else "100%"


def plural(count: int, noun: str) -> str:
    """``1 link``, ``2 links``.

    >>> plural(1, "switch"), plural(2, "switch"), plural(3, "tree")
    ('1 switch', '2 switches', '3 trees')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Known word most similar to ``word``, or None.

    Args:
        word: What was given.
        known: What there is.
        cutoff: Least likeness, between 0 and 1.

    Examples:
        >>> nearest("rign", ["ring", "tree"]), nearest("x", ["ring", "tree"])
        ('ring', None)
    """
    near = difflib.get_close_matches(word[:80], [str(each) for each in known], n=1, cutoff=cutoff)
    return near[0] if near else None


def suggestion(word: str, known: Iterable[str], *, otherwise: str | None = None) -> str:
    """End of a message about an unknown ``word``: the most similar known one, else all of them.

    Args:
        word: What was given.
        known: What there is.
        otherwise: Stands in for the list where no known word is near.

    Examples:
        >>> suggestion("gb_per_sec", ["gb_per_s", "from"]), suggestion("x", ["a", "b"])
        ("did you mean 'gb_per_s'?", 'use one of a, b.')
        >>> suggestion("gbit_per_s", ["gb_per_s", "from"])
        "did you mean 'gb_per_s', in gigabytes per second? Divide gigabits by 8: 400 Gbit/s are 50 GB/s."
    """
    names = [str(name) for name in known]
    rates = [name for name in names if "gb_per_s" in name] if _BITS.search(word) else []
    near = nearest(word, rates, cutoff=0.5) or nearest(word, names)
    if near is not None:
        if near in rates:
            return f"did you mean {near!r}, in gigabytes per second? Divide gigabits by 8: 400 Gbit/s are 50 GB/s."
        return f"did you mean {near!r}?"
    return f"use one of {', '.join(names)}." if otherwise is None else otherwise


def columns(
    rows: Sequence[Sequence[str]],
    sides: str = "",
    *,
    max_width: int | None = None,
    spare: Sequence[int] = (),
    heads: int = 1,
    words: int | None = None,
) -> list[str]:
    """Align a table as text.

    Args:
        rows: Cells, the heads first.
        sides: ``l`` or ``r`` for each column: set left or right; all left where it is empty.
        max_width: Characters that a line may have, None for any number.
        spare: Numbers of the columns that are left out where there is no room, in this order, until there is; then a
            last line names them.
        heads: Rows that name the columns.
        words: Characters that are enough for the last column, of words that may go on below; None for all.

    Examples:
        >>> columns([("name", "us"), ("ring", "12.5")], "lr")
        ['name    us', 'ring  12.5']
        >>> columns([("name", "steps", "us"), ("ring", "14", "12.5")], "lrr", max_width=12, spare=[1])
        ['name    us', 'ring  12.5', 'left out: steps; JSON or a wider terminal shows it']
    """
    gone = _narrowed(rows, max_width, spare, words)
    if gone:
        names = [" ".join(filter(None, (row[column] for row in rows[:heads]))) for column in gone]
        kept = [column for column in range(len(rows[0])) if column not in gone]
        lines = columns(
            [[row[each] for each in kept] for row in rows], "".join(sides[each : each + 1] for each in kept)
        )
        shows = "it" if len(names) == 1 else "them"
        return [*lines, f"left out: {', '.join(names)}; JSON or a wider terminal shows {shows}"]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, sides or "l" * len(widths), strict=True)
        ).rstrip()
        for row in rows
    ]


def _narrowed(
    rows: Sequence[Sequence[str]], max_width: int | None, spare: Sequence[int], words: int | None
) -> list[int]:
    """The columns out of ``spare`` that a table is too wide for."""
    if max_width is None or not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    widths[-1] = widths[-1] if words is None else min(widths[-1], words)
    width, gone = sum(widths) + 2 * len(widths) - 2, []
    for column in spare:
        if width <= max_width:
            break
        width -= widths[column] + 2
        gone.append(column)
    return gone


def number(value: float) -> str:
    """Format a figure with its significant digits.

    >>> number(0.01234), number(12.345), number(123456.7)
    ('0.0123', '12.35', '123457')
    """
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def aligned(
    heads: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    max_width: int | None = None,
    spare: Sequence[int] = (),
) -> list[str]:
    """Align a table: numbers right, the last column left; ``max_width`` and ``spare`` as in ``columns``."""
    lines = [[top for top, _ in heads], [unit for _, unit in heads], *rows]
    sides = "r" * (len(heads) - 1) + "l"
    text = columns(lines, sides, max_width=None if max_width is None else max_width - 2, spare=spare, heads=2)
    plain = range(2, len(lines))
    return [f"{' ' if position in plain else '#'} {line}".rstrip() for position, line in enumerate(text)]


def bar(share: float, *, width: int = 30) -> str:
    """A bar of ``width`` characters for a share between 0 and 1.

    >>> bar(0.5, width=8), bar(1, width=4)
    ('████    ', '████')
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + " " * (width - filled)


def shortened(names: Sequence[object], most: int) -> str:
    """Join names with commas; beyond ``most``, count the rest.

    >>> shortened(["a", "b"], 3), shortened(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def _factor(text: str, option: str) -> int:
    """The factor of a range."""
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) or int(text) < 2:
        raise InputError(
            f"expected a factor of 2 or more in {option}, found {text!r}: write FIRST:LAST:FACTOR."
        )
    return int(text)
