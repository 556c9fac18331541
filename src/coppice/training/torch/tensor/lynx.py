"""Lynx: recompute blocks' operations concurrently with tensor-parallel collectives, within a memory limit.

What is kept and what is computed again where is that of
:class:`~coppice.iteration.policies.tensor.lynx.WindowedRecompute`: in windows of the forward pass of the last block,
where several micro-batches are in flight, and of the backward passes of the blocks above; the rest on demand, before
the backward pass of its block. A window is open from the start of a sum until it is awaited. Operations are the
preparation of a part and the pieces of its product; what follows a sum is kept, so that nothing is summed again.

Gradients are computed by autograd in the graph of plain blocks, of which saved tensors are replaced
(:mod:`~coppice.training.torch.tensor.saved`), so weights are those of plain blocks bit for bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.tensor.lynx import WindowedRecompute
from coppice.iteration.policies.tensor.recompute_windows import KEPT, LayerWindows, RecomputedOp, least_bytes
from coppice.iteration.policies.tensor.stage_windows import stage_bytes
from coppice.training.torch.core.agree import gathered
from coppice.training.torch.core.attached import after_backward
from coppice.training.torch.core.measure import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    SAVED,
    DeviceClock,
    StepEvent,
    StepRecord,
    median_seconds,
)
from coppice.training.torch.tensor.parts import SummedPart, parts_of
from coppice.training.torch.tensor.saved import DroppedCall, SavedActivations, places


@dataclass(frozen=True, kw_only=True)
class RecordedBlock:
    """Recorded costs of a block."""

    windows: LayerWindows  # Operations of a block and the sums beside which there is time
    # What a block keeps of a micro-batch in any case: what enters its parts, and what is saved between a sum
    # and there
    fixed_bytes: int


@dataclass(frozen=True, kw_only=True)
class RecomputeSchedule:
    """Choice of the policy for sequential blocks."""

    # For each block and operation -1 (kept), the number of a window, or a larger one (on demand), as of
    # `plan_stage`
    places: tuple[tuple[int, ...], ...]
    activation_bytes: int  # What all blocks keep of a micro-batch between its passes
    peak_bytes: int  # The most that all micro-batches in flight take, with what is computed again

    @classmethod
    def of(
        cls, policy: WindowedRecompute, block: RecordedBlock, *, blocks: int, in_flight: int
    ) -> RecomputeSchedule:
        """Schedule of a policy.

        Where one micro-batch is in flight there is nothing to compute again in its forward pass. Windows of forward
        passes are of no length then; what is for them is done in the first window of the backward pass, or on demand.
        """
        limit = int(policy.settings.limit_bytes) or None
        windows = block.windows
        if in_flight == 1:
            windows = LayerWindows(
                ops=windows.ops,
                backward=windows.backward,
                forward=(0.0,) * len(windows.backward),
                compute=windows.compute,
            )
        fixed = in_flight * blocks * block.fixed_bytes
        least = fixed + least_bytes(windows)
        if limit is not None and limit < least:
            raise InputError(
                f"expected `limit_bytes` of {least} or more, of which {fixed} are for what enters the parts of "
                f"{blocks} blocks and the rest for one block that is computed again, found {limit}."
            )
        left = None if limit is None else limit - fixed
        found = policy.planned(windows, layers=blocks, in_flight=in_flight, limit_bytes=left)
        if in_flight == 1:
            first = len(windows.forward)
            found = tuple(tuple(at if at == KEPT else max(at, first) for at in each) for each in found)
        kept = sum(
            op.size_bytes for each in found for op, at in zip(windows.ops, each, strict=True) if at == KEPT
        )
        return cls(
            places=found,
            activation_bytes=blocks * block.fixed_bytes + kept,
            peak_bytes=fixed + stage_bytes(windows, found, in_flight),
        )


class RecomputeRecorder(StepRecord):
    """Times and sizes of passes that recompute everything on demand.

    A step is from one forward pass to the next; windows of passes are known by their numbers, operations by those of
    their block and their own.

    Args:
        device: Where they run.
        names: Operations of each block.
        windows: Windows of a pass of a block.
    """

    def __init__(self, device: torch.device, names: Sequence[Sequence[str]], windows: int) -> None:
        super().__init__(DeviceClock(device))
        self._names = names
        self._windows = windows

    def agreed(self, group: dist.ProcessGroup | None, *, ranks: int) -> RecordedBlock:
        """Recorded blocks: times of the first rank, the largest sizes of all."""
        self.end()
        sizes = self._sizes()
        own = (self._names[0], self._alike(sizes), self._medians(), sizes[None])
        everyone = gathered(own, group) if ranks > 1 else [own]
        names, _, (again, (backward, forward)), _ = everyone[0]
        most = [max(each) for each in zip(*(told[1] for told in everyone), strict=True)]
        return RecordedBlock(
            windows=LayerWindows(
                ops=tuple(
                    RecomputedOp(
                        name=name, seconds=seconds, size_bytes=size, after=(number - 1,) if number else ()
                    )
                    for number, (name, seconds, size) in enumerate(zip(names, again, most, strict=True))
                ),
                backward=backward,
                forward=forward,
            ),
            fixed_bytes=max(told[3] for told in everyone),
        )

    def _sizes(self) -> dict[tuple[int, int] | None, int]:
        """The most bytes of each operation of each block; None: of what else a block keeps."""
        found: dict[tuple[int, int] | None, int] = {}
        for each in self.all_events():
            if each.kind == SAVED:
                found[each.what] = max(found.get(each.what, 0), each.size_bytes)
        return found

    def _alike(self, sizes: Mapping[tuple[int, int] | None, int]) -> list[int]:
        """Bytes of each operation, equal in all blocks."""
        found = [[sizes[block, op] for op in range(len(names))] for block, names in enumerate(self._names)]
        for number, each in enumerate(found):
            if each != found[0]:
                raise InputError(
                    f"expected blocks alike, found that operations of block 0 save {found[0]} bytes and those of "
                    f"block {number} {each}: run rows of blocks that are alike on their own."
                )
        return found[0]

    def _medians(self) -> tuple[list[float], list[tuple[float, ...]]]:
        """Median times of operations, and of windows of both passes; 0 for those that have not run.

        The first pass is not timed, if there are others.
        """
        events = [each for step in [*self.steps][1:] or self.steps for each in step]
        again = median_seconds(events, RECOMPUTE)
        windows = [median_seconds(events, kind) for kind in (BACKWARD, FORWARD)]
        return (
            [again.get(op, 0.0) for op in range(len(self._names[0]))],
            [tuple(each.get(number, 0.0) for number in range(self._windows)) for each in windows],
        )


class RecomputedBlocks(nn.Sequential):
    """Sequential blocks that recompute during all-reduces; state keys are those of ``nn.Sequential``.

    The first passes compute everything again on demand and are recorded, unless it is said what blocks are like. What a
    micro-batch is like may not change then, but for being smaller.

    Attributes:
        policy: The policy.

    Args:
        blocks: The blocks.
        policy: The policy; the limit is for all that a backward pass needs, what enters parts included.
        in_flight: Micro-batches between their forward and backward passes, as in a stage of 1F1B; the oldest of them is
            computed again in the windows of a forward pass.
        passes: Forward and backward passes to record, the first of which is not timed.
        block: What blocks are like, if it is known.

    Raises:
        InputError: If blocks are no rows of parts of one group, or have other numbers of parts or operations.
    """

    def __init__(
        self,
        blocks: nn.Module,
        policy: WindowedRecompute,
        *,
        in_flight: int = 1,
        passes: int = 3,
        block: RecordedBlock | None = None,
    ) -> None:
        if policy.settings.layer_bytes:
            raise InputError(
                "expected no `layer_bytes`, as bytes are counted here, found some: leave it out."
            )
        if min(in_flight, passes) < 1:
            raise InputError(
                f"expected 1 or more micro-batches in flight and passes, found {in_flight} and {passes}."
            )
        parts = parts_of(blocks)
        if len({id(part.group) for each in parts for part in each}) > 1:
            raise InputError("expected parts of one group, found several.")
        super().__init__(*(blocks if isinstance(blocks, nn.Sequential) else blocks.children()))
        self.policy, self.in_flight, self.parts = policy, in_flight, parts
        self.operations = [_operations(each) for each in parts]
        sizes = [(len(each), len(names)) for each, names in zip(parts, self.operations, strict=True)]
        first = (len(block.windows.backward), len(block.windows.ops)) if block is not None else sizes[0]
        other = next((each for each in sizes if each != first), None)
        if other is not None:
            raise InputError(
                f"expected blocks of {first[0]} parts and {first[1]} operations, found one of {other[0]} and "
                f"{other[1]}: run rows of blocks that are alike on their own."
            )
        self.recorded = block  # What blocks are like; None until it is known
        self.schedule = None if block is None else self._scheduled(block)  # What the policy makes of it
        # What was computed and started since the last forward pass began, by the names of `stage_graph`; and
        # the sums that were awaited, behind `waited`
        self.launched: list[str] = []
        self.held_bytes = 0  # What the last forward pass keeps
        self._recorder: RecomputeRecorder | None = None
        self._left = passes
        self._elements = 0
        self._flying: list[weakref.ref[_RecomputeRun]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all blocks."""
        if not torch.is_grad_enabled():
            for block in self:
                x = block(x)
            return x
        if self.schedule is None and self._recorder is not None and not self._left:
            part = self.parts[0][0]
            self.recorded = self._recorder.agreed(part.group, ranks=part.ranks)
            self.schedule = self._scheduled(self.recorded)
        self._check(x)
        if self.schedule is None:
            self._recorder = self._recorder or RecomputeRecorder(
                x.device, self.operations, len(self.parts[0])
            )
            self._recorder.next()
            self._left -= 1
        run = _RecomputeRun(self, self.schedule, self._recorder if self.schedule is None else None)
        self._flying = [*self._in_flight(), weakref.ref(run)]
        self.launched = []
        return run.forward(x)

    def oldest(self) -> _RecomputeRun | None:
        """Pass whose backward is next, once the given number is in flight."""
        flying = self._in_flight()
        return flying[0]() if len(flying) >= self.in_flight else None

    def _in_flight(self) -> list[weakref.ref[_RecomputeRun]]:
        """Passes before their backward pass, the oldest first."""
        return [each for each in self._flying if (run := each()) is not None and not run.begun]

    def _scheduled(self, block: RecordedBlock) -> RecomputeSchedule:
        """Choice of the policy."""
        return RecomputeSchedule.of(self.policy, block, blocks=len(self.parts), in_flight=self.in_flight)

    def _check(self, x: torch.Tensor) -> None:
        """Check that the micro-batch fits the planned memory."""
        if self.policy.settings.limit_bytes and len(self._in_flight()) >= self.in_flight:
            raise InputError(
                f"expected at most {self.in_flight} micro-batches between forward and backward passes, found another: "
                "raise `in_flight`, or run those without a backward pass under torch.no_grad()."
            )
        if self.schedule is None or not self._elements:
            self._elements = max(self._elements, x.numel())
        elif x.numel() > self._elements:
            raise InputError(
                f"expected micro-batches of {self._elements} elements or fewer, as recorded, found {x.numel()}: give "
                "the largest one first."
            )


