"""Measure algorithms against the library's own collectives on the running processes.

All contenders run in every round, in an order of its own, so that noise hits all alike; a row is the median over the
rounds of the slowest rank's time. Every result is compared with what each rank computes by itself.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankProgram, block_bounds
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import (
    DataType,
    ReduceOp,
    check_reduction,
    combine,
    divide,
    from_bfloat16,
    to_bfloat16,
)
from coppice.run.engines.engine import DeviceMemory, DirectEngine, Engine
from coppice.run.planned import FOREST
from coppice.topology.model import Topology

Array = NDArray[Any]
_PERIOD = 61  # prime, so that a block in the wrong place shows


def contribution(
    program: RankProgram, rank: int, dtype: DataType, *, first: int = 0, count: int | None = None
) -> Array:
    """Elements ``first`` .. ``first + count - 1`` of the input of ``rank``.

    Small whole numbers, so that sums over many ranks are exact in every type; of bool, 0 and 1.
    """
    count = _given_elements(program) if count is None else count
    place = (np.arange(first, first + count, dtype=np.int64) + 17 * rank) % _PERIOD
    values = place % 2 if dtype is DataType.BOOL else 1 + place % 3
    if dtype is DataType.BFLOAT16:
        return to_bfloat16(values.astype(np.float32))
    return values.astype(dtype.numpy_name)


def expected(program: RankProgram, dtype: DataType, op: ReduceOp) -> Array:
    """Expected output of the rank of ``program``: ``program.result_elements`` elements.

    Examples:
        >>> from coppice.run.engines.numpy import run_ranks
        >>> from coppice.run.communicator.communicator import Communicator
        >>> from coppice.topology.presets import preset
        >>> def work(engine):
        ...     group = Communicator(engine, preset("ring", gpus=2), pieces=1)
        ...     program = group.prepare(Collective.ALL_REDUCE, 3)
        ...     return expected(program, DataType.FLOAT32, ReduceOp.SUM).tolist()
        >>> run_ranks(2, work)[0]
        [4.0, 3.0, 5.0]
    """
    rank, ranks, count = program.rank, program.ranks, program.result_elements
    if not count:
        return np.zeros(0, dtype=dtype.numpy_name)
    bounds = block_bounds(program.count, ranks)
    first = bounds[rank]
    match program.collective:
        case Collective.ALL_GATHER | Collective.GATHER:
            blocks = [contribution(program, r, dtype, count=bounds[r + 1] - bounds[r]) for r in range(ranks)]
            return np.concatenate(blocks)
        case Collective.ALL_TO_ALL:
            own = bounds[rank + 1] - first
            blocks = [contribution(program, r, dtype, first=first, count=own) for r in range(ranks)]
            return np.concatenate(blocks)
        case Collective.BROADCAST:
            return contribution(program, program.root, dtype, count=count)
        case Collective.SCATTER:
            return contribution(program, program.root, dtype, first=first, count=count)
        case Collective.REDUCE | Collective.ALL_REDUCE:
            first = 0
    total = contribution(program, 0, dtype, first=first, count=count)
    for other in range(1, ranks):
        combine(op, dtype, total, contribution(program, other, dtype, first=first, count=count), total)
    if op is ReduceOp.AVG:
        divide(dtype, total, ranks)
    return total


def wrong_elements(found: Array, wanted: Array, dtype: DataType) -> int:
    """Number of elements whose error exceeds what rounding can explain."""
    if dtype is DataType.BFLOAT16:
        found, wanted = from_bfloat16(found), from_bfloat16(wanted)
    if not dtype.is_float:
        return int(np.count_nonzero(found != wanted))
    epsilon = 2.0**-7 if dtype is DataType.BFLOAT16 else float(np.finfo(found.dtype).eps)
    near = np.isclose(found.astype(np.float64), wanted.astype(np.float64), rtol=8 * epsilon, atol=0)
    return int(np.count_nonzero(~near))


def _given_elements(program: RankProgram) -> int:
    if program.collective in (Collective.ALL_GATHER, Collective.GATHER):
        bounds = block_bounds(program.count, program.ranks)
        return bounds[program.rank + 1] - bounds[program.rank]
    return program.count


NATIVE = "native"
"""Name of the contender that is the library's own collective."""

DIRECT = "direct"
"""Name of the contender that is the engine's own way between ranks that share memory."""


