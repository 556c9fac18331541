"""One topology that holds several: those on which the groups of a job were planned are parts of one cluster.

Nodes are the same where they have the same name. Plans for parts of a cluster (``topology.subset``) keep its names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coppice.errors import InputError
from coppice.topology.model import Link, Node, Topology

__all__ = ["union"]


def union(topologies: Sequence[Topology]) -> Topology:
    """The topology of all nodes and links of ``topologies``; one of them, where it holds all others.

    Ranks of the result count all GPUs in order of their nodes, unless it is one of the given.

    Args:
        topologies: Parts of one cluster, one or more.

    Raises:
        InputError: If two of them disagree about a node, a link or its rate: they are parts of no one cluster.

    Examples:
        >>> from coppice.topology.operations import subset
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-a100")
        >>> union([subset(box, [0, 1, 2]), subset(box, [2, 3])]).num_ranks
        4
    """
    nodes: dict[str, Node] = {}
    links: dict[tuple[str, str], Link] = {}
    members: list[set[str]] = []
    for topology in topologies:
        _join_nodes(topology, nodes)
        own = {(link.src, link.dst): link for link in topology.links()}
        members.append(set(topology.node_ids))
        _join_links(topology, own, links)
    _check_links(topologies, members, links)
    ranked = {topology.node_ids[v] for topology in topologies for v in topology.rank_nodes.tolist()}
    for topology in topologies:
        counts = (topology.num_nodes, topology.num_links, topology.num_ranks)
        if counts == (len(nodes), len(links), len(ranked)):
            return topology
    names = " + ".join(dict.fromkeys(topology.name for topology in topologies))
    return Topology.of(names, list(nodes.values()), links.values(), source=topologies[0].source)


def _join_nodes(topology: Topology, nodes: dict[str, Node]) -> None:
    for node in topology.nodes():
        node = replace(node, rank=None)
        if nodes.setdefault(node.id, node) != node:
            msg = (
                f"expected parts of one cluster, found that the node {node.id} of {topology.name} differs from the "
                "one of that name in another part: plan all on the same cluster."
            )
            raise InputError(msg)


def _join_links(
    topology: Topology, own: dict[tuple[str, str], Link], links: dict[tuple[str, str], Link]
) -> None:
    for ends, link in own.items():
        known = links.setdefault(ends, link)
        if known != link:
            msg = (
                f"expected parts of one cluster, found {link.src} -> {link.dst} with {link.gb_per_s} GB/s and "
                f"{link.latency_us} us on {topology.name}, with {known.gb_per_s} GB/s and {known.latency_us} us on "
                "another part: plan all on the same cluster."
            )
            raise InputError(msg)


def _check_links(
    topologies: Sequence[Topology], members: list[set[str]], links: dict[tuple[str, str], Link]
) -> None:
    """Refuse where a part has both ends of a link and not the link."""
    for topology, nodes in zip(topologies, members, strict=True):
        inside = sum(src in nodes and dst in nodes for src, dst in links)
        if inside == topology.num_links:
            continue
        names = topology.node_ids
        own = {(names[a], names[b]) for a, b in topology.link_index}
        src, dst = next(ends for ends in links if ends not in own and nodes.issuperset(ends))
        msg = (
            f"expected parts of one cluster, found that {topology.name} lacks the link {src} -> {dst} of another "
            "part: plan all on the same cluster."
        )
        raise InputError(msg)
