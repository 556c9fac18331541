"""Tasks of plans, made natively, beside the same rules written down operation by operation."""

from __future__ import annotations

import random

import numpy as np
import pytest

from coppice import _core
from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationChoice,
    OperationGraph,
    WholePlan,
)
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder, run_tasks


def readable_tasks(graph: OperationGraph, plan: WholePlan) -> TaskGraph:
    """The tasks of a plan, one by one."""
    built = TaskGraphBuilder()
    choices = [
        plan.choices.get(each.decision, OperationChoice()) if each.decision else OperationChoice()
        for each in graph.operations
    ]
    ends: list[list[int]] = []  # per operation: the last task of each piece, and that of all
    first = 0
    for each, choice in zip(graph.operations, choices, strict=True):
        length = len(list(graph.phases(each, plan)))
        own = [first + (piece + 1) * length - 1 for piece in range(choice.pieces)]
        own.append(own[-1] + (choice.pieces > 1))
        ends.append(own)
        first = own[-1] + 1
    for each, choice in zip(graph.operations, choices, strict=True):
        row = list(graph.phases(each, plan))
        rank = plan.ranks.get(each.decision, each.priority) if each.decision else each.priority
        for piece in range(choice.pieces):
            before = []
            for other in each.after:
                there = graph.operations[other]
                alike = each.group and each.group == there.group and choices[other].pieces == choice.pieces
                before.append(ends[other][piece if alike else -1])
            for phase, name in row:
                channel = graph.channels[name]
                title = each.name if len(row) == 1 else f"{each.name}: {phase.kind}"
                before = [
                    built.add(
                        title if choice.pieces == 1 else f"{title} ({piece + 1} of {choice.pieces})",
                        phase.kind,
                        -1 if channel.parallel else built.stream(name),
                        phase.starts * channel.start_seconds
                        + phase.amount / choice.pieces / channel.units_per_second,
                        after=before,
                        priority=rank,
                        loads=channel.loads,
                    )
                ]
        if choice.pieces > 1:
            built.barrier(each.name, ends[graph.operations.index(each)][:-1])
    return built.build()


def some_graph(draw: random.Random) -> OperationGraph:
    """Operations in groups and alone, in one or more decompositions, on channels that share links."""
    channels = {
        "device": Channel(),
        "fast": Channel(units_per_second=4, start_seconds=0.05, loads={"link": 0.75}),
        "slow": Channel(start_seconds=0.1, loads={"link": 0.5, "host": 1.0}),
        "free": Channel(parallel=True),
    }

    def phase(*names: str) -> CollectivePhase:
        return CollectivePhase(
            kind=draw.choice(["sum", "send"]),
            amount=draw.choice([0, 1, 3]),
            channels=names,
            starts=draw.randint(0, 3),
        )

    operations = []
    for number in range(draw.randint(1, 12)):
        before = tuple(other for other in range(number) if draw.random() < 0.3)
        decision = draw.choice(["", "a", "b", "c"])
        some = [("device",), ("fast", "slow"), ("slow",), ("slow", "device", "fast")]
        if not decision:
            some.append(("free",))
        decompositions = tuple(
            tuple(phase(*draw.choice(some)) for _ in range(draw.randint(1, 3)))
            for _ in range(draw.randint(1, 3))
        )
        operations.append(
            GraphOperation(
                name=f"operation {number}",
                decompositions=decompositions,
                after=before,
                decision=decision,
                group=draw.choice(["", "x", "y"]),
                priority=draw.randint(-1, 2),
            )
        )
    return OperationGraph(operations=tuple(operations), channels=channels)


def some_plan(draw: random.Random) -> WholePlan:
    return WholePlan(
        choices={
            name: OperationChoice(
                pieces=draw.choice([1, 2, 3, 8]),
                decomposition=draw.randrange(4),
                channels=tuple(draw.randrange(4) for _ in range(draw.randrange(5))),
            )
            for name in "abcd"
            if draw.random() < 0.7
        },
        ranks={name: draw.randint(-3, 3) for name in "abcd" if draw.random() < 0.6},
    )


def test_tasks_of_plans_are_those_of_the_rules() -> None:
    draw = random.Random(1)
    for _ in range(60):
        graph = some_graph(draw)
        for _ in range(4):
            plan = some_plan(draw)
            found, wanted = graph.task_graph(plan), readable_tasks(graph, plan)
            assert list(found.names) == list(wanted.names)
            assert found.names[-2:] == list(wanted.names[-2:])
            for column in ("seconds", "priority", "after_start", "after", "load_start", "load"):
                assert getattr(found, column).tolist() == getattr(wanted, column).tolist()
            for names, column in (("kind_names", "kinds"), ("streams", "stream"), ("links", "load_link")):
                rows = [
                    [(*getattr(each, names), "")[number] for number in getattr(each, column)]
                    for each in (found, wanted)
                ]
                assert rows[0] == rows[1]
            assert graph.seconds(plan) == run_tasks(wanted).seconds


def test_plans_and_times_that_cannot_be() -> None:
    def graph(amount: float) -> OperationGraph:
        work = CollectivePhase(kind="sum", amount=amount, channels=("NIC",))
        operation = GraphOperation(name="sums", decompositions=((work,),), decision="a")
        return OperationGraph(operations=(operation,), channels={"NIC": Channel()})

    with pytest.raises(InputError, match="a plan that cuts a in 1 piece or more, found 0"):
        graph(1).seconds(WholePlan(choices={"a": OperationChoice(pieces=0)}))
    with pytest.raises(InputError, match=r"0 or more seconds, found -1\.0 for sums"):
        graph(-1).seconds()
    assert OperationGraph(operations=(), channels={}).seconds() == 0.0


def test_native_tasks_refuse_what_points_outside() -> None:
    given = {
        "stream": np.array([0, 0], dtype=np.int32),
        "seconds": np.ones(2),
        "priority": np.zeros(2, dtype=np.int64),
        "after_start": np.array([0, 0, 1]),
        "after": np.array([0], dtype=np.int32),
        "load_start": np.array([0, 0, 1]),
        "load_link": np.array([0], dtype=np.int32),
        "load": np.ones(1),
        "num_streams": 1,
        "num_links": 1,
        "window": np.array([0, 0], dtype=np.int32),
        "window_bytes": np.ones(2),
        "returns": np.array([0, 1], dtype=np.int32),
        "credit": np.ones(1),
    }
    assert _core.run_tasks(**given)[3] == 2  # type: ignore[arg-type]
    for name in ("stream", "after", "load_link", "window", "returns"):
        for wrong in (-(2**31), -2, 2, 40, 2**31 - 1):
            if name == "returns" and wrong < 0:
                continue  # none
            column = given[name].copy()  # type: ignore[attr-defined]
            column[-1] = wrong
            with pytest.raises(ValueError, match=r"no such|credit comes back"):
                _core.run_tasks(**(given | {name: column}))  # type: ignore[arg-type]
    for name in ("seconds", "priority", "after_start", "after", "load_start", "load", "window", "returns"):
        with pytest.raises(ValueError, match="differ in length"):
            _core.run_tasks(**(given | {name: given[name][:-1]}))  # type: ignore[index, arg-type]
    for name in ("num_streams", "num_links"):
        with pytest.raises(ValueError, match="fewer than no"):
            _core.run_tasks(**(given | {name: -1}))  # type: ignore[arg-type]
