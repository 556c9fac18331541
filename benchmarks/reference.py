"""Run the public ForestColl code on one of its own topologies and print the figures as JSON.

    python benchmarks/reference.py DIRECTORY BUILDER BOXES [K]

DIRECTORY is a checkout of https://github.com/liangyuRain/ForestColl (it needs networkx). BUILDER is the name
of a preset that this code builds too: dgx-a100 or mi250. K fixes the number of trees per root.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

__all__ = ["BUILDERS", "run_reference"]

BUILDERS = {"dgx-a100": "a100_topology", "mi250": "mi250_topology"}


def run_reference(directory: Path, builder: str, boxes: int, trees: int | None) -> dict[str, Any]:
    """Time the reference's bound and its forest, and measure the trees that it builds.

    Args:
        directory: Its checkout.
        builder: A key of :data:`BUILDERS`.
        boxes: Number of boxes.
        trees: Trees per root, None for the optimum.
    """
    sys.path.insert(0, str(directory))
    topologies = importlib.import_module("topologies")
    planner = importlib.import_module("pipeline_allgather")
    graph, gpus = getattr(topologies, BUILDERS[builder])(boxes)
    start = time.perf_counter()
    search = planner.OptimalBranchingsAlgo(graph, capacitated=True, compute_nodes=gpus)
    scale, per_root = search.binary_search() if trees is None else search.binary_search_fixed_k(trees)
    bound_s = time.perf_counter() - start
    start = time.perf_counter()
    (scale, per_root), (paths, weights) = planner.optimal_pipeline_spanning_trees(
        graph, compute_nodes=gpus, fixed_K=trees
    )
    plan_s = time.perf_counter() - start
    heights = {tree: tree_height(tree[0], edges) for tree, edges in paths.items()}
    total = sum(weights.values())
    distinct = {
        (root, frozenset(tuple(map(tuple, edge)) for edge in edges)) for (root, _), edges in paths.items()
    }
    return {
        "ranks": len(gpus),
        "nodes": graph.number_of_nodes(),
        "links": graph.number_of_edges(),
        "bound_s": bound_s,
        "plan_s": plan_s,
        "inv_rate": str(Fraction(scale / per_root).limit_denominator(100_000)),
        "trees_per_root": per_root,
        "distinct_trees": len(distinct),
        "max_height": max(heights.values()),
        "mean_height": sum(heights[tree] * weights[tree] for tree in heights) / total,
        "networkx": importlib.import_module("networkx").__version__,
    }


def tree_height(root: Any, edges: Iterable[list[tuple[Any, Any]]]) -> int:
    """Most GPU-to-GPU hops from ``root``; an edge is a route, given as a list of links."""
    children: dict[Any, list[Any]] = {}
    for route in edges:
        children.setdefault(route[0][0], []).append(route[-1][-1])
    height, level = 0, [root]
    while level := [child for node in level for child in children.get(node, ())]:
        height += 1
    return height


def main() -> None:
    """Run as the module docstring says."""
    directory, builder, boxes, *rest = sys.argv[1:]
    print(json.dumps(run_reference(Path(directory), builder, int(boxes), int(rest[0]) if rest else None)))


if __name__ == "__main__":
    main()
