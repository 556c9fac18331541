"""Trained parameters, equal on all ranks, and which of them had a gradient on any rank.

Tensors without one are not updated, and keep what their optimizer has of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from coppice.errors import InputError
from coppice.training.torch.core.agree import lost_rank


class UsedTensors:
    """Union over the ranks of the tensors with gradients, exchanged along with the all-reduces.

    Args:
        count: Number of trained tensors.
        group: The ranks, in a group that carries nothing else.
        device: Where they compute.
        timeout_s: Longest wait for another rank.
    """

    def __init__(self, count: int, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self._count, self._group, self._device, self._timeout_s = count, group, device, timeout_s
        self._marks = torch.ones(count, dtype=torch.int32)
        self._work: Any = None
        self._places = frozenset(range(count))

    def exchange(self, places: Iterable[int]) -> None:
        """Exchange this rank's tensors with gradients at the end of backward."""
        marks = torch.zeros(self._count, dtype=torch.int32)
        marks[list(places)] = 1
        self._marks = marks.to(self._device)
        self._work = dist.all_reduce(self._marks, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def places(self) -> frozenset[int]:
        """Tensors with a gradient on any rank in this iteration."""
        if self._work is not None:
            try:
                self._work.wait(timedelta(seconds=self._timeout_s))
            except RuntimeError as error:
                raise lost_rank(error, "say which gradients they have") from error
            self._work = None
            self._places = frozenset(self._marks.nonzero().flatten().tolist())
        return self._places


def require_whole_gradients(whole: bool) -> None:  # noqa: FBT001 (what it requires)
    """Check that gradients are not split, where tensors may have none."""
    if not whole:
        raise InputError(
            "expected `unused=False` where chunks are chosen, found True: send whole gradients (`ratio=1`)."
        )


def trained_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[str], list[nn.Parameter]]:
    """Names and tensors that the optimizer trains, in model order, without empty ones."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "expected an optimizer that updates each parameter by itself, found LBFGS: take another."
        )
    if any(isinstance(each, DistributedDataParallel) for each in model.modules()):
        raise InputError(
            "expected a plain model, found DistributedDataParallel, which sums gradients itself: give its `module`."
        )
    given = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.numel()]
    wanted = {id(p) for p in given}
    if not wanted:
        raise InputError(
            "expected an optimizer of parameters that are trained, found that all are frozen or empty: set "
            "requires_grad of what is to be trained."
        )
    found = [(name, p) for name, p in model.named_parameters() if id(p) in wanted]
    if len(found) != len(wanted):
        raise InputError(
            f"expected an optimizer of the model's parameters, found {len(wanted) - len(found)} of {len(wanted)} that "
            "are not the model's: hand both over together."
        )
    sharded = next((name for name, p in found if isinstance(p, DTensor)), None)
    if sharded is not None:
        raise InputError(
            f"expected parameters that every rank has whole, found {sharded} as a DTensor: whoever shards it sums its "
            "gradients (for FSDP2 there is prefetch_order)."
        )
    devices = sorted({str(p.device) for _, p in found})
    if len(devices) > 1:
        raise InputError(
            f"expected trained parameters on one device, found {devices[0]} and {devices[1]}: a rank has one device; "
            "schedule each part of the model by itself."
        )
    device = found[0][1].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        raise InputError(
            f"expected the current device to be that of the parameters, found {device} and "
            f"cuda:{torch.cuda.current_device()}: call torch.cuda.set_device({device.index}) first, as NCCL needs it."
        )
    return [name for name, _ in found], [p for _, p in found]


def require_alike(names: Sequence[str], trained: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Check that ranks train the same tensors."""
    own = [(name, list(p.shape), str(p.dtype)) for name, p in zip(names, trained, strict=True)]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    for rank, other in enumerate(everyone):
        if other != own:
            differing = next(
                (mine[0] for mine, theirs in zip(own, other, strict=False) if mine != theirs), "their number"
            )
            raise InputError(
                f"expected the same trained parameters on all ranks, found others on rank {rank} ({differing}): "
                "build the model alike on all."
            )
