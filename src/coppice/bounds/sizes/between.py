"""All boxes at once: what each of them receives of one rank's data comes last across from another box.

Theory (docs/theory.md, Theorem 19). Follow a byte backwards from a rank of another box than the root's to the last
message that brings it into that box. It comes from a rank x of another box, no earlier than the distance of x, takes
links of its own box until it leaves that, and different bytes and boxes have different such messages, as switches do
not copy. So what all boxes lack is a flow over time from one node, at which all *ways out* of boxes begin: ways out of
each rank x, opened after its distance, lead through copies of the links of its box. A message that ends within the box
does not cross, so copies lead to no rank.

A box that passes on what it has received can begin a crossing later than the root's box, which alone could not send to
all, and no box receives more than its links take. Both count at once here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.sizes.crossings import insides
from coppice.bounds.sizes.timed import TimedNetwork, nearest


def between_boxes(network: TimedNetwork, boxes: Sequence[Sequence[int]], root: int) -> TimedNetwork:
    """The network with ways out of boxes that all begin at one node, the last.

    Copies of all nodes come behind these, in their order.

    Args:
        network: What messages cost, turned round for a reduction.
        boxes: Nodes of the ranks of each box.
        root: Node of the rank whose data are looked at.

    Examples:
        >>> from coppice.bounds.sizes.timed import MessageCosts
        >>> from coppice.topology.presets import preset
        >>> network = TimedNetwork.of(preset("path", gpus=2), MessageCosts(message_us=1))  # each GPU is a box
        >>> made = between_boxes(network, [[0], [1]], 0)
        >>> [(int(a), int(b)) for a, b in zip(made.tail, made.head)]
        [(0, 1), (1, 0), (2, 1), (3, 0), (4, 2), (4, 3)]
        >>> made.latency.tolist()
        [1000, 1000, 1000, 1000, 0, 1000]
    """
    inside = np.array(insides(network, {node: box for box, ranks in enumerate(boxes) for node in ranks}))
    ranks = np.array([node for members in boxes for node in members], dtype=np.int32)
    ways = nearest(network.tail, network.head, network.latency, [root])
    nodes = network.num_nodes
    leads_out = inside[network.head] != inside[network.tail]
    copied = (inside[network.tail] >= 0) & (leads_out | ~np.isin(network.head, ranks))
    out = np.zeros(nodes, dtype=np.int64)
    np.add.at(out, network.tail, network.capacity)
    opened = np.array([node for node in ranks.tolist() if node in ways and out[node]], dtype=np.int32)
    heads = np.where(leads_out, network.head, network.head + nodes)[copied]
    opens = np.array([ways[node] for node in opened.tolist()], dtype=np.int64)
    return replace(
        network,
        num_nodes=2 * nodes + 1,
        tail=_nodes(network.tail, network.tail[copied] + nodes, np.full(len(opened), 2 * nodes)),
        head=_nodes(network.head, heads, opened + nodes),
        capacity=np.concatenate([network.capacity, network.capacity[copied], out[opened]]),
        latency=np.concatenate([network.latency, network.latency[copied], opens]),
    )


def _nodes(*columns: NDArray[np.integer]) -> NDArray[np.int32]:
    return np.concatenate(columns).astype(np.int32)
