"""Convert topologies from and to networkx graphs.

A node carries the attribute ``kind`` (``"gpu"``, ``"switch"``, ``"nic"``) unless one is given for all without, and may
carry ``host``, ``rank``, ``multicast``, ``aggregate``, ``arch`` and ``cpu``; an edge carries its rate, as ``gb_per_s``
or under another name in another unit (a number or text; a float counts as the decimal that it prints as), and may carry
``latency_us``. Edges of undirected graphs have their rate in each direction; parallel edges of multigraphs add up.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from coppice.errors import InputError, MissingExtraError
from coppice.topology.model import NodeKind, Topology, exact_rate
from coppice.topology.readers.document import FORMAT, VERSION, topology_from_document
from coppice.topology.readers.reading import ReadOptions

if TYPE_CHECKING:
    import networkx as nx

UNITS = {
    "GB/s": Fraction(1),
    "TB/s": Fraction(1000),
    "MB/s": Fraction(1, 1000),
    "Gb/s": Fraction(1, 8),
    "Tb/s": Fraction(1000, 8),
    "Mb/s": Fraction(1, 8000),
}
"""Units of rates, in GB/s."""

_NODE_KEYS = ("kind", "host", "rank", "multicast", "aggregate", "arch", "cpu", "slot")


def from_networkx(
    # Any kind of networkx graph; other attributes than those of this module are ignored
    graph: nx.Graph[Any],
    *,
    name: str | None = None,  # Name of the topology; None takes that of the graph
    rate: str = "gb_per_s",  # Edge attribute with the rate, such as `"capacity"` or `"weight"`
    unit: str = "GB/s",  # Its unit, one of `UNITS`
    kind: str | None = None,  # Kind of nodes that have none, such as `"gpu"`
    round_digits: int | None = None,  # Decimals to which rates are rounded, or None
) -> Topology:
    """Convert a networkx graph to a topology.

    Examples:
        >>> import networkx as nx
        >>> ring = nx.cycle_graph(4)
        >>> nx.set_edge_attributes(ring, 100, "capacity")
        >>> box = from_networkx(ring, name="ring", rate="capacity", unit="Gb/s", kind="gpu")
        >>> box.num_ranks, box.num_links, box.gb_per_s(0)
        (4, 8, Fraction(25, 2))
    """
    if unit not in UNITS:
        raise InputError(
            f"expected a `unit` of {', '.join(UNITS)}, found {unit[:20]!r}: convert the rates to one of these."
        )
    nodes = []
    for node, attributes in graph.nodes(data=True):
        row: dict[str, Any] = {key: attributes[key] for key in _NODE_KEYS if key in attributes}
        if isinstance(row.get("kind"), NodeKind):
            row["kind"] = row["kind"].name.lower()
        if row.setdefault("kind", kind) is None:
            raise InputError(
                f"expected a kind at the node {node!r} (gpu, switch or nic), found none: set it, or say what nodes "
                "without one are (`kind='gpu'`)."
            )
        nodes.append({"id": str(node), **row})
    links = []
    for a, b, attributes in graph.edges(data=True):
        if a == b:
            continue
        if rate not in attributes:
            there = ", ".join(map(repr, attributes)) or "no attribute"
            raise InputError(
                f"expected the rate {rate!r} on the edge {a!r} - {b!r}, found {there}: set it, or name the attribute "
                "and its unit (`rate='capacity', unit='Gb/s'`)."
            )
        links.append(
            {
                "from": str(a),
                "to": str(b),
                "gb_per_s": exact_rate(_plain(attributes[rate]), where=f"{rate} of {a!r} - {b!r}")
                * UNITS[unit],
                "latency_us": _plain(attributes.get("latency_us", 0)),
                "duplex": not graph.is_directed(),
            }
        )
    document = {
        "format": FORMAT,
        "version": VERSION,
        "source": str(graph.graph.get("source", "")),
        "nodes": nodes,
        "links": links,
    }
    return topology_from_document(
        document,
        where="graph",
        name=name,
        default_name=str(graph.graph.get("name") or "graph"),
        options=ReadOptions(round=round_digits),
    )


def to_networkx(topology: Topology) -> nx.DiGraph[Any]:
    """Convert ``topology`` to a directed networkx graph; :func:`from_networkx` restores it.

    Nodes are the ids of the topology, in its order; rates are exact fractions.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25))])
        >>> to_networkx(pair).edges["a", "b"]["gb_per_s"]
        Fraction(25, 1)
    """
    try:
        import networkx as nx
    except ImportError:
        package = "networkx"
        raise MissingExtraError.of(package, extra="nx") from None
    graph: nx.DiGraph[Any] = nx.DiGraph(name=topology.name, source=topology.source)
    for node in topology.nodes():
        attributes: dict[str, Any] = {"kind": node.kind.name.lower()}
        if node.host is not None:
            attributes["host"] = node.host
        if node.kind is NodeKind.GPU:
            attributes["rank"] = -1 if node.rank is None else node.rank
        known = {"arch": node.arch, "cpu": node.cpu, "slot": node.slot}
        attributes |= {key: value for key, value in known.items() if value is not None}
        graph.add_node(node.id, **attributes, multicast=node.multicast, aggregate=node.aggregate)
    for link in topology.links():
        graph.add_edge(link.src, link.dst, gb_per_s=link.gb_per_s, latency_us=link.latency_us)
    return graph


def _plain(value: Any) -> Any:
    """NumPy scalars as Python numbers; anything else as it is."""
    return value.item() if hasattr(value, "item") else value
