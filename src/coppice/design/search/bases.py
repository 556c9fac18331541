"""Base graphs of a number of ranks and a degree: those with formulas at once, the others as jobs to be done.

A job runs in any process; what it finds is a few lines of text, which a results file keeps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import numpy as np

from coppice.comparison.results import ResultsFile
from coppice.design.recipes.parser import parse
from coppice.design.recipes.recipe import Base, Bidirectional, Facts, Recipe
from coppice.design.schedules.breadth_first import schedule_facts
from coppice.design.search.circulants import circulant_facts
from coppice.design.search.table import Cell, GraphEntry
from coppice.errors import InputError
from coppice.version import __version__

__all__ = ["BaseJob", "BasesFile", "Found", "JobResult", "entry_of", "evaluate", "jobs_of", "known_bases"]

_MOST_PAIRS = 2**28
"""Pairs of nodes between which distances are looked for in graphs without symmetry."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A base graph and the exact figures of its breadth-first broadcast.

    Attributes:
        recipe: As text.
        steps: Steps of an all-gather.
        t_b: Its bandwidth time, an exact fraction.
    """

    recipe: str
    steps: int
    t_b: str


class JobResult(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base graphs that one job found, as a results file keeps them.

    Attributes:
        key: Key of the job.
        found: The base graphs.
    """

    key: str
    found: list[Found]


class _BasesHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    coppice: str


class BasesFile(ResultsFile[_BasesHeader, JobResult]):
    """What jobs found, in a file or nowhere (see :class:`~coppice.comparison.results.ResultsFile`).

    Args:
        path: The file; None keeps nothing.
    """

    command = "design"
    rows_are = "base graphs"

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        header = _BasesHeader(format="coppice-design-bases", version=1, coppice=__version__)
        super().__init__(path, header, JobResult)

    def differs(self, found: _BasesHeader) -> str | None:
        """Another format or version, or another version of Coppice, whose figures may differ."""
        if found == self._header:
            return None
        return f"it holds {found.format!r} version {found.version} of coppice {found.coppice}"


@dataclass(frozen=True)
class BaseJob:
    """Base graphs to evaluate.

    Attributes:
        kind: ``kautz`` for a generalized Kautz graph, ``circulants`` for a search.
        ranks: Number of nodes.
        degree: Ports per node and direction.
        both_ways: Links are full-duplex cables.
        tries: Circulants that are looked at.
    """

    kind: str
    ranks: int
    degree: int
    both_ways: bool
    tries: int = 0

    @property
    def key(self) -> str:
        """All that decides what is found."""
        tries = f", tries={self.tries}" if self.tries else ""
        return f"{self.kind}({self.ranks}, {self.degree}{', both ways' if self.both_ways else ''}{tries})"


def jobs_of(cell: Cell, *, both_ways: bool, tries: int) -> Iterator[BaseJob]:
    """What has to be evaluated for a cell.

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
    """The base graphs of a job."""
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
    """An entry of the table from what a job found.

    Raises:
        InputError: If the text is no recipe of that size, or a figure is no number.
    """
    recipe = parse(found.recipe)
    size = recipe.size
    if (size.ranks, size.degree) != cell:
        msg = f"expected a graph of {cell[0]} ranks and degree {cell[1]}, found {found.recipe}: remove the line."
        raise InputError(msg)
    try:
        time = Fraction(found.t_b)
    except (ValueError, ZeroDivisionError):
        msg = f"expected a fraction for t_b of {found.recipe}, found {found.t_b!r}: remove the line."
        raise InputError(msg) from None
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
