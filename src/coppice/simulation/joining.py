"""Messages of several jobs as one table, on the topology that holds all of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.messages import Messages, Routes
from coppice.simulation.union import union
from coppice.topology.model import Topology

__all__ = ["Joined", "joined"]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Joined(Brief):
    """Messages of several jobs.

    Attributes:
        messages: All of them, job after job.
        first: First message of each job, and the number of all (int64).
    """

    messages: Messages
    first: NDArray[np.int64]

    def of_job(self, number: int) -> slice:
        """Messages of one job."""
        return slice(int(self.first[number]), int(self.first[number + 1]))


def joined(
    parts: Sequence[Messages], *, start_us: Sequence[float], topology: Topology | None = None
) -> Joined:
    """The messages of several jobs, each from its own moment on.

    Args:
        parts: Messages of each job.
        start_us: Start of each job.
        topology: The cluster; None is what the topologies of the parts add up to.

    Raises:
        InputError: If the topologies are not parts of one cluster.
    """
    if any(part.overhead_us is not None for part in parts):
        msg = "expected messages that cost what the model says, found overheads of their own: join first."
        raise InputError(msg)
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
    """Begins of stretches in columns that are put one after the other."""
    return offsets(np.concatenate([np.diff(column) for column in columns]))
