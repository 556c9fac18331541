"""Simulated training step: steady-state time, where it is spent, and lower bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.step.lower import lower
from coppice.iteration.step.passes import Kind, StepGraph
from coppice.iteration.step.plan import Step, StepPlan
from coppice.iteration.tasks import LowerBounds, TaskGraph, TaskTimes, lower_bounds, on_grid, run_tasks

_Floats = NDArray[np.float64]
_RANK = ("compute", "optimizer", "exchange", "send", "message")
"""Where several things run on a device, time counts for the first of them."""


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """Share of a kind of task in the critical path."""

    part: str  # `compute`, `exchange`, `send`, `message` or `optimizer`
    name: str  # The pass of a computation, the collective of anything else
    group: str  # Ranks that exchange; empty: none
    link: str  # The link that limits it; empty: none is known
    seconds: float  # Its time on the path


def path_parts(made: StepGraph, times: TaskTimes, begin: float) -> tuple[PathPart, ...]:
    """Critical path of the last iteration by kind of task, the largest first.

    Each task of the path starts when the one before it ends, so that the parts add up to the iteration.
    """
    cause, size = times.cause, made.size
    path: list[int] = []
    task = int(made.marks()[-1])
    while task >= 0 and times.finish[task] > begin:
        path.append(task)
        task = int(cause[task])
    tasks = np.asarray(path, dtype=np.int64)
    seconds = times.finish[tasks] - np.maximum(times.start[tasks], begin)
    total = np.bincount(made.kind[tasks % size], weights=seconds, minlength=len(made.kinds))
    found = [
        PathPart(part=kind.part, name=kind.name, group=kind.group, link=kind.link, seconds=float(each))
        for kind, each in zip(made.kinds, total, strict=True)
        if each > 0
    ]
    return tuple(sorted(found, key=lambda each: -each.seconds))


def device_parts(
    made: StepGraph, times: TaskTimes, begin: float, end: float, device: int
) -> Mapping[Kind, float]:
    """Time of a device between two instants by kind; the rest is bubble.

    Time in which several things run counts for one of them, computation first, so that exchanges count as far as they
    are exposed. A wait for what another stage sends counts as a send for as long as that takes.
    """
    own = np.flatnonzero(np.tile(made.device == device, made.count))
    start, finish = np.clip(times.start[own], begin, end), np.clip(times.finish[own], begin, end)
    lasting = finish > start
    own, start, finish = own[lasting], start[lasting], finish[lasting]
    kind = made.kind[own % made.size]
    program = made.program[own % made.size] | np.isin(
        kind, [k for k, each in enumerate(made.kinds) if each.part in ("optimizer", "message")]
    )
    own, start, finish, kind = own[program], start[program], finish[program], kind[program]
    cuts = np.unique(np.concatenate([start, finish, [begin, end]]))
    free = np.ones(len(cuts) - 1, dtype=np.bool_)
    lengths = np.diff(cuts)
    found: dict[Kind, float] = {}
    order = sorted(np.unique(kind).tolist(), key=lambda k: (_RANK.index(made.kinds[k].part), k))
    for k in order:
        mine = kind == k
        steps = np.zeros(len(cuts), dtype=np.int64)
        np.add.at(steps, np.searchsorted(cuts, start[mine]), 1)
        np.add.at(steps, np.searchsorted(cuts, finish[mine]), -1)
        covered = (np.cumsum(steps)[:-1] > 0) & free
        found[made.kinds[k]] = float(lengths[covered].sum())
        free &= ~covered
    _waits_for_sends(made, times, (own, start), (cuts, free), found)
    idle = end - begin - sum(found.values())
    found[Kind("bubble", "bubble")] = max(0.0, idle)
    return found


def _waits_for_sends(
    made: StepGraph,
    times: TaskTimes,
    tasks: tuple[NDArray[np.int64], _Floats],
    segments: tuple[_Floats, NDArray[np.bool_]],
    found: dict[Kind, float],
) -> None:
    """Add idle time before passes that waited for another stage's output."""
    (own, start), (cuts, free) = tasks, segments
    if not len(own):
        return
    order = np.argsort(start, kind="stable")
    ends = cuts[1:][free]
    begins = cuts[:-1][free]
    first = np.minimum(np.searchsorted(start[order], ends), len(own) - 1)
    after = own[order][first]
    held = start[order][first] == ends
    cause = times.cause[after]
    sends = [k for k, each in enumerate(made.kinds) if each.part == "send"]
    waits = (
        held & (cause >= 0) & np.isin(made.kind[cause % made.size], sends) & ~made.program[cause % made.size]
    )
    taken = np.minimum(ends - begins, times.finish[cause] - times.start[cause])[waits]
    for k in sends:
        mine = made.kind[cause[waits] % made.size] == k
        if mine.any():
            found[made.kinds[k]] = found.get(made.kinds[k], 0.0) + float(taken[mine].sum())


