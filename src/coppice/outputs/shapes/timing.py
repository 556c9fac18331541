"""Simulated, compared, modelled, predicted and measured times of collectives."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from coppice.outputs.shapes.nouns import Exact, ModelJson, ProblemJson, former


class HashedTimesJson(TypedDict):
    """Times under many hashes of default routes."""

    times_us: list[float]
    median_us: float
    p99_us: float
    multipath_us: float


class BusyLinkJson(TypedDict):
    """A link, and what it does in a simulation."""

    link: list[str]
    busy_us: float
    link_bytes: float
    bytes: Annotated[float, former("link_bytes")]
    utilisation: float


class PickJson(TypedDict):
    """What a library picks at a size, and the estimate of its own model."""

    library: str
    library_version: str
    pick: str
    channels: int | None
    channels_filled: int | None
    threads: int | None
    predicted_us: float | None
    predicted_by: str | None


class SimulatedSizeJson(TypedDict):
    """A plan simulated at one size."""

    size_bytes: int
    pieces: int
    protocol: str | None
    messages: int
    time_us: float
    reached_algbw_gb_per_s: float
    reached_busbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("reached_algbw_gb_per_s")]
    busbw_gb_per_s: Annotated[float, former("reached_busbw_gb_per_s")]
    optimum_us: float
    share_of_optimum: float
    hashed: HashedTimesJson | None
    critical_us: dict[str, float]
    library_pick: PickJson | None
    links: list[BusyLinkJson]


class SimulatedSizesJson(TypedDict):
    """`coppice simulate` of several sizes: a plan, its model, the time at each size."""

    collective: str
    topology: str
    topology_sha256: str
    ranks: int
    planner: str
    model: ModelJson
    sizes: list[SimulatedSizeJson]


class SimulatedJson(SimulatedSizesJson, SimulatedSizeJson):
    """`coppice simulate` of one size, whose figures stand at the top as well."""


class CollisionWayJson(TypedDict):
    """Hashes of routes under one way of sending: times of the busiest link over that of even spreading."""

    name: str
    p50: float
    p90: float
    p99: float
    worst: float


class CollisionsJson(TypedDict):
    """Collisions of hashed routes, and what was tried against them."""

    hashes: int
    hashed_flows: int
    against_collisions: list[CollisionWayJson]
    helps_most: str
    worst_pair: list[int]
    worst_pair_share: float
    chosen_mean: float
    chosen_mean_expected: float | None


class CollisionsOutputJson(CollisionsJson):
    """`coppice simulate --percentiles`: collisions of the hashed routes of a plan."""

    collective: str
    topology: str
    topology_sha256: str
    ranks: int
    root: int | None


class SharedLinkJson(TypedDict):
    """The link that slows a job, since others use it meanwhile."""

    link: list[str]
    own_us: float
    others_us: dict[str, float]


class SimulatedJobJson(TypedDict):
    """One of several jobs that run at the same time."""

    name: str
    collective: str
    size_bytes: int
    start_us: float
    pieces: int
    time_us: float
    alone_us: float
    slowdown: float
    shared_link: SharedLinkJson | None


class SimulatedJobsJson(TypedDict):
    """`coppice simulate` of a file of jobs: several collectives at the same time."""

    topology: str
    ranks: int
    time_us: float
    jobs: list[SimulatedJobJson]


class OptimumJson(TypedDict):
    """The rate that no schedule exceeds, and what limits it."""

    optimum_algbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("optimum_algbw_gb_per_s")]
    optimum_algbw_exact_gb_per_s: Exact
    algbw_exact: Annotated[Exact, former("optimum_algbw_exact_gb_per_s")]
    cut_in_words: str


class LatencyBoundJson(TypedDict):
    """The least time of any schedule, however small the message."""

    time_us: float
    why: str


class SizeRangeJson(TypedDict):
    """Neighbouring sizes with the same fastest algorithm."""

    algorithm: str
    first_bytes: int
    last_bytes: int
    variants: str
    rival: str | None
    why: str
    share_of_limit: float
    text: str


class LibraryPickJson(TypedDict):
    """What NCCL, or RCCL on AMD's GPUs, is expected to pick at a size."""

    size_bytes: int
    library: str
    pick: str
    algorithm: str | None
    channels: int | None
    predicted_us: float | None
    predicted_by: str | None
    time_us: float | None
    ratio: float | None
    switches_used: bool
    in_network: Annotated[bool, former("switches_used")]


class ComparisonRowJson(TypedDict):
    """An algorithm at a size; figures are null where it does not apply."""

    topology: str
    collective: str
    ranks: int
    size_bytes: int
    algorithm: str
    parameters_text: str
    parameters: Annotated[str, former("parameters_text")]
    order: str
    pieces: int | None
    relays_used: bool | None
    relays: Annotated[bool | None, former("relays_used")]
    switches_used: bool | None
    in_network: Annotated[bool | None, former("switches_used")]
    time_us: float | None
    reached_algbw_gb_per_s: float | None
    reached_busbw_gb_per_s: float | None
    algbw_gb_per_s: Annotated[float | None, former("reached_algbw_gb_per_s")]
    busbw_gb_per_s: Annotated[float | None, former("reached_busbw_gb_per_s")]
    limit_us: float
    share_of_limit: float | None
    chain: int | None
    sent_bytes: int | None
    link_name: str | None
    link: Annotated[str | None, former("link_name")]
    link_us: float | None
    gap: float | None
    synthesis_seconds: float | None
    refusal: str | None


