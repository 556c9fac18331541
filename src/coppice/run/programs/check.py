"""Verify per-rank programs, independently of the lowering.

Both ends of every message must agree and be in one step, so that no order of ranks can deadlock; conflicting accesses
to one memory must be ordered by ``predecessors``, so that any engine that keeps to them computes the same; and the
programs, executed on symbols instead of numbers, must give what the collective says.

The symbol of element i of a buffer of M elements is i; in an all-to-all it is s M + i for what rank s sends. Sets of
ranks are rows of 64-bit words. A row that reads nothing but what was there when its step began, adds what was added
already, or joins two different data is found where it happens; at the end every result must hold the right data with
the right contributors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.run.programs.rank_program import RankBuffer, RankProgram, RowKind, block_bounds

MOST_WORDS = 2**27
"""Words of 64 bits that all memories may take."""


@dataclass(frozen=True, eq=False)
class _Values:
    """Elements: datum (-1 is nothing) and contributors, one row of words each."""

    datum: NDArray[np.int64]
    members: NDArray[np.uint64]

    @classmethod
    def nothing(cls, elements: int, words: int) -> _Values:
        return cls(np.full(elements, -1, dtype=np.int64), np.zeros((elements, words), dtype=np.uint64))

    def part(self, offset: int, length: int) -> _Values:
        """A view of some elements."""
        return _Values(self.datum[offset : offset + length], self.members[offset : offset + length])

    def kept(self) -> _Values:
        """A copy."""
        return _Values(self.datum.copy(), self.members.copy())

    def put(self, other: _Values) -> None:
        """Overwrite."""
        self.datum[:], self.members[:] = other.datum, other.members


def execute(programs: Sequence[RankProgram], blocks: Sequence[int] | None) -> None:
    """Execute programs with matched messages step by step, and check every result.

    Args:
        blocks: As for :func:`coppice.run.programs.check.check_programs`.
    """
    if programs[0].collective is Collective.BARRIER:
        _barrier(programs)
        return
    words = -(-len(programs) // 64)
    total = sum(
        program.input_elements + program.output_elements + program.scratch_elements for program in programs
    )
    if total * (words + 1) > MOST_WORDS:
        raise InputError(
            f"expected programs of fewer elements, found {total} in all memories: check them at a smaller count."
        )
    starts = _block_starts(programs, blocks)
    memory = [
        tuple(
            _Values.nothing(elements, words)
            for elements in (program.input_elements, program.output_elements, program.scratch_elements)
        )
        for program in programs
    ]
    for program, buffers in zip(programs, memory, strict=True):
        _begin(program, buffers, starts)
    for rows in _steps(programs):
        _step(programs, memory, rows)
    for program, buffers in zip(programs, memory, strict=True):
        _finish(program, buffers, starts)


def _steps(programs: Sequence[RankProgram]) -> list[list[tuple[int, int]]]:
    """(rank, row) of every step, rows of a rank in order."""
    steps: dict[int, list[tuple[int, int]]] = {}
    for program in programs:
        for row, step in enumerate(program.step.tolist()):
            steps.setdefault(step, []).append((program.rank, row))
    return [steps[step] for step in sorted(steps)]


def _step(
    programs: Sequence[RankProgram], memory: list[tuple[_Values, ...]], rows: list[tuple[int, int]]
) -> None:
    """One step of all ranks: what is sent is what was there before."""
    sent: dict[tuple[int, int, int], _Values] = {}
    for rank, row in rows:
        program = programs[rank]
        if program.kind[row] == RowKind.SEND:
            value = _target(program, memory, row).kept()
            if (value.datum < 0).any():
                fail(program, row, "sends memory that holds nothing yet")
            sent[rank, int(program.peer[row]), int(program.tag[row])] = value
    for rank, row in rows:
        program = programs[rank]
        kind = program.kind[row]
        if kind == RowKind.SEND:
            continue
        target = _target(program, memory, row)
        if kind == RowKind.COPY:
            target.put(_source(program, memory, row).kept())
            continue
        value = sent[int(program.peer[row]), rank, int(program.tag[row])]
        if kind == RowKind.RECV_REDUCE:
            value = _sum(program, row, _source(program, memory, row), value)
        target.put(value)


def _sum(program: RankProgram, row: int, own: _Values, received: _Values) -> _Values:
    """Both contributions together."""
    if not program.collective.reduces:
        fail(program, row, f"adds, which {program.collective} does not")
    if (own.datum != received.datum).any():
        fail(program, row, "adds two different data")
    if (own.members & received.members).any():
        fail(program, row, "adds a contribution a second time")
    return _Values(own.datum, own.members | received.members)


def _target(program: RankProgram, memory: list[tuple[_Values, ...]], row: int) -> _Values:
    buffer = memory[program.rank][int(program.buffer[row])]
    return buffer.part(int(program.offset[row]), int(program.length[row]))


def _source(program: RankProgram, memory: list[tuple[_Values, ...]], row: int) -> _Values:
    buffer = memory[program.rank][int(program.source[row])]
    return buffer.part(int(program.source_offset[row]), int(program.length[row]))


def fail(program: RankProgram, row: int, sentence: str) -> None:
    """Raise an error about a row."""
    raise CheckError(f"row {row} of rank {program.rank} {sentence}: lower the schedule again.")


def _block_starts(programs: Sequence[RankProgram], blocks: Sequence[int] | None) -> list[int]:
    """First element of every rank's block, and M."""
    ranks, count = len(programs), programs[0].count
    if blocks is None:
        return block_bounds(count, ranks)
    starts = [0, *np.cumsum(np.array(blocks, dtype=np.int64)).tolist()]
    if len(starts) != ranks + 1 or starts[-1] != count or min(blocks) < 0:
        raise InputError(f"expected {ranks} blocks of {count} elements together, found {list(blocks)[:8]}.")
    return starts


