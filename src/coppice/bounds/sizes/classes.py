"""Classes of nodes that are alike for a bound, and the smaller network of these classes.

Theory. A partition of the nodes is *equitable* if any two nodes of a class have links of the same rates and latencies
to, and from, each class alike. A flow over time, averaged over the nodes of each class, stays one; so the least time in
which one sink, a class of its own, has what others hold is that of the network of classes, in which links from class to
class add up. (That linear programs keep their optimum under such partitions is the theorem of Grohe, Kersting, Mladenov
and Selman, "Dimension reduction via colour refinement", ESA 2014.) The coarsest one is found by refining colours: nodes
of one colour whose neighbours differ are told apart until none are.

Colours are hashes of 64 bits. Should two ever collide, the labelling that comes out proves less than it says, which its
check on the whole network finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.sizes.timed import TimedNetwork


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassNetwork:
    """The network of classes: links between two of them add up, those within one lead nowhere."""

    node_class: NDArray[np.int64]  # Class of each node
    num_classes: int
    tail: NDArray[np.int32]  # Of each link between classes
    head: NDArray[np.int32]
    capacity: list[int]  # Sum of the capacities of its links, in units of the network's scale
    links: NDArray[np.int64]  # Number of its links
    latency: NDArray[np.int64]  # Units; links of different latency between two classes stay apart


def refine(network: TimedNetwork, colour: NDArray[np.int64]) -> NDArray[np.int64]:
    """The coarsest equitable partition that is finer than `colour`: the class of each node, 0 and up.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> from coppice.bounds.sizes.timed import MessageCosts
        >>> ring = TimedNetwork.of(preset("ring", gpus=6), MessageCosts())
        >>> refine(ring, np.array([1, 0, 0, 0, 0, 0])).tolist()
        [0, 1, 2, 3, 2, 1]
    """
    _, kind = np.unique(np.stack([network.capacity, network.latency]), axis=1, return_inverse=True)
    kind = kind.reshape(-1).astype(np.uint64)
    _, found = np.unique(colour, return_inverse=True)
    while True:
        count = int(found.max(initial=-1)) + 1
        mixed = _mixed(np.multiply(found.astype(np.uint64), np.uint64(0x9E3779B97F4A7C15), dtype=np.uint64))
        seen = np.zeros(network.num_nodes, dtype=np.uint64)
        np.add.at(seen, network.tail, _mixed(mixed[network.head] + kind + np.uint64(1)))
        np.add.at(seen, network.head, _mixed(mixed[network.tail] ^ _mixed(kind + np.uint64(7))))
        _, found = np.unique(_mixed(mixed + _mixed(seen)), return_inverse=True)
        if int(found.max(initial=-1)) + 1 == count:
            return _by_first(found)


def class_network(network: TimedNetwork, node_class: NDArray[np.int64]) -> ClassNetwork:
    """The network of the classes of an equitable partition."""
    tail, head = node_class[network.tail], node_class[network.head]
    between = tail != head
    key = np.stack([tail[between], head[between], network.latency[between]])
    ends, index = np.unique(key, axis=1, return_inverse=True)
    capacity = [0] * ends.shape[1]
    index = index.reshape(-1)
    for place, added in zip(index.tolist(), network.capacity[between].tolist(), strict=True):
        capacity[place] += added
    return ClassNetwork(
        node_class=node_class,
        num_classes=int(node_class.max(initial=-1)) + 1,
        tail=ends[0].astype(np.int32),
        head=ends[1].astype(np.int32),
        capacity=capacity,
        links=np.bincount(index, minlength=ends.shape[1]),
        latency=ends[2],
    )


def _mixed(numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Hashes of 64 bits (the finaliser of splitmix64)."""
    values: NDArray[np.uint64] = numbers.astype(np.uint64)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _by_first(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Classes numbered by their first nodes, so that results do not depend on hashes."""
    _, first = np.unique(found, return_index=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    numbered: NDArray[np.int64] = place[found]
    return numbered
