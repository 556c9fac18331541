"""What the group's network carries, measured: all-reduces of two sizes give a cost per message and per byte."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

_SMALL_BYTES = 16 * 1024
_IN_A_ROW_BYTES = 256 * 1024
_LARGE_COUNT = 2
_LARGEST_BYTES = 32 * 2**20
_ENOUGH_S = 0.03
_ROUNDS = 5


def measure_network(
    group: dist.ProcessGroup, device: torch.device, *, small_bytes: int = _SMALL_BYTES
) -> tuple[float, float]:
    """Bytes per second and seconds per message of an all-reduce, equal on all ranks.

    Messages follow each other as in training, each handed over before the one before it has ended. Sizes grow until one
    takes long enough to be told from noise.

    Args:
        small_bytes: The smaller size. Among more than two ranks short messages wait for their rounds, not for their
            bytes, so that the cost per message is that of messages about as short as those to be sent.
    """
    small = _seconds(group, device, small_bytes, max(4, _IN_A_ROW_BYTES // small_bytes))
    size, large = small_bytes, small
    while large < _ENOUGH_S and size < _LARGEST_BYTES:
        size *= 8
        large = _seconds(group, device, size, _LARGE_COUNT)
    if size == small_bytes:
        size *= 2
        large = _seconds(group, device, size, _LARGE_COUNT)
    rate = max((size - small_bytes) / max(large - small, 1e-9), 1.0)
    return rate, max(small - small_bytes / rate, 0.0)


def _seconds(group: dist.ProcessGroup, device: torch.device, size_bytes: int, count: int) -> float:
    """Time of one of some messages in a row: the median over rounds of the slowest rank's."""
    tensors = [torch.zeros(size_bytes // 4, device=device) for _ in range(count)]
    times = torch.zeros(_ROUNDS, dtype=torch.float64, device=device)
    for turn in range(-1, _ROUNDS):
        dist.barrier(group=group)
        begin = time.perf_counter()
        for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if turn >= 0:
            times[turn] = (time.perf_counter() - begin) / count
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return float(times.median())
