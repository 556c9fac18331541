"""Groups of k members: arithmetic of positions in base k, and exchanges within groups.

Exchanges within groups of k members: whole buffers, or reduce-scatter and all-gather. k^L members are numbered with L
digits of base k. In phase i, the k members whose numbers differ in the digit of place i form a group, and each sends to
all others of it.

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

from coppice.display import Brief
from coppice.planners.algorithms.algorithm import AlgorithmParameter
from coppice.planners.algorithms.parts.moves import Moves
from coppice.rows import offsets, ranges
from coppice.schedule.schedule import Op


def radix_parameter(default: int = 2) -> dict[str, AlgorithmParameter]:
    """The parameter ``radix`` of an algorithm."""
    return {
        "radix": AlgorithmParameter(default=default, least=2, summary="base k: partners per step are k - 1")
    }


def levels(size: int, radix: int) -> list[tuple[int, list[int]]]:
    """Distance k^i of every digit of numbers below ``size``, with its multiples j k^i below ``size``.

    There are ceil(log_k size) of them.

    Examples:
        >>> levels(10, 3)
        [(1, [1, 2]), (3, [3, 6]), (9, [9])]
        >>> levels(1, 2)
        []
    """
    found = []
    distance = 1
    while distance < size:
        found.append((distance, list(range(distance, min(size, radix * distance), distance))))
        distance *= radix
    return found


def num_messages(size: int, radix: int) -> int:
    """Total number of distances in :func:`levels`."""
    return sum(len(shifts) for _, shifts in levels(size, radix))


def log_floor(size: int, radix: int) -> int:
    """Largest L with radix^L <= size.

    Examples:
        >>> log_floor(8, 2), log_floor(26, 3), log_floor(1, 2)
        (3, 2, 0)
    """
    exponent = 0
    while radix ** (exponent + 1) <= size:
        exponent += 1
    return exponent


def spans(
    start: NDArray[np.integer], count: NDArray[np.integer] | int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate the ranges ``start[i] .. start[i] + count[i] - 1``, with the i of each number.

    Examples:
        >>> rows, numbers = spans(np.array([5, 0]), np.array([1, 3]))
        >>> rows.tolist(), numbers.tolist()
        ([0, 1, 1, 1], [5, 0, 1, 2])
    """
    count = np.broadcast_to(np.asarray(count, dtype=np.int64), np.shape(start))
    return np.repeat(np.arange(len(count)), count), ranges(np.asarray(start, dtype=np.int64), count)


@dataclass(frozen=True, eq=False, repr=False)
class Folding(Brief):
    """Groups of neighbouring positions, each represented by its last one.

    The first runs have k positions, one more may have fewer, and all others have one.
    """

    radix: int  # k, at most the number of positions (2 for one position)
    depth: int  # L, with k^L runs
    start: NDArray[np.int64]  # Run v holds positions `start[v] .. start[v + 1] - 1` (k^L + 1 numbers).

    @property
    def core(self) -> int:
        """Number of groups, k^L."""
        return len(self.start) - 1

    @property
    def runs(self) -> NDArray[np.int64]:
        """All groups: 0 .. k^L - 1."""
        return np.arange(self.core)

    @property
    def leader(self) -> NDArray[np.int64]:
        """Representative of each group."""
        return self.start[1:] - 1

    @property
    def folded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions that are not representatives, and their representatives."""
        position = np.arange(self.start[-1])
        leader = np.repeat(self.leader, np.diff(self.start))
        return position[position != leader], leader[position != leader]


def folding(size: int, radix: int = 2) -> Folding:
    """Fold ``size`` positions to a power of k.

    Examples:
        >>> folding(6).start.tolist(), folding(6).leader.tolist()
        ([0, 2, 4, 5, 6], [1, 3, 4, 5])
        >>> folding(12, 3).start.tolist()
        [0, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    """
    radix = min(radix, max(size, 2))
    depth = log_floor(size, radix)
    whole_runs, rest = divmod(size - radix**depth, radix - 1)
    length = np.ones(radix**depth, dtype=np.int64)
    length[:whole_runs] = radix
    length[whole_runs : whole_runs + 1] += rest
    return Folding(radix, depth, offsets(length))


def reversed_digits(depth: int, radix: int = 2) -> NDArray[np.int64]:
    """Digit reversal of 0 .. radix^depth - 1.

    Examples:
        >>> reversed_digits(3).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    return np.arange(radix**depth).reshape((radix,) * depth).transpose().reshape(-1)


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
