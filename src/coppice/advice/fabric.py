"""The network beyond NICs, which NCCL does not know: what rings and trees load there, and orders of ranks for it.

NCCL goes from host to host in the order of their first ranks, and reckons as if all cables of a host led everywhere at
full rate. What its channels send between switches takes the rate that these links have; flows are spread over equally
good paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from coppice.advice.changes import Change
from coppice.collectives import Collective
from coppice.export.rank_order import LAUNCHERS, rank_order_text
from coppice.fitting.rank_order import MOST_RANKS, RankOrder, rank_order
from coppice.selection.nccl.connect import Connections
from coppice.topology.model import Topology
from coppice.topology.operations import subset
from coppice.topology.routing import Router

LAUNCHER = "hosts"
"""Form in which an order of ranks is written."""

_RINGS, _TREES = ("Ring",), ("Tree", "NVLSTree")
_MOST_PATHS = 1 << 12


def has_fabric(topology: Topology) -> bool:
    """Whether there are links between switches outside of hosts.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> has_fabric(preset("dgx-a100", boxes=2)), has_fabric(preset("fat-tree"))
        (False, True)
    """
    host = topology.host
    outside = (host[topology.src] < 0) & (host[topology.dst] < 0)
    ranks = (topology.rank[topology.src] >= 0) | (topology.rank[topology.dst] >= 0)
    return bool((outside & ~ranks).any())


@dataclass(frozen=True, kw_only=True)
class FabricLoads:
    """Microseconds for which the busiest link between switches is in use for a byte, by what crosses it."""

    ring: float  # Of a buffer that goes around every ring once
    tree: float  # Of a buffer that goes up and down every tree

    def least_us(self, algorithm: str, collective: Collective, size_bytes: int, ranks: int) -> float:
        """Least time of a call.

        Args:
            algorithm: NCCL's name of the algorithm.
            size_bytes: M (see :mod:`coppice.collectives`).

        Examples:
            >>> loads = FabricLoads(ring=1e-4, tree=2e-4)
            >>> [loads.least_us(name, Collective.ALL_REDUCE, 10**6, 4) for name in ("Ring", "Tree", "NVLS")]
            [150.0, 200.0, 0.0]
        """
        if algorithm in _TREES:
            return self.tree * size_bytes
        if algorithm not in _RINGS:
            return 0.0
        turns = {Collective.ALL_REDUCE: 2 * (ranks - 1) / ranks}.get(collective, (ranks - 1) / ranks)
        return self.ring * size_bytes * (1.0 if collective.rooted else turns)


def fabric_loads(topology: Topology, connections: Connections) -> FabricLoads:
    """Loads of NCCL's rings and trees on links between switches."""
    rings: Counter[tuple[int, int]] = Counter()
    for order in connections.rings:
        rings.update(zip(order, (*order[1:], order[0]), strict=True))
    trees: Counter[tuple[int, int]] = Counter()
    for tree in connections.trees:
        for rank, node in enumerate(tree):
            for child in node.down:
                trees[rank, child] += 1
                trees[child, rank] += 1
    router = Router(topology)
    channels = max(1, connections.count)
    return FabricLoads(
        ring=_busiest(topology, router, rings) / channels, tree=_busiest(topology, router, trees) / channels
    )


def _busiest(topology: Topology, router: Router, flows: Mapping[tuple[int, int], int]) -> float:
    """Microseconds for a byte of every flow on the busiest link between switches."""
    host, nodes, index = topology.host, topology.rank_nodes, topology.link_index
    busy: dict[int, float] = {}
    for (a, b), count in flows.items():
        if host[nodes[a]] == host[nodes[b]] and host[nodes[a]] >= 0:
            continue
        paths = router.equal_paths(a, b, most=_MOST_PATHS)
        for path in paths:
            for here, there in pairwise(path):
                if host[here] < 0 and host[there] < 0 and max(topology.rank[here], topology.rank[there]) < 0:
                    link = index[here, there]
                    busy[link] = busy.get(link, 0.0) + count / len(paths)
    return max((load / float(topology.gb_per_s(link)) / 1000 for link, load in busy.items()), default=0.0)


def order_changes(topology: Topology) -> Iterator[tuple[Change, RankOrder]]:
    """The order of ranks whose ring crosses fewest links, where the one there is crosses more."""
    hosts = len(set(topology.host[topology.rank_nodes].tolist()))
    if hosts < 3 or topology.num_ranks > MOST_RANKS or not has_fabric(topology):
        return
    found = rank_order(topology)
    if found.after.weighted >= found.before.weighted:
        return
    gpus = list(found.gpus)
    yield (
        Change(
            name="rank order",
            what=f"start the ranks host by host in the order of {order_file_name()}: rings cross {found.after.words}, "
            f"not {found.before.words}",
            undo="start them on the hosts in their former order",
            mend=lambda whole: subset(whole, gpus),
        ),
        found,
    )


def order_file_name() -> str:
    """Name of the file with an order of ranks."""
    return "hosts.txt"


def order_text(order: RankOrder) -> tuple[str, str, str]:
    """The file of an order, how it is used, and what was checked of it."""
    text = rank_order_text(order, LAUNCHER)
    named = text.split()
    right = sorted(named) == sorted(set(order.hosts))
    judged = f"{len(named)} hosts, each once" if right else "not every host is there once"
    return text, LAUNCHERS[LAUNCHER][1], judged
