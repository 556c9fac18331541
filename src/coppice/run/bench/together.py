"""Run the plans of several groups at once, as a jobs file lists them, and measure each.

A rank takes part in the groups that it is a member of, each with an engine and a thread of its own. All start together,
after an exchange of all ranks, or so much later as the file says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import CoppiceError, InputError
from coppice.run.bench.measuring import (
    ALWAYS_IN_PLACE,
    BenchRow,
    Contender,
    busy_share,
    core_times,
    result_of,
)
from coppice.run.communicator.communicator import Communicator
from coppice.run.communicator.groups import AUTO
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction
from coppice.run.engines.engine import Engine, GroupingEngine
from coppice.run.planned import topology_in_file
from coppice.schedule.files.jobs_file import decode_jobs
from coppice.schedule.files.plan_file import read_plan
from coppice.text import parse_size
from coppice.topology.model import Topology


class GroupJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a group does."""

    name: str  # What it is called in reports
    file: str  # Plan file, which every member reads
    ranks: tuple[int, ...]  # Of the whole group of processes; position i is rank i of the plan
    collective: Collective  # What the plan performs
    root: int | None = None  # Its root
    size_bytes: int = 0  # M
    start_s: float = 0.0  # Seconds after all have met
    pieces: int | None = None  # Pieces of every chunk; None: what the simulator finds best


class _Listed(msgspec.Struct):
    """What rank 0 tells the others."""

    jobs: tuple[GroupJob, ...] = ()
    error: str = ""


def read_group_jobs(path: Path, topology: Topology) -> tuple[GroupJob, ...]:
    """Read a jobs file: its groups, as ranks of a topology whose nodes have the names of the plans' nodes.

    Raises:
        InputError: If a file cannot be read, or a plan has GPUs that the topology lacks.
    """
    found = []
    for place, row in enumerate(decode_jobs(path).jobs):
        file = path.parent / row.plan
        made = read_plan(file)
        names = [made.topology.node_ids[node] for node in made.topology.rank_nodes.tolist()]
        nodes = [topology.node_index.get(name, -1) for name in names]
        for name, node in zip(names, nodes, strict=True):
            if node < 0 or topology.rank[node] < 0:
                raise InputError(
                    f"expected GPUs of {topology.name} in the plan of {row.name}, found {name} in {row.plan}: "
                    "give the topology that the groups were planned on."
                )
        size = row.size if isinstance(row.size, int) else parse_size(row.size, option=f"$.jobs[{place}].size")
        found.append(
            GroupJob(
                name=row.name,
                file=str(file.absolute()),
                ranks=tuple(topology.rank[nodes].tolist()),
                collective=made.problem.collective,
                root=made.problem.root,
                size_bytes=size,
                start_s=row.start_us * 1e-6,
                pieces=row.pieces,
            )
        )
    return tuple(found)


def waves(jobs: Sequence[GroupJob]) -> list[list[int]]:
    """Numbers of jobs, in rounds in which no rank occurs twice.

    Examples:
        >>> def group(*ranks):
        ...     return GroupJob(name="", file="", ranks=ranks, collective=Collective.ALL_REDUCE)
        >>> waves([group(0, 1), group(1, 2), group(2, 3)])
        [[0, 2], [1]]
    """
    found: list[list[int]] = []
    taken: list[set[int]] = []
    for number, job in enumerate(jobs):
        place = next((k for k, ranks in enumerate(taken) if ranks.isdisjoint(job.ranks)), len(taken))
        if place == len(taken):
            found.append([])
            taken.append(set())
        found[place].append(number)
        taken[place].update(job.ranks)
    return found


