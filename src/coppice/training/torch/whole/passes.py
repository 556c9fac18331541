"""Execution of one section in one step: its chunks forward and backward, bound to operations of the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from coppice.training.torch.whole.execution import collective_run
from coppice.training.torch.whole.executors import TaskExecutor, TaskRun
from coppice.training.torch.whole.grids import PhaseGroups
from coppice.training.torch.whole.orders import OrderedPlan
from coppice.training.torch.whole.sections import DeferredWeights, TensorParallelModule, WeightProduct
from coppice.training.torch.whole.sharded import ShardedWeights
from coppice.training.torch.whole.steps import SectionOperations, StepOperations
from coppice.training.torch.whole.templates import CollectiveBuffers


@dataclass(kw_only=True)
class SectionEntry:
    """A section of a model."""

    name: str  # Its name
    section: TensorParallelModule  # The module
    trained: list[nn.Parameter] = field(default_factory=list)  # Parameters of its inner part
    elements: int = 0  # Elements of its sum when it last ran
    dtype: torch.dtype = torch.float32  # Their type
    sharded: ShardedWeights | None = None  # Its weights, where replicas keep parts of them

    def shard(self, group: dist.ProcessGroup | None) -> None:
        """Shard its weights over the replicas."""
        self.section.weights = self.sharded = ShardedWeights(self.section.inner, self.trained, group)


class StepDriver(Protocol):
    """Callbacks of a section's pass to the schedule."""

    groups: PhaseGroups
    ordered: OrderedPlan
    operations: StepOperations
    entries: list[SectionEntry]

    @property
    def executor(self) -> TaskExecutor:
        """Executor of the plan."""

    def backward_starts(self, made: SectionPass) -> None:
        """Called when a section's backward pass starts."""

    def left(self) -> None:
        """Called when it has returned."""

    def mean(self, number: int) -> None:
        """Called when the gradients of a section are available."""


@dataclass(eq=False)
class _PassPiece:
    """Chunk of a section's rows: input, normalised input, its copy, and inner output."""

    rows: slice
    x: torch.Tensor
    n: torch.Tensor
    h: torch.Tensor
    p: torch.Tensor


