"""Exchanges among the positions of a line, and the same on grids: every line of every axis runs its own.

A :class:`Line` is a pattern for n positions, step by step. On a grid of n1 x n2 x .. positions each step of a part of
the data serves one axis: all lines along it run the next step of the pattern of that axis, for the data that the other
axes have left. Axes take turns, so that near partners come first on all of them. Several parts of the data do so at the
same time, each beginning with another axis, and half of them mirrored, so that all links of a node carry data in every
step ("multiport" in the literature).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LineStep:
    """Concurrent transfers of a step, as columns, in the order in which they are posted."""

    src: Positions
    dst: Positions
    slot: Positions  # What is sent: a block, or 0 for the whole buffer
    op: Op = Op.REDUCE


@dataclass(frozen=True, eq=False, repr=False)
class Line(Brief):
    """An exchange pattern among ``size`` positions."""

    size: int
    steps: tuple[LineStep, ...]
    # What counts before each step and after the last: `held[s][position, slot]`
    held: tuple[NDArray[np.bool_], ...]

    @property
    def slots(self) -> int:
        """Slots: ``size`` for blocks, 1 for whole buffers."""
        return int(self.held[0].shape[1])

    @property
    def mirrored(self) -> Line:
        """The same with position and block p renamed -p modulo ``size``."""
        image = -np.arange(self.size) % self.size
        slot = image if self.slots > 1 else np.zeros(1, dtype=np.int64)
        return Line(
            self.size,
            tuple(
                LineStep(image[step.src], image[step.dst], slot[step.slot], step.op) for step in self.steps
            ),
            tuple(held[image][:, slot] for held in self.held),
        )


def scattered(size: int, hops: Sequence[Sequence[Positions]]) -> Line:
    """Reduce-scatter by given hops: a partial sum moves on as late as it can, and never twice from one position.

    Which blocks a position still serves in a step follows from where it can send in the later ones: its own, and what
    the receivers of its later messages serve then. What it serves now and not afterwards is sent.

    Args:
        hops: Receivers of every position for every step, one or more. Of several that serve a block afterwards, the
            one nearest to its owner around the line is taken, the first of equals.

    Raises:
        InputError: If some block cannot get from some position to its owner.

    Examples:
        >>> line = scattered(3, [[np.array([1, 2, 0]), np.array([2, 0, 1])]])
        >>> [(step.src.tolist(), step.dst.tolist(), step.slot.tolist()) for step in line.steps]
        [([0, 1, 2, 0, 1, 2], [1, 2, 0, 2, 0, 1], [1, 2, 0, 2, 0, 1])]
    """
    held = [np.eye(size, dtype=np.bool_)]
    steps: list[LineStep] = []
    for receivers in reversed(hops):
        later = held[0]
        position, block = np.nonzero(~later & np.any([later[receiver] for receiver in receivers], axis=0))
        ends = np.array([receiver[position] for receiver in receivers])
        apart = np.where(later[ends, block], _around(ends, block, size), size)
        nearest = np.argmin(apart, axis=0)
        rows = [
            (position[nearest == way], ends[way][nearest == way], block[nearest == way])
            for way in range(len(receivers))
        ]
        now = later.copy()
        now[position, block] = True
        src, dst, slot = (np.concatenate(column) for column in zip(*rows, strict=True))
        steps.insert(0, LineStep(src, dst, slot))
        held.insert(0, now)
    if not held[0].all():
        stuck, owner = (int(each[0]) for each in np.nonzero(~held[0]))
        raise InputError(
            f"expected hops by which all {size} positions reach each other, found none from {stuck} to {owner}: "
            "take more steps."
        )
    return Line(size, tuple(steps), tuple(held))


def _around(one: Positions, other: Positions, size: int) -> Positions:
    """Distance on a closed line."""
    apart = (one - other) % size
    found: Positions = np.minimum(apart, size - apart)
    return found


def summed(size: int, start: Positions, hops: Sequence[Sequence[Positions]]) -> Line:
    """All-reduce of whole buffers by given hops among the last members of runs of positions.

    Args:
        start: Run v holds the positions ``start[v] .. start[v + 1] - 1``. Where runs have more than one, they send to
            their last one before, and get the result from it in the end.
        hops: Receiving runs of every run for every step, one or more.

    Examples:
        >>> line = summed(3, np.array([0, 2, 3]), [[np.array([1, 0])]])
        >>> [(step.src.tolist(), step.dst.tolist(), step.op.name) for step in line.steps]
        [([0], [1], 'REDUCE'), ([1, 2], [2, 1], 'REDUCE'), ([1], [0], 'COPY')]
    """
    leader = start[1:] - 1
    position = np.arange(size)
    leads = np.repeat(leader, np.diff(start))
    folded = position[position != leads]
    everyone = np.ones((size, 1), dtype=np.bool_)
    alone = (position == leads)[:, None]

    def step(src: Positions, dst: Positions, op: Op = Op.REDUCE) -> LineStep:
        return LineStep(src, dst, np.zeros_like(src), op)

    steps = [step(np.tile(leader, len(receivers)), leader[np.concatenate(receivers)]) for receivers in hops]
    if len(folded):
        steps = [step(folded, leads[folded]), *steps, step(leads[folded], folded, Op.COPY)]
    return Line(size, tuple(steps), (everyone, *(alone,) * (len(steps) - 1), everyone))


@dataclass(frozen=True)
class GridPart:
    """A part of the data: where it begins, and whether it runs mirrored."""

    first_axis: int
    mirrored: bool


def parts_of(axes: int, ports: int) -> list[GridPart]:
    """Parts for a number of ports: first one for each axis, then the mirrored ones.

    Examples:
        >>> [(part.first_axis, part.mirrored) for part in parts_of(2, 3)]
        [(0, False), (1, False), (0, True)]
    """
    return [GridPart(port % axes, port >= axes) for port in range(ports)]


def turns(lengths: Sequence[int], first_axis: int) -> list[int]:
    """The axis of every step: axes take turns from ``first_axis`` on, each for its number of steps.

    Examples:
        >>> turns((3, 1), 1)
        [1, 0, 0, 0]
    """
    order = [(first_axis + number) % len(lengths) for number in range(len(lengths))]
    return [axis for step in range(max(lengths, default=0)) for axis in order if step < lengths[axis]]


@dataclass(frozen=True, eq=False, repr=False)
class GridPlan(Brief):
    """Positions as a grid, the last axis fastest, with a pattern for every axis."""

    lines: tuple[Line, ...]
    parts: tuple[GridPart, ...]

    @property
    def num_steps(self) -> int:
        """Steps of a part, and of all."""
        return sum(len(line.steps) for line in self.lines)

    def rows(self, part: GridPart) -> Iterator[tuple[Positions, Positions, Positions, Op]]:
        """For every step of a part its senders, receivers, slots and op."""
        lines = [line.mirrored for line in self.lines] if part.mirrored else list(self.lines)
        stride, slot_stride = (
            [prod(sizes[axis + 1 :]) for axis in range(len(lines))]
            for sizes in ([line.size for line in lines], [line.slots for line in lines])
        )
        done = [0] * len(lines)
        for axis in turns([len(line.steps) for line in lines], part.first_axis):
            step = lines[axis].steps[done[axis]]
            src, dst, slot = step.src * stride[axis], step.dst * stride[axis], step.slot * slot_stride[axis]
            for other, line in enumerate(lines):
                if other != axis:
                    position, kept = np.nonzero(line.held[done[other]])
                    src, dst = (_sums(ends, position * stride[other]) for ends in (src, dst))
                    slot = _sums(slot, kept * slot_stride[other])
            done[axis] += 1
            yield src, dst, slot, step.op

    def schedule(self, case: AlgorithmCase) -> Schedule:
        """The collective of ``case``: the pattern, its reverse, or both; whole buffers are all-reduced at once."""
        count, last = len(self.parts), self.num_steps - 1
        in_blocks = any(line.slots > 1 for line in self.lines) or case.size == 1
        moves = Moves(case, blocks(case, count) if in_blocks else whole(case, count))
        reduces = case.collective.reduces
        gathers = in_blocks and case.collective is not Collective.REDUCE_SCATTER
        for number, part in enumerate(self.parts):
            for step, (src, dst, slot, op) in enumerate(self.rows(part)):
                chunk = slot * count + number
                if reduces:
                    moves.add(step, src, dst, chunk, op)
                if gathers:  # the same messages backwards
                    moves.add(last - step + (last + 1) * reduces, dst, src, chunk)
        return moves.schedule()


def _sums(one: Positions, other: Positions) -> Positions:
    found: Positions = (one[:, None] + other).reshape(-1)
    return found


@lru_cache(maxsize=16)
def torus_dims(topology: Topology) -> tuple[int, ...] | None:
    """Axis sizes of the torus that a network of ranks is in rank order, the last axis fastest, or None.

    Axes of one node are left out. Rates may differ.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> torus_dims(preset("torus", dims=(2, 4, 3))), torus_dims(preset("ring", gpus=5)), torus_dims(preset("mesh"))
        ((2, 4, 3), (5,), None)
    """
    ranks = topology.num_ranks
    if ranks != topology.num_nodes:
        return None
    links = np.unique(topology.rank[topology.src].astype(np.int64) * ranks + topology.rank[topology.dst])
    beside = set((links[links // ranks == 0] % ranks).tolist())
    return next((dims for dims in _candidates(ranks, 1, beside) if _is_torus(dims, links)), None)


def _candidates(ranks: int, stride: int, beside: set[int]) -> list[tuple[int, ...]]:
    """Sizes of the remaining axes, from the neighbours of rank 0: an axis has its first and its last node there."""
    if stride == ranks:
        return [()]
    if stride not in beside:
        return []
    sizes = sorted(
        {2} | {far // stride + 1 for far in beside if far % stride == 0 and far > stride}, reverse=True
    )
    return [
        (*outer, size)
        for size in sizes
        if ranks % (stride * size) == 0
        for outer in _candidates(ranks, stride * size, beside)
    ]


def _is_torus(dims: tuple[int, ...], links: NDArray[np.int64]) -> bool:
    ranks = prod(dims)
    nodes = np.arange(ranks).reshape(dims)
    wanted = [
        (nodes * ranks + np.roll(nodes, shift, axis)).reshape(-1)
        for axis in range(len(dims))
        for shift in (1, -1)
    ]
    found = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, dtype=np.int64)
    return np.array_equal(found, links)


VARIANT = AlgorithmParameter(
    default="bandwidth",
    choices=("bandwidth", "latency"),
    summary="a reduce-scatter and an all-gather, or whole buffers in half the steps",
)
DIMS = AlgorithmParameter(
    default="",
    summary="ranks along each axis of a grid, the last axis fastest, as 4x4; empty: of the torus, else one axis",
)
PORTS = AlgorithmParameter(
    default=0,
    least=0,
    summary="parts of the data that begin on other axes or mirrored; 0: two for each axis of a torus, else 1",
)


def dims_of(case: AlgorithmCase) -> tuple[int, ...]:
    """Axis sizes: as given, those of the torus whose ranks are at their own positions, or all ranks in one row."""
    given = str(case.parameters["dims"])
    if given:
        return tuple(int(part) if part.isdecimal() and len(part) < 10 else 0 for part in given.split("x"))
    found = torus_dims(case.topology) if case.order is None else None
    return found or (case.size,)


def ports_of(case: AlgorithmCase) -> int:
    """Parts of the data."""
    on_torus = case.order is None and torus_dims(case.topology) is not None
    return case.number("ports") or (2 * len(dims_of(case)) if on_torus and case.size > 1 else 1)


def grid_plan(
    case: AlgorithmCase, in_blocks: Callable[[int], Line], at_once: Callable[[int], Line]
) -> GridPlan:
    """Plan of a case of :func:`grid_algorithms`.

    Args:
        in_blocks: The reduce-scatter among a number of positions.
        at_once: The all-reduce of whole buffers among them.
    """
    pattern = at_once if case.parameters.get("variant") == "latency" else in_blocks
    dims = dims_of(case)
    return GridPlan(tuple(pattern(size) for size in dims), tuple(parts_of(len(dims), ports_of(case))))


def _needs_a_grid(algorithm: str, case: AlgorithmCase) -> str | None:
    """Precondition of an algorithm on grids."""
    dims = dims_of(case)
    if prod(dims) != case.size:
        return (
            f"{algorithm} needs dims that multiply to {case.size} ranks, found {case.parameters['dims']!r}: write them "
            "as in `dims=4x4`."
        )
    if ports_of(case) > 2 * len(dims):
        return (
            f"{algorithm} needs at most two ports for each axis, {2 * len(dims)}, found {ports_of(case)}: "
            "choose fewer `ports`."
        )
    return None


def grid_algorithms(
    name: str,
    *,
    plan: Callable[[AlgorithmCase], GridPlan],
    cost: Callable[[AlgorithmCase], Cost],
    summary: str,
    source: str,
) -> tuple[Algorithm, ...]:
    """All collectives that a pattern on grids performs.

    Args:
        plan: Plan of a case, by :func:`grid_plan`.
        cost: Cost on a crossbar with one port.
    """

    def on_one_port(case: AlgorithmCase) -> Cost:
        if ports_of(case) > 1:
            raise InputError(
                "expected one port: several parts of the data take turns on a crossbar; set `ports=1`."
            )
        return cost(case)

    axes = {"dims": DIMS, "ports": PORTS}
    return tuple(
        Algorithm(
            name=name,
            collective=collective,
            build=lambda case: plan(case).schedule(case),
            summary=summary,
            source=source,
            cost=on_one_port,
            needs=lambda case: _needs_a_grid(name, case),
            parameters=axes if collective is not Collective.ALL_REDUCE else {"variant": VARIANT} | axes,
            topological=True,
            orders_matter=True,
        )
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