class PlacedSystemJson(TypedDict):
    """Where a system that aggregates in the network lies on a cluster, and its rates."""

    where: str
    load_algbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("load_algbw_gb_per_s")]
    load_algbw_exact_gb_per_s: Exact
    algbw_exact: Annotated[Exact, former("load_algbw_exact_gb_per_s")]
    optimum_algbw_gb_per_s: float
    bound_algbw_gb_per_s: Annotated[float, former("optimum_algbw_gb_per_s")]
    optimum_algbw_exact_gb_per_s: Exact
    bound_algbw_exact: Annotated[Exact, former("optimum_algbw_exact_gb_per_s")]
    tiers: int


class SystemTimeJson(TypedDict):
    """Closed-form time of a system at a size."""

    system: str
    size_bytes: int
    time_us: float
    reached_algbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("reached_algbw_gb_per_s")]


class ModelledSystemsJson(TypedDict):
    """Systems that aggregate in the network, by their closed forms."""

    placed_systems: dict[str, PlacedSystemJson]
    systems: Annotated[dict[str, PlacedSystemJson], former("placed_systems")]
    times: list[SystemTimeJson]
    refusals: dict[str, str]


class ComparisonJson(ProblemJson):
    """`coppice compare`: every algorithm at every size, and the bounds."""

    model: ModelJson
    optimum: OptimumJson
    latency_bound: LatencyBoundJson
    ranges: list[SizeRangeJson]
    best: Annotated[list[SizeRangeJson], former("ranges")]
    nccl: list[LibraryPickJson]
    refusals: dict[str, str]
    rows: list[ComparisonRowJson]
    in_network: ComparisonJson | None
    modelled: ModelledSystemsJson | None


class ComparisonsJson(TypedDict):
    """`coppice compare` of several topologies or collectives."""

    comparisons: list[ComparisonJson]


class RivalJson(TypedDict):
    """The fastest algorithm of a family, and the gain over it."""

    algorithm: str
    reached_algbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("reached_algbw_gb_per_s")]
    gain: float


class GainRowJson(TypedDict):
    """The optimal planner at a number of boxes, and the fastest of other families."""

    boxes: int
    ranks: int
    algorithm: str
    reached_algbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("reached_algbw_gb_per_s")]
    limit_algbw_gb_per_s: float
    ring: RivalJson | None
    hierarchical: RivalJson | None


class GainJson(TypedDict):
    """`coppice compare --gain`: the gain of the optimal planner over the number of boxes."""

    size_bytes: int
    model: ModelJson
    rows: list[GainRowJson]
    sentences: list[str]
    words: Annotated[list[str], former("sentences")]


class KnownModelJson(ModelJson):
    """A time model with a name."""

    about: str


class KnownModelsJson(TypedDict):
    """`coppice model list`: time models with names."""

    models: list[KnownModelJson]


class SourcedModelJson(ModelJson):
    """`coppice model show`: a time model, and the sources of its figures."""

    sources: dict[str, str]


class FittedTimeJson(TypedDict):
    """A measured time, and that of the fitted model."""

    algorithm: str
    size_bytes: int
    time_us: float
    predicted_us: float


class FittedModelJson(TypedDict):
    """`coppice model fit`: a time model that was fitted to measured times."""

    model: ModelJson
    figures: list[str]
    mean_error: float
    worst_error: float
    rows: list[FittedTimeJson]


class DecisionStepJson(TypedDict):
    """A rule that a library looks at on its way to a choice."""

    table: str
    rule: str
    with_values: str
    values: Annotated[str, former("with_values")]
    held: bool
    depth: int


class CostCellJson(TypedDict):
    """Figures of the cost model of a library for an algorithm and a protocol."""

    algorithm: str
    protocol: str
    time_us: float | None
    promised_us: float | None
    latency_us: float
    rate_gb_per_s: float
    gb_per_s: Annotated[float, former("rate_gb_per_s")]
    terms: list[str]
    unavailable: str | None


class LibraryChoiceJson(TypedDict):
    """What a library picks for a call, and why."""

    library: str
    library_version: str
    source: str
    function: str
    collective: str
    ranks: int
    size_bytes: int
    component: str
    algorithm: str
    algorithm_id: int | None
    id: Annotated[int | None, former("algorithm_id")]
    runs_as: str
    protocol: str | None
    time_us: float | None
    promised_us: float | None
    predicted_by: str | None
    channels: int | None
    channels_filled: int | None
    threads: int | None
    ours: str | None
    parameters: dict[str, Any]
    reason: str | None
    decision: list[DecisionStepJson]
    why: Annotated[list[DecisionStepJson], former("decision")]
    parts: list[ChoicePartJson]
    assumptions: list[str]
    notes: list[str]
    cells: list[CostCellJson]


class ChoicePartJson(LibraryChoiceJson):
    """What a library picks for a part of a call."""

    role: str
    version: Annotated[str, former("library_version")]


class SelectionJson(LibraryChoiceJson):
    """`coppice select`: what a library picks for a call, and why."""


class ListedSelectionJson(LibraryChoiceJson):
    """What a library picks for one of several calls, and why."""

    version: Annotated[str, former("library_version")]


class SelectionsJson(TypedDict):
    """`coppice select` of several sizes."""

    selections: list[ListedSelectionJson]


class BenchRowJson(TypedDict):
    """`coppice bench`: an algorithm at a size, measured; a line each."""

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    in_place: bool
    pieces: int
    time_us: float
    fastest_us: float
    slowest_us: float
    reached_algbw_gb_per_s: float
    reached_busbw_gb_per_s: float
    algbw_gb_per_s: Annotated[float, former("reached_algbw_gb_per_s")]
    busbw_gb_per_s: Annotated[float, former("reached_busbw_gb_per_s")]
    wrong: int
    cores_busy: float
    refusal: str
    skew: str
