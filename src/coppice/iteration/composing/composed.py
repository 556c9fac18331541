"""Apply a composition of policies to a job, and simulate one iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coppice.errors import InputError
from coppice.iteration.composing.composition import Composition, composition_of
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.job.paced import step_of
from coppice.iteration.memory import Memory, memory_of
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.pipeline.orders import breadth_first
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.out_of_order import FastForward, Modulo
from coppice.iteration.policies.pipelined.policy import Pipelined
from coppice.iteration.policies.pipelined.steps import fast_forward_order, fold3d_messages
from coppice.iteration.policies.tensor.catalogue import tensor_policies, transformed
from coppice.iteration.policies.tensor.policy import TensorPolicy
from coppice.iteration.policies.whole.policy import WholePolicy
from coppice.iteration.policies.whole.steps import plan_step
from coppice.iteration.step.block import Step
from coppice.iteration.step.overlap import Overlap, overlap_by, overlap_named
from coppice.iteration.step.policy_messages import stage_workload
from coppice.iteration.step.simulated import SimulatedStep, order_for, simulate_step
from coppice.iteration.transformer import Layout, Transformer

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
    step: SimulatedStep | None  # The simulation; None: by a plan of the whole iteration

    @property
    def memory_bytes(self) -> float:
        """Total memory."""
        return self.memory.total


def compose(job: TrainingJob, composition: Composition, *, contention: float = 0.0) -> ComposedStep:
    """Apply policies to a job, and simulate one iteration.

    What no policy decides is as the job says it runs, otherwise as in the baseline: 1F1B, of chunks interleaved;
    nothing overlaps.

    Args:
        job: The job; policies of pipelines take its stages, and change its chunks where they need others.
        composition: The policies.
        contention: Share of a device's speed for which communication beside computation competes with it.

    Raises:
        InputError: If a policy does not suit the job, or decides what the job says; the message is the reason.
    """
    composition = _with_run(job, composition)
    if composition.staleness:
        raise InputError(
            f"expected policies whose gradients are of this iteration, found {composition.name}, whose are "
            f"{composition.staleness} late: `coppice train policy` simulates it."
        )
    pipelined = next((each for each in composition.policies if isinstance(each, Pipelined)), None)
    layout = _layout(job, pipelined)
    step = step_of(job.model, layout, job.machines)
    step = transformed(step, [each for each in composition.policies if isinstance(each, TensorPolicy)])
    order = _order(step, layout, pipelined, job.run.order)
    held = _memory(job, layout, step, order)
    whole = next((each for each in composition.policies if isinstance(each, WholePolicy)), None)
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
            step=None,
        )
    gradients = next((each for each in composition.policies if isinstance(each, DataParallelPolicy)), None)
    if gradients is not None and step.replicas > 1:
        _refuse_many(composition, _least_messages(step, gradients), at_least="at least ")
    overlap = _overlap(step, order, pipelined, gradients, job.run.overlap)
    _refuse_many(composition, len(overlap.messages))
    found = simulate_step(step, order, name=composition.name, overlap=overlap, contention=contention)
    return ComposedStep(
        composition=composition,
        seconds=found.seconds,
        lower_bound_seconds=found.lower_bound_seconds,
        exposed_seconds=sum(found.exposed.values()),
        messages=len(overlap.messages),
        compute_seconds=_computation(step, order),
        layout=layout,
        memory=held,
        step=found,
    )


def composed_job(job: TrainingJob, *, contention: float = 0.0) -> ComposedStep:
    """Apply a job's own policies, and simulate one iteration.

    Args:
        job: The job; none of its policies: the baseline.
        contention: As for :func:`compose`.
    """
    composition = composition_of(job.run.policy or "none", job.run.settings, ranks=job.layout.tensor)
    return compose(job, composition, contention=contention)


def _with_run(job: TrainingJob, composition: Composition) -> Composition:
    """Add the tensor-parallel policies that the job sets itself."""
    said = {"order": ("order", job.run.order), "gradients": ("overlap", job.run.overlap)}
    for policy in composition.policies:
        for question in sorted(policy.decides & said.keys()):
            key, value = said[question]
            if value is not None:
                raise InputError(
                    f"expected `{key}` or a policy that decides {question}, found {value} and {policy.name}: "
                    "leave one out."
                )
    if not job.run.inside:
        return composition
    inside = tensor_policies(job.run.inside, ranks=job.layout.tensor)
    return Composition(policies=(*composition.policies, *inside))


def _memory(job: TrainingJob, layout: Layout, step: Step, order: PipelineOrder) -> Memory:
    """Memory of a GPU; activations are those of 1F1B times what the pipeline order keeps in flight."""
    held = memory_of(job.model, layout, job.cluster.framework)
    devices, count, chunks = layout.pipeline, layout.micro_batches, layout.chunks
    if devices == 1 or (chunks > 1 and count % devices):
        return held
    usual = _in_flight(step, order_for(None, devices, count, chunks)[1])
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


def _layout(job: TrainingJob, policy: Pipelined | None) -> Layout:
    """Layout with the chunks per device that a pipeline order needs."""
    layout = job.layout
    if policy is None:
        return layout
    if layout.pipeline == 1:
        raise InputError(f"expected a pipeline for policy {policy.name}, found one stage: raise pp.")
    chunks = getattr(policy.settings, "chunks", 1)
    if isinstance(policy, Modulo) and isinstance(job.model, Transformer):
        chunks = job.model.layers // layout.pipeline
    elif chunks > 1 and layout.chunks > 1:
        chunks = layout.chunks
    changed = replace(layout, chunks=chunks)
    if isinstance(job.model, Transformer) and job.model.layers % (layout.pipeline * chunks):
        raise InputError(
            f"expected {job.model.layers} layers in {layout.pipeline} x {chunks} stages for policy {policy.name}, "
            "found that they do not divide: change `chunks`."
        )
    return changed


def _order(step: Step, layout: Layout, policy: Pipelined | None, said: str | None) -> PipelineOrder:
    """Pipeline order: that of a policy, otherwise that of the job."""
    devices, count, chunks = layout.pipeline, layout.micro_batches, layout.chunks
    if isinstance(policy, FastForward):
        name = "gpipe"
        if isinstance(policy, Modulo):
            return fast_forward_order(step, breadth_first(devices, count, chunks))
    elif isinstance(policy, Fold3D):
        name = "breadth-first"
    else:
        name = policy.name if policy is not None else (said or "")
    order = order_for(name or None, devices, count, chunks)[1]
    return fast_forward_order(step, order) if isinstance(policy, FastForward) else order


def _overlap(
    step: Step,
    order: PipelineOrder,
    pipelined: Pipelined | None,
    gradients: DataParallelPolicy | None,
    said: str | None,
) -> Overlap:
    """Communication overlapped with computation."""
    if isinstance(pipelined, Fold3D):
        if step.replicas > 1 and step.shares_optimizer:
            return overlap_named("fold3d", step, order)  # which says why not
        messages = fold3d_messages(step, order, share=pipelined.settings.share)
        return Overlap(name="fold3d", messages=messages, synchronous_step=False)
    if gradients is not None:
        return overlap_by(gradients, step, order)
    return overlap_named(said or "none", step, order)