def _members(ranks: Sequence[int], words: int) -> NDArray[np.uint64]:
    """A set of ranks."""
    row = np.zeros(words, dtype=np.uint64)
    for rank in ranks:
        row[rank // 64] |= np.uint64(1 << rank % 64)
    return row


def _begin(program: RankProgram, buffers: tuple[_Values, ...], starts: list[int]) -> None:
    """What a rank holds at the beginning."""
    rank, root, count = program.rank, program.root, program.count
    first, end = starts[rank], starts[rank + 1]
    at, data = 0, range(count)
    match program.collective:
        case Collective.ALL_GATHER:
            at, data = (first if program.in_place else 0), range(first, end)
        case Collective.GATHER:
            at, data = (first if program.in_place and rank == root else 0), range(first, end)
        case Collective.BROADCAST | Collective.SCATTER:
            data = range(count if rank == root else 0)
        case Collective.ALL_TO_ALL:
            data = range(rank * count, (rank + 1) * count)
    values = buffers[RankBuffer.OUTPUT if program.in_place else RankBuffer.INPUT]
    if len(values.datum) < at + len(data):
        raise CheckError(
            f"expected memory for {len(data)} elements that rank {rank} gives, found {len(values.datum)}."
        )
    values.datum[at : at + len(data)] = np.arange(data.start, data.stop)
    values.members[at : at + len(data)] = _members([rank], values.members.shape[1])


def _finish(program: RankProgram, buffers: tuple[_Values, ...], starts: list[int]) -> None:
    """What a rank must hold at the end."""
    rank, ranks, count = program.rank, program.ranks, program.count
    begins = np.array(starts)
    data = np.arange(count)
    match program.collective:
        case Collective.REDUCE_SCATTER | Collective.SCATTER:
            data = data[starts[rank] : starts[rank + 1]]
        case Collective.REDUCE | Collective.GATHER if rank != program.root:
            data = data[:0]
        case Collective.ALL_TO_ALL:
            own = np.arange(starts[rank], starts[rank + 1])
            data = np.concatenate([source * count + own for source in range(ranks)])
    result = buffers[RankBuffer.OUTPUT].part(program.result_offset, program.result_elements)
    words = result.members.shape[1]
    if program.collective.reduces:
        members = np.broadcast_to(_members(range(ranks), words), (len(data), words))
    else:
        match program.collective:
            case Collective.ALL_TO_ALL:
                owner = data // max(count, 1)
            case Collective.BROADCAST | Collective.SCATTER:
                owner = np.full(len(data), program.root)
            case _:
                owner = np.searchsorted(begins, data, side="right") - 1
        table = np.stack([_members([each], words) for each in range(ranks)])
        members = table[owner]
    if len(result.datum) != len(data):
        raise CheckError(
            f"expected a result of {len(data)} elements at rank {rank}, found {len(result.datum)}: lower again."
        )
    wrong = np.flatnonzero((result.datum != data) | (result.members != members).any(axis=1))
    if len(wrong):
        element = int(wrong[0])
        raise CheckError(
            f"element {element} of the result of {program.collective} at rank {rank} is not what it should be "
            f"(datum {int(result.datum[element])}, expected {int(data[element])} with all its contributions): lower "
            "the schedule again."
        )


def _barrier(programs: Sequence[RankProgram]) -> None:
    """In the end every rank has news of all, by messages that are sent after what they tell has arrived."""
    news = [1 << rank for rank in range(len(programs))]
    for rows in _steps(programs):
        before = list(news)
        for rank, row in rows:
            if programs[rank].kind[row] == RowKind.RECV:
                news[rank] |= before[int(programs[rank].peer[row])]
    for program in programs:
        arrived: list[int] = []
        for row, kind in enumerate(program.kind.tolist()):
            if kind == RowKind.SEND:
                earlier = [each for each in arrived if program.step[each] < program.step[row]]
                if not set(earlier) <= set(all_predecessors(program, row)):
                    fail(program, row, "may be sent before all that arrives in earlier steps")
            else:
                arrived.append(row)
        missing = (1 << len(programs)) - 1 & ~news[program.rank]
        if missing:
            absent = (missing & -missing).bit_length() - 1
            raise CheckError(
                f"rank {program.rank} leaves the barrier without news of rank {absent}: lower the schedule again."
            )


def all_predecessors(program: RankProgram, row: int, *, since: int = 0) -> Iterator[int]:
    """Transitive predecessors of ``row``, down to row ``since``."""
    found: set[int] = set()
    open_rows = [row]
    while open_rows:
        begin, end = program.predecessors_start[(current := open_rows.pop()) : current + 2].tolist()
        for earlier in program.predecessors[begin:end].tolist():
            if earlier >= since and earlier not in found:
                yield earlier
                found.add(earlier)
                open_rows.append(earlier)


def check_programs(programs: Sequence[RankProgram], *, blocks: Sequence[int] | None = None) -> None:
    """Verify the programs of one collective; every element is traced, so use a small count.

    Args:
        programs: Those of ranks 0, 1, 2, ...
        blocks: Elements of each rank's block where blocks have unequal weights; equal ones are cut at
            ``floor(count * rank / ranks)``.

    Raises:
        CheckError: If they are wrong: the first defect that was found, with rank and row.
        InputError: If there are too many elements to follow.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.run.programs.lower import lower_for_run
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.REDUCE_SCATTER)).plan
        >>> programs = lower_for_run(made.body, 10, in_place=False)
        >>> check_programs(programs)
        >>> programs[2].offset[0] += 1
        >>> check_programs(programs)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coppice.errors.CheckError: ...
    """
    for rank, program in enumerate(programs):
        if (program.rank, program.ranks) != (rank, len(programs)):
            raise CheckError(
                f"expected the program of rank {rank} of {len(programs)}, found that of rank {program.rank} of "
                f"{program.ranks}: give the programs of all ranks in order."
            )
        common = (program.collective, program.root, program.count, program.in_place)
        first = programs[0]
        if common != (first.collective, first.root, first.count, first.in_place):
            raise CheckError(
                f"expected one collective, but the program of rank {rank} differs from that of rank 0."
            )
        _check_columns(program)
    _check_messages(programs)
    for program in programs:
        _check_order(program)
    execute(programs, blocks)


def _check_columns(program: RankProgram) -> None:
    """Rows are in order and keep to their memory."""
    rows = program.num_rows
    columns = (
        *(program.kind, program.peer, program.tag, program.buffer, program.offset, program.length),
        *(program.source, program.source_offset),
    )
    starts = program.predecessors_start
    if (
        any(len(column) != rows for column in columns)
        or len(starts) != rows + 1
        or (np.diff(starts) < 0).any()
        or (int(starts[0]), int(starts[-1])) != (0, len(program.predecessors))
    ):
        raise CheckError(
            f"expected columns of {rows} rows in the program of rank {program.rank}: lower the schedule again."
        )
    size = (program.input_elements, program.output_elements, program.scratch_elements)
    ends = program.result_offset + program.result_elements
    if min(program.result_offset, program.result_elements) < 0 or ends > program.output_elements:
        raise CheckError(
            f"expected the result of rank {program.rank} inside its output of {program.output_elements} elements."
        )
    step, kind = program.step.tolist(), program.kind.tolist()
    peer, predecessors, begin = program.peer.tolist(), program.predecessors.tolist(), starts.tolist()
    for row in range(rows):
        if row and (step[row], kind[row]) < (step[row - 1], kind[row - 1]):
            fail(program, row, "comes after a later step or kind")
        if kind[row] not in tuple(RowKind):
            fail(program, row, f"is of kind {kind[row]}, which does not exist")
        if kind[row] != RowKind.COPY and (not 0 <= peer[row] < program.ranks or peer[row] == program.rank):
            fail(program, row, f"has rank {peer[row]} at its other end")
        spans = [(int(program.buffer[row]), int(program.offset[row]))]
        if kind[row] in (RowKind.RECV_REDUCE, RowKind.COPY):
            spans.append((int(program.source[row]), int(program.source_offset[row])))
        length = int(program.length[row])
        for buffer, offset in spans:
            if not (length >= 1 and buffer in tuple(RankBuffer) and 0 <= offset <= size[buffer] - length):
                fail(
                    program,
                    row,
                    f"touches {length} elements at {offset} of buffer {buffer}, which are not there",
                )
        if kind[row] != RowKind.SEND and spans[0][0] == RankBuffer.INPUT:
            fail(program, row, "writes the input")
        early = kind[row] in (RowKind.SEND, RowKind.RECV)
        for earlier in predecessors[begin[row] : begin[row + 1]]:
            if not 0 <= earlier < row or (early and step[earlier] >= step[row]):
                fail(program, row, f"waits for row {earlier}, which is not early enough")


def _check_messages(programs: Sequence[RankProgram]) -> None:
    """Messages have two ends of one length, in one step, numbered alike."""
    ends: dict[tuple[int, int], tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = {}
    for program in programs:
        for row, kind in enumerate(program.kind.tolist()):
            if kind == RowKind.COPY:
                continue
            sends = kind == RowKind.SEND
            peer = int(program.peer[row])
            pair = (program.rank, peer) if sends else (peer, program.rank)
            end = ends.setdefault(pair, ([], []))[0 if sends else 1]
            end.append((int(program.tag[row]), int(program.step[row]), int(program.length[row])))
    for (source, target), (sent, received) in ends.items():
        if [tag for tag, _, _ in sent] != list(range(len(sent))):
            raise CheckError(
                f"expected tags 0, 1, 2, .. of messages from rank {source} to rank {target}: lower again."
            )
        for number, (there, here) in enumerate(zip(sent, received, strict=False)):
            if there != here:
                raise CheckError(
                    f"expected message {number} from rank {source} to rank {target} to be the same at both ends, found "
                    f"(tag, step, elements) {there} where it is sent and {here} where it is received: lower again."
                )
        if len(sent) != len(received):
            raise CheckError(
                f"expected as many messages from rank {source} to rank {target} as are received, found {len(sent)} "
                f"sent and {len(received)} received: lower the schedule again."
            )


def _check_order(program: RankProgram) -> None:
    """Rows that touch the same memory, one of them writing, are ordered by their predecessors."""

    def require(row: int, earlier: int, buffer: RankBuffer, offset: int) -> None:
        """Fail unless ``row`` waits for ``earlier``, where it is another row."""
        if earlier >= 0 and row != earlier and earlier not in all_predecessors(program, row, since=earlier):
            fail(
                program, row, f"may start before row {earlier} is done with element {offset} of {buffer.name}"
            )

    touched: dict[RankBuffer, list[tuple[int, int, int, bool]]] = {buffer: [] for buffer in RankBuffer}
    for row, kind in enumerate(program.kind.tolist()):
        length = int(program.length[row])
        if kind in (RowKind.RECV_REDUCE, RowKind.COPY):
            offset = int(program.source_offset[row])
            touched[RankBuffer(int(program.source[row]))].append((row, offset, offset + length, False))
        offset = int(program.offset[row])
        touched[RankBuffer(int(program.buffer[row]))].append(
            (row, offset, offset + length, kind != RowKind.SEND)
        )
    for buffer, accesses in touched.items():
        bounds = sorted({bound for _, low, high, _ in accesses for bound in (low, high)})
        number = {bound: index for index, bound in enumerate(bounds)}
        writer = [-1] * len(bounds)
        readers: list[list[int]] = [[] for _ in bounds]
        for row, low, high, writes in accesses:
            for part in range(number[low], number[high]):
                require(row, writer[part], buffer, bounds[part])
                if writes:
                    for reader in readers[part]:
                        require(row, reader, buffer, bounds[part])
                    writer[part], readers[part] = row, []
                else:
                    readers[part].append(row)
