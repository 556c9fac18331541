"""Recipes: graphs as expressions of families and expansions, with figures derived without building them.

A recipe prints as text that :func:`parse` reads back. Figures come from formulas where there are any; otherwise the
graph is built and its breadth-first broadcast computed, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce

from coppice.design.families import FAMILIES
from coppice.design.families.family import Size
from coppice.design.graph import MAX_LINKS, MAX_NODES, Graph
from coppice.design.recipes.expansions import (
    Facts,
    cartesian_product,
    degree_expansion,
    degree_facts,
    line_facts,
    line_graph,
    power_facts,
    product_facts,
    with_transpose,
)
from coppice.design.schedules.breadth_first import schedule_facts
from coppice.errors import InputError

_MAX_FORMULA = 2**40
"""Sizes are followed up to here, far beyond what can be built, so that no formula runs away."""
_MAX_TIMES = 64
_FEW_LINKS = 2**12
_TRANSPOSES = ("uniring", "dicirculant", "diamond", "kautz", "debruijn")
"""Families of one-way graphs that are isomorphic to their transposes."""


class Recipe(ABC):
    """An expression of a graph: a family with parameters, or an expansion of other recipes."""

    @property
    @abstractmethod
    def size(self) -> Size:
        """Number of nodes and ports and kind of links, by formula."""

    @property
    @abstractmethod
    def is_transpose(self) -> bool:
        """Whether it is known to be isomorphic to its transpose, so that reduce-scatter costs as all-gather.

        Reversing all links of an expansion expands the reversed graph; in an abelian group, inversion reverses them.
        """

    @abstractmethod
    def facts(self) -> Facts:
        """Steps and bandwidth time, by formula where there is one."""

    @abstractmethod
    def _made(self) -> Graph:
        """The graph, once its size has been checked."""

    def build(self) -> Graph:
        """Build the graph."""
        size = self.size
        if size.ranks > MAX_NODES or size.ranks * size.degree > MAX_LINKS:
            raise InputError(
                f"expected at most {MAX_NODES:,} nodes and {MAX_LINKS:,} links, found {size.ranks:,} and "
                f"{size.ranks * size.degree:,} in {self}: choose a smaller graph."
            )
        return self._made()

    def measured(self) -> Facts:
        """Build the graph and compute the figures of its breadth-first broadcast."""
        return _measured(self)


@dataclass(frozen=True)
class Base(Recipe):
    """A member of a family."""

    family: str  # Name of the family
    arguments: tuple[int, ...] = ()  # Its parameters

    def __post_init__(self) -> None:
        family = FAMILIES.get(self.family)
        if family is None:
            raise InputError(
                f"expected a family of graphs, found {self.family!r}: choose one of {', '.join(sorted(FAMILIES))}."
            )
        if not family.check_count(len(self.arguments)):
            raise InputError(
                f"expected {family.signature}, found {len(self.arguments)} arguments: {family.description}."
            )

    def __str__(self) -> str:
        return f"{self.family}({', '.join(map(str, self.arguments))})" if self.arguments else self.family

    @cached_property
    def size(self) -> Size:
        """Size by the family."""
        return _bounded(FAMILIES[self.family].size(*self.arguments), self)

    @property
    def is_transpose(self) -> bool:
        """True for Cayley graphs of abelian groups, reversed words, and full-duplex cables."""
        return self.family in _TRANSPOSES or self.size.bidirectional

    def facts(self) -> Facts:
        """By the family's formulas, or computed."""
        size = self.size
        if size.steps is None or size.bandwidth_time is None:
            return self.measured()
        return Facts(
            size.ranks,
            size.degree,
            size.steps,
            size.bandwidth_time,
            exact=True,
            bidirectional=size.bidirectional,
        )

    def _made(self) -> Graph:
        graph: Graph = FAMILIES[self.family].build(str(self), *self.arguments)
        return graph


