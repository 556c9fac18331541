"""Two-sided programs as columns: steps of each thread block of each rank.

Buffers, slots and chunks are those of :mod:`coppice.program.memory`.

A *thread block* is a sequential program of one rank. It has at most one peer that it sends to, at most one that it
receives from, and one channel. The directed *connection* (source, destination, channel) is a FIFO of messages of a
finite depth, with one thread block at either end. A step may wait until steps of other thread blocks of its rank are
done. A message is ``count`` chunks; both of its ends must agree on it.

A program is only a description: it can hold a wrong one, and the verifier (``verify``) judges it. A builder makes one
of thread blocks and steps that are given one at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.program.memory import Buffer


class StepOp(enum.IntEnum):
    """Operation of a step; m is the received message.

    Operation and the slots that it reads and writes:

        NOP                      waits for its dependencies, no more
        SEND                     sends src
        RECV                     dst = m
        COPY                     dst = src
        REDUCE                   dst = dst + src
        RECV_COPY_SEND           dst = m, sends m
        RECV_REDUCE_COPY         dst = src + m
        RECV_REDUCE_SEND         sends src + m, keeps nothing
        RECV_REDUCE_COPY_SEND    dst = src + m, sends it
    """

    NOP = 0
    SEND = 1
    RECV = 2
    COPY = 3
    REDUCE = 4
    RECV_COPY_SEND = 5
    RECV_REDUCE_COPY = 6
    RECV_REDUCE_SEND = 7
    RECV_REDUCE_COPY_SEND = 8

    @property
    def receives(self) -> bool:
        """Whether it receives from the thread block's receive peer."""
        return self is StepOp.RECV or self >= StepOp.RECV_COPY_SEND

    @property
    def sends(self) -> bool:
        """Whether it sends to the thread block's send peer."""
        return self in _SENDS

    @property
    def reads_src(self) -> bool:
        """Whether it reads the slots of ``src``."""
        return self in _READS_SRC

    @property
    def reads_dst(self) -> bool:
        """Whether it reads the slots of ``dst``."""
        return self is StepOp.REDUCE

    @property
    def writes_dst(self) -> bool:
        """Whether it writes the slots of ``dst``."""
        return self in _WRITES_DST

    @property
    def fused(self) -> bool:
        """Whether it fuses several plain steps, which some runtimes refuse."""
        return self >= StepOp.RECV_COPY_SEND


