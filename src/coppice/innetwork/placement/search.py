"""Branch and bound for the switches that should aggregate for several groups at once; bounds where it stops early.

One group alone is solved exactly by dynamic programming, for every root: for every node of a tree and every k, the
fewest streams that it sends up when k switches at or below it are given the feature, and no link below carries more
than it may. Fewer streams are never worse further up, so nothing else of a subtree matters; the budget is divided among
children by (min, +) convolution. That also bounds a group among others from below, for any switches decided so far. Two
more bounds: a link of a rank that has no other carries a stream of every group of that rank; and a switch with such
ranks sends on, without the feature, one stream for each of them, those of a group over one link: the budget spares only
so many switches that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.innetwork.placement.trees import AddingNetwork, AggregationTree, stream_counts

_NEVER = 1 << 60


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchChoices:
    """Switches already decided to aggregate or not, and those still open."""

    featured: Collection[int]  # Nodes that add: given by the topology, or chosen
    open: Collection[int]  # Switches that can be chosen
    budget: int  # How many of these


def fewest_switches(tree: AggregationTree, limits: Sequence[int], choices: SwitchChoices) -> list[int] | None:
    """Choose the fewest open switches with which the root aggregates and no link carries more than it may.

    Args:
        limits: Streams that each link may carry, by its number.
        choices: What is decided, and the budget.

    Returns:
        The switches, or None where the budget does not suffice.
    """
    if any(limits[edge] < 1 for edge in tree.rank_edges):
        return None
    budget = choices.budget
    coming: list[list[int]] = [[count] for count in tree.direct]
    merges: list[list[tuple[int, list[int], list[int]]]] = [[] for _ in tree.nodes]
    for at, node in enumerate(tree.nodes[:-1]):
        out = _sent(coming[at], node, choices)
        limit = limits[tree.edge[at]]
        out = [streams if streams <= limit else _NEVER for streams in out]
        if min(out) == _NEVER:
            return None
        parent = tree.parent[at]
        merges[parent].append((at, coming[parent], out))
        coming[parent] = _together(coming[parent], out, budget)
    root = tree.nodes[-1]
    spent = 0 if root in choices.featured else 1
    if spent and root not in choices.open:
        return None
    for k in range(len(coming[-1])):
        if coming[-1][k] < _NEVER and k + spent <= budget:
            chosen = [root] if spent else []
            _collect(tree, coming, merges, choices, len(tree.nodes) - 1, k, chosen)
            return sorted(chosen)
    return None


def _sent(coming: list[int], node: int, choices: SwitchChoices) -> list[int]:
    """Streams that a node sends up, for every number k of aggregating switches below it."""
    if node in choices.featured:
        return [1 if streams < _NEVER else _NEVER for streams in coming]
    if node not in choices.open:
        return coming
    out = [*coming, _NEVER][: choices.budget + 1]
    for k in range(1, len(out)):
        if coming[k - 1] < _NEVER:
            out[k] = 1
    return out


def _together(a: list[int], b: list[int], budget: int) -> list[int]:
    """Combine the fewest streams of two subtrees, for every budget of both."""
    found = [_NEVER] * min(len(a) + len(b) - 1, budget + 1)
    for i, x in enumerate(a):
        if x < _NEVER:
            for j, y in enumerate(b[: len(found) - i]):
                if x + y < found[i + j]:
                    found[i + j] = x + y
    return found


def _collect(
    tree: AggregationTree,
    coming: list[list[int]],
    merges: list[list[tuple[int, list[int], list[int]]]],
    choices: SwitchChoices,
    at: int,
    k: int,
    chosen: list[int],
) -> None:
    """Collect the switches that entry k of a node's table stands for."""
    merged = coming[at]
    for child, before, out in reversed(merges[at]):
        own = next(
            j
            for j, streams in enumerate(out[: k + 1])
            if k - j < len(before) and before[k - j] + streams == merged[k] < _NEVER
        )
        node, taken = tree.nodes[child], own
        if node in choices.open and (own >= len(coming[child]) or coming[child][own] != out[own]):
            chosen.append(node)
            taken = own - 1
        _collect(tree, coming, merges, choices, child, taken, chosen)
        k -= own
        merged = before


_FAR = 1 << 200
_MOST_DEEP = 800
"""Switches and groups that are searched by recursion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AddingRanks:
    """Ranks that all-reduce together."""

    ranks: tuple[int, ...]  # Their numbers
    size_bytes: int  # What each of them adds
    trees: tuple[AggregationTree, ...]  # One for every root that they can take


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedTrees:
    """Aggregating switches, with the roots of the groups' trees."""

    chosen: tuple[int, ...]  # Switches, in id order
    trees: tuple[AggregationTree, ...]  # The tree of each group
    cost: int  # Of the busiest link, in units of the network
    least: int  # No choice costs less


