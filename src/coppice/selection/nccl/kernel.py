"""Channels and threads of a call: how many of a communicator's channels NCCL 2.30 uses for it.

``src/enqueue.cc``: fewer channels and threads where each would have too little, and then as many channels as its
scheduler fills when it deals the data out in cells of at least 32 KiB of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.selection.nccl.costs import NcclCommunicator
from coppice.selection.nccl.releases import constants

_LEAST_TRAFFIC = 32 << 10
_COLLNET_THRESHOLD = 512
_WARP = 32
_MOST_THREADS = 640


@dataclass(frozen=True, kw_only=True)
class KernelShape:
    """Channels and threads of a kernel."""

    channels: int  # Channels that the call may take
    filled: int  # Those of them that its scheduler gives data
    threads: int  # Threads of each


def kernel_of(
    comm: NcclCommunicator,
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
    channels, threads, threshold = (
        comm.channels,
        _most_threads(comm, algorithm, protocol),
        _threshold(comm, algorithm, protocol),
    )
    nvls = algorithm in ("NVLS", "NVLSTree")
    if algorithm == "CollNetDirect":
        channels = _of_direct(comm, size_bytes, threads, threshold)
    elif nvls:
        channels = comm.nvls_channels
        if comm.nodes > 1 and algorithm == "NVLS":
            channels = min(channels, comm.channels)
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
    collnet = algorithm.startswith("CollNet") or (algorithm == "NVLS" and comm.nodes > 1)
    filled = channels
    if not collnet:
        most = comm.nvls_channels if nvls else comm.channels
        filled = _dealt(comm, collective, protocol, size_bytes, element_bytes, channels, most)
    return KernelShape(channels=channels, filled=filled, threads=threads)


def _most_threads(comm: NcclCommunicator, algorithm: str, protocol: str) -> int:
    """Threads of a channel at most, before those that only synchronise."""
    data = constants()
    if algorithm == "PAT":
        return 0  # NCCL sets none, and then takes all channels and threads
    if algorithm not in ("Ring", "Tree"):
        return _MOST_THREADS
    if algorithm == "Ring" and protocol == "Simple":
        slow = comm.ring.within * comm.ring.count <= data.nic_gb_per_s_of_100_gbit
        return 256 if slow else data.most_threads[protocol]
    return data.most_threads[protocol]


def _threshold(comm: NcclCommunicator, algorithm: str, protocol: str) -> int:
    """Bytes of a thread at least."""
    found = constants().thread_threshold_bytes[protocol]
    if algorithm == "Ring" and protocol == "LL":
        return found * comm.ranks
    return _COLLNET_THRESHOLD if algorithm.startswith("CollNet") else found


def _of_direct(comm: NcclCommunicator, size_bytes: int, threads: int, threshold: int) -> int:
    """Channels of CollNetDirect: one fewer at a time, by a lower threshold from each half on."""
    heads = comm.collnet_direct.count if comm.collnet_direct is not None else 1
    channels, step, many = comm.channels, 16, True
    while step >= 1 and many:
        while True:
            many = size_bytes < channels * threads * heads * threshold
            if not many or channels <= step:
                break
            if channels == step + step // 2:
                threshold //= 2
            channels -= 1
        step //= 2
    return channels


def _dealt(
    comm: NcclCommunicator,
    collective: Collective,
    protocol: str,
    size_bytes: int,
    element_bytes: int,
    channels: int,
    most: int,
) -> int:
    """Channels that get data when it is dealt out in cells."""
    per_byte = {
        Collective.ALL_REDUCE: 2,
        Collective.ALL_GATHER: comm.ranks,
        Collective.REDUCE_SCATTER: comm.ranks,
    }
    traffic_of_byte = per_byte.get(collective, 1)
    size = (
        size_bytes // comm.ranks
        if collective.sharded and collective is not Collective.ALL_REDUCE
        else size_bytes
    )
    if collective in (Collective.ALL_GATHER, Collective.BROADCAST):
        element_bytes = 1
    count = size // element_bytes
    traffic = count * element_bytes * traffic_of_byte
    if protocol == "LL":
        traffic *= 4
        traffic_of_byte *= 4
    each = _up(max(_LEAST_TRAFFIC, traffic) // min(channels, most), 16) * 16
    cell = _up(_up(_LEAST_TRAFFIC, traffic_of_byte), 16) * 16
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