_SENDS = frozenset(
    {StepOp.SEND, StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_SEND, StepOp.RECV_REDUCE_COPY_SEND}
)
_READS_SRC = frozenset(
    {
        StepOp.SEND,
        StepOp.COPY,
        StepOp.REDUCE,
        StepOp.RECV_REDUCE_COPY,
        StepOp.RECV_REDUCE_SEND,
        StepOp.RECV_REDUCE_COPY_SEND,
    }
)
_WRITES_DST = frozenset(
    {
        StepOp.RECV,
        StepOp.COPY,
        StepOp.REDUCE,
        StepOp.RECV_COPY_SEND,
        StepOp.RECV_REDUCE_COPY,
        StepOp.RECV_REDUCE_COPY_SEND,
    }
)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Program(Brief):
    """Thread blocks and steps of one collective on ``num_ranks`` ranks, as columns.

    Thread blocks are rows sorted by rank: those of rank r are ``rank_start[r] .. rank_start[r + 1] - 1``, and the
    *id* of a thread block is its place among those of its rank, from 0. Steps are rows sorted by thread block: those of
    thread block b are ``step_start[b] .. step_start[b + 1] - 1``, and a step's *position* is its place among them.

    The columns have the lengths given here and their CSR columns ascend; all else may be wrong, and is judged by the
    verifier: peers that do not exist, offsets out of bounds, dependencies on steps that are not there.
    """

    collective: Collective  # What it implements
    num_ranks: int  # R, 1 or more
    num_chunks: int  # C, the number of equal chunks that M bytes are cut into (`nchunksperloop` in MSCCL XML)
    root: int = -1  # Root rank of the rooted collectives, otherwise -1
    in_place: bool  # It is meant to run with input and output in the same memory
    out_of_place: bool  # It is meant to run with input and output in different memory. Both may be true.
    # Slots of each rank's input (int32, length R). A rank whose input is unused, as in place, may give 0;
    # slots that the collective gives it are there all the same.
    input_chunks: NDArray[np.int32]
    output_chunks: NDArray[np.int32]  # Slots of each rank's output (int32), likewise
    scratch_chunks: NDArray[np.int32]  # Slots of each rank's scratch memory (int32)
    rank_start: NDArray[np.int64]  # First thread block of each rank (int64, length R + 1)
    block_send: NDArray[np.int32]  # Rank that a thread block sends to, or -1 (int32)
    block_recv: NDArray[np.int32]  # Rank that it receives from, or -1 (int32)
    block_channel: NDArray[np.int32]  # Channel of its connections, 0 or more (int32)
    step_start: NDArray[np.int64]  # First step of each thread block (int64, length thread blocks + 1)
    op: NDArray[np.int8]  # :class:`StepOp` of each step (int8)
    src_buffer: NDArray[np.int8]  # :class:`Buffer` that a step reads, NONE where it reads none (int8)
    src_offset: NDArray[np.int32]  # First slot that it reads, -1 where none (int32)
    dst_buffer: NDArray[np.int8]  # :class:`Buffer` that it writes, NONE where it writes none (int8)
    dst_offset: NDArray[np.int32]  # First slot that it writes, -1 where none (int32)
    count: NDArray[np.int32]  # Number of consecutive slots (int32), 1 or more but for NOP
    # Step s waits for the steps that rows `dep_start[s] .. dep_start[s + 1] - 1` of the next two columns name
    # (int64, length steps + 1).
    dep_start: NDArray[np.int64]
    dep_block: NDArray[np.int32]  # Id of the thread block, of the same rank, that is waited for (int32)
    dep_step: NDArray[np.int32]  # Position of the step in it that must be done (int32)
    name: str = "program"  # Label
    protocol: str = "Simple"  # `Simple`, `LL` or `LL128`: how a runtime moves the bytes
    min_bytes: int = 0  # Smallest M that it is meant for
    max_bytes: int | None = field(default=None)  # Largest M, inclusive; None means no limit

    @property
    def num_blocks(self) -> int:
        """Number of thread blocks of all ranks."""
        return len(self.block_send)

    @property
    def num_steps(self) -> int:
        """Number of steps of all thread blocks."""
        return len(self.op)

    @property
    def num_channels(self) -> int:
        """Largest channel plus one."""
        return int(self.block_channel.max()) + 1 if self.num_blocks else 0

    @cached_property
    def block_rank(self) -> NDArray[np.int32]:
        """Rank of each thread block."""
        return np.repeat(np.arange(self.num_ranks, dtype=np.int32), np.diff(self.rank_start))

    @cached_property
    def step_block(self) -> NDArray[np.int32]:
        """Thread block (row) of each step."""
        return np.repeat(np.arange(self.num_blocks, dtype=np.int32), np.diff(self.step_start))

    @cached_property
    def step_rank(self) -> NDArray[np.int32]:
        """Rank of each step."""
        return self.block_rank[self.step_block]

    @cached_property
    def receives(self) -> NDArray[np.bool_]:
        """Steps that take a message."""
        return self._where(lambda op: op.receives)

    @cached_property
    def sends(self) -> NDArray[np.bool_]:
        """Steps that give a message."""
        return self._where(lambda op: op.sends)

    @cached_property
    def reads_src(self) -> NDArray[np.bool_]:
        """Steps that read the slots that ``src`` names."""
        return self._where(lambda op: op.reads_src)

    @cached_property
    def writes_dst(self) -> NDArray[np.bool_]:
        """Steps that write the slots that ``dst`` names."""
        return self._where(lambda op: op.writes_dst)

    def _where(self, holds: Callable[[StepOp], bool]) -> NDArray[np.bool_]:
        """The steps whose operation has a property; unknown operations have none."""
        table = np.zeros(256, dtype=np.bool_)
        for op in StepOp:
            table[op] = holds(op)
        mask: NDArray[np.bool_] = table[self.op.astype(np.uint8)]
        return mask

    @cached_property
    def dep_waiter(self) -> NDArray[np.int64]:
        """The step (row) that waits, for each dependency."""
        return np.repeat(np.arange(self.num_steps), np.diff(self.dep_start))

    @cached_property
    def dep_target_block(self) -> NDArray[np.int64]:
        """The thread block (row) that is waited for, for each dependency."""
        return self.rank_start[self.step_rank[self.dep_waiter]] + self.dep_block

    @cached_property
    def dep_target(self) -> NDArray[np.int64]:
        """The step (row) that is waited for, for each dependency; all of them must name steps that are there."""
        return self.step_start[self.dep_target_block] + self.dep_step

    @property
    def most_blocks(self) -> int:
        """Thread blocks of the rank that has most."""
        return int(np.diff(self.rank_start).max()) if self.num_ranks else 0

    @property
    def most_steps(self) -> int:
        """Steps of the thread block that has most."""
        return int(np.diff(self.step_start).max()) if self.num_blocks else 0

    def block_id(self, block: int) -> tuple[int, int]:
        """(rank, id) of a thread block's row."""
        rank = int(self.block_rank[block])
        return rank, block - int(self.rank_start[rank])

    def step_place(self, step: int) -> tuple[int, int, int]:
        """(rank, thread block id, position) of a step's row."""
        block = int(self.step_block[step])
        return (*self.block_id(block), step - int(self.step_start[block]))


