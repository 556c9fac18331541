"""Multi-level algorithms, a step per level: 2D torus, BlueConnect, PLink, EFLOPS, and k-grouped rings.

Positions are numbers with one digit per level, the first level's digit the least: ``p = d0 + p0 (d1 + p1 (d2 + ...))``.
A level's groups are the positions that differ in its digit only; all of them work at the same time. The reduce-scatter
goes through the levels from the first: after level i, a position holds the partial sums of the blocks whose digits
0 .. i equal its own, so that level i + 1 moves fewer bytes. The all-gather is its mirror.

Level i with p_i members and ``1 / (p_0 .. p_i)`` of M for every member takes p_i - 1 steps of one such part each, as a
ring or by direct exchange, or lg p_i steps by halving; either way a rank sends ``(p_i - 1) / (p_0 .. p_i) M``.

**2d-torus and BlueConnect.** Rings along one dimension after the other. The torus has a grid of X columns and Y rows,
rows being runs of X positions. Reduce-scatter along the rows, all-reduce of what is left along the columns, all-gather
along the rows: 2 (X - 1) + 2 (Y - 1) steps. BlueConnect does the same over any number of levels p_0, p_1, ..: 2 sum
(p_i - 1) steps. Half of that for reduce-scatter and all-gather.

Bytes per rank 2 (P - 1)/P M, as one ring would send; time on a crossbar: steps ``alpha``, plus these bytes ``beta``,
plus (P - 1)/P M ``gamma``. A prime P makes one ring of it.

Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv 1811.05233; Cho et al.,
"BlueConnect", SysML 2019.

**PLink.** Aggregation in two levels whose leaders rotate, so that every rank leads for an equal part. In a group of g
ranks, rank j is the leader for part j: the others send it theirs directly (g - 1 steps, in step s to the rank s + 1
places on). Leaders of the same part in all P/g groups do likewise among themselves: each adds up one of P/g pieces of
the part. The result goes back the same way. Only partners near each other exchange large messages, and no two messages
of a step have the same receiver.

Steps 2 (g - 1) + 2 (P/g - 1); bytes per rank 2 (P - 1)/P M; time on a crossbar: steps ``alpha``, plus these bytes
``beta``, plus (P - 1)/P M ``gamma``.

Luo et al., "PLink: discovering and exploiting datacenter network locality for efficient cloud-based distributed
training", MLSys 2020; the exchange between leaders is direct here, too.

**EFLOPS (ACCL).** Rings inside the boxes, halving and doubling between them. Reduce-scatter by a ring in each group of
g ranks, then ranks of equal number in all P/g groups reduce-scatter what is left by recursive halving; the all-gather
is the mirror. The original halves and doubles, which takes a power of two of groups; other numbers take the circulant
pattern (``exchanges/circulant.py``), whose steps are as many, rounded up.

``mapping`` numbers the groups: by ``wiring``, partners of all steps exchange over links of their own where there is
such a numbering (``parts/disjoint.py``); ``natural`` keeps the order of the groups.

Steps 2 (g - 1) + 2 ceil lg(P/g); bytes per rank 2 (P - 1)/P M; time on a crossbar: steps ``alpha``, plus these bytes
``beta``, plus (P - 1)/P M ``gamma``. Half of that for reduce-scatter and all-gather.

Dong et al., "EFLOPS: algorithm and system co-design for a high performance distributed training platform", HPCA 2020.

K-grouped all-reduce: rings of k ranks, a ring of their masters, rings of k ranks. (1) Every group of k consecutive
positions reduces to its first one, the master: a ring reduce-scatter, then the master gathers the k parts. (2) The P/k
masters all-reduce around a ring. (3) Every master hands the result to its group: it scatters k parts, and a ring
all-gather completes them.

Each half of (1) and of (3) takes k - 1 steps and (2) takes 2 (P/k - 1), together 4 (k - 1) + 2 (P/k - 1): 186 for
P = 1024 and k = 16, where one ring needs 2046. The price is bytes: a master sends (k - 1)/k M in the reduce-scatter,
as much in the scatter and in the all-gather, where it is sent nothing, and 2 (P/k - 1) k/P M in between.

Time on a crossbar: the steps above ``alpha``; ``4 (k - 1)/k + 2 (P/k - 1) k/P`` M ``beta``;
``(k - 1)/k + (P/k - 1) k/P`` M ``gamma``: the master takes part in every step.

Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv 1807.11205.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt, lcm, prod

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import GROUP, Algorithm, AlgorithmCase, AlgorithmParameter, divides
from coppice.planners.algorithms.exchanges.circulant import skips
from coppice.planners.algorithms.parts.boxes import equal_boxes, grouped, in_order
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.disjoint import disjoint_order
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.schedule.schedule import Op, Schedule

_COLLECTIVES = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


class Pattern(enum.Enum):
    """Exchange pattern within a group."""

    RING = enum.auto()
    DIRECT = enum.auto()
    HALVING = enum.auto()
    CIRCULANT = enum.auto()
    AT_ONCE = enum.auto()
    WHOLE = enum.auto()


@dataclass(frozen=True)
class Level:
    """One level: a digit of the positions."""

    size: int  # Members of a group; a power of two for halving
    # How they scatter and gather; at once: all partners in one step; whole: in an all-reduce they send each other all
    # that they have, and add it
    pattern: Pattern = Pattern.RING

    def rounds(self, digit: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Reduce-scatter steps: for each the receiver's digit, and the digits of the parts sent.

        Yields:
            Receivers (one per position), and parts (one row per position).
        """
        size = self.size
        if self.pattern is Pattern.HALVING:
            mask = size // 2
            while mask:
                # What the partner keeps: its bits from the mask up, whatever lies below.
                yield digit ^ mask, ((digit ^ mask) & -mask)[:, None] + np.arange(mask)
                mask //= 2
            return
        if self.pattern is Pattern.CIRCULANT:
            for distance, following in reversed(list(pairwise(skips(size)))):
                yield (digit + distance) % size, (digit[:, None] + np.arange(distance, following)) % size
            return
        for step in range(size - 1):
            if self.pattern is Pattern.RING:
                yield (digit + 1) % size, ((digit - 1 - step) % size)[:, None]
            else:
                partner = (digit + 1 + step) % size
                yield partner, partner[:, None]

    @property
    def whole(self) -> bool:
        """Whether nothing is scattered."""
        return self.pattern is Pattern.WHOLE

    @property
    def steps(self) -> int:
        """Number of steps of a reduce-scatter, or of an all-gather."""
        if self.pattern in (Pattern.WHOLE, Pattern.AT_ONCE):
            return int(self.size > 1)
        logarithmic = self.pattern in (Pattern.HALVING, Pattern.CIRCULANT)
        return (self.size - 1).bit_length() if logarithmic else self.size - 1

    @property
    def messages(self) -> int:
        """Messages that a rank sends one after the other in these steps."""
        return self.size - 1 if self.pattern in (Pattern.WHOLE, Pattern.AT_ONCE) else self.steps