@dataclass(frozen=True)
class Expansion(Recipe):
    """A graph expanded from one other."""

    inner: Recipe

    @property
    def is_transpose(self) -> bool:
        """As for the base graph."""
        return self.inner.is_transpose


@dataclass(frozen=True)
class LineGraph(Expansion):
    """The line graph, ``times`` times: ``line^3(R)``."""

    times: int = 1

    def __post_init__(self) -> None:
        _check_times("line^n(R)", self.times)
        if isinstance(self.inner, LineGraph):
            object.__setattr__(self, "times", self.times + self.inner.times)
            object.__setattr__(self, "inner", self.inner.inner)

    def __str__(self) -> str:
        return f"line^{self.times}({self.inner})" if self.times > 1 else f"line({self.inner})"

    @cached_property
    def size(self) -> Size:
        """N d^n nodes of degree d."""
        size = self.inner.size
        _bounded_power(size.degree, self.times, self)
        both_ways = size.bidirectional and size.degree == 1
        if size.bidirectional and size.ranks == 2 and size.degree ** (self.times + 1) <= _FEW_LINKS:
            both_ways = self._made().bidirectional  # parallel links between two nodes
        return _bounded(
            Size(
                size.ranks * size.degree**self.times, size.degree, bidirectional=both_ways, simple=size.simple
            ),
            self,
        )

    def facts(self) -> Facts:
        """A step more each time, and 1 / N of bandwidth time with N that of the graph expanded."""
        return line_facts(self.inner.facts(), self.size, self.times)

    def _made(self) -> Graph:
        return reduce(lambda graph, _: line_graph(graph, str(self)), range(self.times), self.inner.build())


@dataclass(frozen=True)
class Degree(Expansion):
    """Degree expansion: ``degree(R, n)``, n copies of every node."""

    copies: int

    def __post_init__(self) -> None:
        if self.copies < 2:
            raise InputError(f"expected 2 or more copies in degree(R, n), found {self.copies}.")

    def __str__(self) -> str:
        return f"degree({self.inner}, {self.copies})"

    @cached_property
    def size(self) -> Size:
        """So many times the nodes and the degree."""
        size = self.inner.size
        expanded = Size(
            size.ranks * self.copies,
            size.degree * self.copies,
            bidirectional=size.bidirectional,
            simple=size.simple,
        )
        return _bounded(expanded, self)

    def facts(self) -> Facts:
        """A step more, and (n - 1) / (n N) of bandwidth time."""
        return degree_facts(self.inner.facts(), self.size, self.copies)

    def _made(self) -> Graph:
        return degree_expansion(self.inner.build(), self.copies, str(self))


@dataclass(frozen=True)
class Power(Expansion):
    """Cartesian power: ``R^n``."""

    exponent: int

    def __post_init__(self) -> None:
        _check_times("R^n", self.exponent, least=2)
        if isinstance(self.inner, Power):
            object.__setattr__(self, "exponent", self.exponent * self.inner.exponent)
            object.__setattr__(self, "inner", self.inner.inner)
            _check_times("R^n", self.exponent, least=2)

    def __str__(self) -> str:
        return f"{_atom(self.inner)}^{self.exponent}"

    @cached_property
    def size(self) -> Size:
        """N^n nodes of n times the degree."""
        size = self.inner.size
        _bounded_power(size.ranks, self.exponent, self)
        ranks, ports = size.ranks**self.exponent, size.degree * self.exponent
        return _bounded(Size(ranks, ports, bidirectional=size.bidirectional, simple=size.simple), self)

    def facts(self) -> Facts:
        """So many times the steps; bandwidth-optimal where the factor is."""
        return power_facts(self.inner.facts(), self.size, self.exponent)

    def _made(self) -> Graph:
        return cartesian_product([self.inner.build()] * self.exponent, str(self))


