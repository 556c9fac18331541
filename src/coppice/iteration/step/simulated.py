"""A training step, simulated: its time once it repeats, what it goes to, and what no order can beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.running import LowerBounds, TaskTimes, lower_bounds, run_tasks
from coppice.iteration.step.block import Step
from coppice.iteration.step.graph import StepGraph, step_graph
from coppice.iteration.step.overlap import Overlap, overlap_named
from coppice.iteration.step.parts import PathPart, device_parts, path_parts, total_of
from coppice.iteration.tasks import TaskGraph

_SAME = 1e-9
_COUNTS = (3, 6, 12)
_PARTS = {"tensor": "tp", "experts": "ep", "context": "cp"}


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedStep:
    """An iteration of a job in the long run."""

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
    given: tuple[Step, PipelineOrder, Overlap]  # The step, the programs of devices, and what overlaps

    @cached_property
    def bounds(self) -> LowerBounds:
        """What no order of the same passes on these devices can beat."""
        return _bounds(*self.given)

    @property
    def lower_bound_seconds(self) -> float:
        """The largest bound."""
        return self.bounds.seconds

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds of the critical path that are no computation, by collective, group and link."""
        found: dict[str, float] = {}
        for each in self.path:
            if each.part in ("exchange", "send", "message"):
                words = f"{each.group} {each.name}" + (f" on {each.link}" if each.link else "")
                found[words] = found.get(words, 0.0) + each.seconds
        return found


def order_for(name: str | None, devices: int, micro_batches: int, chunks: int) -> tuple[str, PipelineOrder]:
    """The order of a pipeline by its name; None takes 1F1B, interleaved where devices have several chunks."""
    chosen = name or ("interleaved" if chunks > 1 else "1f1b")
    if chosen not in ORDERS:
        raise InputError(f"expected an order of a pipeline ({', '.join(ORDERS)}), found {chosen!r}.")
    order = ORDERS[chosen](devices, micro_batches, chunks)
    if order.stages != devices * chunks:
        wanted = order.stages // devices
        if wanted == 1:
            msg = f"expected one chunk of a device for order {chosen}, found {chunks}: take interleaved."
        else:
            msg = f"expected {wanted} chunks of a device for order {chosen}, found {chunks}."
        raise InputError(msg)
    return chosen, order


def simulate_step(
    step: Step,
    order: PipelineOrder,
    *,
    name: str = "",  # Name of the order, for people
    overlap: str | Overlap = "none",  # What runs beside computation, or its name (see :func:`overlap_named`)
    # Share of a device's speed for which messages beside computation compete with it: with x both take 1 + x
    # times as long. Measured: 0.19 on average, 0.4 at most (arXiv 2507.03114, on A100, H100, MI210 and
    # MI250).
    contention: float = 0.0,
) -> SimulatedStep:
    """Simulate a step until it repeats.

    Examples:
        Two stages of unit passes, four micro-batches: a bubble of one forward and one backward pass.

        >>> from coppice.iteration.step.block import LayerBlock
        >>> block = LayerBlock(name="one", kind="layer", forward=1.0, input_gradient=1.0, weight_gradient=1.0)
        >>> step = Step(stages=((block,), (block,)), micro_batches=4)
        >>> found = simulate_step(step, ORDERS["1f1b"](2, 4, 1))
        >>> found.seconds, found.parts["bubble"]
        (15.0, 3.0)
    """
    if not contention >= 0:
        raise InputError(f"expected `contention` of 0 or more, found {contention}.")
    chosen = overlap_named(overlap, step, order) if isinstance(overlap, str) else overlap
    made, times, begin, end = _until_it_repeats(step, order, chosen, contention)
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
        overlap=chosen.name,
        seconds=seconds,
        mfu=step.flops / seconds / step.peak if step.peak and seconds else 0.0,
        parts=parts,
        path=path_parts(made, times, begin),
        times=times,
        made=made,
        given=(step, order, chosen),
    )


def _until_it_repeats(
    step: Step, order: PipelineOrder, overlap: Overlap, contention: float
) -> tuple[StepGraph, TaskTimes, float, float]:
    """Iterations, when their tasks run, and begin and end of the last one.

    Where the optimizer steps at once, an iteration depends on nothing but what follows the step before: one is enough,
    two where messages follow it.
    """
    counts = _COUNTS if not overlap.steps_at_once else (2 if overlap.crosses else 1,)
    for count in counts:
        made = step_graph(step, order, overlap, count=count, contention=contention)
        times = run_tasks(made.graph)
        ends = [0.0, *times.finish[made.marks()].tolist()]
        gaps = np.diff(ends)
        if len(gaps) > 2 and abs(gaps[-1] - gaps[-2]) <= _SAME * gaps[-1]:
            break
    return made, times, float(ends[-2]), float(ends[-1])


def _bounds(step: Step, order: PipelineOrder, overlap: Overlap) -> LowerBounds:
    """What no order can beat.

    Where messages may run beside the next iteration, they count as loads of their streams and links alone, and so does
    what a device computes: it may fill what it waits for at the beginning with the end of the iteration before.
    """
    if overlap.steps_at_once:
        return lower_bounds(step_graph(step, order, overlap, in_order=False).graph)
    alone = Overlap(name=overlap.name, sends_block=overlap.sends_block, gathers_ahead=overlap.gathers_ahead)
    path = lower_bounds(step_graph(step, order, alone, in_order=False).graph)
    stream, link = _busiest(step_graph(step, order, overlap, in_order=False).graph)
    return LowerBounds(
        path=path.path - max(step.optimizer, default=0.0),
        stream=stream[1],
        stream_seconds=stream[0],
        link=link[1],
        link_seconds=link[0],
    )


def _busiest(graph: TaskGraph) -> tuple[tuple[float, str], tuple[float, str]]:
    """All that the busiest stream and link carry."""
    on_streams = graph.stream >= 0
    streams = np.bincount(graph.stream[on_streams], graph.seconds[on_streams], len(graph.streams))
    on_links = np.repeat(np.arange(len(graph)), np.diff(graph.load_start))
    links = np.bincount(graph.load_link, graph.load * graph.seconds[on_links], len(graph.links))
    found = []
    for totals, names in ((streams, graph.streams), (links, graph.links)):
        most = int(totals.argmax()) if len(totals) else -1
        found.append((float(totals[most]), names[most]) if most >= 0 else (0.0, ""))
    return found[0], found[1]
