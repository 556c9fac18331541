"""Training iterations: estimates, layouts, policies, traces, modules, learning rates."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from coppice.outputs.shapes.nouns import former


class ExpectedRangeJson(TypedDict):
    """Range in which published runs lie, around an estimate."""

    low_seconds: float
    high_seconds: float
    expected_share: float
    share: Annotated[float, former("expected_share")]
    runs: int
    like: str


class AnchorJson(TypedDict):
    """A measured step that an estimate is corrected by."""

    measured_seconds: float
    estimated_seconds: float


class PathPartJson(TypedDict):
    """A part of the critical path of an iteration."""

    part: str
    name: str
    group: str
    link_name: str
    link: Annotated[str, former("link_name")]
    seconds: float


class LowerBoundsJson(TypedDict):
    """What no order of an iteration undercuts."""

    path_seconds: float
    stream: str
    stream_seconds: float
    link_name: str
    link: Annotated[str, former("link_name")]
    link_seconds: float


class DegreesJson(TypedDict):
    """A parallel layout by the names that frameworks use."""

    tp: int
    pp: int
    dp: int
    ep: int
    chunks: int
    micro_batch: int
    global_batch: int


class WayJson(TypedDict):
    """A way to go on after a change, and its time."""

    way: str
    policy: str | None
    gpu_count: int
    gpus: Annotated[int, former("gpu_count")]
    iteration_seconds: float
    samples_per_second: float
    fits: bool
    layout: DegreesJson


class WhatIfJson(TypedDict):
    """A change to the cluster, and the ways to go on."""

    change: str
    best_way: str
    best: Annotated[str, former("best_way")]
    why_not: str
    ways: list[WayJson]


class RoutedStepJson(TypedDict):
    """A training step under a routing of tokens to experts."""

    name: str
    busiest_rank_load: float
    exchange_slowdown: float
    dropped_token_share: float
    expert_copies: int
    iteration_seconds: float


class EstimateJson(TypedDict):
    """`coppice train estimate`: time, memory and lower bounds of an iteration."""

    iteration_seconds: float
    expected_range: ExpectedRangeJson | None
    anchors: list[AnchorJson]
    mfu: float
    samples_per_second: float
    tokens_per_second: float | None
    memory_bytes: float
    memory_bytes_by_part: dict[str, float]
    memory_by_part: Annotated[dict[str, float], former("memory_bytes_by_part")]
    fits: bool
    fit: str
    collective_costs: str
    collectives: Annotated[str, former("collective_costs")]
    model_name: str | None
    model: Annotated[str | None, former("model_name")]
    policy: str | None
    device: str
    order: str
    overlap: str
    simulated_seconds: float
    seconds_by_part: dict[str, float]
    critical_path: list[PathPartJson]
    least_seconds: float
    lower_bound_seconds: float
    lower_bounds: LowerBoundsJson
    routing: NotRequired[str]
    expert_placement: NotRequired[str]
    even_seconds: NotRequired[float]
    routed: NotRequired[list[RoutedStepJson]]
    what_if: NotRequired[list[WhatIfJson]]


class PlannedEstimateJson(TypedDict):
    """`coppice train estimate` of a policy that plans whole iterations."""

    iteration_seconds: float
    lower_bound_seconds: float
    memory_bytes: float
    policy: str
    routing: NotRequired[str]
    expert_placement: NotRequired[str]
    even_seconds: NotRequired[float]
    routed: NotRequired[list[RoutedStepJson]]
    what_if: NotRequired[list[WhatIfJson]]


class LayoutJson(TypedDict):
    """A parallel layout with its time and memory."""

    tensor: int
    pipeline: int
    data: int
    expert: int
    chunks: int
    micro_batch: int
    recompute: str
    shard: str
    iteration_seconds: float
    simulated_seconds: float
    closed_form_seconds: float
    mfu: float
    memory_bytes: float
    fit: str
    why: str


class LayoutsJson(TypedDict):
    """`coppice train search`: parallel layouts, the fastest first."""

    tried: int
    too_large: int
    fitting: int
    simulated: int
    layouts: list[LayoutJson]
    indistinguishable: int


class PipelineOrderJson(TypedDict):
    """`coppice train pipeline`: the order of passes of a pipeline, written for PyTorch."""

    order: str
    ranks: int
    stages: int
    micro_batches: int
    placement: str
    iteration_seconds: float
    bubble_seconds: float
    model_name: str
    model: Annotated[str, former("model_name")]
    device: str
    output: str


class RankGroupJson(TypedDict):
    """Groups of ranks at a distance."""

    ranks: int
    stride: int


class TorchProfileJson(TypedDict):
    """`coppice train torch-profile`: times of collectives for torch.compile."""

    groups: list[RankGroupJson]
    time_count: int
    times: Annotated[int, former("time_count")]
    collective_costs: str
    collectives: Annotated[str, former("collective_costs")]
    model_name: str
    model: Annotated[str, former("model_name")]
    output: str


class IterationPageJson(TypedDict):
    """`coppice train report`: a page about an iteration."""

    output: str
    output_bytes: int
    bytes: Annotated[int, former("output_bytes")]
    iteration_seconds: float


class PolicyPlanJson(TypedDict):
    """`coppice train policy`: an iteration as a policy plans it."""

    policy: str
    iteration_seconds: float
    lower_bound_seconds: float
    compute_seconds: float
    period: int | None
    staleness: int


class ComparedPolicyJson(TypedDict):
    """A policy, and what it takes."""

    policy: str
    family: str
    iteration_seconds: float
    gain: float | None
    lower_bound_seconds: float
    exposed_seconds: float | None
    messages: int | None
    memory_bytes: float | None
    fits: bool | None
    staleness: int


class RefusedPolicyJson(TypedDict):
    """A policy that does not suit a job."""

    policy: str
    reason: str


class ComparedPoliciesJson(TypedDict):
    """`coppice train compare`: policies by the time of an iteration."""

    job: str
    compute_seconds_by_family: dict[str, float]
    compute_seconds: Annotated[dict[str, float], former("compute_seconds_by_family")]
    lower_bound_seconds_by_family: dict[str, float]
    lower_bound_seconds: Annotated[dict[str, float], former("lower_bound_seconds_by_family")]
    baseline: dict[str, str]
    rows: list[ComparedPolicyJson]
    refused: list[RefusedPolicyJson]


class NearlyBestJson(TypedDict):
    """Values of a setting that take at most 1% longer."""

    least: float
    most: float
    worst_seconds: float


class TunedPolicyJson(TypedDict):
    """`coppice train tune`: the best settings of a policy."""

    job: str
    policy: str
    settings: dict[str, Any]
    iteration_seconds: float
    default_seconds: float | None
    default_reason: str | None
    saved_share: float | None
    gain: Annotated[float | None, former("saved_share")]
    within_1_percent: dict[str, NearlyBestJson]
    trials: int


class AdvisedPolicyJson(TypedDict):
    """A policy, its time, and what it takes to run it."""

    policy: str
    iteration_seconds: float
    share_of_possible_gain: float
    assumes: list[str]
    stock: list[str]


class AdviceJson(TypedDict):
    """`coppice train advise`: which policies are worth their trouble."""

    job: str
    baseline_seconds: float
    lower_bound_seconds: float
    possible_gain_seconds: float
    worth_its_trouble: AdvisedPolicyJson | None
    left_seconds: float
    best: AdvisedPolicyJson
    best_by_flags: AdvisedPolicyJson | None
    sentences: list[str]


class TrainingModelJson(TypedDict):
    """A model that jobs may name."""

    name: str
    sample: str
    layer_count: int
    layers: Annotated[int, former("layer_count")]
    parameter_count: int
    parameters: Annotated[int, former("parameter_count")]
    forward_flops: float


class TrainingModelsJson(TypedDict):
    """`coppice train models`: models that jobs may name."""

    models: list[TrainingModelJson]


class DeviceJson(TypedDict):
    """`coppice train measure`: what a device reaches."""

    name: str
    tflops_per_s: float
    bytes_per_second: float
    output: str


class CollectiveTotalJson(TypedDict):
    """Collectives of one kind and group in a trace."""

    collective: str
    group: str
    ranks: int | None
    count: int
    size_bytes: int


class ProfileJson(TypedDict):
    """`coppice train import` of a trace of PyTorch's profiler: the step, replayed."""

    kind: str
    span_us: float
    step_us: dict[str, float]
    steps: Annotated[dict[str, float], former("step_us")]
    steps_us: list[float]
    operation_count: int
    operations: Annotated[int, former("operation_count")]
    busy_us_by_kind: dict[str, float]
    busy_us: Annotated[dict[str, float], former("busy_us_by_kind")]
    totals: list[CollectiveTotalJson]
    collectives: Annotated[list[CollectiveTotalJson], former("totals")]
    scale: dict[str, float]
    replay_us: float
    notes: list[str]


