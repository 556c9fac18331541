"""Broadcasts and reductions along trees that are grown side by side, in as many pieces as are likely to be fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.sizes.matched import in_full_lines
from coppice.comparison.sizes.pipelined import likeliest, pipelined_us
from coppice.planners.alternatives import Alternative
from coppice.planners.choice import PlannerOutput
from coppice.planners.forest.root_trees import root_trees
from coppice.schedule.lower import lower
from coppice.schedule.schedule import in_pieces
from coppice.schedule.shape import shape
from coppice.simulation.channels import transport_profiles
from coppice.simulation.models import Model
from coppice.text import plural


def side_by_side(
    problem: Problem, model: Model, sizes: Sequence[int], *, most_messages: int
) -> Iterator[Alternative]:
    """Trees of one root on links between ranks, the likeliest numbers of trees and pieces at each size.

    Args:
        most_messages: Messages of one schedule at most.

    Examples:
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("torus", dims=(4, 4)), "broadcast", root=0)
        >>> found = side_by_side(problem, model_of(None), [2**20], most_messages=2**15)
        >>> next(found).name
        '4 trees side by side in 365 pieces'
    """
    rooted = problem.collective in (Collective.BROADCAST, Collective.REDUCE)
    every = root_trees(problem) if rooted else None
    if every is None:
        return
    forests = {every.num_trees: every}
    for trees in {max(1, every.num_trees - 1), 1}:
        fewer = root_trees(problem, fewer=every.num_trees - trees)
        if fewer is not None:
            forests[trees] = fewer
    heights = {trees: shape(forest).max_height for trees, forest in forests.items()}
    inv_rate = float(bound_of(problem).inv_rate)
    profiles = transport_profiles(model, problem.topology)
    wanted: dict[tuple[int, int], int] = {}
    for size in sizes:
        likely = {}
        for trees, forest in forests.items():
            most = max(1, min(size // trees, most_messages // forest.num_edges))
            powers = {most, *(1 << power for power in range(most.bit_length()))}
            between = {3 * each // 2 for each in powers if each > 1}
            full = {
                in_full_lines(each, size // trees, pieces) for each in profiles for pieces in powers | between
            }
            for pieces in sorted(each for each in powers | full if each <= most):
                likely[trees, pieces] = pipelined_us(
                    problem,
                    model,
                    size,
                    levels=heights[trees],
                    inv_rate=inv_rate * every.num_trees / trees,
                    pieces=pieces,
                    messages=trees * pieces,
                )
        rows = every.num_edges // every.num_trees
        wanted |= dict.fromkeys(likeliest(likely, rows, messages=2 * most_messages), size)
    for (trees, pieces), size in wanted.items():
        body = in_pieces(lower(forests[trees]), pieces)
        name = f"{plural(trees, 'tree')} side by side in {plural(pieces, 'piece')}"
        made_for = size if len(sizes) == 1 else None
        made = PlannerOutput(body=body, parameters={"side_by_side": trees, "pieces": pieces})
        yield Alternative(name=name, made=made, size_bytes=made_for)
