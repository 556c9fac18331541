"""Typed records of an nccl-tests run: a table with its rows and ranks.

Figures of a row are held against each other: size / time is algbw, and busbw / algbw tells the ranks. Every figure is
printed with few digits, so that each stands for an interval; only what no value of the intervals can explain is a
contradiction, and only what leaves no room for another reading is a confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from coppice.collectives import Collective

_INFORMATIVE = Decimal("0.1")
_MOST_RANKS = 1 << 20


class Figures(NamedTuple):
    """Figures of half a row as printed: intervals of half a unit of the last digit."""

    size: int  # Bytes
    time: tuple[Decimal, Decimal]  # Time in us, and its error
    algbw: tuple[Decimal, Decimal]  # GB/s, and its error
    busbw: tuple[Decimal, Decimal]  # Likewise


def figures_of(size: int, time: str, algbw: str, busbw: str, *, unit_us: float = 1.0) -> Figures | None:
    """Figures of a half; None where one is not a finite number.

    Args:
        unit_us: Microseconds of the unit of the time.
    """
    parts = [_printed(word) for word in (time, algbw, busbw)]
    if None in parts:
        return None
    told = [part for part in parts if part is not None]
    unit = Decimal(str(unit_us))
    return Figures(size, (told[0][0] * unit, told[0][1] * unit), told[1], told[2])


def agree(found: Figures) -> bool | None:
    """Whether size / time is algbw; None where too few digits are printed to decide.

    Examples:
        >>> agree(figures_of(1048576, "55.66", "18.84", "32.97"))
        True
        >>> agree(figures_of(1, "55.66", "18.84", "32.97")), agree(figures_of(8, "40.1", "0.00", "0.00"))
        (False, None)
    """
    time, error = found.time
    rate, rounding = found.algbw
    if time <= error:
        return None
    low, high = found.size / (time + error) / 1000, found.size / (time - error) / 1000
    if high < rate - rounding or low > rate + rounding:
        return False
    return True if rounding <= _INFORMATIVE * low and high - low <= _INFORMATIVE * low else None


def factor_contradicts(rows: Sequence[Figures], collective: Collective, ranks: int) -> str:
    """How busbw / algbw of most rows contradicts the collective and number of ranks; empty if it does not.

    Examples:
        >>> rows = [figures_of(1 << 30, "11870", "90.46", "158.30")]
        >>> factor_contradicts(rows, Collective.ALL_REDUCE, 8)
        ''
        >>> factor_contradicts(rows, Collective.ALL_REDUCE, 16)
        'busbw is 1.75 times algbw, as on 8 ranks, where all_reduce on 16 ranks has 1.875 times'
    """
    factor = collective.busbw_factor(ranks)
    expected = Decimal(factor.numerator) / Decimal(factor.denominator)
    telling = [row for row in rows if row.algbw[1] <= _INFORMATIVE / 20 * row.algbw[0] and row.algbw[0] > 0]
    against = [row for row in telling if not _within(row, expected)]
    if 2 * len(against) <= len(telling):
        return ""
    best = max(against, key=lambda row: row.algbw[0] / (row.algbw[1] or Decimal("1e-9")))
    ratio = best.busbw[0] / best.algbw[0]
    fitting = _ranks_of(against, collective)
    place = f", as on {fitting} ranks," if fitting else ","
    own = f"where {collective} on {ranks} ranks has {_short(expected)} times"
    return f"busbw is {_short(ratio)} times algbw{place} {own}"


def _ranks_of(rows: Sequence[Figures], collective: Collective) -> int | None:
    """The only number of ranks whose factor fits all rows, None where none or several do."""
    fitting = []
    for ranks in range(1, 1025):
        factor = collective.busbw_factor(ranks)
        if all(_within(row, Decimal(factor.numerator) / Decimal(factor.denominator)) for row in rows):
            fitting.append(ranks)
        if len(fitting) > 1:
            return None
    return fitting[0] if fitting else None


def _within(row: Figures, factor: Decimal) -> bool:
    rate, error = row.algbw
    bus, rounding = row.busbw
    return factor * (rate - error) - rounding <= bus <= factor * (rate + error) + rounding


def _printed(word: str) -> tuple[Decimal, Decimal] | None:
    """A number and half a unit of its last digit."""
    try:
        value = Decimal(word)
    except InvalidOperation:
        return None
    exponent = value.as_tuple().exponent
    if not value.is_finite() or not isinstance(exponent, int) or abs(exponent) > 400 or len(word) > 40:
        return None
    return value, Decimal(5).scaleb(exponent - 1)


def _short(value: Decimal) -> str:
    return f"{float(value):.4g}"


@dataclass(frozen=True, kw_only=True)
class IterationSpread:
    """Times of single iterations, where a run reports them (``-I``)."""

    least_us: float  # Shortest
    most_us: float  # Longest
    p99_us: float  # 99th percentile
    variation_percent: float  # Coefficient of variation
    times_us: tuple[float, ...] = ()  # Every iteration, empty where only the above is printed
    skipped: int = 0  # Iterations at the beginning that do not count


@dataclass(frozen=True, kw_only=True)
class NcclTestsHalf:
    """In-place or out-of-place half of a row."""

    time_us: float  # Time of a call
    algbw_gb_per_s: float  # Algorithm bandwidth, as printed
    busbw_gb_per_s: float  # Bus bandwidth, as printed
    wrong: int | None  # Number of wrong values, None where they were not checked
    iterations: IterationSpread | None = None  # Times of single iterations, None where not reported
    figures: Figures | None = None  # The figures with their digits, None where the times are those of the CPU


@dataclass(frozen=True, kw_only=True)
class NcclTestsRow:
    """A row."""

    size_bytes: int  # The size column: M (see :mod:`coppice.collectives`)
    count: int | None  # Elements of a rank, None without such a column
    type: str | None  # Their type, such as `float`, None likewise
    redop: str | None  # Reduction, or `none`; None likewise
    root: int  # Root rank, -1 without one
    out_of_place: NcclTestsHalf | None  # Times with two buffers, None where that was not run
    in_place: NcclTestsHalf | None  # Times with one, None likewise
    unnamed: NcclTestsHalf | None = None  # Times of which the header does not say how many buffers there were
    ranks: int | None = None  # Ranks, where the row has a column of them
    nodes: int | None = None  # Nodes, likewise
    line: int  # Line of the text

    @property
    def halves(self) -> tuple[tuple[NcclTestsHalf, bool | None], ...]:
        """Halves that were run, and whether each is in place (None: unknown)."""
        named = ((self.out_of_place, False), (self.in_place, True), (self.unnamed, None))
        return tuple((half, place) for half, place in named if half is not None)


@dataclass(frozen=True, kw_only=True)
class NcclTestsRank:
    """A rank and its host and device."""

    rank: int
    pid: int | None
    host: str
    device: int
    bus_id: str
    name: str
    group: int = 0


@dataclass(frozen=True, kw_only=True)
class NcclTestsTable:
    """Printed results of a run, or of several interleaved ones."""

    rows: tuple[NcclTestsRow, ...]  # Rows, in order
    # Ranks of each run that listed its ranks before the rows, in order: more than one where rows are mixed
    devices: tuple[tuple[NcclTestsRank, ...], ...] = ()
    devices_cut: bool = False  # A list of ranks is not whole
    wrong: int | None  # Wrong values in all, None where nothing says so
    avg_busbw_gb_per_s: float | None  # Average bus bandwidth, None likewise
    program: str | None = None  # Name of the program, such as `all_reduce_perf`, None likewise
    kind: str = "nccl-tests"  # Whose program it was: `nccl-tests`, `rccl-tests` or `mscclpp-test`
    warnings: tuple[str, ...] = ()  # What was left out of it, or may be taken wrongly
