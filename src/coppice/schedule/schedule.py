"""The schedule: what every planner returns and every consumer takes.

A schedule moves *chunks* of *slots* between ranks. Slots are the R blocks of all-gather, reduce-scatter, all-reduce,
gather and scatter, R x R blocks (source * R + destination) of all-to-all, and one block of broadcast, reduce and
barrier. Chunks of a slot lie in id order and their shares add up to one. Transfers are topologically ordered rows: a
transfer sends the value that (chunk, src) holds after all earlier rows into it, not counting rows of its own step.

Rows of one step (0 or more) with the same sender, receiver and path travel as one message. A rank posts all its
messages of a step at once, in row order, and goes on to its next step when all of them are complete; rows without a
step (-1) are messages of their own that wait for nothing but what they depend on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.text import plural
from coppice.topology.model import Topology

__all__ = ["Op", "Schedule"]


class Op(enum.IntEnum):
    """What the receiver does with a chunk."""

    COPY = 0
    REDUCE = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule:
    """Chunks and transfers of one collective on one topology, as columns.

    Attributes:
        topology: Where the transfers happen.
        collective: What they implement.
        root: Root rank of broadcast and reduce, otherwise -1.
        slot_weight: Relative size of each slot (int64, length = number of slots); equal sizes are all ones.
        chunk_slot: Slot of each chunk (int32), ascending.
        chunk_share: Weight of each chunk (int64); its share of its slot is ``share / sum(shares of the slot)``.
        src: Sending rank of each transfer (int32).
        dst: Receiving rank (int32).
        chunk: Chunk that is sent (int32).
        op: :class:`Op` (int8).
        path: Row of the node sequence that it takes, or -1 for default routing (int32).
        step: Step number, or -1 where only dependencies order the rows (int32).
        after_start: Further dependencies of transfer i: rows ``after[after_start[i] : after_start[i + 1]]`` (int64).
        after: Row numbers, each smaller than the row that waits (int32).
        path_start: Nodes of path p are ``path_nodes[path_start[p] : path_start[p + 1]]``, both ends included (int64).
        path_nodes: Node sequences of all paths (int32).
        ordered: Claim that every reduction joins neighbouring intervals of ranks, so that the operands of an operator
            that does not commute can be kept in rank order.
    """

    topology: Topology
    collective: Collective
    root: int
    slot_weight: NDArray[np.int64]
    chunk_slot: NDArray[np.int32]
    chunk_share: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    chunk: NDArray[np.int32]
    op: NDArray[np.int8]
    path: NDArray[np.int32]
    step: NDArray[np.int32]
    after_start: NDArray[np.int64]
    after: NDArray[np.int32]
    path_start: NDArray[np.int64]
    path_nodes: NDArray[np.int32]
    ordered: bool = False

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> chain.schedule()
        Schedule(broadcast on 'ring of 3': 1 chunk, 2 transfers in 2 steps)
        """
        sizes = f"{plural(self.num_chunks, 'chunk')}, {plural(self.num_transfers, 'transfer')}"
        last = int(self.step.max(initial=-1))
        steps = f" in {plural(last + 1, 'step')}" if last >= 0 else ""
        return f"Schedule({self.collective} on {self.topology.name[:80]!r}: {sizes}{steps})"

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        return len(self.src)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_slot)
