"""An algorithm of the catalogue: its name, what it serves, and how its schedule is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coppice.collectives import Collective
from coppice.planners.algorithms.case import Case, Value
from coppice.planners.algorithms.parts.cost import Cost
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule

__all__ = ["ANY", "EVEN", "POWER_OF_TWO", "Algorithm", "Parameter"]

ANY = "any"
EVEN = "even"
POWER_OF_TWO = "power of two"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of an algorithm.

    Attributes:
        default: Value where none is given; its type is the parameter's.
        summary: What it does, in one line.
        least: Smallest value of a number.
        choices: Values of a text, where only these are allowed.
    """

    default: Value
    summary: str
    least: int = 1
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """How one collective is performed; one name may stand for several collectives.

    Attributes:
        name: Name on the command line.
        collective: What it performs.
        build: Makes the schedule of a case whose ``needs`` are met.
        summary: Its pattern, in one sentence.
        source: Where it comes from: libraries that have it, paper and section.
        cost: Exact cost on a uniform full crossbar; None where it depends on the topology.
        needs: The condition that a case fails, as a sentence with the next step, or None where it fits.
        ranks: Numbers of ranks that it takes: ``any``, ``even`` or ``power of two``.
        parameters: Its parameters by name.
        topological: It looks at the topology and not only at the number of ranks.
    """

    name: str
    collective: Collective
    build: Callable[[Case], Schedule | Forest]
    summary: str
    source: str
    cost: Callable[[Case], Cost] | None = None
    needs: Callable[[Case], str | None] | None = None
    ranks: str = ANY
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    topological: bool = False

    @property
    def roots(self) -> str:
        """Roots that it takes: ``any``, or ``none`` where the collective has no root."""
        return "any" if self.collective.rooted else "none"

    def refusal(self, case: Case) -> str | None:
        """The condition that ``case`` fails, or None."""
        size = case.size
        if self.ranks == EVEN and size % 2 and size > 1:
            return f"{self.name} needs an even number of ranks, found {size}: choose another algorithm."
        if self.ranks == POWER_OF_TWO and size & (size - 1):
            return f"{self.name} needs a power of two of ranks, found {size}: choose another algorithm."
        return None if self.needs is None else self.needs(case)
