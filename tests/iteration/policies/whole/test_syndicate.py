"""SYNDICATE: the described case, brute force on small cases, and what no plan may do on random ones."""

from __future__ import annotations

import itertools
import random

import pytest

from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import (
    MOVES,
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationChoice,
    OperationGraph,
    WholePlan,
)
from coppice.iteration.policies.whole.syndicate import Syndicate, search_plan
from coppice.iteration.tasks import run_tasks
from iteration.policies.whole.all_plans import least_seconds


def phase(kind: str, amount: float, *channels: str) -> CollectivePhase:
    return CollectivePhase(kind=kind, amount=amount, channels=channels)


def two_channels() -> OperationGraph:
    """A sum, and an exchange for which experts wait; flat across NICs, or in stages inside nodes and between them."""
    sums = (
        (phase("all_reduce", 8, "NIC"),),
        (
            phase("reduce_scatter", 8, "NVLink"),
            phase("all_reduce", 6, "NIC"),
            phase("all_gather", 8, "NVLink"),
        ),
    )
    exchange = (
        (phase("all_to_all", 6, "NIC"),),
        (phase("all_to_all", 6, "NVLink"), phase("all_to_all", 3, "NIC")),
    )
    return OperationGraph(
        operations=(
            GraphOperation(name="sum", decision="sum", decompositions=sums),
            GraphOperation(name="exchange", decision="exchange", decompositions=exchange),
            GraphOperation(name="experts", decompositions=((phase("forward", 4, "device"),),), after=(1,)),
        ),
        channels={
            "device": Channel(),
            "NIC": Channel(start_seconds=0.02),
            "NVLink": Channel(units_per_second=4, start_seconds=0.01),
        },
    )


def test_order_and_mapping_together_beat_each_alone() -> None:
    graph = two_channels()
    order = search_plan(graph, moves=("order",))
    mapping = search_plan(graph, moves=("pieces", "decomposition", "channel"))
    both = search_plan(graph)
    assert all(each.exact for each in (order, mapping, both))
    assert both.seconds < order.seconds - 0.5
    assert both.seconds < mapping.seconds - 0.5
    assert order.seconds < order.default_seconds
    assert mapping.seconds < mapping.default_seconds
    walked = search_plan(graph, budget=2000, walk=True)
    assert walked.seconds == pytest.approx(both.seconds, abs=1e-8)
    assert graph.seconds(Syndicate.of().plan(graph)) == pytest.approx(both.seconds, abs=1e-8)


@pytest.mark.parametrize("walk", [True, False])
def test_nothing_is_gained_from_one_collective_on_one_channel(walk: bool) -> None:
    graph = OperationGraph(
        operations=(
            GraphOperation(name="sum", decision="sum", decompositions=((phase("all_reduce", 8, "NIC"),),)),
        ),
        channels={"NIC": Channel(start_seconds=0.125)},
    )
    found = search_plan(graph, walk=walk)
    assert found.plan == WholePlan()
    assert found.seconds == found.default_seconds == 8.125
    assert found.exact


def some_graph(draw: random.Random, decisions: int, *, computes: int = 3) -> OperationGraph:
    """Collectives between computation on a device, two channels for each phase, up to two decompositions."""
    operations: list[GraphOperation] = []
    kinds = [True] * decisions + [False] * computes
    draw.shuffle(kinds)
    for number, collective in enumerate(kinds):
        before = [other for other in range(number) if draw.random() < 0.4]
        if not collective:
            work = phase("forward", draw.choice([0, 0.5, 1, 3]), "device")
            operations.append(
                GraphOperation(name=f"F{number}", decompositions=((work,),), after=tuple(before))
            )
            continue
        size = draw.choice([1, 2, 4, 8])
        both = draw.choice([("fast", "slow"), ("slow", "fast"), ("slow",)])
        decompositions = [(phase("all_reduce", size, *both),)]
        if draw.random() < 0.5:
            decompositions.append(
                (phase("reduce_scatter", size / 2, "fast"), phase("all_gather", size / 2, "slow"))
            )
        operations.append(
            GraphOperation(
                name=f"C{number}",
                decision=f"C{number}",
                decompositions=tuple(decompositions),
                after=tuple(before),
            )
        )
    channels = {
        "device": Channel(),
        "fast": Channel(units_per_second=4, start_seconds=draw.choice([0, 0.05])),
        "slow": Channel(start_seconds=draw.choice([0, 0.1])),
    }
    return OperationGraph(operations=tuple(operations), channels=channels)


def brute_force(graph: OperationGraph, pieces: tuple[int, ...]) -> float:
    """The least time of all plans."""
    known = graph.decisions()
    rows = [
        [
            OperationChoice(pieces=count, decomposition=decomposition, channels=channels)
            for count in pieces
            for decomposition, phases in enumerate(operation.decompositions)
            for channels in itertools.product(*(range(len(each.channels)) for each in phases))
        ]
        for operation in known.values()
    ]
    return least_seconds(graph, rows)


