"""Apply a composition of policies to a job, and simulate one iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from coppice.errors import InputError
from coppice.iteration.composing.composition import Composition, composition_of
from coppice.iteration.job.job import Machines, TrainingJob
from coppice.iteration.job.paced import step_of
from coppice.iteration.memory import Memory, memory_of
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.pipeline.orders import breadth_first
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.out_of_order import FastForward
from coppice.iteration.policies.pipelined.policy import Pipelined
from coppice.iteration.policies.step_plans import fast_forward_order, plan_of, stage_workload
from coppice.iteration.policies.tensor.policy import TensorPolicy, transformed
from coppice.iteration.policies.whole.policy import WholePolicy
from coppice.iteration.policies.whole.steps import plan_step
from coppice.iteration.running import TaskTimes
from coppice.iteration.step.block import Step
from coppice.iteration.step.simulated import SimulatedStep, order_for, simulate_step
from coppice.iteration.transformer import Layout, Transformer
from coppice.iteration.workload.steps import usual_overlap

MOST_MESSAGES = 20_000
"""Messages of an iteration that a step is simulated with."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ComposedStep:
    """Simulated iteration of a job under policies."""

    composition: Composition  # The policies
    seconds: float  # Time from one iteration to the next
    lower_bound_seconds: float  # What no order of the same passes and messages can beat
    exposed_seconds: float  # Communication on the critical path
    messages: int  # Messages about gradients of an iteration, of all devices of a replica
    compute_seconds: float  # Computation of the busiest device with its optimizer, alone
    layout: Layout  # The layout, with the chunks that an order of pipelines has
    # What a GPU keeps, with what is in flight in the order of the pipeline; policies may keep more
    memory: Memory
    times: TaskTimes  # When its tasks run
    step: SimulatedStep | None  # Where the time goes; None: by a plan of the whole iteration

    @property
    def memory_bytes(self) -> float:
        """Total memory."""
        return self.memory.total


def simulated_job(
    job: TrainingJob,
    *,
    # Another layout than its own, under those policies of the job that suit it
    layout: Layout | None = None,
    machines: Machines | None = None,  # Other machines than its own
    # Share of a device's speed for which exchanges beside computation compete with it; None: what the job says
    contention: float | None = None,
) -> ComposedStep:
    """Simulate one iteration of a job under its policies.

    A job that names none runs as is usual: nothing overlaps for transformers, and messages about gradients in buckets
    for sequential models.

    Raises:
        InputError: If a policy does not suit the job; the message is the reason.

    Examples:
        >>> from coppice.iteration.job.file import parse_job_record
        >>> from coppice.iteration.job.job import job_of
        >>> job = job_of(parse_job_record('''
        ... model.name = "resnet-50"
        ... cluster = {topology = "dgx-a100", boxes = 2}
        ... layout = {micro_batch = 128}
        ... ''', where="job.toml"))
        >>> found = simulated_job(job)
        >>> found.composition.name, found.exposed_seconds < 0.1 * found.seconds
        ('ddp', True)
    """
    lies = replace(job, layout=layout or job.layout, machines=machines or job.machines)
    own = composition_of_job(lies)
    share = job.run.contention or 0.0 if contention is None else contention
    if layout is None:
        return compose(lies, own, contention=share)
    refused: InputError | None = None
    for fewer in _fewer(own):
        try:
            return compose(lies, fewer, contention=share)
        except InputError as error:
            refused = refused or error
    raise refused or InputError(f"expected a layout of {job.name}, found {layout}.")


def composition_of_job(job: TrainingJob) -> Composition:
    """The policies that a job names, otherwise what is usual for its model."""
    if job.run.policy is None and not isinstance(job.model, Transformer):
        return composition_of(usual_overlap(job.layout))
    return composition_of(job.run.policy or "none", job.run.settings, ranks=job.layout.tensor)


def _fewer(composition: Composition) -> Iterator[Composition]:
    """A composition, and what is left of it without some of its policies, the most first."""
    for count in range(len(composition.policies), -1, -1):
        for policies in combinations(composition.policies, count):
            yield Composition(policies=policies)


