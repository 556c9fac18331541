"""Oases: run blocks in two half micro-batches; one computes while the other is all-reduced.

The order of computation, waits and sums is that of
:class:`~coppice.iteration.policies.tensor.half_batches.HalfBatches`, segment by segment; ranks that run the same blocks
start the same sums in the same order. A block of the policy is a part that ends in a sum. Of each half and part what
entered it and its sum are kept; all else is computed again before it is needed, with the random numbers and types that
it had, and nothing is summed again.

In the graph of autograd there is a node for each part; gradients and sums between parts are in the state of the pass,
which nodes share, and never seen by autograd while they are under way. Each parameter gets its gradient once, when both
halves have passed its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from coppice.errors import InputError
from coppice.iteration.policies.tensor.half_batches import (
    PASS_IS_OVER,
    HalfBatches,
    HalfPass,
    HalfSegment,
    HalvedBlock,
)
from coppice.iteration.policies.tensor.oases import TwoHalves
from coppice.training.torch.core.measure import COMPUTE, DeviceClock, StepRecord, median_seconds
from coppice.training.torch.tensor.parts import ActivationSum, parts_of
from coppice.training.torch.tensor.saved import DeviceState

_KEPT_PASSES = 32
_HALVES = (1, 2)
_Gradients = list[torch.Tensor | None]


class HalvedBlocks(nn.Sequential):
    """Sequential blocks run in two halves; state keys are those of ``nn.Sequential``.

    Args:
        blocks: The blocks.
        policy: The policy.
        recompute: Computations are dropped and done again; otherwise all they need is kept.
        first: Number of the first part in a longer row, for names.

    Raises:
        InputError: If the policy sums again, or blocks are no rows of parts of one group.
    """

    def __init__(
        self, blocks: nn.Module, policy: TwoHalves, *, recompute: bool = True, first: int = 0
    ) -> None:
        if not policy.settings.silent:
            raise InputError(
                "expected `silent=True`: sums are kept here, so that nothing has to be summed again, found False: "
                "leave it out."
            )
        parts = [part for block in parts_of(blocks) for part in block]
        if len({part.ranks for part in parts}) > 1:
            degrees = sorted({part.ranks for part in parts})
            raise InputError(
                f"expected parts of one degree without `groups`, found groups of {degrees} ranks."
            )
        super().__init__(*(blocks if isinstance(blocks, nn.Sequential) else blocks.children()))
        self.policy = policy  # The policy, whose simulation has the same order
        self.recompute = recompute
        # What was computed, awaited and started in the last forward pass and the backward pass after it, by
        # the names of the simulation
        self.launched: list[str] = []
        # The last passes, as the host sees them: what is computed for each kind of pass and part
        self.record = StepRecord(DeviceClock(), kept=_KEPT_PASSES)
        self.summed_bytes: dict[int, int] = {}  # Bytes of the sum of a half, by parts
        self.parts = parts  # The parts of all blocks in a row
        self._halves = HalfBatches(
            blocks=[HalvedBlock(forward=1.0, gradients=1.0, recompute=1.0 if recompute else 0.0)]
            * len(parts),
            first=first,
        )

    @property
    def order(self) -> HalfBatches:
        """Pass order of the policy for these blocks."""
        return self._halves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both halves through all blocks."""
        self.launched = []
        return self.go_on(x)

    def go_on(self, x: torch.Tensor) -> torch.Tensor:
        """Forward pass recorded behind ``launched``."""
        if x.dim() < 1 or x.shape[0] < 2:
            raise InputError(
                f"expected a micro-batch of 2 sequences or more, found one of shape {tuple(x.shape)}."
            )
        self.record.next()
        run = _HalfRun(self, x)
        with torch.no_grad():
            output = run.forward(x.detach())
        apply: Any = _PartNode.apply
        token = apply(run, -1, output, 0, x, *run.trained(-1)) if run.needed[0] else x
        for number in range(len(self.parts)):
            if run.needed[number + 1]:  # nothing in front of it is trained otherwise
                saved = run.inputs.pop(number)
                token = apply(run, number, output, len(saved), token, *saved, *run.trained(number))
        return token if run.needed[-1] else output

    def workload(self, network: tuple[float, float]) -> HalfBatches:
        """Passes with the median times of this rank, for simulation.

        Args:
            network: Bytes per second and seconds per message of sums.
        """
        seconds = median_seconds(self.record.all_events(), COMPUTE)
        if not seconds:
            raise InputError("expected passes to tell the times of, found none: train some iterations first.")
        rate, latency = network

        blocks = []
        for number in range(len(self.parts)):
            summed = self.summed_bytes[number] / rate + latency
            blocks.append(
                HalvedBlock(
                    forward=seconds.get(("F", number), 0.0),
                    gradients=seconds.get(("B", number), 0.0),
                    recompute=seconds.get(("R", number), 0.0),
                    forward_sum=summed,
                    backward_sum=summed,
                )
            )
        return replace(self._halves, blocks=blocks)