def check_brute_force(seed: int, cases: int, *, missed: float) -> None:
    draw = random.Random(seed)
    worse = 0
    for case in range(cases):
        graph = some_graph(draw, draw.randint(1, 2))
        least = brute_force(graph, (1, 2))
        exact = search_plan(graph, most_pieces=2, budget=10_000)
        assert exact.exact
        assert exact.seconds == pytest.approx(least, abs=1e-8)
        walked = search_plan(graph, most_pieces=2, budget=300, seed=case, walk=True)
        assert walked.seconds >= least - 1e-8
        worse += walked.seconds > least + 1e-8
    assert worse <= missed * cases


def test_searches_find_what_brute_force_finds() -> None:
    check_brute_force(1, 120, missed=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_searches_find_what_brute_force_finds(seed: int) -> None:
    check_brute_force(100 + seed, 200, missed=0.01)


def check_random(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for case in range(cases):
        graph = some_graph(draw, draw.randint(1, 5))
        found = search_plan(graph, budget=30, seed=case, walk=True)
        assert found == search_plan(graph, budget=30, seed=case, walk=True)
        assert graph.lower_bound_seconds() - 1e-8 <= found.seconds <= found.default_seconds + 1e-8
        tasks = graph.task_graph(found.plan)
        times = run_tasks(tasks)
        assert times.seconds == pytest.approx(found.seconds, abs=1e-8)
        # All bytes are sent once, on the channels of the decomposition that was taken.
        sent = dict.fromkeys(tasks.streams, 0.0)
        for task, stream in enumerate(tasks.stream):
            if stream >= 0:
                sent[tasks.streams[stream]] += float(tasks.seconds[task])
        wanted = dict.fromkeys(tasks.streams, 0.0)
        for each in graph.operations:
            pieces = found.plan.choices.get(each.decision, OperationChoice()).pieces
            for part, name in graph.phases(each, found.plan):
                channel = graph.channels[name]
                wanted[name] += part.amount / channel.units_per_second + pieces * channel.start_seconds
        assert sent == pytest.approx(wanted)
        # What an operation comes after is over before it starts.
        first, last = {}, {}
        for task, name in enumerate(tasks.names):
            operation = name.split(":")[0].split(" ")[0]
            first[operation] = min(first.get(operation, 1e9), times.start[task])
            last[operation] = max(last.get(operation, 0.0), times.finish[task])
        for each in graph.operations:
            for other in each.after:
                assert first[each.name] >= last[graph.operations[other].name] - 1e-9


def test_random_plans() -> None:
    check_random(3, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_plans(seed: int) -> None:
    check_random(100 + seed, 1000)


def test_free_communication_leaves_computation() -> None:
    draw = random.Random(5)
    for _ in range(100):
        graph = some_graph(draw, 3)
        free = OperationGraph(
            operations=graph.operations,
            channels={
                name: Channel() if name == "device" else Channel(units_per_second=1e30)
                for name in graph.channels
            },
        )
        computes = sum(each.decompositions[0][0].amount for each in graph.operations if not each.decision)
        assert free.seconds() == pytest.approx(computes, abs=1e-8)


def test_graphs_that_cannot_be() -> None:
    part = phase("all_reduce", 1, "NIC")
    with pytest.raises(
        InputError,
        match="expected decompositions of one phase or more for operation sum, found 0 decompositions",
    ):
        OperationGraph(operations=(GraphOperation(name="sum", decompositions=()),), channels={})
    with pytest.raises(InputError, match=r"that there are \(none\), found 'NIC'"):
        OperationGraph(operations=(GraphOperation(name="sum", decompositions=((part,),)),), channels={})
    with pytest.raises(InputError, match="after operations below 1, found 1"):
        OperationGraph(
            operations=(GraphOperation(name="sum", decompositions=((part,),), after=(1,)),),
            channels={"NIC": Channel()},
        )
    with pytest.raises(InputError, match="any number of things at once, found decision 'a'"):
        OperationGraph(
            operations=(GraphOperation(name="sum", decompositions=((part,),), decision="a"),),
            channels={"NIC": Channel(parallel=True)},
        )


def test_what_may_change_is_what_changes() -> None:
    graph = two_channels()
    assert not search_plan(graph, moves=("order",), budget=500, walk=True).plan.choices
    found = search_plan(graph, moves=("pieces",), budget=500, walk=True).plan
    assert not found.ranks
    assert all(each.decomposition == 0 and not each.channels for each in found.choices.values())
    assert set(MOVES) == {"pieces", "decomposition", "channel", "order"}
