"""All-reduces for boxes of which one has lost bandwidth to the others: R2CCL's and OptCC's.

Both have m boxes of g members; member j of each is on rail j. Inside boxes all exchange directly, in one step, between
boxes around rings. The slow box is found by the rates of links (``parts/slow_box.py``) and moves its part of all chunks
over the members whose links are left, in proportion to their rates. With x the share of its rate that it lost,
r = 1 - x what it has left, and all other boxes at rate 1, times of the steady state are multiples of M over that rate.
Without a slow box both are ``two-level`` with ``inside=at-once``: 2 (m - 1)/m. Balanced over the links that are left,
that takes 2 (m - 1)/m / r.

**r2ccl** cuts the buffer. 1 - x of it goes through an all-reduce of all boxes, over what each rail of the slow box has
left. x of it goes through an all-reduce of the others, over what these have free on the same rails: before, the slow
box sends its sum to one of the others, the next; after, that one sends the result back. Bytes of the slow box in each
direction 2 (m - 1)/m (1 - x) M + x M; of the next one 2 (m - 2)/(m - 1) x M more. Time of the steady state, where the
inside of boxes is fast enough: 2 (m - 1)/m + x/r.

Steps 2 (m - 1) + 2 (m - 2) + 2, two inside boxes and two where data change rails in the next box.

Wang, Yu, Xiong and Liu, "Reliable and resilient collective communication library for LLM training and serving", arXiv
2512.25059: share of the data, the order of the parts and the single helper follow the public program
(r2cc-project/R-2CCL), whose helper is one GPU that broadcasts to all. Here the helper is a box with all its rails, and
only the slow box, which lacks the result, gets it. When the publication prefers plain rings is not modelled.

**optcc** has four stages. (1) The other boxes reduce-scatter among themselves, the slow one inside itself. (2) It sends
its part of each of m - 1 shards to the shard's owner. (3) The owner sends the result back. (4) The others all-gather,
the slow one inside itself. Bytes of the slow box M in each direction, of another one (2 m - 3)/(m - 1) M. Time of the
steady state, where the inside of boxes is fast enough and no rail carries more than its part for the slow box alone:
the greater of 1/r and (2 m - 3)/(m - 1), which is (m - 2)/(m (m - 1)) above the rings of healthy boxes. Rings on the
rails that the slow box has lost then carry more than those on others; where that keeps the inside of boxes busy for
longer, all rails carry the same.

Steps 2 (m - 2) + 2 (m - 1), two inside boxes and two where data change rails in an owner's box.

Chen et al., "Don't let a few network failures slow the entire AllReduce", arXiv 2606.01680: stages and bytes as in its
abstract and in summaries; shards of boxes over rails, and the order of steps, are ours.

Each of ``segments`` pieces runs a step behind the one before, so that all stages work at once: times of the steady
state are those of large buffers in many pieces. Time of one piece on a crossbar, where every rank is a box: the longest
chain of messages, step after step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.hierarchies.levels import Level, Pattern, build_levels, cost_of_levels
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.slow_box import SLOW, DegradedBoxes, Rails, degraded_boxes
from coppice.schedule.loads import schedule_loads
from coppice.schedule.schedule import Op, Schedule, in_pieces

_SEGMENTS = AlgorithmParameter(
    default=1, summary="pieces around a slow box, each a step behind the one before"
)
_LOST = AlgorithmParameter(
    default=0, least=0, summary="percent of the slow box's rate that is lost; 0: by the rates of links"
)

_FINEST = 2**40
"""Parts of M of which shares are whole numbers at most: rates of links can be any fractions."""


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Chunks of equal treatment: for each its shard, the rail that it takes and the slow box's, its share of M."""

    first: int  # Number of the first chunk
    shard: NDArray[np.int64]
    home: NDArray[np.int64]  # Member that adds and keeps it in the boxes that are not slow
    gate: NDArray[np.int64]  # Member that sends it out of the slow box and back in
    share: tuple[Fraction, ...]

    @property
    def chunk(self) -> NDArray[np.int64]:
        return self.first + np.arange(len(self.shard))

    @property
    def moved(self) -> NDArray[np.bool_]:
        """Whether home and gate are on different rails."""
        return np.not_equal(self.home, self.gate)


