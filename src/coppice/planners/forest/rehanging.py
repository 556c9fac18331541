"""Move trees of a forest off lost or slow links within a limit on every link's load.

A hop is moved in one of two ways. A *detour* keeps who sends to whom and takes other switches. *Re-hanging* cuts the
subtree below the hop off and hangs it to any rank of the rest of its tree; the subtree may be entered at another of its
ranks, and the edges between that one and its old top are turned round. The cheapest way is taken, where a link costs
what a unit of weight takes on it. Where only a part of a tree's weight fits, the tree is split.

A reduce tree is handled as the broadcast tree that it is with every edge turned round.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.planners.forest.damage import Damaged, without_unused_paths
from coppice.planners.forest.moved_tree import Hanging, MovedTree, cost_ahead, flow_rows, middles, neighbours
from coppice.schedule.forest import Forest, Phase

MOST_ENTRIES = 64
"""Ranks of a subtree that are tried as its new top."""

MOST_MISSES = 256
"""Subtrees for which no place was found after which a crowded link is given up."""

MOST_ALIKE = 16
"""Subtrees between the same two ranks after which no more of these are tried."""

MOST_SPLITS = 64
"""Trees that are split before an attempt is given up: more would hardly fill what is left."""

_CROWDING = 16.0
"""How many times as much a link without room costs, where there is none with room."""

_DEEPER = 1 / 4
"""What every hop between a new parent and the root costs, as a share of the dearest link: tall trees are slow."""

_DETOURED = 5
"""Nodes of a path that a detour serves: a rank, a switch, the switch that is replaced, a switch, a rank."""


class Rehanging:
    """One attempt to bring every load below a limit."""

    def __init__(
        self,
        damaged: Damaged,
        *,
        scale: int,
        limit: Sequence[int],
        low: bool = True,
        tallest: int | None = None,
    ) -> None:
        """Start from the damaged forest.

        Args:
            scale: Units of weight that one of the forest's becomes: weights can be split that far.
            limit: Most units that each link may carry.
            low: Prefer new parents near the root, where that costs little more.
            tallest: Hops that a tree may have at most after a subtree is hung; None is any number.
        """
        forest, topology = damaged.forest, damaged.forest.topology
        self.damaged, self.scale, self.low, self.tallest = damaged, scale, low, tallest
        self.topology, self.links_by_ends = topology, damaged.links
        self.limit = limit
        self.room = [most - scale * load for most, load in zip(limit, damaged.load, strict=True)]
        self.rank: list[int] = topology.rank.tolist()
        self.edge_path = forest.edge_path.copy()
        self.first_new = len(forest.path_start) - 1
        self.new_paths: list[list[int]] = []
        self.trees: dict[int, MovedTree] = {}
        self.split: list[MovedTree] = []
        self.rerouted: set[int] = set()
        self.entering, self.leaving = neighbours(topology)
        self.set_cost((topology.denominator / topology.capacity).tolist())

    def set_cost(self, cost: list[float]) -> None:
        """What a unit of weight costs on each link from now on."""
        self.cost = cost
        self.deeper = _DEEPER * max(cost, default=0.0) if self.low else 0.0
        self.ahead = {
            False: cost_ahead(self.leaving, cost, self.rank),
            True: cost_ahead(self.entering, cost, self.rank),
        }

    def run(self) -> bool:
        """Move affected subtrees; return whether all found a place."""
        broken = self._detour(self.damaged.broken, None)
        for link, rows in self._crowded().items():
            self._detour(rows, link)
        return self._rehang_broken(broken) and all(
            self._rehang_crowded(rows.tolist(), link) for link, rows in self._crowded().items()
        )

    def mend(self) -> bool:
        """Move what hangs on links that are gone, over full links where there is no room; whether all hangs again."""
        return self._rehang_broken(self._detour(self.damaged.broken, None))

    def _crowded(self) -> dict[int, NDArray[np.int64]]:
        """Rows over every link that carries too much, as the forest was."""
        return self.damaged.rows_over([link for link, room in enumerate(self.room) if room < 0])

    # Paths.

    def _path(self, path: int) -> list[int]:
        if path < 0:
            return []
        if path >= self.first_new:
            return self.new_paths[path - self.first_new]
        forest = self.damaged.forest
        found: list[int] = forest.path_nodes[forest.path_start[path] : forest.path_start[path + 1]].tolist()
        return found

    def links_of(self, path: int) -> list[int]:
        """Links of a path by its number; those that are gone are left out."""
        return self._links(self._path(path))

    def _links(self, nodes: Sequence[int]) -> list[int]:
        """Links of a path; those that are gone are left out."""
        links = self.links_by_ends
        found = (links.get(ends, -1) for ends in pairwise(nodes))
        return [link for link in found if link >= 0]

    def add_path(self, nodes: list[int]) -> int:
        """Number of a new path."""
        self.new_paths.append(nodes)
        return self.first_new + len(self.new_paths) - 1

    def use(self, links: Sequence[int], units: int) -> None:
        """Count units of weight on links."""
        for link in links:
            self.room[link] -= units

    # Detours.

    def _detour(self, rows: NDArray[np.int64], crowded: int | None) -> list[int]:
        """Give rows another middle switch where one has room; the rows that still have to move.

        Only a single switch between two others is replaced: what a lost spine or a link to it needs, thousands of
        times. Everything else is re-hung, which may end at the same two ranks.
        """
        forest, room, hop_link = self.damaged.forest, self.room, self.damaged.hop_link
        paths = forest.edge_path[rows]
        start = forest.path_start[paths]
        fits = (paths >= 0) & (forest.path_start[paths + 1] - start == _DETOURED)
        at = start[fits, None] + np.arange(_DETOURED)
        nodes, links = forest.path_nodes[at], hop_link[at[:, :-1]]
        fits[fits] = whole = (links[:, 0] >= 0) & (links[:, 3] >= 0)
        if crowded is not None:
            fits[fits] = inside = (links[whole, 1] == crowded) | (links[whole, 2] == crowded)
            nodes, links = nodes[whole][inside], links[whole][inside]
        else:
            nodes, links = nodes[whole], links[whole]
        left: list[int] = rows[~fits].tolist()
        rows = rows[fits]
        trees = forest.edge_tree[rows]
        weights = (forest.tree_weight[trees] * self.scale).tolist()
        known: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        moved: list[int] = []
        for row, (u, a, middle, b, v), (_, first, second, _), weight in zip(
            rows.tolist(), nodes.tolist(), links.tolist(), weights, strict=True
        ):
            if crowded is not None and room[crowded] >= 0:
                break
            ways = known.get((a, b))
            if ways is None:
                ways = known[a, b] = middles(self.leaving[a], self.entering[b], self.rank, turn=a + b)
            for place, (node, into, out) in enumerate(ways):  # noqa: B007 (the place that the loop ended at)
                if node != middle and room[into] >= weight and room[out] >= weight:
                    break
            else:
                left.append(row)
                continue
            ways.append(ways.pop(place))  # the next takes another one
            if first >= 0:
                room[first] += weight
            if second >= 0:
                room[second] += weight
            room[into] -= weight
            room[out] -= weight
            self.new_paths.append([u, a, node, b, v])
            moved.append(row)
        if moved:
            first_path = self.first_new + len(self.new_paths) - len(moved)
            self.edge_path[moved] = np.arange(first_path, first_path + len(moved), dtype=np.int32)
            self.rerouted.update(forest.edge_tree[moved].tolist())
        return left

    # Trees.

    def tree(self, tree: int) -> MovedTree:
        """A tree of the forest, as one that can be changed."""
        found = self.trees.get(tree)
        if found is None:
            forest = self.damaged.forest
            rows = slice(int(forest.tree_start[tree]), int(forest.tree_start[tree + 1]))
            reduces = bool(forest.tree_phase[tree] == Phase.REDUCE)
            ends = (forest.edge_dst[rows], forest.edge_src[rows])
            above, children = ends if reduces else ends[::-1]
            parent = np.full(self.topology.num_nodes, -1, dtype=np.int32)
            path = parent.copy()
            parent[children], path[children] = above, self.edge_path[rows]
            root, weight = int(forest.tree_root[tree]), int(forest.tree_weight[tree]) * self.scale
            found = self.trees[tree] = MovedTree(root, weight, reduces, parent, path, children)
        return found

    def _child(self, row: int) -> tuple[MovedTree, int]:
        forest = self.damaged.forest
        tree = self.tree(int(forest.edge_tree[row]))
        ends = forest.edge_src if tree.reduces else forest.edge_dst
        return tree, int(ends[row])

    def _rehang_broken(self, rows: list[int]) -> bool:
        """Hang every subtree whose hop is gone to the rest of its tree."""
        by_tree: dict[int, tuple[MovedTree, list[int]]] = {}
        for row in rows:
            tree, child = self._child(row)
            by_tree.setdefault(id(tree), (tree, []))[1].append(child)
        for tree, children in by_tree.values():
            tree.detached.update(children)
            for child in children:
                self.use(self.links_of(int(tree.path[child])), -tree.weight)
        pending = list(by_tree.values())
        while pending and len(self.split) <= MOST_SPLITS:
            tree, children = pending.pop()
            tries, crowding = len(children), False
            while children and tries:
                child = children.pop(0)
                found = self.search(tree, child, banned=-1, crowding=crowding)
                if found is None:
                    children.append(child)
                    tries -= 1
                    if not tries and not crowding:  # below those that hang by now there is no room either
                        tries, crowding = len(children), True
                    continue
                units = min(tree.weight, found.units)
                if units < tree.weight:
                    rest = self._halved(tree, units)
                    # What hangs already is used by both parts alike; of the detached parts nothing is used.
                    pending.append((rest, [child, *children]))
                self.hang(tree, child, found, units)
                tries, crowding = len(children), False
            if children and not self.regrow(tree):
                return False
        return not pending

    def regrow(self, tree: MovedTree) -> bool:
        """Grow a tree anew from its root, rank by rank, low where that is possible; whether it reaches all.

        What is left of a tree may be entered only where its edges cannot be turned round.
        """
        return (self.tallest is not None and self._grown(tree, self.tallest)) or self._grown(
            tree, self.topology.num_nodes
        )

    def _grown(self, tree: MovedTree, tallest: int) -> bool:
        """Grow a tree of a number of hops at most; ranks that it does not reach are detached."""
        for child in tree.children.tolist():
            if child not in tree.detached:
                self.use(self.links_of(int(tree.path[child])), -tree.weight)
        tree.detached.clear()
        onwards = self.entering if tree.reduces else self.leaving
        wanted = set(tree.children.tolist())
        price, origin, hops = {tree.root: 0.0}, {tree.root: -1}, {tree.root: 0}
        heap = [(0.0, tree.root)]
        while heap and wanted:
            at, node = heapq.heappop(heap)
            if at > price[node]:
                continue
            if node in wanted:
                wanted.discard(node)
                path = [node]
                while self.rank[path[-1]] < 0 or len(path) == 1:
                    path.append(origin[path[-1]])
                tree.parent[node] = path[-1]
                hops[node] = hops[path[-1]] + 1
                if not tree.reduces:
                    path.reverse()
                self.use(self._links(path), tree.weight)
                tree.path[node] = self.add_path(path)
                price[node] = at = 0.0
            if hops.get(node) == tallest:
                continue
            for other, link in onwards[node]:
                there = at + self.price(link)
                if there < price.get(other, float("inf")) and (self.rank[other] < 0 or other in wanted):
                    price[other], origin[other] = there, node
                    heapq.heappush(heap, (there, other))
        tree.detached.update(wanted)
        return not wanted

    def price(self, link: int) -> float:
        """What a unit costs on a link, more where there is no room."""
        if self.room[link] >= 1:
            return self.cost[link]
        return self.cost[link] * (1 + _CROWDING * (1 - self.room[link] / (self.limit[link] + 1)))

    def _rehang_crowded(self, rows: list[int], link: int) -> bool:
        """Re-hang subtrees until no more cross the link than may; whether that is reached.

        Where there is room for a part of a tree only, it is split, and as much as can be of that part goes elsewhere.
        """
        misses = 0
        missed: Counter[tuple[int, int, bool]] = Counter()
        by_tree: dict[int, tuple[MovedTree, list[int]]] = {}
        for row in rows:
            tree, child = self._child(row)
            by_tree.setdefault(id(tree), (tree, []))[1].append(child)
        pending, late = list(by_tree.values())[::-1], list[tuple[MovedTree, list[int]]]()
        passing: set[tuple[int, int]] = set()  # trees with ranks that have got more below them
        while (pending or late) and self.room[link] < 0 and misses < MOST_MISSES:
            if not pending:
                pending, late = late[::-1], []
            tree, children = pending.pop()
            while children and self.room[link] < 0 and misses < MOST_MISSES:
                child = children.pop(0)
                if (id(tree), child) in passing:  # one below the other makes tall trees
                    passing.discard((id(tree), child))
                    late.append((tree, [child]))
                    continue
                hop = child, int(tree.parent[child]), tree.reduces
                old = self.links_of(int(tree.path[child]))
                if link not in old or missed[hop] == MOST_ALIKE:
                    continue
                units = min(tree.weight, -self.room[link])
                self.use(old, -units)
                tree.detached.add(child)
                found = self.search(tree, child, banned=link)
                taken = 0 if found is None else min(units, found.units)
                self.use(old, units - taken)
                if found is None or (taken < tree.weight and len(self.split) > MOST_SPLITS):
                    self.use(old, taken)
                    tree.detached.discard(child)
                    misses += 1
                    missed[hop] += 1
                    continue
                misses = 0
                if taken < tree.weight:
                    rest = self._halved(tree, taken)
                    rest.detached.discard(child)
                    pending.append((rest, [child, *children]))
                self.hang(tree, child, found, taken)
                above = found.parent
                while above != tree.root:
                    passing.add((id(tree), above))
                    above = int(tree.parent[above])
        return self.room[link] >= 0

    def _halved(self, tree: MovedTree, units: int) -> MovedTree:
        """Leave ``units`` of its weight to a tree; another that is like it gets the rest."""
        rest = replace(
            tree,
            weight=tree.weight - units,
            parent=tree.parent.copy(),
            path=tree.path.copy(),
            detached=set(tree.detached),
        )
        tree.weight = units
        self.split.append(rest)
        return rest

    def hang(self, tree: MovedTree, child: int, found: Hanging, units: int) -> None:
        """Hang the subtree of ``child``, whose old hop is not counted any more, as the search found it."""
        tree.detached.discard(child)
        self.use(found.gained, units)
        self.use(found.freed, -units)
        above, path = found.parent, self.add_path(found.path)
        node = found.entry
        turned = [node]
        while node != child:
            node = int(tree.parent[node])
            turned.append(node)
        for below, reversed_path in zip(turned, [*found.turned, None], strict=True):
            tree.parent[below], tree.path[below] = above, path
            if reversed_path is not None:
                above, path = below, self.add_path(reversed_path)

    def search(self, tree: MovedTree, child: int, *, banned: int, crowding: bool = False) -> Hanging | None:
        """The cheapest hop from the rest of the tree into the subtree of ``child``.

        It has room; with ``crowding`` it need not, and costs the more the less there is: others make room then.
        """
        into = self.leaving if tree.reduces else self.entering
        room, cost, rank = self.room, self.cost, self.rank
        below: dict[int, int] = {child: -1}
        best: dict[int, float] = {child: 0.0}
        origin: dict[int, int] = {child: -1}
        queue = [child]
        for node in queue:
            for kid in tree.below(node):
                if len(below) >= MOST_ENTRIES:
                    break
                below[kid] = node
                back = self._turned(tree, kid)
                if back is None or node not in best:
                    continue
                price = best[node] + sum(cost[link] for link in back[1])
                best[kid] = price
                origin[kid] = -1
                queue.append(kid)
        ahead = self.ahead[tree.reduces]
        heap = [(price, 0.0, node) for node, price in best.items()]
        heapq.heapify(heap)
        done: set[int] = set()
        while heap:
            _, _, node = heapq.heappop(heap)
            if node in done:
                continue
            done.add(node)
            if rank[node] >= 0 and node not in below:
                found = self._found(tree, child, node, origin)
                if self.tallest is not None and tree.height_with(child, node, found.entry) > self.tallest:
                    continue
                if crowding:
                    return replace(found, units=tree.weight)
                if found.units > 0:
                    return found
                continue
            price = best[node]
            for other, link in into[node]:
                if link == banned or other in done or other in below:
                    continue
                if room[link] < 1 and not crowding:
                    continue
                there = price + (self.price(link) if crowding else cost[link])
                if there >= best.get(other, float("inf")):
                    continue
                if rank[other] >= 0:
                    depth = tree.depth(other)
                    if depth < 0:
                        continue
                    there += depth * self.deeper
                    if there >= best.get(other, float("inf")):
                        continue
                best[other], origin[other] = there, node
                heapq.heappush(heap, (there + ahead[other], ahead[other], other))
        return None

    def _turned(self, tree: MovedTree, kid: int) -> tuple[list[int], list[int]] | None:
        """The path of a child's edge turned round with its links; None where a link is missing or has no room."""
        nodes = self._path(int(tree.path[kid]))[::-1]
        links = self._links(nodes)
        if len(links) != len(nodes) - 1 or any(self.room[link] < 1 for link in links):
            return None
        return nodes, links

    def _found(self, tree: MovedTree, child: int, parent: int, origin: dict[int, int]) -> Hanging:
        """The hop that a search ended with: its path, what is turned round, and how many units have room."""
        path = [parent]
        while origin[path[-1]] >= 0:
            path.append(origin[path[-1]])
        entry, turned, freed = path[-1], [], []
        if tree.reduces:
            path.reverse()
        gained = self._links(path)
        node = entry
        while node != child:
            nodes = self._path(int(tree.path[node]))
            freed += self._links(nodes)
            turned.append(nodes[::-1])
            gained += self._links(nodes[::-1])
            node = int(tree.parent[node])
        net = Counter(gained)
        net.subtract(Counter(freed))
        units = min(
            (self.room[link] // times for link, times in net.items() if times > 0), default=tree.weight
        )
        return Hanging(parent, entry, path, turned, gained, freed, units)

    # The result.

    def load(self) -> tuple[int, ...]:
        """Units on every link."""
        return tuple(most - room for most, room in zip(self.limit, self.room, strict=True))

    def forest(self) -> Forest:
        """Resulting forest, without unused paths."""
        forest = self.damaged.forest
        src, dst, paths = forest.edge_src.copy(), forest.edge_dst.copy(), self.edge_path
        weight = forest.tree_weight * self.scale
        for tree, changed in self.trees.items():
            rows = slice(int(forest.tree_start[tree]), int(forest.tree_start[tree + 1]))
            src[rows], dst[rows], paths[rows] = flow_rows(changed)
            weight[tree] = changed.weight
        more = [flow_rows(tree) for tree in self.split]
        roots = np.array([tree.root for tree in self.split], dtype=np.int32)
        phases = np.array([Phase.REDUCE if tree.reduces else Phase.BROADCAST for tree in self.split])
        starts = int(forest.tree_start[-1]) + np.cumsum([len(each[0]) for each in more], dtype=np.int64)
        lengths = np.array([len(each) for each in self.new_paths], dtype=np.int64)
        nodes = np.array([node for path in self.new_paths for node in path], dtype=np.int32)
        all_start = np.concatenate([forest.path_start, forest.path_start[-1] + np.cumsum(lengths)])
        edge_path = np.concatenate([paths, *(each[2] for each in more)])
        all_nodes = np.concatenate([forest.path_nodes, nodes])
        moved = replace(
            forest,
            tree_root=np.concatenate([forest.tree_root, roots]),
            tree_weight=np.concatenate([weight, np.array([t.weight for t in self.split], dtype=np.int64)]),
            tree_phase=np.concatenate([forest.tree_phase, phases.astype(np.int8)]),
            tree_start=np.concatenate([forest.tree_start, starts]),
            edge_src=np.concatenate([src, *(each[0] for each in more)]),
            edge_dst=np.concatenate([dst, *(each[1] for each in more)]),
            edge_path=edge_path.astype(np.int32),
            path_start=all_start,
            path_nodes=all_nodes,
        )
        return without_unused_paths(moved)