class _RecomputeRun:
    """A forward pass, and its backward pass.

    Args:
        blocks: What runs.
        schedule: Where operations are computed again; None: on demand.
        recorder: Records them.
    """

    def __init__(
        self, blocks: RecomputedBlocks, schedule: RecomputeSchedule | None, recorder: RecomputeRecorder | None
    ) -> None:
        self.blocks, self._recorder = blocks, recorder
        self.begun = False  # The backward pass has begun
        self._calls: list[list[DroppedCall | None]] = []
        self._fixed = places([*blocks.parameters(), *blocks.buffers()])
        self._last = len(blocks.parts) - 1
        self._windows = len(blocks.parts[0])
        self._kept: set[tuple[int, int]] = set()
        self._early: dict[int, list[tuple[int, int]]] = {}
        for number, place in enumerate(schedule.places if schedule is not None else ()):
            for op, at in enumerate(place):
                if at == KEPT:
                    self._kept.add((number, op))
                elif at < self._before(number):
                    self._early.setdefault(at, []).append((number, op))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all blocks forward."""
        held: dict[int, int] = {}
        for number in range(self._last + 1):
            saved = SavedActivations(self._fixed)
            x = self._through(number, saved, x)
            held |= saved.held
            if self._recorder is not None:
                self._recorder.add(StepEvent(SAVED, size_bytes=sum(saved.held.values())))
        self.blocks.held_bytes = sum(held.values())
        return x

    def sum(self, when: str, number: int, window: int, term: torch.Tensor) -> torch.Tensor:
        """All-reduce, with recomputation in its window."""
        part = self.blocks.parts[number][window if when == "F" else self._windows - 1 - window]
        name = f"sum {window} of {when}{number}"
        with self._timed(FORWARD if when == "F" else BACKWARD, window):
            started = part.sum(term.clone(memory_format=torch.contiguous_format))
            self._say(name)
            if when == "B":
                self.compute(self._before(number) + window)
            elif number == self._last and (oldest := self.blocks.oldest()) is not None:
                oldest.compute(window)
            summed = started.wait()
        self._say(f"waited {name}")
        if when == "B" and window + 1 < self._windows:
            self._say(f"B{number} part {window + 1}")
        return summed

    def compute(self, window: int) -> None:
        """Run a window's recomputation."""
        for number, op in self._early.get(window, ()):
            self._again(number, op, " early")

    def begin(self, number: int) -> None:
        """Start a block's backward pass: recompute on demand what it needs."""
        if not self.begun:
            self.begun = True
            after_backward(self._release)
        self._release(above=number)
        for op in range(len(self._calls[number])):
            self._again(number, op, "")
        self._say(f"B{number} part 0")

    def _through(self, number: int, saved: SavedActivations, x: torch.Tensor) -> torch.Tensor:
        """Run a block forward."""
        before: Any = _BeforeProduct.apply
        behind: Any = _BehindProduct.apply
        end: Any = _BlockEnd.apply
        calls: list[DroppedCall | None] = []
        self._calls.append(calls)
        names = self.blocks.operations[number]

        def run(module: nn.Module, given: torch.Tensor, *, taken: bool = True) -> torch.Tensor:
            op = len(calls)
            if (number, op) in self._kept:
                calls.append(None)
                kept: torch.Tensor = saved.keep(module, given)
                return kept
            made, call = saved.drop(names[op], module, given, taken=taken)
            calls.append(call)
            if self._recorder is not None:
                self._recorder.add(StepEvent(SAVED, (number, op), size_bytes=call.size_bytes))
            return made

        for window, part in enumerate(self.blocks.parts[number]):
            self._say(f"F{number} part {window}")
            made = before(run(part.prepare, x), self, number, self._windows - 1 - window)
            *pieces, last = _pieces(part)
            for piece in pieces:
                made = run(piece, made)
            summed = behind(run(last, made, taken=False), self, number, window)
            x = saved.keep(part.finish, x, summed)
        saved.done()
        ended: torch.Tensor = end(x, self, number)
        return ended

    def _again(self, number: int, op: int, when: str) -> None:
        """Recompute an operation, unless done or unused."""
        call = self._calls[number][op]
        if call is None or call.computed or not call.wanted:
            return
        self._say(f"{call.name} of {number}{when}")
        with self._timed(RECOMPUTE, op):
            call.recompute()

    def _release(self, *, above: int = -1) -> None:
        """Release inputs and recomputed tensors of the blocks above."""
        for calls in self._calls[above + 1 :]:
            for call in calls:
                if call is not None:
                    call.release()

    def _before(self, number: int) -> int:
        """Windows before a block's backward pass."""
        return self._windows * (self._last + 1 - number)

    def _timed(self, kind: str, number: int) -> AbstractContextManager[None]:
        return nullcontext() if self._recorder is None else self._recorder.timed(kind, number)

    def _say(self, name: str) -> None:
        self.blocks.launched.append(name)


