from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.errors import CheckError
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.symmetry import Symmetry, check_symmetry, find_symmetry
from reference.strategies import FAMILIES, topologies
from reference.symmetry import automorphisms, elements, is_free, largest_free_abelian_order

# Preset, options or boxes, order of the group, orbits of links.
TRANSITIVE = [
    ("ring", {}, None, 8, 2),
    ("torus", {"dims": "4x6"}, None, 24, 4),
    ("torus", {"dims": "3x4x5"}, None, 60, 6),
    ("hypercube", {}, None, 16, 4),
    ("complete", {}, None, 8, 7),
    ("bipartite", {}, None, 8, 4),
    ("circulant", {}, None, 16, 4),
    ("star", {}, None, 8, 2),
    ("fat-tree", {}, None, 16, 4),
    ("mi300x", {}, None, 8, 7),
    ("gb200-nvl72", {}, None, 72, 2),
    ("dgx-a100", {}, 4, 32, 6),
    ("dgx-h100", {}, 4, 32, 4),
    ("dgx-a100-pcie", {}, 4, 32, 11),
]
PARTIAL = [
    ("mi250", {}, 4, 16, 22),
    ("dgx-1v", {}, 4, 8, 20),
    ("petersen", {}, None, 5, 6),
    ("dragonfly", {}, None, 6, 8),
]


def grid(dims: tuple[int, ...], rates: tuple[int, ...]) -> Topology:
    """A torus with a rate for each dimension."""
    shape = np.arange(int(np.prod(dims))).reshape(dims)
    links = []
    for axis, rate in enumerate(rates):
        if dims[axis] == 1:
            continue
        pairs = zip(shape.ravel().tolist(), np.roll(shape, -1, axis).ravel().tolist(), strict=True)
        once = {(min(a, b), max(a, b)) for a, b in pairs}
        links += [Link(src=f"g{a}", dst=f"g{b}", gb_per_s=Fraction(rate)) for a, b in once]
    return Topology.of("torus", [Node(id=f"g{v}") for v in range(shape.size)], links)


def shuffled(topology: Topology, seed: int) -> Topology:
    """The same topology with its nodes in another order."""
    nodes = topology.nodes()
    random.Random(seed).shuffle(nodes)
    return Topology.of(topology.name, nodes, topology.links())


def planted(seed: int) -> Topology:
    """At most eight nodes, and links that a permutation with equal cycles on the ranks maps to links."""
    draw = random.Random(seed)
    length, cycles = draw.choice([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (5, 1), (6, 1)])
    ranks = length * cycles
    count = ranks + draw.randint(0, 8 - ranks)
    image = [v // length * length + (v + 1) % length for v in range(ranks)]
    image += range(ranks + 1, count)
    image += [ranks] * (count > ranks)
    rates: dict[tuple[int, int], int] = {}
    for _ in range(draw.randint(1, 5)):
        a, b = draw.randrange(count), draw.randrange(count)
        rate, duplex = draw.randint(1, 2), draw.random() < 0.6
        while a != b and rates.get((a, b)) != rate:
            rates[a, b] = rate
            if duplex:
                rates[b, a] = rate
            a, b = image[a], image[b]
    names = draw.sample(range(count), count)
    kinds = [NodeKind.GPU if v < ranks else NodeKind.SWITCH for v in range(count)]
    nodes = [Node(id=str(names[v]), kind=kinds[v]) for v in range(count)]
    nodes.sort(key=lambda node: node.id)
    links = [
        Link(src=str(names[a]), dst=str(names[b]), gb_per_s=Fraction(rate), duplex=False)
        for (a, b), rate in rates.items()
    ]
    return Topology.of(f"planted #{seed}", nodes, links)


@pytest.mark.parametrize(("preset", "options", "boxes", "order", "link_orbits"), TRANSITIVE + PARTIAL)
def test_named_families(preset, options, boxes, order, link_orbits):
    topology = resolve(preset, boxes=boxes, options=options)
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    assert symmetry.order == order
    assert symmetry.num_link_orbits == link_orbits
    if (preset, options, boxes, order, link_orbits) in TRANSITIVE:
        assert order == topology.num_ranks


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "torus", "hypercube", "fat-tree"])
@pytest.mark.parametrize("seed", range(5))
def test_order_of_nodes_does_not_matter(preset, seed):
    boxes = 4 if preset.startswith("dgx") else None
    topology = shuffled(resolve(preset, boxes=boxes, options={}), seed)
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    assert symmetry.order == topology.num_ranks


