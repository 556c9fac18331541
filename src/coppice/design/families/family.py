"""A family of graphs: its name, its parameters, and the figures of its members before they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

from coppice.design.graph import Graph
from coppice.errors import InputError

__all__ = ["Family", "Size", "at_least", "between", "optimal", "optimum"]


@dataclass(frozen=True, slots=True)
class Size:
    """What is known of a member before it is built.

    Attributes:
        ranks: Number of nodes.
        degree: Ports per node and direction.
        bidirectional: Links are full-duplex cables.
        steps: Diameter, where a formula gives it.
        bandwidth_time: Time of breadth-first broadcast in units of M over the bandwidth of a node, where a formula
            gives it.
        simple: No self-loops and no parallel links.
    """

    ranks: int
    degree: int
    _: KW_ONLY
    bidirectional: bool
    steps: int | None = None
    bandwidth_time: Fraction | None = None
    simple: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """A family of graphs with integer parameters.

    Attributes:
        name: Its name in recipes.
        parameters: Names of the parameters; the last one may end in ``...`` and then repeats.
        description: One line.
        size: Figures of a member; raises InputError for parameters without meaning.
        build: Builds a member whose size has been checked, under the given name.
    """

    name: str
    parameters: tuple[str, ...]
    description: str
    size: Callable[..., Size]
    build: Callable[..., Graph]

    @property
    def signature(self) -> str:
        """The family as a recipe writes it: ``torus(d1, d2...)``."""
        return f"{self.name}({', '.join(self.parameters)})" if self.parameters else self.name

    def check_count(self, count: int) -> bool:
        """Whether the family takes so many arguments."""
        if self.parameters and self.parameters[-1].endswith("..."):
            return count >= len(self.parameters) - 1 and count >= 1
        return count == len(self.parameters)


def optimal(ranks: int, degree: int, steps: int, *, bidirectional: bool = True) -> Size:
    """A member that is bandwidth-optimal under breadth-first broadcast, without self-loops and parallel links."""
    return Size(ranks, degree, bidirectional=bidirectional, steps=steps, bandwidth_time=optimum(ranks))


def optimum(ranks: int) -> Fraction:
    """Bandwidth time that no schedule beats: every node receives N - 1 of N shards."""
    return Fraction(ranks - 1, ranks)


def at_least(family: str, name: str, value: int, least: int, hint: str = "choose a larger one") -> None:
    """Refuse a parameter that is too small.

    Raises:
        InputError: With the family, the parameter and what to do.
    """
    if value < least:
        msg = f"expected {name} >= {least} in {family}, found {value}: {hint}."
        raise InputError(msg)


def between(family: str, name: str, value: int, least: int, most: int) -> None:
    """Refuse a parameter out of range.

    Raises:
        InputError: With the family and the parameter.
    """
    if not least <= value <= most:
        msg = f"expected {name} between {least} and {most} in {family}, found {value}: choose one in this range."
        raise InputError(msg)