def total_of(parts: Mapping[Kind, float], names: Sequence[str], group: str | None = None) -> float:
    """Total seconds of parts with given names and group."""
    return sum(
        seconds
        for kind, seconds in parts.items()
        if kind.part in names and (group is None or kind.group == group)
    )


_SAME = 1e-9
_COUNTS = (3, 6, 12)
_PARTS = {"tensor": "tp", "experts": "ep", "context": "cp"}


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedStep:
    """A steady-state iteration of a job."""

    order: str  # Name of the order of the pipeline
    overlap: str  # What runs beside computation
    seconds: float  # Time from one iteration to the next
    mfu: float  # Model FLOP/s utilisation: the share of the peak that operations of the model make up
    # Where the time of the device goes that computes most, in seconds: `compute` (passes of layers), `head`,
    # exchanges that nothing hides inside passes by group (`tensor`, `experts`, `context`), `sends` between
    # stages, `gradients` (all between replicas), `optimizer`, and `bubble`: the rest
    parts: Mapping[str, float]
    path: tuple[PathPart, ...]  # What the iteration waited for, by collective, group and link, the most first
    times: TaskTimes  # When each task of the iterations that were simulated runs
    made: StepGraph  # These tasks
    given: tuple[Step, StepPlan]  # The step and its plan

    @cached_property
    def bounds(self) -> LowerBounds:
        """Lower bounds over all orders of the same passes on these devices."""
        return _bounds(*self.given)

    @property
    def lower_bound_seconds(self) -> float:
        """The largest bound."""
        return self.bounds.seconds

    @property
    def exposed(self) -> dict[str, float]:
        """Communication on the critical path by collective, group and link."""
        found: dict[str, float] = {}
        for each in self.path:
            if each.part in ("exchange", "send", "message"):
                words = f"{each.group} {each.name}" + (f" on {each.link}" if each.link else "")
                found[words] = found.get(words, 0.0) + each.seconds
        return found


@lru_cache(maxsize=8)  # a run asks for its order twice: for its time, and for its memory
def order_for(name: str | None, devices: int, micro_batches: int, chunks: int) -> tuple[str, PipelineOrder]:
    """Look up a pipeline order; None is 1F1B, interleaved where devices have several chunks."""
    chosen = name or ("interleaved" if chunks > 1 else "1f1b")
    if chosen not in ORDERS:
        raise InputError(f"expected an order of a pipeline ({', '.join(ORDERS)}), found {chosen!r}.")
    order = _order(chosen, devices, micro_batches, chunks)
    if order.stages != devices * chunks:
        wanted = order.stages // devices
        if wanted == 1:
            msg = f"expected one chunk of a device for order {chosen}, found {chunks}: take interleaved."
        else:
            msg = f"expected {wanted} chunks of a device for order {chosen}, found {chunks}."
        raise InputError(msg)
    return chosen, order


@lru_cache(maxsize=8)
def _order(name: str, devices: int, micro_batches: int, chunks: int) -> PipelineOrder:
    return ORDERS[name](devices, micro_batches, chunks)


