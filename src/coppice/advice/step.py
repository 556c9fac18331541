"""What changes bring to the step of a training job, whose collectives take what NCCL reckons with.

Exchanges beside computation take a multiprocessor for each of their channels (:mod:`coppice.advice.channels`): a limit
on channels makes them longer, and gives the products beside them back what it takes from them. Every limit is tried,
for all groups at once, as a variable sets it, and for each group alone, as the options of a process group do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coppice.advice.changes import Change
from coppice.advice.channels import BUDGETS, LIMIT, channels_of_call, contention_of, most_channels
from coppice.advice.nccl import TUNED, NcclState, nccl_rows
from coppice.advice.rows import AdviceRow
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.costs.group import CollectiveCost, CollectiveCosts, RankGroup
from coppice.iteration.costs.simulated import costs_named
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.step.plan import PROCESSORS

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import AdvisedStepJson, ChannelBudgetJson


@dataclass(eq=False)
class NcclCosts:
    """Time of each collective by NCCL's own cost model, of one group by itself; sends are simulated."""

    state: NcclState
    processors: int = 0  # Of a GPU, which channels take from computation beside them; 0: they take none
    limits: Mapping[RankGroup, int] = field(default_factory=dict)  # Limits on the channels of single groups
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
        state = self.of(group)
        (pick, *_) = state.picks(what, [size])[size]
        if not self.processors:
            return CollectiveCost((pick.time_us or 0.0) / 1e6)
        channels = channels_of_call(
            state.communicator()[0], what, pick, size, most_channels(state.environment)
        )
        taken = contention_of(channels, self.processors)
        return CollectiveCost((pick.time_us or 0.0) / 1e6, loads={PROCESSORS: taken} if taken else {})

    def of(self, group: RankGroup) -> NcclState:
        """The first of the groups, by itself."""
        if group not in self._states:
            own = self.state.of(group.members(self.state.topology.num_ranks)[0])
            if group in self.limits:
                own = replace(own, environment={**own.environment, LIMIT: str(self.limits[group])})
            self._states[group] = own
        return self._states[group]


@dataclass(frozen=True, kw_only=True)
class ChannelBudget:
    """A limit on the channels of a group, or of all of them, and what it makes of the step."""

    group: str  # Whose channels: `all groups`, or the ranks of one
    channels: int | None  # At most so many; None: as many as NCCL takes
    exchange_us: float  # Time of all its collectives by themselves, each kind and size once
    seconds: float  # An iteration

    def record(self) -> ChannelBudgetJson:
        """The limit as JSON values."""
        return {
            "group": self.group,
            "channels": self.channels,
            "communication_seconds": self.exchange_us / 1e6,
            "iteration_seconds": self.seconds,
        }


STEP_WORTH = 0.005
"""Share of an iteration that a limit on channels has to save before it is advised."""


@dataclass(frozen=True, kw_only=True)
class StepAdvice:
    """A step of a job as it is, and after all changes."""

    name: str  # Name of the model
    picked_seconds: float  # An iteration with what NCCL picks today
    best_seconds: float  # An iteration after all changes
    unlimited_seconds: float  # An iteration after all of them but a limit on channels
    rows: tuple[AdviceRow, ...]  # Its collectives by group
    budgets: tuple[ChannelBudget, ...] = ()  # Limits on channels, for all groups and then for each
    changes: tuple[Change, ...] = ()  # The limit that is worth it, none where none is

    def record(self) -> AdvisedStepJson:
        """The step as JSON values."""
        return {
            "job": self.name,
            "picked_seconds": self.picked_seconds,
            "best_seconds": self.best_seconds,
            "rows": [row.record() for row in self.rows],
            "channel_budgets": [each.record() for each in self.budgets],
        }


