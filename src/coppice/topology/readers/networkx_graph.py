"""Convert topologies from and to networkx graphs.

A node may carry the attributes ``kind`` (``"gpu"``, ``"switch"``, ``"nic"``; default gpu), ``host``, ``rank``,
``multicast``, ``aggregate``, ``arch`` and ``cpu``; an edge carries ``gb_per_s`` (a number or text; a float counts as
the decimal that it prints as) and may carry ``latency_us``. Edges of undirected graphs have their rate in each
direction; parallel edges of multigraphs add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coppice.errors import InputError, MissingExtraError
from coppice.topology.model import NodeKind, Topology
from coppice.topology.readers.document import FORMAT, VERSION, topology_from_document
from coppice.topology.readers.reading import ReadOptions

if TYPE_CHECKING:
    import networkx as nx

_NODE_KEYS = ("kind", "host", "rank", "multicast", "aggregate", "arch", "cpu")


def from_networkx(
    # Any kind of networkx graph; other attributes than those of this module are ignored
    graph: nx.Graph[Any],
    *,
    name: str | None = None,  # Name of the topology; None takes that of the graph
    rate: str = "gb_per_s",  # Edge attribute with the rate in GB/s, such as `"capacity"`
    round_digits: int | None = None,  # Decimals to which rates are rounded, or None
) -> Topology:
    """Convert a networkx graph to a topology.

    Examples:
        >>> import networkx as nx
        >>> ring = nx.cycle_graph(4)
        >>> nx.set_edge_attributes(ring, 12.5, "gb_per_s")
        >>> box = from_networkx(ring, name="ring")
        >>> box.num_ranks, box.num_links, box.gb_per_s(0)
        (4, 8, Fraction(25, 2))
    """
    nodes = []
    for node, attributes in graph.nodes(data=True):
        row: dict[str, Any] = {key: attributes[key] for key in _NODE_KEYS if key in attributes}
        if isinstance(row.get("kind"), NodeKind):
            row["kind"] = row["kind"].name.lower()
        nodes.append({"id": str(node), **row})
    links = []
    for a, b, attributes in graph.edges(data=True):
        if a == b:
            continue
        if rate not in attributes:
            raise InputError(
                f"expected an attribute {rate!r} in GB/s on the edge {a!r} - {b!r}, found none: set it or "
                "name another."
            )
        links.append(
            {
                "from": str(a),
                "to": str(b),
                "gb_per_s": _plain(attributes[rate]),
                "latency_us": _plain(attributes.get("latency_us", 0)),
                "duplex": not graph.is_directed(),
            }
        )
    document = {"format": FORMAT, "version": VERSION, "nodes": nodes, "links": links}
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
    graph: nx.DiGraph[Any] = nx.DiGraph(name=topology.name)
    for node in topology.nodes():
        attributes: dict[str, Any] = {"kind": node.kind.name.lower()}
        if node.host is not None:
            attributes["host"] = node.host
        if node.kind is NodeKind.GPU:
            attributes["rank"] = -1 if node.rank is None else node.rank
        known = {"arch": node.arch, "cpu": node.cpu}
        attributes |= {key: value for key, value in known.items() if value is not None}
        graph.add_node(node.id, **attributes, multicast=node.multicast, aggregate=node.aggregate)
    for link in topology.links():
        graph.add_edge(link.src, link.dst, gb_per_s=link.gb_per_s, latency_us=link.latency_us)
    return graph


def _plain(value: Any) -> Any:
    """NumPy scalars as Python numbers; anything else as it is."""
    return value.item() if hasattr(value, "item") else value
