"""Graphs of tasks: the native simulator against its reference, what it refuses, and what no order can beat."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.optimum import MOST_ITEMS, optimal_messages
from coppice.iteration.predicted import predict
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder, lower_bound_seconds, run_tasks
from iteration.policies.workloads import workload_of
from reference import tasks as reference


def graph_of(seed: int, *, shared: bool = False, windows: int = 0) -> TaskGraph:
    """Up to 24 tasks on up to 3 streams, with whole and broken durations; some wait for windows."""
    draw = random.Random(seed)
    graph = TaskGraphBuilder()
    streams = [graph.stream(f"stream {number}") for number in range(draw.randint(1, 3))]
    for task in range(draw.randint(1, 24)):
        graph.add(
            f"task {task}",
            draw.choice(["forward", "all_reduce"]),
            draw.choice([-1, *streams]),
            draw.choice([0.0, 1.0, 2.0, 0.1, draw.random()]),
            after=[before for before in range(task) if draw.random() < 0.15],
            priority=draw.randint(0, 2),
            loads={f"link {k}": draw.choice([0.25, 0.5, 0.75, 1.0]) for k in range(3) if draw.random() < 0.3}
            if shared
            else None,
        )
    limits = [graph.window(draw.choice([0.5, 1.0, 3.0])) for _ in range(windows)]
    on_streams = np.flatnonzero(np.asarray(graph.build().stream) >= 0).tolist() if limits else []
    for task in on_streams:
        if draw.random() < 0.6:
            graph.hold(task, draw.choice(limits), draw.choice([0.0, 0.1, 1.0, 2.0]))
            if draw.random() < 0.5:
                late = draw.choice([0.0, 0.5, 2.0])
                graph.acknowledge(
                    task, graph.add("acknowledgement", "acknowledgement", -1, late, after=[task])
                )
    return graph.build()


@pytest.mark.parametrize("shared", [False, True], ids=["streams", "shared links"])
def test_the_native_simulator_agrees_with_its_reference(shared: bool) -> None:
    for seed in range(400):
        graph = graph_of(seed, shared=shared)
        times = run_tasks(graph)
        start, finish = reference.run(graph)
        if shared:  # speeds are rounded otherwise there
            np.testing.assert_allclose(times.start, start, atol=1e-7)
            np.testing.assert_allclose(times.finish, finish, atol=1e-7)
        else:
            assert times.start.tolist() == start
            assert times.finish.tolist() == finish


@pytest.mark.parametrize("windows", [1, 2])
def test_windows_agree_with_the_reference(windows: int) -> None:
    for seed in range(400):
        graph = graph_of(seed, windows=windows)
        times = run_tasks(graph)
        start, finish = reference.run(graph)
        assert times.start.tolist() == start
        assert times.finish.tolist() == finish
        for task, cause in enumerate(times.cause):
            if cause >= 0:
                assert times.finish[cause] <= times.start[task]


def test_bytes_of_a_window_in_flight() -> None:
    draw = random.Random(3)
    full = 0
    for _ in range(200):
        graph = TaskGraphBuilder()
        network, window = graph.stream("network"), graph.window(2.5)
        sizes, sent, answers = [], [], []
        for number in range(12):
            sizes.append(draw.choice([0.5, 1.0, 2.0]))
            sent.append(graph.add("message", "all_reduce", network, sizes[-1], priority=draw.randint(0, 2)))
            late = draw.choice([0.0, 1.0, 5.0])
            answers.append(graph.add("answer", "acknowledgement", -1, late, after=[sent[-1]]))
            graph.hold(sent[-1], window, sizes[-1])
            graph.acknowledge(sent[number], answers[number])
        times = run_tasks(graph.build())
        for own in sent:
            at = times.start[own]
            flying = [
                size
                for task, answer, size in zip(sent, answers, sizes, strict=True)
                if times.start[task] < at < times.finish[answer]
            ]
            assert sum(flying) < 2.5
            full += sum(flying) >= 1.5
    assert full > 100


def test_credit_that_never_comes_back_is_named() -> None:
    graph = TaskGraphBuilder()
    network, window = graph.stream("network"), graph.window(1.0)
    for name in ("first", "second"):
        graph.hold(graph.add(name, "all_reduce", network, 1.0), window, 1.0)
    graph.acknowledge(0, graph.add("answer", "acknowledgement", -1, 1.0, after=[1]))
    with pytest.raises(InputError, match="found second waiting for it forever"):
        run_tasks(graph.build())


def test_no_run_beats_the_bound() -> None:
    for seed in range(1000):
        graph = graph_of(seed, shared=seed % 2 == 0)
        assert run_tasks(graph).seconds >= lower_bound_seconds(graph) - 1e-7


def test_what_a_task_waited_for_ends_when_it_starts() -> None:
    for seed in range(200):
        times = run_tasks(graph_of(seed, shared=False))
        for task, cause in enumerate(times.cause):
            if cause >= 0:
                assert times.finish[cause] <= times.start[task]


def test_tasks_that_wait_for_themselves_are_named() -> None:
    graph = TaskGraphBuilder()
    compute = graph.stream("compute")
    graph.add("first", "forward", compute, 1.0)
    graph.add("second", "forward", compute, 1.0, after=[0, 2])
    graph.add("third", "forward", compute, 1.0, after=[1])
    with pytest.raises(InputError, match="found second after third after second"):
        run_tasks(graph.build())
    with pytest.raises(InputError, match="second after third after second"):
        lower_bound_seconds(graph.build())


@pytest.mark.parametrize(
    ("seconds", "after", "words"),
    [
        (-1.0, [], "found -1.0 for bad"),
        (float("nan"), [], "found nan for bad"),
        (1.0, [7], "tasks below 1, found 7"),
    ],
)
def test_a_task_that_cannot_be(seconds: float, after: list[int], words: str) -> None:
    graph = TaskGraphBuilder()
    graph.add("bad", "forward", graph.stream("compute"), seconds, after=after)
    with pytest.raises(InputError, match=words):
        graph.build()


def test_nothing_takes_no_time() -> None:
    empty = TaskGraphBuilder().build()
    assert run_tasks(empty).seconds == lower_bound_seconds(empty) == 0.0


def test_of_a_long_circle_some_tasks_are_named() -> None:
    graph = TaskGraphBuilder()
    stream = graph.stream("one")
    for task in range(100):
        graph.add(f"t{task}", "forward", stream, 1.0, after=[(task + 1) % 100])
    with pytest.raises(
        InputError, match=r"found t0 after t1 .*after 89 others after .* after t99 after t0\.$"
    ) as found:
        run_tasks(graph.build())
    assert len(str(found.value)) < 250


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for found in partitions(rest):
        yield [[first], *found]
        for place in range(len(found)):
            yield [*found[:place], [first, *found[place]], *found[place + 1 :]]


def by_brute_force(workload: LayerWorkload, barrier: bool) -> float:
    layers = range(workload.layers)
    done = [sum(workload.backward[layer:]) for layer in layers]
    best = float("inf")
    for groups in partitions(layers):
        for order in itertools.permutations(groups):
            free, ends = 0.0, [0.0] * workload.layers
            for group in order:
                free = max(free, *(done[layer] for layer in group))
                free += workload.message(sum(workload.bytes[layer] for layer in group))
                for layer in group:
                    ends[layer] = free
            at = sum(workload.backward)
            for layer in layers:
                at = max(at, max(ends) if barrier else ends[layer]) + workload.forward[layer]
            best = min(best, at)
    return best


def random_workload(number: int, most: int = 5) -> LayerWorkload:
    draw = random.Random(number)
    layers = draw.randint(1, most)
    return workload_of(
        tuple(draw.randint(0, 4) for _ in range(layers)),
        tuple(draw.randint(0, 6) for _ in range(layers)),
        tuple(draw.randint(1, 9) for _ in range(layers)),
        rate=draw.choice([0.5, 1.0, 2.0]),
        message=draw.choice([0.0, 0.5, 1.0]),
    )


@pytest.mark.parametrize("barrier", [False, True])
def test_equals_brute_force(barrier: bool) -> None:
    for number in range(150):
        workload = random_workload(number)
        found = optimal_messages(workload, barrier=barrier)
        assert found.seconds == by_brute_force(workload, barrier), number
        assert sorted(layer for message in found.messages for layer in message) == list(
            range(workload.layers)
        )


def test_golden_of_tensor_fusion() -> None:
    """Six layers with messages that cost 0.6 s by themselves: 14.7 s is the least that fusion reaches."""
    six = workload_of((1,) * 6, (1,) * 6, (0.5, 0.1, 0.1, 2, 0.2, 3), message=0.6)
    assert optimal_messages(six, barrier=True).seconds == pytest.approx(14.7)


def test_between_the_bound_and_the_policies() -> None:
    for number in range(150):
        workload = random_workload(number, most=7)
        optimum = optimal_messages(workload)
        assert optimum.seconds >= workload.lower_bound_seconds() - 1e-9
        stepping_once = optimal_messages(workload, barrier=True)
        assert stepping_once.seconds >= optimum.seconds
        for policy in ("serial", "wfbp", "ddp"):
            assert predict(workload, policy).iteration_seconds >= stepping_once.seconds - 1e-6


def test_parts_never_hurt() -> None:
    for number in range(40):
        workload = random_workload(number, most=4)
        whole, halves = (optimal_messages(workload, parts=parts).seconds for parts in (1, 2))
        assert workload.lower_bound_seconds() - 1e-9 <= halves <= whole


def test_too_large() -> None:
    many = LayerWorkload(forward=(1,) * 13, backward=(1,) * 13, bytes=(1,) * 13, bytes_per_second=1.0)
    with pytest.raises(InputError, match=f"of 1 to {MOST_ITEMS}, found 13 layers and 1 parts"):
        optimal_messages(many)
