"""What changes bring to the step of a training job, whose collectives take what NCCL reckons with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coppice.advice.changes import Change
from coppice.advice.nccl import TUNED, NcclState, nccl_rows
from coppice.advice.rows import AdviceRow
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.costs.group import CollectiveCost, CollectiveCosts, RankGroup
from coppice.iteration.costs.simulated import costs_named
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.job import TrainingJob
from coppice.topology.operations import subset


@dataclass(eq=False)
class NcclCosts:
    """Time of each collective by NCCL's own cost model, of one group by itself; sends are simulated."""

    state: NcclState
    calls: dict[tuple[Collective, int, RankGroup], None] = field(default_factory=dict)  # What was priced
    _states: dict[RankGroup, NcclState] = field(default_factory=dict)
    _sends: CollectiveCosts | None = None

    def cost(
        self, collective: str, size_bytes: float, group: RankGroup, *, gradients: bool = False
    ) -> CollectiveCost:
        """See :class:`coppice.iteration.costs.group.CollectiveCosts`."""
        if group.ranks == 1 or size_bytes <= 0:
            return CollectiveCost(0.0)
        if collective == "send" or Collective.named(collective) not in TUNED:
            if self._sends is None:
                self._sends = costs_named("nccl", self.state.topology)
            assert self._sends is not None
            return self._sends.cost(collective, size_bytes, group, gradients=gradients)
        what, size = Collective.named(collective), round(size_bytes)
        self.calls[what, size, group] = None
        (pick, *_) = self.of(group).picks(what, [size])[size]
        return CollectiveCost((pick.time_us or 0.0) / 1e6)

    def of(self, group: RankGroup) -> NcclState:
        """The first of the groups, by itself."""
        if group not in self._states:
            topology = self.state.topology
            members = group.members(topology.num_ranks)[0]
            self._states[group] = replace(self.state, topology=subset(topology, members))
        return self._states[group]


@dataclass(frozen=True, kw_only=True)
class StepAdvice:
    """A step of a job as it is, and after all changes."""

    name: str  # Name of the model
    picked_seconds: float  # An iteration with what NCCL picks today
    best_seconds: float  # An iteration after all changes
    rows: tuple[AdviceRow, ...]  # Its collectives by group


def step_advice(job: TrainingJob, state: NcclState, changes: Sequence[Change]) -> StepAdvice:
    """Simulate a step of a job on a cluster before and after changes.

    Raises:
        InputError: If the job runs on boxes of several kinds, or its ranks are not those of the cluster.
    """
    if len(job.machines.kinds) > 1 or job.machines.gpus != state.topology.num_ranks:
        raise InputError(
            f"expected a job on the {state.topology.num_ranks} ranks of {state.topology.name}, found one on "
            f"{job.machines.gpus}: give the job this cluster and a layout for it (`parallel`)."
        )
    before, after = NcclCosts(state), NcclCosts(state.after(changes))
    seconds = [_seconds(job, costs) for costs in (before, after)]
    rows: list[AdviceRow] = []
    for collective, size, group in before.calls:
        name = f"{group.ranks} ranks" + (f" {group.stride} apart" if group.stride > 1 else "")
        rows += nccl_rows(before.of(group), [collective], [size], changes, group=name)
    return StepAdvice(
        name=job.name,
        picked_seconds=seconds[0],
        best_seconds=min(seconds),
        rows=tuple(sorted(rows, key=lambda row: (row.group, row.collective, row.size_bytes))),
    )


def _seconds(job: TrainingJob, costs: NcclCosts) -> float:
    kind = job.machines.kinds[0]
    machines = replace(job.machines, kinds=(replace(kind, cluster=replace(kind.cluster, costs=costs)),))
    return simulated_job(job, machines=machines).seconds