class ExecutionTracesJson(TypedDict):
    """`coppice train import` of execution traces: ranks, replayed together."""

    kind: str
    rank_list: list[int]
    ranks: Annotated[list[int], former("rank_list")]
    node_count: int
    nodes: Annotated[int, former("node_count")]
    totals: list[CollectiveTotalJson]
    collectives: Annotated[list[CollectiveTotalJson], former("totals")]
    messages_met: int
    messages_alone: int
    without_time: int
    scale: dict[str, float]
    replay_us: float
    lower_bound_us: float


class ModuleLayerJson(TypedDict):
    """A layer of a traced module: its work in both passes."""

    name: str
    kind: str
    parameter_count: int
    parameters: Annotated[int, former("parameter_count")]
    gradient_bytes: int
    forward_flops: float
    forward_moved_bytes: float
    forward_seconds: NotRequired[float]
    backward_flops: float
    backward_moved_bytes: float
    backward_seconds: NotRequired[float]


ModuleOperationJson = TypedDict(
    "ModuleOperationJson",
    {
        "name": str,
        "layer": str | None,
        "pass": str,
        "collective": NotRequired[str],
        "size_bytes": NotRequired[int],
        "rank_list": NotRequired[list[int]],
        "ranks": NotRequired[Annotated[list[int], former("rank_list")]],
        "flops": NotRequired[float],
        "moved_bytes": NotRequired[float],
        "seconds": NotRequired[float],
        "start_seconds": NotRequired[float],
        "start": NotRequired[Annotated[float, former("start_seconds")]],
        "finish_seconds": NotRequired[float],
        "finish": NotRequired[Annotated[float, former("finish_seconds")]],
    },
)
ModuleOperationJson.__doc__ = "An operation of a traced module."


