"""Table of the best graphs: Pareto-optimal recipes by number of ranks and degree.

An entry is a recipe with its figures; a front holds the entries that no other one beats. Every expansion makes a larger
graph of smaller ones, and its formula rises with their figures; so the front of a cell follows from the fronts of the
cells that divide it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.design.families.family import optimum
from coppice.design.recipes.expansions import Facts, degree_facts, line_facts, power_facts, product_facts
from coppice.design.recipes.recipe import Degree, LineGraph, Recipe, power, product
from coppice.design.schedules.breadth_first import moore_steps

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import GraphJson

Cell = tuple[int, int]
"""Number of ranks and degree."""


@dataclass(frozen=True)
class GraphEntry:
    """A candidate graph."""

    recipe: Recipe  # How
    # What a schedule of it takes; exact where breadth-first broadcast was computed or has a formula,
    # otherwise what the expanded schedule takes
    facts: Facts

    @property
    def steps(self) -> int:
        """Steps of an all-gather."""
        return self.facts.steps

    @property
    def time(self) -> Fraction:
        """Bandwidth time of an all-gather in units of M over the bandwidth of a node."""
        return self.facts.bandwidth_time

    @property
    def simple(self) -> bool:
        """Whether it is known to be simple, so that every expansion applies."""
        return self.recipe.size.simple

    def record(self) -> GraphJson:
        """The figures as JSON values."""
        facts = self.facts
        return {
            "recipe": str(self.recipe),
            "ranks": facts.ranks,
            "degree": facts.degree,
            "steps": facts.steps,
            "moore_steps": moore_steps(facts.ranks, facts.degree),
            "t_b": str(facts.bandwidth_time),
            "t_b_least": str(optimum(facts.ranks)),
            "exact": facts.exact,
            "bidirectional": facts.bidirectional,
        }


def front_of(entries: Iterable[GraphEntry], *, expandable: bool = False) -> list[GraphEntry]:
    """Pareto front of the entries: steps rise, bandwidth time falls.

    Among equals the exact one counts, then the shorter recipe.

    Args:
        expandable: Keep the best simple graphs as well, where graphs with self-loops beat them: more follows from
            them.

    Examples:
        >>> from coppice.design.recipes.parser import parse
        >>> recipes = [parse(text) for text in ("torus(4, 4)", "two_jump(16)", "biring(16)")]
        >>> made = [GraphEntry(recipe, recipe.facts()) for recipe in recipes]
        >>> [str(entry.recipe) for entry in front_of(made)]
        ['two_jump(16)']
    """
    front: list[GraphEntry] = []
    for entry in sorted(entries, key=_rank):
        beaten = any(
            kept.time <= entry.time and (kept.simple or not expandable or not entry.simple) for kept in front
        )
        if not beaten:
            front.append(entry)
    return front


def _rank(entry: GraphEntry) -> tuple[int, Fraction, bool, bool, int, str]:
    text = str(entry.recipe)
    return entry.steps, entry.time, not entry.simple, not entry.facts.exact, len(text), text


_MEASURED_PAIRS = 2**17
"""Degree expansions are scheduled where so few distances are needed: they often save the step of the formula."""


class GraphTable:
    """Pareto fronts by number of ranks and degree, computed on demand.

    Args:
        bases: Base graphs of each cell.
        both_ways: Only graphs whose links are full-duplex cables.
    """

    def __init__(self, bases: Mapping[Cell, Sequence[GraphEntry]], *, both_ways: bool = False) -> None:
        self._bases = bases
        self._both_ways = both_ways
        self._fronts: dict[Cell, list[GraphEntry]] = {}

    def front(self, ranks: int, degree: int) -> list[GraphEntry]:
        """Pareto front of a cell, with the simple graphs that expansions need; see :func:`front_of`."""
        cell = (ranks, degree)
        if cell not in self._fronts:
            entries = [*self._bases.get(cell, ()), *self._expanded(ranks, degree)]
            if self._both_ways:
                entries = [entry for entry in entries if entry.facts.bidirectional]
            self._fronts[cell] = front_of(entries, expandable=True)
        return self._fronts[cell]

    def _expanded(self, ranks: int, degree: int) -> Iterator[GraphEntry]:
        if degree > 1 and ranks % degree == 0 and ranks > degree:
            for entry in self.front(ranks // degree, degree):
                recipe: Recipe = LineGraph(entry.recipe)
                yield GraphEntry(recipe, line_facts(entry.facts, recipe.size))
        for copies in _divisors(ranks, degree):
            for entry in self.front(ranks // copies, degree // copies):
                if entry.simple:
                    yield _degree_expanded(entry, copies)
        for exponent in _exponents(degree):
            root = _root(ranks, exponent)
            if root:
                for entry in self.front(root, degree // exponent):
                    recipe = power(entry.recipe, exponent)
                    yield GraphEntry(recipe, power_facts(entry.facts, recipe.size, exponent))
        yield from self._products(ranks, degree)

    def _products(self, ranks: int, degree: int) -> Iterator[GraphEntry]:
        """Products of two bandwidth-optimal graphs with different figures; of several, one factor after the other."""
        for first in range(2, ranks):
            if first * first > ranks:
                break
            if ranks % first:
                continue
            for ports in range(1, degree):
                parts = [self._optimal(first, ports), self._optimal(ranks // first, degree - ports)]
                if parts[0] and parts[1] and parts[0].recipe != parts[1].recipe:
                    recipe = product(parts[0].recipe, parts[1].recipe)
                    facts = product_facts([parts[0].facts, parts[1].facts], recipe.size)
                    if facts is not None:
                        yield GraphEntry(recipe, facts)

    def _optimal(self, ranks: int, degree: int) -> GraphEntry | None:
        """The bandwidth-optimal simple graph with the fewest steps."""
        found = (
            entry for entry in self.front(ranks, degree) if entry.simple and entry.facts.bandwidth_optimal
        )
        return next(found, None)


def cells_below(goals: Iterable[Cell]) -> set[Cell]:
    """Cells whose fronts the goals depend on.

    Examples:
        >>> sorted(cells_below([(8, 2)]))
        [(2, 1), (2, 2), (4, 1), (4, 2), (8, 2)]
    """
    found: set[Cell] = set()
    left = list(goals)
    while left:
        cell = left.pop()
        if cell in found:
            continue
        found.add(cell)
        ranks, degree = cell
        if degree > 1 and ranks % degree == 0 and ranks > degree:
            left.append((ranks // degree, degree))
        left.extend((ranks // copies, degree // copies) for copies in _divisors(ranks, degree))
        left.extend(
            (root, degree // exponent) for exponent in _exponents(degree) if (root := _root(ranks, exponent))
        )
        for first in range(2, int(ranks**0.5) + 2):
            if ranks % first == 0 and first < ranks:
                for ports in range(1, degree):
                    left += [(first, ports), (ranks // first, ports)]
    return found


def _degree_expanded(entry: GraphEntry, copies: int) -> GraphEntry:
    recipe = Degree(entry.recipe, copies)
    size = recipe.size
    if size.ranks * size.ranks <= _MEASURED_PAIRS:
        measured = recipe.measured()
        promised = degree_facts(entry.facts, size, copies)
        if measured.steps <= promised.steps and measured.bandwidth_time <= promised.bandwidth_time:
            return GraphEntry(recipe, measured)
    return GraphEntry(recipe, degree_facts(entry.facts, size, copies))


def _divisors(ranks: int, degree: int) -> list[int]:
    """Common divisors from 2 on that leave more than a node."""
    return [n for n in range(2, degree + 1) if degree % n == 0 and ranks % n == 0 and ranks > n]


def _exponents(degree: int) -> list[int]:
    """Powers that a graph of this degree may be."""
    return [n for n in range(2, degree + 1) if degree % n == 0]


def _root(ranks: int, exponent: int) -> int:
    """The number of nodes of the factor of a power, 0 where there is none."""
    root = round(ranks ** (1 / exponent))
    return next((r for r in (root - 1, root, root + 1) if r >= 2 and r**exponent == ranks), 0)
