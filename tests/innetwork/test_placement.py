"""Which switches should add: equal to trying all on small networks, exact or bracketed on large ones."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.innetwork.placement import AggregationPlacement, place_aggregation
from coppice.innetwork.placement.search import AddingRanks, _SwitchSearch
from coppice.innetwork.placement.trees import AddingNetwork
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference.innetwork import placement as reference

MEGABYTE_US = Fraction(2**20, 1000)  # over 1 GB/s


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Switches linked at random, perhaps some that add, and GPUs with a link or two each."""
    count = draw(st.integers(1, 5))
    rates = st.sampled_from([Fraction(1), Fraction(2), Fraction(5, 2)])
    nodes = []
    for at in range(count):
        has_it = draw(st.sampled_from([False, False, False, True]))
        nodes.append(Node(id=f"s{at}", kind=NodeKind.SWITCH, multicast=has_it, aggregate=has_it))
    pairs = [(f"s{draw(st.integers(0, at - 1))}", f"s{at}") for at in range(1, count)]
    switches = st.integers(0, count - 1)
    pairs += [(f"s{draw(switches)}", f"s{draw(switches)}") for _ in range(draw(st.integers(0, 4)))]
    for rank in range(draw(st.integers(2, 6))):
        nodes.append(Node(id=f"g{rank}"))
        at = draw(st.lists(switches, min_size=1, max_size=2, unique=True))
        pairs += [(f"g{rank}", f"s{switch}") for switch in at]
    return Topology.of("made", nodes, [Link(src=a, dst=b, gb_per_s=draw(rates)) for a, b in pairs])


@st.composite
def leaves_and_spines(draw: st.DrawFn) -> Topology:
    """Leaves with GPUs of one link, each linked with every spine at rates of its own."""
    leaves, spines = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    nodes = [Node(id=f"leaf{at}", kind=NodeKind.SWITCH) for at in range(leaves)]
    nodes += [Node(id=f"spine{at}", kind=NodeKind.SWITCH) for at in range(spines)]
    rates = st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(4)])
    links = [
        Link(src=f"leaf{leaf}", dst=f"spine{spine}", gb_per_s=draw(rates))
        for leaf in range(leaves)
        for spine in range(spines)
    ]
    for leaf in range(leaves):
        for at in range(draw(st.integers(1, 3))):
            nodes.append(Node(id=f"g{leaf}.{at}"))
            links.append(Link(src=f"g{leaf}.{at}", dst=f"leaf{leaf}", gb_per_s=Fraction(8)))
    return Topology.of("leafy", nodes, links)


def check_by_routes(found: AggregationPlacement, trees: int = 1) -> None:
    """The busiest link again, from the routes alone."""
    topology = found.topology
    adding = {topology.node_index[name] for name in (*found.given, *found.chosen)}
    groups = [job for job in found.jobs for _ in range(trees)]
    roots = [topology.node_index[name] for names in found.roots for name in names]
    times = reference.link_times(topology, groups, roots, adding, Fraction(found.size_bytes, trees))
    assert times is not None
    assert max(times.values()) / 1000 == found.busiest.time_us
    a, b = (topology.node_index[name] for name in found.busiest.ends)
    assert max(times.get((a, b), 0), times.get((b, a), 0)) / 1000 == found.busiest.time_us
    assert len(found.chosen) <= found.budget
    assert found.least_time_us <= found.busiest.time_us


@settings(max_examples=150, deadline=None)
@given(networks(), st.integers(1, 4))
def test_one_job_is_placed_as_well_as_by_trying_all(topology: Topology, budget: int) -> None:
    wanted = reference.best_time(topology, [range(topology.num_ranks)], budget, Fraction(2**20))
    assert wanted is not None  # the switches are linked
    found = place_aggregation(topology, budget=budget, size="1M")
    assert found.busiest.time_us == wanted / 1000
    assert found.proved
    check_by_routes(found)
    fewer = len(found.chosen) - 1
    if fewer >= 0:  # no smaller set is as good
        without = reference.best_time(topology, [range(topology.num_ranks)], fewer, Fraction(2**20))
        assert without is None or without > wanted


