"""What the motifs of a collective take here: each is run by itself, in two sizes, on the channel that would do it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from coppice.iteration.policies.whole.motifs import Channel, GraphOperation, Motif
from coppice.iteration.policies.whole.operations import OperationGraph
from coppice.training.torch.chunked.grids import MotifGroups
from coppice.training.torch.chunked.templates import CollectiveBuffers, piece_steps

STEP_SECONDS = 1e-5
"""Starts of measured motifs are multiples of it."""
_ROUNDS = 3
_PARTS = 16
"""The smaller size is so small a part of the larger one: as small as planners cut unless told otherwise. In between a
motif takes no longer than on the straight line, where what starts it is hidden by what it carries."""


def measured_channels(channels: Mapping[str, Channel]) -> dict[str, Channel]:
    """Channels whose motifs are given in seconds."""
    return {name: Channel(start_seconds=STEP_SECONDS) for name in channels}


def measured_graph(
    graph: OperationGraph, work: Mapping[str, CollectiveBuffers], groups: MotifGroups
) -> OperationGraph:
    """The graph with times that were measured now, equal on all ranks, which all call this.

    Args:
        graph: Its collectives are those of ``work``; other operations stay, with amounts in seconds.
        work: The collectives; their tensors are not touched.
        groups: Where they run.
    """
    known: dict[Any, GraphOperation] = {}
    found = []
    for operation in graph.operations:
        buffers = work.get(operation.name)
        if buffers is None:
            found.append(operation)
            continue
        key = (buffers.collective, buffers.size_bytes, buffers.tensor.dtype, groups.of(buffers.group).rows)
        if key not in known:
            known[key] = measured_operation(operation, buffers, groups)
        found.append(replace(operation, ways=known[key].ways))
    channels = {
        name: replace(channel, units_per_second=1.0, start_seconds=STEP_SECONDS)
        for name, channel in graph.channels.items()
    }
    return OperationGraph(operations=tuple(found), channels=channels)


def measured_operation(
    operation: GraphOperation, buffers: CollectiveBuffers, groups: MotifGroups
) -> GraphOperation:
    """A collective with the times of its motifs.

    Args:
        buffers: Tensors like those that it will have.
    """
    output = None if buffers.output is None else torch.zeros_like(buffers.output)
    own = replace(buffers, tensor=torch.zeros_like(buffers.tensor), output=output)
    grid = groups.of(buffers.group)
    rows: list[tuple[Motif, str, tuple[int, ...]]] = []
    for label, way in zip(operation.labels, operation.ways, strict=True):
        steps = piece_steps(own, label, grid, groups.rank)
        rows += [
            (motif, label, grid.part(groups.rank, step.role)) for motif, step in zip(way, steps, strict=True)
        ]
    device = buffers.tensor.device
    times = torch.zeros(_ROUNDS, 2, len(rows), dtype=torch.float64)
    for turn in range(-1, _ROUNDS):
        for size, pieces in enumerate((1, _PARTS)):
            at = 0
            for label in operation.labels:
                steps = piece_steps(own, label, grid, groups.rank, pieces=pieces)
                for step in steps:
                    motif, _, ranks = rows[at]
                    spent = _timed(step.run, groups.group(motif.channels[0], ranks), groups.parent, device)
                    if turn >= 0:
                        times[turn, size, at] = spent
                    at += 1
    shared = times.to(device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=groups.parent)
    seconds = [
        [statistics.median(float(each[size, at]) for each in shared) for size in range(2)]
        for at in range(len(rows))
    ]
    made = iter(zip(rows, seconds, strict=True))
    ways = tuple(tuple(_of_times(*next(made)) for _ in way) for way in operation.ways)
    return replace(operation, ways=ways)


def _of_times(row: tuple[Motif, str, tuple[int, ...]], seconds: list[float]) -> Motif:
    """A motif that takes so long whole, and so long in a small part."""
    whole, part = seconds
    amount = max((whole - part) * _PARTS / (_PARTS - 1), 0.0)
    starts = max(1, round((whole - amount) / STEP_SECONDS))
    return replace(row[0], amount=amount, starts=starts)


def _timed(
    run: Any, group: dist.ProcessGroup, everyone: dist.ProcessGroup | None, device: torch.device
) -> float:
    dist.barrier(group=everyone)
    begin = time.perf_counter()
    run(group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
