"""The graph of a topology that somebody brings: ranks joined directly, links of any rates."""

from __future__ import annotations

import numpy as np

from coppice.design.graph import MAX_LINKS, MAX_NODES, Graph
from coppice.errors import InputError
from coppice.topology.model import Topology

__all__ = ["graph_of"]


def graph_of(topology: Topology) -> tuple[Graph, int]:
    """The graph of a direct-connect topology, with rates in the place of numbers of parallel links.

    Args:
        topology: GPUs only; node r of the graph is rank r.

    Returns:
        The graph, whose degree is the largest rate at which a node sends, and the least rate, in the same unit: the
        greatest common divisor of all rates.

    Raises:
        InputError: If the topology has switches, NICs or GPUs without a rank, or is too large.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> graph, least = graph_of(preset("ring", gpus=4, gb_per_s=25))
        >>> graph.num_nodes, graph.degree, least
        (4, 2, 1)
    """
    others = np.flatnonzero(topology.rank < 0)
    if len(others):
        found = f"{len(others)} nodes that are none, such as {topology.node_ids[int(others[0])]!r}"
        msg = f"expected a direct-connect topology of ranks only, found {found}: use `coppice plan` for it."
        raise InputError(msg)
    ranks = topology.num_ranks
    if not 1 <= ranks <= MAX_NODES or topology.num_links > MAX_LINKS:
        msg = f"expected 1 .. {MAX_NODES:,} ranks and at most {MAX_LINKS:,} links, found {ranks:,} ranks."
        raise InputError(msg)
    src, dst = topology.rank[topology.src], topology.rank[topology.dst]
    order = np.lexsort((dst, src))
    unit = max(1, int(np.gcd.reduce(topology.capacity))) if topology.num_links else 1
    count = topology.capacity[order] // unit
    sent = np.zeros(ranks, dtype=np.int64)
    np.add.at(sent, src[order], count)
    graph = Graph(
        name=topology.name,
        degree=int(sent.max(initial=0)),
        start=np.searchsorted(src[order], np.arange(ranks + 1)).astype(np.int64),
        dst=dst[order].astype(np.int32),
        count=count,
    )
    return graph, int(count.min(initial=1)) if len(count) else 1