def _spread(home: Rails, gate: Rails) -> list[tuple[int, int, Fraction]]:
    """Members and shares of parts in proportion to both lists, most of them on one rail."""
    open_home = [rate / sum(home) for rate in home]
    open_gate = [rate / sum(gate) for rate in gate]
    rails = range(len(home))
    found = []
    for here, there in [*((rail, rail) for rail in rails), *((a, b) for a in rails for b in rails if a != b)]:
        part = min(open_home[here], open_gate[there])
        if part:
            found.append((here, there, part))
            open_home[here] -= part
            open_gate[there] -= part
    return found


def _pieces(first: int, shards: int, home: Rails, gate: Rails, share: Fraction) -> _Pieces:
    if not share:
        none = np.zeros(0, dtype=np.int64)
        return _Pieces(first, none, none, none, ())
    parts = _spread(home, gate)
    return _Pieces(
        first,
        np.repeat(np.arange(shards), len(parts)),
        np.tile([here for here, _, _ in parts], shards),
        np.tile([there for _, there, _ in parts], shards),
        tuple(part * share / shards for _, _, part in parts) * shards,
    )


class _ReroutedStages:
    """Rows of the stages, each in the steps after those of the one before."""

    def __init__(self, boxes: DegradedBoxes, parts: Sequence[_Pieces]) -> None:
        shares = [share for part in parts for share in part.share]
        self._group = boxes.group
        self._moves = Moves(boxes.case, whole(boxes.case, len(shares)))
        unit = min(lcm(*(share.denominator for share in shares)), _FINEST)
        scaled = np.array([max(1, int(share * unit)) for share in shares])
        self._share = scaled // gcd(*scaled.tolist())
        self._step = 0

    def scatter(self, boxes: Sequence[int], part: _Pieces, target: NDArray[np.int64]) -> None:
        """Inside ``boxes`` everyone sends the targets their chunks, in this step."""
        at = np.asarray(boxes)[:, None] * self._group
        for turn in range(1, self._group):
            sender = (target - turn) % self._group
            self._moves.add(self._step, at + sender, at + target, part.chunk, Op.REDUCE)

    def gather(
        self,
        boxes: Sequence[int],
        part: _Pieces,
        target: NDArray[np.int64],
        owner: NDArray[np.int64] | None = None,
    ) -> None:
        """The mirror; in the box ``owner`` of a chunk its gate has it already."""
        for box in boxes:
            for turn in range(1, self._group):
                receiver = (target + turn) % self._group
                lacks = np.ones(len(target), dtype=np.bool_)
                if owner is not None:
                    lacks = (owner != box) | (receiver != part.gate)
                at = box * self._group
                self._moves.add(self._step, at + target[lacks], at + receiver[lacks], part.chunk[lacks])

    def go_on(self) -> None:
        """To the next step, after scatters in several boxes."""
        self._step += 1

    def ring(self, boxes: Sequence[int], part: _Pieces, op: Op) -> None:
        """A reduce-scatter of shards, to the box of each, or an all-gather from there, around ``boxes``."""
        at = np.asarray(boxes) * self._group
        first = part.shard + (op is Op.REDUCE)
        for turn in range(len(boxes) - 1):
            here, there = (first + turn) % len(boxes), (first + turn + 1) % len(boxes)
            self._moves.add(self._step, at[here] + part.home, at[there] + part.home, part.chunk, op)
            self._step += 1

    def join(self, slow: int, part: _Pieces, owner: NDArray[np.int64]) -> None:
        """The slow box sends the owner of each chunk its sum, a shard a step, which goes on to the rail of the others.

        Where that is another rail, the sum replaces what the member there has given away before.
        """
        group, changes = self._group, part.moved
        for box in dict.fromkeys(owner.tolist()):
            for here, op in ((changes, Op.COPY), (~changes, Op.REDUCE)):
                sent = here & (owner == box)
                gate = part.gate[sent]
                self._moves.add(self._step, slow * group + gate, box * group + gate, part.chunk[sent], op)
            self._step += 1
        at = owner[changes] * group
        gate, home = part.gate[changes], part.home[changes]
        self._moves.add(self._step, at + gate, at + home, part.chunk[changes], Op.REDUCE)
        self._step += 1

    def back(self, slow: int, part: _Pieces, owner: NDArray[np.int64]) -> None:
        """The mirror: every owner sends the slow box what is complete."""
        group, changes = self._group, part.moved
        at = owner[changes] * group
        self._moves.add(self._step, at + part.home[changes], at + part.gate[changes], part.chunk[changes])
        self._step += 1
        for box in dict.fromkeys(owner.tolist()):
            sent = owner == box
            gate = part.gate[sent]
            self._moves.add(self._step, box * group + gate, slow * group + gate, part.chunk[sent])
            self._step += 1

    def schedule(self) -> Schedule:
        """The schedule, whose steps are those in which anything moves."""
        found = self._moves.schedule()
        step = np.unique(found.step, return_inverse=True)[1].astype(np.int32)
        return replace(found, step=step, chunk_share=self._share)


