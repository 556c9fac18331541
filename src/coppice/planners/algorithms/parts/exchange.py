"""Exchanges within groups of k members: whole buffers, or reduce-scatter and all-gather.

k^L members are numbered with L digits of base k. In phase i, the k members whose numbers differ in the digit of place
i form a group, and each sends to all others of it.

The messages of a phase are posted at once, in an order that does two things. Into each member, those of its upper
neighbours come first, nearest first, and then those of its lower ones, so that intervals of members are joined to
neighbouring ones. And since a message whose engines are busy does not hold up later ones, the k - 1 rounds that one
port needs are always the rotations by 1, 2, .., so that no engine idles.

That takes members that begin a phase at the same time. Where they do not, because some had to fold others in first,
the parts of a reduce-scatter can go in rotations that are steps of their own (*in rounds*): then every phase takes (k
- 1) messages after its last member is ready, but only pairs (k = 2) keep the order of the intervals. Whole buffers
cannot, as a member would pass on what it has added meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.parts.moves import Moves
from coppice.schedule.schedule import Op

Members = NDArray[np.int64]


def partners(radix: int) -> tuple[Members, Members]:
    """Digits of the receivers and senders of a group's messages, in posting order.

    Examples:
        >>> receiver, sender = partners(3)
        >>> list(zip(sender.tolist(), receiver.tolist()))
        [(1, 0), (2, 0), (2, 1), (1, 2), (0, 2), (0, 1)]
    """
    digit = np.arange(radix)
    pairs = np.stack(np.meshgrid(digit, digit, indexing="ij"), axis=-1).reshape(-1, 2)
    upper = pairs[pairs[:, 0] < pairs[:, 1]]
    lower = pairs[::-1][pairs[::-1, 0] > pairs[::-1, 1]]
    posted = np.concatenate([upper, lower])
    return posted[:, 0], posted[:, 1]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Members of groups, and their exchange pattern."""

    position: Members  # Position of each of the `radix ** depth` members
    radix: int  # k
    depth: int  # Number of phases, L
    # The rotations of a phase of :meth:`scatter` and :meth:`gather` are steps of their own
    in_rounds: bool = False

    @property
    def steps(self) -> int:
        """Number of steps of all phases of :meth:`scatter`, or of :meth:`gather`."""
        return self.depth * self._stride

    @property
    def ordered(self) -> bool:
        """Whether :meth:`scatter` joins neighbouring intervals of members."""
        return self.radix == 2 or not self.in_rounds

    def whole(self, moves: Moves, first_step: int) -> None:
        """Exchange and reduce whole buffers (chunk 0), one step per phase."""
        for phase in range(self.depth):
            _, receiver, sender = self._messages(phase)
            moves.add(first_step + phase, self.position[sender], self.position[receiver], 0, Op.REDUCE)

    def scatter(self, moves: Moves, first_step: int) -> None:
        """Reduce-scatter as many chunks as there are members.

        In phase i, a member keeps of its interval of chunks the part that its digit of place i names, and sends every
        other part to the member of its group that keeps that.
        """
        for phase in range(self.depth):
            step, receiver, sender = self._messages(phase)
            step += first_step + phase * self._stride
            self._move(moves, step, sender, receiver, self.kept(receiver, phase + 1), Op.REDUCE)

    def gather(self, moves: Moves, first_step: int) -> None:
        """All-gather the result of :meth:`scatter`: its phases in reverse."""
        for phase in range(self.depth):
            step, receiver, sender = self._messages(phase)
            step += first_step + (self.depth - 1 - phase) * self._stride
            self._move(moves, step, sender, receiver, self.kept(sender, phase + 1), Op.COPY)

    def kept(self, member: Members, phases: int) -> NDArray[np.int64]:
        """Chunks kept by members after the first phases of :meth:`scatter`, one row each."""
        first = np.zeros_like(member)
        for phase in range(phases):
            first += member // self.radix**phase % self.radix * self.radix ** (self.depth - 1 - phase)
        return first[:, None] + np.arange(self.radix ** (self.depth - phases))

    @property
    def _stride(self) -> int:
        return self.radix - 1 if self.in_rounds else 1

    def _move(
        self, moves: Moves, step: Members, sender: Members, receiver: Members, chunk: Members, op: Op
    ) -> None:
        moves.add(step[:, None], self.position[sender][:, None], self.position[receiver][:, None], chunk, op)

    def _messages(self, phase: int) -> tuple[Members, Members, Members]:
        """Step within the phase, receiver and sender of every message of a phase."""
        span = self.radix**phase
        member = np.arange(self.radix**self.depth)
        base = member[member // span % self.radix == 0]
        to, of = partners(self.radix)
        rotation = (of - to) % self.radix - 1 if self.in_rounds else np.zeros_like(to)
        return (
            np.repeat(rotation, len(base)),
            (to[:, None] * span + base).reshape(-1),
            (of[:, None] * span + base).reshape(-1),
        )
