"""The constants of NCCL's cost model and topology search, as a data file."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from coppice.decoding import decodable


class KnownBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known kind of box: what is assumed where only a number of ranks is given."""

    generation: str  # `volta`, `ampere`, `hopper` or `blackwell`
    gpus: int  # Number of GPUs
    links: int  # NVLinks of a GPU
    nics: int  # Number of NICs
    nic_gbit: int  # Rate of a NIC in Gbit/s
    nvswitch: bool  # NVSwitches join the GPUs


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The constants of ``data/nccl.json``: rows by algorithm or generation, columns by protocol or 1, 2, more nodes."""

    version: str
    source: str
    base_latency_us: dict[str, list[float]]
    hardware_latency_us: dict[str, dict[str, list[float]]]
    ll_gb_per_s: dict[str, list[float]]
    ll_rows_across_nodes: dict[str, str]
    ring_ll128_gb_per_s_per_channel: dict[str, list[float]]
    tree_ll128_gb_per_s_per_channel: dict[str, list[float]]
    tree_gb_per_s_per_channel: dict[str, list[float]]
    nvls_tree_gb_per_s_per_channel: dict[str, list[float]]
    nvls_efficiency: dict[str, float]
    tree_correction: dict[str, list[float]]
    net_overhead_us: dict[str, float]
    plateau: dict[str, float]
    thread_threshold_bytes: dict[str, int]
    most_threads: dict[str, int]
    most_nvlinks: dict[str, int]
    usual_cpu: dict[str, str]
    nic_gb_per_s_of_100_gbit: float
    speeds_within: dict[str, list[float]]
    speeds_across: dict[str, list[float]]
    boxes: dict[str, KnownBox]
    ours: dict[str, dict[str, str]]
    missing: dict[str, str]


@cache
def constants() -> Constants:
    """The constants."""
    data = resources.files("coppice.selection").joinpath("data", "nccl.json")
    return msgspec.json.decode(data.read_bytes(), type=decodable(Constants))
