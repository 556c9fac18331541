"""Hang what a fault broke somewhere else, quickly: for trees whose links are brought in order afterwards."""

from __future__ import annotations

import heapq

from coppice.planners.forest.moved_tree import MovedTree
from coppice.planners.forest.rehanging import Rehanging


class Mending(Rehanging):
    """One attempt to make all trees whole again, full links or not."""

    def hang_below_others(self) -> bool:
        """Hang what hangs on links that are gone below ranks that it does not reach, full or not; whether all does.

        Quicker than :meth:`mend`, and over full links where there are no others, which get dearer. A subtree that no
        rank reaches otherwise is entered at a child of its top.
        """
        by_tree: dict[int, list[int]] = {}
        for row in self.damaged.broken.tolist():
            tree, child = self._child(row)
            by_tree.setdefault(int(self.damaged.forest.edge_tree[row]), []).append(child)
            self.use(self.links_of(int(tree.path[child])), -tree.weight)
        for number, children in by_tree.items():
            tree = self.trees[number]
            tree.detached.update(children)
            waiting = 0
            while children and waiting < len(children):
                child = children.pop(0)
                if not (self._hung(tree, child) or self._entered_below(tree, child)):
                    children.append(child)
                    waiting += 1
                    continue
                waiting = 0
                tree.detached.discard(child)
            if children:
                return False
        return True

    def _hung(self, tree: MovedTree, child: int) -> bool:
        """Hang a rank whose hop is not counted to the rest of its tree; whether there is a way."""
        nodes = self._way_to(tree, child)
        if nodes is None:
            return False
        self.use(self._links(nodes), tree.weight)
        tree.parent[child] = nodes[-1 if tree.reduces else 0]
        tree.path[child] = self.add_path(nodes)
        return True

    def _entered_below(self, tree: MovedTree, child: int) -> bool:
        """Hang a child of a rank to the rest of the tree, and the rank to that child; whether there is a way."""
        for kid in sorted(tree.below(child), key=lambda kid: (kid - child) % len(tree.parent)):
            old = int(tree.path[kid])
            turned = self._path(old)[::-1]
            if len(self._links(turned)) == len(turned) - 1 and self._hung(tree, kid):
                self.use(self.links_of(old), -tree.weight)
                self.use(self._links(turned), tree.weight)
                tree.parent[child], tree.path[child] = kid, self.add_path(turned)
                return True
        return False

    def _way_to(self, tree: MovedTree, child: int) -> list[int] | None:
        """The cheapest path to a rank from one that is connected to the root without it."""
        around = self.leaving if tree.reduces else self.entering
        best, origin, tried = {child: 0.0}, dict[int, int](), set[int]()
        heap = [(0.0, child)]
        while heap:
            paid, node = heapq.heappop(heap)
            if paid > best[node]:
                continue
            if node != child and self.rank[node] >= 0:
                if node in tried:
                    path = [node]
                    while path[-1] != child:
                        path.append(origin[path[-1]])
                    return path[::-1] if tree.reduces else path
                tried.add(node)
                depth = tree.depth(node)
                if depth >= 0:
                    best[node] = paid + depth * self.deeper
                    heapq.heappush(heap, (best[node], node))
                continue
            for other, link in around[node]:
                there = paid + self.price(link)
                if other not in tried and there < best.get(other, float("inf")):
                    best[other], origin[other] = there, node
                    heapq.heappush(heap, (there, other))
        return None
