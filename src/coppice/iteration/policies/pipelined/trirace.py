"""TriRace: schedule the three kinds of traffic of an asynchronous pipeline.

Source: the idea of "A Multidimensional Communication Scheduling Method for Hybrid Parallel DNN Training" (TPDS 2024),
after its abstract; the rules below are a reconstruction.

The pipeline never drains (PipeDream-2BW; Narayanan et al., ICML 2021): forward passes of group t of m micro-batches use
weights into which the gradients up to group t - 2 have gone. *Training with it is not the training without*: gradients
are one group late. In return the sum of a group has time: ready after the last backward pass of its stage, due when the
stage starts the group after the next. Of p stages the first is p - 1 micro-batches ahead, so with forward and backward
times f and b of every stage and A of sums a group takes max(m (f + b), A + (p - 1) (f + b)); where devices wait for
their sums, m (f + b) + A. Two versions of weights suffice, and nothing waits for itself, for m of p or more.

Traffic, the most urgent first: activations between stages, of which every micro-batch waits; the gradients of the
embedding, needed at both ends of the pipeline where it is tied; all other gradients, by their group, in pieces, so that
activations wait for one piece at most. An operation has its link, that between devices of a node or what the NIC of a
node sends, to itself. Of an embedding that is not tied only the rows that a group has touched are exchanged, as an
all-gather, where that is less: of x bytes and n replicas a share s of rows takes as long as the sum of n s x / 2 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work, target_of
from coppice.iteration.pipeline.orders import one_f_one_b
from coppice.iteration.pipeline.stages import StageTimes, steady_bound_seconds
from coppice.iteration.policies.pipelined.policy import Pipelined, PipelineOptions
from coppice.iteration.step.lower import lower
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.step.plan import Message, StepPlan
from coppice.iteration.step.workloads import stages_step

_ACTIVATIONS, _EMBEDDING, _GRADIENTS = range(3)


class TriRaceOptions(PipelineOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An asynchronous pipeline; micro-batches are counted per group."""

    # Gradients are cut in pieces of as many bytes
    chunk_bytes: Annotated[float, msgspec.Meta(gt=0)] = 25 * 2**20
    devices_of_node: Annotated[int, msgspec.Meta(ge=1)] = 1  # Devices in a row that share a NIC
    # Share of the rows of the first layer, the embedding, that a replica touches in a group
    touched: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    tied: bool = False  # The last stage uses the weights of the first layer as well
    delayed: bool = True  # Sums have a group of time; otherwise a device waits for those of its stage
    # Traffic goes by urgency and in pieces; otherwise in the order in which groups make it, uncut
    classes: bool = True


