"""What the group's network carries, measured: all-reduces of two sizes give a cost per message and per byte."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

__all__ = ["measure_network"]

_SMALL_BYTES = 16 * 1024
_LARGEST_BYTES = 32 * 2**20
_ENOUGH_S = 0.03
_ROUNDS = 5


def measure_network(group: dist.ProcessGroup, device: torch.device) -> tuple[float, float]:
    """Bytes per second and seconds per message of an all-reduce, equal on all ranks.

    Sizes grow until one takes long enough to be told from noise.

    Args:
        group: The ranks.
        device: Where tensors lie.
    """
    small = _seconds(group, device, _SMALL_BYTES)
    size, large = _SMALL_BYTES, small
    while large < _ENOUGH_S and size < _LARGEST_BYTES:
        size *= 8
        large = _seconds(group, device, size)
    if size == _SMALL_BYTES:
        size *= 2
        large = _seconds(group, device, size)
    rate = max((size - _SMALL_BYTES) / max(large - small, 1e-9), 1.0)
    return rate, max(small - _SMALL_BYTES / rate, 0.0)


def _seconds(group: dist.ProcessGroup, device: torch.device, size_bytes: int) -> float:
    """Median over rounds of the slowest rank's time."""
    tensor = torch.zeros(size_bytes // 4, device=device)
    times = torch.zeros(_ROUNDS, dtype=torch.float64, device=device)
    for turn in range(-1, _ROUNDS):
        dist.barrier(group=group)
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if turn >= 0:
            times[turn] = time.perf_counter() - begin
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return float(times.median())
