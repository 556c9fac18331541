"""Clusters with something slow or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coppice.arguments import checked
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, scale_nodes, set_link_rate


@checked
def degrade(
    topology: Any,
    *,
    nodes: Mapping[str, Any] | None = None,
    links: Mapping[tuple[str, str], Any] | None = None,
    remove: Sequence[str | tuple[str, str]] = (),
    one_way: bool = False,
) -> Topology:
    """Slow down or remove GPUs, NICs, switches and links.

    Args:
        topology: The cluster: what :func:`coppice.load` takes.
        nodes: Share of its rates that a node keeps on all its links: 0.5, ``"50%"`` or ``"1/3"``, by its name; a GPU
            may be named by its rank: ``rank3``.
        links: Rate in GB/s, or share as text with a percent sign, of a link, by its two ends.
        remove: Nodes, and links as pairs of ends.
        one_way: Links are changed from the first to the second end only.

    Raises:
        InputError: If a node, link, rate or share is not there or cannot be.

    Examples:
        >>> degrade("dgx-a100", nodes={"gpu0": 0.5}, remove=["rank7"]).num_ranks
        7
    """
    found = load(topology)
    for (src, dst), rate in (links or {}).items():
        found = set_link_rate(found, src, dst, rate, one_way=one_way)
    for node, share in (nodes or {}).items():
        found = scale_nodes(found, {node: share})
    found = remove_links(found, [each for each in remove if not isinstance(each, str)], one_way=one_way)
    return remove_nodes(found, [each for each in remove if isinstance(each, str)])
