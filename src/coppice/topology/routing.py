"""Default routes of transfers that name no path.

Fewest hops through switches and NICs only, then widest, then one of the remaining paths by a hash of (src,
dst, channel), as equal-cost multipath does. Through other GPUs only where that is allowed and nothing else
leads there.

For one destination, a breadth-first search backwards gives ``hops[v]``, and one pass in that order gives
``width[v]``, the best bottleneck over the shortest paths from v. A path is then walked forwards: at each
node the candidates are the next nodes that are one hop nearer and keep the bottleneck, in id order, and the
hash picks one. Another seed of the hash is another day in a network whose switches hash flows: any of the
equally good paths may be picked, and flows may collide. :meth:`Router.equal_paths` has all of them, for
networks that spread every flow evenly.

:meth:`Router.paths` has the same paths for many pairs at once, from the native core.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError, UnreachableError
from coppice.topology.model import Topology

_MAX_CELLS = 2**23
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class _Tree:
    """Towards one destination: hops and width of each node, -1 and 0 where nothing leads there."""

    hops: list[int]
    width: list[int]
    nearer: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (node, bottleneck): next nodes


class Router:
    """Paths between ranks of one topology.

    Args:
        topology: Where to route.
        relay_gpus: Other GPUs may forward where no path of switches and NICs exists.
        seed: Another choice among equally good paths, 0 or more; 0 is the default routing.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-a100")
        >>> [box.node_ids[v] for v in Router(box).path(0, 3)]
        ['gpu0', 'nvswitch', 'gpu3']
    """

    def __init__(self, topology: Topology, *, relay_gpus: bool = False, seed: int = 0) -> None:
        self.topology = topology
        self.relay_gpus = relay_gpus
        self._seed = (seed,) if seed else ()
        # Switches, NICs, and the GPUs without a rank: these are in the topology in order to forward.
        self._forwards: list[bool] = (topology.rank < 0).tolist()
        self._trees: OrderedDict[tuple[int, bool], _Tree] = OrderedDict()
        self._max_trees = max(1, _MAX_CELLS // max(1, topology.num_nodes))

    @cached_property
    def _out(self) -> list[list[tuple[int, int]]]:
        """(neighbour, capacity) over the links out of each node; in id order as links are sorted."""
        return self._neighbours(self.topology.src, self.topology.dst)

    @cached_property
    def _into(self) -> list[list[tuple[int, int]]]:
        """(neighbour, capacity) over the links into each node, likewise."""
        return self._neighbours(self.topology.dst, self.topology.src)

    def _neighbours(self, here: NDArray[np.int32], there: NDArray[np.int32]) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.topology.num_nodes)]
        columns = (here, there, self.topology.capacity)
        for node, neighbour, capacity in zip(*(column.tolist() for column in columns), strict=True):
            found[node].append((neighbour, capacity))
        return found

    def path(self, src: int, dst: int, *, channel: int = 0) -> tuple[int, ...]:
        """Route from rank ``src`` to rank ``dst``: node ids, both ends included.

        Args:
            src: Sending rank.
            dst: Receiving rank.
            channel: Spreads the channels of one pair over equal paths.

        Raises:
            UnreachableError: If there is no path, or only one through other GPUs and these may not forward.
        """
        nodes = self.topology.rank_nodes
        return self.node_path(int(nodes[src]), int(nodes[dst]), channel=channel)

    def node_path(self, src: int, dst: int, *, channel: int = 0) -> tuple[int, ...]:
        """Route from node ``src`` to node ``dst``; see :meth:`path`.

        Raises:
            UnreachableError: As there.
        """
        tree, relayed = self._way(src, dst)
        path = [src]
        while path[-1] != dst:
            choices = self._nearer(tree, path[-1], dst, tree.width[src], relayed=relayed)
            path.append(choices[_mixed(*self._seed, src, dst, channel, len(path)) % len(choices)])
        return tuple(path)

    def paths(
        self, src: NDArray[np.integer], dst: NDArray[np.integer], channel: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Routes of many requests: of request i, the result of ``path(src[i], dst[i], channel=channel[i])``.

        Requests of one receiver that follow one another share a search.

        Args:
            src: Sending ranks.
            dst: Receiving ranks.
            channel: Channels of the pairs.

        Returns:
            ``(start, nodes)``: path i is ``nodes[start[i] : start[i + 1]]``.

        Raises:
            UnreachableError: As :meth:`path`, for the first request without a path.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> router = Router(preset("star", gpus=3))
            >>> start, nodes = router.paths(np.array([1, 2]), np.array([0, 0]), np.array([0, 0]))
            >>> start.tolist(), nodes.tolist()
            ([0, 3, 6], [1, 3, 0, 2, 3, 0])
        """
        from coppice import _core

        topology = self.topology
        start, nodes = _core.find_routes(
            topology.num_nodes,
            topology.src,
            topology.dst,
            topology.capacity,
            topology.rank < 0,
            topology.rank_nodes[src],
            topology.rank_nodes[dst],
            np.ascontiguousarray(channel, dtype=np.int64),
            self.relay_gpus,
            _mixed(*self._seed),
        )
        found = len(start) - 1
        if found < len(src):
            self.path(int(src[found]), int(dst[found]))  # says what is wrong
        return start, nodes

    def equal_paths(self, src: int, dst: int, *, most: int) -> list[tuple[int, ...]]:
        """All equal-cost routes from rank ``src`` to rank ``dst``, in order of their node ids.

        Args:
            src: Sending rank.
            dst: Receiving rank.
            most: Paths that may be there at most.

        Raises:
            UnreachableError: As :meth:`path`.
            InputError: If there are more than ``most`` of them.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> len(Router(preset("fat-tree", leaves=2, gpus_per_leaf=2, spines=4)).equal_paths(0, 2, most=8))
            4
        """
        nodes = self.topology.rank_nodes
        first, last = int(nodes[src]), int(nodes[dst])
        tree, relayed = self._way(first, last)
        paths: list[tuple[int, ...]] = [(first,)]
        while paths[0][-1] != last:
            paths = [
                (*path, node)
                for path in paths
                for node in self._nearer(tree, path[-1], last, tree.width[first], relayed=relayed)
            ]
            if len(paths) > most:
                ids = self.topology.node_ids
                ends = f"from {ids[first]} to {ids[last]}"
                raise InputError(
                    f"expected at most {most} equally good paths {ends}, found more: use seeds instead."
                )
        return paths

    def _way(self, src: int, dst: int) -> tuple[_Tree, bool]:
        """The tree towards node ``dst``, and whether it passes through other GPUs."""
        tree = self._tree(dst, through_gpus=False)
        if tree.hops[src] >= 0:
            return tree, False
        tree = self._tree(dst, through_gpus=True)
        if tree.hops[src] < 0:
            raise UnreachableError(self._message(src, dst, "none at all: mend the topology"))
        if not self.relay_gpus:
            hint = "one through other GPUs only: allow these with `relay_gpus`"
            raise UnreachableError(self._message(src, dst, hint))
        return tree, True

    def _nearer(self, tree: _Tree, here: int, dst: int, wanted: int, *, relayed: bool) -> list[int]:
        """Next nodes from ``here`` on paths of fewest hops that keep the bottleneck ``wanted``, in id order."""
        known = tree.nearer.get((here, wanted))
        if known is not None:
            return known
        nearer = tree.hops[here] - 1
        found = [
            v
            for v, capacity in self._out[here]
            if tree.hops[v] == nearer
            and (v == dst or relayed or self._forwards[v])
            and min(capacity, tree.width[v]) >= wanted
        ]
        if self._forwards[here]:  # a large switch is asked about once for every source
            tree.nearer[here, wanted] = found
        return found

    def _tree(self, dst: int, *, through_gpus: bool) -> _Tree:
        key = (dst, through_gpus)
        tree = self._trees.get(key)
        if tree is not None:
            self._trees.move_to_end(key)
            return tree
        tree = self._searched(dst, through_gpus=through_gpus)
        self._trees[key] = tree
        if len(self._trees) > self._max_trees:
            self._trees.popitem(last=False)
        return tree

    def _searched(self, dst: int, *, through_gpus: bool) -> _Tree:
        hops = [-1] * self.topology.num_nodes
        width = [0] * self.topology.num_nodes
        hops[dst], width[dst] = 0, _MASK
        level = [dst]
        while level:
            following = []
            for v in level:
                # Ranks other than the destination end a path, unless they may forward.
                if v != dst and not through_gpus and not self._forwards[v]:
                    continue
                for u, capacity in self._into[v]:
                    if hops[u] < 0:
                        hops[u] = hops[v] + 1
                        following.append(u)
                    if hops[u] == hops[v] + 1:
                        width[u] = max(width[u], min(capacity, width[v]))
            level = following
        return _Tree(hops, width)

    def _message(self, src: int, dst: int, found: str) -> str:
        ids = self.topology.node_ids
        ends = f"from {ids[src]} to {ids[dst]}"
        return f"expected a path {ends} through switches and NICs on {self.topology.name}, found {found}."


def _mixed(*values: int) -> int:
    """A hash of small integers that is the same on every machine (splitmix64, chained)."""
    state = 0
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
