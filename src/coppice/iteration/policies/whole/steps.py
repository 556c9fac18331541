"""A job's training step as an operation graph, for whole-step policies.

Every pass of every device is laid out block by block: computation, what is exchanged behind it, gradients of weights
beside what the next block waits for, messages with gradients when a block has run its last backward pass. Exchanges
that are limited by the same link share a channel of the device. What is alike in all blocks of a kind is decided once,
so that a plan that was found for a few micro-batches holds for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work, source_of
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    OperationChoice,
    OperationGraph,
    OperationRows,
    WholePlan,
    WholePolicy,
)
from coppice.iteration.step.plan import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step
from coppice.iteration.tasks import TaskTimes, run_tasks

_START_SECONDS = 10e-6
"""What a piece of an exchange costs, unless told otherwise."""
_LabelledWays = tuple[tuple[tuple[CollectivePhase, ...], ...], tuple[str, ...]]
_COMPUTE = "compute"
_MOST_OPERATIONS = 4000
"""Operations for which a plan is searched, unless told otherwise."""
_HALVES = {"all_reduce": ("reduce_scatter", "all_gather")}


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedStep:
    """A step under a whole-step policy."""

    plan: WholePlan  # How its operations are done
    seconds: float  # Time of the step
    # Time of the step with every exchange in one piece, the plain decomposition, in the order of the passes
    plain_seconds: float
    lower_bound_seconds: float  # What no plan beats
    exposed_seconds: float  # Exchanges, sends and sums on its critical path
    messages: int  # Messages about gradients, a piece of a part of a sum being one, of all devices
    operations: OperationGraph  # The operations
    times: TaskTimes  # When they run


def plan_step(
    step: Step,
    order: PipelineOrder,
    policy: WholePolicy,
    *,
    start_seconds: float = _START_SECONDS,  # What a piece of an exchange costs
    # Micro-batches for which the plan is made, which then holds for all; if not given, twice as many as there
    # are devices, or fewer, so that a search simulates few thousand operations at a time
    micro_batches: int | None = None,
) -> PlannedStep:
    """Apply a whole-step policy to a step; never worse than the plain step."""
    _check(step, order)

    def layout(few: int, *, beside: bool) -> _Layout:
        given = step, order
        if few < step.micro_batches:
            given = replace(step, micro_batches=few), _first(order, few)
        return _Layout(*given, start_seconds, beside=beside)

    few = micro_batches or 2 * len(order.devices)
    if micro_batches is None and few > 1:
        few = min(few, _MOST_OPERATIONS // max(1, len(layout(1, beside=policy.beside).graph().operations)))
    few = max(1, min(step.micro_batches, few))
    planned = layout(step.micro_batches, beside=policy.beside)
    operations = planned.graph()
    sample = operations if few == step.micro_batches else layout(few, beside=policy.beside).graph()
    plan = policy.plan(sample)
    plain = operations
    if policy.beside:
        flat = layout(step.micro_batches, beside=False)
        plain = flat.graph()
    seconds, plain_seconds = operations.seconds(plan), plain.seconds()
    if seconds > plain_seconds:
        # What was found for a few micro-batches is no gain for all.
        plan, operations, seconds = WholePlan(), plain, plain_seconds
        planned = flat if policy.beside else planned
    times = run_tasks(operations.task_graph(plan))
    sums = [operations.operations[number] for number in planned.gradients]
    return PlannedStep(
        plan=plan,
        seconds=seconds,
        plain_seconds=plain_seconds,
        lower_bound_seconds=operations.lower_bound_seconds(),
        exposed_seconds=_exposed(times),
        messages=sum(
            plan.choices.get(each.decision, OperationChoice()).pieces
            * sum(1 for _ in operations.phases(each, plan))
            for each in sums
        ),
        operations=operations,
        times=times,
    )


def _exposed(times: TaskTimes) -> float:
    """Communication time on the critical path."""
    kinds = times.graph.kind_names
    if not len(times.finish):
        return 0.0
    task, found = int(times.finish.argmax()), 0.0
    while task >= 0:
        if kinds[times.graph.kinds[task]] != _COMPUTE:
            found += float(times.finish[task] - times.start[task])
        task = int(times.cause[task])
    return found


def step_operations(
    step: Step, order: PipelineOrder, *, start_seconds: float = 0.0, beside: bool = False
) -> OperationGraph:
    """Operation graph of the step.

    Args:
        start_seconds: What a piece of an exchange costs, contained in its time.
        beside: Gradients of weights are computed beside what is exchanged for gradients of inputs.
    """
    _check(step, order)
    return _Layout(step, order, start_seconds, beside=beside).graph()


def _check(step: Step, order: PipelineOrder) -> None:
    """Check that the order fits the step, and that replicas hold whole parameters."""
    if (order.stages, order.micro_batches) != (len(step.stages), step.micro_batches):
        raise InputError(
            f"expected an order of {len(step.stages)} stages and {step.micro_batches} micro-batches, found "
            f"{order.stages} and {order.micro_batches}."
        )
    if any(each.group == "dp" for stage in step.stages for block in stage for each in block.exchanges):
        raise InputError(
            "expected parameters that replicas keep for a policy of the whole iteration, found them sharded: take "
            "`shard=zero1`, or policy fsdp."
        )


def _first(order: PipelineOrder, micro_batches: int) -> PipelineOrder:
    """Order of the first micro-batches."""
    kept = tuple(
        tuple(each for each in program if each.micro_batch < micro_batches) for program in order.devices
    )
    return PipelineOrder(devices=kept, stages=order.stages, micro_batches=micro_batches)


class _Layout(OperationRows):
    """Operation graph of a step under construction."""

    def __init__(self, step: Step, order: PipelineOrder, start_seconds: float, *, beside: bool) -> None:
        super().__init__()
        self.step, self.order = step, order
        self.start_seconds, self.beside = start_seconds, beside
        self.channels: dict[str, Channel] = {}
        self.device_of = order.device_of()
        self.computes: dict[tuple[int, float], tuple[tuple[CollectivePhase, ...], ...]] = {}
        self.exchanges: dict[tuple[int, int, bool], _LabelledWays] = {}
        self.gradients: list[int] = []
        self.gives: dict[tuple[int, bool, int], list[int]] = {}  # stage, forward, micro-batch
        self.awaited: list[tuple[int, tuple[int, bool, int]]] = []

    def graph(self) -> OperationGraph:
        """All operations of the step."""
        ends: list[tuple[int, list[int]]] = []
        for device, program in enumerate(self.order.devices):
            last = {each.stage: each for each in program if each.work in (Work.BACKWARD, Work.WEIGHT)}
            before: list[int] = []
            messages: list[int] = []
            for each in program:
                before = self._pass(device, each, before, messages if last.get(each.stage) == each else None)
            ends.append((device, [*before, *messages]))
        for device, done in ends:
            seconds = sum(
                self.step.optimizer[stage]
                for stage, own in self.device_of.items()
                if own == device and self.step.optimizer
            )
            if seconds:
                everywhere = [each for _, tasks in ends for each in tasks]
                self._compute(device, "optimizer", seconds, everywhere if len(ends) > 1 else done)
        rows = list(self.operations)
        for number, key in self.awaited:
            rows[number] = replace(rows[number], after=(*rows[number].after, *self.gives[key]))
        return OperationGraph(operations=tuple(rows), channels=self.channels)

    def _pass(self, device: int, each: StagePass, before: list[int], messages: list[int] | None) -> list[int]:
        """Operations of a pass; return those after which the device's next pass runs."""
        forward = each.work is Work.FORWARD
        blocks = self.step.stages[each.stage]
        numbers = range(len(blocks))
        first = len(self.operations)
        for number in numbers if forward else reversed(numbers):
            block = blocks[number]
            where = f"{each} block {number}"
            if forward:
                _, before = self._section(device, where, block, FORWARD, block.forward, before)
                continue
            ready = before
            if each.work is not Work.WEIGHT:
                if block.recompute or any(one.when == RECOMPUTE for one in block.exchanges):
                    _, before = self._section(device, where, block, RECOMPUTE, block.recompute, before)
                own, before = self._section(device, where, block, BACKWARD, block.input_gradient, before)
                ready = [own] if self.beside else before
            if each.work is not Work.INPUT:
                own = self._compute(device, f"{where} weight gradient", block.weight_gradient, ready, where)
                before = [*before, own] if self.beside else [own]
                if messages is not None:
                    messages += self._message(device, block, own)
        source = source_of(each, self.order.stages)
        if source is not None and len(self.operations) > first:
            self._receive(device, first, source)
        if each.work is not Work.WEIGHT:
            self.gives[each.stage, forward, each.micro_batch] = list(before)
        return before

    def _receive(self, device: int, first: int, source: StagePass) -> None:
        """Let a pass wait for another stage's output, sent if that is on another device."""
        key = (source.stage, source.work is Work.FORWARD, source.micro_batch)
        sender = self.device_of[source.stage]
        if self.step.send is None or sender == device or not self.step.send.seconds:
            self.awaited.append((first, key))
            return
        channel = f"link {sender} to {device}"
        self.channels.setdefault(channel, Channel())
        phase = CollectivePhase(kind="send", amount=self.step.send.seconds, channels=(channel,))
        number = self.add(f"{source} sent", ((phase,),), ())
        self.awaited.append((number, key))
        own = self.operations[first]
        self.operations[first] = replace(own, after=(*own.after, number))

    def _section(
        self, device: int, where: str, block: LayerBlock, when: str, seconds: float, before: list[int]
    ) -> tuple[int, list[int]]:
        """Computation and the collective after it; return the computation and the section's last operation."""
        exchanges = [each for each in block.exchanges if each.when == when and each.seconds]
        decisions = [f"{each.group} {each.collective} {when} of {block.kind}" for each in exchanges]
        free = [self._splits(each) for each in exchanges]
        name = f"{where} {when}"
        cut = decisions[0] if decisions and free[0] else ""
        own = self._compute(device, name, seconds, before, where, decision=cut, group=name if cut else "")
        after = [own]
        for each, decision, splits in zip(exchanges, decisions, free, strict=True):
            words = (decision, name) if splits else ("", "")
            after = [self._exchange(device, f"{name} {each.group}", each, after, where, *words)]
        return own, after

    def _splits(self, each: GroupExchange) -> bool:
        return each.seconds > self.start_seconds

    def _compute(
        self,
        device: int,
        name: str,
        seconds: float,
        after: list[int],
        layer: str = "",
        *,
        decision: str = "",
        group: str = "",
    ) -> int:
        if (device, seconds) not in self.computes:
            channel = f"device {device}"
            self.channels.setdefault(channel, Channel())
            self.computes[device, seconds] = (
                (CollectivePhase(kind=_COMPUTE, amount=seconds, channels=(channel,)),),
            )
        decompositions = self.computes[device, seconds]
        return self.add(name, decompositions, after, decision=decision, group=group, layer=layer)

    def _exchange(
        self,
        device: int,
        name: str,
        each: GroupExchange,
        after: list[int],
        layer: str,
        decision: str,
        group: str,
        decompositions: Mapping[str, tuple[GroupExchange, ...]] | None = None,
    ) -> int:
        """A collective: its plain decomposition, and an all-reduce as two halves."""
        key = device, id(each), bool(decision)  # the step keeps its exchanges; messages are made anew
        if decompositions is not None or key not in self.exchanges:
            labelled = self._labelled(device, each, decompositions, free=bool(decision))
            if decompositions is None:
                self.exchanges[key] = labelled
        else:
            labelled = self.exchanges[key]
        return self.add(
            name,
            labelled[0],
            after,
            labels=labelled[1],
            decision=decision,
            group=group,
            layer=layer,
            size_bytes=each.size_bytes,
        )

    def _labelled(
        self,
        device: int,
        each: GroupExchange,
        decompositions: Mapping[str, tuple[GroupExchange, ...]] | None,
        *,
        free: bool,
    ) -> _LabelledWays:
        """Decompositions of a collective, with names."""
        known: dict[str, tuple[GroupExchange, ...]] = (
            {"plain": (each,)} if decompositions is None else dict(decompositions)
        )
        if decompositions is None and each.collective in _HALVES:
            halves = _HALVES[each.collective]
            known["substituted"] = tuple(
                replace(each, collective=half, seconds=each.seconds / 2) for half in halves
            )
        labels = [label for label, row in known.items() if free and all(map(self._splits, row))] or ["plain"]
        return (
            tuple(tuple(self._phase(device, part) for part in known[label]) for label in labels),
            tuple(labels),
        )

    def _phase(self, device: int, each: GroupExchange) -> CollectivePhase:
        channel = f"{each.link or each.group} of device {device}"
        self.channels.setdefault(channel, Channel(start_seconds=self.start_seconds))
        splits = self._splits(each)
        amount = each.seconds - self.start_seconds if splits else each.seconds
        return CollectivePhase(kind=each.collective, amount=amount, channels=(channel,), starts=int(splits))

    def _message(self, device: int, block: LayerBlock, after: int) -> list[int]:
        """Gradient all-reduce of a block."""
        size = self.step.gradient_bytes * block.parameters
        if self.step.replicas < 2 or not size:
            return []
        whole = self.step.message("all_reduce", size)
        if not whole.seconds:
            return []
        halves = tuple(self.step.message(each, size) for each in _HALVES["all_reduce"])
        decision = f"dp gradients of {block.kind}" if self._splits(whole) else ""
        name = f"gradients of {self.operations[after].name}"
        decompositions = {"plain": (whole,), "substituted": halves}
        self.gradients.append(self._exchange(device, name, whole, [after], "", decision, "", decompositions))
        return self.gradients[-1:]
