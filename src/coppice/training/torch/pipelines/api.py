"""Entry point ``pipeline(stages, optimizer, loss, ...)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.training.torch.agreement import require_equal_arguments
from coppice.training.torch.pipelines.channels import PipelineLayout
from coppice.training.torch.pipelines.training import PipelineTraining


def pipeline(
    stages: Sequence[nn.Module] | Mapping[int, nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[Any, Any], torch.Tensor],
    order: str | PipelineOrder = "breadth-first",
    *,
    micro_batches: int,
    replicas: int = 1,
    group: dist.ProcessGroup | None = None,
    ranks: Sequence[Sequence[int]] | None = None,
    tied: Sequence[Sequence[tuple[int, str]]] = (),
    max_norm: float | None = None,
    workload: LayerWorkload | None = None,
    network: tuple[float, float] | None = None,
    recorded: int = 3,
    timeout_s: float = 600.0,
    **settings: Any,
) -> PipelineTraining:
    """Train stages as a pipeline, in the order and with the messages of a simulated policy.

    Works on any process group of torch; every rank calls this. Stage s is on the device that the order names, in most
    orders s modulo the number of devices.

    Args:
        stages: The modules of all stages, or those of this rank by number. What one gives, a tensor or a tuple of some,
            the next one takes. A parameter that is in several of them is tied.
        optimizer: Makes the optimizer of a stage from its parameters: ``lambda ps: torch.optim.SGD(ps, lr=0.1)``.
        loss: The mean loss of an output of the last stage and a target.
        order: ``breadth-first``, ``fold3d``, ``trirace``, ``fast-forward``, ``modulo``, ``zero-bubble``, ``1f1b``,
            ``interleaved``, ``gpipe``, ``dualpipe-v``, or an order of your own.
        micro_batches: Micro-batches of a batch.
        replicas: Pipelines beside each other, each with its own rows; their gradients are averaged.
        group: The ranks; None: all.
        ranks: For each replica its ranks within the group, in the order of devices; None: in a row.
        tied: Weights that several stages have, stage and name of each: ``[[(0, "weight"), (3, "out.weight")]]``.
        max_norm: Norm to which all gradients together are clipped.
        workload: Times and bytes of the stages; None: those of recorded iterations.
        network: Bytes per second and seconds per message of a sum over replicas; None: measured.
        recorded: Iterations that are recorded after the first one; 0: none, and nothing is predicted.
        timeout_s: Longest wait for another rank.
        settings: Options of the policy, such as ``share`` of ``fold3d``.

    Raises:
        InputError: If stages, ranks and order do not fit, or a stage has nothing to train.
        CheckError: If a rank does not answer.

    Source: each policy names its own (``coppice train policies``).

    Examples:
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> halves = [nn.Linear(2, 4), nn.Linear(4, 1)]
        >>> training = pipeline(
        ...     halves, lambda ps: torch.optim.SGD(ps, lr=0.1), nn.functional.mse_loss, micro_batches=2
        ... )
        >>> training.step(torch.ones(4, 2), torch.ones(4, 1)).shape
        torch.Size([])
        >>> training.record.passes
        ['0F0 of 0', '0F1 of 0', '1F0 of 0', '1F1 of 0', '1B0 of 0', '1B1 of 0', '0B0 of 0', '0B1 of 0']
        >>> training.close()
        >>> dist.destroy_process_group()
    """
    if micro_batches < 1:
        raise InputError(f"expected 1 or more `micro_batches`, found {micro_batches}.")
    if recorded < 0:
        raise InputError(f"expected 0 or more `recorded` iterations, found {recorded}.")
    if max_norm is not None and not max_norm > 0:
        raise InputError(f"expected a `max_norm` above 0, found {max_norm:g}.")
    name = order if isinstance(order, str) else f"an order of its own ({crc32(repr(order).encode()):08x})"
    told = {"order": name, "micro_batches": micro_batches, "replicas": replicas, "ranks": ranks, "tied": tied}
    told |= {"max_norm": max_norm, "network": network, "recorded": recorded}
    require_equal_arguments({**told, **settings}, "pipeline", group)
    return PipelineTraining(
        stages,
        optimizer,
        loss,
        order,
        micro_batches=micro_batches,
        layout=PipelineLayout(group, replicas, ranks, timeout_s),
        tied=tied,
        max_norm=max_norm,
        workload=workload,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        settings=settings,
    )
