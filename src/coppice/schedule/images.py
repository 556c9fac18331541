"""Templates written out: every image of every tree as a tree of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.errors import InputError
from coppice.schedule.forest import Forest

__all__ = ["MOST_EDGES", "expanded", "expanded_edges"]

MOST_EDGES = 50_000_000
"""More tree edges than this are not written out (about 2 GB)."""


def expanded_edges(forest: Forest) -> int:
    """Number of edges that the forest has with all images."""
    return forest.num_edges * forest.num_images


def expanded(forest: Forest) -> Forest:
    """The same forest without templates: the images of each tree follow each other.

    Raises:
        InputError: If that is more than 50 million edges.
    """
    symmetry = forest.symmetry
    if symmetry is None:
        return forest
    if expanded_edges(forest) > MOST_EDGES:
        msg = (
            f"expected at most {MOST_EDGES} tree edges to write out, found {expanded_edges(forest)}: "
            "keep the templates."
        )
        raise InputError(msg)
    order = symmetry.order
    elements = np.arange(order)
    trees = np.repeat(np.arange(forest.num_trees), order)
    lengths = np.diff(forest.tree_start)[trees]
    tree_start = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    first = forest.tree_start[:-1][trees]
    rows = np.arange(tree_start[-1]) - np.repeat(tree_start[:-1] - first, lengths)
    image = np.repeat(np.tile(elements, forest.num_trees), lengths)
    paths = len(forest.path_start) - 1
    # All images of all paths: path p under element g is path g * paths + p.
    node_images = symmetry.image(forest.path_nodes[None, :], elements[:, None])
    starts = forest.path_start[None, :-1] + elements[:, None] * len(forest.path_nodes)
    return replace(
        forest,
        tree_root=symmetry.image(forest.tree_root[trees], np.tile(elements, forest.num_trees)),
        tree_weight=forest.tree_weight[trees],
        tree_phase=forest.tree_phase[trees],
        tree_start=tree_start,
        edge_src=symmetry.image(forest.edge_src[rows], image),
        edge_dst=symmetry.image(forest.edge_dst[rows], image),
        edge_path=(image * paths + forest.edge_path[rows]).astype(np.int32),
        path_start=np.append(starts.reshape(-1), node_images.size).astype(np.int64),
        path_nodes=node_images.reshape(-1),
        symmetry=None,
    )
