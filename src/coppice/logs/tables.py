"""What a run of nccl-tests and its kin printed, as typed records: a table with its rows and ranks."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.logs.agreement import Figures

__all__ = ["IterationSpread", "NcclTestsHalf", "NcclTestsRank", "NcclTestsRow", "NcclTestsTable"]


@dataclass(frozen=True, kw_only=True)
class IterationSpread:
    """Times of single iterations, where a run reports them (``-I``).

    Attributes:
        least_us: Shortest.
        most_us: Longest.
        p99_us: 99th percentile.
        variation_percent: Coefficient of variation.
        times_us: Every iteration, empty where only the above is printed.
        skipped: Iterations at the beginning that do not count.
    """

    least_us: float
    most_us: float
    p99_us: float
    variation_percent: float
    times_us: tuple[float, ...] = ()
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class NcclTestsHalf:
    """One half of a row.

    Attributes:
        time_us: Time of a call.
        algbw_gb_per_s: Algorithm bandwidth, as printed.
        busbw_gb_per_s: Bus bandwidth, as printed.
        wrong: Number of wrong values, None where they were not checked.
        iterations: Times of single iterations, None where not reported.
        figures: The figures with their digits, None where the times are those of the CPU.
    """

    time_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None
    iterations: IterationSpread | None = None
    figures: Figures | None = None


@dataclass(frozen=True, kw_only=True)
class NcclTestsRow:
    """A row.

    Attributes:
        size_bytes: The size column: M (see :mod:`coppice.collectives`).
        count: Elements of a rank, None without such a column.
        type: Their type, such as ``float``, None likewise.
        redop: Reduction, or ``none``; None likewise.
        root: Root rank, -1 without one.
        out_of_place: Times with two buffers, None where that was not run.
        in_place: Times with one, None likewise.
        unnamed: Times of which the header does not say how many buffers there were.
        ranks: Ranks, where the row has a column of them.
        nodes: Nodes, likewise.
        line: Line of the text.
    """

    size_bytes: int
    count: int | None
    type: str | None
    redop: str | None
    root: int
    out_of_place: NcclTestsHalf | None
    in_place: NcclTestsHalf | None
    unnamed: NcclTestsHalf | None = None
    ranks: int | None = None
    nodes: int | None = None
    line: int

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
    """Everything that a run printed, or several runs whose rows are mixed.

    Attributes:
        rows: Rows, in order.
        devices: Ranks of each run that listed its ranks before the rows, in order: more than one where rows are mixed.
        devices_cut: A list of ranks is not whole.
        wrong: Wrong values in all, None where nothing says so.
        avg_busbw_gb_per_s: Average bus bandwidth, None likewise.
        program: Name of the program, such as ``all_reduce_perf``, None likewise.
        kind: Whose program it was: ``nccl-tests``, ``rccl-tests`` or ``mscclpp-test``.
        warnings: What was left out of it, or may be taken wrongly.
    """

    rows: tuple[NcclTestsRow, ...]
    devices: tuple[tuple[NcclTestsRank, ...], ...] = ()
    devices_cut: bool = False
    wrong: int | None
    avg_busbw_gb_per_s: float | None
    program: str | None = None
    kind: str = "nccl-tests"
    warnings: tuple[str, ...] = ()