@pytest.mark.parametrize("dims", [(4, 4), (3, 5), (16, 16), (4, 5, 6)])
def test_full_dimensions_are_transitive(dims):
    """Every two nodes that differ in one coordinate are linked (HyperX, flattened butterfly)."""
    places = list(itertools.product(*map(range, dims)))
    links = [
        Link(src=str(a), dst=str(b), gb_per_s=Fraction(1))
        for a, b in itertools.combinations(places, 2)
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1
    ]
    topology = shuffled(Topology.of("full", [Node(id=str(place)) for place in places], links), 1)
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    assert symmetry.order == topology.num_ranks


@pytest.mark.parametrize(
    ("dims", "rates"), [((4, 6), (1, 2)), ((4, 4), (1, 2)), ((2, 3, 4), (1, 1, 3)), ((7,), (1,))]
)
def test_tori_of_unequal_rates_are_transitive(dims, rates):
    topology = grid(dims, rates)
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    assert symmetry.order == topology.num_ranks


def test_a_slow_nic_leaves_nothing():
    topology = resolve("dgx-a100", boxes=128, options={})
    links = topology.links()
    slow = next(i for i, link in enumerate(links) if link.dst.startswith("rail"))
    links[slow] = Link(src=links[slow].src, dst=links[slow].dst, gb_per_s=Fraction(7), duplex=False)
    damaged = Topology.of("damaged", topology.nodes(), links)
    symmetry = find_symmetry(damaged)
    check_symmetry(damaged, symmetry)
    assert symmetry.orders == ()
    assert symmetry.num_link_orbits == damaged.num_links


@pytest.mark.parametrize("change", ["latency", "multicast", "rank"])
def test_what_distinguishes_a_node_or_link_breaks_the_symmetry(change):
    nodes = [Node(id=f"g{v}", rank=v if change == "rank" and v < 2 else None) for v in range(3)]
    nodes += [
        Node(id=f"s{v}", kind=NodeKind.SWITCH, multicast=change == "multicast" and v == 0) for v in range(3)
    ]
    links = [
        Link(src=f"g{v}", dst=f"s{v}", gb_per_s=Fraction(1), latency_us=float(v == 0 and change == "latency"))
        for v in range(3)
    ]
    links += [Link(src=f"s{v}", dst=f"s{(v + 1) % 3}", gb_per_s=Fraction(1)) for v in range(3)]
    topology = Topology.of("triangle", nodes, links)
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    assert symmetry.order == (2 if change == "rank" else 1)


@settings(max_examples=200, deadline=None)
@given(topologies(FAMILIES, 7))
def test_random_topologies_against_enumeration(topology):
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    known = set(automorphisms(topology))
    group = elements(symmetry, topology.num_nodes)
    assert len(set(group)) == symmetry.order
    assert all(element in known and is_free(topology, element) for element in group)


def test_the_largest_group_is_found_on_small_symmetric_topologies():
    compared = 0
    for seed in range(300):
        topology = planted(seed)
        symmetry = find_symmetry(topology)
        check_symmetry(topology, symmetry)
        if len(automorphisms(topology)) > 200:
            continue
        assert symmetry.order == largest_free_abelian_order(topology), topology.name
        compared += 1
    assert compared > 250


@given(st.integers(0, 31), st.integers(0, 31))
@settings(max_examples=50, deadline=None)
def test_images_products_and_inverses(first, second):
    topology = resolve("dgx-a100", boxes=4, options={})
    symmetry = find_symmetry(topology)
    group = elements(symmetry, topology.num_nodes)
    nodes = np.arange(topology.num_nodes)
    assert symmetry.image(nodes, first).tolist() == list(group[first])
    once = symmetry.image(symmetry.image(nodes, first), second)
    assert once.tolist() == symmetry.image(nodes, symmetry.product(first, second)).tolist()
    assert symmetry.product(first, symmetry.inverse(first)) == 0
    assert symmetry.image(5, np.arange(32)).tolist() == [element[5] for element in group]


