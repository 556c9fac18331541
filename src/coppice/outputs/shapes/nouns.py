"""Nouns that several outputs share: problems, rates, cuts, time models."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Meta

Exact = Annotated[str, Meta(pattern=r"^-?[0-9]+(/[0-9]+)?$")]
"""An exact number as text: ``75/2``."""


def former(key: str) -> Meta:
    """Mark a key as the former name of another one, which stands in the same shape.

    Examples:
        >>> former("load_algbw_gb_per_s").description
        'Former name of `load_algbw_gb_per_s`.'
    """
    return Meta(description=f"Former name of `{key}`.", extra_json_schema={"deprecated": True})


def own(text: str) -> Meta:
    """Mark a key that means something else in its shape than in all others.

    Examples:
        >>> own("The choice that is best.").description
        'The choice that is best.'
    """
    return Meta(description=text)


class ProblemJson(TypedDict):
    """A collective on a topology."""

    collective: str
    topology: str
    topology_sha256: str
    ranks: int
    root: int | None


class OptimumRatesJson(TypedDict):
    """The rate that no schedule exceeds."""

    optimum_ns_per_byte: Exact
    optimum_algbw_gb_per_s: float
    optimum_algbw_exact_gb_per_s: Exact
    optimum_busbw_gb_per_s: float
    optimum_busbw_exact_gb_per_s: Exact


class LoadRatesJson(TypedDict):
    """The rate that the busiest link of a plan lets through."""

    load_ns_per_byte: Exact
    load_algbw_gb_per_s: float
    load_algbw_exact_gb_per_s: Exact
    load_busbw_gb_per_s: float
    load_busbw_exact_gb_per_s: Exact


class FormerPlannedRatesJson(TypedDict):
    """Former names of the rate that the busiest link of a plan lets through."""

    planned_inv_rate: Annotated[Exact, former("load_ns_per_byte")]
    planned_algbw_gb_per_s: Annotated[float, former("load_algbw_gb_per_s")]
    planned_algbw_exact: Annotated[Exact, former("load_algbw_exact_gb_per_s")]
    planned_busbw_gb_per_s: Annotated[float, former("load_busbw_gb_per_s")]


class FormerOptimumRatesJson(TypedDict):
    """Former names of the rate that no schedule exceeds."""

    inv_rate: Annotated[Exact, former("optimum_ns_per_byte")]
    algbw_gb_per_s: Annotated[float, former("optimum_algbw_gb_per_s")]
    algbw_exact: Annotated[Exact, former("optimum_algbw_exact_gb_per_s")]
    busbw_gb_per_s: Annotated[float, former("optimum_busbw_gb_per_s")]
    busbw_exact: Annotated[Exact, former("optimum_busbw_exact_gb_per_s")]


class AlternativesJson(TypedDict):
    """Bottleneck cut of an optimum, and further rates on the way to it."""

    cut: list[str]
    cut_in_words: str
    attainable_ns_per_byte: Exact | None
    attainable_inv_rate: Annotated[Exact | None, former("attainable_ns_per_byte")]
    alternatives_ns_per_byte: dict[str, Exact]
    alternatives: Annotated[dict[str, Exact], former("alternatives_ns_per_byte")]


class ModelJson(TypedDict):
    """A time model: what messages cost on top of the rates and latencies of links."""

    name: str
    overhead_us: float
    launch_us: float
    steps_bind: bool
    packed: bool
    buffered: bool
    workers: int
    shared_workers: bool
    send_us: float
    receive_us: float
    copy_gb_per_s: float | None
    cache_bytes: int
    memory_gb_per_s: float | None
    reduce_gb_per_s: float | None
    protocols: list[str]
    channels: int | None
    channel_gb_per_s: float | None
    generation: str | None
    efficiency: float
    burst_bytes: int
    least_piece_bytes: int
    sharing: str
    store_and_forward: bool
    send_engines: int
    receive_engines: int
    text: str


class ParameterJson(TypedDict):
    """A parameter that may be given."""

    name: str
    default: int | str
    summary: str


class WrittenJson(TypedDict):
    """A file that was written."""

    output: str
