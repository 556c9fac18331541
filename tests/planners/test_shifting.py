"""Plans of damaged networks whose links are all full verify, and lose no more than they may against the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice import Problem, bound, load, plan, verify
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.planners.forest import after_fault
from coppice.planners.forest.after_fault import LOSSY, WANTED, Mending, forest_after_fault
from coppice.planners.forest.damage import Damaged, damaged_by
from coppice.planners.forest.planner import alike_forest, plan_forest
from coppice.planners.forest.shift_program import TreeClasses
from coppice.planners.forest.shifting import Shifting
from coppice.schedule.forest import Forest, expanded
from coppice.schedule.plan import Plan
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, scale_nodes, set_link_rate
from coppice.topology.symmetry import looks

PHASED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)


def rack(boxes: int, gpus: int) -> Topology:
    """Boxes of many GPUs on four rails, with NICs as nodes: all links of all GPUs are full."""
    return load("gb200-nvl72", boxes=boxes, nics="node", gpus=gpus)


FAULTS: dict[str, Callable[[Topology], Topology]] = {
    "slow NIC": lambda whole: scale_nodes(whole, {"box1/nic5": "50%"}),
    "slow NIC one way": lambda whole: set_link_rate(whole, "box1/nic5", "rail1", "50%", one_way=True),
    "NIC less": lambda whole: remove_nodes(whole, ["box1/nic5"]),
    "GPU less": lambda whole: remove_nodes(whole, ["box1/gpu5"]),
    "slow NVLink": lambda whole: set_link_rate(whole, "box1/gpu5", "box1/nvswitch", "90%"),
}


MISSED = {("GPU less", Collective.ALL_GATHER), ("GPU less", Collective.REDUCE_SCATTER)}
"""Faults after which the trees of so few roots leave too few ways: these networks are packed tree by tree."""


def best_of(optimum: Bound) -> Fraction:
    """The least time per shard that trees can reach."""
    return optimum.inv_rate if optimum.attainable is None else optimum.attainable


def reached(problem: Problem, forest: Forest) -> Fraction:
    """Time per shard that the verifier counts for trees that have to be right."""
    claimed = Plan(problem=problem, inv_rate=Fraction(10**9), forest=forest)
    report = verify(replace(claimed, inv_rate=verify(claimed).inv_rate))
    report.require_ok()
    assert report.inv_rate is not None
    return report.inv_rate


def lossy_forest(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> tuple[Forest | None, Fraction]:
    """Trees as for a network that is too large to pack them one by one, and the best time."""
    monkeypatch.setattr(after_fault, "MOST_PACKED", 0)
    best = best_of(bound(problem))
    return forest_after_fault(problem, best, plan_forest, alike_forest, lossy=True), best


@pytest.mark.parametrize("collective", PHASED, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.spread(2)
def test_faults_of_full_racks_lose_less_than_they_may(
    fault: str, collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(FAULTS[fault](rack(4, 16)), collective)
    forest, best = lossy_forest(problem, monkeypatch)
    if (fault, collective) in MISSED:
        return
    assert forest is not None
    assert best <= reached(problem, forest) <= best * (1 + LOSSY)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_shifted_trees_verify_and_are_no_faster_than_the_bound(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from(
            [
                rack(2, 4),
                rack(3, 8),
                load("torus", dims="4x4"),
                load("dgx-a100", boxes=2),
                load("ring", gpus=6),
            ]
        )
    )
    problem = Problem(whole, data.draw(st.sampled_from(PHASED)))
    forest = expanded(plan_forest(problem))
    link = data.draw(st.integers(0, whole.num_links - 1))
    src, dst = (whole.node_ids[end[link]] for end in (whole.src, whole.dst))
    share = data.draw(st.sampled_from(("50%", "90%", "99%")))
    slow = set_link_rate(whole, src, dst, share, one_way=data.draw(st.booleans()))
    hurt = replace(problem, topology=slow)
    best = best_of(bound(hurt))
    damaged, _ = damaged_by(forest, slow, np.arange(slow.num_nodes, dtype=np.int32))
    free = hurt.collective is Collective.ALL_REDUCE
    most = data.draw(st.sampled_from((Fraction(1, 100), Fraction(1, 2), Fraction(4))))
    shifting = Shifting(damaged, slow.denominator / best, free_roots=free, wanted=WANTED, most=most)
    found = shifting.run()
    if found is not None:
        assert best <= reached(hurt, found) <= best * (1 + most) * (1 + Fraction(1, 10**6))
    elif most == 4:  # more than what any of these faults takes from trees that stay as they are
        pytest.fail("trees that may be five times as slow fit as they are")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_a_fault_broke_hangs_again(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([rack(2, 8), load("dgx-a100", boxes=3), load("torus", dims="3x4")]))
    problem = Problem(whole, data.draw(st.sampled_from(PHASED)))
    forest = expanded(plan_forest(problem))
    if data.draw(st.booleans()):
        link = data.draw(st.integers(0, whole.num_links - 1))
        hurt = remove_links(whole, [(whole.node_ids[whole.src[link]], whole.node_ids[whole.dst[link]])])
    else:
        hurt = remove_nodes(whole, [whole.node_ids[data.draw(st.sampled_from(whole.rank_nodes.tolist()))]])
    index = hurt.node_index
    where = np.array([index.get(name, hurt.num_nodes) for name in whole.node_ids], dtype=np.int32)
    damaged, _ = damaged_by(forest, hurt, where)
    mending = Mending(damaged, scale=1, limit=[0] * hurt.num_links)
    if mending.hang_below_others():
        reached(replace(problem, topology=hurt), mending.forest())


def test_shifts_of_one_tree_never_make_a_cycle() -> None:
    problem = Problem(rack(2, 8), Collective.ALL_GATHER)
    slow = FAULTS["slow NIC one way"](problem.topology)
    best = best_of(bound(replace(problem, topology=slow)))
    damaged = _damaged(problem, slow)
    shifting = Shifting(
        damaged, slow.denominator / best, free_roots=False, wanted=Fraction(1, 10**6), most=Fraction(1)
    )
    assert shifting.run() is not None
    assert shifting.shifts
    by_tree: dict[int, dict[int, set[int]]] = {}
    for shift in shifting.shifts:
        parents = by_tree.setdefault(shift.tree, {}).setdefault(shift.child, set())
        parents.add(shift.nodes[-1 if shifting.reduces[shift.tree] else 0])
    for number, some in by_tree.items():
        tree = shifting.rehanging.tree(number)
        left = {int(v): {int(tree.parent[v])} | some.get(int(v), set()) for v in tree.children}
        hung = {tree.root}
        while ready := [v for v, parents in left.items() if parents <= hung]:
            hung.update(ready)
            for v in ready:
                del left[v]
        assert not left


def _damaged(problem: Problem, hurt: Topology) -> Damaged:
    """The trees of a whole network on the damaged one."""
    where = np.arange(hurt.num_nodes, dtype=np.int32)
    return damaged_by(expanded(alike_forest(problem)), hurt, where)[0]


def test_trees_of_roots_that_look_alike_are_of_one_class() -> None:
    slow = FAULTS["slow NIC"](rack(3, 8))
    look = looks(slow)[slow.rank_nodes]
    # The GPU of the slow NIC, others on its rail in its box and elsewhere, and those on other rails likewise.
    assert sorted(np.bincount(look)[np.bincount(look) > 0].tolist()) == [1, 1, 4, 6, 12]
    classes = TreeClasses.of(_damaged(Problem(rack(3, 8), Collective.ALL_GATHER), slow).forest)
    assert classes.number.max() < 20


def test_weights_of_equal_roots_add_up_to_the_same() -> None:
    problem = Problem(FAULTS["slow NIC one way"](rack(4, 16)), Collective.ALL_GATHER)
    with pytest.MonkeyPatch.context() as patch:
        forest, _ = lossy_forest(problem, patch)
    assert forest is not None
    assert (
        len(set(np.bincount(forest.tree_root, weights=forest.tree_weight)[problem.topology.rank_nodes])) == 1
    )


LARGE = {
    "slow NIC": Collective.ALL_REDUCE,
    "slow NIC one way": Collective.ALL_GATHER,
    "GPU less": Collective.ALL_GATHER,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", LARGE)
def test_a_thousand_gpus_on_full_links_are_planned_after_a_fault(fault: str) -> None:
    found = plan(FAULTS[fault](rack(14, 72)), LARGE[fault], ring=False)
    assert found.report.ok
    assert 0 <= found.loss <= WANTED
    assert found.loss == 0 or "below the optimum" in repr(found)
    assert found.record()["optimal"] == (found.loss == 0)