Slot = tuple[int, int]
"""(buffer, offset)"""

NOWHERE: Slot = (Buffer.NONE, -1)
"""The slot of a step that reads or writes none."""


@dataclass
class _OpenBlock:
    rank: int
    send: int
    recv: int
    channel: int
    steps: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    deps: list[tuple[tuple[int, int], ...]] = field(default_factory=list)


class ProgramBuilder:
    """Collects thread blocks and steps.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.program.dialects.thread_blocks.program import StepOp
        >>> build = ProgramBuilder(2)
        >>> for rank in range(2):
        ...     block = build.block(rank, send=1 - rank, recv=1 - rank)
        ...     build.step(block, StepOp.SEND, src=(Buffer.OUTPUT, rank))
        ...     build.step(block, StepOp.RECV, dst=(Buffer.OUTPUT, 1 - rank))
        0
        1
        0
        1
        >>> program = build.program(collective=Collective.ALL_GATHER, num_chunks=2, in_place=True,
        ...                         out_of_place=False, input_chunks=[1, 1], output_chunks=[2, 2])
        >>> program.num_blocks, program.num_steps, program.step_place(3)
        (2, 4, (1, 0, 1))
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._blocks: list[_OpenBlock] = []

    def block(self, rank: int, *, send: int = -1, recv: int = -1, channel: int = 0) -> int:
        """Add a thread block; ids count up per rank.

        Returns:
            A handle for :meth:`step`.
        """
        self._blocks.append(_OpenBlock(rank, send, recv, channel))
        return len(self._blocks) - 1

    def step(
        self,
        block: int,
        op: int,  # :class:`StepOp`
        *,
        src: Slot = NOWHERE,
        dst: Slot = NOWHERE,
        count: int = 1,
        # (thread block id, position) of steps of the same rank that it waits for
        after: Iterable[tuple[int, int]] = (),
    ) -> int:
        """Append a step to a thread block.

        Returns:
            Its position in the thread block.
        """
        chosen = self._blocks[block]
        chosen.steps.append((int(op), int(src[0]), src[1], int(dst[0]), dst[1], count))
        chosen.deps.append(tuple(after))
        return len(chosen.steps) - 1

    def program(
        self,
        *,
        input_chunks: Sequence[int],
        output_chunks: Sequence[int],
        scratch_chunks: Sequence[int] | None = None,
        **attributes: Any,
    ) -> Program:
        """Build the program.

        Args:
            input_chunks: Slots of each rank's input.
            output_chunks: Slots of each rank's output.
            scratch_chunks: Slots of each rank's scratch memory; none by default.
            **attributes: The scalar attributes of :class:`Program`, ``num_ranks`` excepted.
        """
        ranks = self._num_ranks
        blocks = sorted(self._blocks, key=lambda block: block.rank)
        steps = np.array([step for block in blocks for step in block.steps], dtype=np.int64).reshape(-1, 6)
        deps = [waits for block in blocks for waits in block.deps]
        waits = np.array([wait for each in deps for wait in each], dtype=np.int64).reshape(-1, 2)
        return Program(
            num_ranks=ranks,
            input_chunks=np.array(input_chunks, dtype=np.int32),
            output_chunks=np.array(output_chunks, dtype=np.int32),
            scratch_chunks=np.array(
                [0] * ranks if scratch_chunks is None else scratch_chunks, dtype=np.int32
            ),
            rank_start=np.searchsorted(
                np.array([block.rank for block in blocks], dtype=np.int64), np.arange(ranks + 1)
            ).astype(np.int64),
            block_send=np.array([block.send for block in blocks], dtype=np.int32),
            block_recv=np.array([block.recv for block in blocks], dtype=np.int32),
            block_channel=np.array([block.channel for block in blocks], dtype=np.int32),
            step_start=np.cumsum([0, *(len(block.steps) for block in blocks)], dtype=np.int64),
            op=steps[:, 0].astype(np.int8),
            src_buffer=steps[:, 1].astype(np.int8),
            src_offset=steps[:, 2].astype(np.int32),
            dst_buffer=steps[:, 3].astype(np.int8),
            dst_offset=steps[:, 4].astype(np.int32),
            count=steps[:, 5].astype(np.int32),
            dep_start=np.cumsum([0, *map(len, deps)], dtype=np.int64),
            dep_block=waits[:, 0].astype(np.int32),
            dep_step=waits[:, 1].astype(np.int32),
            **attributes,
        )
