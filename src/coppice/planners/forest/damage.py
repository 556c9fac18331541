"""Apply a fault to a forest: affected edges, and the load of every link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.rows import offsets, ranges
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import grouped_sums
from coppice.topology.model import Topology

MISSING, BETWEEN = -1, -2
"""In place of a link: a hop over none, and the step from one path to the next."""

DENSE_NODES = 4_096
"""Up to this many nodes links are looked up in a square table."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Damaged:
    """A forest on a topology that some of its paths may no longer fit."""

    # Its columns; rows whose parent is gone have -1 as parent and path, paths have `num_nodes` for a node
    # that is gone
    forest: Forest
    links: dict[tuple[int, int], int]  # Link from a node to another; nothing for those that are gone
    # Units of weight on every link, those of broken paths on the links that are left included
    load: list[int]
    broken: NDArray[np.int64]  # Rows whose path uses a link that is not there, or whose parent is gone
    # Link from each of `path_nodes` to the next: -1 where there is none, -2 from path to path
    hop_link: NDArray[np.int32]

    def rows_over(self, links: Sequence[int]) -> dict[int, NDArray[np.int64]]:
        """Rows of the edges whose paths use each of some links."""
        if not links:
            return {}
        wanted = np.zeros(self.forest.topology.num_links + 2, dtype=np.bool_)
        wanted[links] = True
        hops = np.flatnonzero(wanted[self.hop_link])  # the last two are no links and not wanted
        paths = np.searchsorted(self.forest.path_start, hops, side="right") - 1
        taken = self.hop_link[hops]
        order, ordered = self._rows_by_path
        found = {}
        for link in links:
            which = paths[taken == link]
            if ordered is None:
                found[link] = which
                continue
            first, last = (np.searchsorted(ordered, which, side=side) for side in ("left", "right"))
            found[link] = np.sort(order[ranges(first, last - first)])
        return found

    @cached_property
    def _rows_by_path(self) -> tuple[NDArray[np.int64], NDArray[np.int32] | None]:
        """Rows in the order of their paths, and those paths; None where every row has the path of its number."""
        edge_path = self.forest.edge_path
        if np.array_equal(edge_path, np.arange(len(self.forest.path_start) - 1)):
            return edge_path.astype(np.int64), None
        order = np.argsort(edge_path, kind="stable")
        return order, edge_path[order]


def rows_without_path(forest: Forest, hop_link: NDArray[np.int32]) -> NDArray[np.int64]:
    """Rows whose path has a missing hop, or that have no path."""
    hops = np.flatnonzero(hop_link == MISSING)
    lost = np.zeros(len(forest.path_start), dtype=np.bool_)
    lost[np.searchsorted(forest.path_start, hops, side="right") - 1] = True
    lost[-1] = True  # rows without a path have -1 there
    return np.flatnonzero(lost[forest.edge_path])


def without_unused_paths(forest: Forest) -> Forest:
    """Drop paths that no edge uses, including those over lost links."""
    used = np.zeros(len(forest.path_start) - 1, dtype=np.bool_)
    used[forest.edge_path] = True
    if used.all():
        return forest
    counts = np.diff(forest.path_start)
    return replace(
        forest,
        edge_path=(np.cumsum(used, dtype=np.int32) - 1)[forest.edge_path].astype(np.int32),
        path_start=offsets(counts[used]),
        path_nodes=forest.path_nodes[np.repeat(used, counts)],
    )


def placed(forest: Forest, now: Topology, where: NDArray[np.int32]) -> tuple[Forest, int]:
    """The forest on the faulty network, and the number of trees lost with their roots."""
    same = len(where) == now.num_nodes and bool((where == np.arange(len(where))).all())
    if same and np.array_equal(forest.topology.rank >= 0, now.rank >= 0):
        return replace(forest, topology=now), 0
    return _without_gone(forest, now, where)


def damaged_by(forest: Forest, now: Topology, where: NDArray[np.int32]) -> tuple[Damaged, int]:
    """The forest on the faulty network with what is broken, and the number of trees lost with their roots."""
    forest, dropped = placed(forest, now, where)
    hop_link = _hop_links(forest)
    weight = np.repeat(forest.tree_weight, np.diff(forest.tree_start))
    has = forest.edge_path >= 0
    every = bool(has.all())
    paths, units = (forest.edge_path, weight) if every else (forest.edge_path[has], weight[has])
    path_weight = _sums(paths, units, len(forest.path_start) - 1)
    spread = np.repeat(path_weight, np.diff(forest.path_start))[:-1]
    found = _sums(hop_link - min(MISSING, BETWEEN), spread, now.num_links + 2)[2:]
    damaged = Damaged(
        forest=forest,
        links=now.link_index,
        load=found.tolist(),
        broken=rows_without_path(forest, hop_link),
        hop_link=hop_link,
    )
    return damaged, dropped


def _sums(group: NDArray[np.integer], units: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Sums by group; floats count exactly what stays below 2^53."""
    total = int(units.max(initial=0)) * len(units)
    if total < 2**53:
        return np.bincount(group, weights=units, minlength=size).astype(np.int64)
    exact = grouped_sums(group, units, size)
    if max(exact, default=0) >= 2**62:
        raise InputError("expected links that carry less than 2^62 units of weight, found more: plan anew.")
    return np.array(exact, dtype=np.int64)


def _hop_links(forest: Forest) -> NDArray[np.int32]:
    """Link from each node of the paths to the next."""
    topology, nodes = forest.topology, forest.path_nodes
    size = topology.num_nodes + 1
    if size <= DENSE_NODES:
        table = np.full(size * size, MISSING, dtype=np.int32)
        table[topology.src * np.int32(size) + topology.dst] = np.arange(topology.num_links, dtype=np.int32)
        found = table[nodes[:-1] * np.int32(size) + nodes[1:]]
    else:
        keys = topology.src.astype(np.int64) * size + topology.dst
        wanted = nodes[:-1].astype(np.int64) * size + nodes[1:]
        place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
        found = np.where(keys[place] == wanted, place, MISSING).astype(np.int32)
    found[forest.path_start[1:-1] - 1] = BETWEEN
    links: NDArray[np.int32] = found
    return links


def _without_gone(forest: Forest, now: Topology, where: NDArray[np.int32]) -> tuple[Forest, int]:
    """The forest among the nodes that are there: trees whose roots left go with them, and edges to ranks that left."""
    terminal = np.append(now.rank >= 0, np.False_)
    alive = terminal[where]
    stays = alive[forest.tree_root]
    reduces = forest.tree_phase[forest.edge_tree] == Phase.REDUCE
    child = np.where(reduces, forest.edge_src, forest.edge_dst)
    parent = np.where(reduces, forest.edge_dst, forest.edge_src)
    keep = np.flatnonzero(stays[forest.edge_tree] & alive[child])
    counts = np.bincount(forest.edge_tree[keep], minlength=forest.num_trees)[stays]
    child, parent, reduces = child[keep], parent[keep], reduces[keep]
    above = np.where(alive[parent], where[parent], -1).astype(np.int32)
    below = where[child]
    changed = replace(
        forest,
        topology=now,
        tree_root=where[forest.tree_root[stays]],
        tree_weight=forest.tree_weight[stays],
        tree_phase=forest.tree_phase[stays],
        tree_start=offsets(counts),
        edge_src=np.where(reduces, below, above),
        edge_dst=np.where(reduces, above, below),
        edge_path=np.where(above < 0, -1, forest.edge_path[keep]).astype(np.int32),
        path_nodes=where[forest.path_nodes],
    )
    return changed, int((~stays).sum())
