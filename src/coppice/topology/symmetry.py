"""Symmetry of a topology: an abelian group of automorphisms that acts freely on the ranks.

An automorphism permutes the nodes and keeps what matters to a schedule: the kind and abilities of every
node, whether it holds a rank, and the rate and latency of every link. *Freely* means that no element but
the identity leaves any rank in place. So every orbit of ranks has as many members as the group, and a tree
at one rank has exactly one image at every other rank of its orbit: planners may build one tree for an orbit
and linear programs one variable.

The group is a direct product of cyclic groups of orders n_0, n_1, ...; its elements have mixed-radix indices
with the first generator as the fastest digit: ``element = c_0 + n_0 * (c_1 + n_1 * (c_2 + ...))``.

Finding it is native and heuristic (see cpp/symmetry/symmetry.h); :func:`check_symmetry` proves a result and shares
nothing with the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.equality import ByContent
from coppice.errors import CheckError
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Symmetry(ByContent, Brief):
    """An abelian group of automorphisms, free on the ranks; orbits are numbered by their least member."""

    orders: tuple[int, ...]  # Orders n_i > 1 of the cyclic factors; empty for the trivial group
    # `generators[i, v]` is the image of node v under generator i (int32, d x V)
    generators: NDArray[np.int32]
    node_orbit: NDArray[np.int32]  # Orbit of each node (int32)
    # An element that maps the least node of the orbit to the node (int64); the only one for a node with a
    # rank
    node_element: NDArray[np.int64]
    link_orbit: NDArray[np.int32]  # Orbit of each link (int32)
    link_orbit_size: NDArray[np.int64]  # Number of links in the orbit of each link (int64)
    order: int = field(init=False)  # Number of elements of the group

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", prod(self.orders))
        for column in (self.generators, self.node_orbit, self.node_element):
            column.setflags(write=False)
        for column in (self.link_orbit, self.link_orbit_size):
            column.setflags(write=False)

    @property
    def num_node_orbits(self) -> int:
        """Number of orbits of nodes."""
        return int(self.node_orbit.max(initial=-1)) + 1

    @property
    def num_link_orbits(self) -> int:
        """Number of orbits of links."""
        return int(self.link_orbit.max(initial=-1)) + 1

    @cached_property
    def representatives(self) -> NDArray[np.int32]:
        """The least node of each node orbit."""
        return np.unique(self.node_orbit, return_index=True)[1].astype(np.int32)

    @cached_property
    def table(self) -> NDArray[np.int32]:
        """``table[orbit, element]`` is the image of the orbit's representative under the element."""
        table = self.representatives[:, None]
        for generator, n in zip(self.generators, self.orders, strict=True):
            blocks = [table]
            for _ in range(n - 1):
                blocks.append(generator[blocks[-1]])
            table = np.concatenate(blocks, axis=1)
        table.setflags(write=False)
        return table

    def product(self, first: NDArray[np.int64] | int, second: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Index of the product of two elements: digit by digit, modulo the orders (vectorised)."""
        a, b = np.broadcast_arrays(np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64))
        result = np.zeros(a.shape, dtype=np.int64)
        radix = 1
        for n in self.orders:
            result += (a // radix + b // radix) % n * radix
            radix *= n
        return result

    def inverse(self, element: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Index of the inverse of an element (vectorised)."""
        a = np.asarray(element, dtype=np.int64)
        result = np.zeros(a.shape, dtype=np.int64)
        radix = 1
        for n in self.orders:
            result += -(a // radix) % n * radix
            radix *= n
        return result

    def image(self, nodes: NDArray[Any] | int, element: NDArray[np.int64] | int) -> NDArray[np.int32]:
        """Images of nodes under elements (broadcast against each other).

        Args:
            element: Element indices, each in ``range(order)``.

        Examples:
            >>> from fractions import Fraction
            >>> from coppice.topology.model import Link, Node, Topology
            >>> rate = Fraction(25)
            >>> links = [Link(src=a, dst=b, gb_per_s=rate, duplex=False) for a, b in ("wx", "xy", "yz", "zw")]
            >>> symmetry = find_symmetry(Topology.of("ring", [Node(id=name) for name in "wxyz"], links))
            >>> symmetry.order, symmetry.image(np.arange(4), 1).tolist()
            (4, [1, 2, 3, 0])
        """
        ids = np.asarray(nodes)
        images: NDArray[np.int32] = self.table[
            self.node_orbit[ids], self.product(self.node_element[ids], element)
        ]
        return images


@lru_cache(maxsize=16)
def find_symmetry(topology: Topology) -> Symmetry:
    """Search a large abelian group of automorphisms of ``topology`` that acts freely on its ranks.

    Found from the graph alone. The group need not be the largest one; it is trivial on graphs without
    symmetry, and where none was found within a work limit.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node, NodeKind, Topology
        >>> nodes = [Node(id="s", kind=NodeKind.SWITCH), *(Node(id=f"g{i}") for i in range(6))]
        >>> links = [Link(src=f"g{i}", dst="s", gb_per_s=Fraction(25)) for i in range(6)]
        >>> star = Topology.of("star", nodes, links)
        >>> symmetry = find_symmetry(star)
        >>> symmetry.orders, symmetry.num_link_orbits
        ((6,), 2)
    """
    return _found(topology, topology.rank >= 0)


@lru_cache(maxsize=16)
def remaining_symmetry(topology: Topology) -> Symmetry:
    """Search a large abelian group of automorphisms that acts freely on the ranks that most others are alike.

    A fault leaves some ranks without any like them, so that no group acts freely on all; the others are as symmetric as
    before. Ranks beside these may be images of a representative under several elements.

    Examples:
        >>> from coppice.topology.operations import set_link_rate
        >>> from coppice.topology.presets import preset
        >>> slow = set_link_rate(preset("star", gpus=5), "gpu0", "switch", "50%")
        >>> find_symmetry(slow).orders, remaining_symmetry(slow).orders
        ((), (4,))
    """
    whole = find_symmetry(topology)
    if whole.order > 1:
        return whole
    look = looks(topology)
    ranks = topology.rank >= 0
    return _found(topology, ranks & (look == np.bincount(look[ranks]).argmax()))


def looks(topology: Topology, *, most: int | None = None) -> NDArray[np.int64]:
    """How nodes look from the network around them: colours refined until they stay, compared by random sums.

    Args:
        topology: The network.
        most: Looks of ranks at most: it ends before there are more; None is any number.

    Examples:
        >>> from coppice.topology.operations import set_link_rate
        >>> from coppice.topology.presets import preset
        >>> slow = set_link_rate(preset("ring", gpus=6), "gpu0", "gpu1", "50%")
        >>> looks(slow)[slow.rank_nodes].tolist()
        [2, 2, 0, 1, 1, 0]
    """
    draw = np.random.default_rng(0)
    label = _link_label(topology)
    weight = draw.random((2, int(label.max(initial=0)) + 1)) + 1
    look = np.unique(_node_colour(topology), return_inverse=True)[1].astype(np.int64)
    while True:
        value = draw.random(int(look.max(initial=0)) + 1)
        seen = np.zeros(topology.num_nodes)
        for here, there, weights in (
            (topology.src, topology.dst, weight[0]),
            (topology.dst, topology.src, weight[1]),
        ):
            seen += np.bincount(here, weights=value[look[there]] * weights[label], minlength=len(seen))
        finer = np.unique(np.stack([look, np.round(seen, 9)]), axis=1, return_inverse=True)[1].reshape(-1)
        many = most is not None and len(np.unique(finer[topology.rank_nodes])) > most
        if many or finer.max() == look.max():
            return look
        look = finer.astype(np.int64)


def _found(topology: Topology, free: NDArray[np.bool_]) -> Symmetry:
    """A group that acts freely on some nodes."""
    from coppice import _core

    orders, generators, node_orbit, node_element, link_orbit, link_orbit_size = _core.find_symmetry(
        topology.num_nodes,
        topology.src,
        topology.dst,
        _node_colour(topology),
        _link_label(topology),
        free,
    )
    return Symmetry(
        orders=tuple(orders.tolist()),
        generators=np.array(generators, dtype=np.int32).reshape(len(orders), topology.num_nodes),
        node_orbit=node_orbit,
        node_element=node_element,
        link_orbit=link_orbit,
        link_orbit_size=link_orbit_size,
    )


def symmetry_of(
    topology: Topology,
    orders: Sequence[int],
    generators: Sequence[Sequence[int]],
    *,
    free: bool = True,
) -> Symmetry:
    """Build and check the symmetry generated by given automorphisms.

    Args:
        topology: The network.
        orders: Of the generators.
        generators: ``generators[i][v]`` is the image of node v under generator i.
        free: Whether it has to act freely on the ranks.
    """
    n = topology.num_nodes
    if len(orders) != len(generators) or any(len(g) != n for g in generators):
        _fail(f"a symmetry needs one order and {n} images for each generator")
    if any(not 2 <= order <= n for order in orders) or prod(orders) > n:
        _fail(f"orders must be 2 or more with a product of at most {n}, found {list(orders)[:8]}")
    if any(not 0 <= image < n for generator in generators for image in generator):
        _fail(f"images must be nodes 0 .. {n - 1}")
    permutations = np.array(generators, dtype=np.int32).reshape(len(orders), n)
    link_images = [_link_images(topology, i, generator) for i, generator in enumerate(permutations)]
    node_orbit = _orbits(n, permutations, orders)
    link_orbit = _orbits(topology.num_links, link_images, orders)
    sizes = np.bincount(link_orbit)[link_orbit] if link_orbit.size else link_orbit
    unplaced = Symmetry(
        orders=tuple(orders),
        generators=permutations,
        node_orbit=node_orbit.astype(np.int32),
        node_element=np.zeros(n, dtype=np.int64),
        link_orbit=link_orbit.astype(np.int32),
        link_orbit_size=sizes.astype(np.int64),
    )
    element = np.full(n, unplaced.order, dtype=np.int64)
    np.minimum.at(element, unplaced.table.ravel(), np.tile(np.arange(unplaced.order), len(unplaced.table)))
    symmetry = replace(unplaced, node_element=element)
    check_symmetry(topology, symmetry, free=free)
    return symmetry


def check_symmetry(topology: Topology, symmetry: Symmetry, *, free: bool = True) -> None:
    """Verify a symmetry by counting alone.

    Every generator must be an automorphism, node by node and link by link; generators must commute and have
    their orders; if the action is to be free, the images of the representatives must meet every rank exactly once;
    orbits, elements and sizes must be those of the group.
    """
    _check_shapes(topology, symmetry)
    link_images = [_link_images(topology, i, g) for i, g in enumerate(symmetry.generators)]
    _check_group(symmetry, topology.num_nodes)
    _check_orbits(symmetry, link_images)
    if free:
        _check_free(topology, symmetry)
    _check_elements(topology, symmetry)


def _node_colour(topology: Topology) -> NDArray[np.int32]:
    """What an automorphism keeps of a node, as one number."""
    colour = topology.kind.astype(np.int32) * 8
    colour += topology.multicast * 4 + topology.aggregate * 2 + (topology.rank >= 0)
    return colour


def _link_label(topology: Topology) -> NDArray[np.int32]:
    """What an automorphism keeps of a link (capacity and latency), as one number."""
    rates, rate = np.unique(topology.capacity, return_inverse=True)
    latency = np.unique(topology.latency_us, return_inverse=True)[1]
    label: NDArray[np.int32] = np.unique(latency * len(rates) + rate, return_inverse=True)[1].astype(np.int32)
    return label


def _check_shapes(topology: Topology, symmetry: Symmetry) -> None:
    n, m, d = topology.num_nodes, topology.num_links, len(symmetry.orders)
    for name, array, shape in (
        ("generators", symmetry.generators, (d, n)),
        ("node_orbit", symmetry.node_orbit, (n,)),
        ("node_element", symmetry.node_element, (n,)),
        ("link_orbit", symmetry.link_orbit, (m,)),
        ("link_orbit_size", symmetry.link_orbit_size, (m,)),
    ):
        if array.shape != shape:
            _fail(f"{name} must have the shape {shape}, found {array.shape}")
    if any(order < 2 for order in symmetry.orders):
        _fail(f"orders must be 2 or more, found {symmetry.orders}")


def _link_images(topology: Topology, which: int, generator: NDArray[np.int32]) -> NDArray[np.int64]:
    """The link that each link is mapped to, once the generator is known to be an automorphism."""
    n = topology.num_nodes
    if not np.array_equal(np.sort(generator), np.arange(n)):
        _fail(f"generator {which} must be a permutation of the {n} nodes")
    colour = _node_colour(topology)
    recoloured = np.flatnonzero(colour[generator] != colour)
    if recoloured.size:
        v = recoloured[0]
        a, b = topology.node_ids[v], topology.node_ids[generator[v]]
        _fail(f"generator {which} must map nodes to nodes of the same kind, found {a} -> {b}")
    keys = topology.src.astype(np.int64) * n + topology.dst
    image_keys = generator[topology.src].astype(np.int64) * n + generator[topology.dst]
    image = np.searchsorted(keys, image_keys).clip(max=max(0, len(keys) - 1)).astype(np.int64)
    same = keys[image] == image_keys
    same &= topology.capacity[image] == topology.capacity
    same &= topology.latency_us[image] == topology.latency_us
    if not same.all():
        e = np.flatnonzero(~same)[0]
        a, b = topology.node_ids[topology.src[e]], topology.node_ids[topology.dst[e]]
        _fail(f"generator {which} must map links to equal links, and link {a} -> {b} has no such image")
    return image


def _check_group(symmetry: Symmetry, n: int) -> None:
    for i, (generator, order) in enumerate(zip(symmetry.generators, symmetry.orders, strict=True)):
        if not np.array_equal(_power(generator, order), np.arange(n)):
            _fail(f"generator {i} must give the identity when applied {order} times")
        if order > 1 and np.array_equal(generator, np.arange(n)):
            _fail(f"generator {i} must move a node")
        for j in range(i):
            other = symmetry.generators[j]
            if not np.array_equal(generator[other], other[generator]):
                _fail(f"generators {j} and {i} must commute")


def _power(permutation: NDArray[np.int32], exponent: int) -> NDArray[np.int32]:
    result = np.arange(len(permutation), dtype=np.int32)
    while exponent:
        if exponent & 1:
            result = permutation[result]
        permutation = permutation[permutation]
        exponent >>= 1
    return result


def _orbits(size: int, generators: Iterable[NDArray[Any]], orders: Iterable[int]) -> NDArray[np.int64]:
    """Orbit of each of ``size`` things under commuting permutations, numbered by the least member."""
    least = np.arange(size)
    for generator, order in zip(generators, orders, strict=True):
        step = generator
        for _ in range((order - 1).bit_length()):  # least over 1, 2, 4, ... powers
            least = np.minimum(least, least[step])
            step = step[step]
    orbit: NDArray[np.int64] = np.unique(least, return_inverse=True)[1]
    return orbit


def _check_orbits(symmetry: Symmetry, link_images: list[NDArray[np.int64]]) -> None:
    nodes = _orbits(len(symmetry.node_orbit), symmetry.generators, symmetry.orders)
    links = _orbits(len(symmetry.link_orbit), link_images, symmetry.orders)
    for name, found, expected in (
        ("node_orbit", symmetry.node_orbit, nodes),
        ("link_orbit", symmetry.link_orbit, links),
        ("link_orbit_size", symmetry.link_orbit_size, np.bincount(links)[links] if links.size else links),
    ):
        wrong = np.flatnonzero(found != expected)
        if wrong.size:
            _fail(f"{name}[{wrong[0]}] must be {expected[wrong[0]]}, found {found[wrong[0]]}")


def _check_free(topology: Topology, symmetry: Symmetry) -> None:
    with_rank = topology.rank[symmetry.representatives] >= 0
    reached = np.bincount(symmetry.table[with_rank].ravel(), minlength=topology.num_nodes)
    fixed = np.flatnonzero((topology.rank >= 0) & (reached != 1))
    if fixed.size:
        name, times = topology.node_ids[fixed[0]], reached[fixed[0]]
        _fail(f"each rank must be one image of one representative, found {times} images that are {name}")


def _check_elements(topology: Topology, symmetry: Symmetry) -> None:
    element = symmetry.node_element
    inside = (element >= 0) & (element < symmetry.order)
    images = symmetry.table[symmetry.node_orbit, np.where(inside, element, 0)]
    wrong = np.flatnonzero(~inside | (images != np.arange(topology.num_nodes)))
    if wrong.size:
        _fail(
            f"node_element[{wrong[0]}] must map the first node of its orbit to node {wrong[0]}, "
            f"found {element[wrong[0]]}"
        )


def _fail(what: str) -> NoReturn:
    raise CheckError(f"{what}: this symmetry is not one of the topology; find it again.")