def compose(job: TrainingJob, composition: Composition, *, contention: float = 0.0) -> ComposedStep:
    """Apply policies to a job instead of its own, and simulate one iteration.

    What no policy decides is as in the baseline: 1F1B, of chunks interleaved; nothing overlaps.

    Args:
        job: The job; policies of pipelines take its stages, and change its chunks where they need others.
        composition: The policies.
        contention: Share of a device's speed for which communication beside computation competes with it.

    Raises:
        InputError: If a policy does not suit the job; the message is the reason.
    """
    if composition.staleness:
        raise InputError(
            f"expected policies whose gradients are of this iteration, found {composition.name}, whose are "
            f"{composition.staleness} late: `coppice train policy` simulates it."
        )
    policies = composition.policies
    pipelined = next((each for each in policies if isinstance(each, Pipelined)), None)
    layout = _layout(job, pipelined)
    step = step_of(job.model, layout, job.machines)
    step = transformed(step, [each for each in policies if isinstance(each, TensorPolicy)])
    name, order = _order(step, layout, pipelined)
    held = _memory(job, layout, step, order)
    whole = next((each for each in policies if isinstance(each, WholePolicy)), None)
    if whole is not None:
        planned = plan_step(step, order, whole)
        return ComposedStep(
            composition=composition,
            seconds=planned.seconds,
            lower_bound_seconds=planned.lower_bound_seconds,
            exposed_seconds=planned.exposed_seconds,
            messages=planned.messages,
            compute_seconds=_computation(step, order),
            layout=layout,
            memory=held,
            times=planned.times,
            step=None,
        )
    gradients = next((each for each in policies if isinstance(each, DataParallelPolicy)), None)
    if gradients is not None and step.replicas > 1:
        _refuse_many(composition, _least_messages(step, gradients), at_least="at least ")
    plan = plan_of(policies, step, order)
    _refuse_many(composition, len(plan.messages))
    found = simulate_step(step, plan, name=name, contention=contention)
    return ComposedStep(
        composition=composition,
        seconds=found.seconds,
        lower_bound_seconds=found.lower_bound_seconds,
        exposed_seconds=sum(found.exposed.values()),
        messages=len(plan.messages),
        compute_seconds=_computation(step, order),
        layout=layout,
        memory=held,
        times=found.times,
        step=found,
    )


def _memory(job: TrainingJob, layout: Layout, step: Step, order: PipelineOrder) -> Memory:
    """Memory of a GPU; activations are those of 1F1B times what the pipeline order keeps in flight."""
    held = memory_of(job.model, layout, job.cluster.framework)
    devices, count, chunks = layout.pipeline, layout.micro_batches, layout.chunks
    if chunks > 1 and count % devices:
        return held
    plain = order_for(None, devices, count, chunks)[1]
    if order == plain:
        return held
    usual = _in_flight(step, plain)
    return replace(held, activations=held.activations * _in_flight(step, order) / usual) if usual else held


def _in_flight(step: Step, order: PipelineOrder) -> float:
    """Peak activation bytes of a device; weight gradients need them until they are computed."""
    kept = [sum(block.activation_bytes for block in stage) for stage in step.stages]
    most = 0.0
    for program in order.devices:
        now = 0.0
        for each in program:
            if each.work is Work.FORWARD:
                now += kept[each.stage]
                most = max(most, now)
            elif each.work is not Work.INPUT:
                now -= kept[each.stage]
    return most


def _computation(step: Step, order: PipelineOrder) -> float:
    """Compute time of the busiest device, with its optimizer."""
    totals = [0.0] * len(order.devices)
    for stage, device in order.device_of().items():
        totals[device] += step.micro_batches * sum(block.compute for block in step.stages[stage])
        totals[device] += step.optimizer[stage] if step.optimizer else 0.0
    return max(totals)


def _least_messages(step: Step, policy: DataParallelPolicy) -> int:
    """Lower bound on the number of messages of an iteration, counted before any is made."""
    workloads = [stage_workload(step, stage) for stage in range(len(step.stages))]
    return sum(policy.least_messages(each) for each in workloads if sum(each.bytes))


def _refuse_many(composition: Composition, messages: int, *, at_least: str = "") -> None:
    """Refuse more messages than a step is simulated with."""
    if messages > MOST_MESSAGES:
        raise InputError(
            f"expected at most {MOST_MESSAGES:,} messages of an iteration, found {at_least}{messages:,} of "
            f"{composition.name}: cut into larger parts."
        )


def needs_pipeline(policy: Pipelined) -> InputError:
    """Error about a policy of pipelines where there is one stage."""
    return InputError(f"expected a pipeline for policy {policy.name}, found one stage: raise pp.")


def _layout(job: TrainingJob, policy: Pipelined | None) -> Layout:
    """Layout with the chunks per device that a pipeline order needs."""
    layout = job.layout
    if policy is None:
        return layout
    if layout.pipeline == 1:
        if not policy.on_one_stage:
            raise needs_pipeline(policy)
        return layout
    layers = job.model.layers if isinstance(job.model, Transformer) else None
    chunks = policy.chunks_on(layout.chunks, layout.pipeline, layers)
    if layers is not None and layers < layout.pipeline * chunks:
        raise InputError(
            f"expected at most as many stages as the {layers} layers, found {layout.pipeline} x {chunks} for policy "
            f"{policy.name}: lower pp or `chunks`."
        )
    return replace(layout, chunks=chunks)


def _order(step: Step, layout: Layout, policy: Pipelined | None) -> tuple[str, PipelineOrder]:
    """Pipeline order and its name: that of a policy, otherwise the usual one."""
    devices, count, chunks = layout.pipeline, layout.micro_batches, layout.chunks
    if isinstance(policy, FastForward):
        return policy.name, fast_forward_order(step, breadth_first(devices, count, chunks))
    if isinstance(policy, Fold3D):
        return policy.name, breadth_first(devices, count, chunks)
    return order_for(None if policy is None else policy.name, devices, count, chunks)