def step_advice(job: TrainingJob, state: NcclState, changes: Sequence[Change]) -> StepAdvice:
    """Simulate a step of a job on a cluster before and after changes, and under limits on channels.

    Raises:
        InputError: If the job runs on boxes of several kinds, or its ranks are not those of the cluster.
    """
    if len(job.machines.kinds) > 1 or job.machines.gpus != state.topology.num_ranks:
        raise InputError(
            f"expected a job on the {state.topology.num_ranks} ranks of {state.topology.name}, found one on "
            f"{job.machines.gpus}: give the job this cluster and a layout for it (`parallel`)."
        )
    # Where a job says what communication takes from computation, that is measured, and channels add nothing to it.
    processors = 0 if job.run.contention else job.cluster.device.processors
    before, after = (NcclCosts(each, processors) for each in (state, state.after(changes)))
    today, changed = (_seconds(job, costs) for costs in (before, after))
    rows: list[AdviceRow] = []
    for collective, size, group in before.calls:
        rows += nccl_rows(before.of(group), [collective], [size], changes, group=name_of(group))
    best = after if changed < today else before
    least = min(today, changed)
    budgets = list(_budgets(job, best, least))
    chosen = _worth_it(budgets, least, state) if budgets else None
    return StepAdvice(
        name=job.name,
        picked_seconds=today,
        best_seconds=least if chosen is None else chosen[0].seconds,
        unlimited_seconds=least,
        rows=tuple(sorted(rows, key=lambda row: (row.group, row.collective, row.size_bytes))),
        budgets=tuple(budgets),
        changes=() if chosen is None else (chosen[1],),
    )


def name_of(group: RankGroup) -> str:
    """A group in words.

    >>> name_of(RankGroup(8, 1)), name_of(RankGroup(4, 8))
    ('8 ranks', '4 ranks 8 apart')
    """
    return f"{group.ranks} ranks" + (f" {group.stride} apart" if group.stride > 1 else "")


def _budgets(job: TrainingJob, costs: NcclCosts, seconds: float) -> Iterator[ChannelBudget]:
    """No limit, and every limit below what is taken, for all groups and for each; none where channels take nothing."""
    groups = list(dict.fromkeys(group for *_, group in costs.calls))
    taken = {group: _channels(costs, group) for group in groups}
    if not costs.processors or not groups or most_channels(costs.state.environment) is not None:
        return
    sets = [("all groups", groups)]
    if len(groups) > 1:
        sets += [(name_of(group), [group]) for group in groups]
    for name, members in sets:
        yield ChannelBudget(
            group=name, channels=None, exchange_us=_exchange_us(costs, members), seconds=seconds
        )
        for most in (each for each in BUDGETS if each < max(taken[group] for group in members)):
            # What no limit reaches is priced once for all of them.
            fewer = NcclCosts(costs.state, costs.processors, dict.fromkeys(members, most))
            time = _seconds(job, fewer)
            yield ChannelBudget(
                group=name, channels=most, exchange_us=_exchange_us(fewer, members), seconds=time
            )


def _channels(costs: NcclCosts, group: RankGroup) -> int:
    """Channels that the calls of a group take at most."""
    state = costs.of(group)
    comm, _ = state.communicator()
    return max(
        channels_of_call(comm, what, state.picks(what, [size])[size][0], size, None)
        for what, size, whose in costs.calls
        if whose == group
    )


def _exchange_us(costs: NcclCosts, groups: Sequence[RankGroup]) -> float:
    return sum(
        costs.of(group).picks(what, [size])[size][0].time_us or 0.0
        for what, size, group in costs.calls
        if group in groups
    )


def _worth_it(
    budgets: Sequence[ChannelBudget], seconds: float, state: NcclState
) -> tuple[ChannelBudget, Change] | None:
    """The limit that saves most, for all groups where that is about as good; None where none is worth it."""
    limits = [each for each in budgets if each.channels is not None]
    everywhere = [each for each in limits if each.group == budgets[0].group]
    best = min(limits, key=lambda each: each.seconds, default=None)
    if best is None or best.seconds > seconds * (1 - STEP_WORTH):
        return None
    alike = min(everywhere, key=lambda each: each.seconds)
    if alike.seconds <= best.seconds + STEP_WORTH * seconds / 2:
        best = alike
    if best in everywhere:
        before = state.environment.get(LIMIT)
        return best, Change(
            name=f"{LIMIT}={best.channels}",
            what=f"export {LIMIT}={best.channels}: collectives beside products leave them processors",
            undo=f"unset {LIMIT}" if before is None else f"export {LIMIT}={before}",
            sets={LIMIT: str(best.channels)},
        )
    return best, Change(
        name=f"channels of {best.group}",
        what=(
            f"max_ctas = {best.channels} in the options of the process groups of {best.group} "
            "(ProcessGroupNCCL.Options().config): their collectives leave products processors"
        ),
        undo="leave max_ctas out",
    )


def _seconds(job: TrainingJob, costs: NcclCosts) -> float:
    kind = job.machines.kinds[0]
    machines = replace(job.machines, kinds=(replace(kind, cluster=replace(kind.cluster, costs=costs)),))
    return simulated_job(job, machines=machines).seconds
