"""Bounds on forests with a given number of trees, with their proofs.

In less time than the bound some cut does not let all trees in, as every link carries a whole number of them. A link of
rate b carries at most ceil(U b) - 1 trees in any time below U per tree: one check of the cuts against these numbers
finds the cut that is violated just below the bound. Where one cut does not prove all that the search for the best rate
(``coppice.bounds.tree_optimum``) has found, its family of cuts does, or its branch and bound as a list of cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, CutFamily, LinkRange, NodePotential, WeightedCut, WholeTrees
from coppice.bounds.tree_optimum import TreeCuts, TreeOptimum
from coppice.bounds.tree_units import TreeUnits, fixed_trees, violations

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
