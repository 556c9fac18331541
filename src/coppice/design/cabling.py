"""Cabling lists: pairs of ports to connect, with or without patch panels.

A node of degree d has ports 0 .. d - 1. In a graph whose links all have one back, a port is the end of a full-duplex
cable. In other graphs a port is a transmitter and a receiver: a fibre leads from the transmitter of one port to the
receiver of another. A self-loop leaves its port unused.

With patch panels, every port of a node is wired once and for all to a position: port p of node v to position
v d + p, counted from panel to panel; cables and fibres then join positions, and another graph of the same degree is a
matter of patching.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.design.graph import Graph
from coppice.design.limits import CablingLimits
from coppice.display import Brief
from coppice.errors import InputError

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import CablingJson


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Cabling(Brief):
    """A cabling list, one row per cable or fibre."""

    graph: Graph  # The network
    limits: CablingLimits  # What was asked of it
    ends: NDArray[np.int64]  # Node and port at both ends: (from node, from port, to node, to port) by row

    @property
    def kind(self) -> str:
        """``cable`` for full-duplex cables, ``fibre`` for simplex."""
        return "cable" if self.graph.bidirectional else "fibre"

    @property
    def panels(self) -> int:
        """Number of patch panels."""
        ports = self.limits.panel_ports
        return 0 if ports is None else -(-self.graph.num_nodes * self.graph.degree // ports)

    @property
    def across_panels(self) -> int:
        """Cables between positions of different panels."""
        ports = self.limits.panel_ports
        if ports is None:
            return 0
        place = self._positions() // ports
        return int((place[:, 0] != place[:, 1]).sum())

    def record(self) -> CablingJson:
        """The figures as JSON values."""
        return {
            "recipe": self.graph.name,
            "kind": self.kind,
            "count": len(self.ends),
            "panels": self.panels,
            "across_panels": self.across_panels,
        }

    def csv_text(self) -> str:
        """The list as CSV; panels and positions are counted from 1."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [self.kind, "from_node", "from_port", "to_node", "to_port"]
        ports = self.limits.panel_ports
        if ports is not None:
            header += ["from_panel", "from_position", "to_panel", "to_position"]
        writer.writerow(header)
        places = self._positions().tolist()
        for number, (u, p, v, q) in enumerate(self.ends.tolist(), start=1):
            row = [number, f"gpu{u}", p, f"gpu{v}", q]
            if ports is not None:
                for place in places[number - 1]:
                    row += [place // ports + 1, place % ports + 1]
            writer.writerow(row)
        return text.getvalue()

    def _positions(self) -> NDArray[np.int64]:
        degree = self.graph.degree
        return self.ends[:, 0::2] * degree + self.ends[:, 1::2]


def cabling_of(graph: Graph, limits: CablingLimits | None = None) -> Cabling:
    """Cabling list of a graph.

    Args:
        limits: What there is to plug into.

    Examples:
        >>> from coppice.design.recipes.parser import parse
        >>> print(cabling_of(parse("biring(4)").build(), CablingLimits(panel_ports=4)).csv_text(), end="")
        cable,from_node,from_port,to_node,to_port,from_panel,from_position,to_panel,to_position
        1,gpu0,0,gpu1,0,1,1,1,3
        2,gpu0,1,gpu3,0,1,2,2,3
        3,gpu1,1,gpu2,0,1,4,2,1
        4,gpu2,1,gpu3,1,2,2,2,4
    """
    asked = limits or CablingLimits()
    check_limits(graph.num_nodes, graph.degree, asked)
    src, dst = (ends.astype(np.int64) for ends in graph.single_links())
    sent = _place_within(src)
    # Link i from v to u comes back over the cable of link i from u to v, and arrives at its port.
    order = np.lexsort((np.arange(len(src)), src, dst))
    if graph.bidirectional:
        # By (src, dst) and by (dst, src) the links of each pair of nodes stand in the same places.
        received = np.empty_like(sent)
        received[order] = sent
        keep = src < dst
    else:
        received = np.empty_like(sent)
        received[order] = _place_within(dst[order])
        keep = src != dst
    ends = np.stack([src, sent, dst, received], axis=1)[keep]
    return Cabling(graph=graph, limits=asked, ends=ends)


def check_limits(ranks: int, degree: int, limits: CablingLimits) -> None:
    """Refuse a network that exceeds the limits.

    Examples:
        >>> check_limits(1024, 4, CablingLimits(ports_per_node=4, panel_ports=512, max_panels=8))
    """
    if limits.ports_per_node is not None and degree > limits.ports_per_node:
        raise InputError(
            f"expected degree <= ports per node, found {degree} > {limits.ports_per_node}: choose a smaller degree."
        )
    if limits.panel_ports is None or limits.max_panels is None:
        return
    needed = -(-ranks * degree // limits.panel_ports)
    if needed > limits.max_panels:
        raise InputError(
            f"expected ceil(ranks x degree / panel ports) <= panels, found ceil({ranks} x {degree} / "
            f"{limits.panel_ports}) = {needed} > {limits.max_panels}: get more panels, or larger ones."
        )


def _place_within(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each row among the rows of its group; groups stand together, in rising order."""
    return np.arange(len(group)) - np.searchsorted(group, group)