@dataclass(eq=False)
class _Glue:
    """Graph between the all-reduce of a part and the next product."""

    x: torch.Tensor  # What entered the part
    summed: torch.Tensor | None  # Its sum; None in front of the first part
    entered: torch.Tensor  # What enters the next
    prepared: torch.Tensor | None = None  # The same, prepared; None behind the last part


class _HalfRun:
    """A forward pass, and its backward pass.

    Args:
        blocks: What runs.
        x: The whole micro-batch.
    """

    def __init__(self, blocks: HalvedBlocks, x: torch.Tensor) -> None:
        self.blocks, self.parts = blocks, blocks.parts
        self.device, self.split = x.device, (x.shape[0] + 1) // 2
        grad = torch.is_grad_enabled()
        self.input_needed = grad and x.requires_grad
        self.needed = [self.input_needed or (grad and bool(self.trained(-1)))]
        """Whether what a part's product begins with needs a gradient; at last, whether the output does."""
        for number in range(len(self.parts)):
            self.needed.append(self.needed[-1] or (grad and bool(self.trained(number))))
        self.inputs: dict[int, list[torch.Tensor]] = {}
        """For each part what has to be kept to compute up to its product again: of half 1, then of half 2."""
        self._states: dict[tuple[int, int], DeviceState] = {}
        self._glues: dict[tuple[int, int], _Glue] = {}
        self._products: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._outstanding: ActivationSum | None = None
        self._entered: dict[int, torch.Tensor | None] = {}
        """By halves, the gradient of what entered the part behind the one whose turn it is; then of its own."""
        self._prepared: dict[int, torch.Tensor | None] = {}
        """The all-reduce of the gradient of its prepared input."""
        self._begun = False

    def trained(self, number: int) -> list[nn.Parameter]:
        """Parameters of a node: of a part between two products; -1: of the preparation of the first."""
        own = [] if number < 0 else [self.parts[number].partial, self.parts[number].finish]
        return _trained(*own, *[part.prepare for part in self.parts[number + 1 : number + 2]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both halves forward through all parts."""
        recompute = self.blocks.recompute
        entered = {1: x[: self.split], 2: x[self.split :]}
        sums: dict[int, torch.Tensor] = {}
        for segment in self.blocks.order.forward_segments():
            (one,) = segment.passes
            number, half = one.block, one.half
            kept = [entered[half], sums[half]] if number else [entered[half]]
            needed = self.needed[number + 1]
            if needed:
                self.inputs.setdefault(number, []).extend(kept)
                if recompute:
                    self._states[number, half] = DeviceState.now(self.device)
            with self._computing(one):
                glue, leaf, partial = self._compute(number, kept, graph=needed and not recompute)
            entered[half] = glue.entered.detach()
            sums[half] = _own(partial.detach(), [leaf] if recompute else [leaf, partial])
            self._launch(segment, sums[half])
            if needed and not recompute:
                self._glues[number, half], self._products[number, half] = glue, (leaf, partial)
        self._over()
        last = len(self.parts)
        for half in _HALVES:
            self._glues[last, half] = self._glue(last, [entered[half], sums[half]], graph=self.needed[-1])
        return torch.cat([self._glues[last, half].entered.detach() for half in _HALVES])

    def backward(
        self, number: int, saved: Sequence[torch.Tensor], gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, _Gradients]:
        """Run a node backward: gradients of its parameters, and of the input for the first one."""
        if number == len(self.parts) - 1:
            if self._begun:
                raise InputError(
                    "expected one backward pass for a forward pass, found another: run it forward again."
                )
            self._begun = True
            self._entered = {1: gradient[: self.split], 2: gradient[self.split :]}
            self._prepared = {1: None, 2: None}
        trained = self.trained(number)
        found: list[_Gradients] = []
        if number < 0:
            self._over()
            for half in reversed(_HALVES):
                self._through_glue(0, half, trained, found)
            halves = [own for half in _HALVES if (own := self._entered[half]) is not None]
            whole = torch.cat(halves) if len(halves) == len(_HALVES) else None
            return whole, _totals(found, len(trained))
        kept = {1: saved[: len(saved) // 2], 2: saved[len(saved) // 2 :]}
        for segment in self.blocks.order.backward_segments():
            one = segment.passes[-1]
            if one.block != number:
                continue
            for each in segment.passes[:-1]:
                with self._computing(each), self._states[number, each.half].restored():
                    glue, leaf, partial = self._compute(number, kept[each.half], graph=True)
                self._glues[number, each.half], self._products[number, each.half] = glue, (leaf, partial)
            with self._computing(one):
                term = self._through_part(number, one.half, trained, found)
            self._launch(segment, term)
            self._prepared[one.half] = term
        if not self.needed[number]:
            self._over()
        return None, _totals(found, len(trained))

    def _compute(
        self, number: int, kept: Sequence[torch.Tensor], *, graph: bool
    ) -> tuple[_Glue, torch.Tensor, torch.Tensor]:
        """Compute from the previous all-reduce to a part's product; return it with the graph between."""
        glue = self._glue(number, kept, graph=graph)
        prepared = glue.entered if glue.prepared is None else glue.prepared
        with torch.set_grad_enabled(graph):
            leaf = prepared.detach().requires_grad_(graph and self.needed[number])
            return glue, leaf, self.parts[number].partial(leaf)

    def _glue(self, number: int, kept: Sequence[torch.Tensor], *, graph: bool) -> _Glue:
        """Compute from the previous all-reduce to a part's product input, after the last part to the output."""
        with torch.set_grad_enabled(graph):
            if number == 0:
                x = kept[0].detach().requires_grad_(graph and self.input_needed)
                glue = _Glue(x=x, summed=None, entered=x)
            else:
                before = self.parts[number - 1]
                x = kept[0].detach().requires_grad_(graph and self.needed[number - 1])
                own = self.needed[number - 1] or bool(_trained(before.partial))
                summed = kept[1].detach().requires_grad_(graph and own)
                glue = _Glue(x=x, summed=summed, entered=before.finish(x, summed))
            if number < len(self.parts):
                glue.prepared = self.parts[number].prepare(glue.entered)
        return glue

    def _through_part(
        self, number: int, half: int, trained: Sequence[nn.Parameter], found: list[_Gradients]
    ) -> torch.Tensor | None:
        """Backward through the end of a part and its product: this rank's partial input gradient."""
        gradient = self._through_glue(number + 1, half, trained, found)
        leaf, partial = self._products.pop((number, half))
        if gradient is None:
            gradient = torch.zeros_like(partial)
        wanted = [leaf] if leaf.requires_grad else []
        gradients = _gradients([partial], [gradient], [*wanted, *trained])
        found.append(gradients[len(wanted) :])
        if not wanted:
            return None
        term = gradients[0]
        if term is None:
            return torch.zeros_like(leaf, memory_format=torch.contiguous_format)
        return _own(term, [gradient, *[each for each in gradients[1:] if each is not None]])

    def _through_glue(
        self, number: int, half: int, trained: Sequence[nn.Parameter], found: list[_Gradients]
    ) -> torch.Tensor | None:
        """Backward through the graph between: gradient of the all-reduced tensor."""
        glue = self._glues.pop((number, half))
        outputs = [glue.entered] if glue.prepared is None else [glue.entered, glue.prepared]
        given = [self._entered[half], self._prepared[half]]
        wanted = [each for each in (glue.x, glue.summed) if each is not None and each.requires_grad]
        gradients = _gradients(outputs, given[: len(outputs)], [*wanted, *trained])
        found.append(gradients[len(wanted) :])
        of = {id(each): gradient for each, gradient in zip(wanted, gradients, strict=False)}
        self._entered[half] = of.get(id(glue.x))
        return of.get(id(glue.summed))

    def _launch(self, segment: HalfSegment, term: torch.Tensor | None) -> None:
        """Wait for the previous all-reduce, and start a segment's, unless it is unused."""
        self._wait()
        self.blocks.launched.append(segment.waited)
        if term is not None:
            number = segment.passes[-1].block
            self.blocks.launched.append(segment.summed)
            self.blocks.summed_bytes[number] = term.nbytes
            self._outstanding = self.parts[number].sum(term)

    def _wait(self) -> None:
        outstanding, self._outstanding = self._outstanding, None
        if outstanding is not None:
            outstanding.wait()

    def _over(self) -> None:
        """End a pass."""
        self._wait()
        self.blocks.launched.append(PASS_IS_OVER)

    @contextmanager
    def _computing(self, one: HalfPass) -> Iterator[None]:
        """Context that records a computation."""
        self.blocks.launched.append(one.name)
        with self.blocks.record.timed(COMPUTE, (one.kind, one.block)):
            yield


class _PartNode(torch.autograd.Function):
    """A part of both halves, from its product to the next part's."""

    @staticmethod
    def forward(
        ctx: Any,
        run: _HalfRun,
        number: int,
        output: torch.Tensor,
        count: int,
        token: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        del token  # only for the graph
        ctx.run, ctx.number, ctx.count = run, number, count
        ctx.save_for_backward(*tensors[:count])
        return output.view_as(output) if number == len(run.parts) - 1 else output.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        whole, found = ctx.run.backward(ctx.number, ctx.saved_tensors, gradients[0])
        token = whole if ctx.number < 0 else gradients[0].new_zeros(())
        return None, None, None, None, token, *[None] * ctx.count, *found


def _trained(*modules: nn.Module) -> list[nn.Parameter]:
    """Distinct parameters of modules that require gradients."""
    every = (p for module in modules for p in module.parameters() if p.requires_grad)
    return list({id(p): p for p in every}.values())


def _own(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contiguous tensor without aliases."""
    places = {other.untyped_storage().data_ptr() for other in others}
    if tensor.untyped_storage().data_ptr() in places:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()


def _gradients(
    outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor]
) -> _Gradients:
    """Gradients of some tensors; None where there are none."""
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    if not pairs or not wanted:
        return [None] * len(wanted)
    starts, given = zip(*pairs, strict=True)
    return list(torch.autograd.grad(starts, wanted, given, allow_unused=True))


def _totals(found: Sequence[_Gradients], count: int) -> _Gradients:
    """Total gradient of each parameter."""
    totals: _Gradients = [None] * count
    for gradients in found:
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                before = totals[place]
                totals[place] = gradient if before is None else before + gradient
    return totals
