"""Steps of layers and of stages: the graphs of their iterations, and the time of one in steady state.

Policies over layers are simulated as all training steps are: a layer-wise workload is a step of one stage and one
micro-batch with a block for each layer, and a pipeline whose stages are told by their times one with a block a stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.step.lower import lower
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.step.plan import GroupExchange, LayerBlock, LayerPass, Message, Step, StepPlan
from coppice.iteration.tasks import run_tasks

_ONE_DEVICE = PipelineOrder(
    devices=((StagePass(0, Work.FORWARD, 0), StagePass(0, Work.BACKWARD, 0)),), stages=1, micro_batches=1
)


def layers_step(workload: LayerWorkload) -> Step:
    """One stage and one micro-batch, with a block for each layer."""
    blocks = [
        LayerBlock(
            name=f"layer {layer}",
            kind="layer",
            forward=workload.forward[layer],
            input_gradient=workload.backward[layer] - workload.weight_seconds(layer),
            weight_gradient=workload.weight_seconds(layer),
            inputs=workload.inputs_of(layer) if workload.inputs else None,
        )
        for layer in range(workload.layers)
    ]
    return Step(stages=(tuple(blocks),), micro_batches=1)


def layers_graph(
    workload: LayerWorkload, backward: Sequence[LayerPass], messages: Sequence[Message], count: int
) -> StepGraph:
    """Task graph of one worker over several iterations; all workers are alike.

    A forward pass waits for the layers that it takes its input from and for the messages that it needs; of those that
    are ready, the device runs the first. Then come the backward passes in the order given; when they are done, the next
    iteration begins.
    """
    plan = StepPlan(
        order=_ONE_DEVICE, messages=tuple(messages), synchronous_step=False, backward={0: backward}
    )
    return lower(layers_step(workload), plan, count=count)


def stages_step(times: StageTimes, micro_batches: int) -> Step:
    """A block for each stage."""
    for name in ("backward", "weight", "reduction"):
        values, stages = getattr(times, name), len(times.forward)
        if len(values) != stages and (values or name == "backward"):
            raise InputError(f"expected {name} times of {stages} stages, found {len(values)}.")
    blocks = [
        LayerBlock(
            name=f"stage {stage}",
            kind="layer",
            forward=forward,
            input_gradient=times.of(StagePass(stage, Work.INPUT, 0)),
            weight_gradient=times.of(StagePass(stage, Work.WEIGHT, 0)),
        )
        for stage, forward in enumerate(times.forward)
    ]
    return Step(
        stages=tuple((block,) for block in blocks),
        micro_batches=micro_batches,
        send=GroupExchange(group="pp", collective="send", size_bytes=0.0, seconds=times.transfer),
    )


def stages_graph(
    order: PipelineOrder,
    times: StageTimes,
    count: int,
    *,
    # Devices keep the order of their programs; otherwise they run what is ready (see :func:`lower`)
    in_order: bool = True,
    # The messages; if not given, one for each stage that takes as long as the times say
    messages: Sequence[Message] | None = None,
    # The optimizer steps everywhere at once; otherwise a stage waits only for its own messages
    barrier: bool = True,
) -> StepGraph:
    """Task graph of several iterations of a pipeline.

    The gradients of a stage are summed when its last backward pass is done, on the network of its device, stages in the
    order in which they are ready. Passes of a device follow each other, as they exchange nothing inside.
    """
    if messages is None:
        messages = [
            Message(name=f"gradients of stage {stage}", seconds=seconds, stage=stage, layers=(0,))
            for stage, seconds in enumerate(times.reduction)
            if seconds
        ]
    turn = {stage: number for number, stage in enumerate(_ready(order))}
    plan = StepPlan(
        order=replace(order, co_scheduled=frozenset()) if order.co_scheduled else order,
        messages=tuple(
            sorted(messages, key=lambda each: (each.after_forward is not None, turn[each.stage or 0]))
        ),
        synchronous_step=barrier,
    )
    return lower(stages_step(times, order.micro_batches), plan, count=count, in_order=in_order)


def _ready(order: PipelineOrder) -> list[int]:
    """Stages in the order in which their gradients are complete, device by device."""
    found: list[int] = []
    for program in order.devices:
        last = {
            each.stage: place
            for place, each in enumerate(program)
            if each.work in (Work.BACKWARD, Work.WEIGHT)
        }
        found += sorted(last, key=lambda stage: last[stage])
    return found


_SAME = 1e-9
_COUNTS = (6, 12, 24, 48, 96)


@dataclass(frozen=True, kw_only=True)
class SteadyIteration:
    """An iteration in steady state."""

    seconds: float  # Time from one to the next, over a period
    # Iterations after which the distances repeat; 0 if they did not within those simulated, and `seconds` is
    # their mean
    period: int
    simulated: int  # Iterations simulated


def steady_iteration(iterations: Callable[[int], StepGraph]) -> SteadyIteration:
    """Simulate iterations until their intervals and the lags of their last tasks repeat.

    Distances alone may repeat for a while as messages fall further and further behind, until an iteration waits for
    them. Where nothing repeats within those simulated, what falls behind most sets the pace.

    Args:
        iterations: Gives the tasks of so many iterations in a row.

    Examples:
        >>> from coppice.iteration.layers import LayerWorkload
        >>> from coppice.iteration.policies.data_parallel.overlap import WaitFree
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> steady_iteration(lambda count: WaitFree.of().iterations(three, count)).seconds
        17.0
    """
    gaps: list[float] = []
    for count in _COUNTS:
        made = iterations(count)
        times = run_tasks(made.graph)
        starts = [float(times.start[task]) for task in made.first]
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        period = _period(gaps)
        # The last iterations have no others after them that their messages compete with.
        ends = [times.finish[list(tasks)] for tasks in made.last]
        behind = [end - start for end, start in zip(ends[:-2], starts[:-2], strict=True)]
        if period and _settled(behind, period):
            return SteadyIteration(seconds=sum(gaps[-period:]) / period, period=period, simulated=count)
    half = gaps[len(gaps) // 2 :]
    mean = sum(half) / len(half)
    first = behind[len(behind) // 2]
    if len(first) and len(first) == len(behind[-1]):
        mean += max(0.0, float((behind[-1] - first).max())) / (len(behind) - 1 - len(behind) // 2)
    return SteadyIteration(seconds=mean, period=0, simulated=_COUNTS[-1])


def _settled(behind: Sequence[NDArray[np.float64]], period: int) -> bool:
    """Whether the lags of an iteration's last tasks equal those a period earlier, over the last period."""
    numbers = range(max(period, len(behind) - period), len(behind))
    return all(
        len(behind[number]) != len(behind[number - period])
        or np.allclose(behind[number], behind[number - period], rtol=_SAME, atol=_SAME)
        for number in numbers
    )


def _period(gaps: Sequence[float]) -> int:
    """Shortest period of the last intervals, seen at least three times if above 1; 0: none."""
    for period in range(1, len(gaps) // 3 + 1):
        last = gaps[-period:]
        seen = [gaps[len(gaps) - (turn + 1) * period : len(gaps) - turn * period] for turn in range(1, 3)]
        if all(
            abs(a - b) <= _SAME * max(1.0, abs(b)) for each in seen for a, b in zip(each, last, strict=True)
        ):
            return period
    return 0
