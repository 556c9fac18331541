"""In which order a plan adds: whether results depend on the size, the channels or the placement, bit by bit.

Sums of floating-point numbers depend on the order of the additions. What a plan adds is known exactly: a transfer
that reduces adds the value of its sender to that of its receiver, rows into one buffer take effect in row order, and
every engine keeps to that. So each element has an expression over the ranks, such as ``((0+1)+(2+3))``, at every rank
that gets it. Both sides of an addition may be swapped: IEEE 754 addition commutes (payloads of NaN aside).

Elements of a chunk share an expression. Where all chunks and all receivers have the same one, results do not
depend on how a buffer of some size is cut into chunks, pieces and channels. Where it is an order of the ranks' numbers
that has a name, any plan of that name has the same results, wherever its ranks are placed. Where ranks have different
expressions of one element, they may end up with different bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coppice.collectives import Collective
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.schedule import Op, Schedule

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import SumOrderJson

PAIRS, LINEAR = "pairs", "linear"
_SHOWN_RANKS = 16

Addends = int | tuple["Addends", "Addends"]
"""An order of a sum: a rank, or the two sums that are added."""


@dataclass(frozen=True, kw_only=True)
class SumOrder:
    """In which order the elements of a plan are added."""

    fixed: bool  # All elements are added in one order, at all ranks
    ranks_agree: bool  # All ranks that get an element add it in one order
    name: str = ""  # `pairs` or `linear` where the one order is that one, else empty
    order: str = ""  # The one order in full, of up to 16 ranks

    @property
    def words(self) -> str:
        """What it means for results.

        >>> SumOrder(fixed=False, ranks_agree=True).words
        'in different orders: results depend on size, channels and placement in their last bits'
        """
        if not self.ranks_agree:
            return "in an order of its own at each rank: ranks may get different bits of one sum"
        if not self.fixed:
            return "in different orders: results depend on size, channels and placement in their last bits"
        if self.name:
            return f"all in one order, {self.name}: the same bits at any size, with any channels, pieces and placement"
        return "all in one order: the same bits at any size, with any channels and pieces, on this placement"

    def record(self) -> SumOrderJson:
        """The same as JSON values."""
        return {
            "fixed": self.fixed,
            "ranks_agree": self.ranks_agree,
            "name": self.name,
            "sum_order": self.order,
        }


class _Sums:
    """Sums met so far, by number: ranks come first, and equal sums have equal numbers."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._parts: list[tuple[int, int]] = []
        self._known: dict[tuple[int, int], int] = {}
        self._first = list(range(ranks))  # the least rank in it

    def of(self, one: int, other: int) -> int:
        """The sum of two."""
        key = (one, other) if one < other else (other, one)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.ranks + len(self._parts)
            self._parts.append(key)
            self._first.append(min(self._first[one], self._first[other]))
        return found

    def text(self, number: int) -> str:
        """In full, the sum with the lower rank first."""
        parts: list[str] = []
        stack: list[int | str] = [number]
        while stack:
            top = stack.pop()
            if isinstance(top, str):
                parts.append(top)
            elif top < self.ranks:
                parts.append(str(top))
            else:
                one, other = sorted(self._parts[top - self.ranks], key=lambda each: self._first[each])
                stack += [")", other, "+", one, "("]
        return "".join(parts)


def sum_order(body: Forest | Schedule) -> SumOrder | None:
    """The order in which a plan adds.

    Args:
        body: What the plan carries out; it verifies.

    Returns:
        The order; None where nothing is added, or where a switch adds, in whatever order data arrive.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.choice import from_catalogue
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
        >>> sum_order(from_catalogue(problem, "rabenseifner").body)
        SumOrder(fixed=True, ranks_agree=True, name='pairs', order='((0+1)+(2+3))')
        >>> sum_order(from_catalogue(problem, "ring").body)
        SumOrder(fixed=False, ranks_agree=True, name='', order='')
        >>> sum_order(from_catalogue(problem, "allgather-reduce").body).ranks_agree
        False
    """
    if not body.collective.reduces or (isinstance(body, Forest) and body.branches_at_switches):
        return None
    sums = _Sums(body.topology.num_ranks)
    ends = _tree_sums(body, sums) if isinstance(body, Forest) else _chunk_sums(body, sums)
    first, fixed, agree = -1, True, True
    for own in ends:
        first = own[0] if first < 0 else first
        agree = agree and len(set(own)) == 1
        fixed = fixed and agree and own[0] == first
        if not agree or (not fixed and isinstance(body, Forest)):  # a tree's root tells all others
            break
    if not fixed or first < 0:
        return SumOrder(fixed=fixed, ranks_agree=agree)
    return SumOrder(
        fixed=True,
        ranks_agree=True,
        name=next((name for name in _NAMED if first == _number(named_order(name, sums.ranks), sums)), ""),
        order=sums.text(first) if sums.ranks <= _SHOWN_RANKS else "",
    )


