"""Reference interpreter of all ranks of a collective in one process.

Step by step, or in a random order that keeps to nothing but ``predecessors`` and the pairing of messages: a message
moves between the two memories at a random time after both ends have started. A program whose order holds by chance
only gives wrong results for some seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.errors import CheckError, InputError
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind
from coppice.rows import offsets
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction, combine, divide, elements_of

Array = NDArray[Any]


class RankMemory:
    """Input, output and scratch memory of one rank, and the operations of rows on them."""

    def __init__(
        self, program: RankProgram, given: Any, wanted: Any, *, dtype: DataType, op: ReduceOp
    ) -> None:
        """Look at the buffers of a rank."""
        if program.collective.reduces:
            check_reduction(op, dtype)
        self.program, self.dtype, self.op = program, dtype, op
        who = f"of rank {program.rank} for {program.collective}"
        scratch = np.zeros(program.scratch_elements, dtype=dtype.numpy_name)
        self._arrays: tuple[Array, Array, Array] = (
            elements_of(given, dtype, program.input_elements, name=f"the input {who}"),
            elements_of(wanted, dtype, program.output_elements, name=f"the output {who}", writable=True),
            scratch,
        )
        self._buffer: list[int] = program.buffer.tolist()
        self._offset: list[int] = program.offset.tolist()
        self._length: list[int] = program.length.tolist()
        self._source: list[int] = program.source.tolist()
        self._source_offset: list[int] = program.source_offset.tolist()

    @property
    def scratch(self) -> Array:
        """Scratch memory."""
        return self._arrays[RankBuffer.SCRATCH]

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of input and output."""
        given, wanted, _ = self._arrays
        return given.ctypes.data, wanted.ctypes.data

    def use_scratch(self, scratch: Array) -> None:
        """Replace the scratch memory by ``scratch`` of the same length."""
        self._arrays = (*self._arrays[:2], scratch)

    def at(self, row: int) -> Array:
        """Memory named by ``buffer`` and ``offset`` of a row."""
        begin = self._offset[row]
        return self._arrays[self._buffer[row]][begin : begin + self._length[row]]

    def own(self, row: int) -> Array:
        """Memory named by ``source`` and ``source_offset`` of a row."""
        begin = self._source_offset[row]
        return self._arrays[self._source[row]][begin : begin + self._length[row]]

    def copy(self, row: int) -> None:
        """Execute a COPY row."""
        self.at(row)[:] = self.own(row)

    def add(self, row: int, received: Array) -> None:
        """Execute a RECV_REDUCE row whose message has arrived."""
        combine(self.op, self.dtype, self.own(row), received, self.at(row))

    def take(self, row: int, received: Array) -> None:
        """Execute a RECV or RECV_REDUCE row whose message has arrived elsewhere."""
        if self.program.kind[row] == RowKind.RECV_REDUCE:
            self.add(row, received)
        else:
            self.at(row)[:] = received

    def finish(self) -> None:
        """Divide the result of an average."""
        program = self.program
        if self.op is ReduceOp.AVG and program.collective.reduces:
            first = program.result_offset
            result = self._arrays[RankBuffer.OUTPUT][first : first + program.result_elements]
            divide(self.dtype, result, program.ranks)

    def spoil(self, value: int) -> None:
        """Fill the scratch memory with garbage."""
        self._arrays[RankBuffer.SCRATCH].view(np.uint8)[:] = value


def interpret(
    programs: Sequence[RankProgram],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    dtype: DataType = DataType.FLOAT32,
    op: ReduceOp = ReduceOp.SUM,
    seed: int | None = None,
) -> None:
    """Execute the programs of all ranks.

    Args:
        programs: Those of ranks 0, 1, 2, ...
        inputs: Input of each rank; None where the programs are in place.
        outputs: Output of each rank.
        dtype: Type of the elements.
        op: The reduction.
        seed: None goes step by step; a number takes a random order.

    Raises:
        InputError: If buffers do not fit, or there is not one of each for every rank.
        CheckError: If the programs deadlock, or two ends of a message differ.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.rank.lower import lower_for_run
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=3), collective=Collective.ALL_REDUCE)).plan
        >>> data = [np.arange(5) * (rank + 1) for rank in range(3)]
        >>> interpret(lower_for_run(made.body, 5, in_place=True), [None] * 3, data, dtype=DataType.INT64)
        >>> [row.tolist() for row in data]
        [[0, 6, 12, 18, 24], [0, 6, 12, 18, 24], [0, 6, 12, 18, 24]]
    """
    if not len(programs) == len(inputs) == len(outputs):
        raise InputError(
            f"expected a program, an input and an output for every rank, found {len(programs)}, {len(inputs)} and "
            f"{len(outputs)}."
        )
    memories = [
        RankMemory(program, given, wanted, dtype=dtype, op=op)
        for program, given, wanted in zip(programs, inputs, outputs, strict=True)
    ]
    _Interpreter(programs, memories, seed).carry_out()
    for memory in memories:
        memory.finish()