def simulate_step(
    step: Step,
    plan: StepPlan,
    *,
    name: str = "",  # Name of the order, for people
    # Share of a device's speed for which messages beside computation compete with it: with x both take 1 + x
    # times as long. Measured: 0.19 on average, 0.4 at most (arXiv 2507.03114, on A100, H100, MI210 and
    # MI250).
    contention: float = 0.0,
) -> SimulatedStep:
    """Simulate a step to its steady state.

    Examples:
        Two stages of unit passes, four micro-batches: a bubble of one forward and one backward pass.

        >>> from coppice.iteration.step.plan import LayerBlock
        >>> block = LayerBlock(name="one", kind="layer", forward=1.0, input_gradient=1.0, weight_gradient=1.0)
        >>> step = Step(stages=((block,), (block,)), micro_batches=4)
        >>> found = simulate_step(step, StepPlan(order=ORDERS["1f1b"](2, 4, 1), sends_block=True))
        >>> found.seconds, found.parts["bubble"]
        (15.0, 3.0)
    """
    if not contention >= 0:
        raise InputError(f"expected `contention` of 0 or more, found {contention}.")
    order = plan.order
    made, times, begin, end = _until_it_repeats(step, plan, contention)
    seconds = end - begin
    work = [sum(block.compute for block in stage) for stage in step.stages]
    computes = [0.0] * len(order.devices)
    for stage, device in order.device_of().items():
        computes[device] += work[stage]
    busiest = int(np.argmax(computes))
    owned = [step.stages[stage] for stage, device in order.device_of().items() if device == busiest]
    found = device_parts(made, times, begin, end, busiest)
    head = step.micro_batches * sum(
        block.compute for stage in owned for block in stage if block.kind == "head"
    )
    parts = {
        "compute": total_of(found, ["compute"]) - head,
        "head": head,
        **{part: total_of(found, ["exchange"], group) for part, group in _PARTS.items()},
        "sends": total_of(found, ["send"]),
        "bubble": total_of(found, ["bubble"]),
        "gradients": total_of(found, ["message"]) + total_of(found, ["exchange"], "dp"),
        "optimizer": total_of(found, ["optimizer"]),
    }
    return SimulatedStep(
        order=name,
        overlap=plan.name,
        seconds=seconds,
        mfu=step.flops / seconds / step.peak if step.peak and seconds else 0.0,
        parts=parts,
        path=path_parts(made, times, begin),
        times=times,
        made=made,
        given=(step, plan),
    )


def _until_it_repeats(
    step: Step, plan: StepPlan, contention: float
) -> tuple[StepGraph, TaskTimes, float, float]:
    """Simulate until steady; return iterations, task times, and the last one's interval.

    Where the optimizer steps at once, an iteration depends on nothing but what follows the step before: one is enough,
    two where messages follow it.
    """
    counts = _COUNTS if not plan.synchronous_step else (2 if plan.crosses else 1,)
    for count in counts:
        made = lower(step, plan, count=count, contention=contention)
        times = run_tasks(made.graph)
        ends = [0.0, *times.finish[made.marks()].tolist()]
        gaps = np.diff(ends)
        if len(gaps) > 2 and abs(gaps[-1] - gaps[-2]) <= _SAME * gaps[-1]:
            break
    return made, times, float(ends[-2]), float(ends[-1])


def _bounds(step: Step, plan: StepPlan) -> LowerBounds:
    """Lower bounds over all orders.

    Where messages may run beside the next iteration, they count as loads of their streams and links alone, and so does
    what a device computes: it may fill what it waits for at the beginning with the end of the iteration before.
    """
    free = lower(step, plan, in_order=False).graph
    if plan.synchronous_step:
        return lower_bounds(free)
    alone = replace(plan, messages=(), synchronous_step=True, backward={})
    path = lower_bounds(lower(step, alone, in_order=False).graph)
    stream, link = _busiest(free)
    return LowerBounds(
        path=path.path - max(step.optimizer, default=0.0),
        stream=stream[1],
        stream_seconds=stream[0],
        link=link[1],
        link_seconds=link[0],
    )


def _busiest(graph: TaskGraph) -> tuple[tuple[float, str], tuple[float, str]]:
    """Load of the busiest stream and link."""
    on_streams = graph.stream >= 0
    seconds = on_grid(graph.seconds)
    streams = np.bincount(graph.stream[on_streams], seconds[on_streams], len(graph.streams))
    on_links = np.repeat(np.arange(len(graph)), np.diff(graph.load_start))
    links = np.bincount(graph.load_link, graph.load * seconds[on_links], len(graph.links))
    found = []
    for totals, names in ((streams, graph.streams), (links, graph.links)):
        most = int(totals.argmax()) if len(totals) else -1
        found.append((float(totals[most]), names[most]) if most >= 0 else (0.0, ""))
    return found[0], found[1]
