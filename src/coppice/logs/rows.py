"""Typed records of an nccl-tests run, and the conversion of its rows and rank lists to them.

Rows that lines of other processes tore apart, put together where that can be done in one way only.

Programs print a row in pieces (its keys, then each half), and what other threads and processes print meanwhile stands
between. Pieces are joined as they were printed, blank space included. A joined row counts only if it has exactly the
columns of its table and its figures do not contradict each other (size / time is algbw); where a piece of an earlier
row was lost, or rows of several runs are mixed, the figures have to confirm the joint, for then a piece may belong to
another row.

Typed records of an nccl-tests run: a table with its rows and ranks. Figures of a row are held against each other: size
/ time is algbw, and busbw / algbw tells the ranks. Every figure is printed with few digits, so that each stands for an
interval; only what no value of the intervals can explain is a contradiction, and only what leaves no room for another
reading is a confirmation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Generic, NamedTuple, TypeVar

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.columns import BLANK, TableHeader, UnreadableError

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


WORD_BYTES = {
    "int8": 1, "uint8": 1, "fp8": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
"""Bytes of an element, by the name that nccl-tests gives its type."""

_DEVICE = re.compile(
    r"#\s{1,20}Rank\s{1,20}([0-9]+)(?:\s{1,20}Group\s{1,20}([0-9]+))?(?:.{0,80}?\s{1,20}Pid\s{1,20}([0-9]+))?"
    r"\s{1,20}on\s{1,80}(\S+)\s{1,20}device\s{1,20}([0-9]+)\s{1,20}\[([^\]]*)\]\s*(.*)"
)
_DIGITS = 18
_INTEGER = re.compile(r"[0-9]+")
_BARE_ROOT = re.compile(r"-1|[0-9]{1,9}")


def joined_row(
    header: TableHeader, text: str, line: int, file: str
) -> tuple[NcclTestsRow | None, bool | None]:
    """Row of a rejoined text, None where it is none, and whether its figures agree."""
    try:
        cells = header.cells(text)
        if not cells.whole or cells.surplus:
            return None, None
        row = row_of(header, cells.by_name, line, f"{file}:{line}")
    except (UnreadableError, InputError):
        return None, None
    return row, figures_agree(row)


def figures_agree(row: NcclTestsRow) -> bool | None:
    """Whether the figures of a row agree in all halves."""
    word = WORD_BYTES.get(row.type or "")
    if row.count and word and row.size_bytes % (row.count * word):
        return False
    found = [None if half.figures is None else agree(half.figures) for half, _ in row.halves]
    return False if False in found else (True if found and all(found) else None)


def row_of(header: TableHeader, cells: Mapping[tuple[int, str], str], line: int, where: str) -> NcclTestsRow:
    """Convert cells to a row."""
    shared = {name: cells.get((-1, name)) for name in header.names}
    size = _index(shared["size"] or "", "a size", where)
    root = shared.get("root") or "-1"
    if not _BARE_ROOT.fullmatch(root):
        raise InputError(f"expected a root of -1 or more at {where}, found {root[:20]!r}.")
    halves: dict[bool | None, NcclTestsHalf] = {}
    for number, place in enumerate(header.in_place):
        own = {name: word for (half, name), word in cells.items() if half == number}
        if own and own["time"] not in BLANK:
            halves[place] = _half(header, own, size, where)
    return NcclTestsRow(
        size_bytes=size,
        count=_counted(shared, "count", where),
        type=shared.get("type"),
        redop=shared.get("redop"),
        root=int(root),
        out_of_place=halves.get(False),
        in_place=halves.get(True),
        unnamed=halves.get(None),
        ranks=_counted(shared, "ranks", where),
        nodes=_counted(shared, "nodes", where),
        line=line,
    )


def _counted(shared: dict[str, str | None], name: str, where: str) -> int | None:
    word = shared.get(name)
    return None if word is None or word in BLANK else _index(word, f"{name} as an integer", where)


def _half(header: TableHeader, own: dict[str, str], size: int, where: str) -> NcclTestsHalf:
    wrong = own.get("wrong", BLANK[0]).removesuffix("*")  # rccl-tests marks what exceeds a threshold
    counted = None if wrong in BLANK else number_of(wrong, "#wrong", where)
    words = {name: own.get(name, "0") for name in ("time", "algbw", "busbw")}
    values = {name: 0.0 if word in BLANK else number_of(word, name, where) for name, word in words.items()}
    iterations = None
    if "i_min" in own:
        told = [number_of(own.get(name, "0"), name, where) for name in ("i_min", "i_max", "i_p99", "i_cv")]
        iterations = IterationSpread(
            least_us=told[0], most_us=told[1], p99_us=told[2], variation_percent=told[3]
        )
    whole = not header.cpu_time and "algbw" in own and "busbw" in own
    return NcclTestsHalf(
        time_us=values["time"] * header.unit_us,
        algbw_gb_per_s=values["algbw"],
        busbw_gb_per_s=values["busbw"],
        wrong=None if counted is None else int(counted),
        iterations=iterations,
        figures=figures_of(size, words["time"], words["algbw"], words["busbw"], unit_us=header.unit_us)
        if whole
        else None,
    )


def device_of(text: str, where: str) -> NcclTestsRank | None:
    """Rank of a line of the rank list; None for other lines."""
    match = _DEVICE.match(text)
    if match is None:
        return None
    rank, group, pid, host, index, bus_id, name = match.groups()
    return NcclTestsRank(
        rank=_index(rank, "a rank", where),
        pid=None if pid is None else _index(pid, "a process", where),
        host=host,
        device=_index(index, "a device", where),
        bus_id=bus_id,
        name=name.strip(),
        group=_index(group or "0", "a group", where),
    )


def _index(text: str, what: str, where: str) -> int:
    if len(text) > _DIGITS or not _INTEGER.fullmatch(text):
        raise InputError(f"expected {what} of at most {_DIGITS} digits at {where}, found {text[:40]!r}.")
    return int(text)


def number_of(text: str, name: str, where: str) -> float:
    """Parse a non-negative number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"expected {name} as a number of 0 or more at {where}, found {text[:40]!r}.")
    return value


_MOST_VARIANTS = 8

R = TypeVar("R")


class TornRow(Generic[R]):
    """An interrupted row."""

    def __init__(
        self, number: int, text: str, parse: Callable[[str], tuple[R | None, bool | None]], *, cut: bool
    ) -> None:
        """Begin a row.

        Args:
            parse: Gives the row of a text (None: it is none), and whether its figures agree (None: too few digits).
            cut: Another line began right after the text.
        """
        self.number = number  # Line where it begins
        self.text = text  # Its beginning
        self.cut = cut  # Another line began right after that
        self._parse = parse
        self._variants = [text]

    def add(self, text: str, *, sure: bool, keep: bool) -> R | None:
        """Append a part; return the row once complete.

        Args:
            sure: The figures have to confirm the joint.
            keep: The piece stays also where the row is not complete with it.
        """
        joined = [variant + text for variant in self._variants]
        if not text[:1].isspace():  # blank space may be lost, or a number may be torn
            joined += [f"{variant} {text}" for variant in self._variants if not variant[-1:].isspace()]
        variants = list(dict.fromkeys(joined))[:_MOST_VARIANTS]
        found: dict[str, R] = {}
        for variant in variants:
            row, agrees = self._parse(variant)
            ambiguous = sure or len(variants) > 1
            if row is not None and agrees is not False and (agrees or not ambiguous):
                found[" ".join(variant.split())] = row
        if keep:
            self._variants = variants
        return next(iter(found.values())) if len(found) == 1 else None
