"""Schedule gradient messages and updates of stages.

A stage that has run its last backward pass over an iteration launches its messages, but those that the plan keeps for
the next one. Its update waits for them: at the end of the iteration, or, so many iterations later as gradients are
late, before its first forward pass. It uses the optimizer's settings of the iteration that asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from coppice.iteration.step.plan import Message
from coppice.training.torch.core.measure import NOTE
from coppice.training.torch.core.optimizer import clip, partitioned_norm
from coppice.training.torch.pipelined.channels import PipelineLayout
from coppice.training.torch.pipelined.messages import (
    EMBEDDING,
    GRADIENTS,
    DeviceRecord,
    LaunchedMessage,
    LinkTokens,
    MessageQueues,
)
from coppice.training.torch.pipelined.plan import PipelinePlan
from coppice.training.torch.pipelined.shared import SparseRows, TiedWeights
from coppice.training.torch.pipelined.stage import TrainedStage


@dataclass(eq=False)
class _Late:
    """Outstanding update."""

    sums: list[LaunchedMessage] = field(default_factory=list)  # Messages that it waits for
    held: list[int] = field(default_factory=list)  # Numbers of messages that are not launched yet
    # Settings of the optimizer when it was asked for; None: it was not yet
    groups: list[dict[str, Any]] | None = None


class StageUpdates:
    """Gradient messages and updates of a rank's stages.

    Args:
        plan: Messages, and when stages are updated.
        stages: The stages.
        layout: The ranks.
        tied: Weights of theirs that other stages have too.
        rows: Embeddings whose rows go by themselves.
        record: What is told of launches and updates.
        tokens: What holds messages back.
        max_norm: Norm to which all gradients are clipped; None: they are not.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        stages: Mapping[int, TrainedStage],
        layout: PipelineLayout,
        *,
        tied: Sequence[TiedWeights],
        rows: Sequence[SparseRows],
        record: DeviceRecord,
        tokens: LinkTokens,
        max_norm: float | None,
    ) -> None:
        self.adopt(plan)
        self._stages, self._layout, self._tied = stages, layout, tied
        self.rows = rows
        self._record, self._tokens, self._max_norm = record, tokens, max_norm
        self._sums = MessageQueues(record, tokens, holds=plan.classes)
        self._row_group = layout.row_group() if max_norm is not None else None
        self._micro_batches = plan.order.micro_batches
        self._done: dict[tuple[int, int], int] = {}  # backward passes of a stage over an iteration
        self._opened: dict[int, int] = {}
        self._summed: dict[int, set[int]] = {}  # stages that have launched their messages, by iteration
        self._sent_tied: set[tuple[int, int]] = set()
        self._late: dict[int, dict[int, _Late]] = {stage: {} for stage in stages}

    def open(self, stage: int, iteration: int) -> None:
        """Called before a stage's first forward pass of an iteration."""
        if self._opened.get(stage) == iteration:
            return
        self._opened[stage] = iteration
        if not self.plan.barrier:
            for each in sorted(self._late[stage]):
                if each < iteration - self.plan.staleness:
                    self._update(stage, each)
        own = self._stages[stage]
        own.make_newest(own.version(iteration))
        for other in sorted(self._late):
            for each, late in sorted(self._late[other].items()):
                self._launch_held(other, each, late, lambda held: held.forward_stage == stage)

    def ran(self, stage: int, iteration: int) -> None:
        """Called after a backward pass of a stage; the last one launches its messages."""
        key = (stage, iteration)
        self._done[key] = self._done.get(key, 0) + 1
        if self._done[key] < self._micro_batches:
            return
        del self._done[key]
        own = self._stages[stage]
        gradients = own.gradients[own.version(iteration)]
        gradients.collect(stage)
        if self._layout.replicas > 1:
            for flat in gradients.flats:
                flat.div_(self._layout.replicas)
        late = self._late[stage].setdefault(iteration, _Late())
        tied = {stage for each in self._tied for stage, _ in each.ends}
        for number, message in enumerate(self.plan.messages):
            if message.stage != stage:
                continue
            if message.after_forward is not None:
                late.held.append(number)
            elif message.priority != EMBEDDING:
                parts = gradients.part(*self._parts[number])
                self._submit(late, number, iteration, partial(self._all_reduce, parts))
            elif stage not in tied and self.rows:
                start = partial(self._exchange_rows, iteration)
                self._submit(late, number, iteration, start, queue="embedding")
        self._summed.setdefault(iteration, set()).add(stage)
        self._summed.pop(iteration - 2, None)
        self._launch_tied(iteration)
        if not self.plan.delayed:
            self._sums.wait(late.sums)

    def ask(self, iteration: int) -> torch.Tensor | None:
        """Called after an iteration: its gradients are to be applied with the current settings.

        Returns:
            The norm of all gradients, where they are clipped.
        """
        for number, stage in self._stages.items():
            self._late[number].setdefault(iteration, _Late()).groups = stage.current_settings()
        if not self.plan.barrier:
            return None
        for number in self._stages:
            self._wait(number, iteration)
        norm = None if self._max_norm is None else self._clip(self._max_norm, iteration)
        for number in self._stages:
            self._update(number, iteration)
        return norm

    def settle(self, before: int) -> None:
        """Complete the messages of all iterations, and updates of those before a given one."""
        for stage, lates in sorted(self._late.items()):
            for iteration, late in sorted(lates.items()):
                self._launch_held(stage, iteration, late, lambda _: True)
        for stage, lates in sorted(self._late.items()):
            for iteration in sorted(lates):
                if iteration < before:
                    self._update(stage, iteration)
                else:
                    self._wait(stage, iteration)

    def adopt(self, plan: PipelinePlan) -> None:
        """Switch to another plan from the next iteration on; nothing is outstanding."""
        self.plan, self._parts = plan, plan.parts()

    def state(self) -> dict[int, dict[int, dict[str, Any]]]:
        """Averaged gradients not yet applied, by stage and iteration."""
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for number, lates in self._late.items():
            stage = self._stages[number]
            found[number] = {}
            for iteration, late in lates.items():
                gradients = stage.gradients[stage.version(iteration)]
                names = [name for name in stage.parameters if name not in gradients.views]
                for each in self._tied:
                    each.place(stage, iteration)
                found[number][iteration] = {
                    "gradients": [flat.clone() for flat in gradients.flats],
                    "apart": {name: stage.leaf(name, iteration).grad for name in names},
                    "groups": [
                        {key: value for key, value in group.items() if key != "params"}
                        for group in late.groups or []
                    ],
                }
        return found

    def load(self, state: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> None:
        """Load such gradients."""
        for number, lates in self._late.items():
            lates.clear()
            stage = self._stages[number]
            for iteration, saved in state.get(number, {}).items():
                gradients = stage.gradients[stage.version(iteration)]
                gradients.load(saved["gradients"])
                for name, value in saved["apart"].items():
                    stage.leaf(name, iteration).grad = value
                groups = [
                    {**settings, "params": group["params"]}
                    for settings, group in zip(saved["groups"], stage.optimizer.param_groups, strict=True)
                ]
                lates[iteration] = _Late(groups=groups)
                for each in self._tied:
                    each.take(stage, iteration)

    def close(self) -> None:
        """Stop the threads."""
        self._tokens.close()

    def _wait(self, stage: int, iteration: int) -> None:
        self._sums.wait(self._late[stage][iteration].sums)

    def _update(self, stage: int, iteration: int) -> None:
        """Wait for a stage's messages, and update it."""
        late = self._late[stage].pop(iteration)
        self._sums.wait(late.sums)
        own = self._stages[stage]
        for each in self._tied:
            each.place(own, iteration)
        self._record.mark(NOTE, f"stage {stage} updated by {iteration}")
        own.update(iteration, late.groups or own.current_settings())

    def _launch_held(
        self, stage: int, iteration: int, late: _Late, wanted: Callable[[Message], bool]
    ) -> None:
        own = self._stages[stage]
        for number in [each for each in late.held if wanted(self.plan.messages[each])]:
            late.held.remove(number)
            parts = own.gradients[own.version(iteration)].part(*self._parts[number])
            self._submit(late, number, iteration, partial(self._all_reduce, parts))

    def _launch_tied(self, iteration: int) -> None:
        """Launch messages of tied weights whose stages on this device are done."""
        for number, tied in enumerate(self._tied):
            numbers = {stage.number for stage, _ in tied.own}
            lates = [self._late[stage].get(iteration) for stage in numbers]
            if (number, iteration) in self._sent_tied or not numbers <= self._summed.get(iteration, set()):
                continue
            self._sent_tied.add((number, iteration))
            self._sent_tied.discard((number, iteration - 2))
            tied.collect(iteration)
            parts = [
                (self._name(place, iteration), *self._parts[place])
                for place, each in enumerate(self.plan.messages)
                if each.priority == EMBEDDING and each.stage in numbers
            ] or [(f"tied weights {number} of {iteration}", Fraction(0), Fraction(1))]
            for name, low, high in parts:
                made = LaunchedMessage(name, partial(tied.start, iteration, low, high), EMBEDDING)
                self._sums.submit(f"tied {number}", made)
                for late in lates:
                    if late is not None:
                        late.sums.append(made)

    def _submit(
        self,
        late: _Late,
        number: int,
        iteration: int,
        start: Callable[[], Iterable[Any]],
        queue: str = "gradients",
    ) -> None:
        urgency = EMBEDDING if self.plan.messages[number].priority == EMBEDDING else GRADIENTS
        made = LaunchedMessage(self._name(number, iteration), start, urgency)
        late.sums.append(made)
        self._sums.submit(queue, made)

    def _name(self, number: int, iteration: int) -> str:
        """Task name as in the simulation."""
        message = self.plan.messages[number]
        if self.plan.staleness:
            return f"gradients {number} of stage {message.stage} of group {iteration}"
        return f"{message.name} of {iteration}"

    def _all_reduce(self, parts: Sequence[torch.Tensor]) -> list[Any]:
        return [dist.all_reduce(each, group=self._layout.replica_group, async_op=True) for each in parts]

    def _exchange_rows(self, iteration: int) -> list[Any]:
        return [work for each in self.rows for work in each.start(iteration)]

    def _clip(self, most: float, iteration: int) -> torch.Tensor:
        """Clip the norm of all stages' gradients."""
        flats = [
            flat
            for stage in self._stages.values()
            for flat in stage.gradients[stage.version(iteration)].flats
        ]
        tied = [(each.gradient(iteration), each.first) for each in self._tied]
        every = [*flats, *(flat for flat, _ in tied)]
        counted = [*flats, *(flat for flat, first in tied if first)]
        norm = partitioned_norm([(flat, 1) for flat in counted], 2.0, self._row_group, every[0].device)
        clip(every, norm, most)
        return norm