@settings(max_examples=120, deadline=None)
@given(networks(), st.integers(1, 3), st.integers(1, 2), st.data())
def test_jobs_at_once_are_placed_as_well_as_by_trying_all(
    topology: Topology, budget: int, trees: int, data: st.DataObject
) -> None:
    ranks = st.lists(st.integers(0, topology.num_ranks - 1), min_size=2, unique=True)
    jobs = data.draw(st.lists(ranks, min_size=1, max_size=3 - trees + 1))
    groups = [sorted(job) for job in jobs for _ in range(trees)]
    wanted = reference.best_time(topology, groups, budget, Fraction(2**20, trees))
    assert wanted is not None
    found = place_aggregation(topology, budget=budget, jobs=jobs, trees=trees, size="1M")
    assert found.proved
    assert found.busiest.time_us == wanted / 1000
    check_by_routes(found, trees)


@settings(max_examples=60, deadline=None)
@given(st.one_of(networks(), leaves_and_spines()), st.integers(1, 3), st.integers(1, 3), st.data())
def test_branch_and_bound_needs_no_good_start(
    topology: Topology, budget: int, trees: int, data: st.DataObject
) -> None:
    ranks = st.lists(st.integers(0, topology.num_ranks - 1), min_size=2, unique=True)
    jobs = data.draw(st.lists(ranks, min_size=1, max_size=3 - trees + 1))
    wanted = reference.best_time(
        topology, [job for job in jobs for _ in range(trees)], budget, Fraction(2**20, trees)
    )
    assert wanted is not None

    def some_start(self: _SwitchSearch) -> None:
        some = st.sets(st.sampled_from(self.order), max_size=self.budget) if self.order else st.just(set())
        self._tried(frozenset(data.draw(some)))

    with mock.patch.object(_SwitchSearch, "_climb", some_start):
        found = place_aggregation(topology, budget=budget, jobs=jobs, trees=trees, size="1M")
    assert found.proved
    assert found.busiest.time_us == wanted / 1000


@settings(max_examples=60, deadline=None)
@given(st.one_of(networks(), leaves_and_spines()), st.data())
def test_switches_without_the_feature_need_what_the_bound_says(
    topology: Topology, data: st.DataObject
) -> None:
    ranks = st.lists(st.integers(0, topology.num_ranks - 1), min_size=2, unique=True)
    jobs = data.draw(st.lists(ranks, min_size=2, max_size=2))
    network = AddingNetwork(topology)
    groups = [AddingRanks(ranks=tuple(job), size_bytes=1, trees=()) for job in jobs]
    found = _SwitchSearch(network, groups, 1, 0, 1)
    everything = network.given | set(network.switches)
    for switch, least in found.needs.items():
        wanted = reference.best_with(topology, jobs, everything - {switch}, Fraction(1))
        assert switch in network.given or wanted is None or least * network.nanoseconds <= wanted
    wanted = reference.best_with(topology, jobs, set(everything), Fraction(1))
    assert wanted is not None
    assert found.fixed * network.nanoseconds <= wanted


@settings(max_examples=60, deadline=None)
@given(st.one_of(networks(), leaves_and_spines()), st.integers(1, 3), st.integers(1, 400), st.data())
def test_a_search_that_stops_early_brackets_the_best(
    topology: Topology, budget: int, most_work: int, data: st.DataObject
) -> None:
    ranks = st.lists(st.integers(0, topology.num_ranks - 1), min_size=2, unique=True)
    jobs = [sorted(job) for job in data.draw(st.lists(ranks, min_size=2, max_size=2))]
    wanted = reference.best_time(topology, jobs, budget, Fraction(2**20))
    assert wanted is not None
    try:
        found = place_aggregation(topology, budget=budget, jobs=jobs, size="1M", most_work=most_work)
    except InputError as error:
        assert "`most_work`" in str(error)  # noqa: PT017 (only this one is allowed)
        return
    assert found.least_time_us <= wanted / 1000 <= found.busiest.time_us
    check_by_routes(found)


def test_leaves_or_spines_of_a_leaf_and_spine_network() -> None:
    """One tree needs all leaves; two trees, one on each spine, do as well with two switches."""
    network = preset("fat-tree", leaves=4, gpus_per_leaf=4, spines=2)  # uplinks of 2 GB/s, GPUs of 1
    by_budget = [place_aggregation(network, budget=budget, size="1M") for budget in (1, 3, 4)]
    assert [each.chosen for each in by_budget] == [
        ("spine0",),
        ("spine0",),
        ("leaf0", "leaf1", "leaf2", "leaf3"),
    ]
    assert [each.busiest.time_us / MEGABYTE_US for each in by_budget] == [2, 2, 1]
    two = place_aggregation(network, budget=2, trees=2, size="1M")
    assert two.chosen == ("spine0", "spine1")
    assert set(two.roots[0]) == {"spine0", "spine1"}
    assert two.busiest.time_us == two.everywhere_us == MEGABYTE_US
    assert by_budget[0].without.time_us == 15 * MEGABYTE_US  # a rank adds what the other 15 send
    assert by_budget[0].ring.time_us == Fraction(15, 8) * MEGABYTE_US  # 2 (n-1)/n