@dataclass(frozen=True)
class Product(Recipe):
    """Cartesian product: ``R * S * T``."""

    parts: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        flat: list[Recipe] = []
        for part in self.parts:
            flat.extend(part.parts if isinstance(part, Product) else [part])
        if len(flat) < 2:
            raise InputError(f"expected two or more factors of a product, found {len(flat)}.")
        object.__setattr__(self, "parts", tuple(flat))

    def __str__(self) -> str:
        return " * ".join(map(str, self.parts))

    @cached_property
    def size(self) -> Size:
        """The product of the numbers of nodes, the sum of the degrees."""
        sizes = [part.size for part in self.parts]
        ranks = reduce(lambda a, b: min(a * b, 2 * _MAX_FORMULA), (size.ranks for size in sizes))
        both_ways, simple = all(size.bidirectional for size in sizes), all(size.simple for size in sizes)
        return _bounded(
            Size(ranks, sum(size.degree for size in sizes), bidirectional=both_ways, simple=simple), self
        )

    @property
    def is_transpose(self) -> bool:
        """Where all factors are."""
        return all(part.is_transpose for part in self.parts)

    def facts(self) -> Facts:
        """Optimal where all factors are; computed otherwise."""
        return product_facts([part.facts() for part in self.parts], self.size) or self.measured()

    def _made(self) -> Graph:
        return cartesian_product([part.build() for part in self.parts], str(self))


@dataclass(frozen=True)
class Bidirectional(Recipe):
    """A graph and its transpose: ``bidirectional(R)``."""

    inner: Recipe

    def __str__(self) -> str:
        return f"bidirectional({self.inner})"

    @cached_property
    def size(self) -> Size:
        """N nodes of degree 2 d."""
        size = self.inner.size
        return _bounded(Size(size.ranks, 2 * size.degree, bidirectional=True, simple=False), self)

    @property
    def is_transpose(self) -> bool:
        """True by definition."""
        return True

    def facts(self) -> Facts:
        """Computed; there is no formula, since shortest paths use both directions."""
        return self.measured()

    def _made(self) -> Graph:
        return with_transpose(self.inner.build(), str(self))


def base(family: str, *arguments: int) -> Recipe:
    """A member of a family: ``base("circulant", 16, 3, 4)``."""
    return Base(family, arguments)


def line(inner: Recipe, times: int = 1) -> Recipe:
    """The line graph of a recipe, ``times`` times."""
    return LineGraph(inner, times)


def degree(inner: Recipe, copies: int) -> Recipe:
    """The degree expansion of a recipe."""
    return Degree(inner, copies)


def power(inner: Recipe, exponent: int) -> Recipe:
    """Cartesian power of a recipe; the recipe itself for exponent 1."""
    return inner if exponent == 1 else Power(inner, exponent)


def product(*parts: Recipe) -> Recipe:
    """Cartesian product of recipes; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else Product(parts)


@lru_cache(maxsize=4096)
def _measured(recipe: Recipe) -> Facts:
    graph, size = recipe.build(), recipe.size
    steps, _, time = schedule_facts(graph)
    return Facts(size.ranks, size.degree, steps, time, exact=True, bidirectional=graph.bidirectional)


def _atom(recipe: Recipe) -> str:
    return f"({recipe})" if isinstance(recipe, Product) else str(recipe)


def _bounded(size: Size, recipe: Recipe) -> Size:
    if size.ranks * size.degree > _MAX_FORMULA:
        raise InputError(f"expected at most 2^40 links, found more in {recipe}: choose a smaller graph.")
    return size


def _bounded_power(number: int, exponent: int, recipe: Recipe) -> None:
    """Refuse a power that runs away before it is computed."""
    if (number.bit_length() - 1) * exponent > 40:
        raise InputError(f"expected at most 2^40 nodes, found more in {recipe}: choose a smaller graph.")


def _check_times(shape: str, times: int, least: int = 1) -> None:
    if not least <= times <= _MAX_TIMES:
        raise InputError(f"expected n between {least} and {_MAX_TIMES} in {shape}, found {times}.")
