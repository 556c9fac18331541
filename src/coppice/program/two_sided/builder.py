"""Builder of programs from thread blocks and steps given one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coppice.program.memory import Buffer
from coppice.program.two_sided.program import Program

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
        >>> from coppice.program.two_sided.program import StepOp
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
