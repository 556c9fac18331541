"""Recomputation in communication windows: what a layer keeps, recomputes early, or recomputes on demand.

Source: Chen et al., "Optimizing Large Model Training through Overlapped Activation Recomputation" (Lynx, arXiv
2406.08756), here after its abstract and our own derivation.

Theory. The outputs of a layer's operations are needed by its backward pass: each is kept, or computed again. Sums of
tensor parallelism leave the device idle: windows. A layer is computed again in the windows of the backward pass of the
layer above; the last layer of a stage in the windows of the forward pass that runs before its backward pass, that of
another micro-batch in 1F1B. What is left is computed on demand. With R seconds of an operation, C of a window,

    added time = sum of R on demand + sum over windows of max(0, sum of R in it - C).

An operation comes after those whose outputs it takes, unless it is kept. Memory of a stage of L layers that holds
activations of m micro-batches, with A bytes of an operation: what is kept, m L times; what one layer has computed again
for its backward pass; and, if there are more layers, what the one below has computed early:

    m L sum of A kept + sum of A not kept + sum of A in windows <= limit.

All layers share one choice (the heuristic of the paper, which is the optimum of a layer), found by search: branch and
bound over the operations, where operations to come can save no more than the room in windows and what memory can keep
at best, parts of operations included. Seconds are whole numbers of 2^-34 s and bytes are whole, so the search is exact.

So more memory is never slower, nothing is slower than all on demand, and with memory for all nothing is computed again.
Where operations have to fit into windows (``whole``) one window hides the largest sum of R that does not exceed C.

Layers of a model go to stages so that those in front, which compute more again, have fewer (the recomputation-aware
partitioning of Lynx, our own derivation). In 1F1B stage d of p holds the activations of p - d micro-batches, and has as
much less memory for each: with as many layers as the others it computes more again and is slower. The published way
moves a layer from the slowest stage to the quickest as long as the slowest gets quicker. As a stage's time depends on
how many layers it has, and grows with them, the best split is found as well: the least time in which the stages can
hold all layers together, each as many as it runs in that time (``exact``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from coppice.errors import InputError
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder

KEPT = -1
TICKS = 2**34  # of a second, as in the simulator


def ticks(seconds: float) -> int:
    """Round seconds to whole ticks."""
    return round(seconds * TICKS)


@dataclass(frozen=True, kw_only=True)
class RecomputedOp:
    """Operation whose output the backward pass needs."""

    name: str  # Its name
    seconds: float  # Time to compute it again
    size_bytes: int  # Bytes of its output
    after: tuple[int, ...] = ()  # Numbers of the operations whose outputs it takes, all before it


@dataclass(frozen=True, kw_only=True)
class LayerWindows:
    """A layer with its operations and communication windows; a stage has several.

    Raises:
        InputError: If a time is negative, windows differ in number, or an operation takes from a later one.
    """

    ops: tuple[RecomputedOp, ...]  # Its operations, each after those it takes from
    backward: tuple[float, ...]  # Seconds of the windows of its backward pass
    forward: tuple[float, ...]  # Seconds of those of its forward pass, as many
    compute: float = 0.0  # Seconds of computation of both passes, nothing computed again

    def __post_init__(self) -> None:
        if len(self.backward) != len(self.forward):
            raise InputError(
                f"expected as many windows in both passes, found {len(self.forward)} forwards and "
                f"{len(self.backward)} backwards."
            )
        times = (*self.backward, *self.forward, self.compute, *(op.seconds for op in self.ops))
        if min(times) < 0:
            raise InputError(f"expected 0 or more seconds, found {min(times)}.")
        for number, op in enumerate(self.ops):
            if not all(0 <= before < number for before in op.after):
                raise InputError(
                    f"expected operation {op.name} to come after operations before it, found {op.after}."
                )

    @property
    def base_seconds(self) -> float:
        """Time of both passes without recomputation."""
        return self.compute + sum(self.forward) + sum(self.backward)


@dataclass(frozen=True, kw_only=True)
class RecomputePlan:
    """Optimal choice."""

    # For each operation -1 (kept), the number of a window, or the number of windows (on demand)
    place: tuple[int, ...]
    added_seconds: float  # What it adds to a forward and backward pass of the stage
    memory_bytes: int  # Activations at their peak


def least_bytes(layer: LayerWindows) -> int:
    """Least memory of a stage: one whole layer, recomputed on demand."""
    return sum(op.size_bytes for op in layer.ops)


def plan_layer(
    layer: LayerWindows, *, layers: int, in_flight: int, limit_bytes: int, whole: bool = False
) -> RecomputePlan:
    """Best choice shared by all layers of a stage.

    Args:
        in_flight: Micro-batches whose activations the stage holds.
        whole: Operations have to fit into their windows.

    Examples:
        >>> ops = tuple(RecomputedOp(name="", seconds=seconds, size_bytes=1) for seconds in (3, 2, 2))
        >>> layer = LayerWindows(ops=ops, backward=(4.0,), forward=(4.0,))
        >>> plan_layer(layer, layers=1, in_flight=2, limit_bytes=3).added_seconds
        3.0
        >>> plan_layer(layer, layers=1, in_flight=2, limit_bytes=6).place
        (-1, -1, -1)
    """
    if min(layers, in_flight) < 1:
        raise InputError(
            f"expected 1 or more layers and micro-batches in flight, found {layers} and {in_flight}."
        )
    needed = least_bytes(layer)
    if needed > limit_bytes:
        raise InputError(
            f"expected room for {needed} bytes of one layer's activations or more, found {limit_bytes}."
        )
    search = _KeepSearch(layer, layers=layers, in_flight=in_flight, whole=whole)
    search.run(0, limit_bytes - needed, 0)
    return RecomputePlan(
        place=search.best, added_seconds=search.cost / TICKS, memory_bytes=limit_bytes - search.left
    )


class _KeepSearch:
    """Branch and bound over the operations of a layer, in order."""

    def __init__(self, layer: LayerWindows, *, layers: int, in_flight: int, whole: bool) -> None:
        self.layer, self.layers, self.whole = layer, layers, whole
        self.seconds = [ticks(op.seconds) for op in layer.ops]
        self.keep = [(in_flight * layers - 1) * op.size_bytes for op in layer.ops]  # instead of on demand
        self.early = [op.size_bytes if layers > 1 else 0 for op in layer.ops]
        # The windows of every layer but the last, and those of the last: how often, and how long.
        self.rooms = [
            (times, [ticks(room) for room in rooms])
            for times, rooms in ((layers - 1, layer.backward), (1, layer.forward))
            if times
        ]
        self.demand = len(layer.backward)
        self.loads = [0] * self.demand
        self.place: list[int] = []
        self.rest = [sum(self.seconds[number:]) for number in range(len(layer.ops) + 1)]
        # Operations by seconds saved per byte, the best first; those without bytes before all.
        self.worth = sorted(
            range(len(layer.ops)),
            key=lambda op: (self.keep[op] > 0, -Fraction(self.seconds[op], self.keep[op] or 1), op),
        )
        self.best: tuple[int, ...] = ()
        self.cost = math.inf
        self.left = 0

    def run(self, op: int, left: int, demanded: int) -> None:
        """Branch on an operation and those after it, by bytes left and ticks on demand so far."""
        over = self.overflow(0)
        if self.layers * demanded + self.at_least(op, left) >= self.cost:
            return
        if op == len(self.layer.ops):
            self.best, self.cost, self.left = tuple(self.place), self.layers * demanded + over, left
            return
        if self.keep[op] <= left:
            self.place.append(KEPT)
            self.run(op + 1, left - self.keep[op], demanded)
            self.place.pop()
        first = max((self.place[before] for before in self.layer.ops[op].after), default=KEPT)
        for window in range(max(first, 0), self.demand):
            self.loads[window] += self.seconds[op]
            if self.early[op] <= left and not (self.whole and self.overflow(0)):
                self.place.append(window)
                self.run(op + 1, left - self.early[op], demanded)
                self.place.pop()
            self.loads[window] -= self.seconds[op]
        self.place.append(self.demand)
        self.run(op + 1, left, demanded + self.seconds[op])
        self.place.pop()

    def overflow(self, more: int) -> int:
        """Ticks beyond the windows' capacity if more were placed where there is room."""
        total = 0
        for times, rooms in self.rooms:
            over = sum(max(0, load - room) for load, room in zip(self.loads, rooms, strict=True))
            slack = sum(max(0, room - load) for load, room in zip(self.loads, rooms, strict=True))
            total += times * (over + max(0, more - slack))
        return total

    def at_least(self, op: int, left: int) -> int:
        """Lower bound on the ticks that windows and operations from this one on add."""
        saved = 0
        for other in self.worth:
            if other < op:
                continue
            if self.keep[other] > left:
                saved += self.seconds[other] * left // self.keep[other] + 1
                break
            left -= self.keep[other]
            saved += self.seconds[other]
        return self.overflow(max(0, self.rest[op] - saved))


