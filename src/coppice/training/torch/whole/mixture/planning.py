"""Plan a recorded step by the policy Lina, and derive the network order for all ranks.

What is simulated is what is carried out: the same pieces of exchanges, the same micro-operations of sums, one of them
at a time on the network, and the next step only when all sums are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coppice.iteration.policies.whole.lina import Lina
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    OperationChoice,
    OperationGraph,
    OperationRows,
    WholePlan,
)
from coppice.iteration.step.plan import Message
from coppice.iteration.tasks import run_tasks
from coppice.training.torch.core.measure import BOUNDARY, COMPUTE, GRADIENT, SENT, WAITED, StepItem
from coppice.training.torch.whole.mixture.network_queue import EXCHANGE

_START = 1e-6
"""Unit of the costs of a start, in seconds."""
_DDP_FIRST, _DDP_BYTES = 2**20, 25 * 2**20


@dataclass(frozen=True, kw_only=True)
class NetworkTimes:
    """Measured times of the network."""

    bytes_per_second: float  # Of an all-reduce of all ranks
    sum_seconds: float  # Cost of its start
    exchange_seconds: float  # Cost of the start of an exchange, contained in its time


@dataclass(frozen=True)
class SharedGradients:
    """Gradients to all-reduce."""

    bytes: Sequence[int]  # Of the gradient at each place
    # Number of the ranks that sum it, for places whose gradients not all ranks sum: 1 or more
    groups: Mapping[int, int] = field(default_factory=dict)
    # Time of a sum of each of these over that of one of all ranks, which is the first
    shares: Sequence[float] = (1.0,)

    def message(self, name: str, places: tuple[int, ...], group: int, seconds: float = 0.0) -> Message:
        """All-reduce of the gradients at some places, among the ranks of a group."""
        return Message(
            name=name,
            seconds=seconds,
            size_bytes=sum(self.bytes[each] for each in places),
            layers=places,
            stream=f"replicas {group}" if group else "network",
        )


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """Plan of a step for execution."""

    messages: tuple[Message, ...]  # Gradient all-reduces, cut in pieces; a layer is the place of a tensor
    token_pieces: int  # Pieces of exchanges
    # Of the network in the backward pass: the number of a message, or
    # :data:`~coppice.training.torch.whole.mixture.network_queue.EXCHANGE`
    order: tuple[int, ...]
    predicted_seconds: float  # Time of a step by simulation


class _Step(OperationRows):
    """Operation graph of a recorded step under construction."""

    def __init__(
        self,
        gradients: SharedGradients,
        network: NetworkTimes,
        *,
        bucket_bytes: Sequence[float],
        one_queue: bool,
    ) -> None:
        super().__init__()
        self.gradients, self.network = gradients, network
        self.bucket_bytes, self.one_queue = bucket_bytes, one_queue
        self.sums: list[Message] = []
        self.sum_operations: list[int] = []
        self.exchanges: dict[int, bool] = {}  # operation: in the backward pass
        self.before: list[int] = []  # what the program waits for
        self.open: list[list[int]] = [[] for _ in gradients.shares]

    def graph(self, items: Sequence[StepItem], after: float) -> OperationGraph:
        """The finished graph."""
        posted: dict[str, int] = {}
        groups: dict[str, int] = {}
        group, first, backward = "", "", False
        for item in items:
            if item.kind == COMPUTE and (item.seconds or group):
                self._device(item.seconds, group)
            elif item.kind == SENT:
                if self.one_queue:
                    self._close()
                opened = _group_of(item.what)
                if opened and not opened[1]:
                    groups[opened[0]] = groups.get(opened[0], 0) + 1
                name = f"{opened[0]} {groups[opened[0]]}" if opened and opened[0] in groups else ""
                posted[item.what] = self._exchange(item, name)
                self.exchanges[posted[item.what]] = backward
                group, first = "", item.what if opened and not opened[1] else ""
            elif item.kind == WAITED:
                self.before = [*self.before, posted[item.what]]
                if item.what == first:
                    group = self.operations[posted[first]].group
            elif item.kind == GRADIENT:
                group = ""
                self._gradient(item.what)
            elif item.kind == BOUNDARY:
                backward = True
        self._close()
        self.before = [*self.before, *self.sum_operations]
        self._device(after, "")
        links = {} if self.one_queue else {"network": 1.0}
        return OperationGraph(
            operations=tuple(self.operations),
            channels={
                "device": Channel(),
                "network": Channel(start_seconds=_START, loads=links),
                "sums": Channel(start_seconds=_START, loads=links),
            },
        )

    def _device(self, seconds: float, group: str) -> None:
        number = len(self.operations)
        phase = CollectivePhase(kind="compute", amount=seconds, channels=("device",))
        self.before = [self.add(f"compute {number}", ((phase,),), self.before, decision=group, group=group)]

    def _exchange(self, item: StepItem, group: str) -> int:
        start = min(item.seconds, self.network.exchange_seconds)
        phase = CollectivePhase(
            kind="all_to_all",
            amount=item.seconds - start,
            channels=("network",),
            starts=round(start / _START),
        )
        name = f"exchange {len(self.operations)}"
        return self.add(name, ((phase,),), self.before, decision=group, group=group)

    def _gradient(self, place: int) -> None:
        group = self.gradients.groups.get(place, 0)
        self.open[group].append(place)
        limit = self.bucket_bytes[min(len(self.sums), len(self.bucket_bytes) - 1)]
        if sum(self.gradients.bytes[each] for each in self.open[group]) >= limit:
            self._close([group])

    def _close(self, groups: Sequence[int] | None = None) -> None:
        """All-reduce the gradients collected so far."""
        for group in range(len(self.open)) if groups is None else groups:
            places = tuple(self.open[group])
            if not places:
                continue
            size = sum(self.gradients.bytes[each] for each in places)
            phase = CollectivePhase(
                kind="all_reduce",
                amount=self.gradients.shares[group] * size / self.network.bytes_per_second,
                channels=("network" if self.one_queue else "sums",),
                starts=round(self.network.sum_seconds / _START),
            )
            name = f"sum {len(self.sums)}"
            self.sum_operations.append(
                self.add(name, ((phase,),), self.before, decision=name, size_bytes=float(size))
            )
            self.sums.append(
                self.gradients.message(name, places, group, phase.amount + self.network.sum_seconds)
            )
            self.open[group] = []


_FIRST, _SECOND = ("dispatch", "combine gradient"), ("combine", "dispatch gradient")


def _group_of(name: str) -> tuple[str, bool] | None:
    """Layer and direction of an all-to-all, and whether it is the second of the two; None: it is another."""
    head, _, _ = name.rpartition(" ")
    for number, kinds in enumerate(zip(_FIRST, _SECOND, strict=True)):
        for second, kind in enumerate(kinds):
            if head.endswith(f" {kind}"):
                return f"{head.removesuffix(f' {kind}')} {('forward', 'backward')[number]}", bool(second)
    return None


def cut_message(message: Message, pieces: int, *, start_seconds: float = 0.0) -> list[Message]:
    """Pieces of a message of equal bytes, each with the cost of a start."""
    size = message.size_bytes / pieces
    return [
        replace(
            message,
            name=f"{message.name} piece {piece}",
            seconds=(message.seconds - start_seconds) / pieces + start_seconds,
            size_bytes=size,
            offset_bytes=piece * size,
        )
        for piece in range(pieces)
    ]


def plan_recorded_step(
    items: Sequence[StepItem],
    after: float,  # Seconds from its last sum to the next step
    policy: Lina,
    gradients: SharedGradients,
    network: NetworkTimes,
) -> MixturePlan:
    """Apply the policy to a step recorded with unsplit exchanges."""
    step = _Step(gradients, network, bucket_bytes=(policy.settings.micro_bytes,), one_queue=True)
    graph = step.graph(items, after)
    plan = policy.plan(graph)
    pieces = [plan.choices.get(f"sum {number}", OperationChoice()).pieces for number in range(len(step.sums))]
    own = {graph.operations[each].decision for each in step.exchanges} - {""}
    return MixturePlan(
        messages=tuple(
            piece
            for each, count in zip(step.sums, pieces, strict=True)
            for piece in cut_message(each, count, start_seconds=network.sum_seconds)
        ),
        token_pieces=max((plan.choices.get(each, OperationChoice()).pieces for each in own), default=1),
        order=_network_order(graph, plan, step, pieces),
        predicted_seconds=graph.seconds(plan),
    )


def _network_order(
    graph: OperationGraph, plan: WholePlan, step: _Step, pieces: Sequence[int]
) -> tuple[int, ...]:
    """Network jobs of the backward pass in simulated start order."""
    tasks = graph.tasks(plan)
    start = run_tasks(tasks.graph).start
    number_of = {each: EXCHANGE for each, backward in step.exchanges.items() if backward}
    begin = 0
    for operation, count in zip(step.sum_operations, pieces, strict=True):
        number_of[operation] = begin
        begin += count
    found: list[tuple[float, int, int]] = []
    for task in np.flatnonzero(~tasks.waits).tolist():
        number = number_of.get(int(tasks.operation[task]))
        if number is not None:
            at = 0 if number == EXCHANGE else int(tasks.piece[task])
            found.append((float(start[task]), task, number + at))
    return tuple(number for _, _, number in sorted(found))


def plain_seconds(
    items: Sequence[StepItem], after: float, gradients: SharedGradients, network: NetworkTimes
) -> float:
    """Step time without a policy: unsplit exchanges, and gradient buckets that share the network.

    Args:
        after: Seconds from its last sum to the next step.
    """
    step = _Step(gradients, network, bucket_bytes=(_DDP_FIRST, _DDP_BYTES), one_queue=False)
    return step.graph(items, after).seconds()