class _Interpreter:
    """One execution; rows are numbered through all ranks.

    A row is *posted* once its end of the message may move, and *due* once its predecessors are complete but
    what it is to add up has not arrived.
    """

    def __init__(self, programs: Sequence[RankProgram], memories: list[RankMemory], seed: int | None) -> None:
        self._memories = memories
        self._random = None if seed is None else random.Random(seed)
        self._first: list[int] = offsets(
            np.array([program.num_rows for program in programs], dtype=np.int64)
        ).tolist()
        self._rank = [rank for rank, program in enumerate(programs) for _ in range(program.num_rows)]
        self._kind: list[int] = [kind for program in programs for kind in program.kind.tolist()]
        self._other = _partners(programs, self._first)
        self._waits, self._waiting = self._dependencies(programs)
        self._arrived: dict[int, Array] = {}
        self._posted: set[int] = set()
        self._due: set[int] = set()
        if self._random is not None:
            for memory in memories:
                memory.spoil(self._random.randrange(256))

    def _dependencies(self, programs: Sequence[RankProgram]) -> tuple[list[int], list[list[int]]]:
        """How many rows each row waits for, and which rows wait for it."""
        waits: list[int] = []
        waiting: list[list[int]] = [[] for _ in self._rank]
        for program, first in zip(programs, self._first, strict=False):
            start, predecessors = program.predecessors_start.tolist(), program.predecessors.tolist()
            for row in range(program.num_rows):
                waits.append(start[row + 1] - start[row])
                for earlier in predecessors[start[row] : start[row + 1]]:
                    waiting[first + earlier].append(first + row)
        return waits, waiting

    def carry_out(self) -> None:
        """All rows."""
        if self._random is None:
            self._by_steps()
        else:
            self._by_dependencies(self._random)

    def _by_steps(self) -> None:
        """All ranks finish a step before any begins the next: sends read what is there when the step begins."""
        programs = [memory.program for memory in self._memories]
        for step in sorted({int(step) for program in programs for step in np.unique(program.step)}):
            rows = [
                first + row
                for program, first in zip(programs, self._first, strict=False)
                for row in range(
                    int(np.searchsorted(program.step, step)), int(np.searchsorted(program.step, step + 1))
                )
            ]
            sent = {row: self._at(row).copy() for row in rows if self._kind[row] == RowKind.SEND}
            for row in rows:
                match self._kind[row]:
                    case RowKind.COPY:
                        self._memories[self._rank[row]].copy(row - self._first[self._rank[row]])
                    case RowKind.RECV:
                        self._at(row)[:] = sent[self._sender(row, sent)]
                    case RowKind.RECV_REDUCE:
                        self._add(row, sent[self._sender(row, sent)])

    def _sender(self, row: int, sent: dict[int, Array]) -> int:
        """The other end of a message."""
        if self._other[row] not in sent:
            raise CheckError(
                f"expected both ends of a message in one step, found row {row} without the other: lower again."
            )
        return self._other[row]

    def _by_dependencies(self, pick: random.Random) -> None:
        """Any row whose predecessors are complete, in any order."""
        ready = [row for row, waits in enumerate(self._waits) if not waits]
        left = len(self._rank)
        # The arrival of what will be added up waits for nothing.
        self._posted |= {row for row, kind in enumerate(self._kind) if kind == RowKind.RECV_REDUCE}
        while ready:
            place = pick.randrange(len(ready))
            ready[place], ready[-1] = ready[-1], ready[place]
            for done in self._start(ready.pop(), ready):
                left -= 1
                for later in self._waiting[done]:
                    self._waits[later] -= 1
                    if not self._waits[later]:
                        ready.append(later)
        if left:
            raise CheckError(
                f"expected programs that come to an end, found {left} rows that wait for ever: lower them again."
            )

    def _start(self, row: int, ready: list[int]) -> list[int]:
        """Start a row; returns the rows that are complete with it."""
        other = self._other[row]
        match self._kind[row]:
            case RowKind.COPY:
                self._memories[self._rank[row]].copy(row - self._first[self._rank[row]])
                return [row]
            case RowKind.RECV_REDUCE:
                if row not in self._arrived:
                    self._due.add(row)
                    return []
                self._add(row, self._arrived.pop(row))
                return [row]
            case _ if other not in self._posted:
                self._posted.add(row)
                return []
            case RowKind.SEND if self._kind[other] == RowKind.RECV_REDUCE:
                self._arrived[other] = self._at(row).copy()
                if other in self._due:
                    ready.append(other)
                return [row]
            case RowKind.SEND:
                self._at(other)[:] = self._at(row)
                return [row, other]
            case _:
                self._at(row)[:] = self._at(other)
                return [row, other]

    def _at(self, row: int) -> Array:
        rank = self._rank[row]
        return self._memories[rank].at(row - self._first[rank])

    def _add(self, row: int, received: Array) -> None:
        rank = self._rank[row]
        self._memories[rank].add(row - self._first[rank], received)


def _partners(programs: Sequence[RankProgram], first: list[int]) -> list[int]:
    """The other end of every message, -1 for copies."""
    ends: dict[tuple[int, int, int], tuple[int, int]] = {}
    other = [-1] * first[-1]
    for program in programs:
        base = first[program.rank]
        columns = (program.kind, program.peer, program.tag, program.length)
        for row, (kind, peer, tag, length) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            if kind == RowKind.COPY:
                continue
            pair = (program.rank, peer) if kind == RowKind.SEND else (peer, program.rank)
            mate = ends.pop((*pair, tag), None)
            if mate is None:
                ends[*pair, tag] = (base + row, length)
                continue
            if mate[1] != length:
                raise CheckError(
                    f"expected equal lengths at both ends of message {tag} from rank {pair[0]} to rank {pair[1]}, "
                    f"found {mate[1]} and {length} elements: lower the programs together."
                )
            other[base + row], other[mate[0]] = mate[0], base + row
    if ends:
        sender, receiver, tag = next(iter(ends))
        raise CheckError(
            f"expected two ends of message {tag} from rank {sender} to rank {receiver}, found one: lower the "
            "programs together."
        )
    return other
