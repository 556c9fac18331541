"""Verification of the programs of all ranks; it shares nothing with the lowering that made them.

Both ends of every message must agree and be in one step, so that no order of ranks can deadlock; conflicting accesses
to one memory must be ordered by ``predecessors``, so that any engine that keeps to them computes the same; and the
programs, executed on symbols instead of numbers (:mod:`coppice.run.programs.symbolic_execution`), must give what the
collective says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coppice.errors import CheckError
from coppice.run.programs.rank_program import RankBuffer, RankProgram, RowKind
from coppice.run.programs.symbolic_execution import all_predecessors, execute, fail


def check_programs(programs: Sequence[RankProgram], *, blocks: Sequence[int] | None = None) -> None:
    """Check the programs of one collective; every element is followed, so take a count that is not too large.

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
                program,
                row,
                f"may start before row {earlier} is done with element {offset} of {buffer.name}",
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