def stage_graph(layer: LayerWindows, places: Sequence[Sequence[int]]) -> TaskGraph:
    """Forward and backward pass of a stage whose layers have these choices.

    Half of a layer's computation is forward; each pass has a part of it before each window. Windows in a choice are
    those of the forward pass of the last layer first, then those of the backward passes of the layers above, from the
    last one down; a larger number is on demand.
    """
    graph = TaskGraphBuilder()
    compute, network = graph.stream("compute"), graph.stream("network")
    before: list[int] = []
    ordinal = 0  # windows before the backward pass of a layer

    def work(name: str, kind: str, seconds: float) -> None:
        before[:] = [graph.add(name, kind, compute, seconds, after=before)]

    def again(window: int, below: int) -> None:
        for number, place in enumerate(places[:below]):
            for op, at in zip(layer.ops, place, strict=True):
                if at == window:
                    work(f"{op.name} of {number} early", "recompute", op.seconds)

    def through(name: str, kind: str, windows: Sequence[float], first: int, below: int) -> None:
        parts = max(1, len(windows))
        for part in range(parts):
            work(f"{name} part {part}", kind, layer.compute / 2 / parts)
            if windows:
                summed = graph.add(
                    f"sum {part} of {name}", "all_reduce", network, windows[part], after=before
                )
                again(first + part, below)
                before.append(summed)

    count = len(places)
    for number in range(count):
        through(f"F{number}", "forward", layer.forward, 0, count if number == count - 1 else 0)
    for number in reversed(range(count)):
        ordinal += len(layer.backward)
        for op, at in zip(layer.ops, places[number], strict=True):
            if at >= ordinal:
                work(f"{op.name} of {number}", "recompute", op.seconds)
        through(f"B{number}", "backward", layer.backward, ordinal, number)
    return graph.build()


