"""Pack experts during training: twice as many per rank, with their optimizer state.

While the experts take less time for a piece of tokens than its exchange does, and memory allows, ranks in pairs take
over each other's experts. Half as many ranks then exchange tokens, more of which stay where they are; ranks with the
same experts sum the gradients of these. The weights and the state of the optimizer are those that the partner has, so
training goes on as if nothing had happened.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.iteration.policies.whole.lina import packed_experts, remote_share
from coppice.training.torch.core.agree import gathered, tensors_of
from coppice.training.torch.core.measure import (
    COMPUTE,
    SENT,
    WAITED,
    StepItem,
    StepRecord,
    alike_steps,
    median_step,
)
from coppice.training.torch.whole.mixture.layer import MixtureOfExperts


@dataclass
class Packing:
    """Decide when to pack experts."""

    every: int  # Steps between one look at the times of pieces and the next
    # What the experts of a rank, their gradients and their optimizer may take; None: anything
    memory_bytes: float | None = None
    looking: bool = False  # The times of this step are looked at
    packed: bool = False  # Something was packed after the last look
    _steps: int = field(default=0, repr=False)

    def end_step(self) -> bool:
        """End a step; return whether the next one is timed."""
        self._steps += 1
        self.looking = self._steps % self.every == 0
        return self.looking

    def layers_to_double(
        self,
        layers: Iterable[MixtureOfExperts],
        record: StepRecord,  # Steps of this rank
        agree: Callable[[Callable[[], Any]], Any],  # Lets rank 0 decide
    ) -> list[MixtureOfExperts]:
        """Layers whose experts are packed now."""
        every = list(layers)

        def chosen() -> list[int]:
            items = median_step(alike_steps(record))
            return [at for at, layer in enumerate(every) if self._gains(layer, items)]

        numbers = agree(chosen)
        self.looking, self.packed = False, bool(numbers)
        return [every[number] for number in numbers]

    def _gains(self, layer: MixtureOfExperts, items: Sequence[StepItem]) -> bool:
        layout = layer.layout
        seconds = piece_seconds(items, layer.label)
        if seconds is None or layout.doubled() is None:
            return False
        computed, exchanged = seconds
        now = remote_share(layout.experts, layout.of_rank)
        bytes_now = sum(4 * each.numel() * each.element_size() for each in layer.experts.parameters())

        def fits(count: int) -> bool:
            if count > 2 * layout.of_rank:
                return False
            return self.memory_bytes is None or bytes_now * count / layout.of_rank <= self.memory_bytes

        if not fits(layout.of_rank):
            return False
        wanted = packed_experts(
            layout.experts,
            expert_seconds=lambda _: computed,
            exchange_seconds=lambda count: exchanged * remote_share(layout.experts, count) / now,
            fits=fits,
        )
        return wanted > layout.of_rank


def piece_seconds(items: Sequence[StepItem], label: str) -> tuple[float, float] | None:
    """Forward times of a layer's experts and of one exchange for a chunk; None: nothing is exchanged.

    Examples:
        >>> step = [StepItem(SENT, "m dispatch 0", 4.0), StepItem(COMPUTE), StepItem(WAITED, "m dispatch 0"),
        ...         StepItem(COMPUTE, seconds=3.0), StepItem(SENT, "m combine 0", 2.0)]
        >>> piece_seconds(step, "m")
        (3.0, 3.0)
    """
    exchanged = [
        each.seconds
        for each in items
        if each.kind == SENT and each.what.rpartition(" ")[0] in (f"{label} dispatch", f"{label} combine")
    ]
    computed = [
        items[at + 1].seconds
        for at, each in enumerate(items[:-1])
        if each.kind == WAITED
        and each.what.rpartition(" ")[0] == f"{label} dispatch"
        and items[at + 1].kind == COMPUTE
    ]
    if not exchanged or not computed:
        return None
    return statistics.mean(computed), statistics.mean(exchanged)


def pack_layer(layer: MixtureOfExperts, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Double the experts per rank of a layer; collective over the ranks.

    Args:
        optimizer: Its optimizer, which gets the new parameters and their state.
        model: The model, whose order of parameters groups of the optimizer keep.
    """
    doubled = layer.layout.doubled()
    assert doubled is not None
    group = layer.group if layer.group is not None else dist.group.WORLD
    partner = dist.get_process_group_ranks(group)[layer.layout.partner(layer.rank)]
    own = list(layer.experts.items())
    tensors, told = [], []
    for _, module in own:
        state = [_split(optimizer.state.get(each, {})) for each in module.parameters()]
        told.append([plain for plain, _ in state])
        tensors += [each.detach() for each in tensors_of(module)]
        tensors += [each for _, found in state for each in found.values()]
    shapes = [(list(each.shape), each.dtype) for each in tensors]
    theirs = gathered((told, [list(f) for f in _names(own, optimizer)], shapes), group)
    plain, names, found_shapes = theirs[layer.layout.partner(layer.rank)]
    device = tensors[0].device
    received = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in found_shapes]
    _swap(tensors, received, partner, group)
    first = doubled.own(layer.rank)[0]
    theirs_first = first if int(own[0][0]) != first else first + layer.layout.of_rank
    made: dict[str, nn.Module] = {}
    coming = iter(received)
    names_of = iter(names)
    with torch.no_grad():
        for at, (_, module) in enumerate(own):
            copied = copy.deepcopy(module)
            copied.zero_grad(set_to_none=True)
            for tensor in tensors_of(copied):
                tensor.copy_(next(coming))
            for number, (mine, new) in enumerate(zip(module.parameters(), copied.parameters(), strict=True)):
                _join(optimizer, mine, new)
                found = {key: next(coming) for key in next(names_of)}
                found = {key: each if each.dim() else each.cpu() for key, each in found.items()}
                if found or plain[at][number]:
                    optimizer.state[new] = {**plain[at][number], **found}
            made[str(theirs_first + at)] = copied
    layer.experts = nn.ModuleDict(dict(sorted([*own, *made.items()], key=lambda each: int(each[0]))))
    layer.layout = doubled
    _in_order(optimizer, model)


def _names(own: Sequence[tuple[str, nn.Module]], optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Names of the tensors in the state of each parameter."""
    return [
        list(_split(optimizer.state.get(parameter, {}))[1])
        for _, module in own
        for parameter in module.parameters()
    ]


def _split(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Split a state into tensors and other values."""
    plain = {key: each for key, each in state.items() if not isinstance(each, torch.Tensor)}
    return plain, {key: each for key, each in state.items() if key not in plain}


def _swap(given: Sequence[torch.Tensor], received: Sequence[torch.Tensor], partner: int, group: Any) -> None:
    """Exchange tensors with a partner."""
    device = given[0].device
    operations = []
    for mine, other in zip(given, received, strict=True):
        operations += [
            dist.P2POp(dist.isend, mine.to(device).contiguous(), partner, group),
            dist.P2POp(dist.irecv, other, partner, group),
        ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _join(optimizer: torch.optim.Optimizer, mine: nn.Parameter, new: nn.Parameter) -> None:
    """Add a parameter with the training state of an existing one."""
    for group in optimizer.param_groups:
        if any(each is mine for each in group["params"]):
            group["params"].append(new)


def _in_order(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Parameters of each group in model order, as in a new optimizer."""
    place = {id(each): number for number, each in enumerate(model.parameters())}
    for group in optimizer.param_groups:
        group["params"].sort(key=lambda each: place.get(id(each), -1))
