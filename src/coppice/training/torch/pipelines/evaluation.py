"""What stages do beside their programs: they begin alike, batches are dealt to micro-batches, rows are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.training.torch.overlap.trained import require_alike
from coppice.training.torch.pipelines.channels import StageChannels
from coppice.training.torch.pipelines.layout import PipelineLayout
from coppice.training.torch.pipelines.stage import TrainedStage, as_tensors


def begin_alike(stages: Mapping[int, TrainedStage], layout: PipelineLayout) -> None:
    """Replicas begin with the weights of the first one."""
    group = layout.replica_group
    source = layout.rows[0][layout.device]
    names = [f"{number}.{name}" for number, stage in stages.items() for name in stage.parameters]
    trained = [each for stage in stages.values() for each in stage.parameters.values()]
    require_alike(names, trained, group)
    with torch.no_grad():
        for stage in stages.values():
            for tensor in [*stage.module.parameters(), *stage.module.buffers()]:
                dist.broadcast(tensor.detach(), src=source, group=group)
            stage.refresh()


def rows_of(values: Any, what: str, micro_batches: int) -> list[tuple[torch.Tensor, ...]]:
    """Rows of a batch for each micro-batch."""
    tensors = as_tensors(values, what)
    for each in tensors:
        if not each.dim() or not len(each) or len(each) % micro_batches:
            rows = len(each) if each.dim() else 0
            raise InputError(
                f"expected {what} whose rows are a multiple of {micro_batches} micro-batches, found {rows}."
            )
    return list(zip(*(each.chunk(micro_batches) for each in tensors), strict=True))


def evaluated(
    stages: Mapping[int, TrainedStage],
    count: int,
    device_of: Mapping[int, int],
    channels: StageChannels,  # What carries activations; nothing is expected there
    inputs: Any,
) -> Any:
    """What the last stage gives for rows, on its rank; None on others."""
    own: list[torch.Tensor] = []
    given: Any = None
    for number, stage in sorted(stages.items()):
        if number == 0:
            own = list(as_tensors(inputs, "inputs"))
        elif number - 1 not in stages:
            own = channels.take_now(device_of[number - 1])
        was = stage.module.training
        stage.module.eval()
        try:
            with torch.no_grad():
                given = stage.module(*own)
        finally:
            stage.module.train(was)
        if number + 1 < count:
            own = list(as_tensors(given, f"the output of stage {number}"))
            if number + 1 not in stages:
                channels.send_now(device_of[number + 1], own)
    channels.finish()
    return given if count - 1 in stages else None
