"""Plans for sizes where all of many ranks are alike: the rows of one rank take what those of all take.

A thousand ranks have millions of transfers, of which not many can be simulated. Orders and pieces of balanced trees
(:mod:`coppice.planners.alike`) are compared by the rows of one rank instead, a thousand times fewer, and all rows are
written out and simulated of the fastest alone. Small messages go level by level, all of a level that go the same way at
once, since ranks can handle only so many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.promising import MANY_RANKS
from coppice.comparison.sizes.ordered import Ordered, OrderSearch
from coppice.planners.alike import alike, balanced_trees, images, level_by_level
from coppice.planners.alternatives import Alternative, Timer
from coppice.planners.choice import PlannerOutput
from coppice.planners.flow import MAX_TRANSFERS
from coppice.planners.torus_exchange import torus_exchange
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model, Sharing
from coppice.text import plural

_MOST_ROWS = 2**21
"""Transfers of a schedule of all ranks, in pieces."""
_MOST_ORDERED = 2**16
"""Transfers that are simulated to find the order of one rank's trees."""
_MOST_LEVELLED = 2**18
"""Bytes of what is sent level by level: more of them fill links, which must not idle between levels."""
_TREES = ((1, 0), (2, 0), *((1, attempt) for attempt in range(1, 20)))
"""Numbers of trees of a rank, and attempts at them: two even out an odd number of edges."""
_LEAST_GAIN = 0.002
"""Share of the time that another attempt has to save."""
_ENOUGH = 1.005
"""What takes so many times what is good enough is not tried to be made faster."""


def for_alike_ranks(
    problem: Problem,
    model: Model,
    limits: Mapping[int, float],
    time_us: Timer,
    say: Callable[[str], object],
) -> list[Alternative]:
    """Balanced trees for each size where all of many ranks are alike; nothing otherwise.

    Args:
        limits: A time at each size that is good enough.
        time_us: What a body takes at a size.
        say: Called with a few words as each stage begins.

    Examples:
        >>> from coppice.simulation.models import model_of
        >>> from coppice.simulation.simulator import fastest
        >>> from coppice.topology.presets import preset
        >>> problem, model = Problem(preset("torus", dims=(4, 6, 6)), "all_gather"), model_of("nccl-2.30")
        >>> timer = lambda body, size: fastest(body, size, model=model).time_us
        >>> found = for_alike_ranks(problem, model, {2**20: 0.0}, timer, lambda _: None)
        >>> [each.name for each in found]
        ['1 balanced tree of each rank, ordered in 2 pieces']
    """
    if problem.topology.num_ranks <= MANY_RANKS or model.sharing is not Sharing.FIFO:
        return []
    if problem.collective is Collective.ALL_TO_ALL:
        return _too_large_for_flows(problem)
    made = [
        each
        for trees, attempt in _TREES
        if (each := balanced_trees(problem, trees=trees, attempt=attempt)) is not None
    ]
    if not made:
        return []
    say("looking for the order of balanced trees")
    found: list[Alternative] = []
    for size, limit_us in limits.items():
        best_us = inf
        if size <= _MOST_LEVELLED and (levels := level_by_level(_own_rows(made[0]))) is not None:
            body = _of_all(levels, made[0])
            parameters: dict[str, Parameter] = {"balanced_trees": 1, "levels": True}
            found.append(_alternative(body, "balanced trees, level by level", parameters, size))
            best_us = time_us(body, size)
        ordered = _ordered(made, problem, model, size, limit_us, best_us)
        if ordered is not None:
            found.append(ordered)
    return found


def _too_large_for_flows(problem: Problem) -> list[Alternative]:
    """The exchange on a torus whose blocks cannot be routed as a flow, as these are too many."""
    exchange = torus_exchange(problem)
    if exchange is None or exchange.num_transfers <= MAX_TRANSFERS:
        return []
    made = PlannerOutput(body=exchange, parameters={"torus_exchange": True})
    return [Alternative(name="dimension by dimension", made=made)]


def _ordered(
    made: Sequence[Forest],
    problem: Problem,
    model: Model,
    size_bytes: int,
    limit_us: float,
    below_us: float,
) -> Alternative | None:
    """The fastest order of the trees of a rank; None where none takes less than ``below_us``."""
    best: tuple[Forest, Ordered] | None = None
    ranks = problem.topology.num_ranks
    for forest in made:
        assert forest.symmetry is not None
        rows = _own_rows(forest)
        if best is not None and best[1].time_us <= _ENOUGH * limit_us:
            break
        if best is not None and rows.num_transfers * ranks > _MOST_ROWS:
            continue
        search = OrderSearch(
            rows,
            model,
            _MOST_ORDERED,
            most_pieces=max(1, _MOST_ROWS // (rows.num_transfers * ranks)),
            alike=alike(problem.topology, forest.symmetry),
        )
        found = search.fastest(
            -(-size_bytes // ranks),
            below_us=below_us if best is None else best[1].time_us * (1 - _LEAST_GAIN),
        )
        if found is not None and verify_schedule(_of_one_rank(found.schedule)).ok:
            best = forest, found
    if best is None:
        return None
    forest, ordered = best
    trees = forest.num_trees // len(np.unique(forest.tree_phase))
    parameters: dict[str, Parameter] = {
        "balanced_trees": trees,
        "ordered_for": size_bytes,
        "pieces": ordered.pieces,
    }
    if ordered.profile.name is not None:
        parameters["protocol"] = ordered.profile.name
    name = f"{plural(trees, 'balanced tree')} of each rank, ordered in {plural(ordered.pieces, 'piece')}"
    return _alternative(_of_all(ordered.schedule, forest), name, parameters, size_bytes)


def _own_rows(forest: Forest) -> Schedule:
    """The rows of the ranks that stand for all others."""
    return lower(replace(forest, symmetry=None))


def _of_one_rank(rows: Schedule) -> Schedule:
    """What the rows of one rank do by themselves: its data is broadcast, or reduced to it."""
    if rows.collective is Collective.ALL_REDUCE:
        return rows
    reduces = rows.collective is Collective.REDUCE_SCATTER
    return replace(
        rows,
        collective=Collective.REDUCE if reduces else Collective.BROADCAST,
        root=int(rows.chunk_slot[0]),
        slot_weight=np.ones(1, dtype=np.int64),
        chunk_slot=np.zeros_like(rows.chunk_slot),
    )


def _of_all(rows: Schedule, forest: Forest) -> Schedule:
    assert forest.symmetry is not None
    return images(rows, forest.symmetry)


def _alternative(body: Schedule, name: str, parameters: dict[str, Parameter], size_bytes: int) -> Alternative:
    return Alternative(name=name, made=PlannerOutput(body=body, parameters=parameters), size_bytes=size_bytes)
