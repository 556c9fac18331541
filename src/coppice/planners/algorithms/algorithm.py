"""Algorithms of the catalogue, and the problem instance that one is applied to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.parts.cost import Cost
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

Value = int | str


@dataclass(frozen=True, eq=False, kw_only=True)
class AlgorithmCase:
    """Instance for an algorithm: a collective among P positions, with parameters.

    Algorithms number the participants by *position*, 0 .. P - 1. Which rank sits at a position is decided outside
    (``order``), so that any algorithm can run in rank order or in an order that suits the topology.
    """

    topology: Topology  # Where it will run; only algorithms that suit themselves to a topology look at it
    collective: Collective  # What to do
    root: int = -1  # Position of the root of a rooted collective, otherwise -1
    # Value of every parameter that the algorithm declares
    parameters: Mapping[str, Value] = field(default_factory=dict)
    order: tuple[int, ...] | None = None  # `order[p]` is the rank at position p; None is rank order
    # Relative size of the block of an all-to-all from each rank to each; None: equal ones
    demands: tuple[tuple[int, ...], ...] | None = None

    @property
    def size(self) -> int:
        """Number of positions, P."""
        return self.topology.num_ranks

    @property
    def positions(self) -> NDArray[np.int64]:
        """All positions: 0 .. P - 1."""
        return np.arange(self.size)

    def number(self, name: str) -> int:
        """Value of a numeric parameter."""
        return int(self.parameters[name])

    def from_root(self, relative: int | NDArray[np.integer]) -> NDArray[np.int64]:
        """Positions ``relative`` places after the root, cyclically.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> case = AlgorithmCase(topology=preset("ring", gpus=5), collective=Collective.BROADCAST, root=3)
            >>> case.from_root(np.arange(5)).tolist()
            [3, 4, 0, 1, 2]
        """
        return (np.asarray(relative, dtype=np.int64) + max(self.root, 0)) % self.size


ANY = "any"
EVEN = "even"
POWER_OF_TWO = "power of two"


@dataclass(frozen=True, kw_only=True)
class AlgorithmParameter:
    """A parameter of an algorithm."""

    default: Value  # Value where none is given; its type is the parameter's
    summary: str  # What it does, in one line
    least: int = 1  # Smallest value of a number
    choices: tuple[str, ...] = ()  # Values of a text, where only these are allowed


GROUP = AlgorithmParameter(
    default=0, least=0, summary="ranks of a group; 0: of a box, else nearest to the root of P"
)
SEGMENTS = AlgorithmParameter(default=8, summary="pieces of the buffer, each a step behind the one before")


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm for one collective; a name may cover several collectives."""

    name: str  # Name on the command line
    collective: Collective  # What it performs
    build: Callable[[AlgorithmCase], Schedule | Forest]  # Makes the schedule of a case whose `needs` are met
    summary: str  # Its pattern, in one sentence
    source: str  # Where it comes from: libraries that have it, paper and section
    # Exact cost on a uniform full crossbar; None where it depends on the topology
    cost: Callable[[AlgorithmCase], Cost] | None = None
    # The condition that a case fails, as a sentence with the next step, or None where it fits
    needs: Callable[[AlgorithmCase], str | None] | None = None
    ranks: str = ANY  # Numbers of ranks that it takes: `any`, `even` or `power of two`
    parameters: Mapping[str, AlgorithmParameter] = field(default_factory=dict)  # Its parameters by name
    topological: bool = False  # It looks at the topology and not only at the number of ranks
    orders_matter: bool = False  # A given order of ranks is another schedule, although it is topological

    @property
    def roots(self) -> str:
        """Supported roots: ``any``, or ``none`` where the collective has no root."""
        return "any" if self.collective.rooted else "none"

    def refusal(self, case: AlgorithmCase) -> str | None:
        """Precondition that ``case`` violates, or None."""
        size = case.size
        if self.ranks == EVEN and size % 2 and size > 1:
            return f"{self.name} needs an even number of ranks, found {size}: choose another algorithm."
        if self.ranks == POWER_OF_TWO and size & (size - 1):
            return f"{self.name} needs a power of two of ranks, found {size}: choose another algorithm."
        return None if self.needs is None else self.needs(case)


def divides(algorithm: str, parameter: str, words: str) -> Callable[[AlgorithmCase], str | None]:
    """Precondition that a parameter, unless 0, divides P.

    Args:
        words: What is needed, as in ``a group that divides``.
    """

    def needs(case: AlgorithmCase) -> str | None:
        value = case.number(parameter)
        if value and case.size % value:
            return f"{algorithm} needs {words} {case.size} ranks, found {value}: choose a divisor."
        return None

    return needs
