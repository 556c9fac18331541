"""Verify per-rank programs, independently of the lowering.

Both ends of every message must agree and be in one step, so that no order of ranks can deadlock; conflicting accesses
to one memory must be ordered by ``predecessors``, so that any engine that keeps to them computes the same; and the
programs, executed on symbols instead of numbers, must give what the collective says.

A row that sends what nothing was written to, adds what was added already, or joins two different data is found where
it happens; at the end every result must hold the right data with the right contributors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind, block_bounds
from coppice.program.dialects.rank.unroll import RankRuns
from coppice.program.judge import Judgement

MOST_WORDS = 2**27
"""Words of 64 bits that all memories may take."""


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


def _steps(programs: Sequence[RankProgram]) -> list[list[tuple[int, int]]]:
    """(rank, row) of every step, rows of a rank in order."""
    steps: dict[int, list[tuple[int, int]]] = {}
    for program in programs:
        for row, step in enumerate(program.step.tolist()):
            steps.setdefault(step, []).append((program.rank, row))
    return [steps[step] for step in sorted(steps)]


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
                if not set(earlier) <= set(_all_predecessors(program, row)):
                    fail(program, row, "may be sent before all that arrives in earlier steps")
            else:
                arrived.append(row)
        missing = (1 << len(programs)) - 1 & ~news[program.rank]
        if missing:
            absent = (missing & -missing).bit_length() - 1
            raise CheckError(
                f"rank {program.rank} leaves the barrier without news of rank {absent}: lower the schedule again."
            )


def _all_predecessors(program: RankProgram, row: int) -> Iterator[int]:
    """Transitive predecessors of ``row``, down to row ``since``."""
    found: set[int] = set()
    open_rows = [row]
    while open_rows:
        begin, end = program.predecessors_start[(current := open_rows.pop()) : current + 2].tolist()
        for earlier in program.predecessors[begin:end].tolist():
            if earlier not in found:
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
        >>> from coppice.program.dialects.rank.lower import lower_for_run
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
    elements = sum(
        program.input_elements + program.output_elements + program.scratch_elements for program in programs
    )
    if elements * (-(-len(programs) // 64) + 1) > MOST_WORDS:
        raise InputError(
            f"expected programs of fewer elements, found {elements} in all memories: check them at a smaller count."
        )
    runs = RankRuns(programs, _block_starts(programs, blocks))
    judgement = Judgement(runs.execution, runs.memory)
    _check_order(runs, judgement)
    if programs[0].collective is Collective.BARRIER:
        _barrier(programs)
        return
    _check_values(runs, judgement)
    _check_results(runs, judgement)


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


def _check_order(runs: RankRuns, judgement: Judgement) -> None:
    """Rows that touch the same memory, one of them writing, are ordered by their predecessors."""
    accesses, conflicts, races = judgement.execution.accesses, judgement.conflicts, judgement.races
    if not len(races):
        return
    first, second = accesses.actor[conflicts.first[races]], accesses.actor[conflicts.second[races]]
    address, reads = conflicts.address[races], ~accesses.write[conflicts.first[races]]
    places = [
        runs.memory.element(int(runs.rank[row]), int(place))
        for row, place in zip(second.tolist(), address.tolist(), strict=True)
    ]
    buffers = np.array([buffer for buffer, _ in places])
    race = int(np.lexsort((first, reads, address, second, buffers, runs.rank[second]))[0])
    buffer, element = places[race]
    program, row = runs.row(int(second[race]))
    _, earlier = runs.row(int(first[race]))
    fail(program, row, f"may start before row {earlier} is done with element {element} of {buffer.name}")


def _check_values(runs: RankRuns, judgement: Judgement) -> None:
    """What is sent and added is there, and can be added; the first row that goes wrong, step by step, is told."""
    values, execution = judgement.values, judgement.execution
    access = np.repeat(np.arange(len(execution.accesses.count)), execution.accesses.count)[values.missing]
    empty = execution.accesses.actor[access]
    sums = values.wrong_sums
    wrong = {
        int(row): "sends memory that holds nothing yet" for row in empty[runs.kind[empty] == RowKind.SEND]
    }
    wrong |= {int(row): "adds two different data" for row in empty[runs.kind[empty] == RowKind.RECV_REDUCE]}
    again = "adds a contribution a second time"
    for value, same in zip(sums.value.tolist(), (sums.one == sums.other).tolist(), strict=True):
        row = int(execution.values.actor[value])
        wrong[row] = again if same and wrong.get(row, again) == again else "adds two different data"
    collective = runs.programs[0].collective
    if not collective.reduces:
        adds = np.flatnonzero(runs.kind == RowKind.RECV_REDUCE)
        wrong |= {int(row): f"adds, which {collective} does not" for row in adds}
    if wrong:
        row = min(wrong, key=lambda each: (runs.step[each], runs.kind[each] != RowKind.SEND, each))
        fail(*runs.row(row), wrong[row])


def _check_results(runs: RankRuns, judgement: Judgement) -> None:
    """Every result holds the right data with the right contributors."""
    wrong = judgement.values.wrong_slots
    if len(wrong.slot):
        rank, element, have, want = (
            int(column[0]) for column in (wrong.rank, wrong.slot, wrong.have, wrong.want)
        )
        raise CheckError(
            f"element {element} of the result of {runs.programs[0].collective} at rank {rank} is not what it should be "
            f"(datum {have}, expected {want} with all its contributions): lower the schedule again."
        )
