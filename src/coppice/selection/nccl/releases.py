"""Constants of NCCL by release: 2.30 in full (``data/nccl.json``), older ones by what differs from the next newer one.

Read from NVIDIA's public source at the tag of each minor version's last release (``data/nccl_releases.json`` has the
commits): tables of latencies and rates, speeds that the search tries, and the rules of :class:`TableRules`. Not read by
release, and taken from 2.30: how the search goes over a topology, how many channels a kernel then takes, and CollNet's
all-gathers and reduce-scatters.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError


class KnownBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults for a known kind of box where only a number of ranks is given."""

    generation: str  # `volta`, `ampere`, `hopper` or `blackwell`
    gpus: int  # Number of GPUs
    links: int  # NVLinks of a GPU
    nics: int  # Number of NICs
    nic_gbit: int  # Rate of a NIC in Gbit/s
    nvswitch: bool  # NVSwitches join the GPUs


class TableRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the releases of NCCL reckon differently from the same numbers."""

    ring_ll_share: list[float]  # Share of a ring's rate with LL: with several boxes or sums, otherwise
    ring_ll128_share_alone: float  # Share with LL128 where each box has one rank
    ring_extra_crossings: int  # Steps of an all-reduce between boxes, beyond 2 (boxes - 1)
    tree_net_latency_alone: bool  # With one rank a box all algorithms have the tree's latency of the network
    pat_share: float  # Share of PAT; 0: there is none
    nvls_by_efficiency: bool  # NVLS has the rate that its efficiency leaves, not that of its slower links
    nvls_share: float  # From bus to algorithm bandwidth of NVLS; 0: as of rings
    nvls_tree_share: float  # The same of its tree
    nvls_gather_share: float  # The same of all-gathers and reduce-scatters; 0: it has none
    nvls_gathers_less_own: bool  # These move what is not a rank's own, and reach 90% of the network
    nvls_by_boxes: (
        bool  # The latency of its tree counts boxes, not their logarithm, and its rate goes down with them
    )
    nvls_tree_correction: bool  # Its tree is corrected by size on Blackwell
    collnet_gathers: bool  # CollNetDirect performs all-gathers and reduce-scatters
    collnet_arity_us: float  # Latency of CollNetDirect for each other rank of a box
    ll128_most_capability: int  # Highest compute capability times ten with LL128
    ll128_mixed_from: int  # Lowest from which GPUs may differ for LL128


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``data/nccl.json``: rows by algorithm or generation, columns by protocol or 1, 2, more nodes."""

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
    nvlink_gb_per_s: dict[str, float]
    nvls_channels_of_blackwell: list[int]  # In one box, in several; 0: by the network
    rules: TableRules
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


class ReleaseDifferences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An older release."""

    version: str
    commit: str  # Of the tag, at NVIDIA/nccl
    differs: dict[
        str, Any
    ]  # What differs from the next newer one, keys as in ``data/nccl.json``; null: nothing


class _Releases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: list[ReleaseDifferences]


_NAME = re.compile(r"([0-9]+\.[0-9]+)(?:[.+-].*)?")
_FILES = "src/graph/tuning.cc, src/graph/search.cc, src/graph/topo.h, src/transport/nvls.cc"


@cache
def older_releases() -> tuple[ReleaseDifferences, ...]:
    """Releases before the newest one, from the newest to the oldest."""
    return tuple(msgspec.json.decode(_data("nccl_releases.json"), type=decodable(_Releases)).releases)


@cache
def constants(release: str = "") -> Constants:
    """Load the constants of a release.

    Args:
        release: One of :func:`known_releases`; empty: the newest.

    Examples:
        >>> constants().version, constants("2.22.3").hardware_latency_us["NVLINK"]["Tree"]
        ('2.30.7', [0.6, 1.25, 28.0])
    """
    newest = msgspec.json.decode(_data("nccl.json"), type=decodable(Constants))
    if release in ("", newest.version):
        return newest
    found: dict[str, Any] = msgspec.to_builtins(newest)
    for each in older_releases():
        found = _merged(found, each.differs)
        if each.version == release:
            source = f"NVIDIA/nccl at {each.commit} (v{each.version}-1): {_FILES}"
            return msgspec.convert({**found, "version": release, "source": source}, decodable(Constants))
    raise InputError(f"expected a release of NCCL ({', '.join(known_releases())}), found {release}.")


@cache
def known_releases() -> tuple[str, ...]:
    """Releases whose constants are known, from the newest to the oldest: one of each minor version.

    >>> known_releases()[0], known_releases()[-1]
    ('2.30.7', '2.18.6')
    """
    return (constants().version, *(each.version for each in older_releases()))


def release_of(version: str) -> str:
    """The release that stands for a version: the last one of its minor version.

    Raises:
        InputError: If that was not read.

    Examples:
        >>> release_of("2.21"), release_of("2.27.3+cuda12.9")
        ('2.21.5', '2.27.7')
    """
    match = _NAME.fullmatch(version.strip())
    found = [] if match is None else [each for each in known_releases() if each.startswith(f"{match[1]}.")]
    if not found:
        minors = [each.rpartition(".")[0] for each in known_releases()]
        raise InputError(
            f"expected a version of NCCL from {minors[-1]} to {minors[0]}, found {version!r}: its source was not read; "
            "name the nearest one."
        )
    return found[0]


def nearest_release(version: str) -> str:
    """The release by which a version that a log names is priced; the newest or oldest one where it was not read.

    Examples:
        >>> nearest_release("2.21.5"), nearest_release("2.32.3"), nearest_release("2.12.12"), nearest_release("")
        ('2.21.5', '2.30.7', '2.18.6', '2.30.7')
    """
    match = _NAME.fullmatch(version.strip())
    if match is None:
        return known_releases()[0]
    try:
        return release_of(version)
    except InputError:
        minor = tuple(map(int, match[1].split(".")))
        newer = minor > tuple(map(int, known_releases()[0].split(".")[:2]))
        return known_releases()[0 if newer else -1]


def _data(name: str) -> bytes:
    return resources.files("coppice.selection").joinpath("data", name).read_bytes()


def _merged(value: dict[str, Any], differs: dict[str, Any]) -> dict[str, Any]:
    """The value with other entries; null takes one away."""
    found = dict(value)
    for key, new in differs.items():
        if new is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found[key], new) if isinstance(new, dict) else new
    return found
