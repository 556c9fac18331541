"""Export topologies and trees to Graphviz: boxes are clusters, links are edges with their rates.

The text is made for ``dot``; ``neato`` and ``sfdp`` take it as well. Names are quoted, never used as identifiers, so
any topology gives a valid file. A topology is written whole, whatever its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from coppice.errors import InputError
from coppice.schedule.forest import Forest, Phase
from coppice.text import rate_text
from coppice.topology.model import NodeKind, Topology

_SHAPES = {
    NodeKind.GPU: 'shape=box, style="rounded,filled", fillcolor="#dcebfa"',
    NodeKind.NIC: 'shape=box, style="rounded,filled", fillcolor="#e3f2e1"',
    NodeKind.SWITCH: 'shape=box, style=filled, fillcolor="#ece5f6"',
}
_CUT = 'color="#c0165a", style=dashed, penwidth=2'


def to_dot(topology: Topology, *, cut: Collection[int] = ()) -> str:
    """Convert a topology to the DOT language.

    Two opposite links of the same rate are one edge with two heads; the label is the rate in GB/s.

    Args:
        cut: Nodes of one side of a cut; links that cross it are dashed.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> print(to_dot(preset("path", gpus=2)))
        digraph "path of 2" {
          rankdir=BT;
          node [fontname="sans-serif", fontsize=11];
          edge [fontname="sans-serif", fontsize=9];
          n0 [label="gpu0", shape=box, style="rounded,filled", fillcolor="#dcebfa"];
          n1 [label="gpu1", shape=box, style="rounded,filled", fillcolor="#dcebfa"];
          n0 -> n1 [label="1", dir=both];
        }
        <BLANKLINE>
    """
    lines = [*_head(topology.name, "BT"), *_nodes(topology, range(topology.num_nodes))]
    side, index = set(cut), topology.link_index
    for (a, b), link in index.items():
        back = index.get((b, a))
        duplex = back is not None and topology.capacity[back] == topology.capacity[link]
        if duplex and a > b:
            continue
        attributes = [f"label={quoted(rate_text(topology.gb_per_s(link)))}"]
        if duplex:
            attributes.append("dir=both")
        if (a in side) != (b in side):
            attributes.append(_CUT)
        lines.append(f"  n{a} -> n{b} [{', '.join(attributes)}];")
    return "\n".join([*lines, "}", ""])


def tree_to_dot(forest: Forest, tree: int) -> str:
    """Convert a tree of a forest to the DOT language: arrows follow the data, labels show paths."""
    if not 0 <= tree < forest.num_trees:
        raise InputError(
            f"expected a tree from 0 to {forest.num_trees - 1}, found {tree}: choose one of them."
        )
    topology, edges = forest.topology, list(forest.edges(tree))
    root = int(forest.tree_root[tree])
    used = sorted({root, *(v for src, dst, _ in edges for v in (src, dst))})
    phase = Phase(int(forest.tree_phase[tree]))
    upward = phase is Phase.REDUCE
    name = f"{topology.name}: {phase.name.lower()} tree {tree}"
    lines = [*_head(name, "BT" if upward else "TB"), *_nodes(topology, used), f"  n{root} [penwidth=3];"]
    for src, dst, path in edges:
        via = ", ".join(topology.node_ids[v] for v in path[1:-1])
        lines.append(f"  n{src} -> n{dst} [tooltip={quoted(f'via {via}' if via else 'direct')}];")
    return "\n".join([*lines, "}", ""])


def quoted(text: str) -> str:
    r"""Quote text for DOT.

    >>> print(quoted('a "b" \\c'))
    "a \"b\" \\c"
    """
    safe = (
        text.replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("\n", "\\n")
        .replace("\r", " ")
        .replace("\0", " ")
    )
    return f'"{safe.encode(errors="replace").decode()}"'


def _head(name: str, direction: str) -> list[str]:
    return [
        f"digraph {quoted(name)} {{",
        f"  rankdir={direction};",
        '  node [fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]


def _nodes(topology: Topology, nodes: Iterable[int]) -> list[str]:
    """Nodes, those of a box in a cluster of their own."""
    by_host: dict[int, list[int]] = defaultdict(list)
    for v in nodes:
        by_host[int(topology.host[v])].append(v)
    lines = []
    for host in sorted(by_host):
        if host < 0:
            lines += [_node(topology, v, "  ") for v in by_host[host]]
            continue
        lines += [f"  subgraph cluster_{host} {{", f"    label={quoted(topology.hosts[host])};"]
        lines += [_node(topology, v, "    ") for v in by_host[host]]
        lines.append("  }")
    return lines


def _node(topology: Topology, v: int, indent: str) -> str:
    return f"{indent}n{v} [label={quoted(topology.node_ids[v])}, {_SHAPES[NodeKind(int(topology.kind[v]))]}];"