def _plain(boxes: DegradedBoxes) -> tuple[AlgorithmCase, tuple[Level, Level]]:
    return boxes.case, (Level(boxes.group, Pattern.AT_ONCE), Level(boxes.count, Pattern.RING))


def _homes(boxes: DegradedBoxes) -> Rails:
    """Parts of the rings on each rail with which, and with what goes to the slow box, all rails carry their part."""
    others = boxes.count - 1
    if others == 1:
        return boxes.left
    full, left = sum(boxes.full, Fraction(0)), sum(boxes.left, Fraction(0))
    return tuple(
        max(Fraction(0), (2 * others - 1) * all_of_it / full - rest / left)
        for all_of_it, rest in zip(boxes.full, boxes.left, strict=True)
    )


def _optcc(boxes: DegradedBoxes, slow: int) -> Schedule:
    choices = (
        dict.fromkeys((_homes(boxes), boxes.full)) if boxes.group > 1 and boxes.count > 2 else [_homes(boxes)]
    )
    return min((_with_owners(boxes, slow, homes) for homes in choices), key=_busy)


def _busy(schedule: Schedule) -> Fraction:
    try:
        return schedule_loads(schedule).inv_rate
    except UnreachableError:
        return Fraction(0)  # reported where it is routed


def _with_owners(boxes: DegradedBoxes, slow: int, homes: Rails) -> Schedule:
    others = [box for box in range(boxes.count) if box != slow]
    part = _pieces(0, len(others), homes, boxes.left, Fraction(1))
    owner = np.array(others)[part.shard]
    stages = _ReroutedStages(boxes, [part])
    stages.scatter(others, part, part.home)
    stages.scatter([slow], part, part.gate)
    stages.go_on()
    stages.ring(others, part, Op.REDUCE)
    stages.join(slow, part, owner)
    stages.back(slow, part, owner)
    stages.ring(others, part, Op.COPY)
    stages.gather(others, part, part.home, owner)
    stages.gather([slow], part, part.gate)
    return stages.schedule()


