"""Base graphs by number of ranks and degree: those with formulas, and jobs that evaluate the others.

A job runs in any process; what it finds is a few lines of text, which a results file keeps.

Distances are found for a node by rotating a set of bits; only the sets with the fewest steps are then scheduled.
The sample depends on nothing but size, degree and number of tries, so that the search gives the same again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, islice
from math import comb
from random import Random

import msgspec
import numpy as np

from coppice.comparison.results import ResultsFile
from coppice.design.families.family import optimum
from coppice.design.recipes.expansions import Facts
from coppice.design.recipes.parser import parse
from coppice.design.recipes.recipe import Base, Bidirectional, Recipe
from coppice.design.schedules.breadth_first import schedule_facts
from coppice.design.search.table import Cell, GraphEntry
from coppice.errors import InputError
from coppice.version import __version__

_MOST_PAIRS = 2**28
"""Pairs of nodes between which distances are looked for in graphs without symmetry."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A base graph with the exact figures of its breadth-first broadcast."""

    recipe: str  # As text
    steps: int  # Steps of an all-gather
    t_b: str  # Its bandwidth time, an exact fraction


class BaseEvaluated(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base graphs found by one job, as stored in a results file."""

    key: str  # Key of the job
    found: list[Found]  # The base graphs


class _BasesHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    coppice: str


class BasesFile(ResultsFile[_BasesHeader, BaseEvaluated]):
    """Results file of base-graph jobs (see :class:`~coppice.comparison.results.ResultsFile`).

    Args:
        path: The file; None keeps nothing.
    """

    command = "design"
    rows_are = "base graphs"

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        header = _BasesHeader(format="coppice-design-bases", version=1, coppice=__version__)
        super().__init__(path, header, BaseEvaluated)

    def differs(self, found: _BasesHeader) -> str | None:
        """Whether the format or the version of Coppice differ."""
        if found == self._header:
            return None
        return f"it holds {found.format!r} version {found.version} of coppice {found.coppice}"


@dataclass(frozen=True)
class BaseJob:
    """Base graphs to evaluate."""

    kind: str  # `kautz` for a generalized Kautz graph, `circulants` for a search
    ranks: int  # Number of nodes
    degree: int  # Ports per node and direction
    both_ways: bool  # Links are full-duplex cables
    tries: int = 0  # Circulants that are looked at

    @property
    def key(self) -> str:
        """Identification of the job's inputs."""
        tries = f", tries={self.tries}" if self.tries else ""
        return f"{self.kind}({self.ranks}, {self.degree}{', both ways' if self.both_ways else ''}{tries})"


def jobs_of(cell: Cell, *, both_ways: bool, tries: int) -> Iterator[BaseJob]:
    """Jobs to evaluate for a cell.

    Examples:
        >>> [job.key for job in jobs_of((16, 4), both_ways=False, tries=10)]
        ['kautz(16, 4)', 'circulants(16, 4, tries=10)']
    """
    ranks, degree = cell
    if degree < ranks:
        ports = degree // 2 if both_ways else degree
        even = not both_ways or degree % 2 == 0
        if ports >= 2 and even and ranks * ranks <= _MOST_PAIRS:
            yield BaseJob("kautz", ranks, degree, both_ways)
        if degree >= 2:
            yield BaseJob("circulants", ranks, degree, both_ways, tries)


def evaluate(job: BaseJob) -> list[Found]:
    """Evaluate the base graphs of a job."""
    if job.kind == "circulants":
        made = circulant_facts(job.ranks, job.degree, both_ways=job.both_ways, tries=job.tries)
        return [
            Found(recipe=str(recipe), steps=facts.steps, t_b=str(facts.bandwidth_time))
            for recipe, facts in made
        ]
    ports = job.degree // 2 if job.both_ways else job.degree
    recipe: Recipe = Base("gkautz", (ports, job.ranks))
    if job.both_ways:
        recipe = Bidirectional(recipe)
    # x -> -1 - x maps the links of a generalized Kautz graph to each other: half of the nodes decide.
    half = np.arange((job.ranks + 1) // 2, dtype=np.int32)
    steps, _, time = schedule_facts(recipe.build(), half)
    return [Found(recipe=str(recipe), steps=steps, t_b=str(time))]


def entry_of(found: Found, cell: Cell) -> GraphEntry:
    """Table entry of a job's result."""
    recipe = parse(found.recipe)
    size = recipe.size
    if (size.ranks, size.degree) != cell:
        raise InputError(
            f"expected a graph of {cell[0]} ranks and degree {cell[1]}, found {found.recipe}: remove the line."
        )
    try:
        time = Fraction(found.t_b)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"expected a fraction for t_b of {found.recipe}, found {found.t_b!r}: remove the line."
        ) from None
    return GraphEntry(recipe, Facts(*cell, found.steps, time, exact=True, bidirectional=size.bidirectional))


def known_bases(cells: Iterable[Cell]) -> dict[Cell, list[GraphEntry]]:
    """Members of the families with formulas, by number of ranks and degree.

    Examples:
        >>> [str(entry.recipe) for entry in known_bases([(8, 4)])[8, 4]]
        ['bipartite(4)']
    """
    wanted = set(cells)
    found: dict[Cell, list[GraphEntry]] = {cell: [] for cell in wanted}
    for ranks, degree in wanted:
        if degree == 1 and ranks > 2:
            found[ranks, degree].append(_known(Base("uniring", (ranks,))))
        if degree == 2 and ranks > 2:
            found[ranks, degree].append(_known(Base("biring", (ranks,))))
        if ranks == degree + 1:
            found[ranks, degree].append(_known(Base("complete", (ranks,))))
        if degree >= 2 and ranks == 2 * degree:
            found[ranks, degree].append(_known(Base("bipartite", (degree,))))
        if degree >= 2 and ranks == 2 * (degree + 1):
            found[ranks, degree].append(_known(Base("crown", (degree + 1,))))
    for recipe in _rare(
        max((cell[0] for cell in wanted), default=0), max((cell[1] for cell in wanted), default=0)
    ):
        cell = (recipe.size.ranks, recipe.size.degree)
        if cell in wanted:
            found[cell].append(_known(recipe))
    return found


def _rare(max_ranks: int, max_degree: int) -> Iterator[Recipe]:
    """Members of families that have few of this size, and some larger ones.

    ``debruijn_mod`` is not among them: circulants have the same figures, and their line graphs better ones.
    """
    yield from map(Base, ("diamond", "octahedron", "petersen", "petersen_edges"))
    for family in ("odd", "doubled_odd"):
        yield from _rising(family, range(3, max_degree + 1), max_ranks)
    for family in ("projective", "affine", "quadrangle", "projective_flags", "quadrangle_flags"):
        yield from _rising(family, range(2, max_degree + 1), max_ranks)
    for dims in range(2, max_degree + 1):
        yield from _rising("hypercube", range(dims, dims + 1), max_ranks)
        for order in range(3, max_degree // dims + 2):
            if order**dims <= max_ranks:
                yield Base("hamming", (dims, order))
    for degree in range(2, max_degree + 1):
        for length in range(2, max_ranks.bit_length() + 1):
            if degree**length <= max_ranks:
                yield Base("kautz", (degree, length))


def _rising(family: str, values: Iterable[int], max_ranks: int) -> Iterator[Recipe]:
    """Members up to the size; orders without a geometry are passed over."""
    for value in values:
        recipe = Base(family, (value,))
        try:
            ranks = recipe.size.ranks
        except InputError:
            continue
        if ranks > max_ranks:
            return
        yield recipe


def _known(recipe: Recipe) -> GraphEntry:
    return GraphEntry(recipe, recipe.facts())


_KEPT = 4
"""Sets of jumps that are scheduled, of each number of steps, until one is bandwidth-optimal."""

_MORE_STEPS = 3
"""Numbers of steps beyond the fewest that are looked at for a bandwidth-optimal circulant."""


def circulant_steps(ranks: int, jumps: tuple[int, ...], limit: int) -> int:
    """Diameter of a circulant with these jumps, or ``limit + 1`` if it is larger.

    Args:
        jumps: In all directions that links have.

    Examples:
        >>> circulant_steps(13, (2, 3, 10, 11), 10), circulant_steps(8, (2, 4), 10)
        (2, 11)
    """
    everything = (1 << ranks) - 1
    seen = front = 1
    steps = 0
    while seen != everything:
        if steps == limit or not front:
            return limit + 1
        reached = 0
        for jump in jumps:
            reached |= front << jump
        reached = (reached & everything) | (reached >> ranks)
        front = reached & ~seen
        seen |= reached
        steps += 1
    return steps


def circulant_facts(ranks: int, degree: int, *, both_ways: bool, tries: int) -> list[tuple[Base, Facts]]:
    """Best circulants by search: fewest steps, and fewest steps among bandwidth-optimal ones.

    Args:
        ranks: Number of nodes, more than the degree.
        both_ways: Links are full-duplex cables; otherwise they lead one way.
        tries: Sets of jumps that are looked at.

    Returns:
        Recipes with the figures of breadth-first broadcast, steps rising and bandwidth time falling; none where there
        is no such circulant.

    Examples:
        >>> [(str(recipe), facts.steps) for recipe, facts in circulant_facts(8, 2, both_ways=False, tries=100)]
        [('dicirculant(8, 1, 3)', 3)]
    """
    family = "circulant" if both_ways else "dicirculant"
    found: dict[int, list[tuple[int, ...]]] = {}
    fewest = ranks
    for jumps in _tried(ranks, degree, both_ways=both_ways, tries=tries):
        steps = circulant_steps(ranks, _directed(ranks, jumps, both_ways=both_ways), fewest + _MORE_STEPS)
        if steps <= fewest + _MORE_STEPS:
            kept = found.setdefault(steps, [])
            if len(kept) < _KEPT and jumps not in kept:
                kept.append(jumps)
            fewest = min(fewest, steps)
    return _front(family, ranks, found)


def _front(family: str, ranks: int, found: dict[int, list[tuple[int, ...]]]) -> list[tuple[Base, Facts]]:
    """The least bandwidth time of each number of steps, while it falls."""
    front: list[tuple[Base, Facts]] = []
    for _, sets in sorted(found.items()):
        for jumps in sets:
            recipe = Base(family, (ranks, *jumps))
            facts = recipe.measured()
            if not front or facts.bandwidth_time < front[-1][1].bandwidth_time:
                if front and front[-1][1].steps == facts.steps:
                    front.pop()
                front.append((recipe, facts))
            if facts.bandwidth_time == optimum(ranks):
                return front
    return front


def _tried(ranks: int, degree: int, *, both_ways: bool, tries: int) -> Iterator[tuple[int, ...]]:
    """Sets of rising jumps with 1 among them, at most ``tries`` and those that are known to be good."""
    last = (ranks - 1) // 2 if both_ways else ranks - 1
    half = both_ways and degree % 2 == 1
    free = (degree // 2 if both_ways else degree) - 1
    tail = (ranks // 2,) if half else ()
    if degree >= ranks or (half and ranks % 2) or free > last - 1:
        return
    if free < 0:  # a port each, both ways: a pair
        if ranks == 2:
            yield (1,)
        return
    # So many jumps in a row are bandwidth-optimal one way: a step reaches as many nodes as there are jumps.
    yield (*range(1, free + 2), *tail)
    if both_ways and degree == 4:
        m = 1
        while 2 * (m + 1) ** 2 <= ranks - 2:
            m += 1
        if m > 1:
            yield (m, m + 1)
    if comb(last - 1, free) <= tries:
        for chosen in combinations(range(2, last + 1), free):
            yield (1, *chosen, *tail)
        return
    sample = Random(f"{ranks} {degree} {both_ways}")
    drawn: set[tuple[int, ...]] = set()
    for jumps in islice(_sampled(ranks, free, last, sample), tries):
        if jumps not in drawn:
            drawn.add(jumps)
            yield (*jumps, *tail)


def _sampled(ranks: int, free: int, last: int, sample: Random) -> Iterator[tuple[int, ...]]:
    """Powers of the root first, as digits of numbers have them; then sets at random."""
    root = max(2, round(ranks ** (1 / (free + 1))))
    for base in (root, root + 1, root - 1):
        jumps = sorted({base**power for power in range(free + 1)})
        if base > 1 and len(jumps) == free + 1 and jumps[-1] <= last:
            yield tuple(jumps)
    while True:
        yield (1, *sorted(sample.sample(range(2, last + 1), free)))


def _directed(ranks: int, jumps: tuple[int, ...], *, both_ways: bool) -> tuple[int, ...]:
    return tuple({sign * jump % ranks for jump in jumps for sign in (1, -1)}) if both_ways else jumps
