"""Times of the passes of real stages, and of the network between their ranks, for simulation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from coppice.iteration.pipeline.order import Work
from coppice.training.torch.overlap.network import measure_network
from coppice.training.torch.pipelines.layout import PipelineLayout
from coppice.training.torch.pipelines.plan import StageCosts


class PassTimes:
    """Seconds of passes, by stage and work.

    Args:
        device: Where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds: dict[tuple[int, Work], list[float]] = {}
        self._synchronize: Callable[[], None] = (
            (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
        )

    @contextmanager
    def timed(self, stage: int, work: Work) -> Iterator[None]:
        """Time a pass."""
        self._synchronize()
        begin = time.perf_counter()
        yield
        self._synchronize()
        self._seconds.setdefault((stage, work), []).append(time.perf_counter() - begin)

    def forget(self) -> None:
        """Begin again; the first iteration is not like others."""
        self._seconds.clear()

    def medians(self) -> dict[tuple[int, str], float]:
        """The median of each."""
        return {
            (stage, work.value): statistics.median(seconds)
            for (stage, work), seconds in self._seconds.items()
        }


def gathered_costs(
    layout: PipelineLayout,
    times: PassTimes,  # Times of the passes of this device
    # For each stage of this device bytes of its gradients, of its embedding, and the share of rows touched
    own: Mapping[int, tuple[float, float, float]],
    *,
    stages: int,
    device: torch.device,
    network: tuple[float, float] | None,  # Bytes per second and seconds per message of a sum; None: measured
    transfer: Callable[[], float],  # Measures how long it takes until another device has what a stage gives
) -> StageCosts:
    """What stages take, equal on all ranks: as the first replica has it."""
    if network is None:
        network = measure_network(layout.replica_group, device) if layout.replicas > 1 else (1e9, 0.0)
    said: list[Any] = [None] * dist.get_world_size(layout.everyone)
    dist.all_gather_object(said, (times.medians(), dict(own), network, transfer()), group=layout.everyone)
    everyone = dist.get_process_group_ranks(layout.everyone)
    row = [said[everyone.index(rank)] for rank in layout.rows[0]]
    medians = {key: value for each in row for key, value in each[0].items()}
    sizes = {stage: value for each in row for stage, value in each[1].items()}
    forward, backward, weight = [], [], []
    for stage in range(stages):
        forward.append(medians.get((stage, Work.FORWARD.value), 0.0))
        parts = medians.get((stage, Work.WEIGHT.value))
        whole = medians.get((stage, Work.BACKWARD.value))
        if parts is not None:
            halves = medians.get((stage, Work.INPUT.value), 0.0) + parts
            whole = halves if whole is None else whole
            weight.append(min(parts, whole))
        else:
            weight.append((whole or 0.0) / 2)
        backward.append(whole or 0.0)
    return StageCosts(
        forward=forward,
        backward=backward,
        weight=weight,
        bytes=[sizes[stage][0] for stage in range(stages)],
        network=row[0][2],
        transfer=max(each[3] for each in row),
        embedding_bytes=sizes[0][1],
        touched=sizes[0][2],
    )