class TriRace(Pipelined):
    """A pipeline that never drains, with gradients one group late."""

    name = "trirace"
    about = "asynchronous pipeline, three classes of traffic (TriRace, TPDS'24)"
    assumes = (
        "training that bears gradients a group late, two versions of weights; what NICs send is what binds"
    )
    decides = frozenset({"order", "gradients", "weights"})
    on_one_stage = False
    barrier = False
    staleness = 1
    options = TriRaceOptions

    def messages(self, workload: LayerWorkload) -> list[Message]:
        """Gradient messages of a group."""
        settings, last = self.settings, self.settings.stages - 1
        if settings.tied and settings.touched < 1:
            raise InputError(
                f"expected all rows of a tied embedding to be summed, as the last layer touches all, found "
                f"`touched={settings.touched}`: leave one of them out."
            )
        table = workload.bytes[0]
        rows = table * min(1.0, settings.touched * workload.workers / 2)
        apart = bool(table) and (settings.tied or rows < table)
        found: list[Message] = []
        if apart and settings.tied:
            ends = (0, last) if last else (0,)
            for stage in ends:
                found += self._cut(workload, stage, table, _EMBEDDING)
        elif apart:
            seconds = workload.message(rows) if rows else 0.0
            found.append(
                Message(name="rows of the embedding", seconds=seconds, size_bytes=table, priority=_EMBEDDING)
            )
        cut = [stage * workload.layers // (last + 1) for stage in range(last + 2)]
        for stage in range(last + 1):
            layers = range(cut[stage], cut[stage + 1])
            size = sum(workload.bytes[layer] for layer in layers if layer or not apart)
            found += self._cut(workload, stage, size, _GRADIENTS)
        return found

    def _cut(self, workload: LayerWorkload, stage: int, size: float, urgency: int) -> Iterator[Message]:
        """Gradients in equal chunks."""
        count = (
            math.ceil(size / self.settings.chunk_bytes) if self.settings.classes else min(1, math.ceil(size))
        )
        for number in range(count):
            yield Message(
                name=f"gradients of stage {stage}",
                stage=stage,
                seconds=workload.message(size / count),
                size_bytes=size / count,
                offset_bytes=number * size / count,
                priority=urgency,
            )

    def stages_of(self, message: Message) -> tuple[int, ...]:
        """Stages whose gradients a message carries: of a tied embedding the first and the last."""
        last = self.settings.stages - 1
        if self.settings.tied and message.priority == _EMBEDDING and last:
            return 0, last
        return (message.stage or 0,)

    def order(self, workload: LayerWorkload) -> PipelineOrder:
        """Programs of the devices for one group, as if the pipeline drained after it."""
        del workload
        if self.settings.micro_batches < self.settings.stages:
            raise InputError(
                f"expected as many micro-batches in a group as there are stages, {self.settings.stages}, or more, as "
                f"gradients are to be one group late, found {self.settings.micro_batches}."
            )
        return one_f_one_b(self.settings.stages, self.settings.micro_batches)

    def iterations(self, workload: LayerWorkload, count: int) -> StepGraph:
        """Task graph of consecutive groups."""
        _, times = self.stages(workload)
        settings, each = self.settings, self.settings.micro_batches
        order = one_f_one_b(settings.stages, each * count)
        after = {one: later for program in order.devices for one, later in pairwise(program)}
        messages = self.messages(workload)
        sent: list[Message] = []
        place = {one: number for number, one in enumerate(order.passes())}  # every pass is one task

        def urgency(message: Message, group: int) -> int:
            """Behind all activations, which go group by group in the order of the programs, or in turn with them."""
            if settings.classes:
                return 2 * count * len(place) + message.priority * count + group
            return (2 * group + 1) * len(place)

        for group in range(count):
            for number, message in enumerate(messages):
                stages = self.stages_of(message)
                ends = [StagePass(stage, Work.BACKWARD, (group + 1) * each - 1) for stage in stages]
                waiting = [StagePass(stage, Work.FORWARD, (group + 2) * each) for stage in stages]
                if not settings.delayed and group < count - 1:
                    waiting += [after[end] for end in ends]
                sent.append(
                    replace(
                        message,
                        name=f"gradients {number} of stage {message.stage} of group {group}",
                        device=(message.stage or 0) // settings.devices_of_node,
                        stream="NIC of node",
                        priority=urgency(message, group),
                        after_passes=tuple(ends),
                        before_passes=tuple(one for one in waiting if one.micro_batch < each * count),
                    )
                )
        plan = StepPlan(
            order=order,
            messages=tuple(sent),
            numbered=False,
            send_stream=lambda one: (
                _between(settings, one, order.stages) or "",
                2 * (one.micro_batch // each) * len(place) + place[one],
            ),
        )
        made = lower(stages_step(times, order.micro_batches), plan)
        tasks = made.last[0][len(made.last[0]) - len(sent) :]
        last = [
            [
                *(
                    place[StagePass(stage, Work.BACKWARD, (group + 1) * each - 1)]
                    for stage in range(order.stages)
                ),
                *tasks[group * len(messages) : (group + 1) * len(messages)],
            ]
            for group in range(count)
        ]
        first = [place[StagePass(0, Work.FORWARD, group * each)] for group in range(count)]
        return replace(made, first=first, last=last)

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound over orders of passes and traffic with gradients reduced one group later.

        What devices compute, what the NIC of every node sends, and half of what stages need of each other until their
        gradients are summed.
        """
        order, times = self.stages(workload)
        settings = self.settings
        sent: dict[str, float] = {}
        for each in order.passes():
            link = _between(settings, each, order.stages)
            if times.transfer and link is not None:
                sent[link] = sent.get(link, 0.0) + times.transfer
        for message in self.messages(workload):
            link = _nic(settings, message.stage or 0)
            sent[link] = sent.get(link, 0.0) + message.seconds - workload.message_seconds
        alone = StageTimes(forward=times.forward, backward=times.backward, transfer=times.transfer)
        return max(steady_bound_seconds(order, alone, staleness=1), *sent.values(), 0.0)


def _nic(settings: TriRaceOptions, device: int) -> str:
    return f"NIC of node {device // settings.devices_of_node}"


def _between(settings: TriRaceOptions, each: StagePass, stages: int) -> str | None:
    """Link for a pass's output to another stage."""
    target = target_of(each, stages)
    if target is None:
        return None
    node = each.stage // settings.devices_of_node
    if node != target // settings.devices_of_node:
        return _nic(settings, each.stage)
    return f"link from {each.stage} to {target}"
