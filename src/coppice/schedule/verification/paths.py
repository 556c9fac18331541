"""Verify paths: their links exist, and only switches, NICs and relay GPUs are interior."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.schedule.forest import Forest
from coppice.schedule.schedule import PathHops, Schedule
from coppice.schedule.verification.report import Findings
from coppice.topology.model import Topology


def check_paths(
    body: Forest | Schedule, hops: PathHops, findings: Findings, *, relay_gpus: bool = False
) -> int:
    """Check that hops are links of the topology, and interior nodes no ranks unless ``relay_gpus`` allows it.

    Returns:
        Number of paths with ranks inside.
    """
    missing = np.flatnonzero(hops.link < 0)
    topology, path_start, path_nodes = body.topology, body.path_start, body.path_nodes
    names = topology.node_ids
    findings.add_examples(
        [
            f"path {hops.path[hop]} takes a link {names[hops.src[hop]]} -> {names[hops.dst[hop]]} "
            f"that the topology does not have."
            for hop in missing[:5].tolist()
        ],
        len(missing),
        "hops",
    )
    inner = np.ones(len(path_nodes), dtype=np.bool_)
    inner[path_start[:-1]] = False
    inner[path_start[1:] - 1] = False
    ranked = np.flatnonzero(inner & (topology.rank[path_nodes] >= 0))
    path_of = np.searchsorted(path_start, ranked, side="right") - 1
    relayed = len(np.unique(path_of))
    if relay_gpus:
        return relayed
    findings.add_examples(
        [
            f"path {path} leads through "
            f"{names[path_nodes[place]]}, which is rank {topology.rank[path_nodes[place]]}: "
            f"a rank must receive and send on, not be passed through."
            for path, place in zip(path_of[:5].tolist(), ranked[:5].tolist(), strict=True)
        ],
        len(ranked),
        "inner nodes of paths",
    )
    return relayed


def check_ends(
    body: Forest | Schedule,
    path: NDArray[np.integer],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    findings: Findings,
    *,
    row_name: str,
) -> None:
    """Check that each path begins at the sender and ends at the receiver."""
    first, last = body.path_nodes[body.path_start[:-1]], body.path_nodes[body.path_start[1:] - 1]
    wrong = np.flatnonzero((first[path] != src) | (last[path] != dst))
    names = body.topology.node_ids
    findings.add_examples(
        [
            f"{row_name} {row} goes from {names[src[row]]} to {names[dst[row]]}, "
            f"but its path {path[row]} runs {path_text(body, int(path[row]))}."
            for row in wrong[:5].tolist()
        ],
        len(wrong),
        f"{row_name}s",
    )


def path_text(body: Forest | Schedule, path: int) -> str:
    """Format a path: ``gpu0 -> switch -> gpu1``."""
    nodes = body.path_nodes[body.path_start[path] : body.path_start[path + 1]].tolist()
    shown = nodes if len(nodes) <= 8 else [*nodes[:7], nodes[-1]]
    return " -> ".join(body.topology.node_ids[node] for node in shown)


def overload(topology: Topology, link: int, reached: Fraction, claimed: Fraction) -> str:
    """Error message about a link that is busier than the planner claims."""
    rate = f"{topology.link_name(link)} ({topology.gb_per_s(link)} GB/s)"
    return f"link {rate} needs {reached} per shard, more than the claimed {claimed}."
