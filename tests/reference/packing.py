"""The published construction of an optimal forest: split switches off, pack trees, unroll the logical links.

Theory.
* Condition. ``arrivals`` = w(all) trees must reach every terminal. With s feeding supply(c) trees to each
  terminal c and c(e) trees fitting through link e, a packing exists on a graph without switches iff every
  vertex set A with s in A that misses a terminal has out(A) >= arrivals (J. Edmonds 1973; with several roots
  and sets L. Lovász 1976).
* Switch removal (ForestColl, arXiv 2402.06787, and arXiv 2305.18461; the theory is edge splitting: W. Mader
  1982, B. Jackson 1988, A. Frank 1988, J. Bang-Jensen, A. Frank and B. Jackson 1995). A pair of links (u, w),
  (w, t) at switch w gives way to a logical link (u, t). This lowers out(A) for just two kinds of cuts: u and
  t inside, w outside; and w inside, u and t outside. The amount that may be split is thus the least of c(u,
  w), c(w, t) and the surplus over ``arrivals`` of the narrowest cut of either kind; the narrowest is a
  max-flow once unlimited arcs force the nodes to their sides. Where every switch has in >= out, all capacity
  out of it can be split off, in any order: an amount that is used up never comes back, so one pass over all
  pairs is enough.
* Packing (R. E. Tarjan 1974; capacitated: K. Bérczi and A. Frank 2010, A. Schrijver, "Combinatorial
  Optimization", section 53). A batch is m equal partial trees that have reached the set R. As long as every
  vertex set X has in(X) >= sum of m over the batches with R disjoint from X, all batches can be completed. A
  link (x, y) may join a batch for at most the least over X with y inside, x outside, of in(X) - (m of the
  *other* batches that miss X): again a max-flow. What exceeds this amount stays behind as a new batch.
* Unrolling. A logical link is kept as a bundle of strands (a physical path and how many trees fit on it).
  Splitting joins strands end to end, so that the trees get their physical paths by taking strands from
  bundles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from reference.maxflow import max_flow, unlimited
from reference.network import Link, Network, Supply

Path = tuple[int, ...]
SOURCE = "source"


@dataclass(frozen=True)
class Tree:
    """``weight`` equal trees: root and physical path of every edge, in an order in which data can flow."""

    root: int
    weight: int
    paths: tuple[Path, ...]


@dataclass
class Bundle:
    """Strands of a logical link: physical paths with the number of trees that fit on each."""

    strands: list[tuple[Path, int]] = field(default_factory=list)

    @property
    def amount(self) -> int:
        return sum(amount for _, amount in self.strands)

    def take(self, amount: int) -> list[tuple[Path, int]]:
        """Remove ``amount`` trees' worth of strands."""
        taken: list[tuple[Path, int]] = []
        while amount:
            path, available = self.strands.pop()
            used = min(amount, available)
            taken.append((path, used))
            if available > used:
                self.strands.append((path, available - used))
            amount -= used
        return taken


Bundles = dict[Link, Bundle]


def exact_trees(network: Network, inv_rate: Fraction) -> int:
    """The least k for which k trees per unit of weight divide every link exactly: U * b(e) is whole."""
    return lcm(*((inv_rate * c).denominator for c in network.capacity.values()))


def optimal_forest(network: Network, supply: Supply, inv_rate: Fraction) -> list[Tree]:
    """A forest that takes ``inv_rate`` per unit of weight, the optimum where no switch has out > in."""
    trees = exact_trees(network, inv_rate)
    room = {link: int(trees * inv_rate * c) for link, c in network.capacity.items()}
    return pack(network, room, {v: trees * w for v, w in supply.items()})


def pack(network: Network, capacity: Mapping[Link, int], supply: Supply) -> list[Tree]:
    """Trees that reach every terminal, ``supply[v]`` of them from v, ``capacity[e]`` at most through link e.

    Raises:
        ValueError: If some cut is too narrow, or a switch with out > in got in the way.
    """
    bundles = {link: Bundle([(link, c)]) for link, c in capacity.items() if c}
    remove_switches(network, bundles, supply)
    trees = []
    for batch in pack_batches(network, _amounts(bundles), supply):
        trees.extend(unroll(batch, bundles))
    return trees


def _amounts(bundles: Bundles) -> dict[Link, int]:
    return {link: bundle.amount for link, bundle in bundles.items() if bundle.amount}


# --- switches ------------------------------------------------------------------------------------------


def remove_switches(network: Network, bundles: Bundles, supply: Supply) -> None:
    """Replace all links at switches by logical links between terminals, in place."""
    for w in network.switches:
        for u in sorted({a for a, b in bundles if b == w}):
            for t in sorted({b for a, b in bundles if a == w}):
                amount = splittable(network, _amounts(bundles), supply, u, w, t)
                if amount:
                    split_off(bundles, u, w, t, amount)
        for link in [link for link in bundles if w in link]:
            if link[0] == w and bundles[link].amount:
                raise ValueError(
                    f"switch {w} keeps {bundles[link].amount} trees' worth of capacity towards {link[1]}"
                )
            del bundles[link]


