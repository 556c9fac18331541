"""Optimal rate with a given number of trees per root, with trees that reach it, and bounds that prove it.

Every link carries a whole number of trees, at most floor(U * rate) where U is k times the time per shard. The cuts
alone give a least U (``coppice.bounds.tree_units.fixed_trees``); the attainable optimum gives another. Rounding down
can leave a switch with more trees out than in, and one that cannot copy sends no more than it gets, so links out of it
are lowered where the cuts have room for that. Whether they have is decided by branch and bound
(``coppice.bounds.lp.whole_trees``), and bisection over the values at which some link gains a tree finds the least U.
On a small network (``coppice.bounds.network.is_small``) that goes on to the end: the result is exact. On larger ones it
ends after so many steps, on the largest it is not begun; what greedy lowering reaches is then taken, and the result
says how much below the best it can be at most.

Bounds on forests with a given number of trees, with their proofs. In less time than the bound some cut does not let all
trees in, as every link carries a whole number of them. A link of rate b carries at most ceil(U b) - 1 trees in any time
below U per tree: one check of the cuts against these numbers finds the cut that is violated just below the bound. Where
one cut does not prove all that the search for the best rate has found, its family of
cuts does, or its branch and bound as a list of cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from coppice.bounds.lp.whole_trees import Refuted, Steps, WholeTreesProgram
from coppice.bounds.network import Network, is_small
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, CutFamily, LinkRange, NodePotential, WeightedCut, WholeTrees
from coppice.bounds.tree_units import (
    TreeUnits,
    exact_trees,
    exact_units,
    fixed_trees,
    floor_units,
    next_breakpoint,
    unbalanced,
    violations,
)
from coppice.display import Brief
from coppice.errors import InputError
from coppice.topology.model import Topology

MAX_STEPS = 10_000

SEARCHED_NODES = 64
SEARCHED_LINKS = 384
"""Up to this size branch and bound is begun."""

PROVED_NUMBERS = 256
"""Numbers of trees for which it is kept why they are too few."""

SEARCH_STEPS = 200
"""Linear programs after which branch and bound ends on a network that is not small."""


def _is_searched(topology: Topology) -> bool:
    return topology.num_nodes <= SEARCHED_NODES and topology.num_links <= SEARCHED_LINKS


def _steps(topology: Topology) -> Steps | None:
    return None if is_small(topology) else Steps(SEARCH_STEPS)


@dataclass(frozen=True, kw_only=True)
class TreeCuts:
    """Proof that no forest with so many trees takes less time.

    In any less time a link of rate b carries at most ``ceil(trees * inv_rate * b) - 1`` trees, and no whole numbers
    within that let all trees into every set while each node that only forwards sends at most what it gets.
    """

    trees: int  # k, trees per unit of weight
    inv_rate: Fraction  # Time per shard that is proved to be needed, in 1 / (GB/s)
    # (nodes of a set, trees that must enter it), in the broadcasting direction
    cuts: tuple[tuple[tuple[int, ...], int], ...]
    # Their weights, and decisions about links, so that counting shows it
    # (:class:`coppice.bounds.result.WholeTrees`), in the broadcasting direction and with the network's links
    cases: tuple[CutFamily | LinkRange, ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TreeOptimum(Brief):
    """Best known forest with a given number of trees."""

    trees: int  # k, trees per unit of weight
    units: TreeUnits  # Trees on each link that a packing reaches
    least: Fraction  # Time per shard below which no forest with k trees is, in 1 / (GB/s)
    # The cuts that prove `least`; None where it follows from the optimum with any number of trees alone
    proof: TreeCuts | None = None
    # Where the number was searched: no smaller number than this is within the tolerance; otherwise None
    fewest: int | None = None
    # Why none of the smaller numbers is, from 1 on; empty where there are more than `PROVED_NUMBERS`
    fewer: tuple[TreeCuts, ...] = ()

    @property
    def inv_rate(self) -> Fraction:
        """Time per shard reached, in 1 / (GB/s)."""
        return self.units.inv_rate

    @property
    def exact(self) -> bool:
        """Whether nothing is faster with k trees."""
        return self.units.inv_rate == self.least


def tree_optimum(
    network: Network, trees: int, *, best: Fraction, capacity: list[Fraction] | None = None
) -> TreeOptimum:
    """Least time per shard with ``trees`` trees per unit of weight.

    Args:
        trees: k, at least 1.
        best: Least time per shard with any number of trees (the attainable optimum).
        capacity: GB/s of each link of the problem's topology that reach ``best``, where not all capacity does.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> network = Network.of(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER))
        >>> found = tree_optimum(network, 1, best=Fraction(3, 2))
        >>> found.inv_rate, found.exact, len(found.proof.cuts)
        (Fraction(2, 1), True, 1)
    """
    return _optimum(network, trees, best=best, capacity=capacity, steps=_steps(network.topology))


def _optimum(
    network: Network, trees: int, *, best: Fraction, capacity: list[Fraction] | None, steps: Steps | None
) -> TreeOptimum:
    """As :func:`tree_optimum`; on a network that is not small within ``steps``."""
    start = fixed_trees(network, trees, optimum=best).inv_rate * trees
    if not start:
        return TreeOptimum(trees=trees, units=floor_units(network, trees=trees, scale=start), least=start)
    found = _LeastScale(network, trees, steps).least(start) if _is_searched(network.topology) else None
    if found is not None and found.exact:
        return found
    return _greedy(network, trees, start, best=best, capacity=capacity, known=found)


def _greedy(
    network: Network,
    trees: int,
    start: Fraction,
    *,
    best: Fraction,
    capacity: list[Fraction] | None,
    known: TreeOptimum | None,
) -> TreeOptimum:
    """The better of what is known and what lowering links greedily reaches, at the least U that is known."""
    narrowed = network if capacity is None else network.limited(capacity)
    first = start if capacity is None else fixed_trees(narrowed, trees, optimum=best).inv_rate * trees
    units = balanced_units(narrowed, trees=trees, scale=first)
    if known is not None:
        return known if known.inv_rate <= units.inv_rate else replace(known, units=units)
    return _known(network, trees, units, start, _refuted(network, _just_below(network, trees, start)))


def all_trees(network: Network, *, best: Fraction, capacity: list[Fraction] | None = None) -> TreeOptimum:
    """Number of trees that reaches ``best`` exactly.

    Args:
        best: Least time per shard with any number of trees (the attainable optimum).
        capacity: GB/s of each link of the problem's topology that reach ``best``, where not all capacity does.
    """
    narrowed = network if capacity is None else network.limited(capacity)
    units = exact_units(narrowed, best)
    if unbalanced(narrowed, units.capacity).size:  # where links wider than all trees need were cut down
        scale = units.trees * best
        search = _LeastScale(narrowed, units.trees, _steps(network.topology))
        found = search.at(scale) if _is_searched(network.topology) else None
        if not isinstance(found, TreeUnits):
            found = balanced_units(narrowed, trees=units.trees, scale=scale)
        units = found
    return TreeOptimum(trees=units.trees, units=units, least=best)


def fewest_trees(
    network: Network, tolerance: Fraction, *, best: Fraction, capacity: list[Fraction] | None = None
) -> TreeOptimum:
    """Least number of trees within ``tolerance`` of ``best`` (1/100: at most 1% more time).

    On a small network no smaller number is; on a larger one none for which trees were found.

    Args:
        tolerance: Share of the time that may be lost.
        best: Least time per shard with any number of trees (the attainable optimum).
        capacity: GB/s of each link of the problem's topology that reach ``best``, where not all capacity does.
    """
    if tolerance < 0:
        raise InputError(f"expected a tolerance >= 0, found {tolerance}: write for instance `trees=auto:1%`.")
    most = best * (1 + tolerance)
    narrowed = network if capacity is None else network.limited(capacity)
    fewest: int | None = None
    fewer: list[TreeCuts] = []
    searched, steps = _is_searched(network.topology), _steps(network.topology)
    for trees in range(1, exact_trees(narrowed, best)):
        start = fixed_trees(network, trees, optimum=best).inv_rate
        refuted: Refuted | TreeUnits | None = None
        if start > most:
            if fewest is None and trees <= PROVED_NUMBERS:
                refuted = _refuted(network, _just_below(network, trees, start * trees))
            if isinstance(refuted, Refuted):
                fewer.append(_tree_cuts(network, trees, start * trees, refuted))
            continue
        if searched:
            refuted = _LeastScale(network, trees, steps).at(trees * most)
        if isinstance(refuted, Refuted):
            if fewest is None and trees <= PROVED_NUMBERS:
                fewer.append(_tree_cuts(network, trees, next_breakpoint(network, trees * most), refuted))
            continue
        fewest = trees if fewest is None else fewest
        found = _optimum(network, trees, best=best, capacity=capacity, steps=steps)
        if found.inv_rate <= most:
            break
    else:
        found = all_trees(network, best=best, capacity=capacity)
        fewest = found.trees if fewest is None else fewest
    kept = tuple(fewer) if len(fewer) == fewest - 1 else ()
    return replace(found, fewest=fewest, fewer=kept)


class _LeastScale:
    """The least U with k trees, by whole numbers of trees at one U after the other."""

    def __init__(self, network: Network, trees: int, steps: Steps | None) -> None:
        self._network = network
        self._trees = trees
        self._steps = steps
        self._whole: WholeTreesProgram | None = None

    def least(self, start: Fraction) -> TreeOptimum | None:
        """The least U, none below ``start`` being possible; None where the steps did not lead to any trees."""
        network, trees = self._network, self._trees
        scale = start if self._last_change(start) == start else next_breakpoint(network, start)
        found = self.at(scale)
        if isinstance(found, TreeUnits):
            below = self._decide(_just_below(network, trees, scale))
            return _known(network, trees, found, scale, below if isinstance(below, Refuted) else None)
        if found is None:
            return None
        low, high, refuted, units = self._reached(scale, found)
        return None if units is None else self._bisect(low, high, refuted, units)

    def _reached(
        self, low: Fraction, refuted: Refuted
    ) -> tuple[Fraction, Fraction, Refuted, TreeUnits | None]:
        """A U that is possible, above one that is not, in steps that double; without units where none was found."""
        network = self._network
        step = Fraction(network.topology.denominator, int(network.topology.capacity.max()))
        high = next_breakpoint(network, low)
        while not isinstance(found := self.at(high), TreeUnits):
            if found is None:
                return low, high, refuted, None
            low, refuted = high, found
            step *= 2
            high = max(self._last_change(low + step), next_breakpoint(network, low))
        return low, high, refuted, found

    def _bisect(self, low: Fraction, high: Fraction, refuted: Refuted, units: TreeUnits) -> TreeOptimum:
        """The least U between one that is impossible and one that is possible."""
        network = self._network
        while True:
            middle = self._last_change((low + high) / 2)
            if middle <= low:
                middle = next_breakpoint(network, (low + high) / 2)
            found = None if middle >= high else self.at(middle)
            if isinstance(found, TreeUnits):
                high, units = middle, found
            elif isinstance(found, Refuted):
                low, refuted = middle, found
            else:
                return _known(network, self._trees, units, next_breakpoint(network, low), refuted)

    def at(self, scale: Fraction) -> TreeUnits | Refuted | None:
        """Trees on each link within ``scale``, or cuts that allow none; None where the steps ran out."""
        return self._decide(floor_units(self._network, trees=self._trees, scale=scale))

    def _decide(self, units: TreeUnits) -> TreeUnits | Refuted | None:
        refuted = _refuted(self._network, units)
        if refuted is not None:
            return refuted
        trimmed = trim(self._network, units)
        if trimmed is not None:
            return trimmed
        if self._whole is None:
            self._whole = WholeTreesProgram(self._network, self._trees)
        found = self._whole.within(units.capacity, steps=self._steps)
        return replace(units, capacity=found) if isinstance(found, np.ndarray) else found

    def _last_change(self, scale: Fraction) -> Fraction:
        """The greatest U up to ``scale`` at which some link gains a tree."""
        topology = self._network.topology
        factor = scale / topology.denominator
        rates = {rate for rate in topology.capacity.tolist() if rate}
        return max(Fraction(int(factor * rate), rate) for rate in rates) * topology.denominator


def _refuted(network: Network, units: TreeUnits) -> Refuted | None:
    """A cut that does not let all trees in, if there is one."""
    cuts = violations(network, units, limit=1)
    return Refuted.by_cut(tuple(sorted(cuts[0].tolist()))) if cuts else None


def _just_below(network: Network, trees: int, scale: Fraction) -> TreeUnits:
    """Trees that each link carries in any time below ``scale``."""
    units = floor_units(network, trees=trees, scale=scale)
    topology = network.topology
    factor = scale / topology.denominator
    room = [
        min(most, max(ceil(factor * rate) - 1, 0))
        for rate, most in zip(topology.capacity.tolist(), units.capacity.tolist(), strict=True)
    ]
    return replace(units, capacity=np.array(room, dtype=np.int64))


def _known(
    network: Network,
    trees: int,
    units: TreeUnits,
    least: Fraction,
    refuted: Refuted | None,
) -> TreeOptimum:
    """What is reached, and the U that is needed, with the trees that must enter each of the sets that prove it."""
    proof = None
    if refuted is not None:
        proof = _tree_cuts(network, trees, least, refuted)
    return TreeOptimum(trees=trees, units=units, least=least / trees, proof=proof)


def _tree_cuts(network: Network, trees: int, least: Fraction, refuted: Refuted) -> TreeCuts:
    """What refutes all less than ``least`` (U), with the trees that must enter each set."""
    needed = [
        (cut, trees * (network.total_weight - int(network.weight[list(cut)].sum()))) for cut in refuted.cuts
    ]
    return TreeCuts(trees=trees, inv_rate=least / trees, cuts=tuple(needed), cases=refuted.cases)


def balanced_units(network: Network, *, trees: int, scale: Fraction) -> TreeUnits:
    """Units for ``trees`` trees per unit of weight, at the first time per tree from ``scale`` that can be balanced."""
    for _ in range(MAX_STEPS):
        units = floor_units(network, trees=trees, scale=scale)
        if not violations(network, units, limit=1):
            trimmed = trim(network, units)
            if trimmed is not None:
                return trimmed
        scale = next_breakpoint(network, scale)
    raise InputError(
        f"found no whole numbers of trees that balance the switches for {trees} trees per root: give another number."
    )


def trim(network: Network, units: TreeUnits) -> TreeUnits | None:
    """Lower outgoing links of switches with more trees out than in until none is left; None if cuts forbid it."""
    capacity = units.capacity.copy()
    topology = network.topology
    while (nodes := unbalanced(network, capacity)).size:
        node = int(nodes[0])
        outgoing = np.flatnonzero(topology.src == node)
        surplus = int(capacity[outgoing].sum() - capacity[topology.dst == node].sum())
        for link in outgoing[np.argsort(-capacity[outgoing], kind="stable")].tolist():
            lowered = min(surplus, int(capacity[link]))
            lowered -= missing(network, units, capacity, link, lowered)
            capacity[link] -= lowered
            surplus -= lowered
            if surplus == 0:
                break
        if surplus > 0:
            return None
    return replace(units, capacity=capacity)


def missing(network: Network, units: TreeUnits, capacity: np.ndarray, link: int, lowered: int) -> int:
    """Deficit of the worst cut that ``link`` enters if it is lowered by ``lowered``."""
    trial = capacity.copy()
    trial[link] -= lowered
    topology = network.topology
    worst = 0
    demand = int(units.roots.sum())
    while cuts := violations(network, replace(units, capacity=trial)):
        deficit = 0
        for cut in cuts:
            inside = np.zeros(topology.num_nodes, dtype=np.bool_)
            inside[cut] = True
            entering = inside[topology.dst] & ~inside[topology.src]
            deficit = max(deficit, demand - int(units.roots[cut].sum()) - int(trial[entering].sum()))
        trial[link] += deficit
        worst += deficit
    return worst


MOST_ROWS = 20_000
"""Cuts, potentials and decisions of one bound that are stored; what needs more is bounded by one cut."""


def with_whole_trees(found: Bound, phases: Sequence[TreeOptimum], plain: Sequence[Bound]) -> Bound:
    """Attach to a bound what is proved about forests with the plan's number of trees, and with fewer.

    Args:
        found: The bound of the plan's problem.
        phases: What is known of the numbers of trees in each phase; the phases of an all-reduce are reduce-scatter
            and all-gather.
        plain: The bound of each phase with any number of trees.
    """
    proved = [
        _strongest(each.problem, known, each)
        for known, each in zip(phases, plain, strict=True)
        if known.least
    ]
    stored = [each for each in proved if each is not None]
    if len(stored) < len(phases) or not stored:
        return found
    if len(stored) > 1:
        return replace(found, phase_trees=tuple(stored))
    [problem], [known] = [each.problem for each in plain], phases
    fewer = [_turned(problem, cuts) for cuts in known.fewer] if known.fewest == known.trees else []
    small = sum(_rows(each) for each in fewer) <= MOST_ROWS
    return replace(found, whole_trees=stored[0], fewer_trees=tuple(fewer) if small else ())


def _strongest(problem: Problem, known: TreeOptimum, plain: Bound) -> WholeTrees | None:
    """The best of what one cut, the search for so many trees, and the optimum with any number prove."""
    candidates = [whole_trees_bound(problem, known.trees)]
    if isinstance(plain.proof, CutFamily) and plain.proof.symmetry is None:
        inv_rate = plain.proof.inv_rate
        candidates.append(WholeTrees(trees=known.trees, inv_rate=inv_rate, cases=(plain.proof,)))
    if known.proof is not None:
        candidates.append(_turned(problem, known.proof))
    small = [each for each in candidates if each is not None and _rows(each) <= MOST_ROWS]
    return max(small, key=lambda each: each.inv_rate, default=None)


def _rows(proof: WholeTrees) -> int:
    return sum(
        len(case.cuts) + len(case.potentials) if isinstance(case, CutFamily) else 1 for case in proof.cases
    )


def _turned(problem: Problem, proof: TreeCuts) -> WholeTrees:
    """The proof in the direction of the problem's data, with the links of its topology."""
    network = Network.of(problem)
    reduces = problem.collective.reduces
    cases: list[CutFamily | LinkRange] = []
    for case in proof.cases:
        if isinstance(case, LinkRange):
            cases.append(replace(case, link=int(network.link[case.link])))
        elif reduces:
            cuts = tuple(WeightedCut(nodes=cut.nodes, reduce=cut.broadcast) for cut in case.cuts)
            held = tuple(NodePotential(node=each.node, reduce=each.broadcast) for each in case.potentials)
            cases.append(CutFamily(inv_rate=case.inv_rate, cuts=cuts, potentials=held))
        else:
            cases.append(case)
    return WholeTrees(trees=proof.trees, inv_rate=proof.inv_rate, cases=tuple(cases))