@runtime_checkable
class Native(Protocol):
    """Engine whose library has its own collectives."""

    def native(
        self,
        collective: Collective,
        given: Array | None,
        output: Array,
        *,
        dtype: DataType,
        op: ReduceOp,
        root: int,
    ) -> None:
        """Run the library's collective; in place if no input is given.

        Memory is laid out as :mod:`coppice.program.dialects.rank.program` says.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """Measurement of one algorithm at one size."""

    collective: str  # The collective
    algorithm: str  # Name of the contender
    ranks: int  # Number of ranks
    size_bytes: int  # M
    count: int  # M in elements
    dtype: str  # Type of the elements
    op: str  # Reduction, or `none`
    root: int  # Root rank, or -1
    in_place: bool  # One memory
    pieces: int = 0  # Pieces of every chunk that ran; 0 where no program of ours did
    time_us: float = 0.0  # Median over rounds of the slowest rank's time
    fastest_us: float = 0.0  # Least of the rounds
    slowest_us: float = 0.0  # Most of the rounds
    algbw_gb_per_s: float = 0.0  # M / time
    busbw_gb_per_s: float = 0.0  # The same times the factor of nccl-tests
    # Times of the slowest rank in each round, in the order of the rounds; not among :meth:`fields`
    rounds_us: tuple[float, ...] = ()
    wrong: int = 0  # Wrong elements on all ranks, in the first and the last round
    # Share of this host's cores that were busy during the measured rounds of all contenders of the size, or
    # -1 where the system does not tell
    cores_busy: float = -1.0
    refusal: str = ""  # Why it did not run, or nothing
    skew: str = ""  # How blocks differ, as it was asked for; empty where they are equal

    def fields(self) -> dict[str, Any]:
        """The row as a dictionary."""
        found = asdict(self)
        del found["rounds_us"]
        return found

    def record(self) -> dict[str, Any]:
        """The fields as JSON values, with the rates under the names that they have in all outputs."""
        return {
            **self.fields(),
            "reached_algbw_gb_per_s": self.algbw_gb_per_s,
            "reached_busbw_gb_per_s": self.busbw_gb_per_s,
        }


def bench(
    engine: Engine,
    topology: Topology,
    collective: Collective,
    *,
    algorithms: Sequence[str],
    sizes: Sequence[int],
    dtype: DataType = DataType.FLOAT32,
    op: ReduceOp = ReduceOp.SUM,
    root: int = 0,
    in_place: bool = False,
    rounds: int = 20,
    warmup: int = 5,
    rest_s: float = 0.0,
    timeout_s: float = 300.0,
    cache_dir: str | None = None,
) -> Iterator[BenchRow]:
    """Run a benchmark; collective over the ranks, with the same rows on each.

    Args:
        engine: This rank's end of the group.
        topology: What the algorithms are planned for.
        collective: What to run; not the barrier with sizes other than 0.
        algorithms: Names of the catalogue, ``forest``, ``native`` for the library's own, ``direct`` for the engine's,
            protocols of switches such as ``switchml``.
        sizes: M in bytes; cut to whole elements, and to equal blocks where the collective has blocks.
        dtype: Type of the elements.
        op: The reduction.
        root: Root rank of a rooted collective.
        in_place: Input and output are one memory.
        rounds: Measured rounds, 1 or more.
        warmup: Rounds before.
        rest_s: Rest before every run, in seconds: links that let a burst through after a rest find no run better
            off than another.
        timeout_s: Longest wait for another rank.
        cache_dir: Where plans are kept.

    Yields:
        The rows of a size as soon as it is done, in the order of ``algorithms``.

    Raises:
        InputError: On every rank, if something cannot be asked for.
        RunError: If a rank is lost.
    """
    if collective.reduces:
        check_reduction(op, dtype)
    if rounds < 1 or warmup < 0:
        raise InputError(
            f"expected 1 measured round or more and no negative warm-up, found {rounds} and {warmup}."
        )
    if len(set(algorithms)) != len(algorithms) or not algorithms:
        raise InputError(
            f"expected different algorithms, found {', '.join(algorithms) or 'none'}: name each once."
        )
    groups = {
        name: Communicator(
            engine,
            topology,
            algorithm=FOREST if name in (NATIVE, DIRECT) else name,
            cache_dir=cache_dir,
            timeout_s=timeout_s,
            fall_back=False,
        )
        for name in algorithms
    }
    try:
        yield from _rows(
            engine,
            collective,
            groups,
            sizes=sizes,
            dtype=dtype,
            op=op,
            root=root,
            in_place=in_place,
            rounds=rounds,
            warmup=warmup,
            rest_s=rest_s,
            timeout_s=timeout_s,
        )
    finally:
        for group in groups.values():
            group.leave()


def _rows(
    engine: Engine,
    collective: Collective,
    groups: dict[str, Communicator],
    *,
    sizes: Sequence[int],
    dtype: DataType,
    op: ReduceOp,
    root: int,
    in_place: bool,
    rounds: int,
    warmup: int,
    rest_s: float,
    timeout_s: float,
) -> Iterator[BenchRow]:
    """The rows of :func:`bench`."""
    whole = engine.ranks if collective.sharded else 1
    counts = [
        0 if collective is Collective.BARRIER else size // dtype.itemsize // whole * whole for size in sizes
    ]
    for count in dict.fromkeys(counts):
        rows: list[BenchRow] = []
        contenders: dict[str, Contender] = {}
        for name in groups:
            row = BenchRow(
                collective=collective.value,
                algorithm=name,
                ranks=engine.ranks,
                size_bytes=count * dtype.itemsize,
                count=count,
                dtype=dtype.value,
                op=op.value if collective.reduces else "none",
                root=root if collective.rooted else -1,
                in_place=in_place or collective in ALWAYS_IN_PLACE,
            )
            try:
                contenders[name] = Contender(engine, groups[name], row, timeout_s=timeout_s)
                row = replace(row, pieces=contenders[name].pieces)
            except InputError as error:  # raised on every rank alike
                row = replace(row, refusal=str(error))
            rows.append(row)
        yield from measured_rows(engine, rows, contenders, rounds=rounds, warmup=warmup, rest_s=rest_s)


ALWAYS_IN_PLACE = (Collective.BROADCAST, Collective.REDUCE, Collective.BARRIER)
"""Collectives that know no other way."""


class Measurable(Protocol):
    """What runs, is timed and checked."""

    wrong: int  # Wrong elements so far

    def run(self, *, check: bool) -> float:
        """Run it once, and give the seconds that it took on this rank."""


def measured_rows(
    engine: Engine,
    rows: Sequence[BenchRow],
    contenders: Mapping[str, Measurable],
    *,
    rounds: int,
    warmup: int,
    rest_s: float = 0.0,
) -> list[BenchRow]:
    """All contenders in every round, each round in another order; the rows with their results."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    before = None
    for number in range(warmup + rounds):
        if number == warmup:
            before = core_times()
        # The same order on all ranks; what one leaves behind on the network is not always the same one's burden.
        for name in random.Random(number).sample(list(contenders), len(contenders)):
            time.sleep(rest_s)
            seconds = contenders[name].run(check=number in (0, warmup + rounds - 1))
            if number >= warmup:
                times[name].append(seconds)
    busy = busy_share(before, core_times())
    told = msgspec.msgpack.encode([(times[name], contenders[name].wrong) for name in contenders])
    answers = [msgspec.msgpack.decode(answer) for answer in engine.exchange(told)]
    place = {name: number for number, name in enumerate(contenders)}
    return [
        replace(result_of(row, [answer[place[row.algorithm]] for answer in answers]), cores_busy=busy)
        if row.algorithm in place
        else row
        for row in rows
    ]