@dataclass(frozen=True, kw_only=True)
class LayerSplit:
    """Optimal split."""

    layers: tuple[int, ...]  # Layers of each stage
    seconds: tuple[float, ...]  # Time of a forward and backward pass of each stage


def split_layers(
    layer: LayerWindows,
    *,
    layers: int,
    stages: int,
    micro_batches: int,
    device_bytes: int,
    layer_bytes: int,  # Bytes of a layer's parameters, gradients and states
    exact: bool = False,  # The best split there is, instead of moving layers while that helps
) -> LayerSplit:
    """Layers per stage of a 1F1B pipeline, each stage with its best recomputation."""
    if not 1 <= stages <= layers:
        raise InputError(
            f"expected 1 stage or more, and {stages} layers or more for them, found {layers} layers."
        )
    known: dict[tuple[int, int], float] = {}

    def seconds(stage: int, count: int) -> float:
        if (stage, count) not in known:
            room = device_bytes - count * layer_bytes
            in_flight = min(stages - stage, micro_batches)
            known[stage, count] = math.inf
            if room >= least_bytes(layer):
                plan = plan_layer(layer, layers=count, in_flight=in_flight, limit_bytes=room)
                known[stage, count] = count * layer.base_seconds + plan.added_seconds
        return known[stage, count]

    counts = (_best if exact else _moved)(layers, stages, seconds)
    times = tuple(seconds(stage, count) for stage, count in enumerate(counts))
    if math.isinf(max(times)):
        raise InputError(
            f"expected devices with room for {layers} layers in {stages} stages, found {device_bytes} bytes each."
        )
    return LayerSplit(layers=tuple(counts), seconds=times)


def _moved(layers: int, stages: int, seconds: Callable[[int, int], float]) -> list[int]:
    """Local search from an even split: move one layer at a time from the slowest stage to the fastest."""
    counts = [layers // stages + (stage >= stages - layers % stages) for stage in range(stages)]
    while True:
        times = [seconds(stage, count) for stage, count in enumerate(counts)]
        slow = max(range(stages), key=lambda stage: times[stage])
        quick = min(range(stages), key=lambda stage: times[stage])
        if counts[slow] == 1 or slow == quick:
            return counts
        moved = list(counts)
        moved[slow] -= 1
        moved[quick] += 1
        if max(seconds(stage, count) for stage, count in enumerate(moved)) >= max(times):
            return counts
        counts = moved


def _best(layers: int, stages: int, seconds: Callable[[int, int], float]) -> list[int]:
    """Least time in which the stages hold all layers; the last stages take the remainder."""
    most = layers - stages + 1
    times = sorted({seconds(stage, count) for stage in range(stages) for count in range(1, most + 1)})
    for bound in times:
        room = [
            max((count for count in range(1, most + 1) if seconds(stage, count) <= bound), default=0)
            for stage in range(stages)
        ]
        if min(room) and sum(room) >= layers:
            counts = [1] * stages
            for stage in reversed(range(stages)):
                counts[stage] += min(room[stage] - 1, layers - sum(counts))
            return counts
    return [layers - stages + 1] + [1] * (stages - 1)
