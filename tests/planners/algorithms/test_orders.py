"""Orders that suit a topology, the rings on switched trees, and the searched rings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.planners.algorithms.parts.boxes import RELAY, boxes, crossings, equal_boxes
from coppice.planners.algorithms.parts.orders import POLICIES, box_order, box_rings, links_crossed, order_by
from coppice.planners.algorithms.parts.trees import depths, pair_of_trees, rooted_pair, two_colours
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from planners.algorithms.crossbar import RANKS, check_cost, made, verified, with_ranks_shuffled
from support.shared_data import forest_oracle, needs_shared

TOPOLOGIES = {
    "h100": preset("dgx-h100", boxes=4),
    "a100": preset("dgx-a100", boxes=3),
    "mi250": preset("mi250", boxes=2),
    "fat-tree": preset("fat-tree", leaves=8, gpus_per_leaf=4, spines=2, leaves_per_pod=4, cores=2),
    "dragonfly": preset("dragonfly"),
    "torus": preset("torus", dims=(6, 6)),
    "odd torus": preset("torus", dims=(3, 5)),
    "hypercube": preset("hypercube"),
    "star": preset("star", gpus=7),
    "path": preset("path", gpus=5),
    "pair": preset("star", gpus=2),
    "single": preset("ring", gpus=1),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_never_more_links_than_in_rank_order(name: str, seed: int | None) -> None:
    topology = TOPOLOGIES[name] if seed is None else with_ranks_shuffled(TOPOLOGIES[name], seed)
    ranks = tuple(range(topology.num_ranks))
    order = box_order(topology)
    assert sorted(order) == list(ranks)
    assert order == box_order(replace(topology))  # found anew
    assert links_crossed(topology, order) <= links_crossed(topology, ranks)
    for policy in POLICIES:
        assert sorted(order_by(topology, policy)) == list(ranks)


@pytest.mark.parametrize("name", ["h100", "a100", "mi250", "fat-tree", "torus", "hypercube"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_much_fewer_links_where_ranks_are_shuffled(name: str, seed: int) -> None:
    topology = with_ranks_shuffled(TOPOLOGIES[name], seed)
    shuffled = links_crossed(topology, tuple(range(topology.num_ranks)))
    assert links_crossed(topology, box_order(topology)) <= 0.75 * shuffled


@pytest.mark.parametrize("dims", [(4, 4), (6, 6), (3, 5), (3, 3), (2, 2, 2)])
def test_tori_are_walked_along_their_cables(dims: tuple[int, ...]) -> None:
    topology = with_ranks_shuffled(preset("torus", dims=dims), seed=4)
    assert links_crossed(topology, box_order(topology)) == topology.num_ranks


@pytest.mark.parametrize(("name", "expected"), [("h100", 28 * 2 + 4 * 2), ("a100", 21 * 2 + 3 * 4)])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_boxes_are_left_and_entered_on_one_rail(name: str, expected: int, seed: int | None) -> None:
    """Within a box over its switch, between boxes GPU - (NIC) - rail - (NIC) - GPU."""
    topology = TOPOLOGIES[name] if seed is None else with_ranks_shuffled(TOPOLOGIES[name], seed)
    order = box_order(topology)
    assert links_crossed(topology, order) == expected
    apart = crossings(topology)
    assert all(apart[a, b] < RELAY for a, b in zip(order, [*order[1:], order[0]], strict=True))


def test_box_members_of_one_number_share_a_rail() -> None:
    topology = with_ranks_shuffled(preset("dgx-h100", boxes=3), seed=9)
    found = equal_boxes(topology)
    assert found is not None
    hosts = topology.host[topology.rank_nodes]
    for box in found:
        assert len({int(hosts[rank]) for rank in box}) == 1
    for members in zip(*found, strict=True):
        assert all(crossings(topology)[a, b] == 2 for a, b in pairwise(members))


def test_members_follow_each_other_along_the_cables_of_a_box() -> None:
    topology = with_ranks_shuffled(preset("mi250", boxes=2), seed=1)
    apart = crossings(topology)
    for box in boxes(topology):
        assert [int(apart[a, b]) for a, b in zip(box, [*box[1:], box[0]], strict=True)] == [1] * 16


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-a100"])
def test_box_rings_cross_at_other_ranks_in_every_channel(machine: str, count: int) -> None:
    topology = preset(machine, boxes=count)
    crossed: Counter[tuple[int, int]] = Counter()
    for ring in box_rings(topology, 8):
        assert sorted(ring) == list(range(8 * count))
        hops = [(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a // 8 != b // 8]
        assert len(hops) == count
        assert all(a % 8 == b % 8 for a, b in hops)
        crossed.update(hops)
    assert len(crossed) == 8 * count
    assert set(crossed.values()) == {1}


def test_boxes_without_hosts_are_switches() -> None:
    assert boxes(preset("fat-tree", leaves=3, gpus_per_leaf=2)) == ((0, 1), (2, 3), (4, 5))
    assert boxes(preset("torus")) == (tuple(range(16)),)
    assert equal_boxes(preset("star", gpus=4)) is None


def test_unknown_policy() -> None:
    with pytest.raises(InputError, match="rank, rail, dfs or near, found 'best'"):
        order_by(TOPOLOGIES["star"], "best")


def switched_tree(entry: dict[str, object]) -> Topology:
    """A topology of the oracle, with the ranks out of depth-first order."""
    compute, switches, edges = entry["compute"], entry["switches"], entry["edges"]
    assert isinstance(compute, list)
    assert isinstance(switches, list)
    assert isinstance(edges, list)
    nodes = [Node(id=name, rank=(2 * rank) % len(compute)) for rank, name in enumerate(compute)]
    nodes += [Node(id=name, kind=NodeKind.SWITCH) for name in switches]
    links = [Link(src=a, dst=b, gb_per_s=Fraction(rate), duplex=False) for a, b, rate in edges]
    return Topology.of(str(entry["name"]), nodes, links)


@needs_shared
def test_no_link_of_a_switched_tree_is_crossed_twice() -> None:
    (entry,) = [entry for entry in forest_oracle() if entry["name"] == "tree7_switches"]
    topology = switched_tree(entry)
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        body = made("patarasuk-yuan", collective, topology)
        assert isinstance(body, Schedule)
        report = verified(body)
        assert most_crossings_in_a_step(body) == 1
        if collective is not Collective.ALL_REDUCE:
            # The bound of every such tree: (N - 1) shards over a link of rate 1.
            assert report.inv_rate == Fraction(entry["expected"]["inv_x_star"])
    in_rank_order = made("ring", Collective.ALL_GATHER, topology)
    assert isinstance(in_rank_order, Schedule)
    assert most_crossings_in_a_step(in_rank_order) > 1


def most_crossings_in_a_step(schedule: Schedule) -> int:
    """Messages over one link in one direction in one step."""
    found = routed(schedule)
    nodes = found.path_nodes.tolist()
    crossed: Counter[tuple[int, int, int]] = Counter()
    for step, path in zip(found.step.tolist(), found.path.tolist(), strict=True):
        route = nodes[found.path_start[path] : found.path_start[path + 1]]
        crossed.update((step, a, b) for a, b in pairwise(route))
    return max(crossed.values())


@pytest.mark.parametrize("leaves", [2, 5])
def test_ring_on_a_tree_of_two_levels(leaves: int) -> None:
    topology = with_ranks_shuffled(preset("fat-tree", leaves=leaves, gpus_per_leaf=3, spines=1), seed=3)
    body = made("patarasuk-yuan", Collective.ALL_REDUCE, topology)
    assert isinstance(body, Schedule)
    verified(body)
    assert most_crossings_in_a_step(body) == 1


@pytest.mark.parametrize(
    ("topology", "found"),
    [
        (preset("fat-tree"), "22 nodes and 24 cables"),
        (preset("dgx-h100", boxes=2), "26 nodes and 32 cables"),
        (preset("path", gpus=4), "more than one cable at rank 1"),
        (preset("ring", gpus=4), "4 nodes and 4 cables"),
    ],
)
def test_other_networks_are_refused(topology: Topology, found: str) -> None:
    with pytest.raises(InputError, match=found):
        made("patarasuk-yuan", Collective.ALL_REDUCE, topology)


@pytest.mark.parametrize(
    "collective",
    [
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.BROADCAST,
        Collective.REDUCE,
    ],
)
@pytest.mark.parametrize("name", ["h100", "torus", "single"])
def test_best_ring(collective: Collective, name: str) -> None:
    verified(made("best-ring", collective, TOPOLOGIES[name]))


def test_best_ring_needs_a_ring() -> None:
    with pytest.raises(UnreachableError, match="best-ring found no ring"):
        made("best-ring", Collective.ALL_GATHER, preset("path", gpus=4))


COLLECTIVES = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
Pair = Callable[[int], tuple[list[int], list[int]]]
_ = -1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([_, 2, 4, 2, 0, 6, 4, 6], [1, 3, 1, 7, 5, 3, 5, _]),
        ([_, 2, 4, 2, 0, 6, 4], [5, _, 3, 5, 3, 1, 0]),
        ([_, 2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10], [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, _]),
    ],
    ids=["8", "7", "12"],
)
def test_trees_of_nccl(first: list[int], second: list[int]) -> None:
    assert pair_of_trees(len(first)) == (first, second)


@pytest.mark.parametrize("trees", [pair_of_trees, rooted_pair])
@pytest.mark.parametrize("ranks", [*range(1, 70), 127, 128, 129, 1000])
def test_trees_complement_each_other(trees: Pair, ranks: int) -> None:
    """Both span all ranks in logarithmic depth, and no rank has more than two children in both together."""
    pair = trees(ranks)
    for parents in pair:
        assert sum(parent < 0 for parent in parents) == 1
        assert max(depths(parents)) <= (ranks - 1).bit_length()
    children = Counter(parent for parents in pair for parent in parents if parent >= 0)
    assert max(children.values(), default=0) <= 2
    if trees is pair_of_trees and ranks % 2 == 0:
        assert not set(pair[0]) & set(pair[1]) - {-1}
    if trees is rooted_pair:
        assert pair[0][0] == pair[1][0] == -1


@pytest.mark.parametrize("ranks", [2, 3, 8, 17, 64])
@pytest.mark.parametrize("trees", [pair_of_trees, rooted_pair])
def test_colours_tell_all_edges_of_a_port_apart(trees: Pair, ranks: int) -> None:
    pair = trees(ranks)
    colour = two_colours(pair)
    ports: Counter[tuple[str, int, int]] = Counter()
    for tree, parents in enumerate(pair):
        for child, parent in enumerate(parents):
            if parent >= 0:
                assert colour[tree][child] in (0, 1)
                ports["out of", parent, colour[tree][child]] += 1
                ports["into", child, colour[tree][child]] += 1
    assert max(ports.values()) == 1


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("segments", [1, 3])
def test_cost(collective: Collective, ranks: int, segments: int) -> None:
    root = ranks // 2
    schedule = check_cost("double-binary-tree", collective, ranks, root, segments=segments)
    phases = 2 if collective is Collective.ALL_REDUCE else 1
    if ranks > 1:
        steps = int(schedule.step.max()) + 1
        assert steps <= phases * (2 * (ranks - 1).bit_length() + 2 * (segments - 1))


@pytest.mark.parametrize("ranks", [8, 13, 32])
def test_every_rank_sends_and_receives_one_message_a_step(ranks: int) -> None:
    schedule = check_cost("double-binary-tree", Collective.ALL_REDUCE, ranks, segments=4)
    for ends in (schedule.src, schedule.dst):
        assert max(Counter(zip(schedule.step.tolist(), ends.tolist(), strict=True)).values()) == 1


def test_many_segments_come_near_the_bound() -> None:
    """M beta for a broadcast: half of what one binary tree needs through one port."""
    entry = find("double-binary-tree", Collective.BROADCAST)
    problem = Problem(topology=preset("star", gpus=64), collective=Collective.BROADCAST, root=5)
    assert entry.cost is not None
    (chain,) = entry.cost(case_of(entry, problem, {"segments": 200})).chains
    assert chain.sent < Fraction(104, 100)


def test_on_boxes_with_one_network_switch() -> None:
    body = made("double-binary-tree", Collective.ALL_REDUCE, preset("mi250", boxes=2), segments=2)
    verified(body)


def test_among_boxes_the_vertices_are_boxes() -> None:
    """Across rails only partners on one rail exchange: trees of ranks have no routes there, trees of boxes do."""
    problem = Problem(topology=preset("dgx-h100", boxes=4), collective=Collective.ALL_REDUCE)
    entry = find("double-binary-tree", Collective.ALL_REDUCE)
    body = make(entry, case_of(entry, problem))
    assert isinstance(body, Schedule)
    assert verify_schedule(body).ok
    with pytest.raises(UnreachableError):
        make(entry, case_of(entry, problem, {"layout": "flat"}))
    with pytest.raises(InputError, match="depends on the topology"):
        entry.cost(case_of(entry, problem))  # type: ignore[misc]
    single = Problem(topology=preset("star", gpus=8), collective=Collective.ALL_REDUCE)
    refused = entry.refusal(case_of(entry, single, {"layout": "boxes"}))
    assert refused is not None
    assert "needs equal boxes" in refused
