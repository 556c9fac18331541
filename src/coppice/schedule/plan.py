"""Plans: a problem, the forest or schedule that solves it, and claims about its rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bandwidths, Bound
from coppice.display import Shown
from coppice.errors import InputError
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.schedule.shape import Trees
from coppice.text import rate_text
from coppice.topology.model import Topology

Parameter = str | int | float | bool | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(Shown, Bandwidths):
    """Output of a planner and content of a plan file; its claims hold only once verified."""

    problem: Problem  # The collective and its topology
    inv_rate: Fraction  # Time per shard that the plan claims to need, 1 / (GB/s), exact
    forest: Forest | None = None  # The trees, where the plan is a forest
    schedule: Schedule | None = None  # The transfers, where it is not
    bound: Bound | None = None  # The bound that the plan is measured by, with its cut, or None
    planner: str = ""  # Name of the planner
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # Its parameters, by name
    version: str = ""  # Version of Coppice that made the plan (empty: this one)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if self.forest is not None and self.schedule is not None:
            raise InputError("a plan holds either a forest or a schedule, found both: give one.")
        body = self.body
        if body.collective is not self.problem.collective:
            raise InputError(
                f"expected a plan for {self.problem.collective}, found {body.collective}: plan the same one."
            )
        theirs, ours = body.topology, self.problem.topology
        if theirs is not ours and theirs.sha256 != ours.sha256:
            raise InputError(
                f"expected a plan on the topology {ours.name!r}, found one on {theirs.name!r}: plan again."
            )
        root = -1 if self.problem.root is None else self.problem.root
        if self.schedule is not None and self.schedule.root != root:
            raise InputError(
                f"expected a schedule with root {root}, found {self.schedule.root}: use the problem's."
            )

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)).plan
        Plan(algbw 2.6667 GB/s by forest: Forest(all_gather on 'ring of 4': 8 trees, 24 edges, total weight 8))
        """
        by = f" by {self.planner[:40]}" if self.planner else ""
        return f"Plan(algbw {rate_text(self.algbw_gb_per_s)} GB/s{by}: {self.body!r})"

    @property
    def body(self) -> Forest | Schedule:
        """The forest or the schedule."""
        if self.forest is not None:
            return self.forest
        if self.schedule is not None:
            return self.schedule
        raise InputError("a plan holds either a forest or a schedule, found none: give one.")

    @property
    def trees(self) -> Trees:
        """Trees of a forest as objects, templates expanded.

        Raises:
            InputError: If the plan is no forest.
        """
        if self.forest is not None:
            return Trees(self.forest)
        raise InputError(
            f"expected a forest, found transfers by {self.planner or 'an unknown planner'}: look at plan.schedule."
        )

    @property
    def topology(self) -> Topology:
        """The topology of the problem."""
        return self.problem.topology
