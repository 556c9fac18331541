"""Join the messages of several jobs into one table on the union of their topologies.

The topologies on which the groups of a job were planned are parts of one cluster. Nodes are the same where they have
the same name. Plans for parts of a cluster (``topology.subset``) keep its names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.messages import Messages, Routes
from coppice.topology.model import Link, Node, Topology


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Joined(Brief):
    """Messages of several jobs in one table."""

    messages: Messages  # All of them, job after job
    first: NDArray[np.int64]  # First message of each job, and the number of all (int64)

    def of_job(self, number: int) -> slice:
        """Messages of one job."""
        return slice(int(self.first[number]), int(self.first[number + 1]))


def joined(
    parts: Sequence[Messages], *, start_us: Sequence[float], topology: Topology | None = None
) -> Joined:
    """Join the messages of several jobs, each with its own start time.

    Args:
        topology: The cluster; None is what the topologies of the parts add up to.
    """
    if any(part.overhead_us is not None for part in parts):
        raise InputError(
            "expected messages that cost what the model says, found overheads of their own: join first."
        )
    topologies = [part.topology for part in parts]
    cluster = union(topologies if topology is None else [topology, *topologies])
    first = offsets(np.array([part.count for part in parts], dtype=np.int64))
    gates = np.cumsum([0, *(len(part.chained) for part in parts)])
    routes = np.cumsum([0, *(len(part.routes.num_links) for part in parts)])
    shift = {"route": routes, "send_gate": gates, "receive_gate": gates, "after": first}
    columns: dict[str, Any] = {
        each.name: _column(parts, each.name, shift.get(each.name))
        for each in fields(Messages)
        if each.name not in ("topology", "routes", "after_start", "due_us", "overhead_us", "job")
    }
    messages = Messages(
        topology=cluster,
        routes=_all_routes(parts, cluster),
        after_start=_after_start(parts),
        job=np.repeat(np.arange(len(parts), dtype=np.int32), [part.count for part in parts]),
        due_us=np.concatenate(
            [
                (part.due_us if len(part.due_us) else np.zeros(part.count)) + start
                for part, start in zip(parts, start_us, strict=True)
            ]
        ),
        **columns,
    )
    return Joined(messages, first)


def _column(parts: Sequence[Messages], name: str, shift: NDArray[np.int64] | None) -> NDArray[Any]:
    """A column of all jobs; what counts gates, routes or messages of a job counts those of all, and -1 stays.

    A column that some jobs leave empty is zero for them.
    """
    own = [getattr(part, name) for part in parts]
    longest = max(own, key=len)
    if name not in ("after", "chained") and len(longest):
        own = [c if len(c) else np.zeros(p.count, longest.dtype) for c, p in zip(own, parts, strict=True)]
    if shift is not None:
        own = [np.where(c >= 0, c + c.dtype.type(by), c) for c, by in zip(own, shift.tolist(), strict=False)]
    return np.concatenate(own)


def _all_routes(parts: Sequence[Messages], cluster: Topology) -> Routes:
    nodes, links = [], []
    for part in parts:
        node, link = _places(part.topology, cluster)
        nodes.append(node[part.routes.nodes])
        links.append(link[part.routes.links])
    return Routes(
        node_start=_starts([part.routes.node_start for part in parts]),
        nodes=np.concatenate(nodes),
        link_start=_starts([part.routes.link_start for part in parts]),
        links=np.concatenate(links),
    )


def _places(topology: Topology, cluster: Topology) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Node and link of the cluster for each node and link of a part."""
    if topology is cluster:
        return np.arange(topology.num_nodes, dtype=np.int32), np.arange(topology.num_links, dtype=np.int32)
    node = np.array([cluster.node_index[name] for name in topology.node_ids], dtype=np.int32)
    ends = zip(node[topology.src].tolist(), node[topology.dst].tolist(), strict=True)
    return node, np.array([cluster.link_index[pair] for pair in ends], dtype=np.int32)


def _after_start(parts: Sequence[Messages]) -> NDArray[np.int64]:
    """Where the further dependencies of each message begin; empty where no job has any."""
    if not any(len(part.after_start) for part in parts):
        return np.zeros(0, dtype=np.int64)
    return _starts(
        [
            part.after_start if len(part.after_start) else np.zeros(part.count + 1, dtype=np.int64)
            for part in parts
        ]
    )


def _starts(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """First rows of segments in columns that are put one after the other."""
    return offsets(np.concatenate([np.diff(column) for column in columns]))


def union(topologies: Sequence[Topology]) -> Topology:
    """Union of the nodes and links of ``topologies``; one of them where it contains all others.

    Ranks of the result count all GPUs in order of their nodes, unless it is one of the given.

    Args:
        topologies: Parts of one cluster, one or more.

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
            raise InputError(
                f"expected parts of one cluster, found that the node {node.id} of {topology.name} differs from the "
                "one of that name in another part: plan all on the same cluster."
            )


def _join_links(
    topology: Topology, own: dict[tuple[str, str], Link], links: dict[tuple[str, str], Link]
) -> None:
    for ends, link in own.items():
        known = links.setdefault(ends, link)
        if known != link:
            raise InputError(
                f"expected parts of one cluster, found {link.src} -> {link.dst} with {link.gb_per_s} GB/s and "
                f"{link.latency_us} us on {topology.name}, with {known.gb_per_s} GB/s and {known.latency_us} us on "
                "another part: plan all on the same cluster."
            )


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
        raise InputError(
            f"expected parts of one cluster, found that {topology.name} lacks the link {src} -> {dst} of another "
            "part: plan all on the same cluster."
        )