class _OutOfWork(Exception):  # noqa: N818 (it ends a search, and is no error)
    """The search has used up its budget."""


def search(
    network: AddingNetwork, groups: Sequence[AddingRanks], budget: int, *, most_work: int
) -> PlacedTrees | None:
    """Find the switches that load the busiest link least, or None where a group can have no root.

    Args:
        budget: Switches that can be chosen at most.
        most_work: Nodes of trees to look at before what is proved so far has to do.
    """
    choices = SwitchChoices(featured=network.given, open=frozenset(network.switches), budget=budget)
    alone = [_alone(network, group, choices) for group in {id(group): group for group in groups}.values()]
    if any(each is None for each in alone):
        return None
    if len(groups) == 1:
        return alone[0]
    least = max(each.cost for each in alone if each is not None)
    return _SwitchSearch(network, groups, budget, least, most_work).run()


def _alone(network: AddingNetwork, group: AddingRanks, choices: SwitchChoices) -> PlacedTrees | None:
    """The best choice for one group: of equally good ones the fewest switches, then the root with the least id."""
    costs = {network.cost[edge] for tree in group.trees for edge in (*tree.edge[:-1], *tree.rank_edges)}
    values = sorted({count * cost for cost in costs for count in range(1, len(group.ranks) + 1)}) or [0]

    def solved(tree: AggregationTree, at: int) -> list[int] | None:
        return fewest_switches(tree, [values[at] // cost for cost in network.cost], choices)

    best = len(values)
    for tree in group.trees:
        if best == 0 or solved(tree, best - 1) is None:
            continue
        low, best = -1, best - 1
        while best - low > 1:
            middle = (low + best) // 2
            low, best = (middle, best) if solved(tree, middle) is None else (low, middle)
    if best == len(values):
        return None
    ways = [(found, tree) for tree in group.trees if (found := solved(tree, best)) is not None]
    chosen, tree = min(ways, key=lambda way: (len(way[0]), way[1].root))
    cost = values[best] * group.size_bytes
    return PlacedTrees(chosen=tuple(chosen), trees=(tree,), cost=cost, least=cost)


class _SwitchSearch:
    """Branch and bound over the switches, and for each set of them over the roots of the groups."""

    def __init__(
        self, network: AddingNetwork, groups: Sequence[AddingRanks], budget: int, least: int, most_work: int
    ) -> None:
        self.network, self.groups, self.budget = network, groups, budget
        self.work, self.most_work = 0, most_work
        self.known: dict[tuple[int, frozenset[int]], dict[int, int]] = {}
        self.rooted = [{tree.root: tree for tree in group.trees} for group in groups]
        self.inside = {id(tree): frozenset(tree.nodes) for group in groups for tree in group.trees}
        self.fixed, self.needs = self._fixed(), self._needs()
        self.order = sorted(network.switches, key=lambda v: (-self.needs.get(v, 0), v))
        spared = [self.needs.get(v, 0) for v in self.order[budget : budget + 1]]
        self.least = max(least, self.fixed, *spared)
        self.best = PlacedTrees(chosen=(), trees=(), cost=_FAR, least=self.least)

    def run(self) -> PlacedTrees | None:
        """The best that was found, with what is proved."""
        proved = True
        try:
            self._climb()
            if self.best.cost > self.least:
                self._spend(self.most_work + 1 if len(self.order) + len(self.groups) > _MOST_DEEP else 0)
                self._branch(0, frozenset(), 0)
        except _OutOfWork:
            proved = False
        if not self.best.trees and not proved:
            raise InputError(
                f"expected `most_work` to find a root for every job, found {self.most_work}: raise it."
            )
        if not self.best.trees:
            return None
        best = self._fewer()
        return PlacedTrees(
            chosen=best.chosen, trees=best.trees, cost=best.cost, least=best.cost if proved else self.least
        )

    def _fixed(self) -> int:
        """Cost of the busiest link that is the only one of a rank: the same for every choice."""
        network = self.network
        load: dict[int, int] = {}
        for group in self.groups:
            for member in (network.ranks[rank] for rank in group.ranks):
                only = network.only_neighbour[member]
                if only is not None:
                    edge = network.edge(member, only)
                    load[edge] = load.get(edge, 0) + group.size_bytes
        self.fixed_edges = frozenset(load)
        return max((network.cost[edge] * each for edge, each in load.items()), default=0)

    def _needs(self) -> dict[int, int]:
        """Least cost of the busiest link between a switch and others, if it has not the feature."""
        network = self.network
        on: dict[int, list[int]] = {}
        for group in self.groups:
            bytes_of: dict[int, int] = {}
            for rank in group.ranks:
                switch = network.only_neighbour[network.ranks[rank]]
                if switch is not None:
                    bytes_of[switch] = bytes_of.get(switch, 0) + group.size_bytes
            for switch, load in bytes_of.items():
                on.setdefault(switch, []).append(load)
        costs: dict[int, list[int]] = {}
        ranks = set(network.ranks)
        for (a, b), cost in zip(network.edges, network.cost, strict=True):
            for here, there in ((a, b), (b, a)):
                if there not in ranks:
                    costs.setdefault(here, []).append(cost)
        found = {}
        for switch, loads in on.items():
            ways = costs.get(switch)
            if ways is None:
                found[switch] = _FAR - 1
                continue
            rate = sum(network.whole // cost for cost in ways)
            found[switch] = max(max(loads) * min(ways), -(-sum(loads) * network.whole // rate))
        return found

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > self.most_work:
            raise _OutOfWork

    def _options(
        self, group: AddingRanks, chosen: frozenset[int]
    ) -> list[tuple[AggregationTree, dict[int, int]]]:
        """Trees that a group can take, each with the cost that it brings to links that are not the only ones."""
        featured = self.network.given | chosen
        return [(tree, self._costs(group, tree, chosen)) for tree in group.trees if tree.root in featured]

    def _costs(self, group: AddingRanks, tree: AggregationTree, chosen: frozenset[int]) -> dict[int, int]:
        """The cost that a group brings to each link that is not the only one of a rank."""
        key = (id(tree), chosen & self.inside[id(tree)])
        costs = self.known.get(key)
        if costs is None:
            self._spend(len(tree.nodes) + len(tree.rank_edges))
            streams = stream_counts(tree, self.network.given | chosen)
            costs = self.known[key] = {
                edge: count * group.size_bytes * self.network.cost[edge]
                for edge, count in streams.items()
                if edge not in self.fixed_edges
            }
        return costs

    def _quick(self, chosen: frozenset[int]) -> tuple[int, int, tuple[AggregationTree, ...]] | None:
        """A good choice of roots: each group in turn takes the best, until none changes; (cost, squares, trees)."""
        options = [self._options(group, chosen) for group in self.groups]
        if not all(options):
            return None
        taken = [0] * len(options)
        total: dict[int, int] = {}
        for costs in (each[0][1] for each in options):
            _add(total, costs, 1)
        for _ in range(4):
            before = list(taken)
            for at, ways in enumerate(options):
                if len(ways) == 1:
                    continue
                _add(total, ways[taken[at]][1], -1)
                self._spend(sum(len(costs) for _, costs in ways))
                scores = [_score(total, costs) for _, costs in ways]
                taken[at] = scores.index(min(scores))
                _add(total, ways[taken[at]][1], 1)
            if taken == before:
                break
        cost = max(self.fixed, max(total.values(), default=0))
        squares = sum(each * each for each in total.values())
        return cost, squares, tuple(ways[at][0] for ways, at in zip(options, taken, strict=True))

    def _keep(self, chosen: frozenset[int], cost: int, trees: Sequence[AggregationTree]) -> None:
        if cost < self.best.cost:
            self.best = PlacedTrees(
                chosen=tuple(sorted(chosen)), trees=tuple(trees), cost=cost, least=self.least
            )

    def _climb(self) -> None:
        """A good set: one switch after the other, then exchanges while they help."""
        if not self.budget or self.budget >= len(self.order):  # the feature never harms
            self._tried(frozenset(self.order[: self.budget]))
            return
        # Those with most ranks on them, with a root among the others, and those furthest from ranks.
        starts = [self.order[: self.budget], self.order[-self.budget :]]
        starts += [[*self.order[: self.budget - 1], v] for v in self.order]
        for start in starts:
            self._tried(frozenset(start))
            if self.best.cost == self.least:
                return
        chosen: frozenset[int] = frozenset()
        score: tuple[int, int] = (_FAR, 0)
        for _ in range(min(self.budget, len(self.order))):
            open_ = [v for v in self.order if v not in chosen]
            found = self._quick(chosen)
            v = min(
                (self._glance(chosen, found[2], v) if found else self._tried(chosen | {v}), v) for v in open_
            )[1]
            chosen |= {v}
            score = self._tried(chosen)
            if self.best.cost == self.least:
                return
        improved = self.best.cost > self.least
        while improved:
            improved = False
            for out in sorted(chosen):
                tried = [(self._tried(chosen - {out} | {v}), v) for v in self.order if v not in chosen]
                if tried and min(tried)[0] < score:
                    score, v = min(tried)
                    chosen = chosen - {out} | {v}
                    improved = self.best.cost > self.least

    def _glance(self, chosen: frozenset[int], trees: Sequence[AggregationTree], v: int) -> tuple[int, int]:
        """What one more switch does to trees that are there, or as the root of some of them."""
        more = chosen | {v}
        total: dict[int, int] = {}
        for group, tree in zip(self.groups, trees, strict=True):
            _add(total, self._costs(group, tree, more), 1)
        for group, tree, rooted in zip(self.groups, trees, self.rooted, strict=True):
            other = rooted.get(v)
            if other is not None:
                ways = (self._costs(group, tree, more), self._costs(group, other, more))
                self._spend(2 * len(ways[0]) + 2 * len(ways[1]))
                _add(total, ways[0], -1)
                _add(total, min(ways, key=lambda costs: _score(total, costs)), 1)
        cost = max(self.fixed, max(total.values(), default=0))
        return cost, sum(each * each for each in total.values())

    def _tried(self, chosen: frozenset[int]) -> tuple[int, int]:
        found = self._quick(chosen)
        if found is None:
            return _FAR, len(self.network.edges) - len(chosen)
        cost, squares, trees = found
        self._keep(chosen, cost, trees)
        return cost, squares

    def _branch(self, at: int, chosen: frozenset[int], spared: int) -> None:
        """All sets that contain ``chosen`` and leave out what stands before ``at`` otherwise."""
        left = self.budget - len(chosen)
        rest = self.order[at:]
        if len(rest) <= left:  # the feature never harms
            self._roots(chosen | frozenset(rest))
            return
        bound = max(spared, self.needs.get(rest[left], 0))
        if bound >= self.best.cost:
            return
        if left == 0:
            self._roots(chosen)
            return
        open_ = SwitchChoices(featured=self.network.given | chosen, open=frozenset(rest), budget=left)
        if not all(self._can_improve(group, open_) for group in self.groups):
            return
        self._branch(at + 1, chosen | {rest[0]}, spared)
        self._branch(at + 1, chosen, max(spared, self.needs.get(rest[0], 0)))

    def _can_improve(self, group: AddingRanks, choices: SwitchChoices) -> bool:
        """Whether a group alone can stay below the best cost."""
        most = (self.best.cost - 1) // max(group.size_bytes, 1)
        limits = [most // cost for cost in self.network.cost]
        for tree in group.trees:
            self._spend(len(tree.nodes))
            if fewest_switches(tree, limits, choices) is not None:
                return True
        return False

    def _roots(self, chosen: frozenset[int]) -> None:
        """The best roots for a set of switches, where they are better than the best."""
        options = [self._options(group, chosen) for group in self.groups]
        order = sorted(range(len(options)), key=lambda g: (len(options[g]), self.groups[g].ranks))
        taken: list[int] = []
        total: dict[int, int] = {}

        def choose(depth: int) -> None:
            if depth == len(order):
                trees = {g: options[g][at][0] for g, at in zip(order, taken, strict=True)}
                self._keep(chosen, max([self.fixed, *total.values()]), [trees[g] for g in range(len(order))])
                return
            group, ways = order[depth], options[order[depth]]
            # Of groups that are alike, the later one takes no earlier tree.
            alike = depth > 0 and self.groups[order[depth - 1]] is self.groups[group]
            scores = [(*_score(total, costs), at) for at, (_, costs) in enumerate(ways)]
            for _, _, at in sorted(scores[taken[-1] if alike else 0 :]):
                costs = ways[at][1]
                self._spend(len(costs))
                if all(total.get(edge, 0) + cost < self.best.cost for edge, cost in costs.items()):
                    _add(total, costs, 1)
                    taken.append(at)
                    choose(depth + 1)
                    taken.pop()
                    _add(total, costs, -1)

        choose(0)

    def _fewer(self) -> PlacedTrees:
        """The best without switches that it does not need."""
        best = self.best
        for v in best.chosen:
            fewer = frozenset(best.chosen) - {v}
            loads: dict[int, int] = {}
            if any(tree.root == v for tree in best.trees):
                continue
            for group, tree in zip(self.groups, best.trees, strict=True):
                for edge, count in stream_counts(tree, self.network.given | fewer).items():
                    loads[edge] = loads.get(edge, 0) + count * group.size_bytes * self.network.cost[edge]
            if max(loads.values()) == best.cost:
                best = PlacedTrees(
                    chosen=tuple(sorted(fewer)), trees=best.trees, cost=best.cost, least=best.least
                )
        return best


def _add(total: dict[int, int], costs: Mapping[int, int], times: int) -> None:
    for edge, cost in costs.items():
        total[edge] = total.get(edge, 0) + times * cost


def _score(total: Mapping[int, int], costs: Mapping[int, int]) -> tuple[int, int]:
    """Score a tree on top of a load: the busiest of its links, and how uneven the load becomes."""
    with_it = [(total.get(edge, 0), cost) for edge, cost in costs.items()]
    return max((a + b for a, b in with_it), default=0), sum(b * (2 * a + b) for a, b in with_it)