class ModuleJson(TypedDict):
    """`coppice train import` of a module of PyTorch: its layers, operations and collectives."""

    kind: str
    module: str
    torch: str
    ranks: int
    mesh: dict[str, int]
    parameter_count: int
    parameters: Annotated[int, former("parameter_count")]
    layers: list[ModuleLayerJson]
    totals: list[CollectiveTotalJson]
    collectives: Annotated[list[CollectiveTotalJson], former("totals")]
    device: NotRequired[str]
    iteration_seconds: NotRequired[float]
    compute_seconds: NotRequired[float]
    communication_seconds: NotRequired[float]
    lower_bound_seconds: NotRequired[float]
    operations: list[ModuleOperationJson]


CapturedCollectiveJson = TypedDict(
    "CapturedCollectiveJson",
    {
        "collective": str,
        "size_bytes": int,
        "rank_list": list[int],
        "layer": str | None,
        "pass": str,
    },
)
CapturedCollectiveJson.__doc__ = "A collective or send of a captured step."


class CapturedStageJson(TypedDict):
    """A captured rank of a pipeline."""

    rank: int
    flops: float
    peak_memory_bytes: int


class CaptureJson(TypedDict):
    """`coppice train capture`: FLOPs, collectives in order, memory and the job of a step of a script."""

    script: str
    arguments: list[str]
    rank: int
    rank_count: int
    step_count: int
    device: str
    torch: str
    flops: float
    forward_flops: float
    backward_flops: float
    recomputed_flops: float
    peak_memory_bytes: int
    memory_bytes_by_kind: dict[str, int]
    parameter_count: int
    totals: list[CollectiveTotalJson]
    issued: list[CapturedCollectiveJson]
    setup_totals: list[CollectiveTotalJson]
    captured_ranks: list[CapturedStageJson]
    job_text: str | None
    not_recognised: list[str]
    notes: list[str]
    iteration_seconds: NotRequired[float]
    operations_seconds: NotRequired[float]
    compute_seconds: NotRequired[float]
    communication_seconds: NotRequired[float]


class RatePhaseJson(TypedDict):
    """A stage of a learning rate schedule."""

    phase: str
    stage: int
    lr: float
    first_step: int
    step_count: int
    steps: Annotated[int, former("step_count")]


class LearningRatesJson(TypedDict):
    """`coppice train lr-report`: the learning rates that AutoLRS found."""

    method: str
    schedule: list[RatePhaseJson]
    search_steps: int
    lost_steps: int
    finished: bool


class LrMethodJson(TypedDict):
    """A method of learning rates on a task."""

    method: str
    peak_lr: float | None
    kept_steps_to_goal: float | None
    made_steps_to_goal: float | None
    kept_speedup: float | None
    made_speedup: float | None
    reached_seed_count: int
    test_losses: list[float]


class LrTaskJson(TypedDict):
    """A small training by several methods."""

    task: str
    kept_step_count: int
    seed_count: int
    goal_loss: float
    methods: list[LrMethodJson]
    left_out: list[str]


class LrComparisonJson(TypedDict):
    """`coppice train lr-compare`: small trainings by several methods."""

    tasks: list[LrTaskJson]
