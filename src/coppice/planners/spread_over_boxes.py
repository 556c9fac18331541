"""Broadcasts and reductions over boxes for middle sizes: boxes pass on chunks to each other, in a pipeline.

Theory. A chunk goes from the root to a member of its box, over that member's rail to one other box, from there to all
other boxes, and is handed out within each box: scatter and all-gather between boxes (van de Geijn's broadcast), one
chunk behind the other. With k other boxes of rate b and a crossing that takes a, three things keep it from the least
time M / b + latencies (docs/theory.md, Theorem 19):

* *The end.* What the root's box sends within the last crossing comes too late to be passed on, so it sends its last
  chunks to all boxes itself. Boxes pass on for a crossing longer than it sends fresh bytes; if all end together, a b /
  (k + 1) bytes go straight to all.
* *The last chunk* of a box is passed on k - 1 times, one after the other. What is left after a chunk should be k times
  that chunk, so chunks shrink by a share of 1 / k towards the end.
* *The beginning.* A box passes on nothing before its first chunk, which comes to the last of k boxes k chunks later. So
  there must be many chunks, and few, as each is a message at every rank: half of the time of the workers is about best.

Boxes pass on in descending order, from the one before them: as chunks come to boxes in ascending order, all senders
then have different receivers where k is odd, and two at most have the same where it is even.

The root sends what goes over its own rail twice, to its NIC and into its box. Where GPUs send less than their links
take, chunks of that rail are smaller, and members of the root's box first send to other boxes all that they have to:
what they hand out in their own box waits for the last chunk that they receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.ordering import without_steps
from coppice.planners.over_boxes import rails, routed_or_none
from coppice.schedule.schedule import Op, Schedule

_LEVELS = 5
"""Transfers of a chunk: to a rail, to a box, to the other boxes, within the root's box and within the others."""
_AT_HOME = 3
"""Of these, copies within the root's box by others than the root."""
_UNITS = 2**20
"""Of a message, in which sizes of chunks are counted."""


@dataclass(frozen=True, kw_only=True)
class SpreadShape:
    """How a message is cut for a broadcast over boxes.

    Chunks of a rail that boxes pass on come first, those that the root's box sends to all boxes itself behind them.
    """

    passed: int  # Chunks of each rail that boxes pass on
    direct: int = 0  # Those that the root's box sends to all boxes itself
    direct_share: float = 0.0  # Share of the message that these hold together
    taper: int = 1  # How many times smaller the last chunk of either kind is than the largest
    own_rail: float = 1.0  # Size of chunks of the root's own rail, beside those of the others
    home_last: bool = False  # In a broadcast, members of the root's box serve other boxes before their own

    @property
    def turns(self) -> int:
        """Chunks of each rail."""
        return self.passed + self.direct

    def shares(self, others: int) -> NDArray[np.float64]:
        """Share of the message of each turn, with so many other boxes.

        >>> SpreadShape(passed=2, direct=1, direct_share=0.1, taper=2).shares(1).round(2).tolist()
        [0.6, 0.3, 0.1]
        """
        direct = self.direct_share if self.direct and self.passed else float(self.direct > 0)
        kinds = (self.passed, 1 - direct), (self.direct, direct)
        found = []
        for count, share in kinds:
            from_end = np.arange(count, dtype=np.float64)[::-1]
            sizes = np.minimum(1.0, (1 + 1 / others) ** np.minimum(from_end, 64 * others) / self.taper)
            found.append(share * sizes / max(sizes.sum(), 1e-9))
        return np.concatenate(found)


def boxes_of(problem: Problem, *, apart: bool) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] | None:
    """Boxes and their members on rails; None where there are none, or the problem is no broadcast or reduction.

    Args:
        apart: Take each rank for a box of its own, of ranks that all reach each other.
    """
    ranks = problem.topology.num_ranks
    rooted = problem.collective in (Collective.BROADCAST, Collective.REDUCE)
    if not rooted or problem.root is None or (apart and ranks < 3):
        return None
    return (tuple((rank,) for rank in range(ranks)), (0,)) if apart else rails(problem.topology)