def test_switches_that_add_already_cost_nothing() -> None:
    nodes = [Node(id="top", kind=NodeKind.SWITCH, multicast=True, aggregate=True)]
    nodes += [Node(id=f"leaf{at}", kind=NodeKind.SWITCH) for at in range(2)]
    nodes += [Node(id=f"g{at}") for at in range(6)]
    links = [Link(src=f"leaf{at}", dst="top", gb_per_s=Fraction(1)) for at in range(2)]
    links += [Link(src=f"g{at}", dst=f"leaf{at // 3}", gb_per_s=Fraction(1)) for at in range(6)]
    found = place_aggregation(Topology.of("given", nodes, links), budget=1, size="1M")
    assert (found.given, found.chosen, found.roots) == (("top",), (), (("top",),))
    assert found.busiest.time_us == 3 * MEGABYTE_US == found.without.time_us
    both = place_aggregation(found.topology, budget=2, size="1M")
    assert both.chosen == ("leaf0", "leaf1")
    assert both.busiest.time_us == MEGABYTE_US


@pytest.mark.parametrize(
    ("arguments", "trees"),
    [
        ({"budget": 4}, 1),
        ({"budget": 16}, 1),
        ({"budget": 16, "trees": 4}, 4),
        ({"budget": 16, "jobs": [list(range(at * 128, at * 128 + 128)) for at in range(8)]}, 1),
    ],
)
def test_a_thousand_gpus(arguments: dict[str, Any], trees: int) -> None:
    network = preset("fat-tree", leaves=32, gpus_per_leaf=32, spines=16)
    found = place_aggregation(network, size="1M", **arguments)
    assert found.proved
    factor = found.busiest.time_us / MEGABYTE_US
    assert factor == Fraction(32, 2 * trees)  # of some leaf's 32 streams on uplinks of 2 GB/s
    assert found.ring.time_us < found.without.time_us


RAILS = [list(range(rail, 16, 8)) for rail in range(8)]


@pytest.mark.parametrize(
    ("name", "options", "arguments", "message"),
    [
        ("ring", {"gpus": 4}, {"budget": 1}, r"a network with switches, found"),
        ("star", {"gpus": 4}, {"budget": 0}, r"`budget` of 1 or more, found 0"),
        ("star", {"gpus": 4}, {"budget": 1, "trees": 0}, r"`trees` of 1 or more, found 0"),
        ("star", {"gpus": 4}, {"budget": 1, "jobs": []}, r"one job or more in `jobs`, found none"),
        ("star", {"gpus": 4}, {"budget": 1, "jobs": [[0, 4]]}, r"from 0 to 3 in `jobs`, found 0, 4 in job 0"),
        ("star", {"gpus": 4}, {"budget": 1, "jobs": [[0, 1], [2, 2]]}, r"found 2, 2 in job 1"),
        ("star", {"gpus": 4}, {"budget": 1, "jobs": [[3]]}, r"two or more different ranks"),
        ("dgx-h100", {"boxes": 2}, {"budget": 1}, r"a switch that all ranks of a job reach .* of each rail"),
        ("dgx-h100", {"boxes": 2}, {"budget": 4, "jobs": RAILS}, r"found 4: raise it, 8 suffice"),
    ],
)
def test_what_cannot_be_placed(
    name: str, options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        place_aggregation(preset(name, **options), **arguments)


def test_links_of_one_way_are_refused() -> None:
    nodes = [Node(id="s", kind=NodeKind.SWITCH), Node(id="a"), Node(id="b")]
    links = [Link(src=a, dst="s", gb_per_s=Fraction(1), duplex=a == "a") for a in "ab"]
    with pytest.raises(InputError, match="links in both directions, found b and s"):
        place_aggregation(Topology.of("one way", nodes, links), budget=1)
