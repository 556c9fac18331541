"""Topologies, their presets, probes of networks, emulated networks, designed graphs."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from coppice.outputs.shapes.nouns import Exact, ModelJson, ParameterJson, former


class PresetParameterJson(TypedDict):
    """A parameter of a preset."""

    name: str
    default: int | str
    summary: str
    description: Annotated[str, former("summary")]


class PresetJson(TypedDict):
    """A topology with a name."""

    name: str
    summary: str
    description: Annotated[str, former("summary")]
    source: str
    parameter_list: list[ParameterJson]
    parameters: Annotated[list[PresetParameterJson], former("parameter_list")]


class PresetsJson(TypedDict):
    """`coppice topology list`: topologies with names."""

    presets: list[PresetJson]


class HostsJson(TypedDict):
    """Hosts with the same number of ranks."""

    ranks: int
    count: int


LinkGroupJson = TypedDict(
    "LinkGroupJson", {"from": str, "to": str, "gb_per_s": Exact, "count": int, "duplex": bool}
)
LinkGroupJson.__doc__ = "Links between nodes of the same kinds, with the same rate."


class GpuRatesJson(TypedDict):
    """GPUs with the same rates."""

    in_gb_per_s: Exact
    out_gb_per_s: Exact
    count: int


class ImbalanceJson(TypedDict):
    """A switch that takes in more than it lets out, or less."""

    node: str
    in_gb_per_s: Exact
    out_gb_per_s: Exact


class TopologyJson(TypedDict):
    """`coppice topology show`: nodes, links, what GPUs can send, hosts, warnings."""

    name: str
    source: str
    sha256: str
    ranks: int
    relays: int
    nodes_by_kind: dict[str, int]
    nodes: Annotated[dict[str, int], former("nodes_by_kind")]
    hosts: list[HostsJson]
    link_count: int
    links: Annotated[int, former("link_count")]
    link_groups: list[LinkGroupJson]
    gpus: list[GpuRatesJson]
    denominator: int
    imbalances: list[ImbalanceJson]
    warnings: list[str]


class WrittenTopologyJson(TopologyJson):
    """`coppice topology import`, `compose`, `subset`, `degrade`: the topology that was written."""

    output: str


class ExperimentJson(TypedDict):
    """Flows that were measured at the same time."""

    kind: str
    flows: list[list[int]]
    weights: list[int]
    rate_gb_per_s: float
    gb_per_s: Annotated[float, former("rate_gb_per_s")]


ProbedLinkJson = TypedDict(
    "ProbedLinkJson",
    {
        "from": str,
        "to": str,
        "expected_gb_per_s": float,
        "measured_gb_per_s": float,
        "tested": bool,
        "below": bool,
    },
)
ProbedLinkJson.__doc__ = "A link that was expected, and what it carried."


class ProbeJson(TypedDict):
    """`coppice probe`: the network between launched processes, measured."""

    rank_groups: list[list[int]]
    groups: Annotated[list[list[int]], former("rank_groups")]
    experiments: list[ExperimentJson]
    cut: list[str]
    bottleneck_cut: Annotated[list[str], former("cut")]
    optimum_algbw_gb_per_s: float
    all_gather_gb_per_s: Annotated[float, former("optimum_algbw_gb_per_s")]
    links: list[ProbedLinkJson]


class DesignedProbeJson(TypedDict):
    """A flow to measure while the others of its round run."""

    round_number: int
    rank_pair: list[int]
    ranks: Annotated[list[int], former("rank_pair")]
    link_names: list[str]
    links: Annotated[list[str], former("link_names")]
    expected_gb_per_s: float
    measured_gb_per_s: NotRequired[float]
    repeated_gb_per_s: NotRequired[list[float]]


class ProbeDesignJson(TypedDict):
    """`coppice diagnose design`: flows that distinguish slow parts of a network."""

    topology: str
    topology_sha256: str
    topology_document: dict[str, Any]
    part_count: int
    round_names: list[str]
    fewest_rounds: int
    probes: list[DesignedProbeJson]
    undistinguished: list[list[str]]
    unseen: list[str]


class SlowPartJson(TypedDict):
    """A slow part of a network."""

    kind: str
    name: str
    kept_share: float


class OtherPartJson(TypedDict):
    """A part that may be the slow one."""

    name: str
    probability: float


class FlowEvidenceJson(TypedDict):
    """A flow that passes a slow part."""

    rank_pair: list[int]
    measured_gb_per_s: float
    expected_gb_per_s: float


class DiagnosedJson(TypedDict):
    """`coppice diagnose results`: what is slow by the rates of flows."""

    topology: str
    culprits: list[SlowPartJson]
    confidence: float
    healthy_probability: float
    others: list[OtherPartJson]
    noise_share: float
    flows_seen: int
    evidence_flows: list[FlowEvidenceJson]
    cut_links: list[str]


class SignalCostsJson(TypedDict):
    """`coppice probe --costs`: what puts and signals cost; those of a network only between hosts."""

    copy_us: NotRequired[float]
    wave_us: NotRequired[float]
    signal_us: NotRequired[float]
    wait_us: NotRequired[float]
    proxy_us: NotRequired[float]
    request_us: NotRequired[float]
    told_us: NotRequired[float]
    launch_us: NotRequired[float]
    memory_gb_per_s: NotRequired[float]


class LabJson(TypedDict):
    """`coppice lab up`, `status`: an emulated network."""

    name: str
    topology_file: str
    topology: Annotated[str, former("topology_file")]
    rate_scale: str
    scale: Annotated[str, former("rate_scale")]
    node_count: int
    nodes: Annotated[int, former("node_count")]
    ranks: int
    cables: int
    slowest_mbit_per_s: float
    fastest_mbit_per_s: float
    load_gbit_per_s: float
    limit_gbit_per_s: float
    addresses: list[str]


LabLinkJson = TypedDict(
    "LabLinkJson",
    {"from": str, "to": str, "mbit_per_s": float, "measured_mbit_per_s": float, "ok": bool},
)
LabLinkJson.__doc__ = "A link of an emulated network, and what a TCP stream measured."


class LabCheckJson(TypedDict):
    """`coppice lab check`: every link of an emulated network, measured."""

    links: list[LabLinkJson]
    ok: bool


LabTrafficLinkJson = TypedDict(
    "LabTrafficLinkJson",
    {"from": str, "to": str, "link_bytes": float, "bytes": Annotated[float, former("link_bytes")]},
)
LabTrafficLinkJson.__doc__ = "What a link of an emulated network has carried."


class LabTrafficJson(TypedDict):
    """`coppice lab bytes`: what the links of an emulated network have carried."""

    links: list[LabTrafficLinkJson]


class LabDownJson(TypedDict):
    """`coppice lab down`: emulated networks that were removed."""

    labs: list[str]
    namespaces: NotRequired[int]


class GraphJson(TypedDict):
    """A graph that a recipe makes, and how fast its best known schedule is."""

    recipe: str
    ranks: int
    degree: int
    steps: int
    moore_steps: int
    t_b: Exact
    t_b_least: Exact
    exact: bool
    bidirectional: bool


class GraphWorkloadJson(TypedDict):
    """A collective that graphs are compared by."""

    collective: str
    size_bytes: int
    alpha_us: float
    node_gb_per_s: Exact


class GraphOptionJson(TypedDict):
    """A network that was considered, and its time."""

    name: str
    found: bool
    ports: int
    steps: int
    t_b: Exact
    time_us: float


class GraphFrontJson(TypedDict):
    """`coppice design` of one number of ranks and degree: graphs that no other one dominates."""

    ranks: int
    degree: int
    bidirectional: bool
    front: list[GraphJson]
    workload: NotRequired[GraphWorkloadJson]
    options: NotRequired[list[GraphOptionJson]]


class GraphFrontsJson(TypedDict):
    """`coppice design` of several numbers of ranks or degrees."""

    fronts: list[GraphJson]


class GraphDesignJson(TypedDict):
    """`coppice design show`: a graph with its schedule, verified and simulated."""

    recipe: str
    ranks: int
    degree: int
    link_count: int
    links: Annotated[int, former("link_count")]
    bidirectional: bool
    collective: str
    steps: int | None
    moore_steps: int
    step_loads: list[Exact] | None
    t_b: Exact | None
    t_b_least: Exact
    pieces: int | None
    planner: str
    loss_by_pieces: Exact | None
    load_ns_per_byte: Exact
    inv_rate: Annotated[Exact, former("load_ns_per_byte")]
    optimum_ns_per_byte: Exact
    bound_inv_rate: Annotated[Exact, former("optimum_ns_per_byte")]
    cut: list[str]
    bound_cut: Annotated[list[str], former("cut")]
    share_of_optimum: float
    verified: bool
    failures: list[str]
    checked: dict[str, int]
    model: ModelJson
    simulated_us: dict[str, float]
    forest_simulated_us: dict[str, float]


class GraphScheduleJson(TypedDict):
    """`coppice design schedule`: the breadth-first schedule of a graph."""

    topology: str
    topology_sha256: str
    ranks: int
    collective: str
    steps: int
    step_loads: list[Exact]
    t_b: Exact
    pieces: int
    loss_by_pieces: Exact
    transfers: int
    load_ns_per_byte: Exact
    inv_rate: Annotated[Exact, former("load_ns_per_byte")]
    verified: bool
    failures: list[str]


class CablingJson(TypedDict):
    """`coppice design cabling`: cables of a graph, and the panels that they cross."""

    recipe: str
    kind: str
    count: int
    panels: int
    across_panels: int


class WorkloadTimingJson(TypedDict):
    """Time of a collective of a workload on a network that can be bought."""

    time_us: float
    how: str


class QuoteJson(TypedDict):
    """A network that can be bought: parts, cost, times."""

    network: str
    nic_ports: int
    switches: dict[str, int]
    cables: int
    fibres: int
    cost: float
    timings: list[WorkloadTimingJson]
    collectives: Annotated[list[WorkloadTimingJson], former("timings")]
    iteration_us: float
    cost_per_rate: float
    slowdown_mean: float | None
    slowdown_worst: float | None
    cut_off: float | None


class MarketJson(TypedDict):
    """`coppice design compare`: networks by cost and by the time of a workload."""

    ranks: int
    model: ModelJson
    currency: str
    quotes: list[QuoteJson]