class _BeforeProduct(torch.autograd.Function):
    """Identity with all-reduced gradients (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, run: _RecomputeRun, number: int, window: int) -> torch.Tensor:
        ctx.run, ctx.number, ctx.window = run, number, window
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.run.sum("B", ctx.number, ctx.window, gradients[0]), None, None, None


class _BehindProduct(torch.autograd.Function):
    """All-reduce with identity gradients (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, run: _RecomputeRun, number: int, window: int) -> torch.Tensor:
        del ctx
        return run.sum("F", number, window, tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        del ctx
        return gradients[0], None, None, None


class _BlockEnd(torch.autograd.Function):
    """Identity at the end of a block."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, run: _RecomputeRun, number: int) -> torch.Tensor:
        ctx.run, ctx.number = run, number
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.run.begin(ctx.number)
        return gradients[0], None, None


def _pieces(part: SummedPart) -> list[nn.Module]:
    """Operations of a part's product, at least one."""
    pieces = list(part.partial.children()) if isinstance(part.partial, nn.Sequential) else []
    return pieces or [part.partial]


def _operations(parts: Sequence[SummedPart]) -> list[str]:
    """Names of a block's operations."""
    names = []
    for number, part in enumerate(parts):
        names += [f"{number}.prepare", *(f"{number}.partial.{piece}" for piece in range(len(_pieces(part))))]
    return names