def bench_together(
    engine: Engine,
    topology: Topology,
    path: Path,
    *,
    dtype: DataType = DataType.FLOAT32,
    op: ReduceOp = ReduceOp.SUM,
    rounds: int = 20,
    warmup: int = 5,
    timeout_s: float = 300.0,
) -> list[BenchRow]:
    """Run the jobs of a file at once, round after round; collective over the ranks.

    Args:
        engine: This rank's end of the group of all processes.
        topology: The network, whose rank r is rank r of the engine.
        path: The jobs file; rank 0 reads it, and the members of a group their plan.
        dtype: Type of the elements.
        op: The reduction.
        rounds: Measured rounds, 1 or more.
        warmup: Rounds before.
        timeout_s: Longest wait for another rank.

    Returns:
        A row for each job, with its name as the algorithm: the time from its start until its slowest rank was done.

    Raises:
        InputError: On every rank, if the jobs cannot be read or do not fit.
        RunError: If a rank is lost.
    """
    if not isinstance(engine, GroupingEngine):
        raise InputError(f"expected an engine that makes groups, found {engine.name}: choose torch or mpi.")
    if topology.num_ranks != engine.ranks:
        raise InputError(
            f"expected a process for each of the {topology.num_ranks} GPUs of {topology.name}, found {engine.ranks}: "
            "start as many."
        )
    jobs = _told(engine, path, topology)
    own: dict[int, tuple[GroupJob, Contender]] = {}
    groups: list[Communicator | Engine] = []
    rows = [_row(job, dtype, op) for job in jobs]
    try:
        for wave in waves(jobs):
            mine = next((number for number in wave if engine.rank in jobs[number].ranks), None)
            members = (engine.rank,) if mine is None else jobs[mine].ranks
            part = engine.subset(members)
            if mine is None:
                groups.append(part)
                continue
            group = Communicator(
                part,
                topology_in_file(jobs[mine].file),
                algorithm=jobs[mine].file,
                pieces=jobs[mine].pieces or AUTO,
                timeout_s=timeout_s,
            )
            groups.append(group)
            own[mine] = jobs[mine], Contender(part, group, rows[mine], timeout_s=timeout_s)
        return _measured(engine, rows, own, rounds=rounds, warmup=warmup)
    finally:
        for each in groups:
            each.close()


def _told(engine: Engine, path: Path, topology: Topology) -> tuple[GroupJob, ...]:
    """The jobs, as rank 0 reads them."""
    mine = b""
    if engine.rank == 0:
        try:
            mine = msgspec.msgpack.encode(_Listed(jobs=read_group_jobs(path, topology)))
        except CoppiceError as error:
            mine = msgspec.msgpack.encode(_Listed(error=str(error)))
    found = msgspec.msgpack.decode(engine.exchange(mine)[0], type=decodable(_Listed))
    if found.error:
        raise InputError(found.error)
    return found.jobs


def _row(job: GroupJob, dtype: DataType, op: ReduceOp) -> BenchRow:
    if job.collective.reduces:
        check_reduction(op, dtype)
    whole = len(job.ranks) if job.collective.sharded else 1
    count = job.size_bytes // dtype.itemsize // whole * whole
    return BenchRow(
        collective=job.collective.value,
        algorithm=job.name,
        ranks=len(job.ranks),
        size_bytes=count * dtype.itemsize,
        count=count,
        dtype=dtype.value,
        op=op.value if job.collective.reduces else "none",
        root=-1 if job.root is None else job.root,
        in_place=job.collective in ALWAYS_IN_PLACE,
    )


def _measured(
    engine: Engine,
    rows: Sequence[BenchRow],
    own: dict[int, tuple[GroupJob, Contender]],
    *,
    rounds: int,
    warmup: int,
) -> list[BenchRow]:
    """All jobs at once, round by round; the rows with their results."""
    times: dict[int, list[float]] = {number: [] for number in own}
    before = None
    for turn in range(warmup + rounds):
        if turn == warmup:
            before = core_times()
        check = turn in (0, warmup + rounds - 1)
        for _, contender in own.values():
            contender.fill(check=check)
        engine.exchange(b"")
        begin = time.perf_counter()
        ends = _at_once([_work(begin, *own[number]) for number in own])
        for number, end in zip(own, ends, strict=True):
            if turn >= warmup:
                times[number].append(end - begin - own[number][0].start_s)
            if check:
                own[number][1].check()
    busy = busy_share(before, core_times())
    told = {
        number: (times[number], contender.wrong, contender.pieces) for number, (_, contender) in own.items()
    }
    answers = [
        msgspec.msgpack.decode(each, type=decodable(dict[int, tuple[list[float], int, int]]))
        for each in engine.exchange(msgspec.msgpack.encode(told))
    ]
    found = []
    for number, row in enumerate(rows):
        members = [answer[number] for answer in answers if number in answer]
        done = result_of(row, [(seconds, wrong) for seconds, wrong, _ in members])
        found.append(replace(done, pieces=members[0][2], cores_busy=busy))
    return found


def _work(begin: float, job: GroupJob, contender: Contender) -> Callable[[], None]:
    def carry_out() -> None:
        wait_s = begin + job.start_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        contender.carry_out()

    return carry_out


def _at_once(works: Sequence[Callable[[], None]]) -> list[float]:
    """Do all works at the same time; when each was done."""
    ends = [0.0] * len(works)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            works[place]()
        except BaseException as error:  # noqa: BLE001  (raised again below, by the thread that waits)
            errors.append(error)
        ends[place] = time.perf_counter()

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(1, len(works))]
    for each in threads:
        each.start()
    if works:
        run(0)
    for each in threads:
        each.join()
    if errors:
        raise errors[0]
    return ends