def damaged(symmetry: Symmetry, what: str, node: int) -> Symmetry:
    """The symmetry of two boxes with one thing wrong; ``node`` holds a rank."""
    if (
        what == "link"
    ):  # exchanging two GPUs of one box is no automorphism of the pair with its reference plane
        swapped = symmetry.generators.copy()
        swapped[0, [3, 4]] = swapped[0, [4, 3]]
        return replace(symmetry, generators=swapped)
    if what == "permutation":
        constant = symmetry.generators.copy()
        constant[0] = 0
        return replace(symmetry, generators=constant)
    if what == "orders":
        return replace(symmetry, orders=(symmetry.orders[0] * 2, *symmetry.orders[1:]))
    if what == "free":  # a generator twice: no element is new
        doubled = np.concatenate([symmetry.generators, symmetry.generators[:1]])
        return replace(symmetry, generators=doubled, orders=(*symmetry.orders, symmetry.orders[0]))
    column = getattr(symmetry, what).copy()
    column[node if what.startswith("node") else -1] += 1
    return replace(symmetry, **{what: column})


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("link", "must map"),
        ("permutation", "must be a permutation"),
        ("orders", "each rank must be one image"),
        ("free", "each rank must be one image"),
        ("node_orbit", r"node_orbit\["),
        ("node_element", r"node_element\["),
        ("link_orbit", r"link_orbit\["),
        ("link_orbit_size", r"link_orbit_size\["),
    ],
)
def test_check_refuses_what_is_wrong(what, message):
    topology = resolve("dgx-a100", boxes=2, options={})
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    with pytest.raises(CheckError, match=message):
        check_symmetry(topology, damaged(symmetry, what, int(topology.rank_nodes[-1])))


def test_check_refuses_generators_that_do_not_commute_or_change_rates():
    square = grid((2, 2), (1, 1))
    rotation, swap = [1, 3, 0, 2], [1, 0, 3, 2]
    found = find_symmetry(square)
    claim = replace(found, orders=(4, 2), generators=np.array([rotation, swap], dtype=np.int32))
    with pytest.raises(CheckError, match="commute"):
        check_symmetry(square, claim)
    claim = replace(found, orders=(2,), generators=np.array([rotation], dtype=np.int32))
    with pytest.raises(CheckError, match="identity when applied 2 times"):
        check_symmetry(square, claim)
    with pytest.raises(CheckError, match="equal links"):
        check_symmetry(grid((2, 2), (1, 2)), replace(found, orders=(4,), generators=claim.generators))
    with pytest.raises(CheckError, match="shape"):
        check_symmetry(grid((2, 3), (1, 1)), found)


def test_fixed_points_among_ranks_are_refused():
    path = Topology.of(
        "path", [Node(id=x) for x in "abc"], [Link(src=x, dst="b", gb_per_s=Fraction(1)) for x in "ac"]
    )
    claim = Symmetry(
        orders=(2,),
        generators=np.array([[2, 1, 0]], dtype=np.int32),
        node_orbit=np.array([0, 1, 0], dtype=np.int32),
        node_element=np.array([0, 0, 1], dtype=np.int64),
        link_orbit=np.array([0, 1, 1, 0], dtype=np.int32),
        link_orbit_size=np.array([2, 2, 2, 2], dtype=np.int64),
    )
    with pytest.raises(CheckError, match="found 2 images that are b"):
        check_symmetry(path, claim)


@pytest.mark.parametrize(
    "build", [lambda: resolve("dgx-a100", boxes=2048, options={}), lambda: grid((32, 32, 16), (1, 1, 1))]
)
def test_sixteen_thousand_ranks(build):
    topology = build()
    symmetry = find_symmetry(topology)
    check_symmetry(topology, symmetry)
    assert symmetry.order == topology.num_ranks == 16384
