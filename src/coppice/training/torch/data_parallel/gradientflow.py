"""GradientFlow's sparse communication: send the chunks of largest norm, and accumulate the others.

All trained tensors lie in a row, the last of the model first, cut into chunks; tensors of another type in a row of
their own. The row depends on the model alone, so a resumed training has the same chunks whatever was recorded. A
chunk goes with the last message that carries one of its tensors. On each rank, with its own gradients g:

    m = mu m + g + decay w        h = h + m        (momentum correction, before anything is left out)
    chosen chunks: w = w - rate * mean over ranks of h;  h = 0;  and m = 0 if the chunk had waited
    norms of all h are summed; the next set is the share of the greatest, equal norms by number

Clearing m (factor masking) keeps gradients from before a wait from being used again. A chunk that was sent in the
iteration before has none, and keeps its momentum: so with all chunks chosen the training is SGD with momentum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.iteration.policies.data_parallel.gradientflow import NORMS
from coppice.iteration.step.plan import Message
from coppice.training.torch.core.streams import used_here

STATE_KEY = "sparse_sums"
"""Where an optimizer's state has that of :class:`SparseSums`."""

UNDERLYING = {"momentum": 0.0, "weight_decay": 0.0}
"""Settings of the step on what was sent, which has both already."""


def _require_plain_sgd(optimizer: torch.optim.Optimizer) -> None:
    """Check that momentum can be taken over."""
    found = type(optimizer).__name__
    if type(optimizer) is torch.optim.SGD:
        odd = [
            name
            for name in ("nesterov", "dampening", "maximize")
            if any(group[name] for group in optimizer.param_groups)
        ]
        if not odd:
            return
        found = f"SGD with {odd[0]}"
    raise InputError(
        f"expected torch.optim.SGD without nesterov, dampening and maximize for `ratio` below 1, found {found}: parts "
        "of gradients add up with the momentum of SGD; take it, or `ratio=1`."
    )


@dataclass(frozen=True)
class _ChunkRow:
    """Contiguous tensors of one type; each attribute has a row per chunk, the last one padded."""

    first: int  # Number of its first chunk among those of all rows
    momentum: torch.Tensor  # m
    residual: torch.Tensor  # h
    sums: torch.Tensor  # What was sent, averaged; 0 elsewhere

    def own(self, chunks: Iterable[int]) -> torch.Tensor:
        """Chunks of this row among some, by position."""
        places = [each - self.first for each in chunks if 0 <= each - self.first < len(self.residual)]
        return torch.tensor(places, dtype=torch.long, device=self.residual.device)


@dataclass(frozen=True)
class _Place:
    """Position of a tensor: parts of a row, and the chunks that they touch."""

    momentum: torch.Tensor
    residual: torch.Tensor
    sums: torch.Tensor
    chunks: range


