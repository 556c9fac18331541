"""Plans repaired after a fault verify, are no slower than with their trees unmoved, and claim what is proved."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coppice import InputError, Problem, RepairedResult, UnreachableError, bound, load, plan, repair
from coppice.planners.planning import PlannedResult
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, scale_nodes, set_link_rate
from reference.expected import expected_inv_rate
from support.random_clusters import clusters


@st.composite
def faults(draw: st.DrawFn, whole: Topology) -> Topology:
    """The network with a link slow or lost, in one direction or both, or with a node slow or gone."""
    kinds = ("slow node", "lost node", "slow link", "lost link")
    kind = draw(st.sampled_from(kinds if whole.num_links else kinds[:2]))
    if kind.endswith("link"):
        link = draw(st.integers(0, whole.num_links - 1))
        src, dst = (whole.node_ids[end[link]] for end in (whole.src, whole.dst))
        one_way = draw(st.booleans())
        if kind == "slow link":
            return set_link_rate(
                whole, src, dst, draw(st.sampled_from(("50%", "10%", "99%"))), one_way=one_way
            )
        return remove_links(whole, [(src, dst)], one_way=one_way)
    name = draw(st.sampled_from(whole.node_ids))
    return scale_nodes(whole, {name: "50%"}) if kind == "slow node" else remove_nodes(whole, [name])


def nic_of(topology: Topology, gpu: str) -> tuple[str, str]:
    """The ends of the link from a GPU out of its box."""
    node = topology.node_index[gpu]
    others = (b for a, b in topology.link_index if a == node and topology.host[b] != topology.host[a])
    return gpu, topology.node_ids[next(others)]


def repaired_or_unreachable(made: PlannedResult, now: Topology) -> RepairedResult | None:
    """The repair; where it says that a rank cannot be reached, the bound says so, too."""
    try:
        return repair(made, now)
    except UnreachableError:
        with pytest.raises(UnreachableError):
            bound(Problem(now, made.problem.collective, root=made.problem.root))
        return None


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_single_fault_is_repaired(data: st.DataObject) -> None:
    whole = data.draw(clusters())
    now = data.draw(faults(whole))
    assume(now.num_ranks >= 2)
    collective = data.draw(
        st.sampled_from(("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"))
    )
    made = plan(whole, collective, ring=False)
    if collective in ("broadcast", "reduce") and whole.node_ids[whole.rank_nodes[0]] not in now.node_index:
        with pytest.raises(InputError, match="the root of the"):
            repair(made, now)
        return
    if not {tree.root for tree in made.plan.trees} & set(now.node_index):
        with pytest.raises(InputError, match="all roots of the plan are gone"):
            repair(made, now)
        return
    result = repaired_or_unreachable(made, now)
    if result is None:
        return
    assert result.report.ok
    assert result.unmoved is None or result.inv_rate <= result.unmoved
    best = bound(result.problem)
    assert result.inv_rate >= best.inv_rate
    assert result.optimum is not None
    assert result.optimum.inv_rate == best.inv_rate
    assert (result.loss == 0) == (result.inv_rate == best.inv_rate)
    again = plan(now, collective, ring=False)
    assert again.inv_rate == best.attainable
    if collective != "all_reduce":
        assert best.inv_rate == expected_inv_rate(result.problem)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_slow_nic_of_a_box_is_left_to_the_others_exactly(collective: str) -> None:
    whole = load("dgx-h100", boxes=16)
    now = set_link_rate(whole, *nic_of(whole, "box1/gpu3"), "50%")
    result = repair(plan(whole, collective, ring=False), now)
    # 120 shards of the other boxes pass 7 links of 50 GB/s and one of 25.
    assert result.before * 400 == 120
    assert result.unmoved == 2 * result.before
    assert result.inv_rate * 375 == 120
    assert result.report.optimal
    assert result.kept


def test_what_no_tree_crosses_changes_no_tree() -> None:
    whole = load("dgx-h100", boxes=4, spines=2, oversubscription=2)
    now = remove_nodes(whole, [next(name for name in whole.node_ids if "spine" in name)])
    made = plan(whole, "all_reduce", ring=False)
    result = repair(made, now)
    assert (result.rerouted, result.rehung, result.unmoved) == (0, 0, made.inv_rate)
    assert result.inv_rate == made.inv_rate


def test_a_rank_that_left_takes_its_trees_along() -> None:
    whole = load("dgx-h100", boxes=2)
    now = remove_nodes(whole, ["box0/gpu5"])
    result = repair(plan(whole, "all_reduce", ring=False), now)
    assert result.dropped
    assert result.unmoved is None or result.inv_rate <= result.unmoved
    assert {tree.root for tree in result.plan.trees} == {now.node_ids[v] for v in now.rank_nodes}
    assert "box0/gpu5" not in {name for tree in result.plan.trees for name in tree.parents}


def test_weights_are_those_of_the_ranks_that_are_left() -> None:
    whole = load("dgx-a100")
    made = plan(whole, "all_gather", weights=[1, 2, 3, 4, 5, 6, 7, 8], ring=False)
    result = repair(made, remove_nodes(whole, ["gpu2"]))
    assert result.problem.weights == (1, 2, 4, 5, 6, 7, 8)


def test_what_cannot_be_repaired_is_refused_in_a_sentence() -> None:
    whole = load("dgx-a100")
    with pytest.raises(InputError, match="expected a plan of trees to repair"):
        repair(plan(whole, "all_to_all"), whole)
    with pytest.raises(InputError, match="a repair adds no ranks"):
        repair(plan(remove_nodes(whole, ["gpu2"]), "all_gather", ring=False), whole)
    helped = plan(load("dgx-h100"), "all_reduce", in_network=True, ring=False)
    assert helped.plan.forest is not None
    assert helped.plan.forest.branches_at_switches
    with pytest.raises(InputError, match="found switches that copy or add"):
        repair(helped, load("dgx-h100"))
    with pytest.raises(InputError, match="at least two ranks"):
        repair(plan(whole, "all_gather", ring=False), remove_nodes(whole, [f"gpu{i}" for i in range(7)]))


def test_a_rank_without_links_is_unreachable() -> None:
    whole = load("dgx-a100")
    with pytest.raises(UnreachableError, match="any more"):
        repair(plan(whole, "all_gather", ring=False), remove_links(whole, [("gpu2", "nvswitch")]))


def test_an_optimum_that_was_not_computed_is_not_claimed() -> None:
    whole = load("dgx-h100", boxes=4)
    made = plan(whole, "all_reduce", ring=False)
    now = set_link_rate(whole, *nic_of(whole, "box1/gpu3"), "50%")
    result = repair(made, now, optimum=False)
    assert (result.optimum, result.loss, result.report.optimal) == (None, None, False)
    assert result.record()["optimum_computed"] is False
    with_it = repair(made, now, optimum=True)
    assert with_it.inv_rate == result.inv_rate
    assert with_it.optimum is not None


def rails() -> Topology:
    """1,024 GPUs on rails with spines."""
    return load("dgx-h100", boxes=128, spines=8, hosts_per_leaf=16)


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_a_slow_and_a_dead_nic_among_1024_gpus(collective: str) -> None:
    whole = rails()
    made = plan(whole, collective, ring=False)
    nic = nic_of(whole, "box5/gpu3")
    for now in (set_link_rate(whole, *nic, "50%"), remove_links(whole, [nic])):
        result = repair(made, now)
        assert result.report.ok
        again = plan(now, collective, ring=False)
        assert again.loss == 0
        assert again.inv_rate <= result.inv_rate <= again.inv_rate * 101 / 100
        if collective == "all_gather":
            assert result.loss == 0
