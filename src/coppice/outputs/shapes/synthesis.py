"""Schedules found by published methods, and figures of the search of each method."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from coppice.outputs.shapes.nouns import Exact, ProblemJson, former
from coppice.outputs.shapes.planning import PlannedResultJson


class SketchShareJson(TypedDict):
    """A sketch of SyCCL, and its share of the data."""

    stage_names: list[str]
    stages: Annotated[list[str], former("stage_names")]
    data_share: Exact
    share: Annotated[Exact, former("data_share")]


class PackingJson(TypedDict):
    """Trees that Blink packed into some links."""

    link_kind: str
    links: Annotated[str, former("link_kind")]
    root: int
    trees: int
    gb_per_s: Exact
    most_gb_per_s: Exact
    proved: bool


class MethodDetailsJson(TypedDict, total=False):
    """Figures of the search of single methods: SCCL, TE-CCL, SyCCL, TACCL, TACOS, Blink."""

    why: str
    proved: bool
    proved_for: str
    proved_for_any_chunks: bool
    steps: int
    rounds: int
    chunks: int
    most_chunks: int
    fewest_steps: int
    rounds_per_step: list[int]
    rounds_per_chunk: Exact
    least_rounds_per_chunk: Exact
    least_rounds_per_chunk_in_steps: Exact
    round_gb_per_s: Exact
    front_points: list[list[int]]
    front: Annotated[list[list[int]], former("front_points")]
    decided: list[list[int | str]]
    epochs: int
    least_epochs: int
    epoch_us: float
    solver_gap: float
    found_by: str
    finish_algbw_gb_per_s: float | None
    sketches: list[SketchShareJson]
    sketches_tried: int
    group_problems: int
    predicted_us: float
    ordered_us: float
    routing_gap: float | None
    routes_by: str
    joined: int
    sketch: dict[str, Any]
    attempts_done: int
    times_exact: bool
    chunk_size_bytes: int
    size_bytes: int
    makespan_us: float
    makespan_algbw_gb_per_s: float | None
    packing: str
    packings: list[PackingJson]
    trees: int
    rate_exact_gb_per_s: Exact | None
    rate_exact: Annotated[Exact | None, former("rate_exact_gb_per_s")]
    one_hop: bool
    switched_share: Exact
    weighted_trees: list[int]
    unit_gb_per_s: list[Exact]
    phases: int
    partitions: int


class SearchEndJson(MethodDetailsJson):
    """How a search for a schedule ended."""

    method: str
    status: str
    gap: float | None
    interrupted: bool
    synthesis_seconds: float


class SynthesizedJson(PlannedResultJson, SearchEndJson):
    """`coppice synthesize`: a verified schedule that a published method found."""


class UnsynthesizedJson(ProblemJson, SearchEndJson):
    """`coppice synthesize` where a method found no schedule."""


class GroupsSynthesisJson(TypedDict):
    """`coppice synthesize --group`: schedules of several groups that run at once."""

    topology: str
    collective: str
    method: str
    rank_groups: list[list[int]]
    groups: Annotated[list[list[int]], former("rank_groups")]
    load_algbw_gb_per_s: float | None
    algbw_gb_per_s: Annotated[float | None, former("load_algbw_gb_per_s")]
    optimum_algbw_gb_per_s: float | None
    most_algbw_gb_per_s: Annotated[float | None, former("optimum_algbw_gb_per_s")]
    gap: float
    attempts_done: int
    interrupted: bool
    verified: bool
