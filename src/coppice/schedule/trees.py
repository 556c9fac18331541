"""Trees of a forest as objects: ranks, parents and paths by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import overload

from coppice.schedule.forest import Forest, Phase, expanded


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """One tree of a forest, along which a share of the data is broadcast from, or reduced to, its root."""

    forest: Forest  # The forest, written out
    index: int  # Row of the tree in its columns

    @property
    def phase(self) -> str:
        """``broadcast`` (data flows away from the root) or ``reduce`` (towards it)."""
        return Phase(int(self.forest.tree_phase[self.index])).name.lower()

    @property
    def root(self) -> str:
        """Name of the root node."""
        return self._name(int(self.forest.tree_root[self.index]))

    @property
    def weight(self) -> int:
        """Weight; :attr:`share` is relative to all trees."""
        return int(self.forest.tree_weight[self.index])

    @property
    def share(self) -> Fraction:
        """Share of all data that travels along this tree, exact."""
        return Fraction(self.weight, self.forest.phase_weight(Phase(int(self.forest.tree_phase[self.index]))))

    @cached_property
    def parents(self) -> Mapping[str, str]:
        """Parent of every node but the root, by name; parents come before their children."""
        edges = [
            (sender, receiver) if self._away else (receiver, sender)
            for sender, receiver, _ in self.forest.edges(self.index)
        ]
        return {
            self._name(child): self._name(parent) for parent, child in (edges if self._away else edges[::-1])
        }

    @cached_property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """For every node but the root the nodes on its edge, in the direction of the data, both ends included."""
        return {
            self._name(receiver if self._away else sender): tuple(map(self._name, path))
            for sender, receiver, path in self.forest.edges(self.index)
        }

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the tree, its root first, and parents before their children."""
        topology = self.forest.topology
        nodes = [topology.node_index[name] for name in (self.root, *self.parents)]
        return tuple(int(topology.rank[node]) for node in nodes if topology.rank[node] >= 0)

    @cached_property
    def height(self) -> int:
        """Edges between the root and the node farthest from it."""
        depth = {self.root: 0}
        for child, parent in self.parents.items():
            depth[child] = depth[parent] + 1
        return max(depth.values())

    def children(self, node: str) -> tuple[str, ...]:
        """Names of the children of a node."""
        return tuple(child for child, parent in self.parents.items() if parent == node)

    @property
    def _away(self) -> bool:
        return bool(self.forest.tree_phase[self.index] == Phase.BROADCAST)

    def _name(self, node: int) -> str:
        return self.forest.topology.node_ids[node]

    def __str__(self) -> str:
        return "\n".join(draw_tree(self.forest, self.index))

    def __repr__(self) -> str:
        return f"<Tree of {len(self.ranks)} ranks, {self.phase} at {self.root}, {self.share} of the data>"


class Trees(Sequence[Tree]):
    """Lazy sequence of all trees of a forest, templates expanded.

    Examples:
        >>> import coppice
        >>> trees = coppice.plan(coppice.load("ring", gpus=3), "broadcast").plan.trees
        >>> [(tree.root, tree.ranks, str(tree.share)) for tree in trees]
        [('gpu0', (0, 1, 2), '1/2'), ('gpu0', (0, 2, 1), '1/2')]
        >>> trees[0].parents, trees[0].paths["gpu2"]
        ({'gpu1': 'gpu0', 'gpu2': 'gpu1'}, ('gpu1', 'gpu2'))
    """

    def __init__(self, forest: Forest) -> None:
        self._listed = forest

    @cached_property
    def _forest(self) -> Forest:
        return expanded(self._listed)

    def __len__(self) -> int:
        return self._listed.num_trees * self._listed.num_images

    @overload
    def __getitem__(self, index: int) -> Tree: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...

    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        if isinstance(index, slice):
            return [Tree(self._forest, each) for each in range(len(self))[index]]
        return Tree(self._forest, range(len(self))[index])

    def __iter__(self) -> Iterator[Tree]:
        return (Tree(self._forest, index) for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} trees on {self._listed.topology.name}>"


def draw_tree(forest: Forest, tree: int) -> list[str]:
    r"""Draw a tree as lines of text, with the switches on each edge.

    Examples:
        >>> import numpy as np
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.model import Link, Node, NodeKind, Topology
        >>> star = Topology.of(
        ...     "star",
        ...     [*(Node(id=name) for name in "abc"), Node(id="hub", kind=NodeKind.SWITCH)],
        ...     [Link(src=name, dst="hub", gb_per_s=Fraction(25)) for name in "abc"],
        ... )
        >>> forest = Forest(topology=star, collective=Collective.BROADCAST, tree_root=np.array([0]),
        ...                 tree_weight=np.array([1]), tree_phase=np.array([0]), tree_start=np.array([0, 2]),
        ...                 edge_src=np.array([0, 1]), edge_dst=np.array([1, 2]), edge_path=np.array([0, 1]),
        ...                 path_start=np.array([0, 3, 6]), path_nodes=np.array([0, 3, 1, 1, 3, 2]))
        >>> print(*draw_tree(forest, 0), sep="\n")
        a
        └─ b  via hub
           └─ c  via hub
    """
    names = forest.topology.node_ids
    upward = forest.tree_phase[tree] == Phase.REDUCE
    children: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for sender, receiver, path in forest.edges(tree):
        parent, child = (receiver, sender) if upward else (sender, receiver)
        children[parent].append((child, path[1:-1]))
    root = int(forest.tree_root[tree])
    lines = [names[root]]
    stack = [(child, via, "", place == 0) for place, (child, via) in enumerate(reversed(children[root]))]
    while stack:
        node, via, indent, last = stack.pop()
        passing = f"  via {', '.join(names[v] for v in via)}" if via else ""
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{names[node]}{passing}")
        deeper = indent + ("   " if last else "│  ")
        stack += [
            (child, passed, deeper, place == 0)
            for place, (child, passed) in enumerate(reversed(children[node]))
        ]
    return lines
