"""Aggregation in the network: models, placements, searches, servers, generated programs."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from coppice.outputs.shapes.nouns import Exact, former
from coppice.outputs.shapes.timing import ModelledSystemsJson


class SplitJson(TypedDict):
    """The best share of a tensor to reduce in the network, the rest by hosts over the same links."""

    share_in_network: float
    share_in_network_exact: Exact
    share_exact: Annotated[Exact, former("share_in_network_exact")]
    load_algbw_gb_per_s: float
    gb_per_s: Annotated[float, former("load_algbw_gb_per_s")]
    network_gb_per_s: float
    hosts_gb_per_s: float
    gain: float
    limits: list[str]
    words: str


class ClusterSplitJson(SplitJson):
    """The best split of a system on the links of a cluster."""

    system: str
    algorithm: str
    optimum_algbw_gb_per_s: float
    bound_gb_per_s: Annotated[float, former("optimum_algbw_gb_per_s")]


class SystemEstimateJson(TypedDict):
    """Closed-form time of a system that aggregates in the network."""

    system: str
    time_us: float
    reached_algbw_gb_per_s: float
    gb_per_s: Annotated[float, former("reached_algbw_gb_per_s")]
    memory_bytes: float | None
    error: float | None
    formula: str
    model: Annotated[str, former("formula")]
    source: str
    link_bytes: float
    details: dict[str, float]


class RatedSystemJson(SystemEstimateJson):
    """A system in a table, compared with a ring of hosts."""

    gain_over_ring: float
    split: NotRequired[SplitJson]


class SystemTableJson(TypedDict):
    """`coppice switch model`: systems by time."""

    size_bytes: int
    workers: int
    systems: list[RatedSystemJson]
    refusals: dict[str, str]


class SystemSweepJson(TypedDict):
    """`coppice switch model --sweep`: systems over the values of a parameter."""

    over: str
    values: list[float]
    size_bytes: int
    swept_systems: dict[str, list[SystemEstimateJson | None]]
    systems: Annotated[dict[str, list[SystemEstimateJson | None]], former("swept_systems")]
    refusals: dict[str, str]


class ClusterSystemsJson(ModelledSystemsJson):
    """`coppice switch model --topology`: systems on the links of a cluster."""

    topology: str
    model_name: str
    model: Annotated[str, former("model_name")]
    splits: NotRequired[dict[str, ClusterSplitJson]]


class AggregationJobJson(TypedDict):
    """A job of a placement, and the switches at which its trees end."""

    rank_list: list[int]
    ranks: Annotated[list[int], former("rank_list")]
    root_switches: list[str]
    roots: Annotated[list[str], former("root_switches")]


class BusiestLinkJson(TypedDict):
    """The busiest link of a placement."""

    ends: list[str]
    load_bytes: float
    time_us: float


class AggregationPlacementJson(TypedDict):
    """`coppice switch place`: where a given number of switches that add are worth most."""

    topology: str
    budget: int
    candidate_count: int
    candidates: Annotated[int, former("candidate_count")]
    given: list[str]
    chosen: list[str]
    size_bytes: int
    jobs: list[AggregationJobJson]
    busiest: BusiestLinkJson
    least_time_us: float
    proved: bool
    gap: float
    everywhere_us: float
    without: BusiestLinkJson
    ring: BusiestLinkJson


class ProtocolSearchJson(TypedDict):
    """`coppice switch check`: all orders in which packets may arrive, searched for a fault."""

    ok: bool
    protocol: str
    fault: str
    trace: list[str]
    states: int
    events: int
    depth: int
    whole: bool


class SwitchProgramJson(TypedDict):
    """`coppice switch export`: a program for switches."""

    to: str
    output: str
    file_names: list[str]
    files: Annotated[list[str], former("file_names")]
    workers: int
    slots: int
    values_per_packet: int
    values: Annotated[int, former("values_per_packet")]
    variant: str
    system: str


class PacketCountersJson(TypedDict):
    """`coppice switch xdp`: packets by what became of them."""

    counters: dict[str, int]


class SwitchListeningJson(TypedDict):
    """`coppice switch serve`: the switch listens; the first line."""

    event: str
    address: str
    protocol_names: str
    protocol: Annotated[str, former("protocol_names")]
    slots: int


class SwitchEventJson(TypedDict):
    """`coppice switch serve`: something happened to a job; a line each."""

    event: str
    what: str


class SwitchCountersJson(TypedDict):
    """`coppice switch serve`: packets by what became of them; a line at the end and on SIGUSR1."""

    event: str
    job_count: int
    jobs: Annotated[int, former("job_count")]
    slots_in_use: int
    sent: int
    lost: int
    dropped: int
    duplicated: int
    reordered: int
    gate: dict[str, int]
    protocol_counts: dict[str, int]
    protocol: Annotated[dict[str, int], former("protocol_counts")]
