"""Simulate training iterations: estimates, what-if, layouts and policies; the verbs of `coppice train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs

from coppice.errors import InputError
from coppice.iteration.job_options import JobOptions
from coppice.options import argument, option
from coppice.options.calls import verb
from coppice.options.shared import AnchorOption, JobsOption, PlacementOption, RoutingOption
from coppice.verbs.capturing import capture
from coppice.verbs.lr_comparing import lr_compare
from coppice.verbs.train_files import (
    import_module,
    import_trace,
    lr_report,
    measure,
    models,
    pipeline,
    policy,
    report,
    torch_profile,
)

if TYPE_CHECKING:
    from coppice.iteration.accuracy import Anchor
    from coppice.iteration.job.advice import Advice
    from coppice.iteration.job.compared import ComparedPolicies
    from coppice.iteration.job.job import Machines, TrainingJob
    from coppice.iteration.job.tables import JobRecord
    from coppice.iteration.job.tuned import TunedPolicy
    from coppice.iteration.job.what_if import WhatIf
    from coppice.iteration.search import LayoutSearch, SimulatedLayout
    from coppice.verbs.estimating import CorrectedEstimate

__all__ = [
    "advise",
    "capture",
    "compare",
    "estimate",
    "import_module",
    "import_trace",
    "job",
    "lr_compare",
    "lr_report",
    "measure",
    "models",
    "pipeline",
    "policy",
    "report",
    "search",
    "torch_profile",
    "tune",
    "what_if",
]

MOST_SIMULATED = 32
"""So many of the best layouts by the closed form are simulated."""


class EstimateCall(JobOptions, frozen=True, kw_only=True):
    """An estimate of a job."""

    contention: Annotated[
        float,
        option("Share of a GPU that communication takes from concurrent computation.", ge=0.0, le=1.0),
    ] = 0.0
    anchor: AnchorOption = None
    routing: RoutingOption = None
    placement: PlacementOption = "given"


class WhatIfCall(JobOptions, frozen=True, kw_only=True):
    """A job, and changes to it."""

    changes: Annotated[
        Sequence[str],
        option("Such as nic=x2, gpu=H200, drain=node17 or degrade=box0/nic3=50%, as `--what-if` takes them."),
    ] = ()


class SearchOptions(JobOptions, frozen=True, kw_only=True):
    """A search of layouts."""

    num_ranks: Annotated[
        int | None,
        option(
            "Number of ranks, a GPU each, in whole boxes [default: all GPUs].",
            "--num-ranks",
            metavar="N",
            ge=1,
            was=["--gpus"],
        ),
    ] = None
    top: Annotated[int, option("How many to print.", ge=1)] = 10
    anchor: AnchorOption = None


class ComparePoliciesCall(JobOptions, frozen=True, kw_only=True):
    """A comparison of policies."""

    policies: Annotated[
        str, option("Policies with commas between them, joined by + where they are composed; all.")
    ] = "all"
    jobs: JobsOption = None


class AdviseCall(JobOptions, frozen=True, kw_only=True):
    """A recommendation of a policy."""

    jobs: JobsOption = None


class TuneCall(JobOptions, frozen=True):
    """The tuning of a policy."""

    tuned: Annotated[str, argument("The policy to tune; `policy` has those of the job beside it.")] = "ddp"


@verb(JobOptions)
def job(asked: JobOptions) -> TrainingJob:
    """A training job: model, machines, layout and how it runs.

    Raises:
        InputError: If the file cannot be read, nothing names the cluster, or the layout does not suit it.

    Examples:
        >>> import coppice
        >>> made = coppice.train.job("gpt-7.5b", topology="dgx-a100", parallel="tp=8", global_batch=16)
        >>> made.layout.tensor, made.machines.gpus
        (8, 8)
    """
    return asked.load()


@verb(EstimateCall)
def estimate(asked: EstimateCall) -> CorrectedEstimate:
    """Simulate a training iteration of a job under its policies, and correct it by measured steps.

    The result has the time (``seconds``), the range in which 80% of such runs are expected (``expected_seconds``), a
    lower bound on what is simulated, the memory of a GPU and when tasks run; ``step`` has the breakdown and the
    critical path, and is None under a plan of the whole iteration.

    Raises:
        InputError: If the job or a measured step cannot be read, or a policy does not suit the job.

    Examples:
        >>> import coppice
        >>> words = {"topology": "dgx-a100", "parallel": "tp=4,dp=2", "global_batch": 16}
        >>> step = coppice.train.estimate("gpt-7.5b", **words)
        >>> planned = coppice.train.estimate("gpt-7.5b", **words, policy="ddp")
        >>> step.seconds > planned.seconds > planned.lower_bound_seconds
        True
    """
    from coppice.verbs.estimating import estimated, routed_steps, transformer_of

    job = asked.load()
    if asked.contention:
        job = replace(job, run=structs.replace(job.run, contention=asked.contention))
    routed = routed_steps(job, asked.routing, asked.placement)
    if routed:
        job = replace(job, model=routed[0].load.model(transformer_of(job)))
    found = estimated(job, anchors_of(asked, asked.anchor, contention=asked.contention))
    return replace(found, routed=tuple(routed))


@verb(WhatIfCall)
def what_if(asked: WhatIfCall) -> list[WhatIf]:
    """Simulate a job as it is, then after each of some changes.

    Examples:
        >>> import coppice
        >>> words = {"topology": "dgx-a100", "boxes": 2, "parallel": "tp=8,dp=2", "global_batch": 16}
        >>> found = coppice.train.what_if("gpt-7.5b", **words, changes=["nic=x2"])
        >>> [each.change for each in found]
        ['none', 'nic=x2']
    """
    from coppice.iteration.job.what_if import what_ifs

    return what_ifs(asked.load(), list(asked.changes))


def anchors_of(
    options: JobOptions,
    files: Sequence[str] | None,
    loaded: Callable[..., Any] | None = None,
    *,
    contention: float = 0.0,
) -> list[Anchor]:
    """Measured steps of a job, from files.

    Args:
        loaded: Loads a topology.
        contention: With which the job is simulated.
    """
    from coppice.iteration.accuracy import read_anchor
    from coppice.iteration.job.composed import simulated_job

    if not files:
        return []
    record, folder = options.record()

    def simulate(made: TrainingJob) -> float:
        return simulated_job(made, contention=contention or None).seconds

    return [read_anchor(path, record, simulate, folder=folder, loaded=loaded) for path in files]


@dataclass(frozen=True, kw_only=True)
class FoundLayouts:
    """Layouts of a model on a cluster."""

    record: JobRecord  # The job whose layout was looked for
    model: Any
    machines: Machines
    gpus: int  # So many of the machines' are used
    tried: LayoutSearch  # All of them by the closed form
    best: Sequence[SimulatedLayout]  # Simulated, the fastest first, as many as were asked for
    alike: int  # How many of those that were simulated estimates cannot tell apart from the fastest


def layouts_of(options: SearchOptions, loaded: Callable[..., Any] | None = None) -> FoundLayouts:
    """Try every layout, and simulate the best.

    Args:
        loaded: Loads a topology.
    """
    from coppice.iteration.job.file import with_values
    from coppice.iteration.job.job import machines_of, model_of, profile_of
    from coppice.iteration.layout import Layout
    from coppice.iteration.search import as_fast, search_layouts, simulated_layouts

    record, folder = options.record()
    model, precision = model_of(record.model), record.run.precision or 1.0
    machines = machines_of(record.cluster, folder=folder, loaded=loaded, precision=precision)
    count = options.num_ranks if options.num_ranks is not None else machines.gpus
    if count > machines.gpus == machines.cluster.device.box and record.cluster.boxes is None:
        record = with_values(record, {"cluster": {"boxes": -(-count // machines.cluster.device.box)}})
        machines = machines_of(record.cluster, folder=folder, loaded=loaded, precision=precision)
    if count > machines.gpus:
        raise InputError(
            f"expected at most the {machines.gpus} GPUs of {machines.name}, found {count}: raise `boxes`."
        )
    keeps = record.layout.fused_attention
    framework, fused = profile_of(record.run, Layout(fused_attention=keeps if keeps is not None else True))
    cluster = replace(machines.cluster, framework=framework)
    tried = search_layouts(model, cluster, count, record.layout.global_batch or 1, fused_attention=fused)
    anchors = anchors_of(options, options.anchor, loaded)
    best = simulated_layouts(model, cluster, tried.found[: max(MOST_SIMULATED, options.top)], anchors)
    return FoundLayouts(
        record=record,
        model=model,
        machines=machines,
        gpus=count,
        tried=tried,
        best=best[: options.top],
        alike=as_fast(best),
    )


@verb(SearchOptions)
def search(asked: SearchOptions) -> Sequence[SimulatedLayout]:
    """Rank the parallel layouts of a model that fit into memory, the fastest first.

    Examples:
        >>> import coppice
        >>> best = coppice.train.search("gpt-7.5b", topology="dgx-a100", global_batch=32, top=3)
        >>> len(best), best[0].seconds <= best[1].seconds
        (3, True)
    """
    return layouts_of(asked).best


@verb(ComparePoliciesCall)
def compare(asked: ComparePoliciesCall) -> ComparedPolicies:
    """Simulate a job, or a workload of layers (.json), under policies.

    Examples:
        >>> import coppice
        >>> found = coppice.train.compare(
        ...     "gpt-7.5b", topology="dgx-a100", parallel="dp=8", global_batch=8, policies="ddp,wfbp", jobs=1
        ... )
        >>> sorted(row.name for row in found.rows)
        ['ddp', 'none', 'wfbp']
    """
    from coppice.iteration.job.compared import compare_on_layers, compare_policies

    names, layers = tuple(name.strip() for name in asked.policies.split(",")), asked.layers()
    if layers is not None:
        return compare_on_layers(layers, names, processes=asked.jobs)
    return compare_policies(asked.load(), names, processes=asked.jobs)


@verb(AdviseCall)
def advise(asked: AdviseCall) -> Advice:
    """Recommend a policy for a job, or for a workload of layers (.json); it compares all of them."""
    from coppice.iteration.job.advice import advise as advice_of
    from coppice.iteration.job.compared import compare_on_layers, compare_policies

    layers = asked.layers()
    found = (
        compare_policies(asked.load(), processes=asked.jobs)
        if layers is None
        else compare_on_layers(layers, processes=asked.jobs)
    )
    return advice_of(found)


@verb(TuneCall)
def tune(asked: TuneCall) -> TunedPolicy:
    """Tune a policy on a job, or on a workload of layers (.json), by simulation.

    Raises:
        InputError: If a policy of the job decides the same, or there is no such policy.

    Examples:
        >>> import coppice
        >>> coppice.train.tune("gpt-7.5b", "ddp", topology="dgx-a100", parallel="dp=8", global_batch=8).policy
        'ddp'
    """
    from coppice.iteration.job.tuned import tune_on_job, tune_on_layers

    layers = asked.layers()
    if layers is not None:
        return tune_on_layers(layers, asked.tuned)
    return tune_on_job(asked.load(), asked.tuned)
