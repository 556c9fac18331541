"""Horovod's sums as they were made: ranks agree on tensors once a cycle, and what is ready by then is fused.

Gradients wait for the next cycle (`HOROVOD_CYCLE_TIME`, 5 ms in the versions that papers of 2018 to 2020 used, 1 ms
later). At its begin every rank tells rank 0 which tensors it has; rank 0 counts, tensor by tensor and rank by rank, and
tells all which ones everybody has; these are summed together, up to the fusion buffer (64 MB). The optimizer steps when
all are summed. Source: Sergeev and Del Balso, arXiv 1802.05799, and Horovod's pages on fusion and its timeline.

Cycles are counted from the begin of the backward pass, so that the messages are known before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.fusion import gradient_times
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import PositiveBytes, Seconds
from coppice.iteration.step.plan import Message


class CycleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Negotiation and fusion."""

    cycle_seconds: Annotated[float, msgspec.Meta(gt=0)] = 5e-3  # Between two negotiations
    request_seconds: Seconds = 0.0  # That rank 0 spends on a tensor of a rank
    fusion_bytes: PositiveBytes = 64 * 2.0**20  # Bytes of a sum of several tensors at most


class Horovod(DataParallelPolicy):
    """Sum what all ranks have at the begin of a cycle, in the order in which it came."""

    name = "horovod"
    about = "sums of what is ready at the begin of a cycle, after ranks have agreed on it (Horovod, 2018)"
    assumes = "a coordinator that hears of every tensor from every rank"
    options: ClassVar[type[msgspec.Struct]] = CycleOptions

    def cycles(self, workload: LayerWorkload) -> list[tuple[float, list[int]]]:
        """Negotiations that find something: their times from the begin of the backward pass, and their layers."""
        ready, found = gradient_times(workload), dict[int, list[int]]()
        for layer in reversed(range(workload.layers)):
            if workload.bytes[layer]:
                tick = math.ceil(ready[layer] / self.settings.cycle_seconds * (1 - 1e-12))
                found.setdefault(tick, []).append(layer)
        return [(tick * self.settings.cycle_seconds, layers) for tick, layers in found.items()]

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers that are summed together; those without weights are with the first."""
        fused: list[list[int]] = []
        for _, layers in self.cycles(workload):
            fused += self._fused(workload, layers)
        empty = [layer for layer in range(workload.layers) if not workload.bytes[layer]]
        return [[*fused[0], *empty], *fused[1:]] if fused else [empty]

    def _fused(self, workload: LayerWorkload, layers: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = []
        room = 0.0
        for layer in layers:
            if not found or workload.bytes[layer] > room:
                found.append([])
                room = self.settings.fusion_bytes
            found[-1].append(layer)
            room -= workload.bytes[layer]
        return found

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """A negotiation for each cycle that finds something, then its sums."""
        ready, settings = gradient_times(workload), self.settings
        found: list[Message] = []
        for number, (begin, layers) in enumerate(self.cycles(workload)):
            requests = len(layers) * workload.workers * settings.request_seconds
            waits = begin - max(ready[layer] for layer in layers)
            found.append(
                Message(
                    name=f"negotiation {number}",
                    seconds=max(0.0, waits) + workload.round_trip_seconds + requests,
                    layers=tuple(layers),
                    stream="coordinator",
                    collective="negotiation",
                    needed_by=workload.roots,
                )
            )
            agreed = len(found) - 1
            for part, group in enumerate(self._fused(workload, layers)):
                size = sum(workload.bytes[layer] for layer in group)
                found.append(
                    Message(
                        name=f"cycle {number} sum {part}",
                        seconds=workload.message(size),
                        size_bytes=size,
                        layers=tuple(group),
                        after=(agreed,),
                        needed_by=workload.roots,
                    )
                )
        return found