def splittable(network: Network, capacity: Mapping[Link, int], supply: Supply, u: int, w: int, t: int) -> int:
    """How much of (u, w) and (w, t) can become (u, t) while every terminal still gets all trees."""
    arrivals = sum(supply.values())
    most = min(capacity.get((u, w), 0), capacity.get((w, t), 0))
    arcs: dict[tuple[Hashable, Hashable], int] = dict(capacity)
    arcs.update({(SOURCE, c): amount for c, amount in supply.items()})
    infinite = int(unlimited(arcs))
    for v in network.terminals:
        if not most:
            break
        if v not in (u, t):  # u and t with the source, v with w
            forced = {(u, SOURCE): infinite, (u, t): infinite, (v, w): infinite}
            most = min(most, int(max_flow(_forced(arcs, forced), u, w).value) - arrivals)
        # w with the source; u and v with t
        forced = {(w, SOURCE): infinite, (u, t): infinite, (v, t): infinite}
        most = min(most, int(max_flow(_forced(arcs, forced), w, t).value) - arrivals)
    return most


def _forced(
    arcs: Mapping[tuple[Hashable, Hashable], int], forced: Mapping[tuple[Hashable, Hashable], int]
) -> dict[tuple[Hashable, Hashable], int]:
    return {**arcs, **{(a, b): c for (a, b), c in forced.items() if a != b}}


def split_off(bundles: Bundles, u: int, w: int, t: int, amount: int) -> None:
    """Join ``amount`` of (u, w) to (w, t); a way back to u itself is of no use and is dropped."""
    first, second = bundles[u, w].take(amount), bundles[w, t].take(amount)
    if u == t:
        return
    joined = bundles.setdefault((u, t), Bundle())
    while first:
        (a, amount_a), (b, amount_b) = first.pop(), second.pop()
        used = min(amount_a, amount_b)
        joined.strands.append((without_loops(a + b[1:]), used))
        if amount_a > used:
            first.append((a, amount_a - used))
        if amount_b > used:
            second.append((b, amount_b - used))


def without_loops(walk: Path) -> Path:
    """The walk with every round trip cut out: it never needs a link twice."""
    path: list[int] = []
    for v in walk:
        if v in path:
            del path[path.index(v) :]
        path.append(v)
    return tuple(path)


# --- trees ---------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """``weight`` equal partial trees: what they have reached, in order, and over which logical links."""

    root: int
    weight: int
    reached: list[int]
    links: list[Link]


def pack_batches(network: Network, capacity: dict[Link, int], supply: Supply) -> list[Batch]:
    """Spanning trees on a graph without switches, breadth first."""
    waiting = deque(Batch(v, supply[v], [v], []) for v in network.terminals if supply[v])
    finished = []
    while waiting:
        batch = waiting.popleft()
        position = 0
        while position < len(batch.reached):
            x = batch.reached[position]
            position += 1
            for y in sorted(b for a, b in capacity if a == x):
                if y in batch.reached:
                    continue
                amount = joinable(capacity, batch, list(waiting), x, y)
                if not amount:
                    continue
                if amount < batch.weight:
                    waiting.append(Batch(batch.root, batch.weight - amount, [*batch.reached], [*batch.links]))
                    batch.weight = amount
                batch.reached.append(y)
                batch.links.append((x, y))
                capacity[x, y] -= amount
                if not capacity[x, y]:
                    del capacity[x, y]
        if len(batch.reached) < len(network.terminals):
            raise ValueError(
                f"a tree of root {batch.root} reaches only {sorted(batch.reached)}: some cut is too narrow"
            )
        finished.append(batch)
    return finished


def joinable(capacity: Mapping[Link, int], batch: Batch, others: list[Batch], x: int, y: int) -> int:
    """For how many trees of the batch link (x, y) can be taken so that all batches can still be completed."""
    arcs: dict[tuple[Hashable, Hashable], int] = dict(capacity)
    infinite = int(unlimited(arcs)) + sum(other.weight for other in others)
    for index, other in enumerate(others):
        arcs[x, ("batch", index)] = other.weight
        arcs.update({(("batch", index), v): infinite for v in other.reached})
    surplus = int(max_flow(arcs, x, y).value) - sum(other.weight for other in others)
    return min(capacity[x, y], batch.weight, surplus)


def unroll(batch: Batch, bundles: Bundles) -> list[Tree]:
    """The batch as trees with one physical path per edge, each as heavy as its paths allow."""
    choices = [bundles[link].take(batch.weight) for link in batch.links]
    trees = []
    left = batch.weight
    while left:
        weight = min([left, *(strands[-1][1] for strands in choices)])
        trees.append(Tree(batch.root, weight, tuple(strands[-1][0] for strands in choices)))
        for strands in choices:
            path, amount = strands.pop()
            if amount > weight:
                strands.append((path, amount - weight))
        left -= weight
    return trees
