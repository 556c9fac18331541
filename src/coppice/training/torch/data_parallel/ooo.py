"""Deferred weight gradients (reverse first-k of out-of-order backpropagation).

Autograd's engine runs, of what is ready, the operation that the forward pass made last. So a gradient is deferred by
where it hangs: before the forward pass each deferred parameter gets a *gate*, an operation that yields a scalar; its
layer takes that scalar as one of its inputs. In the backward pass the layer returns the gradient of its input at once
and leaves with the gate how the parameter's is made. Gates are older than anything of the forward pass, so the engine
comes to them when all gradients of inputs are made, and to the youngest first: made last to first they run 0, 1, ...,
k-1. What they return goes the way of every gradient: hooks of the parameter, accumulation, hooks behind it.

Nothing is rewritten: a module's ``forward`` is replaced on the object, its class and its keys stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from coppice.errors import InputError
from coppice.iteration.pipeline.order import Work
from coppice.iteration.step.plan import LayerPass
from coppice.training.torch.core.attached import ModuleAttachments
from coppice.training.torch.core.measure import BACKWARD, DeviceClock, StepEvent, StepRecord, median_seconds
from coppice.training.torch.data_parallel.separable import SeparableLayer, separable_layer


@dataclass(frozen=True)
class WeightTimes:
    """Recorded times of weight gradients."""

    seconds: list[float]  # Time that each takes; 0 for those that are not made apart
    separable: list[bool]  # Whether each is made apart from the gradient of its layer's input


class DeferredGradients:
    """Deferral of weight gradients of a model.

    While iterations are recorded every gate is made where its layer runs, so that gradients of parameters are made in
    their usual places, each apart and timed. Then those that a policy defers get theirs before the forward pass.

    Args:
        trained: The trained tensors.
    """

    def __init__(self, trained: Sequence[nn.Parameter]) -> None:
        self.timing = True
        """Iterations are recorded."""
        self._trained = trained
        self._places = {id(parameter): place for place, parameter in enumerate(trained)}
        self._split: list[nn.Module] = []
        self._attached = ModuleAttachments()
        self._begun_split = False  # a forward pass that began whole is recomputed whole
        self._separable: set[int] = set()
        self._record = StepRecord(DeviceClock(trained[0].device if trained else None))
        self._begun: dict[int, float] = {}
        self._deferred: tuple[int, ...] = ()
        self._gates: dict[int, tuple[_Waiting, torch.Tensor]] = {}

    def watch(self, model: nn.Module, readers: Sequence[Sequence[nn.Module]]) -> None:
        """Split the backward passes of a model's layers where possible.

        Args:
            readers: Modules that read each trained tensor, its owners among them: a tensor that others than its
                layers read (tied weights in a product of one's own) keeps the time that autograd gives it.
        """
        owned: dict[int, dict[str, int]] = {}
        for module in model.modules():
            layer = separable_layer(module)
            if layer is None or "forward" in vars(module):
                continue
            own = {name: module._parameters.get(name) for name in layer.parameters}  # noqa: SLF001 (no computed ones)
            if any(
                each is None or (each.requires_grad and id(each) not in self._places) for each in own.values()
            ):
                continue
            places = {
                name: self._places[id(each)]
                for name, each in own.items()
                if each is not None and each.requires_grad
            }
            if places:
                owned[id(module)] = places
                self._split.append(module)
                self._attached.set(module, "forward", self._forward(module, layer, places))
        for place, modules in enumerate(readers):
            if all(place in owned.get(id(module), {}).values() for module in modules):
                self._separable.add(place)

    def times(self) -> WeightTimes:
        """Recorded times."""
        places, found = range(len(self._trained)), median_seconds(self._record.all_events(), BACKWARD)
        separable = [place in self._separable and place in found for place in places]
        return WeightTimes([found.get(place, 0.0) for place in places], separable)

    def adopt(self, passes: Sequence[LayerPass], tensors: Sequence[int]) -> None:
        """Defer the gradients chosen by a policy, from the next forward pass on.

        Args:
            passes: Backward passes in the policy's order: gradients of weights that come behind all else are
                deferred.
        """
        self.timing = False
        behind = max(turn for turn, each in enumerate(passes) if each.work is not Work.WEIGHT) + 1
        self._deferred = tuple(tensors[each.layer] for each in passes[behind:])

    def begin(self) -> None:
        """Start a forward pass, with gates of the deferred gradients in execution order."""
        self._begun_split = bool(self._split)
        self._gates = {place: self._gate(place) for place in reversed(self._deferred)}

    def close(self) -> None:
        """Restore the modules' forward passes."""
        self._attached.remove()

    def starts(self, place: int) -> None:
        """Called when a deferred gradient begins."""
        if self.timing:
            self._begun[place] = self._record.now()

    def arrived(self, place: int) -> None:
        """Called when a gradient is accumulated."""
        begun = self._begun.pop(place, None)
        if begun is not None:
            self._record.add(StepEvent(BACKWARD, place, begun, self._record.now()))

    def _gate(self, place: int) -> tuple[_Waiting, torch.Tensor]:
        parameter = self._trained[place]
        waiting = _Waiting(place, parameter, self)
        return waiting, _Gate.apply(waiting, parameter)  # type: ignore[no-untyped-call]

    def _forward(
        self, module: nn.Module, layer: SeparableLayer, places: Mapping[str, int]
    ) -> Callable[..., Any]:
        """Forward pass of a module with a split backward pass."""

        def forward(*given: Any, **named: Any) -> Any:
            if (
                named
                or not self._begun_split
                or len(given) != 1
                or type(given[0]) not in _PLAIN
                or not torch.is_grad_enabled()
                or not (self.timing or not self._gates.keys().isdisjoint(places.values()))
                or torch.compiler.is_compiling()
                or not layer.takes(given[0])
            ):
                return type(module).forward(module, *given, **named)
            for place in places.values():
                if place not in self._gates:
                    self._gates[place] = self._gate(place)  # in its usual place: where its layer first runs
            gates = {name: self._gates[place] for name, place in places.items()}
            return _SplitBackward.apply(  # type: ignore[no-untyped-call]
                layer,
                {name: waiting for name, (waiting, _) in gates.items()},
                given[0],
                *(scalar for _, scalar in gates.values()),
            )

        return forward


_PLAIN = (torch.Tensor, nn.Parameter)


class _Waiting:
    """Deferred gradient of one parameter in one pass.

    A backward pass is known by its number: what one leaves behind that did not ask for the parameter is not added to
    that of the next.
    """

    def __init__(self, place: int, parameter: torch.Tensor, owner: DeferredGradients) -> None:
        self._place, self._owner = place, owner
        self._kind = parameter.dtype
        self._parts: dict[int, list[Callable[[], torch.Tensor]]] = {}

    def add(self, part: Callable[[], torch.Tensor]) -> None:
        """Add a use of the parameter."""
        self._parts.setdefault(_backward_number(), []).append(part)

    def take(self) -> torch.Tensor | None:
        """Gradient, accumulated in autograd's order."""
        parts = self._parts.pop(_backward_number(), [])
        if not parts:
            return None
        self._owner.starts(self._place)
        total = parts[0]()
        for part in parts[1:]:
            total = total + part()
        return total.to(self._kind)


class _Gate(torch.autograd.Function):
    """Scalar in place of a parameter; its backward pass computes the parameter's gradient."""

    @staticmethod
    def forward(ctx: Any, waiting: _Waiting, parameter: torch.Tensor) -> torch.Tensor:
        ctx.waiting = waiting
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del gradients
        return None, ctx.waiting.take()


class _SplitBackward(torch.autograd.Function):
    """Layer that returns its input gradient, and defers parameter gradients to their gates."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: SeparableLayer,
        waiting: Mapping[str, _Waiting],
        given: torch.Tensor,
        *scalars: torch.Tensor,
    ) -> torch.Tensor:
        output, kept = layer.forward(given)
        ctx.save_for_backward(*kept)
        ctx.layer, ctx.waiting, ctx.kind = layer, waiting, given.dtype
        ctx.scalars = [scalar.detach() for scalar in scalars]
        ctx.within = _backward_number() >= 0
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "expected backward() without create_graph where gradients of weights are deferred, found it: take "
                "another policy than ooo for second derivatives."
            )
        if ctx.within:
            raise InputError(
                "expected torch.utils.checkpoint with use_reentrant=False where gradients of weights are deferred, "
                "found a segment with its own backward pass: pass use_reentrant=False."
            )
        layer: SeparableLayer = ctx.layer
        kept, gradient = ctx.saved_tensors, gradients[0]
        for name, waiting in ctx.waiting.items():
            waiting.add(_part(layer, name, kept, gradient))
        own = layer.input_gradient(kept, gradient).to(ctx.kind) if ctx.needs_input_grad[2] else None
        return None, None, own, *ctx.scalars


def _part(
    layer: SeparableLayer, name: str, kept: Sequence[torch.Tensor], gradient: torch.Tensor
) -> Callable[[], torch.Tensor]:
    def make() -> torch.Tensor:
        for each in (*kept, gradient):
            if each.is_cuda:  # its memory is not given away before this stream has used it
                each.record_stream(torch.cuda.current_stream(each.device))
        return layer.parameter_gradient(name, kept, gradient)

    return make


def _backward_number() -> int:
    """Index of the running backward pass; -1: none."""
    number: int = torch._C._current_graph_task_id()  # noqa: SLF001 (torch.utils.checkpoint asks the same)
    return number