def whole_trees_bound(problem: Problem, trees: int) -> WholeTrees | None:
    """Least time per shard by cuts with ``trees`` trees per unit of weight; None where nothing moves.

    Args:
        trees: Trees per root, at least 1.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = whole_trees_bound(Problem(preset("dgx-a100"), "all_gather"), 1)
        >>> found.inv_rate, found.cases[0].cuts[0].broadcast
        (Fraction(7, 300), Fraction(1, 1))
    """
    network = Network.of(problem)
    inv_rate = fixed_trees(network, trees).inv_rate
    if not inv_rate:
        return None
    scale = trees * inv_rate / network.topology.denominator
    below = [-(-c * scale.numerator // scale.denominator) - 1 for c in network.topology.capacity.tolist()]
    units = TreeUnits(
        trees=trees,
        inv_rate=inv_rate,
        capacity=np.array(below, dtype=np.int64).clip(min=0),
        roots=network.weight * trees,
    )
    violated = violations(network, units, limit=1)
    if not violated:
        return None
    cut = WeightedCut(nodes=tuple(sorted(int(v) for v in violated[0])), broadcast=Fraction(1))
    alone = CutFamily(inv_rate=inv_rate, cuts=(cut,))
    return _turned(problem, TreeCuts(trees=trees, inv_rate=inv_rate, cuts=(), cases=(alone,)))
