"""All-reduces on a hypercube for middle sizes: halve in some dimensions, exchange everything in the others.

Theory. In D dimensions of latency a, doubling alone (every rank adds what its neighbours have, one dimension after the
other) takes D a, and sends all M bytes in each dimension; halving and then doubling takes 2 D a, and sends 2 M in all,
less 2 M / n. In between, h dimensions are halved first and doubled last, and what is left, M / 2^h, is exchanged in the
other D - h: (D + h) a, and M (2 (1 - 2^-h) + (D - h) 2^-h) bytes. The message is cut into D slices, which take the
dimensions in turn, so that each step uses all links of a rank; and slices into pieces, so that links are busy while
others are under way. A ring of four is a square, and a torus of fours a hypercube.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.topology.model import Topology


def cube_labels(topology: Topology) -> tuple[int, ...] | None:
    """A label of each rank such that links join those that differ in one bit; None on other networks.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> cube_labels(preset("ring", gpus=4))
        (0, 1, 3, 2)
        >>> cube_labels(preset("ring", gpus=6)) is None
        True
    """
    ranks = topology.num_ranks
    dimensions = ranks.bit_length() - 1
    if ranks != 2**dimensions or topology.num_nodes != ranks or topology.num_links != ranks * dimensions:
        return None
    rank = topology.rank
    near: list[set[int]] = [set() for _ in range(ranks)]
    for src, dst in zip(rank[topology.src].tolist(), rank[topology.dst].tolist(), strict=True):
        near[src].add(dst)
    label = {0: 0}
    front = sorted(near[0])
    label |= {one: 1 << place for place, one in enumerate(front)}
    while front:
        found: dict[int, int] = {}
        for one in front:
            for other in near[one]:
                if other not in label:
                    found[other] = found.get(other, 0) | label[one]
        label |= found
        front = sorted(found)
    if len({*label.values()}) != ranks or max(label.values()) != ranks - 1:
        return None
    if any((label[one] ^ label[other]).bit_count() != 1 for one in range(ranks) for other in near[one]):
        return None
    return tuple(label[one] for one in range(ranks))


def exchanged_in_cube(problem: Problem, *, halvings: int) -> Schedule | None:
    """An all-reduce that halves in so many dimensions, and exchanges in the others; None on other networks.

    Args:
        halvings: 0 for the fewest steps, up to the number of dimensions for the fewest bytes.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> cube = Problem(preset("hypercube", dimension=3), "all_reduce")
        >>> made = [exchanged_in_cube(cube, halvings=halvings) for halvings in (0, 1, 3)]
        >>> [(each.num_chunks, int(each.step.max()) + 1, each.num_transfers) for each in made]
        [(3, 3, 72), (6, 4, 96), (24, 6, 336)]
    """
    labels = cube_labels(problem.topology)
    if labels is None or problem.collective is not Collective.ALL_REDUCE:
        return None
    dimensions = problem.topology.num_ranks.bit_length() - 1
    if not 0 <= halvings <= dimensions or not dimensions:
        return None
    rank = np.argsort(np.array(labels))
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective)
    moves = Moves(case, whole(case, dimensions << halvings))
    rows = sorted(
        (step, int(rank[label]), int(rank[label ^ bit]), (number << halvings) + block)
        for number in range(dimensions)
        for label in range(len(labels))
        for step, bit, block in _sent(label, [(number + i) % dimensions for i in range(dimensions)], halvings)
    )
    for op in (Op.REDUCE, Op.COPY):
        taken = [row for row in rows if (row[0] < dimensions) is (op is Op.REDUCE)]
        if taken:
            step, src, dst, chunk = (list(column) for column in zip(*taken, strict=True))
            moves.add(step, src, dst, chunk, op)
    return routed(moves.schedule())


def _sent(label: int, order: list[int], halvings: int) -> Iterator[tuple[int, int, int]]:
    """Step, bit of the receiver and block of what a rank sends of a slice, whose dimensions come in an order.

    A block belongs to the ranks whose labels have its bits in the dimensions that are halved.
    """
    own = sum((label >> dimension & 1) << place for place, dimension in enumerate(order[:halvings]))
    for step, dimension in enumerate(order):
        if step >= halvings:
            yield step, 1 << dimension, own
            continue
        low, there = (1 << step) - 1, 1 << step
        for block in range(1 << halvings):
            if (block ^ own) & low == 0:  # it is one of those that are left to this rank
                if (block ^ own) & there:
                    yield step, 1 << dimension, block
                else:
                    yield len(order) + halvings - 1 - step, 1 << dimension, block
