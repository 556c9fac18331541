"""Rings and trees over all boxes from the channels of each, as ``src/graph/connect.cc`` of NCCL 2.30 joins them.

A channel's ring leaves each box at the end of its order and enters the next box at the beginning. Trees take the order
of a box as a chain; boxes form two binary trees with the roles of inner boxes and leaves exchanged, and channels are
used twice: the first half for one tree, the second half for the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from coppice.display import Brief
from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.searching import BoxGraphs
from coppice.selection.nccl.system import MOST_CHANNELS


@dataclass(frozen=True, kw_only=True)
class BoxChannels:
    """What one box has found."""

    ranks: tuple[int, ...]  # Ranks of the communicator, by their number in the box
    graphs: BoxGraphs


@dataclass(frozen=True, kw_only=True, repr=False)
class Connections(Brief):
    """Channels of a communicator."""

    rings: tuple[tuple[int, ...], ...]  # Ranks in order from rank 0, by channel
    trees: tuple[tuple[TreeNode, ...], ...]  # Parent and children of every rank, by channel
    # By channel, for each rank the one whose NIC it uses: that which the NIC's own channel comes in by first
    ring_nics: tuple[tuple[int, ...], ...]
    tree_nics: tuple[tuple[int, ...], ...]
    nvls_heads: tuple[tuple[int, ...], ...]  # Ranks that pull and push for NVLS, by box

    @property
    def count(self) -> int:
        """Number of channels of a kernel at most."""
        return len(self.rings)


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """A rank in a tree."""

    up: int = -1
    down: tuple[int, ...] = ()


def connected(boxes: list[BoxChannels], *, capability: int, adds: bool = False) -> Connections:
    """Join the channels of all boxes.

    Args:
        boxes: The boxes, in the order of their first ranks.
        capability: Lowest compute capability, times ten.
        adds: CollNet is used.

    Raises:
        ValueError: If a ring is not a cycle over all ranks, which no search of NCCL gives.
    """
    count = min(min(box.graphs.ring.count, box.graphs.tree.count) for box in boxes)
    rings = [_ring(boxes, channel, count) for channel in range(count)]
    both = [_trees(boxes, channel) for channel in range(count)]
    trees = [tree[0] for tree in both] + [tree[1] for tree in both]
    used = channels_of(
        [box.graphs for box in boxes],
        capability=capability,
        adds=adds,
        ranks=sum(len(box.ranks) for box in boxes),
    )
    ring_nics = [_nics(boxes, [box.graphs.ring for box in boxes], channel) for channel in range(count)]
    tree_nics = [_nics(boxes, [box.graphs.tree for box in boxes], channel) for channel in range(count)]
    return Connections(
        rings=tuple(rings[channel % count] for channel in used),
        trees=tuple(trees[channel] for channel in used),
        ring_nics=tuple(ring_nics[channel % count] for channel in used),
        tree_nics=tuple(tree_nics[channel % count] for channel in used),
        nvls_heads=tuple(_heads(box) for box in boxes),
    )


def channels_of(boxes: Sequence[BoxGraphs], *, capability: int, ranks: int, adds: bool = False) -> list[int]:
    """For each channel of a kernel the searched channel that it repeats; the second tree counts from their number.

    Args:
        boxes: What each box has found.
        capability: Lowest compute capability, times ten.
        adds: CollNet is used.
    """
    chains = [box.collnet_chain for box in boxes if box.collnet_chain is not None]
    slow = (
        [min(getattr(chain, name) for chain in chains) for name in ("within", "across")] if chains else [0, 0]
    )
    return kernel_channels(
        min(min(box.ring.count, box.tree.count) for box in boxes),
        capability=capability,
        boxes=len(boxes),
        within=min(box.ring.within for box in boxes),
        more=adds and ranks > len(boxes) and slow[0] > slow[1],
    )


def kernel_channels(
    count: int, *, capability: int, boxes: int, within: float, more: bool = False
) -> list[int]:
    """Channels of a kernel: each searched one twice, half as many again for CollNet, and twice that for few fast ones.

    Args:
        count: Number of searched channels.
        capability: Lowest compute capability, times ten.
        within: GB/s of a channel of the ring inside a box.
        more: CollNet has a faster chain inside boxes than between them.

    Examples:
        >>> kernel_channels(2, capability=80, boxes=2, within=24.0)
        [0, 1, 2, 3]
        >>> len(kernel_channels(4, capability=90, boxes=2, within=48.0))
        16
    """
    found = list(range(2 * count))[:MOST_CHANNELS]
    if more:
        found += found[: min(MOST_CHANNELS, len(found) + len(found) // 2) - len(found)]
    if capability >= 90 and boxes > 1 and within > 45 and len(found) < 16:
        found += found
    return found


def _heads(box: BoxChannels) -> tuple[int, ...]:
    graph = box.graphs.nvls
    if graph is None:
        return ()
    return tuple(dict.fromkeys(box.ranks[order[0]] for order in graph.orders))


def _ring(boxes: list[BoxChannels], channel: int, count: int) -> tuple[int, ...]:
    orders = []
    for node, box in enumerate(boxes):
        # Channels that change NICs do so in pairs: odd boxes exchange them, so that both ends of a cable are one rail.
        swapped = box.graphs.ring.cross_nic == 2 and count % 2 == 0 and node % 2 == 1
        order = box.graphs.ring.orders[channel ^ 1 if swapped else channel]
        orders.append([box.ranks[each] for each in order])
    ring = [rank for order in orders for rank in order]
    if sorted(ring) != list(range(len(ring))):
        raise ValueError(f"expected a ring of {len(ring)} ranks, found {ring}")
    start = ring.index(0)
    return tuple(ring[start:] + ring[:start])


def _nics(boxes: list[BoxChannels], graphs: Sequence[ChannelGraph], channel: int) -> tuple[int, ...]:
    """For each rank the one whose NIC it uses: the first of a channel has the port in, the last the port out."""
    found = list(range(sum(len(box.ranks) for box in boxes)))
    for box, graph in zip(boxes, graphs, strict=True):
        if len(boxes) == 1 or not graph.ports:
            continue
        order, (into, out) = graph.orders[channel], graph.ports[channel]
        ring = box.graphs.ring
        owner = {port: each[0] for each, (port, _) in zip(ring.orders[::-1], ring.ports[::-1], strict=True)}
        for place in (order[-1], order[min(1, len(order) - 1)]):
            found[box.ranks[place]] = box.ranks[owner.get(out, place)]
        found[box.ranks[order[0]]] = box.ranks[owner.get(into, order[0])]
    return tuple(found)


@dataclass
class _Draft:
    up: int = -1
    down: list[int] = field(default_factory=list)


def _trees(boxes: list[BoxChannels], channel: int) -> tuple[tuple[TreeNode, ...], tuple[TreeNode, ...]]:
    """Both trees of a channel."""
    ranks = sum(len(box.ranks) for box in boxes)
    chains = [[box.ranks[each] for each in box.graphs.tree.orders[channel]] for box in boxes]
    drafts = tuple([_Draft() for _ in range(ranks)] for _ in range(2))
    for chain in chains:
        for draft in drafts:
            for above, below in itertools.pairwise(chain):
                draft[below].up = above
                draft[above].down.append(below)
    parents = [chain[0] for chain in chains]
    first = [
        chain[0 if box.graphs.tree.pattern is ChannelPattern.TREE else min(1, len(chain) - 1)]
        for chain, box in zip(chains, boxes, strict=True)
    ]
    second = [
        chain[min(1, len(chain) - 1)] if box.graphs.tree.pattern is ChannelPattern.SPLIT_TREE else chain[0]
        for chain, box in zip(chains, boxes, strict=True)
    ]
    for node in range(len(boxes)):
        for draft, place in zip(drafts, double_tree(len(boxes), node), strict=True):
            if place.up != -1:
                draft[parents[node]].up = (first if place.first_child else second)[place.up]
            for end, child in ((first, place.left), (second, place.right)):
                if child != -1:
                    draft[end[node]].down.append(parents[child])
    made = [tuple(TreeNode(up=each.up, down=tuple(each.down)) for each in draft) for draft in drafts]
    return made[0], made[1]


@dataclass(frozen=True, kw_only=True)
class TreePlace:
    """A box in a binary tree of boxes."""

    up: int  # Its parent, or -1
    left: int  # Its children, or -1
    right: int
    first_child: bool  # It is the first child of its parent


def double_tree(boxes: int, box: int) -> tuple[TreePlace, TreePlace]:
    """Places of a box in both trees: the second one is mirrored, or shifted by one for an odd number of boxes.

    Examples:
        >>> [place.up for place in double_tree(4, 1)], [place.up for place in double_tree(4, 0)]
        ([2, 3], [-1, 1])
    """
    first = _binary_tree(boxes, box)
    if boxes % 2:
        found, back = _binary_tree(boxes, (box - 1) % boxes), 1
        moved = [
            each if each == -1 else (each + back) % boxes for each in (found.up, found.left, found.right)
        ]
    else:
        found = _binary_tree(boxes, boxes - 1 - box)
        moved = [each if each == -1 else boxes - 1 - each for each in (found.up, found.left, found.right)]
    second = TreePlace(up=moved[0], left=moved[1], right=moved[2], first_child=found.first_child)
    return first, second


def _binary_tree(boxes: int, box: int) -> TreePlace:
    """Tree in which every other box is a leaf: the lowest bit that is set tells the height."""
    bit = 1
    while bit < boxes and not bit & box:
        bit <<= 1
    if box == 0:
        return TreePlace(up=-1, left=-1, right=bit >> 1 if boxes > 1 else -1, first_child=True)
    up = (box ^ bit) | (bit << 1)
    if up >= boxes:
        up = box ^ bit
    low = bit >> 1
    if not low:
        return TreePlace(up=up, left=-1, right=-1, first_child=box < up)
    right = box + low
    while right >= boxes:
        right = box + low if low else -1
        low >>= 1
    return TreePlace(up=up, left=box - (bit >> 1), right=right, first_child=box < up)