def build_levels(case: AlgorithmCase, levels: Sequence[Level]) -> Schedule:
    """All-gather, reduce-scatter or all-reduce of ``case`` through ``levels``, whose sizes multiply to P."""
    total = prod(level.size for level in levels if not level.whole)
    moves = Moves(case, blocks(case) if total == case.size else whole(case, total))
    reduces = case.collective.reduces
    gathers = case.collective is not Collective.REDUCE_SCATTER
    twice = reduces and gathers
    last = sum(level.steps * (1 + (twice and not level.whole)) for level in levels) - 1
    step, stride, unit = 0, 1, 1
    position = case.positions
    held = np.zeros(
        (case.size, 1), dtype=np.int64
    )  # of the blocks of a position, the digits of the levels before
    for level in levels:
        digit = position // stride % level.size
        if level.whole:
            chunk = held + np.arange(total // unit) * unit
            for away in range(1, level.size):
                partner = position + ((digit + away) % level.size - digit) * stride
                moves.add(step, position[:, None], partner[:, None], chunk, Op.REDUCE)
            step, last = step + level.steps, last + level.steps
            stride *= level.size
            continue
        rest = np.arange(total // (unit * level.size)) * unit * level.size
        together = level.steps == 1
        for receiver, parts in level.rounds(digit):
            partner = position + (receiver - digit) * stride
            chunk = (held + parts * unit)[:, :, None] + rest
            width = chunk.shape[1] * chunk.shape[2]
            columns = (np.repeat(position, width), np.repeat(partner, width), chunk.reshape(-1))
            if reduces:
                moves.add(step, *columns, Op.REDUCE)
            if gathers:  # the same messages backwards
                moves.add(last - step, columns[1], columns[0], columns[2])
            step += not together
        step += together
        held = held + (digit * unit)[:, None]
        stride, unit = stride * level.size, unit * level.size
    return moves.schedule()


def cost_of_levels(case: AlgorithmCase, levels: Sequence[Level]) -> Cost:
    """Cost of the levels: all ranks do the same, so that one chain through all steps is the time."""
    steps, messages, share = 0, 0, Fraction(1)
    moved, reduced = Fraction(0), Fraction(0)
    for level in levels:
        phases = 2 if case.collective is Collective.ALL_REDUCE and not level.whole else 1
        part = (level.size - 1) * share if level.whole else Fraction(level.size - 1, level.size) * share
        steps, messages = steps + phases * level.steps, messages + phases * level.messages
        moved, reduced = moved + phases * part, reduced + part
        share = share if level.whole else share / level.size
    return Cost.of_one_chain(
        steps=steps, sent=moved, messages=messages, reduced=reduced * case.collective.reduces
    )


_Levels = Callable[[AlgorithmCase], tuple[AlgorithmCase, tuple[Level, ...]]]


def _torus(case: AlgorithmCase) -> tuple[AlgorithmCase, tuple[Level, ...]]:
    case, columns = grouped(case, case.number("columns"))
    return case, (Level(columns), Level(case.size // columns))


def _blue_connect(case: AlgorithmCase) -> tuple[AlgorithmCase, tuple[Level, ...]]:
    given = str(case.parameters["levels"])
    if given:
        return case, tuple(Level(size) for size in _sizes(given))
    case, columns = grouped(case, 0)
    return case, (Level(columns), Level(case.size // columns))


def _blue_connect_needs(case: AlgorithmCase) -> str | None:
    given = str(case.parameters["levels"])
    if given and prod(_sizes(given)) != case.size:
        return (
            f"blueconnect needs levels that multiply to {case.size} ranks, found {given!r}: "
            "write them as in `levels=8x4`, the nearest ranks first."
        )
    return None


def _sizes(text: str) -> list[int]:
    """Sizes of the levels in ``8x4``; a zero where one is no number."""
    return [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in text.split("x")]


def _entries(
    name: str,
    levels: _Levels,
    needs: Callable[[AlgorithmCase], str | None],
    parameters: dict[str, AlgorithmParameter],
    collectives: tuple[Collective, ...] = _COLLECTIVES,
    *,
    summary: str,
    source: str,
) -> tuple[Algorithm, ...]:
    def build(case: AlgorithmCase) -> Schedule:
        return build_levels(*levels(case))

    def cost(case: AlgorithmCase) -> Cost:
        return cost_of_levels(*levels(case))

    return tuple(
        Algorithm(
            name=name,
            collective=collective,
            build=build,
            cost=cost,
            needs=needs,
            parameters=parameters,
            topological=True,
            summary=summary,
            source=source,
        )
        for collective in collectives
    )


TORUS = (
    *_entries(
        "2d-torus",
        _torus,
        divides("2d-torus", "columns", "columns that divide"),
        {
            "columns": AlgorithmParameter(
                default=0,
                least=0,
                summary="ranks in a row of the grid; 0: of a box, else nearest to the root of P",
            )
        },
        summary="rings along the rows of a grid, then along its columns",
        source="Mikami et al., arXiv 1811.05233",
    ),
    *_entries(
        "blueconnect",
        _blue_connect,
        _blue_connect_needs,
        {
            "levels": AlgorithmParameter(
                default="", summary="ranks of each level, nearest first, as 8x4; empty: by box"
            )
        },
        summary="rings level by level, each on what the levels before left",
        source="Cho et al., BlueConnect, SysML 2019",
    ),
)


def _plink(case: AlgorithmCase) -> tuple[AlgorithmCase, tuple[Level, ...]]:
    case, group = grouped(case, case.number("group"))
    return case, (Level(group, Pattern.DIRECT), Level(case.size // group, Pattern.DIRECT))


PLINK = _entries(
    "plink",
    _plink,
    divides("plink", "group", "a group that divides"),
    {"group": GROUP},
    (Collective.ALL_REDUCE,),
    summary="two levels of direct aggregation; every rank leads for an equal part",
    source="Luo et al., PLink, MLSys 2020",
)


def _group(case: AlgorithmCase) -> int:
    """Ranks of a group: given, those of a box, or the divisor nearest to the root that leaves a power of two."""
    given = case.number("group")
    if given:
        return given
    found = equal_boxes(case.topology)
    if found is not None:
        return len(found[0])
    odd = case.size // (case.size & -case.size)
    sizes = [odd << k for k in range((case.size // odd).bit_length())]
    return min(sizes, key=lambda size: (abs(size - isqrt(case.size)), size))


def _accl(case: AlgorithmCase) -> tuple[AlgorithmCase, tuple[Level, ...]]:
    group = _group(case)
    boxed = not case.number("group") and equal_boxes(case.topology) is not None
    case, group = grouped(case, 0 if boxed else group)
    groups = case.size // group
    halving = groups & (groups - 1) == 0
    if halving and case.parameters["mapping"] == "wiring":
        ranks = case.order or tuple(range(case.size))
        members = tuple(ranks[first : first + group] for first in range(0, case.size, group))
        found = disjoint_order(case.topology, members)
        case = in_order(case, tuple(rank for number in found for rank in members[number]))
    return case, (Level(group), Level(groups, Pattern.HALVING if halving else Pattern.CIRCULANT))


ACCL = _entries(
    "accl",
    _accl,
    divides("accl", "group", "a group that divides"),
    {
        "group": AlgorithmParameter(
            default=0, least=0, summary="ranks of a group; 0: of a box, else near the root of P"
        ),
        "mapping": AlgorithmParameter(
            default="wiring",
            choices=("wiring", "natural"),
            summary="numbers of the groups: by the links, so that exchanges share none, or as the groups are",
        ),
    },
    summary="rings in groups, then halving and doubling between ranks of equal number, on links of their own",
    source="EFLOPS, HPCA 2020; ACCL, IEEE Micro 2021",
)


def _build(case: AlgorithmCase) -> Schedule:
    case, k = grouped(case, case.number("k"))
    groups = case.size // k
    parts = lcm(k, groups)
    moves = Moves(case, whole(case, parts))
    members = case.positions.reshape(groups, k)
    masters = members[:, :1].T
    step = _ring(moves, members, 0, Op.REDUCE)
    for member in range(1, k):
        _part(moves, step, members[:, member], members[:, 0], member, k)
        step += 1
    step = _ring(moves, masters, step, Op.REDUCE)
    step = _ring(moves, masters, step, Op.COPY)
    for member in range(1, k):
        _part(moves, step, members[:, 0], members[:, member], member, k)
        step += 1
    _ring(moves, members, step, Op.COPY, whole_at_first=True)
    return moves.schedule()


def _ring(moves: Moves, rings: np.ndarray, first_step: int, op: Op, *, whole_at_first: bool = False) -> int:
    """Reduce-scatter or all-gather around every row of ``rings``; the step after it.

    Either begins or ends with part j at member j. A first member that has everything already is sent nothing.
    """
    size = int(rings.shape[1])
    lag = 1 if op is Op.REDUCE else 0
    for step in range(size - 1):
        for member in range(size - whole_at_first):
            part = (member - lag - step) % size
            _part(moves, first_step + step, rings[:, member], rings[:, (member + 1) % size], part, size, op)
    return first_step + size - 1


def _part(
    moves: Moves, step: int, src: np.ndarray, dst: np.ndarray, part: int, parts: int, op: Op = Op.COPY
) -> None:
    """Part ``part`` of ``parts`` of the buffer, from each of ``src`` to its ``dst``."""
    width = moves.layout.parts // parts
    chunk = part * width + np.arange(width)
    moves.add(step, src[:, None], dst[:, None], chunk[None, :], op)


def _cost(case: AlgorithmCase) -> Cost:
    case, k = grouped(case, case.number("k"))
    groups = case.size // k
    steps = 4 * (k - 1) + 2 * (groups - 1)
    inner, outer = 1 - Fraction(1, k), 1 - Fraction(1, groups)
    # The master sends no gather; it scatters instead.
    return Cost.of_one_chain(
        steps=steps, sent=3 * inner + 2 * outer, moved=4 * inner + 2 * outer, reduced=inner + outer
    )


K_GROUPED = Algorithm(
    name="k-grouped",
    collective=Collective.ALL_REDUCE,
    build=_build,
    summary="ring reduce in groups of k, ring all-reduce of their masters, broadcast in the groups",
    source="Jia et al., arXiv 1807.11205",
    cost=_cost,
    needs=divides("k-grouped", "k", "a k that divides"),
    parameters={"k": GROUP},
    topological=True,
)
