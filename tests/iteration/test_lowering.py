"""The one builder of iterations against plain loops over layers and over pipelines, on random steps and plans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.pipeline.order import Work
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.step.plan import LayerPass, Message
from coppice.iteration.step.workloads import layers_graph, stages_graph
from coppice.iteration.tasks import lower_bounds, run_tasks
from iteration.policies.workloads import random_workload
from reference.iterations import Iterations, message_graph, pipeline_graph


def starts(made: StepGraph | Iterations) -> list[float]:
    times = run_tasks(made.graph)
    return [float(times.start[task]) for task in made.first]


def ends(made: StepGraph | Iterations, count: int) -> list[list[float]]:
    """Ends of the last tasks of each iteration but the last one, which nothing follows."""
    times = run_tasks(made.graph)
    return [sorted(times.finish[list(tasks)[len(tasks) - count :]].tolist()) for tasks in made.last[:-1]]


def random_messages(draw: random.Random, layers: int) -> Sequence[Message]:
    credit = {stream: draw.choice([None, None, 3.0, 8.0]) for stream in ("network", "up")}
    found = []
    for number in range(draw.randint(0, 6)):
        stream = draw.choice(["network", "network", "up"])
        message = Message(
            name=f"m{number}",
            seconds=draw.choice([0, 1, 2, 3.5]),
            size_bytes=draw.choice([1.0, 4.0]),
            layers=tuple(draw.sample(range(layers), draw.randint(1, layers))),
            after=tuple(each for each in range(number) if draw.random() < 0.2),
            after_forward=draw.choice([None, None, draw.randrange(layers)]),
            stream=stream,
            priority=draw.choice([0, 0, 1, 2]),
            needed_by=tuple(draw.sample(range(layers), draw.randint(0, layers))),
            credit_bytes=credit[stream],
            acknowledgement_seconds=draw.choice([0, 0, 0.5]),
        )
        found.append(message)
    return found


def random_backward(draw: random.Random, layers: int) -> Sequence[LayerPass]:
    """Whole backward passes, or halves of which some gradients of weights come last."""
    if draw.random() < 0.5:
        return [LayerPass(Work.BACKWARD, layer) for layer in reversed(range(layers))]
    found, late = [], []
    for layer in reversed(range(layers)):
        found.append(LayerPass(Work.INPUT, layer))
        (late if draw.random() < 0.4 else found).append(LayerPass(Work.WEIGHT, layer))
    return [*found, *late]


def check_layers(seed: int, cases: int) -> None:
    for case in range(cases):
        draw = random.Random(f"{seed} {case}")
        work = random_workload(draw, graph=case % 2 == 1)
        if draw.random() < 0.5:
            parts = tuple(each * draw.choice([0, 0.25, 0.5]) for each in work.backward)
            work = replace(work, weight_backward=parts)
        backward, messages = random_backward(draw, work.layers), random_messages(draw, work.layers)
        try:
            expected = message_graph(work, backward, messages, 4)
            begun = starts(expected)
        except InputError:
            with pytest.raises(InputError):
                starts(layers_graph(work, backward, messages, 4))
            continue
        found = layers_graph(work, backward, messages, 4)
        assert starts(found) == pytest.approx(begun, abs=1e-8), case
        count = len(messages) + 1
        for one, other in zip(ends(found, count), ends(expected, count), strict=True):
            assert one == pytest.approx(other, abs=1e-8), case


def check_pipelines(seed: int, cases: int) -> None:
    for case in range(cases):
        draw = random.Random(f"{seed} {case}")
        name, devices, micro_batches = draw.choice(list(ORDERS)), draw.randint(1, 4), draw.randint(1, 8)
        try:
            order = ORDERS[name](devices, micro_batches, draw.randint(1, 3))
        except InputError:
            continue
        stages = range(order.stages)

        def column(draw: random.Random = draw, stages: range = stages) -> tuple[float, ...]:
            return tuple(draw.choice([0, 0.5, 1, 2, 3.5]) for _ in stages)

        times = StageTimes(
            forward=column(),
            backward=column(),
            weight_share=draw.choice([0, 0.25, 0.5]),
            transfer=draw.choice([0, 0, 0.25, 1.0]),
            reduction=column() if draw.random() < 0.7 else (),
        )
        own: dict[str, Any] = {}
        if draw.random() < 0.5:
            own["barrier"] = draw.random() < 0.5
            own["messages"] = [
                Message(
                    name=f"m{number}",
                    stage=draw.choice(stages),
                    seconds=draw.choice([0.5, 1, 4]),
                    layers=(0,),
                    needed_by=(0,),
                )
                for number in range(draw.randint(0, 5))
            ]
        expected, found = (make(order, times, 3, **own) for make in (pipeline_graph, stages_graph))
        assert starts(found) == pytest.approx(starts(expected), abs=1e-8), case
        sent = len(found.last[0]) - order.stages
        for one, other in zip(ends(found, sent), ends(expected, sent), strict=True):
            assert one == pytest.approx(other, abs=1e-8), case
        free = [
            lower_bounds(make(order, times, 1, in_order=False, **own).graph)
            for make in (pipeline_graph, stages_graph)
        ]
        assert free[0].path == pytest.approx(free[1].path, abs=1e-8)
        assert free[0].stream_seconds == pytest.approx(free[1].stream_seconds, abs=1e-8)


def test_layers_run_as_plain_loops_say() -> None:
    check_layers(1, 120)


def test_pipelines_run_as_plain_loops_say() -> None:
    check_pipelines(1, 80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_run_as_plain_loops_say(seed: int) -> None:
    check_layers(100 + seed, 1000)
    check_pipelines(100 + seed, 500)
