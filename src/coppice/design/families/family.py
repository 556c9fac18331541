"""Families of graphs: name, parameters, and figures of members before they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

from coppice.design.graph import Graph
from coppice.errors import InputError


@dataclass(frozen=True, slots=True)
class Size:
    """Figures of a member before it is built."""

    ranks: int  # Number of nodes
    degree: int  # Ports per node and direction
    _: KW_ONLY
    bidirectional: bool  # Links are full-duplex cables
    steps: int | None = None  # Diameter, where a formula gives it
    # Time of breadth-first broadcast in units of M over the bandwidth of a node, where a formula gives it
    bandwidth_time: Fraction | None = None
    simple: bool = True  # No self-loops and no parallel links


@dataclass(frozen=True, slots=True)
class Family:
    """A family of graphs with integer parameters."""

    name: str  # Its name in recipes
    parameters: tuple[str, ...]  # Names of the parameters; the last one may end in `...` and then repeats
    description: str  # One line
    size: Callable[..., Size]  # Figures of a member; raises InputError for parameters without meaning
    build: Callable[..., Graph]  # Builds a member whose size has been checked, under the given name

    @property
    def signature(self) -> str:
        """The family as a recipe writes it: ``torus(d1, d2...)``."""
        return f"{self.name}({', '.join(self.parameters)})" if self.parameters else self.name

    def check_count(self, count: int) -> bool:
        """Whether the number of arguments fits."""
        if self.parameters and self.parameters[-1].endswith("..."):
            return count >= len(self.parameters) - 1 and count >= 1
        return count == len(self.parameters)


def optimal(ranks: int, degree: int, steps: int, *, bidirectional: bool = True) -> Size:
    """Figures of a bandwidth-optimal member under breadth-first broadcast, without self-loops and parallel links."""
    return Size(ranks, degree, bidirectional=bidirectional, steps=steps, bandwidth_time=optimum(ranks))


def optimum(ranks: int) -> Fraction:
    """Optimal bandwidth time: every node receives N - 1 of N shards."""
    return Fraction(ranks - 1, ranks)


def at_least(family: str, name: str, value: int, least: int, hint: str = "choose a larger one") -> None:
    """Refuse a parameter that is too small."""
    if value < least:
        raise InputError(f"expected {name} >= {least} in {family}, found {value}: {hint}.")


def between(family: str, name: str, value: int, least: int, most: int) -> None:
    """Refuse a parameter out of range."""
    if not least <= value <= most:
        raise InputError(
            f"expected {name} between {least} and {most} in {family}, found {value}: choose one in this range."
        )
