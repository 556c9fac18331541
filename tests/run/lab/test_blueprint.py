"""What a lab would be: rates, addresses, routes; nothing is built."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from coppice.errors import InputError, UnreachableError
from coppice.planners.planning import plan
from coppice.run.lab.blueprint import Blueprint, draw, load_of
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from coppice.topology.routing import Router
from reference.strategies import topologies


def walk(lab: Blueprint, src: int, dst: int) -> list[int]:
    """The nodes through which the routes lead."""
    table = {(route.node, route.to): route for route in lab.routes}
    owner = {cable.end(node)[1]: node for cable in lab.cables for node in (cable.near, cable.far)}
    path = [src]
    while path[-1] != dst:
        route = table[path[-1], lab.identity[dst]]
        assert route.interface == f"to{owner[route.via]}"
        path.append(owner[route.via])
        assert len(path) <= lab.topology.num_nodes
    return path


def test_rates_are_scaled_per_direction() -> None:
    links = [Link(src="a", dst="b", gb_per_s=Fraction(5), duplex=False)]
    links += [Link(src="b", dst="a", gb_per_s=Fraction(10), duplex=False)]
    lab = draw(Topology.of("uneven", [Node(id="a"), Node(id="b")], links), Fraction(1, 1000))
    (first,) = lab.cables
    assert first.near_to_far_bits_per_s == 40_000_000
    assert first.far_to_near_bits_per_s == 80_000_000
    assert first.end(0) == ("to1", first.near_address, first.far_address, 40_000_000)
    assert first.end(1) == ("to0", first.far_address, first.near_address, 80_000_000)


def test_addresses_are_distinct() -> None:
    lab = draw(preset("dgx-a100", boxes=2), Fraction(1, 10_000))
    addresses = [*lab.identity, *(a for cable in lab.cables for a in (cable.near_address, cable.far_address))]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("fabric", ["rail", "switch"])
def test_routes_are_as_short_as_the_default_routing(fabric: str) -> None:
    topology = preset("dgx-a100", boxes=2, fabric=fabric)
    lab = draw(topology, Fraction(1, 10_000))
    nodes = lab.rank_nodes
    router, relayed = Router(topology), Router(topology, relay_gpus=True)
    for src in (0, 5, 12):
        for dst in range(16):
            if src != dst:
                path = walk(lab, nodes[src], nodes[dst])
                through = [v for v in path[1:-1] if topology.kind[v] == NodeKind.GPU]
                try:
                    assert len(path) == len(router.path(src, dst))
                    assert not through
                except UnreachableError:
                    assert len(path) == len(relayed.path(src, dst))
                    assert len(through) == 1


def test_routes_prefer_the_wider_of_equally_short_ways() -> None:
    nodes = [Node(id="a"), Node(id="b"), *(Node(id=name, kind=NodeKind.SWITCH) for name in ("thin", "wide"))]
    links = [
        Link(src=gpu, dst=switch, gb_per_s=Fraction(rate))
        for switch, rate in (("thin", 1), ("wide", 2))
        for gpu in ("a", "b")
    ]
    lab = draw(Topology.of("two ways", nodes, links), Fraction(1, 100))
    assert walk(lab, 0, 1) == [0, 3, 1]


@settings(max_examples=60, deadline=None)
@given(topologies())
def test_every_rank_is_reached_without_loops(topology: Topology) -> None:
    lab = draw(topology, Fraction(1, 100))
    for src in lab.rank_nodes:
        for dst in lab.rank_nodes:
            if src != dst:
                path = walk(lab, src, dst)
                assert len(set(path)) == len(path)


def test_refusals() -> None:
    ring = preset("ring", gpus=4, gb_per_s=10)
    with pytest.raises(InputError, match="choose a larger `scale`"):
        draw(ring, Fraction(1, 10**9))
    with pytest.raises(InputError, match="choose a smaller `scale`"):
        draw(ring, Fraction(10))
    with pytest.raises(InputError, match="scale above 0"):
        draw(ring, Fraction(0))
    with pytest.raises(InputError, match="at most 512 nodes"):
        draw(preset("ring", gpus=600), Fraction(1))
    one_way = Topology.of(
        "dead end",
        [Node(id="a"), Node(id="b")],
        [Link(src="a", dst="b", gb_per_s=Fraction(1), duplex=False)],
    )
    with pytest.raises(UnreachableError, match="from b to a"):
        draw(one_way, Fraction(1, 10))


def test_load_rule_counts_what_arrives_at_all_ranks() -> None:
    boxes = preset("dgx-a100", boxes=2)
    load = load_of(boxes, Fraction(1, 10_000), cores=2)
    assert (load.bits_per_s, load.limit_bits_per_s, load.fits) == (4_160_000_000, 5_000_000_000, True)
    assert not load_of(boxes, Fraction(1, 5_000), cores=2).fits
    assert load_of(boxes, Fraction(1, 5_000), cores=4).fits
    assert load_of(preset("ring", gpus=8), Fraction(1), cores=1).limit_bits_per_s == 5_000_000_000


@pytest.mark.parametrize("name", ["recursive-doubling", "ring", "forest"])
def test_transfers_take_the_routes_of_the_lab(name: str) -> None:
    topology = preset("ring", gpus=6)
    lab = draw(topology, Fraction(1, 100))
    algorithm = None if name == "forest" else name
    body = plan(topology, "all_reduce", algorithm=algorithm, relay_gpus=bool(algorithm), ring=False).plan.body
    taken = lab.routed(body)
    for src, dst, path in zip(taken.src.tolist(), taken.dst.tolist(), taken.path.tolist(), strict=True):
        nodes = taken.path_nodes[taken.path_start[path] : taken.path_start[path + 1]]
        assert nodes.tolist() == walk(lab, lab.rank_nodes[src], lab.rank_nodes[dst])
