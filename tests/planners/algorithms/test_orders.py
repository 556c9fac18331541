"""Orders that suit a topology, the rings on switched trees, and the searched rings."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.parts.boxes import RELAY, boxes, crossings, equal_boxes
from coppice.planners.algorithms.parts.orders import POLICIES, box_order, box_rings, links_crossed, order_by
from coppice.schedule.schedule import Schedule, routed
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from planners.algorithms.crossbar import made, verified, with_ranks_shuffled
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
    assert order == box_order(topology)
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
