"""Bounds, plans, verification, explanations, algorithms, compiled and imported programs."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from coppice.outputs.shapes.nouns import (
    AlternativesJson,
    Exact,
    FormerOptimumRatesJson,
    FormerPlannedRatesJson,
    LoadRatesJson,
    ModelJson,
    OptimumRatesJson,
    ParameterJson,
    ProblemJson,
    former,
)
from coppice.outputs.shapes.training import WhatIfJson


class BoundWithTreesJson(OptimumRatesJson):
    """What a number of trees at each root can have."""

    trees_per_root: int | None
    reached_ns_per_byte: Exact


class NetworkBoundJson(OptimumRatesJson, FormerOptimumRatesJson):
    """The optimum where switches copy and add if they can."""


class LabelsJson(TypedDict):
    """Nodes with one label of a cut that moves."""

    offset_exact_us: Exact
    from_end: bool
    node_names: list[str]


class WitnessJson(TypedDict):
    """What proves a least time: a cut that moves, or prices of links; and the costs of messages that it counts."""

    kind: str
    protocol: str | None
    launch_us: float
    message_us: float
    crossing_us: float
    counts_links: bool
    expansion: float
    workers: int
    send_us: float
    receive_us: float
    gpu_gb_per_s: float | None
    sink: str | None
    sink_names: list[str]
    source_names: list[str]
    representative_names: list[str]
    turned: bool
    joint: bool
    boxed: bool
    needed_to_sink_bytes: Exact | None
    labels: list[LabelsJson]


class LeastTimeJson(TypedDict):
    """The least time of a message size under a time model, with what proves it."""

    size_bytes: int
    least_seconds: float
    least_exact_seconds: Exact
    model_name: str
    model: Annotated[str, former("model_name")]
    limited_by: str
    limit: Annotated[str, former("limited_by")]
    witness: WitnessJson


class BoundJson(ProblemJson, OptimumRatesJson, AlternativesJson):
    """The rate that no schedule exceeds, and the cut that limits it."""

    with_trees: BoundWithTreesJson
    trees_per_root: int | None
    method: str
    holds_for: str
    rate_source: str
    rates: Annotated[str, former("rate_source")]
    with_in_network: NetworkBoundJson | None
    inv_rate: Annotated[Exact, former("with_trees.optimum_ns_per_byte")]
    algbw_gb_per_s: Annotated[float, former("with_trees.optimum_algbw_gb_per_s")]
    algbw_exact: Annotated[Exact, former("with_trees.optimum_algbw_exact_gb_per_s")]
    busbw_gb_per_s: Annotated[float, former("with_trees.optimum_busbw_gb_per_s")]
    busbw_exact: Annotated[Exact, former("with_trees.optimum_busbw_exact_gb_per_s")]
    reached_with_trees_inv_rate: Annotated[Exact, former("with_trees.reached_ns_per_byte")]
    optimum_inv_rate: Annotated[Exact, former("optimum_ns_per_byte")]
    optimum_algbw_exact: Annotated[Exact, former("optimum_algbw_exact_gb_per_s")]


class BoundAtSizesJson(BoundJson):
    """`coppice bound`: the rate that no schedule exceeds, the cut that limits it, and least times of sizes."""

    sizes: NotRequired[list[LeastTimeJson]]


class ProvedTimeJson(TypedDict):
    """A least time whose certificate was counted again."""

    size_bytes: int
    least_seconds: float
    model_name: str


class BoundsVerificationJson(ProblemJson):
    """`coppice verify` of a file of least times: whether each certificate proves its time."""

    verified: bool
    failures: list[str]
    proved_times: list[ProvedTimeJson]


class DemandJson(TypedDict):
    """A collective of equal groups that run at the same time."""

    name: str
    collective: str
    group_count: int
    groups: Annotated[int, former("group_count")]
    ranks: int
    most_bytes: Exact


class PriorityClassJson(TypedDict):
    """Groups that go before others, and when they are done at the earliest, with all before them."""

    kinds: list[str]
    least_seconds: float
    least_exact_seconds: Exact
    limited_by: str
    planned_seconds: NotRequired[float]


class GroupsBoundJson(TypedDict):
    """`coppice bound --groups`: the least time in which a network carries several groups at once."""

    topology: str
    topology_sha256: str
    ranks: int
    least_seconds: float
    least_exact_seconds: Exact
    least_seconds_exact: Annotated[Exact, former("least_exact_seconds")]
    limited_by: str
    sets: list[list[str]]
    direction: str
    limiting_links: list[str]
    links: Annotated[list[str], former("limiting_links")]
    gb_per_s: Exact
    needed_bytes: dict[str, Exact]
    bytes: Annotated[dict[str, Exact], former("needed_bytes")]
    demands: list[DemandJson]
    priority_classes: NotRequired[list[PriorityClassJson]]


class GroupPlanJson(TypedDict):
    """The plan of one group of several at once."""

    name: str
    collective: str
    ranks_of_group: list[int]
    size_bytes: int
    planner: str
    planned_seconds: float
    alone_seconds: float


class GroupPlansJson(TypedDict):
    """`coppice plan --job`: plans of several groups at once, next to the least time of all of them."""

    topology: str
    topology_sha256: str
    ranks: int
    least_seconds: float
    least_exact_seconds: Exact
    limited_by: str
    planned_seconds: float
    planned_exact_seconds: Exact
    gap: float
    shared: bool
    rank_order: list[int] | None
    busiest_link: str
    verified: bool
    priority_classes: list[PriorityClassJson]
    group_plans: list[GroupPlanJson]
    processor_seconds: float


class VerifiedPlanJson(
    ProblemJson,
    OptimumRatesJson,
    LoadRatesJson,
    AlternativesJson,
    FormerPlannedRatesJson,
    FormerOptimumRatesJson,
):
    """What is known of every verified plan: how it was made, its loss, and its busiest link."""

    planner: str
    parameters: dict[str, Any]
    optimal: bool
    loss: Exact
    max_link_load: Exact | None
    worst_link: str | None
    verified: bool
    planning_seconds: float
    seconds: Annotated[float, former("planning_seconds")]
    verify_seconds: float
    seconds_by_stage: dict[str, float]


class PlannedResultJson(VerifiedPlanJson):
    """A verified plan, its rate and the optimum."""

    optimum_algbw_exact: Annotated[Exact, former("optimum_algbw_exact_gb_per_s")]
    ring_algbw_exact_gb_per_s: Exact | None
    ring_algbw_exact: Annotated[Exact | None, former("ring_algbw_exact_gb_per_s")]
    ring_gain: float | None
    trees_per_root: int | None
    optimal_with_trees: bool | None
    loss_with_trees: Exact | None
    fewest_trees: int | None
    distinct_trees: int | None
    max_height: int | None
    mean_height: float | None
    peak_rss_bytes: int


class FastestAtJson(TypedDict):
    """The fastest plan at a size."""

    name: str
    time_us: float


class PlannedForJson(TypedDict):
    """A plan that was chosen for sizes, next to what is fastest at each."""

    name: str
    time_us_by_size: dict[str, float]
    time_us: Annotated[dict[str, float], former("time_us_by_size")]
    fastest: dict[str, FastestAtJson]


class SteadyRatesJson(TypedDict):
    """Rate of a plan in messages of unbounded size."""

    steady_algbw_gb_per_s: float | None
    steady_algbw_exact_gb_per_s: Exact | None


class PlannedTimeJson(LeastTimeJson):
    """What a plan takes at a size, and the least time of any schedule."""

    simulated_seconds: float
    gap: float
    in_any_order_seconds: NotRequired[float]


class SumOrderJson(TypedDict):
    """In which order a plan adds."""

    fixed: bool
    ranks_agree: bool
    name: str
    sum_order: str


class PlanJson(PlannedResultJson, SteadyRatesJson):
    """`coppice plan`: a verified plan, its rate and the optimum."""

    processor_seconds: float
    size_bytes_at_50_percent: int | None
    size_bytes_at_90_percent: int | None
    reached_at_64_gib_algbw_gb_per_s: NotRequired[float]
    algbw_gb_per_s_at_64_gib: NotRequired[Annotated[float, former("reached_at_64_gib_algbw_gb_per_s")]]
    planned_for: NotRequired[PlannedForJson]
    gain_over_direct: NotRequired[float]
    sums: NotRequired[SumOrderJson | None]
    sizes: NotRequired[list[PlannedTimeJson]]
    untried_names: NotRequired[list[str]]
    simulated_seconds: NotRequired[float]
    least_seconds: NotRequired[float]
    gap: NotRequired[float]
    model: ModelJson


class SetTimeJson(TypedDict):
    """What a set of plans takes at a size, next to the fastest plan found and the least time of any schedule."""

    size_bytes: int
    simulated_seconds: float
    fastest_seconds: float
    fastest_name: str
    least_seconds: float
    gap: float
    protocol: str | None


class PlanRangeJson(TypedDict):
    """A range of sizes with its plan."""

    first_bytes: int
    last_bytes: int | None
    plan_file: str | None
    planner: str
    sizes: list[SetTimeJson]


class PlanSetJson(ProblemJson):
    """A set of plans: which is for what size."""

    model_name: str
    least_gain: float
    plan_ranges: list[PlanRangeJson]


class PlannedSetJson(PlanSetJson):
    """`coppice plan -o FOLDER/`: a set of verified plans, and the one plan that would lose least at all sizes."""

    verified: bool
    single_plan: str
    single_loss: float
    processor_seconds: float


class SetVerificationJson(PlanSetJson):
    """`coppice verify` of a set of plans."""

    verified: bool
    failures: list[str]
    checked: dict[str, int]
    sums: SumOrderJson | None


class RepairedPlanJson(ProblemJson, LoadRatesJson, FormerPlannedRatesJson):
    """`coppice plan --repair`: a plan that was fitted to a faulty network."""

    trees_kept: int
    trees_rerouted: int
    trees_made_anew: int
    trees_dropped: int
    before_ns_per_byte: Exact
    inv_rate_before: Annotated[Exact, former("before_ns_per_byte")]
    unmoved_ns_per_byte: Exact | None
    inv_rate_with_trees_unmoved: Annotated[Exact | None, former("unmoved_ns_per_byte")]
    rate_of_before: float | None
    optimum_computed: bool
    optimum_ns_per_byte: Exact | None
    optimum_inv_rate: Annotated[Exact | None, former("optimum_ns_per_byte")]
    loss: Exact | None
    optimal: bool
    verified: bool
    repair_cpu_seconds: float


class ReplannedJson(ProblemJson, OptimumRatesJson, LoadRatesJson):
    """A plan for what faults leave of a network."""

    before_algbw_gb_per_s: float
    before_algbw_exact_gb_per_s: Exact
    before_algbw_exact: Annotated[Exact, former("before_algbw_exact_gb_per_s")]
    unmoved_algbw_exact_gb_per_s: Exact | None
    optimum_algbw_exact: Annotated[Exact, former("optimum_algbw_exact_gb_per_s")]
    cut: list[str]
    cut_in_words: str
    planned_algbw_exact: Annotated[Exact, former("load_algbw_exact_gb_per_s")]
    loss: Exact
    optimal: bool
    verified: bool
    found_by: str
    before_max_height: int | None
    max_height: int | None
    replan_seconds: float
    verify_seconds: float


class SizeAfterFaultsJson(TypedDict):
    """Simulated times of a message size before and after faults."""

    size_bytes: int
    before_seconds: float
    simulated_seconds: float
    fastest_name: str
    fastest_seconds: float


class DegradedJson(ReplannedJson):
    """`coppice degrade`: what faults cost, and the plan for what is left."""

    sizes: NotRequired[list[SizeAfterFaultsJson]]
    model: NotRequired[ModelJson]
    what_if: NotRequired[list[WhatIfJson]]


class VerificationJson(SteadyRatesJson):
    """`coppice verify`: what a plan does, counted without knowledge of how it was made."""

    collective: str
    topology: str
    topology_sha256: str
    ranks: int
    verified: bool
    failures: list[str]
    load_ns_per_byte: Exact | None
    planned_inv_rate: Annotated[Exact | None, former("load_ns_per_byte")]
    load_algbw_gb_per_s: float | None
    planned_algbw_gb_per_s: Annotated[float | None, former("load_algbw_gb_per_s")]
    load_algbw_exact_gb_per_s: Exact | None
    planned_algbw_exact: Annotated[Exact | None, former("load_algbw_exact_gb_per_s")]
    claimed_ns_per_byte: Exact | None
    claimed_inv_rate: Annotated[Exact | None, former("claimed_ns_per_byte")]
    max_link_load: Exact | None
    redundant_share: Exact
    redundant: Annotated[Exact, former("redundant_share")]
    optimum_ns_per_byte: Exact | None
    bound_inv_rate: Annotated[Exact | None, former("optimum_ns_per_byte")]
    bound_proved: bool | None
    proved_ns_per_byte: Exact | None
    proved_inv_rate: Annotated[Exact | None, former("proved_ns_per_byte")]
    trees_per_root_proved: int | None
    with_trees_ns_per_byte: Exact | None
    with_trees_inv_rate: Annotated[Exact | None, former("with_trees_ns_per_byte")]
    fewer_trees_ns_per_byte: Exact | None
    fewer_trees_inv_rate: Annotated[Exact | None, former("fewer_trees_ns_per_byte")]
    proof_in_words: str | None
    optimal: bool
    ordered: bool
    deadlock_free: bool | None
    sums: SumOrderJson | None
    checked: dict[str, int]


class ProgramVerificationJson(TypedDict):
    """`coppice verify` of a program in MSCCL XML or of an execution plan of MSCCL++."""

    collective: str
    name: str
    ranks: int
    verified: bool
    failures: list[str]
    warnings: list[str]
    in_place: bool
    out_of_place: NotRequired[bool]
    fifo_depth: NotRequired[int]
    max_bytes: NotRequired[int | None]
    checked: dict[str, int]


class SignalVerificationJson(TypedDict):
    """`coppice verify` of a program of puts and signals."""

    collective: str
    name: str
    ranks: int
    verified: bool
    failures: list[str]
    in_place: bool
    out_of_place: bool
    graph_safe: bool | None
    chunks: int
    staging_chunks: int
    messages_of_a_gpu: int
    communicator_count: int
    communicators: Annotated[int, former("communicator_count")]
    checked: dict[str, int]


class LinkClassJson(TypedDict):
    """Links with the same kinds of ends, rate and utilisation."""

    from_kind: str
    to_kind: str
    gb_per_s: Exact
    busy_share: Exact
    load: Annotated[Exact, former("busy_share")]
    count: int
    example: list[str]


class HeightJson(TypedDict):
    """Trees of one phase with the same height."""

    phase: str
    height: int
    trees: int
    data_share: Exact
    share: Annotated[Exact, former("data_share")]


class ExplanationJson(TypedDict):
    """`coppice explain`: what limits a plan, how busy its links are, how high its trees."""

    collective: str
    topology: str
    ranks: int
    load_ns_per_byte: Exact
    planned_inv_rate: Annotated[Exact, former("load_ns_per_byte")]
    load_algbw_exact_gb_per_s: Exact | None
    planned_algbw_exact: Annotated[Exact | None, former("load_algbw_exact_gb_per_s")]
    optimal: bool
    bound_proved: bool | None
    cut: list[str] | None
    cut_in_words: str | None
    links: list[LinkClassJson]
    heights: list[HeightJson] | None


class AlgorithmJson(TypedDict):
    """An algorithm that plans can be made by."""

    name: str
    collectives: list[str]
    rank_rule: str
    ranks: Annotated[str, former("rank_rule")]
    roots: str
    topological: bool
    summary: str
    source: str
    parameter_list: list[ParameterJson]
    parameters: Annotated[dict[str, dict[str, int | str]], former("parameter_list")]


class AlgorithmsJson(TypedDict):
    """`coppice algorithms`: the algorithms that plans can be made by."""

    algorithms: list[AlgorithmJson]


class CompiledJson(VerifiedPlanJson):
    """`coppice compile`: a collective written in Python as a verified plan, and as thread blocks."""

    operation_count: int
    operations: Annotated[int, former("operation_count")]
    chunks: int
    transfers: int
    in_place: bool
    instances: int
    protocol: str
    thread_blocks: int | None
    channels: int | None
    steps: int | None
    most_steps: int | None
    steps_by_type: dict[str, int] | None
    max_bytes: int | None
    output: str | None
    program_file: str | None


class ImportedJson(ProblemJson, LoadRatesJson):
    """`coppice import`: a file of MSCCL or MSCCL++ as a verified plan."""

    name: str
    chunks: int
    thread_blocks: int
    transfers: int
    algbw_gb_per_s: Annotated[float, former("load_algbw_gb_per_s")]
    algbw_exact: Annotated[Exact, former("load_algbw_exact_gb_per_s")]
    output: str | None


class ReductionCallJson(TypedDict):
    """A grouped collective of a reduction program."""

    slice: str | None
    form: str
    ancestor: str | None
    operation: str
    time_us: float


class ReductionProgramJson(TypedDict):
    """A sequence of grouped collectives that performs a reduction."""

    words: str
    calls: list[ReductionCallJson]
    time_us: float


class ReductionJson(TypedDict):
    """A reduction along axes under one placement."""

    reduced_axes: list[str]
    axes: Annotated[list[str], former("reduced_axes")]
    size_bytes: int
    group_count: int
    groups: Annotated[int, former("group_count")]
    group_size: int
    levels: dict[str, int]
    program: str
    time_us: float
    bound_us: float
    bound_in_words: str
    programs_found: int
    programs_left_out: int
    programs: list[ReductionProgramJson]


class PlacedAxesJson(TypedDict):
    """Parallel axes mapped to GPUs, with the times of their reductions."""

    placement: str
    matrix: list[list[int]]
    program: str
    time_us: float
    bound_us: float
    reductions: list[ReductionJson]


class BestPlacementJson(PlacedAxesJson):
    """The fastest placement, with its groups of ranks."""

    reduction_groups: list[list[list[int]]]
    groups: Annotated[list[list[list[int]]], former("reduction_groups")]
    model_name: str
    model: Annotated[str, former("model_name")]
    verified_groups: int | None


class PlacementJson(TypedDict):
    """`coppice placement`: parallel axes mapped to GPUs, the fastest placement first."""

    topology: str
    topology_sha256: str
    ranks: int
    hierarchy: dict[str, int]
    devices: list[int]
    axes: dict[str, int]
    model_name: str
    model: Annotated[str, former("model_name")]
    timing: str
    placements: int
    best: BestPlacementJson
    default_placement: PlacedAxesJson | None
    default: Annotated[PlacedAxesJson | None, former("default_placement")]
    default_factor: float | None
    spread: float
    interrupted: bool
    all: list[PlacedAxesJson]
