"""Apply a composition of policies to a job and simulate one iteration.

A composition takes at most one policy for each thing that is to be decided. The step of a job is that of its model on
boxes of one or several kinds: each stage runs at the pace of its slowest device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from coppice.errors import InputError
from coppice.iteration.job.job import Machines, TrainingJob
from coppice.iteration.layout import Layout
from coppice.iteration.machine import Cluster
from coppice.iteration.memory import Memory, memory_of
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.pipeline.orders import breadth_first
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.out_of_order import FastForward
from coppice.iteration.policies.pipelined.policy import Pipelined
from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.policies.step_plans import BASELINE, fast_forward_order, plan_of, stage_workload
from coppice.iteration.policies.tensor.policy import TensorPolicy, transformed
from coppice.iteration.policies.whole.operations import WholePolicy
from coppice.iteration.policies.whole.steps import plan_step
from coppice.iteration.step.blocks import step_of_model, usual_overlap
from coppice.iteration.step.plan import Step
from coppice.iteration.step.simulated import SimulatedStep, order_for, simulate_step
from coppice.iteration.tasks import TaskTimes
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel
from coppice.text import suggestion


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Compatible policies of different kinds.

    Raises:
        InputError: If two decide the same.
    """

    policies: tuple[ConfiguredPolicy, ...] = ()  # The policies; none: the baseline, in which nothing overlaps

    def __post_init__(self) -> None:
        decided: dict[str, str] = {}
        for policy in self.policies:
            for question in sorted(policy.decides):
                if question in decided:
                    both = f"{decided[question]} and {policy.name}, which both decide {question}"
                    raise InputError(
                        f"expected policies that decide different things, found {both}: leave one out."
                    )
                decided[question] = policy.name

    @property
    def name(self) -> str:
        """Joined names."""
        return "+".join(policy.name for policy in self.policies) or BASELINE

    @property
    def staleness(self) -> int:
        """Gradient staleness in iterations."""
        return max((policy.staleness for policy in self.policies), default=0)


def named_policies(text: str) -> list[str]:
    """Parse a text such as ``dear+breadth-first``; ``none`` is the baseline."""
    names = [name for each in text.split("+") if (name := each.strip()) != BASELINE]
    for name in names:
        if name not in POLICIES:
            near = suggestion(name, POLICIES)
            raise InputError(f"expected policies such as ddp or dear+breadth-first, found {name!r}: {near}")
    return names


def owners_of(key: str, names: Sequence[str]) -> list[str]:
    """Policies with an option of a name, or of ``POLICY.OPTION``.

    Examples:
        >>> owners_of("partition", ["bytescheduler", "1f1b"]), owners_of("1f1b.stages", ["modulo", "1f1b"])
        (['bytescheduler'], ['1f1b'])
    """
    owner, _, option = key.rpartition(".")
    return [name for name in names if POLICIES[name].option_named(option) is not None and owner in ("", name)]


def composition_of(
    text: str, settings: Mapping[str, Any] | None = None, *, ranks: int | None = None
) -> Composition:
    """Compose policies by names such as ``dear+breadth-first``.

    Args:
        text: Names with ``+`` between them; ``none`` is the baseline.
        settings: Options by name; ``POLICY.OPTION`` where several policies have an option of that name.
        ranks: Ranks of a tensor-parallel group, for policies that ask for them and are not told.

    Examples:
        >>> composition_of("dear+breadth-first", {"chunks": 4}).name
        'dear+breadth-first'
    """
    names = named_policies(text)
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in (settings or {}).items():
        owners = owners_of(key, names)
        if len(owners) != 1:
            has = ", ".join(
                f"{name}.{each}" for name in names for each in POLICIES[name].options.__struct_fields__
            )
            found = "none of them has" if not owners else f"{' and '.join(owners)} have"
            raise InputError(
                f"expected an option of {text}, found {key!r}, which {found}: they take {has or 'none'}."
            )
        given[owners[0]][key.rpartition(".")[2]] = value
    for name, own in given.items():
        if ranks is not None and "ranks" in POLICIES[name].options.__struct_fields__:
            own.setdefault("ranks", max(2, ranks))  # a group of one exchanges nothing, whatever the policy
    return Composition(policies=tuple(POLICIES[name].of(**given[name]) for name in names))


def step_of(model: Transformer | LayeredModel, layout: Layout, machines: Machines) -> Step:
    """Build the step of a model on machines.

    Ranks are dealt to boxes in their order: the first stages run on the first kind. A stage that has GPUs of two kinds
    waits for the slower one, and so do replicas that sum gradients across kinds.

    Args:
        layout: How it lies on the GPUs.
    """
    whole = step_of_model(model, layout, machines.cluster)
    if len(machines.kinds) == 1 or layout.pipeline == 1:
        return whole
    steps = [
        step_of_model(model, layout, _of_stage(machines, layout, device)) for device in range(layout.pipeline)
    ]
    dealt = [(steps[stage % layout.pipeline], stage) for stage in range(len(whole.stages))]
    return replace(
        whole,
        stages=tuple(step.stages[stage] for step, stage in dealt),
        optimizer=tuple(step.optimizer[stage] for step, stage in dealt),
    )


def _of_stage(machines: Machines, layout: Layout, device: int) -> Cluster:
    """GPUs and network of a pipeline device; of several kinds, the slowest values."""
    size = layout.gpus // layout.pipeline
    begin, end = device * size, (device + 1) * size
    kinds, first = [], 0
    for each in machines.kinds:
        if first < end and begin < first + each.gpus:
            kinds.append(each)
        first += each.gpus
    return Machines(name="", kinds=tuple(kinds)).cluster


MOST_MESSAGES = 20_000
"""Messages of an iteration that a step is simulated with."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ComposedStep:
    """Simulated iteration of a job under policies."""

    composition: Composition  # The policies
    seconds: float  # Time from one iteration to the next
    exposed_seconds: float  # Communication on the critical path
    messages: int  # Messages about gradients of an iteration, of all devices of a replica
    compute_seconds: float  # Computation of the busiest device with its optimizer, alone
    layout: Layout  # The layout, with the chunks that an order of pipelines has
    # What a GPU keeps, with what is in flight in the order of the pipeline; policies may keep more
    memory: Memory
    times: TaskTimes  # When its tasks run
    step: SimulatedStep | None  # Where the time goes; None: by a plan of the whole iteration
    planned_bound_seconds: float = 0.0  # The lower bound of such a plan

    @property
    def lower_bound_seconds(self) -> float:
        """What no order of the same passes and messages can beat."""
        return self.planned_bound_seconds if self.step is None else self.step.lower_bound_seconds

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
    inside = [each for each in policies if isinstance(each, TensorPolicy)]
    step = transformed(step, inside) if inside else step
    name, order = _order(step, layout, pipelined)
    held = _memory(job, layout, step, order)
    whole = next((each for each in policies if isinstance(each, WholePolicy)), None)
    if whole is not None:
        planned = plan_step(step, order, whole)
        return ComposedStep(
            composition=composition,
            seconds=planned.seconds,
            planned_bound_seconds=planned.lower_bound_seconds,
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
