"""Verify a forest by counting, independently of how it was made.

A tree is right if, in row order, each vertex but the root is the child of exactly one edge whose parent is
the root or the child of an edge that comes before it in the flow of data: then it is connected and free of
cycles by induction. The forest is right if its trees span the ranks, roots carry what the collective demands,
and every edge follows physical links. Its time is the largest load over capacity, in exact integers.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.schedule.columns import forest_defects
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import forest_loads, grouped_sums
from coppice.schedule.schedule import hops_of
from coppice.schedule.shape import children, highest, parents, tree_blocks
from coppice.schedule.verification.paths import check_ends, check_paths, overload
from coppice.schedule.verification.report import Findings, Report
from coppice.schedule.walk import walk
from coppice.topology.symmetry import check_symmetry

_PHASES = {
    Collective.ALL_GATHER: {Phase.BROADCAST},
    Collective.BROADCAST: {Phase.BROADCAST},
    Collective.REDUCE_SCATTER: {Phase.REDUCE},
    Collective.REDUCE: {Phase.REDUCE},
    Collective.ALL_REDUCE: {Phase.BROADCAST, Phase.REDUCE},
}


def verify_forest(
    forest: Forest,
    *,
    root: int | None = None,  # Root rank of broadcast and reduce
    # Relative shard sizes of the ranks (all-gather and reduce-scatter), where they are not equal
    weights: tuple[int, ...] | None = None,
    # Time per shard that the planner claims; a busier link is then a failure
    claimed: Fraction | None = None,
) -> Report:
    """Verify that a forest implements its collective, and count its cost.

    Returns:
        The report; failures are collected, not raised.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node, Topology
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25))])
        >>> forest = Forest(topology=pair, collective=Collective.ALL_GATHER, tree_root=np.array([0, 1]),
        ...                 tree_weight=np.array([1, 1]), tree_phase=np.array([0, 0]),
        ...                 tree_start=np.array([0, 1, 2]),
        ...                 edge_src=np.array([0, 1]), edge_dst=np.array([1, 0]),
        ...                 edge_path=np.array([0, 1]), path_start=np.array([0, 2, 4]),
        ...                 path_nodes=np.array([0, 1, 1, 0]))
        >>> report = verify_forest(forest)
        >>> report.ok, report.inv_rate
        (True, Fraction(1, 25))
    """
    findings = Findings()
    if forest.collective not in _PHASES:
        findings.add(f"a forest cannot implement {forest.collective}: give a schedule of transfers.")
        return Report(ok=False, failures=tuple(findings.failures), claimed=claimed)
    # What passes the native walk has no defect that the checks here find; they say what is wrong with the rest.
    walked = walk(forest)
    if walked is None:
        for defect in forest_defects(forest):
            findings.add(f"the forest is malformed: {defect}")
        if findings.failures:
            return Report(ok=False, failures=tuple(findings.failures), claimed=claimed)

    if forest.symmetry is not None:
        try:
            check_symmetry(forest.topology, forest.symmetry)
        except CheckError as error:
            findings.add(f"the trees stand for images under no symmetry: {error}")
            return Report(ok=False, failures=tuple(findings.failures), claimed=claimed)
    _check_roots(forest, root, weights, findings)
    topology = forest.topology
    paths = len(forest.path_start) - 1
    checked = {
        "trees": forest.num_trees * forest.num_images,
        "edges": forest.num_edges * forest.num_images,
        "paths": paths,
        "hops": len(forest.path_nodes) - paths,
        "links": topology.num_links,
    }
    if walked is None and not _check_by_row(forest, findings):
        return Report(ok=False, failures=tuple(findings.failures), claimed=claimed, checked=checked)
    loads = forest_loads(forest, weights, walked)
    reached = loads.inv_rate
    if claimed is not None and reached > claimed:
        findings.add(overload(topology, loads.worst_link, reached, claimed))
    reference = reached if claimed is None else claimed
    return Report(
        ok=not findings.failures,
        failures=tuple(findings.failures),
        inv_rate=reached,
        claimed=claimed,
        worst_link=loads.worst_link,
        max_link_load=loads.utilisation(loads.worst_link, reference)
        if loads.worst_link >= 0
        else Fraction(0),
        checked=checked,
        max_height=None if walked is None else highest(forest, walked.height),
    )


def _check_by_row(forest: Forest, findings: Findings) -> bool:
    """Check vertices, trees and paths, and say what is wrong; whether all paths follow links."""
    _check_vertices(forest, findings)
    _check_spanning(forest, findings)
    hops = hops_of(forest.topology, forest.path_start, forest.path_nodes)
    check_paths(forest, hops, findings)
    check_ends(forest, forest.edge_path, forest.edge_src, forest.edge_dst, findings, row_name="edge")
    return not (hops.link < 0).any()


def root_weights(forest: Forest, chosen: NDArray[np.bool_]) -> list[int]:
    """Weight at each node of the trees marked in ``chosen``, images included (exact)."""
    roots, weight = forest.tree_root[chosen], forest.tree_weight[chosen]
    if forest.symmetry is None:
        return grouped_sums(roots, weight, forest.topology.num_nodes)
    # The group is free on the ranks, so a tree has one image at each member of its root's orbit.
    orbit = forest.symmetry.node_orbit
    by_orbit = grouped_sums(orbit[roots], weight, forest.symmetry.num_node_orbits)
    return [by_orbit[o] for o in orbit.tolist()]


def _check_roots(
    forest: Forest, root: int | None, weights: tuple[int, ...] | None, findings: Findings
) -> None:
    """Trees have the phases of the collective, and the weights at the roots are what it demands."""
    collective, topology = forest.collective, forest.topology
    allowed = _PHASES[collective]
    for phase in Phase:
        if phase not in allowed and (forest.tree_phase == phase).any():
            tree = int(np.flatnonzero(forest.tree_phase == phase)[0])
            findings.add(f"tree {tree} is a {phase.name.lower()} tree, which {collective} does not use.")
    by_root: dict[Phase, dict[int, int]] = {}
    for phase in allowed:
        chosen = forest.tree_phase == phase
        sums = root_weights(forest, chosen)
        by_root[phase] = defaultdict(int, {node: weight for node, weight in enumerate(sums) if weight})
    if topology.num_ranks <= 1:
        return
    name = topology.node_ids
    if collective is Collective.ALL_REDUCE:
        up, down = by_root[Phase.REDUCE], by_root[Phase.BROADCAST]
        unequal = [node for node in sorted(up.keys() | down.keys()) if up[node] != down[node]]
        findings.add_examples(
            [
                f"trees at root {name[node]} reduce weight {up[node]} but broadcast weight {down[node]}: "
                f"both must be equal."
                for node in unequal
            ],
            len(unequal),
            "roots",
        )
        if not up and not down:
            findings.add("the forest has no trees, so no rank receives anything.")
        return
    rates = by_root[next(iter(allowed))]
    total = sum(rates.values())
    demanded = _demanded(forest, root, weights, findings)
    if demanded is None:
        return
    if not total:
        findings.add("the forest has no trees, so no rank receives anything.")
        return
    node_of = topology.rank_nodes.tolist()
    share = sum(demanded)
    wrong = [rank for rank, want in enumerate(demanded) if rates[node_of[rank]] * share != want * total]
    findings.add_examples(
        [
            f"trees at root {name[node_of[rank]]} (rank {rank}) have weight {rates[node_of[rank]]} "
            f"of {total}, expected the share {Fraction(demanded[rank], share)}."
            for rank in wrong
        ],
        len(wrong),
        "roots",
    )


def _demanded(
    forest: Forest, root: int | None, weights: tuple[int, ...] | None, findings: Findings
) -> tuple[int, ...] | None:
    """Relative weight that every rank must have as a root."""
    ranks = forest.topology.num_ranks
    if forest.collective.rooted:
        if root is None or not 0 <= root < ranks:
            findings.add(f"{forest.collective} needs a root rank in 0 .. {ranks - 1}, found {root}.")
            return None
        return tuple(int(rank == root) for rank in range(ranks))
    if weights is None:
        return (1,) * ranks
    if len(weights) != ranks or min(weights) < 0 or not sum(weights):
        findings.add(f"expected {ranks} weights of 0 or more with a positive sum, found {weights[:16]}.")
        return None
    return weights


def _check_vertices(forest: Forest, findings: Findings) -> None:
    """Roots and ends of edges are ranks, or nodes whose hardware copies (broadcast) or adds (reduce)."""
    topology = forest.topology
    verbs = {Phase.BROADCAST: ("multicast", "copy"), Phase.REDUCE: ("aggregate", "add")}
    phase_of_edge = forest.tree_phase[forest.edge_tree]
    for phase, able in ((Phase.BROADCAST, topology.multicast), (Phase.REDUCE, topology.aggregate)):
        flag, verb = verbs[phase]
        barred = (topology.rank < 0) & ~able
        bad = np.flatnonzero((phase_of_edge == phase) & (barred[forest.edge_src] | barred[forest.edge_dst]))
        sentences = []
        for row in bad[:5].tolist():
            node = forest.edge_src[row] if barred[forest.edge_src[row]] else forest.edge_dst[row]
            sentences.append(
                f"edge {row} of {phase.name.lower()} tree {forest.edge_tree[row]} ends at "
                f"{topology.node_ids[node]}, which is no rank and cannot {verb} ({flag} is false)."
            )
        findings.add_examples(sentences, len(bad), "edges")
    unranked = topology.rank[forest.tree_root] < 0
    if forest.collective is Collective.ALL_REDUCE:
        unranked &= ~(topology.multicast & topology.aggregate)[forest.tree_root]
    bad = np.flatnonzero(unranked)
    findings.add_examples(
        [
            f"tree {tree} has its root at {topology.node_ids[forest.tree_root[tree]]}, which is no rank."
            for tree in bad[:5].tolist()
        ],
        len(bad),
        "roots",
    )


def _check_spanning(forest: Forest, findings: Findings) -> None:
    """Every tree enters every rank but its root exactly once, in an order in which data can flow."""
    topology, num_nodes = forest.topology, forest.topology.num_nodes
    child, parent = children(forest), parents(forest)
    entered_twice: list[tuple[int, int]] = []
    missed: list[tuple[int, int]] = []
    out_of_order: list[int] = []
    counts = [0, 0, 0]
    for low, high in tree_blocks(forest):
        first, last = int(forest.tree_start[low]), int(forest.tree_start[high])
        rows = np.arange(first, last)
        base = (forest.edge_tree[first:last].astype(np.int64) - low) * num_nodes
        row_of = np.full((high - low) * num_nodes, -1, dtype=np.int64)
        child_cell = base + child[first:last]
        row_of[child_cell] = rows
        root_cell = np.arange(high - low) * num_nodes + forest.tree_root[low:high]
        again = np.flatnonzero(row_of[child_cell] != rows)
        counts[0] += _gather(entered_twice, child_cell[again], low, num_nodes)
        counts[0] += _gather(entered_twice, root_cell[row_of[root_cell] >= 0], low, num_nodes)

        terminal = row_of.reshape(high - low, num_nodes)[:, topology.rank_nodes] < 0
        trees, ranks = np.nonzero(terminal)
        nodes = topology.rank_nodes[ranks]
        away = nodes != forest.tree_root[low:high][trees]
        counts[1] += _gather(missed, trees[away] * num_nodes + nodes[away], low, num_nodes)

        above = row_of[base + parent[first:last]]
        down = forest.tree_phase[forest.edge_tree[first:last]] == Phase.BROADCAST
        at_root = parent[first:last] == forest.tree_root[forest.edge_tree[first:last]]
        flows = at_root | ((above >= 0) & np.where(down, above < rows, above > rows))
        late = rows[~flows]
        counts[2] += len(late)
        out_of_order.extend(late[:5].tolist())
    _report_spanning(forest, entered_twice, missed, out_of_order, counts, findings)


def _gather(found: list[tuple[int, int]], cells: NDArray[np.int64], low: int, num_nodes: int) -> int:
    """Note the first few (tree, node) cells; return how many there are."""
    found.extend((low + cell // num_nodes, cell % num_nodes) for cell in cells[:5].tolist())
    return len(cells)


def _report_spanning(
    forest: Forest,
    entered_twice: list[tuple[int, int]],
    missed: list[tuple[int, int]],
    out_of_order: list[int],
    counts: list[int],
    findings: Findings,
) -> None:
    name, phase = forest.topology.node_ids, forest.tree_phase

    def verb(tree: int) -> str:
        return "enters" if phase[tree] == Phase.BROADCAST else "leaves"

    findings.add_examples(
        [f"tree {t} {verb(t)} {name[v]} more than once (its root: not at all)." for t, v in entered_twice],
        counts[0],
        "vertices",
    )
    findings.add_examples([f"tree {t} never {verb(t)} {name[v]}." for t, v in missed], counts[1], "vertices")
    findings.add_examples(
        [
            f"edge {row} of tree {forest.edge_tree[row]} ({name[forest.edge_src[row]]} -> "
            f"{name[forest.edge_dst[row]]}) comes before the data that it needs, "
            f"or is not joined to the root."
            for row in out_of_order
        ],
        counts[2],
        "edges",
    )
