"""What a run of nccl-tests and its kin printed, as typed records: a table with its rows and ranks."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.logs.agreement import Figures


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
    """One half of a row."""

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
        """Every half that was run, and whether it was in place (None: nothing says so)."""
        named = ((self.out_of_place, False), (self.in_place, True), (self.unnamed, None))
        return tuple((half, place) for half, place in named if half is not None)


@dataclass(frozen=True, kw_only=True)
class NcclTestsRank:
    """A rank and where it ran."""

    rank: int
    pid: int | None
    host: str
    device: int
    bus_id: str
    name: str
    group: int = 0


@dataclass(frozen=True, kw_only=True)
class NcclTestsTable:
    """Everything that a run printed, or several runs whose rows are mixed."""

    rows: tuple[NcclTestsRow, ...]  # Rows, in order
    # Ranks of each run that listed its ranks before the rows, in order: more than one where rows are mixed
    devices: tuple[tuple[NcclTestsRank, ...], ...] = ()
    devices_cut: bool = False  # A list of ranks is not whole
    wrong: int | None  # Wrong values in all, None where nothing says so
    avg_busbw_gb_per_s: float | None  # Average bus bandwidth, None likewise
    program: str | None = None  # Name of the program, such as `all_reduce_perf`, None likewise
    kind: str = "nccl-tests"  # Whose program it was: `nccl-tests`, `rccl-tests` or `mscclpp-test`
    warnings: tuple[str, ...] = ()  # What was left out of it, or may be taken wrongly