def _r2ccl(boxes: DegradedBoxes, slow: int) -> Schedule:
    given = Fraction(boxes.case.number("lost"), 100)
    lost = given or boxes.lost
    every = list(range(boxes.count))
    others = [box for box in every if box != slow]
    free = boxes.full if given else tuple(a - b for a, b in zip(boxes.full, boxes.left, strict=True))
    main = _pieces(0, len(every), boxes.left, boxes.left, 1 - lost)
    rest = _pieces(len(main.share), len(others), free, boxes.left, lost)
    helper = np.full(len(rest.share), (slow + 1) % boxes.count)
    stages = _ReroutedStages(boxes, [main, rest])
    stages.scatter(every, main, main.home)
    stages.scatter(others, rest, rest.home)
    stages.scatter([slow], rest, rest.gate)
    stages.go_on()
    stages.ring(every, main, Op.REDUCE)
    stages.ring(every, main, Op.COPY)
    stages.join(slow, rest, helper)
    stages.ring(others, rest, Op.REDUCE)
    stages.ring(others, rest, Op.COPY)
    stages.back(slow, rest, helper)
    stages.gather(every, main, main.home)
    stages.gather(others, rest, rest.home, helper)
    stages.gather([slow], rest, rest.gate)
    return stages.schedule()


_Rerouting = Callable[[DegradedBoxes, int], Schedule]


def _entry(
    name: str,
    reroute: _Rerouting,
    parameters: dict[str, AlgorithmParameter],
    *,
    summary: str,
    source: str,
) -> Algorithm:
    def build(case: AlgorithmCase) -> Schedule:
        boxes = degraded_boxes(case, name)
        if boxes.slow is None:
            return build_levels(*_plain(boxes))
        return in_pieces(reroute(boxes, boxes.slow), case.number("segments"))

    def needs(case: AlgorithmCase) -> str | None:
        try:
            degraded_boxes(case, name)
        except InputError as error:
            return str(error)
        if case.parameters.get("lost", 0) in range(100):
            return None
        return f"{name} needs less than 100 percent to be lost, found {case.number('lost')}: choose fewer."

    def cost(case: AlgorithmCase) -> Cost:
        boxes = degraded_boxes(case, name)
        if boxes.slow is None:
            return cost_of_levels(*_plain(boxes))
        if case.number("segments") > 1:
            raise InputError(
                "expected one piece: stages that share ports have no closed form; set `segments=1`."
            )
        return _by_clocks(build(case))

    return Algorithm(
        name=name,
        collective=Collective.ALL_REDUCE,
        build=build,
        cost=cost,
        needs=needs,
        parameters=parameters,
        topological=True,
        summary=summary,
        source=source,
    )


def _by_clocks(schedule: Schedule) -> Cost:
    """Cost of steps in which nobody sends, or receives, more than one message."""
    clocks = Clocks(schedule.topology.num_ranks, unit=int(schedule.chunk_share.sum()))
    units = schedule.chunk_share[schedule.chunk]
    added = np.where(schedule.op == Op.REDUCE, units, 0)
    for step in range(int(schedule.step.max()) + 1):
        rows = np.flatnonzero(schedule.step == step)
        ends, number = np.unique(
            np.stack([schedule.src[rows], schedule.dst[rows]]), axis=1, return_inverse=True
        )
        sums = [np.zeros(ends.shape[1], dtype=np.int64) for _ in range(2)]
        for total, values in zip(sums, (units, added), strict=True):
            np.add.at(total, number.reshape(-1), values[rows])
        clocks.step(zip(*ends.tolist(), *(total.tolist() for total in sums), strict=True))
    return clocks.cost()


REROUTING = (
    _entry(
        "r2ccl",
        _r2ccl,
        {"slow": SLOW, "lost": _LOST, "segments": _SEGMENTS},
        summary="all boxes reduce what the slow one's links have left to carry, the others reduce the rest for it",
        source="R2CCL, arXiv 2512.25059",
    ),
    _entry(
        "optcc",
        _optcc,
        {"slow": SLOW, "segments": _SEGMENTS},
        summary="the slow box sends the owners among the others its part of each shard, and gets the result, once",
        source="OptCC, arXiv 2606.01680",
    ),
)