def of_all(orders: Sequence[SumOrder | None]) -> SumOrder | None:
    """The order in which several plans add, such as those of a set.

    >>> pairs, other = SumOrder(fixed=True, ranks_agree=True, name=PAIRS), SumOrder(fixed=False, ranks_agree=True)
    >>> of_all([pairs, pairs]).fixed, of_all([pairs, other]).fixed
    (True, False)
    """
    known = [each for each in orders if each is not None]
    if len(known) < len(orders) or not known:
        return None
    alike = len(set(known)) == 1 and bool(len(known) == 1 or known[0].name or known[0].order)
    if alike:
        return known[0]
    return SumOrder(fixed=False, ranks_agree=all(each.ranks_agree for each in known))


def named_order(name: str, ranks: int) -> Addends:
    """The order of a name.

    Args:
        name: ``linear``: one rank after the other. ``pairs``: neighbours first, then pairs of these, and so on; of
            ranks beyond a power of two, as many of the first pairs of ranks count as one each, as in recursive
            doubling (Thakur, Rabenseifner, Gropp: "Optimization of collective communication operations in MPICH",
            IJHPCA 2005).

    Examples:
        >>> named_order("linear", 4), named_order("pairs", 4)
        ((((0, 1), 2), 3), ((0, 1), (2, 3)))
        >>> named_order("pairs", 6)
        (((0, 1), (2, 3)), (4, 5))
    """
    level: list[Addends] = list(range(ranks))
    if name == LINEAR:
        made = level[0]
        for rank in level[1:]:
            made = made, rank
        return made
    beyond = ranks - (1 << (ranks.bit_length() - 1))
    level = [*((2 * pair, 2 * pair + 1) for pair in range(beyond)), *level[2 * beyond :]]
    while len(level) > 1:
        level = [(level[place], level[place + 1]) for place in range(0, len(level), 2)]
    return level[0]


_NAMED = (PAIRS, LINEAR)


def _number(order: Addends, sums: _Sums) -> int:
    """The number of an order."""
    done: list[int] = []
    stack: list[Addends | None] = [order]
    while stack:
        top = stack.pop()
        if top is None:
            done.append(sums.of(done.pop(), done.pop()))
        elif isinstance(top, int):
            done.append(top)
        else:
            stack += [None, *top]
    return done[0]


def _tree_sums(forest: Forest, sums: _Sums) -> Iterator[list[int]]:
    """The sum at the root of each tree that reduces; images come last, and only where all others are alike."""
    rank = forest.topology.rank
    for written in (forest, expanded(forest)) if forest.symmetry is not None else (forest,):
        roots, src, dst = (
            rank[ends].tolist() for ends in (written.tree_root, written.edge_src, written.edge_dst)
        )
        start = written.tree_start.tolist()
        for tree in np.flatnonzero(written.tree_phase == Phase.REDUCE).tolist():
            held = list(range(sums.ranks))
            for row in range(start[tree], start[tree + 1]):
                held[dst[row]] = sums.of(held[dst[row]], held[src[row]])
            yield [held[roots[tree]]]


def _chunk_sums(schedule: Schedule, sums: _Sums) -> Iterator[list[int]]:
    """The sums of each chunk at the ranks that get it."""
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    columns = np.stack(
        [column[by_chunk] for column in (schedule.src, schedule.dst, schedule.op, schedule.step)]
    )
    start = np.searchsorted(schedule.chunk[by_chunk], np.arange(schedule.num_chunks + 1)).tolist()
    known: dict[bytes, list[int]] = {}
    for chunk, slot in enumerate(schedule.chunk_slot.tolist()):
        if not schedule.slot_weight[slot]:
            continue
        rows = columns[:, start[chunk] : start[chunk + 1]]
        key = rows.tobytes()  # pieces of a chunk move alike
        if key not in known:
            known[key] = _carried_out(rows.tolist(), sums)
        held = known[key]
        match schedule.collective:
            case Collective.REDUCE:
                yield [held[schedule.root]]
            case Collective.REDUCE_SCATTER:
                yield [held[slot]]
            case _:
                yield held


def _carried_out(rows: Sequence[Sequence[int]], sums: _Sums) -> list[int]:
    """What each rank holds in the end; rows of one step read what was there before it."""
    held = list(range(sums.ranks))
    before: dict[int, int] = {}
    current = -1
    for src, dst, op, step in zip(*rows, strict=True):
        if step != current or step < 0:
            before.clear()
            current = step
        sent = before.get(src, held[src])
        if step >= 0:
            before.setdefault(dst, held[dst])
        held[dst] = sums.of(held[dst], sent) if op == Op.REDUCE else sent
    return held