def result_of(row: BenchRow, answers: Sequence[tuple[list[float], int]]) -> BenchRow:
    """The row with what its ranks measured: seconds of each round, and wrong elements."""
    slowest = [1e6 * max(seconds) for seconds in zip(*(times for times, _ in answers), strict=True)]
    time_us = statistics.median(slowest)
    algbw = row.size_bytes / time_us / 1e3
    # Unequal blocks go to others only.
    factor = 1.0 if row.skew else float(Collective(row.collective).busbw_factor(row.ranks))
    return replace(
        row,
        time_us=time_us,
        fastest_us=min(slowest),
        slowest_us=max(slowest),
        rounds_us=tuple(slowest),
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * factor,
        wrong=sum(wrong for _, wrong in answers),
    )


class Contender:
    """One algorithm at one size, with its memory.

    Args:
        engine: This rank's end of the group.
        group: Its communicator, which has the plan.
        row: What is run; of no other algorithm than ``native`` and ``direct`` the name matters here.
        timeout_s: Longest wait for another rank.

    Raises:
        InputError: On every rank, if it cannot run.
    """

    def __init__(self, engine: Engine, group: Communicator, row: BenchRow, *, timeout_s: float) -> None:
        self.wrong = 0
        self._engine, self._group, self._timeout_s = engine, group, timeout_s
        self._dtype, self._op = DataType(row.dtype), ReduceOp.SUM if row.op == "none" else ReduceOp(row.op)
        self._native: Native | None = None
        if row.algorithm == NATIVE:
            if not isinstance(engine, Native):
                raise InputError(
                    f"the engine {engine.name} has no collectives of its own: leave {NATIVE} out."
                )
            self._native = engine
        self._direct: DirectEngine | None = None
        if row.algorithm == DIRECT:
            if not isinstance(engine, DirectEngine):
                raise InputError(
                    f"the ranks of the engine {engine.name} share no memory: leave {DIRECT} out."
                )
            self._direct = engine
        self._program = group.prepare(
            Collective(row.collective),
            row.count,
            dtype=self._dtype,
            op=self._op,
            root=row.root if row.root >= 0 else None,
            in_place=row.in_place,
        )
        program, kind = self._program, self._dtype.numpy_name
        self._given: Array | None = None
        if not program.in_place:
            self._given = np.zeros(program.input_elements, dtype=kind)
        self._output = np.zeros(program.output_elements, dtype=kind)
        self._memory: DeviceMemory | None = getattr(engine, "device_memory", None)
        self._buffers: tuple[Any, Any] = self._given, self._output
        if self._memory is not None:
            to_device = self._memory.to_device
            self._buffers = None if self._given is None else to_device(self._given), to_device(self._output)
        self._contribution = contribution(program, program.rank, self._dtype)
        self._wanted = expected(program, self._dtype, self._op)
        if self._native is not None:
            self._fill()
            self.carry_out()

    @property
    def pieces(self) -> int:
        """Pieces of every chunk, 0 where the program is not what runs."""
        if self._native is not None or self._direct is not None or self._group.in_network is not None:
            return 0
        return self._program.pieces

    def run(self, *, check: bool) -> float:
        """Run it once, and give the seconds that it took on this rank."""
        self.fill(check=check)
        self._engine.exchange(b"")
        begin = time.perf_counter()
        self.carry_out()
        seconds = time.perf_counter() - begin
        if check:
            self.check()
        return seconds

    def fill(self, *, check: bool) -> None:
        """Put this rank's contribution in its place, if the last run took it or results are looked at."""
        if check or self._given is None:
            self._fill()

    def carry_out(self) -> None:
        """Run it, and wait for its end."""
        self._start()
        self._settle()

    def check(self) -> None:
        """Count the wrong elements of the result."""
        program = self._program
        if self._memory is not None:
            self._memory.download(self._buffers[1], self._output)
        found = self._output[program.result_offset :][: program.result_elements]
        self.wrong += wrong_elements(found, self._wanted, self._dtype)

    def _start(self) -> None:
        program = self._program
        given, output = self._buffers
        if self._direct is not None:
            self._direct.run_direct(
                program.collective,
                given,
                output,
                count=program.count,
                dtype=self._dtype,
                op=self._op,
                root=program.root,
                in_place=given is None,
                timeout_s=self._timeout_s,
            )
            return
        if self._native is None:
            self._group.carry_out(program, given, output, dtype=self._dtype, op=self._op)
            return
        self._native.native(
            program.collective, given, output, dtype=self._dtype, op=self._op, root=program.root
        )

    def _settle(self) -> None:
        if self._memory is not None:
            self._memory.settle()

    def _fill(self) -> None:
        """Put this rank's contribution where the program reads it, and something else where the result goes."""
        self._fill_arrays()
        if self._memory is not None:
            for array, buffer in zip((self._given, self._output), self._buffers, strict=True):
                if array is not None:
                    self._memory.upload(array, buffer)

    def _fill_arrays(self) -> None:
        program = self._program
        if self._given is not None:
            self._given[:] = self._contribution[: len(self._given)]  # nothing, where only the root gives
            self._output.view(np.uint8)[:] = 0xA5
            return
        first = 0
        if (
            program.collective in (Collective.ALL_GATHER, Collective.GATHER)
            and program.output_elements == program.count
        ):
            first = program.count * program.rank // program.ranks
        if program.collective in (Collective.BROADCAST, Collective.SCATTER) and program.rank != program.root:
            self._output.view(np.uint8)[:] = 0xA5
            return
        self._output[first : first + len(self._contribution)] = self._contribution


CoreTimes = tuple[float, float]
"""Time that all cores were idle, and all their time, since the host started; in ticks of the system's clock."""


def core_times() -> CoreTimes | None:
    """Idle and total time of all cores so far, None where the system does not report it.

    Time that waits for a disk counts as idle; time of guests is part of the time of programs, and counts once.
    """
    try:
        fields = [float(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)
    except (OSError, ValueError, IndexError):
        return None


def busy_share(before: CoreTimes | None, after: CoreTimes | None) -> float:
    """Share of the cores that was busy between two calls of :func:`core_times`; -1 where unknown.

    Examples:
        >>> busy_share((700.0, 1000.0), (750.0, 1200.0))
        0.75
        >>> busy_share(None, None)
        -1.0
    """
    if before is None or after is None or after[1] <= before[1]:
        return -1.0
    return 1 - (after[0] - before[0]) / (after[1] - before[1])
