"""Trees of transfers along one order of additions, spread over all links: who stands for a part, and by which way.

Theory. A tree of transfers for a block that is summed at a rank is a choice, at each node of the tree of additions, of
the rank that stands for the other part, and of a way from it. Under a price of every link the cheapest tree is found
from the leaves up: what it costs to sum a node at a rank of it is the cost of the rank's own part there, and the least,
over the ranks of the other part, of their cost and of the way. Busier links cost more, by a power of how busy they are,
so that each tree in turn goes where there is room (Garg and Koenemann, SIAM J. Comput. 37, 2007); then each is taken
away and chosen anew some times. What is kept is the round in which the busiest link has least to do.

How much room there is: each block crosses each node of the order once, from one part to the other, wherever its sums
are held. That is a flow, whose least congestion is a linear program (``tests/reference/ordered_bound.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.schedule.verification.sums import Addends
from coppice.topology.model import NodeKind, Topology

MOST_NODES = 320
"""Ways between all nodes are computed for every few trees: no more than networks of this size are spread."""

ROUNDS = 12
_POWER = 8.0
_BATCHES = 48
_FAR = 1e30

_Way = tuple[int, ...]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OrderedTransfer:
    """A transfer of a tree."""

    step: int  # Height of the node that it sums, from 0
    src: int  # Rank that stands for the other part
    dst: int  # Rank that adds
    way: _Way  # Nodes from one to the other


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumNode:
    """A node of the tree of additions."""

    ranks: range  # Those that it sums, which are neighbours
    height: int  # Additions from a leaf to the node, at most
    parts: tuple[SumNode, ...]  # None of a leaf

    @classmethod
    def of(cls, node: Addends) -> SumNode:
        """The node, and all below it."""
        if isinstance(node, int):
            return cls(ranks=range(node, node + 1), height=0, parts=())
        parts = tuple(cls.of(part) for part in node)
        ranks = range(parts[0].ranks.start, parts[-1].ranks.stop)
        return cls(ranks=ranks, height=1 + max(part.height for part in parts), parts=parts)


def spread(
    topology: Topology, order: Addends, owners: Sequence[int], *, backwards: bool, relay_gpus: bool
) -> list[list[OrderedTransfer]] | None:
    """A tree for each block, such that the busiest link has little to do; None where some rank cannot be reached.

    Args:
        order: The tree of additions over all ranks.
        owners: Rank at which each block is summed; of blocks in several parts, of each part.
        backwards: The same transfers go back afterwards, as in an all-reduce.
        relay_gpus: Ways may lead through other GPUs.

    Examples:
        Four GPUs joined with each other: each pair that begins a sum has one link, and ways around it.

        >>> from coppice.schedule.verification.sums import PAIRS, named_order
        >>> from coppice.topology.presets import preset
        >>> mesh = preset("complete", gpus=4)
        >>> found = [spread(mesh, named_order(PAIRS, 4), [*range(4)] * 4, backwards=True, relay_gpus=relay)
        ...          for relay in (False, True)]
        >>> [max(len(each.way) for tree in trees for each in tree) for trees in found]
        [2, 3]
    """
    total = SumNode.of(order)
    network = _PricedLinks(topology, backwards=backwards, relay_gpus=relay_gpus)
    batch = max(1, len(owners) // _BATCHES)
    trees: list[list[OrderedTransfer]] = [[] for _ in owners]
    best: list[list[OrderedTransfer]] | None = None
    least = np.inf
    for _ in range(ROUNDS):
        for first in range(0, len(owners), batch):
            members = range(first, min(len(owners), first + batch))
            for each in members:
                network.count(trees[each], -1.0)
            network.reprice()
            costs: dict[SumNode, _Floats] = {}
            network.price(total, costs)
            if any(costs[total][owners[each]] >= _FAR for each in members):
                return None
            for each in members:
                trees[each] = []
                network.cheapest(total, owners[each], costs, trees[each])
                network.count(trees[each], 1.0)
        if network.busiest < least * (1 - 1e-9):
            least, best = network.busiest, list(trees)
    return best


@dataclass
class _PricedLinks:
    """Links with what trees send over them, and the cheapest ways at their prices."""

    topology: Topology
    backwards: bool
    relay_gpus: bool
    sent: _Floats = field(init=False)  # Blocks by link

    def __post_init__(self) -> None:
        topology = self.topology
        self.sent = np.zeros(topology.num_links)
        self._links = topology.link_index
        self._rate = topology.capacity.astype(np.float64) / topology.capacity.max()
        back = [
            self._links.get((dst, src), -1)
            for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        ]
        self._one_way = np.array(back) < 0
        self._back = np.array(back, dtype=np.int64)
        forwards = topology.kind != NodeKind.GPU
        if self.relay_gpus:
            forwards = np.ones_like(forwards)
        self._forwards: list[int] = np.flatnonzero(forwards).tolist()
        self._cost: _Floats = np.zeros((0, 0))
        self._next: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)

    @property
    def _busy(self) -> _Floats:
        """Time of each link for what trees send, and for the way back."""
        sent = self.sent + self.sent[self._back] if self.backwards else self.sent
        return np.asarray(sent / self._rate)

    @property
    def busiest(self) -> float:
        """Time of the busiest link."""
        return float(self._busy.max())

    def count(self, tree: Sequence[OrderedTransfer], times: float) -> None:
        """Add what a tree sends, or take it away."""
        for each in tree:
            for a, b in zip(each.way[:-1], each.way[1:], strict=True):
                self.sent[self._links[a, b]] += times

    def reprice(self) -> None:
        """Find the cheapest ways between ranks at the prices of what links have to do now."""
        busy = self._busy
        top = max(float(busy.max()), 1.0)
        # What one more block makes of each link; a link that hardly has anything to do still costs a little.
        added = (busy + 1 / self._rate) / top
        price = (1e-3 + added**_POWER) / self._rate
        if self.backwards:
            price = price + price[self._back]
        nodes = self.topology.num_nodes
        cost = np.full((nodes, nodes), _FAR)
        if self.backwards:
            price[self._one_way] = _FAR
        cost[self.topology.src, self.topology.dst] = price
        following = np.tile(np.arange(nodes, dtype=np.int32), (nodes, 1))
        for middle in self._forwards:
            around = cost[:, middle, None] + cost[None, middle, :]
            shorter = around < cost
            np.copyto(cost, around, where=shorter)
            np.copyto(following, following[:, middle, None], where=shorter)
        ends = self.topology.rank_nodes
        self._cost, self._next = cost[np.ix_(ends, ends)], following
        np.fill_diagonal(self._cost, 0.0)

    def price(self, node: SumNode, costs: dict[SumNode, _Floats]) -> None:
        """What it costs to sum each node of the order at each of its ranks, from the leaves up."""
        if not node.parts:
            costs[node] = np.zeros(1)
            return
        for part in node.parts:
            self.price(part, costs)
        own, other = node.parts
        costs[node] = np.concatenate(
            [
                costs[here] + (costs[there][:, None] + self._block(there.ranks, here.ranks)).min(axis=0)
                for here, there in ((own, other), (other, own))
            ]
        )

    def cheapest(
        self, node: SumNode, at: int, costs: dict[SumNode, _Floats], tree: list[OrderedTransfer]
    ) -> None:
        """Append the cheapest tree that sums a node at a rank of it."""
        if not node.parts:
            return
        own, other = node.parts if at in node.parts[0].ranks else node.parts[::-1]
        ranks = other.ranks
        sender = ranks.start + int((costs[other] + self._cost[ranks.start : ranks.stop, at]).argmin())
        self.cheapest(own, at, costs, tree)
        self.cheapest(other, sender, costs, tree)
        tree.append(OrderedTransfer(step=node.height - 1, src=sender, dst=at, way=self._way(sender, at)))

    def _block(self, src: range, dst: range) -> _Floats:
        return self._cost[src.start : src.stop, dst.start : dst.stop]

    def _way(self, src: int, dst: int) -> _Way:
        here, end = (int(self.topology.rank_nodes[rank]) for rank in (src, dst))
        way = [here]
        while here != end:
            here = int(self._next[here, end])
            way.append(here)
        return tuple(way)
