"""Low trees from the symmetry that faults leave: exact, low, and of the group as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coppice
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.errors import CheckError
from coppice.planners.forest.orbit_trees import orbit_trees
from coppice.planners.replanning import REGROWN, replan_after_faults
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.loads import forest_loads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify_plan
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, set_link_rate
from coppice.topology.presets import preset
from coppice.topology.symmetry import check_symmetry, find_symmetry, remaining_symmetry

NIC, NVLINK = ("box0/gpu0", "rail0"), ("box0/gpu0", "box0/nvswitch")


def boxes(number: int) -> Topology:
    return preset("dgx-h100", boxes=number)


def faulty(whole: Topology) -> dict[str, Topology]:
    return {
        "NIC lost": remove_links(whole, [NIC]),
        "NIC slow": set_link_rate(whole, *NIC, "50%"),
        "NVLink slow": set_link_rate(whole, *NVLINK, "50%"),
        "GPU lost": remove_nodes(whole, ["box0/gpu0"]),
    }


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
def test_trees_are_at_the_optimum_and_low(collective: str) -> None:
    for name, now in faulty(boxes(4)).items():
        problem = Problem(now, coppice.Collective(collective))
        bound = bound_of(problem)
        found = orbit_trees(problem, bound.inv_rate, tallest=4)
        assert found is not None, name
        plan = Plan(problem=problem, inv_rate=bound.inv_rate, forest=found, bound=bound)
        assert verify_plan(plan).ok, name
        assert forest_loads(found).inv_rate == bound.inv_rate
        assert shape(found).max_height <= 4 * len(problem.phases)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_found_is_exact(data: st.DataObject) -> None:
    """On any small network with a slow link: either nothing is found, or trees that fill the links as asked."""
    name, options = data.draw(
        st.sampled_from(
            [("ring", {"gpus": 6}), ("torus", {"dims": (3, 3)}), ("star", {"gpus": 5}), ("dgx-1v", {})]
        )
    )
    whole = preset(name, **options)
    link = data.draw(st.integers(0, whole.num_links - 1))
    ends = whole.node_ids[whole.src[link]], whole.node_ids[whole.dst[link]]
    now = set_link_rate(whole, *ends, "50%", one_way=data.draw(st.booleans()))
    problem = Problem(now, coppice.Collective(data.draw(st.sampled_from(["all_gather", "all_reduce"]))))
    bound = bound_of(problem)
    best = bound.inv_rate if bound.attainable is None else bound.attainable
    found = orbit_trees(problem, best)
    if found is not None:
        plan = Plan(problem=problem, inv_rate=best, forest=found, bound=bound)
        assert verify_plan(plan).ok
        assert orbit_trees(problem, best * 9 / 10) is None  # nobody is faster than the optimum


def test_no_trees_are_higher_than_asked_for() -> None:
    now = set_link_rate(preset("ring", gpus=8), "gpu0", "gpu1", "50%")
    problem = Problem(now, coppice.Collective.ALL_GATHER)
    best = bound_of(problem).inv_rate
    assert orbit_trees(problem, best, tallest=3) is None
    found = orbit_trees(problem, best, tallest=7)
    assert found is None or shape(found).max_height <= 7


@pytest.mark.parametrize("fault", ["NIC lost", pytest.param("GPU lost", marks=pytest.mark.slow)])
def test_an_all_reduce_of_a_thousand_gpus_is_planned_at_the_optimum_with_low_trees(fault: str) -> None:
    whole = boxes(128)
    found = replan_after_faults(coppice.plan(whole, "all_reduce", ring=False), faulty(whole)[fault])
    assert found.report.ok
    assert found.loss == 0
    assert found.how == REGROWN
    assert found.is_low


def test_the_group_that_a_fault_leaves() -> None:
    now = faulty(boxes(4))["NIC slow"]
    assert find_symmetry(now).order == 1
    found = remaining_symmetry(now)
    assert sorted(found.orders) == [3, 7]
    check_symmetry(now, found, free=False)
    with pytest.raises(CheckError, match="each rank must be one image"):
        check_symmetry(now, found)
    wrong = replace(found, generators=np.roll(found.generators, 1, axis=1))
    with pytest.raises(CheckError):
        check_symmetry(now, wrong, free=False)


def test_a_proof_by_the_group_that_a_fault_leaves_is_kept_in_files() -> None:
    """A link slow both ways in a network of many links: the cuts of its bound stand for their images."""
    now = faulty(boxes(32))["NVLink slow"]
    plan = coppice.plan(now, "all_reduce", ring=False, trees=1).plan
    bound = bound_of(plan.problem)
    assert bound.proof is not None
    again = decode_plan(encode_plan(replace(plan, bound=bound)), name="a file")
    assert again.bound is not None
    assert again.bound.inv_rate == bound.inv_rate
    assert verify_plan(again).ok