class SectionPass:
    """Pass of a section in a step.

    Args:
        driver: The schedule.
        number: Number of the section.
        x: Its input.
    """

    def __init__(self, driver: StepDriver, number: int, x: torch.Tensor) -> None:
        self._driver, self._number = driver, number
        self._entry = driver.entries[number]
        self._own: SectionOperations = driver.operations.sections[number]
        self._section = self._entry.section
        self._cut = driver.ordered.pieces(self._own.forward)
        self._x = x.detach()
        self._wants = x.requires_grad
        self._pieces: dict[int, _PassPiece] = {}
        self._products: list[WeightProduct] = []
        self._out: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._of_h: torch.Tensor | None = None
        self._of_x: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward pass, connected to autograd."""
        anchor = torch.empty(0, device=x.device, requires_grad=True)
        found: torch.Tensor = _Carried.apply(x, anchor, self)  # type: ignore[no-untyped-call]
        return found

    def run_forward(self) -> torch.Tensor:
        """Run all chunks forward."""
        executor, own = self._driver.executor, self._own
        executor.bind(own.forward, self._forward_piece)
        if own.sums >= 0:
            executor.bind(own.sums, self._exchange(own.sums, forward=True))
        executor.advance(own.forward)
        executor.wait([own.forward] if own.sums < 0 else [own.sums])
        assert self._out is not None
        self._entry.elements, self._entry.dtype = self._out.numel(), self._out.dtype
        return self._out

    def run_backward(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Gradient of the input; weight gradients follow by the plan."""
        self._driver.backward_starts(self)
        self._gradient = gradient
        executor, own = self._driver.executor, self._own
        if own.input_sums >= 0:
            executor.bind(own.input_sums, self._exchange(own.input_sums, forward=False))
        executor.bind(own.backward, self._backward_piece)
        executor.bind(own.weights, self._weights_piece)
        executor.bind(own.norm, self._norm)
        executor.advance(own.norm)
        found, self._of_x = self._of_x, None
        self._driver.left()
        return found

    def _rows(self, piece: int) -> slice:
        count = len(self._x)
        return slice(count * piece // self._cut, count * (piece + 1) // self._cut)

    def _forward_piece(self, piece: int, phase: int) -> None:
        del phase
        rows = self._rows(piece)
        if rows.start < rows.stop:
            self._forward_rows(piece, rows)
        if piece == self._cut - 1 and self._own.second_gather >= 0:
            self._release()

    def _release(self) -> None:
        """Release whole weights until the next all-gather."""
        if self._entry.sharded is not None:
            self._entry.sharded.release()

    def _forward_rows(self, piece: int, rows: slice) -> None:
        section = self._section
        with torch.enable_grad():
            x = self._x[rows].requires_grad_(self._wants or section.norm is None)
            n = x if section.norm is None else section.norm(x)
            h = n.detach().requires_grad_()
            with DeferredWeights(self._products):
                p = section.computed(h)
        self._pieces[piece] = _PassPiece(rows, x, n, h, p)
        if self._out is None:
            self._out = p.new_empty(len(self._x), *p.shape[1:])
        self._out[rows].copy_(p.detach())

    def _backward_piece(self, piece: int, phase: int) -> None:
        del phase
        own = self._pieces.get(piece)
        if own is not None and self._gradient is not None:
            self._backward_rows(own, self._gradient)
        if piece == self._cut - 1:
            self._release()

    def _backward_rows(self, own: _PassPiece, gradient: torch.Tensor) -> None:
        torch.autograd.backward(own.p, gradient[own.rows])
        if self._of_h is None:
            self._of_h = own.h.new_empty(len(self._x), *own.h.shape[1:])
        if own.h.grad is None:
            self._of_h[own.rows].zero_()
        else:
            self._of_h[own.rows].copy_(own.h.grad)
        own.h.grad = None
        del own.p

    def _weights_piece(self, piece: int, phase: int) -> None:
        del phase
        count, pieces = len(self._products), self._driver.ordered.pieces(self._own.weights)
        wanted = self._products[count * piece // pieces : count * (piece + 1) // pieces]
        if wanted:
            torch.autograd.backward([each.weight for each in wanted], [each.compute() for each in wanted])
        if piece == pieces - 1:
            self._products = []
            self._driver.mean(self._number)

    def _norm(self, piece: int, phase: int) -> None:
        del piece, phase
        assert self._of_h is not None
        if self._section.norm is None:
            self._of_x = self._of_h
        else:
            for own in self._pieces.values():
                if own.n.requires_grad:
                    torch.autograd.backward(own.n, self._of_h[own.rows])
            if self._wants:
                self._of_x = torch.empty_like(self._x)
                for own in self._pieces.values():
                    assert own.x.grad is not None
                    self._of_x[own.rows].copy_(own.x.grad)
        self._pieces, self._of_h, self._gradient = {}, None, None

    def _exchange(self, operation: int, *, forward: bool) -> TaskRun:
        """All-reduce of rows over the ranks that share the section, chunk by chunk."""
        group, driver = self._section.group, self._driver

        def of_piece(piece: int) -> CollectiveBuffers:
            whole = self._out if forward else self._of_h
            rows = self._x[:0] if whole is None else whole[self._rows(piece)]
            return CollectiveBuffers("all_reduce", rows, group=group)

        shape = CollectiveBuffers("all_reduce", self._x[:0].reshape(-1), group=group)
        return collective_run(driver.ordered, operation, shape, driver.groups, of_piece=of_piece)


class _Carried(torch.autograd.Function):
    """A section executed by the plan."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor, made: SectionPass) -> torch.Tensor:
        del x, anchor
        ctx.made = made
        return made.run_forward()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.made.run_backward(gradients[0]), None, None
