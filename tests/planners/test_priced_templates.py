"""Templates that a linear program puts together verify, reach the bound and are low."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice import Problem, bound, load, verify
from coppice.bounds.network import Network
from coppice.collectives import Collective
from coppice.planners.forest.packed import joined
from coppice.planners.forest.planner import plan_forest
from coppice.planners.forest.priced_templates import priced_templates
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.topology.model import Topology
from coppice.topology.symmetry import find_symmetry


def templates(topology: Topology, collective: Collective, slower: Fraction = Fraction(1)) -> Forest | None:
    """Templates at a rate that many times slower than the bound; they have to verify."""
    problem = Problem(topology=topology, collective=collective)
    best = bound(problem)
    inv_rate = best.inv_rate * slower
    packed = priced_templates(Network.of(problem), inv_rate, find_symmetry(topology))
    if packed is None:
        return None
    forest = joined(problem, [packed.reversed() if collective.reduces else packed])
    report = verify(Plan(problem=problem, inv_rate=inv_rate, forest=forest, bound=best))
    report.require_ok()
    assert report.inv_rate is not None
    assert report.inv_rate <= inv_rate
    return forest


LOW: dict[str, tuple[Callable[[], Topology], int]] = {
    "rails": (lambda: load("dgx-h100", boxes=8), 2),
    "boxes": (lambda: load("dgx-a100", boxes=4), 2),
    "rack": (lambda: load("gb200-nvl72", boxes=4, nics="node"), 2),
    "dragonfly": (lambda: load("dragonfly", groups=5, routers_per_group=4, gpus_per_router=2), 2),
    "uneven boxes": (lambda: load("mi250", boxes=16), 12),
    "torus": (lambda: load("torus", dims="8x8"), 14),
}


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("name", LOW)
def test_low_templates_reach_the_bound(name: str, collective: Collective) -> None:
    made, height = LOW[name]
    forest = templates(made(), collective)
    assert forest is not None
    assert shape(forest).max_height <= height


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_templates_fit_whatever_the_rate(data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    topology = load("torus", dims="x".join(map(str, dims)))
    slower = data.draw(st.fractions(1, 2, max_denominator=7))
    templates(
        topology, data.draw(st.sampled_from([Collective.ALL_GATHER, Collective.REDUCE_SCATTER])), slower
    )


def test_nothing_is_faster_than_the_bound() -> None:
    assert templates(load("dgx-a100", boxes=4), Collective.ALL_GATHER, Fraction(99, 100)) is None


def test_links_without_capacity_carry_nothing() -> None:
    problem = Problem(load("torus", dims="4x4"), Collective.ALL_GATHER)
    topology, symmetry = problem.topology, find_symmetry(problem.topology)
    unused = symmetry.link_orbit == 0  # one direction of one dimension
    rates = [Fraction(0) if no else topology.gb_per_s(e) for e, no in enumerate(unused.tolist())]
    packed = priced_templates(Network.of(problem).limited(rates), bound(problem).inv_rate * 2, symmetry)
    assert packed is not None
    paths = np.split(packed.path_nodes, packed.path_start[1:-1])
    hops = {hop for path in paths for hop in pairwise(path.tolist())}
    assert not hops & set(zip(topology.src[unused].tolist(), topology.dst[unused].tolist(), strict=True))


def test_a_large_dragonfly_is_planned_so() -> None:
    problem = Problem(
        load("dragonfly", groups=17, routers_per_group=8, gpus_per_router=2), Collective.ALL_REDUCE
    )
    best = bound(problem)
    forest = plan_forest(problem, optimum=best)
    report = verify(Plan(problem=problem, inv_rate=best.inv_rate, forest=forest, bound=best))
    report.require_ok()
    assert report.inv_rate == best.inv_rate
    assert shape(forest).max_height == 4  # packed tree by tree it is 8
