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

import itertools
import math
from collections.abc import Iterator
from typing import Annotated

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.graph import (
    KINDS,
    StageMessage,
    StageTimes,
    source_of,
    steady_bound_seconds,
    target_of,
)
from coppice.iteration.pipeline.order import NEEDS, PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.orders import one_f_one_b
from coppice.iteration.policies.pipelined.policy import Pipelined, PipelineOptions
from coppice.iteration.policies.policy import IterationGraph
from coppice.iteration.tasks import TaskGraphBuilder

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
    staleness = 1
    options = TriRaceOptions

    def messages(self, workload: LayerWorkload) -> list[StageMessage]:
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
        found: list[StageMessage] = []
        if apart and settings.tied:
            ends = (0, last) if last else (0,)
            for stage in ends:
                found += self._cut(workload, stage, ends, table, _EMBEDDING)
        elif apart:
            seconds = workload.message(rows) if rows else 0.0
            found.append(
                StageMessage(stage=0, of_stages=(0,), seconds=seconds, size_bytes=table, urgency=_EMBEDDING)
            )
        cut = [stage * workload.layers // (last + 1) for stage in range(last + 2)]
        for stage in range(last + 1):
            layers = range(cut[stage], cut[stage + 1])
            size = sum(workload.bytes[layer] for layer in layers if layer or not apart)
            found += self._cut(workload, stage, (stage,), size, _GRADIENTS)
        return found

    def _cut(
        self, workload: LayerWorkload, stage: int, of_stages: tuple[int, ...], size: float, urgency: int
    ) -> Iterator[StageMessage]:
        """Gradients in equal chunks."""
        count = (
            math.ceil(size / self.settings.chunk_bytes) if self.settings.classes else min(1, math.ceil(size))
        )
        for _ in range(count):
            yield StageMessage(
                stage=stage,
                of_stages=of_stages,
                seconds=workload.message(size / count),
                size_bytes=size / count,
                urgency=urgency,
            )

    def order(self, workload: LayerWorkload) -> PipelineOrder:
        """Programs of the devices for one group, as if the pipeline drained after it."""
        del workload
        if self.settings.micro_batches < self.settings.stages:
            raise InputError(
                f"expected as many micro-batches in a group as there are stages, {self.settings.stages}, or more, as "
                f"gradients are to be one group late, found {self.settings.micro_batches}."
            )
        return one_f_one_b(self.settings.stages, self.settings.micro_batches)

    def iterations(self, workload: LayerWorkload, count: int) -> IterationGraph:
        """Task graph of consecutive groups."""
        _, times = self.stages(workload)
        return _asynchronous(self.settings, times, self.messages(workload), count)

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
            link = _nic(settings, message.stage)
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


def _asynchronous(
    settings: TriRaceOptions, times: StageTimes, messages: list[StageMessage], count: int
) -> IterationGraph:
    """Task graph of groups whose passes follow each other without a drain."""
    group_size = settings.micro_batches
    order = one_f_one_b(settings.stages, group_size * count)
    graph = TaskGraphBuilder()
    stages = range(order.stages)
    compute = [graph.stream(f"device {stage}") for stage in stages]
    of_group: list[list[StagePass]] = [[] for _ in range(count)]
    for each in order.passes():
        of_group[each.micro_batch // group_size].append(each)
    before = {later: one for program in order.devices for one, later in itertools.pairwise(program)}
    place: dict[StagePass, int] = {}
    sent: dict[StagePass, int] = {}
    summed: list[dict[int, list[int]]] = []
    first, last = [], []
    pending: list[tuple[int, StagePass]] = []
    for group, passes in enumerate(of_group):
        for each in passes:
            task = graph.add(str(each), KINDS[each.work], compute[each.stage], times.of(each))
            place[each] = task
            pending.append((task, each))
            link = _between(settings, each, order.stages)
            if times.transfer and link is not None:
                sent[each] = graph.add(
                    f"{each} sent", "transfer", graph.stream(link), times.transfer, after=[task]
                )
        first.append(place[StagePass(0, Work.FORWARD, group * group_size)])
        ends = {
            stage: place[StagePass(stage, Work.BACKWARD, (group + 1) * group_size - 1)] for stage in stages
        }
        own: dict[int, list[int]] = {stage: [] for stage in stages}
        for number, message in enumerate(messages):
            task = graph.add(
                f"gradients {number} of stage {message.stage} of group {group}",
                "all_reduce",
                graph.stream(_nic(settings, message.stage)),
                message.seconds,
                after=[ends[stage] for stage in message.of_stages],
                priority=message.urgency * count + group if settings.classes else 0,
            )
            for stage in message.of_stages:
                own[stage].append(task)
        summed.append(own)
        last.append([*ends.values(), *(task for tasks in own.values() for task in tasks)])
    for task, each in pending:
        group, place_in_group = divmod(each.micro_batch, group_size)
        needed = [place[each._replace(work=work)]] if (work := NEEDS.get(each.work)) else []
        source = source_of(each, order.stages)
        if source is not None:
            needed.append(sent.get(source, place[source]))
        previous = before.get(each)
        if previous is not None:
            needed.append(place[previous])
            ended, inside = divmod(previous.micro_batch, group_size)
            if not settings.delayed and previous.work is Work.BACKWARD and inside == group_size - 1:
                needed += summed[ended][each.stage]
        if each.work is Work.FORWARD and not place_in_group and group > 1:
            needed += summed[group - 2][each.stage]
        graph.await_tasks(task, needed)
    return IterationGraph(graph=graph.build(), first=first, last=last)
