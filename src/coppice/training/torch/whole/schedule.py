"""Execute a whole-step plan during training: ``schedule(model, optimizer, "centauri")``.

The model is of :class:`TensorParallelModule` parts. Some steps are recorded with everything in one piece, in the plain
decomposition and order; compute times of the slowest rank and measured times of every phase become the operations that
the policy plans. Then sections run in its pieces, all-reduces and all-gathers by its decompositions and on its
channels, and everything in the order of its simulation: rows of a batch are computed while those before them are
all-reduced, weight gradients overlap with all-reduces of input gradients, weights are gathered ahead, and gradients
averaged last.
All gradients are there when ``backward()`` returns.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import OperationChoice, WholePlan, WholePolicy
from coppice.topology.model import Topology
from coppice.training.torch.core.agree import first_other, gathered, trained_parameters
from coppice.training.torch.core.attached import after_backward
from coppice.training.torch.core.measure import (
    BOUNDARY,
    COMPUTE,
    GRADIENT,
    DeviceClock,
    StepEvent,
    StepRecord,
    slowest_totals,
    total_seconds,
    whats,
)
from coppice.training.torch.core.optimizer import (
    PartitionedOptimizer,
    ScheduledOptimizer,
    SynchronousSteps,
    partitioned_norm,
)
from coppice.training.torch.whole.execution import collective_run
from coppice.training.torch.whole.executors import TaskExecutor
from coppice.training.torch.whole.grids import PhaseGroups
from coppice.training.torch.whole.orders import OrderedPlan, agreed_plan, require_agreed, whole_policy
from coppice.training.torch.whole.passes import SectionPass
from coppice.training.torch.whole.recorded_steps import (
    RecordedStep,
    SectionModel,
    StepLayout,
)
from coppice.training.torch.whole.sections import TensorParallelModule
from coppice.training.torch.whole.sharded import ShardedWeights, require_by_element

_STATE_KEY = "whole_plan"
_CUT_STEPS = 3
"""Steps with sections in two pieces, which tell what a piece costs; the first is not timed."""


class WholeOptimizer(PartitionedOptimizer):
    """See :class:`ScheduledOptimizer`."""

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 (as in torch)
        """Zero gradients, including those accumulated on this rank."""
        super().zero_grad(set_to_none)
        self.schedule.forget()


class WholeSchedule(SynchronousSteps):
    """A whole-step plan executed on a model.

    Args:
        model: The model.
        optimizer: Its optimizer.
        policy: What makes the plan.
        groups: Where collectives run.
        data: The ranks that have the same share; None: all, if sections are not shared.
        network: Bytes per second and seconds of a step on channels ``inside`` and ``between``; None: measured.
        recorded: Steps that are recorded.
        timeout_s: Longest wait for another rank.
        shard: Every replica keeps a part of the weights of sections.
        ahead: Sections whose weights may be gathered before the one that computes is over.

    Attributes:
        policy: What makes the plan.
        accumulates: Backward passes only add up.
        ordered: The plan and its order; the plain one while steps are recorded.
        operations: The graph, and which of its operations is which.
        planned: The policy's plan is carried out.

    Raises:
        InputError: If the model or the optimizer does not fit, or groups are missing.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: WholePolicy,
        groups: PhaseGroups,
        *,
        data: dist.ProcessGroup | None,
        network: Mapping[str, tuple[float, float]] | None,
        recorded: int,
        timeout_s: float,
        shard: bool = False,
        ahead: int = 1,
    ) -> None:
        self.policy, self.groups, self.planned, self.accumulates = policy, groups, False, False
        self._recorded, self._timeout_s = recorded, timeout_s
        self._data = data
        if shard:
            require_by_element(optimizer)
        self._trained = trained_parameters(model, optimizer)[1]
        self._model = SectionModel(
            model, groups, data, network, beside=policy.beside, shard=shard, ahead=ahead
        )
        self._sharded = [each.sharded for each in self._model.entries if each.sharded is not None]
        for weights in self._sharded:
            weights.shard_state(optimizer)
        self.entries, self.device = self._model.entries, self._model.device
        self._clock = DeviceClock(self.device)
        self._found: RecordedStep | None = None
        self._steps = 0
        self._record = StepRecord(DeviceClock())  # of plain steps
        self._cut: StepRecord | None = None  # of steps with sections in two pieces, when those are over
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, place=place: self._recorded_in.mark(GRADIENT, place)
            )
            for place, (_, parameter) in enumerate(self._model.alike)
        ]
        self._passes: list[SectionPass] = []
        self._in_step = self._in_backward = False
        self._left = self._record.now()
        self._executor: TaskExecutor | None = None
        self._plain = self._model.plain()
        self._adopt(self._plain, OrderedPlan.of(self._plain.operations.graph))
        for each in self.entries:
            each.section.executor = self
        self.optimizer = WholeOptimizer.of(optimizer, self)

    @property
    def predicted_seconds(self) -> float:
        """Simulated step time of the plan; 0 during recording."""
        return self.ordered.predicted_seconds if self.planned else 0.0

    @property
    def launched(self) -> dict[str, list[str]]:
        """Names of the last step's tasks in launch order, by channel."""
        return self.executor.launched

    @property
    def executor(self) -> TaskExecutor:
        """Executor of the plan."""
        assert self._executor is not None
        return self._executor

    def forget(self) -> None:
        """Drop gradients accumulated on this rank."""
        for weights in self._sharded:
            weights.forget()

    def gradient_norm(self, norm_type: float) -> torch.Tensor:
        """Norm of all gradients, each shard counted once."""
        own = {id(p): each for each in self.entries for p in each.trained}
        world, replicas = len(self.groups.grid.ranks), len(self.groups.of(self._data).ranks)
        gradients: list[tuple[torch.Tensor, float | None]] = []
        for parameter in self._trained:
            if parameter.grad is None or not parameter.grad.numel():
                continue
            entry = own.get(id(parameter))
            shares = 1
            if entry is not None:
                shares = len(self.groups.of(entry.section.group).ranks) if entry.section.group else 1
                shares *= replicas if entry.sharded else 1
            gradients.append((parameter.grad, None if entry is None else world / shares))
        return partitioned_norm(gradients, norm_type, self.groups.parent, self.device)

    def close(self) -> None:
        """See :meth:`ScheduledOptimizer.close`: sections use plain all-reduces, and weights are unsharded."""
        self.executor.close()
        for hook in self._hooks:
            hook.remove()
        for each in self.entries:
            each.section.executor = None
            if each.sharded is not None:
                each.sharded.close(self.optimizer)
                each.section.weights = each.sharded = None
        self.optimizer.release()

    def state(self) -> dict[str, Any]:
        """See :meth:`LateSteps.state`: the plan as plain values; empty during recording."""
        if not self.planned or self._found is None:
            return {}
        plan = self.ordered.plan
        found = {
            "times": dict(self._found.times),
            "ready": list(self._found.ready),
            "elements": list(self._found.elements),
            "choices": {
                name: [each.pieces, each.decomposition, list(each.channels)]
                for name, each in plan.choices.items()
            },
            "ranks": dict(plan.ranks),
            "sequence": list(self.ordered.sequence),
            "predicted_seconds": self.ordered.predicted_seconds,
        }
        return {_STATE_KEY: found}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :meth:`LateSteps.load`: the plan is used from the next step on; collective over the ranks."""
        if self._in_step:
            raise InputError(
                "expected a plan to be loaded between steps, found one under way: run the backward pass first."
            )
        if _STATE_KEY not in state:
            return
        state = state[_STATE_KEY]
        self._found = RecordedStep(dict(state["times"]), list(state["ready"]), list(state["elements"]))
        layout = self._model.layout(self._found, measure=False)
        plan = WholePlan(
            choices={
                name: OperationChoice(pieces, decomposition, tuple(channels))
                for name, (pieces, decomposition, channels) in state["choices"].items()
            },
            ranks=state["ranks"],
        )
        ordered = OrderedPlan.of(layout.operations.graph, plan, sequence=state["sequence"])
        require_agreed(ordered)
        self._settle(layout, replace(ordered, predicted_seconds=state["predicted_seconds"]))

    def section(self, section: TensorParallelModule, x: torch.Tensor) -> torch.Tensor:
        """See :class:`SectionExecutor`."""
        number = len(self._passes) if self._in_step and not self._in_backward else 0
        if self._in_step and (number == len(self.entries) or self._in_backward):
            raise InputError(
                "expected a backward pass after each forward pass of training, found another forward pass: run what is "
                "not trained under torch.no_grad(), and sections once each."
            )
        entry = self.entries[number]
        if entry.section is not section:
            name = next((each.name for each in self.entries if each.section is section), "another")
            raise InputError(
                f"expected sections to run in the order of the model, each once, found {name} in the place of "
                f"{entry.name}: define them in the order in which they run."
            )
        if not self._in_step:
            self._begin_step()
        self._gap(self.operations.sections[number].before)
        made = SectionPass(self, number, x)
        self._passes.append(made)
        found = made.forward(x)
        self.left()
        return found

    def _begin_step(self) -> None:
        """Start a step at the first section: all-gathers may run in plan order."""
        self._in_step = True
        self._recorded_in.begin()
        runs = {}
        for each, own in zip(self.entries, self.operations.sections, strict=True):
            for operation in {own.gather, own.second_gather} - {-1}:
                assert each.sharded is not None
                buffers = each.sharded.gather_buffers()
                run = collective_run(self.ordered, operation, buffers, self.groups)
                runs[operation] = each.sharded.gathered(run)
        self.executor.begin(runs)

    def backward_starts(self, made: SectionPass) -> None:
        """Called when a section's backward pass starts."""
        if all(each is not made for each in self._passes):
            raise InputError(
                "expected one backward pass after each forward pass, found another: do not retain the graph."
            )
        if made is self._passes[-1] and not self._in_backward:
            self._in_backward = True
            after_backward(self._end_backward)
            self._recorded_in.mark(BOUNDARY)
            self._mean(self.operations.early)
            self._gap(self.operations.turn)

    def left(self) -> None:
        """Called when a section's backward pass has returned to autograd."""
        self._left = self._record.now()

    def mean(self, number: int) -> None:
        """Called when the gradients of a section are available: queue their averaging."""
        self._mean(self.operations.sections[number].gradients)

    def _gap(self, operation: int) -> None:
        """End the training program's own computation."""
        self._note(self.ordered.graph.operations[operation].name)
        self.executor.advance(operation)

    def _note(self, name: str) -> None:
        """Record the training program's own computation, on a device when it is over."""
        if not self.planned:
            self._clock.synchronize()
            self._recorded_in.add(StepEvent(COMPUTE, name, self._left, self._record.now()))

    @property
    def _recorded_in(self) -> StepRecord:
        return self._cut or self._record

    def _mean(self, operation: int) -> None:
        """Copy gradients into their bucket; it is averaged in plan order."""
        if operation < 0:
            return
        if self.accumulates:
            self.executor.bind(operation, lambda *_: None)
            return
        bucket = self._means[operation]
        bucket.fill()
        buffers = bucket.buffers(self._data if bucket.shared else None)
        run = collective_run(self.ordered, operation, buffers, self.groups)
        if isinstance(bucket, ShardedWeights):
            run = bucket.scattered(run, self.ordered.phase_tasks(operation))
        self.executor.bind(operation, run)

    def _end_backward(self) -> None:
        """Called when autograd has finished."""
        self._mean(self.operations.late)
        self._note("end")
        self.executor.advance()
        self.executor.wait_all()
        if not self.accumulates:
            for bucket in self._means.values():
                bucket.hand_out()
        self._passes, self._in_step, self._in_backward = [], False, False
        if not self.planned:
            self._record_step()
        self.left()

    def _record_step(self) -> None:
        """End a recorded step: some are plain, some have sections in two chunks, then the plan is made."""
        self._steps += 1
        first = self._steps == (1 if self._cut is None else self._recorded + 1)
        self._recorded_in.end(counts=not first)  # the first of each kind is not timed
        if self._steps < self._recorded or self.accumulates:
            return
        if self._steps >= self._recorded + _CUT_STEPS or not self._cut_decisions():
            self._plan()
        elif self._cut is None:
            self._cut = StepRecord(DeviceClock())
            self._steps = self._recorded
            plan = WholePlan(choices={name: OperationChoice(2) for name in self._cut_decisions()})
            self._adopt(self._plain, OrderedPlan.of(self.operations.graph, plan))

    def _cut_decisions(self) -> list[str]:
        """Decisions about sections that may be split."""
        return [name for name in self.operations.graph.decisions() if name.startswith("sums of ")]

    def _adopt(self, layout: StepLayout, ordered: OrderedPlan) -> None:
        """Use a plan from now on."""
        if self._executor is not None:
            self._executor.close()
        self.operations, self.ordered, self._means = layout.operations, ordered, layout.means
        record = None if self.planned else self._recorded_in
        self._executor = TaskExecutor(ordered, self._model.channels, self.device, self._timeout_s, record)

    def _plan(self) -> None:
        """Build the graph from all ranks' records, and adopt the policy's plan for it."""
        elements = [each.elements for each in self.entries]
        plain, cut = (
            [total_seconds(each) for each in one.steps] for one in (self._record, self._recorded_in)
        )
        last = self._recorded_in.last
        turn = whats(last, BOUNDARY, GRADIENT).index(None)
        own = plain, cut, sorted(set(whats(last, BOUNDARY, GRADIENT)[:turn])), elements
        everyone = gathered(own, self.groups.parent)
        times = slowest_totals([each[0] for each in everyone])
        if self._cut is not None:
            halved = slowest_totals([each[1] for each in everyone])
            more = [halved[name] - times[name] for name in halved if name.endswith((" forward", " backward"))]
            times["piece"] = max(statistics.median(more), 0.0)
        self._found = RecordedStep(times, everyone[0][2], everyone[0][3])
        other = first_other([each[3] for each in everyone])
        if other is not None:
            raise InputError(
                f"expected batches alike on all ranks, found sums of {everyone[other][3]} elements on rank {other} "
                f"where rank 0 has {everyone[0][3]}: give all ranks as many rows."
            )
        layout = self._model.layout(self._found)
        held = [(parameter, parameter.grad) for _, parameter in self._model.alike]
        self._settle(layout, agreed_plan(layout.operations.graph, self.policy))
        for parameter, gradient in held:
            parameter.grad = gradient  # in the old buckets, until the next step has used them

    def _settle(self, layout: StepLayout, ordered: OrderedPlan) -> None:
        """End the recording with the policy's plan."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.planned = [], True
        self._adopt(layout, ordered)


def schedule_whole_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str | WholePolicy,  # `syndicate` or `centauri`, or such a policy
    *,
    # Bytes per second and seconds of a step on channels `inside` and `between`; None: measured
    network: Mapping[str, tuple[float, float]] | tuple[float, float] | None,
    recorded: int,  # Steps that are recorded. Three more tell what pieces cost.
    timeout_s: float,
    # The ranks that have the same share; None: all, if sections are not shared
    data: dist.ProcessGroup | None = None,
    # Ranks of a box, which fill boxes one after the other; None: as the topology says, or torchrun by
    # LOCAL_WORLD_SIZE
    ranks_of_box: int | None = None,
    topology: Topology | None = None,  # The network of the ranks, whose hosts are boxes
    # Every replica keeps a part of the weights of sections, gathered before they are used
    shard: bool = False,
    ahead: int = 1,  # Sections whose weights may be gathered before the one that computes is over
    **settings: Any,
) -> ScheduledOptimizer:
    """Train a model of :class:`TensorParallelModule` modules under a whole-step plan."""
    if ahead < 0:
        raise InputError(f"expected weights gathered 0 sections ahead or more, found `ahead={ahead}`.")
    if isinstance(network, tuple):
        raise InputError(
            f"expected figures of the network for inside and between boxes, found one pair {network}: give "
            '`network={"inside": (bytes per second, seconds), "between": (...)}`.'
        )
    if ranks_of_box is None:
        given = None if topology is None else _ranks_of_box(topology)
        ranks_of_box = given or int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    made = WholeSchedule(
        model,
        optimizer,
        whole_policy(policy, settings),
        PhaseGroups(ranks_of_box=ranks_of_box),
        data=data,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        shard=shard,
        ahead=ahead,
    )
    return made.optimizer


def _ranks_of_box(topology: Topology) -> int:
    """Ranks per host."""
    hosts = [int(topology.host[node]) for node in topology.rank_nodes]
    if len(hosts) != dist.get_world_size():
        raise InputError(f"expected a topology of {dist.get_world_size()} ranks, found one of {len(hosts)}.")
    counts = Counter(host if host >= 0 else -1 - rank for rank, host in enumerate(hosts))
    found = next(iter(counts.values()))
    runs = sum(a != b or a < 0 for a, b in zip(hosts, [None, *hosts], strict=False))
    if len(set(counts.values())) > 1 or runs != len(counts):
        raise InputError(
            "expected hosts of as many ranks each, one host after the other, found "
            f"{', '.join(map(str, counts.values()))} of them in another order or number: say `ranks_of_box`."
        )
    return found
