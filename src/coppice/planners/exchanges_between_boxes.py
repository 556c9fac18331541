"""All-reduces in which boxes exchange sums over their rails, in one stage or several.

Each rail adds and returns one part: members send the parts of a box to its members on rails, which exchange what they
have with those of other boxes at once and add it, and hand out the result. One message between boxes and two within
them is the least that all ranks can hear of each other in, where boxes are far apart.

Of k boxes each sends k - 1 sums so. In stages they send fewer: with k = k1 k2 .. boxes are numbered in mixed radix, and
in stage i those exchange that differ in digit i alone, k1 - 1 + k2 - 1 + .. sums of each in all (the recursive exchange
of Thakur, Rabenseifner and Gropp, IJHPCA 2005, between boxes). Every stage is one more message between boxes in a row,
which pieces that follow each other hide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.over_boxes import rails, routed_or_none
from coppice.schedule.schedule import Op, Schedule

MOST_STAGES = 3
"""Messages between boxes in a row."""


def exchanged_between_boxes(problem: Problem, stages: Sequence[int]) -> Schedule | None:
    """An all-reduce in which boxes exchange sums; None where there are no rails.

    Args:
        stages: Boxes that exchange in each stage, 2 or more: their product is the number of boxes.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("dgx-a100", boxes=4), "all_reduce")
        >>> found = [exchanged_between_boxes(problem, stages) for stages in ((4,), (2, 2))]
        >>> [(each.num_transfers, int(each.step.max()) + 1) for each in found]
        [(544, 3), (512, 4)]
    """
    joined = rails(problem.topology)
    if joined is None or problem.collective is not Collective.ALL_REDUCE:
        return None
    boxes, members = joined
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective)
    moves = Moves(case, whole(case, len(members)))
    numbers = np.arange(len(boxes)).reshape(stages)
    for part, member in enumerate(members):
        for box in boxes:
            others = [rank for rank in box if rank != box[member]]
            moves.add(0, others, box[member], part, Op.REDUCE)
            moves.add(len(stages) + 1, box[member], others, part)
        for stage in range(len(stages)):
            for group in np.moveaxis(numbers, stage, -1).reshape(-1, stages[stage]).tolist():
                ends = [boxes[number][member] for number in group]
                for end in ends:
                    moves.add(stage + 1, end, [other for other in ends if other != end], part, Op.REDUCE)
    return routed_or_none(moves.schedule())


def ways_in_stages(boxes: int) -> list[tuple[int, ...]]:
    """Ways to exchange between so many boxes, the fewest stages first.

    Examples:
        >>> ways_in_stages(8), ways_in_stages(7)
        ([(8,), (2, 4), (4, 2), (2, 2, 2)], [(7,)])
    """
    return [each for stages in range(1, MOST_STAGES + 1) for each in _factors(boxes, stages)]


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as a product of so many numbers of 2 or more, in any order."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in range(2, number // 2 + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factors(number // first, count - 1))
