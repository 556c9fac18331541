"""Channels and threads of a call: how many of a communicator's channels NCCL 2.30 uses for it.

``src/enqueue.cc``: fewer channels and threads where each would have too little, and then as many channels as its
scheduler fills when it deals the data out in cells of at least 32 KiB of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.collectives import Collective

LEAST_TRAFFIC = 32 << 10
_WARP = 32
_MOST_THREADS = 640


@dataclass(frozen=True, kw_only=True)
class KernelShape:
    """Channels and threads of a kernel."""

    channels: int  # Channels that carry data
    threads: int  # Threads of each


@dataclass(frozen=True, kw_only=True)
class KernelLimits:
    """What a communicator offers a call."""

    ranks: int
    nodes: int
    channels: int  # Channels of rings and trees
    nvls_channels: int  # Channels of NVLS
    heads: int  # Heads of CollNetDirect
    threads: int  # Threads of a channel at most
    threshold: int  # Bytes of a thread at least


def kernel_of(
    limits: KernelLimits,
    collective: Collective,
    algorithm: str,
    protocol: str,
    size_bytes: int,
    element_bytes: int = 4,
) -> KernelShape:
    """Channels and threads of a call by itself.

    Args:
        size_bytes: M (see :mod:`coppice.collectives`).
        element_bytes: Bytes of an element.
    """
    channels, threads, threshold = limits.channels, limits.threads, limits.threshold
    nvls = algorithm in ("NVLS", "NVLSTree")
    if algorithm == "CollNetDirect":
        channels = _of_direct(limits, size_bytes)
    elif nvls:
        channels = limits.nvls_channels
        if limits.nodes > 1 and algorithm == "NVLS":
            channels = min(channels, limits.channels)
    else:
        while channels >= 2 and size_bytes < channels * threads * threshold:
            channels -= 1
        while size_bytes < channels * threads * threshold and threads % 128 == 0:
            threads //= 2
    if protocol == "Simple" and algorithm == "Ring":
        threads += _WARP
    threads = max(threads, 3 * _WARP)
    if algorithm in ("Tree", "PAT"):
        threads = _MOST_THREADS
    collnet = algorithm.startswith("CollNet") or (algorithm == "NVLS" and limits.nodes > 1)
    if not collnet:
        most = limits.nvls_channels if nvls else limits.channels
        channels = _dealt(limits, collective, protocol, size_bytes, element_bytes, channels, most)
    return KernelShape(channels=channels, threads=threads)


def _of_direct(limits: KernelLimits, size_bytes: int) -> int:
    channels, threshold, step, many = limits.channels, limits.threshold, 16, True
    while step >= 1 and many:
        while True:
            many = size_bytes < channels * limits.threads * limits.heads * threshold
            if not many or channels <= step:
                break
            if channels == step + step // 2:
                threshold //= 2
            channels -= 1
        step //= 2
    return channels


def _dealt(
    limits: KernelLimits,
    collective: Collective,
    protocol: str,
    size_bytes: int,
    element_bytes: int,
    channels: int,
    most: int,
) -> int:
    """Channels that get data when it is dealt out in cells."""
    per_byte = {Collective.ALL_REDUCE: 2, Collective.ALL_GATHER: limits.ranks, Collective.REDUCE_SCATTER: limits.ranks}
    traffic_of_byte = per_byte.get(collective, 1)
    size = size_bytes // limits.ranks if collective.sharded and collective is not Collective.ALL_REDUCE else size_bytes
    if collective in (Collective.ALL_GATHER, Collective.BROADCAST):
        element_bytes = 1
    count = size // element_bytes
    traffic = count * element_bytes * traffic_of_byte
    if protocol == "LL":
        traffic *= 4
        traffic_of_byte *= 4
    each = _up(max(LEAST_TRAFFIC, traffic) // min(channels, most), 16) * 16
    cell = _up(_up(LEAST_TRAFFIC, traffic_of_byte), 16) * 16
    cells = _up(count * element_bytes, cell)
    full = min(cells, _up(each, cell * traffic_of_byte))
    low = cells if most == 1 else min(cells, full)
    if not full:
        return 1
    middle, high = divmod(cells - low, full)
    used = (low != 0) + middle + (high != 0)
    return int(min(used, most)) or 1


def _up(value: int, by: int) -> int:
    return -(-value // by)
