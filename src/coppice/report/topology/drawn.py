"""Choose what of a topology is drawn, and lay it out, before it becomes markup."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from coppice.errors import InputError
from coppice.report.topology.cut import CutLine, cut_line
from coppice.report.topology.direct import direct, drawn_part, is_direct
from coppice.report.topology.folding import MOST_NODES, DrawnGraph, fold, part_of
from coppice.report.topology.layout import layered
from coppice.report.topology.sheet import DrawingLayout
from coppice.report.topology.structure import structure_of
from coppice.topology.model import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """What is drawn, and where."""

    whole: Topology  # What is drawn, with what was lost of it
    graph: DrawnGraph
    layout: DrawingLayout
    cut: CutLine | None  # The line of the cut, None without one
    old: tuple[int, ...]  # The node of the whole for each node of what is left of it
    lost_nodes: frozenset[int]  # Nodes of the whole that are lost
    lost_links: frozenset[tuple[int, int]]
    omitted: tuple[str, ...]  # What is left out or folded, in words


def drawing_of(topology: Topology, cut: Sequence[int] = (), whole: Topology | None = None) -> Drawing:
    """Choose what is drawn, and lay it out.

    Args:
        cut: Nodes of one side of a cut.
        whole: What the topology was before it lost nodes or links.
    """
    drawn = topology if whole is None else whole
    old = tuple(range(topology.num_nodes)) if whole is None else _numbers(topology, whole)
    lost_nodes = frozenset(range(drawn.num_nodes)).difference(old)
    left = (
        {(old[a], old[b]) for a, b in topology.link_index} if whole is not None else drawn.link_index.keys()
    )
    lost_links = frozenset(drawn.link_index.keys() - left)
    side = {old[v] for v in cut}
    hurt = {v for pair in lost_links for v in pair}
    marks: list[Hashable] = [(v in side, v in lost_nodes, v in hurt) for v in range(drawn.num_nodes)]
    structure = structure_of(drawn)
    omitted: tuple[str, ...]
    if is_direct(drawn):
        nodes = list(range(drawn.num_nodes)) if drawn.num_nodes < MOST_NODES else drawn_part(drawn)
        graph = part_of(drawn, structure, nodes)
        layout = direct(drawn, graph)
        omitted = (
            (f"{len(nodes)} of {drawn.num_nodes:,} nodes are drawn",) if len(nodes) < drawn.num_nodes else ()
        )
    else:
        graph = fold(drawn, structure, marks)
        layout = layered(drawn, graph)
        omitted = graph.folded
    first = [node.members[0] for node in graph.nodes]
    ours = {v for v, member in enumerate(first) if member in side}
    theirs = {v for v, member in enumerate(first) if member not in side and member not in lost_nodes}
    line = cut_line(layout, ours, theirs) if side else None
    if line is not None and line.name_at is None:
        layout = replace(layout, height=layout.height + 18)
        line = cut_line(layout, ours, theirs)
    return Drawing(
        whole=drawn,
        graph=graph,
        layout=layout,
        cut=line,
        old=old,
        lost_nodes=lost_nodes,
        lost_links=lost_links,
        omitted=omitted,
    )


def _numbers(topology: Topology, whole: Topology) -> tuple[int, ...]:
    """The node of the whole for each node that is left."""
    number_of = {name: v for v, name in enumerate(whole.node_ids)}
    strange = next((name for name in topology.node_ids if name not in number_of), None)
    if strange is not None:
        raise InputError(
            f"expected `whole` to have all nodes of {topology.name:.60}, found no {strange!r} in {whole.name:.60}."
        )
    return tuple(number_of[name] for name in topology.node_ids)