def spread_over_boxes(problem: Problem, shape: SpreadShape, *, apart: bool = False) -> Schedule | None:
    """A broadcast or a reduction in which boxes pass on chunks to each other; None where there are no rails.

    Args:
        apart: As for :func:`boxes_of`.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("dgx-a100", boxes=4), "broadcast", root=0)
        >>> found = spread_over_boxes(problem, SpreadShape(passed=5, direct=1, direct_share=0.1))
        >>> found.num_chunks, found.num_transfers == found.num_chunks * 31
        (48, True)
    """
    joined = boxes_of(problem, apart=apart)
    if joined is None or problem.root is None:
        return None
    boxes, members = joined
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective, root=problem.root)
    home = next(number for number, box in enumerate(boxes) if problem.root in box)
    table = np.array([boxes[home], *(box for number, box in enumerate(boxes) if number != home)])
    step, src, dst, chunk = _rows(table, np.array(members), problem.root, shape)
    last = shape.home_last and problem.collective is Collective.BROADCAST
    if last:
        step = np.where(step % _LEVELS == _AT_HOME, (shape.turns - 1) * _LEVELS + _AT_HOME, step)
    moves = Moves(case, whole(case, shape.turns * len(members)))
    if problem.collective is Collective.BROADCAST:
        moves.add(step, src, dst, chunk)
    else:
        back = np.argsort(step, kind="stable")[::-1]  # turned round it goes in the order of the broadcast
        moves.add(step.max() - step[back], dst[back], src[back], chunk[back], Op.REDUCE)
    own = np.where(table[0][list(members)] == problem.root, shape.own_rail, 1.0)
    share = np.outer(shape.shares(len(boxes) - 1), own).ravel()
    units = np.maximum(np.rint(share / share.sum() * _UNITS), 1).astype(np.int64)
    made = replace(without_steps(moves.schedule()), chunk_share=units)
    return routed_or_none(_home_last(made, table[0]) if last else made)


def _home_last(made: Schedule, home: NDArray[np.int64]) -> Schedule:
    """The broadcast in which what others than the root send within its box waits for the last that they have of it."""
    rows = np.arange(made.num_transfers)
    receipt = np.zeros(made.topology.num_ranks, dtype=np.int64)
    received = made.src == made.root
    np.maximum.at(receipt, made.dst[received], rows[received])
    waits = np.isin(made.src, home) & np.isin(made.dst, home) & ~received
    waits &= made.chunk[receipt[made.src]] != made.chunk
    return replace(
        made,
        after_start=np.concatenate([[0], np.cumsum(waits)]).astype(np.int64),
        after=receipt[made.src[waits]].astype(np.int32),
    )


def _rows(
    table: NDArray[np.int64], members: NDArray[np.int64], root: int, shape: SpreadShape
) -> tuple[NDArray[np.int64], ...]:
    """Step, sender, receiver and chunk of each transfer: of every turn those of a level after those before it.

    Args:
        table: Ranks of each box, a row for each, that of the root first.
        members: Numbers of those with rails.
    """
    others, width = len(table) - 1, table.shape[1]
    turn, rail = np.divmod(np.arange(shape.turns * len(members)), len(members))
    member = members[rail]
    first = (turn + rail) % others  # Box that passes a chunk on, or has it first
    hub, direct = table[0][member], turn >= shape.passed
    on_rail = table[1:][:, member]  # Of each other box the member of each chunk
    found = _Rows(turn)
    at = np.flatnonzero(hub != root)
    found.add(0, root, hub[at], at)
    every = np.arange(len(turn))
    found.add(1, hub, on_rail[first, every], every)
    for place in range(1, others):
        at = np.flatnonzero(direct)
        found.add(1, hub[at], on_rail[(first[at] + place) % others, at], at)
        at = np.flatnonzero(~direct)
        found.add(2, on_rail[first[at], at], on_rail[(first[at] - place) % others, at], at)
    _within_home(found, table[0], hub, root, turn)
    for place in range(1, width):
        for box in range(1, others + 1):
            found.add(4, table[box][member], table[box][(member + place) % width], every)
    return found.columns()


def _within_home(
    found: _Rows, home: NDArray[np.int64], hub: NDArray[np.int64], root: int, turn: NDArray[np.int64]
) -> None:
    """Copies within the root's box; of its own rail the root gives one to a member who hands it out."""
    others = home[home != root]
    if not len(others):
        return
    own = np.flatnonzero(hub == root)
    delegate = hub.copy()
    delegate[own] = others[turn[own] % len(others)]
    found.add(1, root, delegate[own], own)
    place = {rank: number for number, rank in enumerate(others.tolist())}
    start = np.array([place[rank] for rank in delegate.tolist()])
    for step in range(1, len(others)):
        found.add(_AT_HOME, delegate, others[(start + step) % len(others)], np.arange(len(hub)))


class _Rows:
    """Transfers of chunks, each at a level of its turn."""

    def __init__(self, turn: NDArray[np.int64]) -> None:
        self.turn = turn
        self._columns: list[Sequence[NDArray[np.int64]]] = []

    def add(
        self, level: int, src: int | NDArray[np.int64], dst: NDArray[np.int64], chunk: NDArray[np.int64]
    ) -> None:
        self._columns.append(np.broadcast_arrays(self.turn[chunk] * _LEVELS + level, src, dst, chunk))

    def columns(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(np.concatenate(each) for each in zip(*self._columns, strict=True))