class SparseSums:
    """Chunks held back on this rank, and those sent next on all ranks.

    Args:
        optimizer: The optimizer, whose momentum is taken over.
        parameters: The trained tensors, in the order of the model.
        ranks: Number of ranks.
        rank: This one.
        ratio: Share of the chunks that is sent.
        chunk_elements: Elements of a chunk.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        *,
        ranks: int,
        rank: int,
        ratio: float,
        chunk_elements: int,
    ) -> None:
        _require_plain_sgd(optimizer)
        self._optimizer, self._parameters = optimizer, parameters
        self._ranks, self._rank, self._chunk_elements = ranks, rank, chunk_elements
        groups = {
            id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]
        }
        self._group_of = [groups[id(parameter)] for parameter in parameters]
        self._rows: list[_ChunkRow] = []
        self._places = self._lay_out()
        self.chunks = sum(len(row.residual) for row in self._rows)
        """Number of chunks."""
        self._count = max(1, math.ceil(ratio * self.chunks - 1e-9))
        self.chosen = list(range(self.chunks))
        """Chunks that are sent in the iteration under way, or the next one; first all."""
        self._held: set[int] = set()
        self._of_group: dict[tuple[int, ...], list[int]] = {}
        self._sent: list[tuple[_ChunkRow, torch.Tensor, torch.Tensor]] = []
        self._norms = torch.zeros(self.chunks, device=self._rows[0].residual.device)
        self._take_momentum_over()

    def _lay_out(self) -> list[_Place]:
        places: dict[int, _Place] = {}
        order = list(reversed(range(len(self._parameters))))
        kinds = dict.fromkeys(
            (self._parameters[place].dtype, self._parameters[place].device) for place in order
        )
        first = 0
        for kind in kinds:
            own = [p for p in order if (self._parameters[p].dtype, self._parameters[p].device) == kind]
            count = sum(self._parameters[place].numel() for place in own)
            width = max(1, min(self._chunk_elements, count))
            columns = [
                torch.zeros(-(-count // width), width, dtype=kind[0], device=kind[1]) for _ in range(3)
            ]
            begin = 0
            for place in own:
                parameter = self._parameters[place]
                end = begin + parameter.numel()
                momentum, residual, sums = (
                    column.view(-1)[begin:end].view(parameter.shape) for column in columns
                )
                chunks = range(first + begin // width, first + -(-end // width))
                places[place] = _Place(momentum, residual, sums, chunks)
                begin = end
            self._rows.append(_ChunkRow(first, *columns))
            first += len(columns[0])
        return [places[place] for place in range(len(self._parameters))]

    def _take_momentum_over(self) -> None:
        """Start momentum from the optimizer's state, equal on all ranks."""
        for place, parameter in zip(self._places, self._parameters, strict=True):
            before = self._optimizer.state.get(parameter, {}).pop("momentum_buffer", None)
            if before is not None:
                place.momentum.copy_(before)

    def views(self, place: int) -> list[torch.Tensor]:
        """Location of a tensor's averaged gradient; 0 in unsent chunks."""
        return [self._places[place].sums]

    def assign(self, messages: Sequence[Message], tensors: Sequence[int]) -> None:
        """Chunks of each message."""
        last: dict[int, tuple[int, ...]] = {}
        for message in messages:
            if message.name != NORMS:
                chunks = (each for layer in message.gradients for each in self._places[tensors[layer]].chunks)
                last.update(dict.fromkeys(chunks, message.gradients))
        self._of_group = {message.gradients: [] for message in messages}
        for chunk, group in sorted(last.items()):
            self._of_group[group].append(chunk)

    def accumulate(self, place: int, gradient: torch.Tensor) -> None:
        """Called when autograd has made a gradient."""
        at, group = self._places[place], self._optimizer.param_groups[self._group_of[place]]
        with torch.no_grad():
            at.momentum.mul_(float(group["momentum"])).add_(gradient)
            if group["weight_decay"]:
                at.momentum.add_(self._parameters[place], alpha=float(group["weight_decay"]))
            at.residual.add_(at.momentum)

    def start(self, message: Message, group: dist.ProcessGroup) -> list[Any]:
        """Send the chosen chunks of a message, or the norms of what is held back."""
        if message.name == NORMS:
            parts = [row.residual.abs().sum(dim=1, dtype=torch.float32) for row in self._rows]
            self._norms = torch.cat([part.to(self._norms.device) for part in parts])
            self._norms[self.chosen] = 0.0
            return [dist.all_reduce(self._norms, group=group, async_op=True)]
        chosen = set(self.chosen).intersection(self._of_group[message.gradients])
        works = []
        for row in self._rows:
            own = row.own(sorted(chosen))
            if not len(own):
                continue
            sent = row.residual.index_select(0, own).mul_(1 / self._ranks)
            row.residual.index_fill_(0, own, 0.0)
            row.momentum.index_fill_(0, row.own(sorted(chosen & self._held)), 0.0)
            self._sent.append((row, own, sent))
            works.append(dist.all_reduce(sent, group=group, async_op=True))
        return works

    def finish(self) -> None:
        """Store the received chunks, and choose the next ones."""
        for row in self._rows:
            row.sums.zero_()
        used_here([self._norms, *(sent for *_, sent in self._sent)])
        if not all(bool(each.isfinite().all()) for each in (self._norms, *(sent for *_, sent in self._sent))):
            raise InputError(
                "expected finite gradients where parts of them are held back, found others: take bfloat16 without a "
                "GradScaler, or send whole gradients (`ratio=1`)."
            )
        for row, own, sent in self._sent:
            row.sums.index_copy_(0, own, sent)
        self._sent = []
        self._held = set(range(self.chunks)).difference(self.chosen)
        order = torch.sort(self._norms, descending=True, stable=True).indices
        self.chosen = sorted(order[: self._count].tolist())

    def state(self) -> dict[str, Any]:
        """State of this rank."""
        return {
            "rank": self._rank,
            "ranks": self._ranks,
            "chunk_elements": self._chunk_elements,
            "momentum": [row.momentum.clone() for row in self._rows],
            "residual": [row.residual.clone() for row in self._rows],
            "chosen": list(self.chosen),
            "held": sorted(self._held),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore a state; None: nothing is held back, and momentum is the optimizer's."""
        if state is None:
            for row in self._rows:
                row.momentum.zero_()
                row.residual.zero_()
            self.chosen, self._held = list(range(self.chunks)), set()
            self._take_momentum_over()
            return
        own = self.state()
        shapes = [
            {**{key: each[key] for key in ("rank", "ranks", "chunk_elements")}, "chunks": _shapes(each)}
            for each in (own, state)
        ]
        differing = next((key for key in shapes[0] if shapes[0][key] != shapes[1][key]), None)
        if differing is not None:
            raise InputError(
                f"expected what this rank has held back ({differing}={shapes[0][differing]}), found "
                f"{differing}={shapes[1][differing]}: each rank loads the state that it has saved."
            )
        for number, row in enumerate(self._rows):
            row.momentum.copy_(state["momentum"][number])
            row.residual.copy_(state["residual"][number])
        self.chosen, self._held = list(state["chosen"]), set(state["held"])


def require_whole(state: Mapping[str, Any]) -> None:
    """Check that an optimizer state comes from a training without sparse communication."""
    if STATE_KEY in state:
        raise InputError(
            f"expected a state of a training that sends whole gradients, found {STATE_KEY!r}: take gradientflow "
            "with its `ratio`, or remove the key, and with it what was held back."
        )


def _shapes(state: Mapping[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in state["residual"]]
