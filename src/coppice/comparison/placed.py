"""Results of :func:`coppice.comparison.placing.placement`: times of parallelism placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Shown
from coppice.errors import UnreachableError
from coppice.planners.synthesis.p2.lowering import (
    GroupCall,
    calls_of,
    chunks_of,
    group_schedule,
    transfers_of,
)
from coppice.planners.synthesis.p2.placements import AxisPlacement
from coppice.planners.synthesis.p2.reductions import Program
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify_plan
from coppice.simulation.models import Model
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import (
        PlacedAxesJson,
        PlacementJson,
        ReductionJson,
        ReductionProgramJson,
    )

_MOST_VERIFIED = 3_000_000
"""Transfers of the best programs that are verified."""


@dataclass(frozen=True, kw_only=True)
class TimedProgram:
    """A reduction program with its time."""

    program: Program  # The program; empty where there is nothing to reduce
    levels: tuple[str, ...]  # Names of the levels of the group
    call_us: tuple[float, ...]  # Time of each call in microseconds
    blocks: tuple[int, ...]  # Blocks in which each call sends its data along chains

    @property
    def time_us(self) -> float:
        """Time of all calls, one after the other."""
        return sum(self.call_us)

    @property
    def words(self) -> str:
        """Description of the program."""
        return ", ".join(each.words(self.levels) for each in self.program) or "nothing to reduce"

    @property
    def short(self) -> str:
        """Abbreviation of the program."""
        return ", ".join(each.short(self.levels) for each in self.program) or "none"

    def record(self) -> ReductionProgramJson:
        """The program as JSON values."""
        return {
            "words": self.words,
            "calls": [
                {
                    "slice": each.slice_name(self.levels),
                    "form": each.form.value,
                    "ancestor": each.ancestor_name(self.levels),
                    "operation": each.operation.value,
                    "time_us": time_us,
                }
                for each, time_us in zip(self.program, self.call_us, strict=True)
            ],
            "time_us": self.time_us,
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Reduced:
    """Times of one reduction under one placement."""

    axes: tuple[str, ...]  # The axes that are reduced together
    size_bytes: int  # M of each group
    groups: NDArray[np.int64]  # `(groups, members)` ranks
    shape: tuple[tuple[str, int], ...]  # Levels of a group with their cardinalities
    bound_us: float  # No all-reduce of all groups at once takes less
    bound_words: str  # What the bound follows from
    programs: tuple[TimedProgram, ...]  # All programs that the network can carry, the fastest first
    left_out: int  # Programs that would need GPUs to pass on what is not theirs

    @property
    def best(self) -> TimedProgram:
        """The fastest program."""
        return self.programs[0]

    def record(self, *, most: int | None = None) -> ReductionJson:
        """The figures as JSON values.

        Args:
            most: Programs to list; None: all.
        """
        return {
            "reduced_axes": list(self.axes),
            "axes": list(self.axes),
            "size_bytes": self.size_bytes,
            "group_count": len(self.groups),
            "groups": len(self.groups),
            "group_size": int(self.groups.shape[1]),
            "levels": dict(self.shape),
            "program": self.best.words,
            "time_us": self.best.time_us,
            "bound_us": self.bound_us,
            "bound_in_words": self.bound_words,
            "programs_found": len(self.programs),
            "programs_left_out": self.left_out,
            "programs": [each.record() for each in self.programs[:most]],
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PlacedAxes:
    """One parallelism placement with the times of its reductions."""

    placement: AxisPlacement  # The placement
    reductions: tuple[Reduced, ...]  # The reductions, one after the other

    @property
    def time_us(self) -> float:
        """Time of all reductions with their best programs."""
        return sum(each.best.time_us for each in self.reductions)

    @property
    def bound_us(self) -> float:
        """Lower bound on the time of these reductions one after the other."""
        return sum(each.bound_us for each in self.reductions)

    @property
    def program(self) -> str:
        """Description of the best program of each reduction."""
        return "; ".join(each.best.words for each in self.reductions)

    def record(self, *, most: int | None = None) -> PlacedAxesJson:
        """The figures as JSON values; ``most`` is how many programs of each reduction to list, None: all."""
        return {
            "placement": str(self.placement),
            "matrix": [list(row) for row in self.placement.matrix],
            "program": self.program,
            "time_us": self.time_us,
            "bound_us": self.bound_us,
            "reductions": [each.record(most=most) for each in self.reductions],
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PlacementResult(Shown):
    """All parallelism placements with their times."""

    topology: Topology  # The cluster
    hierarchy: dict[str, int]  # Its levels with their cardinalities, from the outside in
    devices: tuple[int, ...]  # Rank of each device in the order of the hierarchy
    axes: dict[str, int]  # Size of each axis
    model: Model  # The model of time
    placed: tuple[PlacedAxes, ...]  # The placements, the fastest first
    # The placement of a mesh with the last axis fastest, or None where there is no such one
    default: PlacedAxes | None
    number: int  # Number of all placements; more than in `placed` where some have no routes, or Ctrl-C came
    # Groups of the best placement whose all-reduces were verified, of all reductions; None where their
    # transfers are too many
    verified: int | None = None
    interrupted: bool = False  # Ctrl-C ended the search; the best is the best found until then

    def __repr__(self) -> str:
        best = self.best
        return f"<{self.number} placements on {self.topology.name}: best {best.placement}, {best.time_us:.6g} us>"

    @property
    def best(self) -> PlacedAxes:
        """The fastest placement."""
        return self.placed[0]

    @property
    def default_factor(self) -> float | None:
        """Time of the default placement over that of the best; None without a default."""
        if self.default is None:
            return None
        return self.default.time_us / self.best.time_us if self.best.time_us else 1.0

    @property
    def spread(self) -> float:
        """Time of the slowest program of the slowest placement over that of the best."""
        slowest = max(sum(each.programs[-1].time_us for each in one.reductions) for one in self.placed)
        return slowest / self.best.time_us if self.best.time_us else 1.0

    def plans(self, reduction: int = 0) -> list[Plan]:
        """All-reduce of each group of a reduction, by the best program of the best placement.

        Each is on the part of the cluster that its group has, with ranks in the order of the group; none where there is
        nothing to reduce.

        Args:
            reduction: Number of the reduction.
        """
        chosen = self.best.reductions[reduction]
        sizes = [n for _, n in chosen.shape]
        calls = calls_of(chosen.best.program, sizes, chosen.best.blocks)
        if not calls:
            return []
        chunks = chunks_of(chosen.best.program, sizes, chosen.best.blocks)
        relay = _needs_relay(self.topology, chosen, calls, chunks)
        plans = []
        for members in chosen.groups:
            schedule = group_schedule(self.topology, members, calls, chunks, relay_gpus=relay)
            problem = Problem(schedule.topology, Collective.ALL_REDUCE)
            plans.append(
                Plan(
                    problem=problem,
                    inv_rate=body_loads(schedule, problem).inv_rate,
                    schedule=schedule,
                    planner="p2",
                    parameters={"program": chosen.best.words},
                )
            )
        return plans

    def record(self, *, most: int | None = None) -> PlacementJson:
        """The figures as JSON values; ``most`` is how many programs of each placement to list, None: all."""
        groups = [each.groups.tolist() for each in self.best.reductions]
        default = None if self.default is None else self.default.record(most=most)
        return {
            "topology": self.topology.name,
            "topology_sha256": self.topology.sha256,
            "ranks": self.topology.num_ranks,
            "hierarchy": self.hierarchy,
            "devices": list(self.devices),
            "axes": self.axes,
            "model_name": self.model.name,
            "model": self.model.name,
            "timing": "each call simulated with all groups at once, calls one after the other",
            "placements": self.number,
            "best": {
                **self.best.record(most=most),
                "reduction_groups": groups,
                "groups": groups,
                "model_name": self.model.name,
                "model": self.model.name,
                "verified_groups": self.verified,
            },
            "default_placement": default,
            "default": default,
            "default_factor": self.default_factor,
            "spread": self.spread,
            "interrupted": self.interrupted,
            "all": [each.record(most=most) for each in self.placed],
        }


def _needs_relay(topology: Topology, chosen: Reduced, calls: Sequence[GroupCall], chunks: int) -> bool:
    """Whether the best program needs GPUs of other groups to pass on what is not theirs."""
    try:
        for members in chosen.groups:
            group_schedule(topology, members, calls, chunks)
    except UnreachableError:
        return True
    return False


def verified_groups(found: PlacementResult) -> int | None:
    """Number of groups whose all-reduces verify under the best placement; None if there are too many transfers."""
    count = 0
    for number, reduced in enumerate(found.best.reductions):
        sizes = [n for _, n in reduced.shape]
        transfers = len(reduced.groups) * transfers_of(reduced.best.program, sizes, reduced.best.blocks)
        if transfers > _MOST_VERIFIED:
            return None
        for plan in found.plans(number):
            verify_plan(plan).require_ok()
            count += 1
    return count
