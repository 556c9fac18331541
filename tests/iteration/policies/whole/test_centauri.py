"""Centauri: closed forms, partitions by groups, and what axes and tiers find beside brute force."""

from __future__ import annotations

import random

import pytest

from coppice.errors import InputError
from coppice.iteration.policies.whole.centauri import Centauri, path_tails, tiered_plan
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationChoice,
    OperationGraph,
    WholePlan,
)
from coppice.iteration.policies.whole.partition import (
    AXES,
    AXES_OF_LABEL,
    collective_decompositions,
)
from iteration.policies.whole.all_plans import least_seconds
from reference.policies import best_pieces, pieces_seconds


def test_exact_times_of_pieces() -> None:
    assert [pieces_seconds(8.0, 16.0, 0.125, pieces) for pieces in (1, 8, 32)] == [24.125, 18.0, 20.25]
    assert best_pieces(8.0, 16.0, 0.125) == 8
    assert best_pieces(8.0, 16.0, 0.0, most=64) == 64
    with pytest.raises(InputError, match=r"found -1\.0, 1\.0, 1\.0"):
        best_pieces(-1.0, 1.0, 1.0)


@pytest.mark.parametrize("pieces", [1, 2, 4, 8, 16, 32])
def test_tasks_in_pieces_take_what_the_formula_says(pieces: int) -> None:
    for compute, send in ((8.0, 16.0), (16.0, 8.0), (1.0, 1.0)):
        work = CollectivePhase(kind="forward", amount=compute, channels=("device",))
        sums = CollectivePhase(kind="all_reduce", amount=send, channels=("NIC",))
        given = {"decision": "sum", "group": "sum"}
        graph = OperationGraph(
            operations=(
                GraphOperation(name="layer", decompositions=((work,),), **given),
                GraphOperation(name="sum", decompositions=((sums,),), after=(0,), **given),
            ),
            channels={"device": Channel(), "NIC": Channel(start_seconds=0.125)},
        )
        found = graph.seconds(WholePlan(choices={"sum": OperationChoice(pieces=pieces)}))
        assert found == pytest.approx(pieces_seconds(compute, send, 0.125, pieces), abs=1e-8)


def check_pieces(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        compute, send = draw.uniform(0, 20), draw.uniform(0, 20)
        start, most = draw.choice([0, 0.01, 0.3, 2]), draw.choice([1, 7, 64])
        found = best_pieces(compute, send, start, most=most)
        least = min(pieces_seconds(compute, send, start, pieces) for pieces in range(1, most + 1))
        assert pieces_seconds(compute, send, start, found) == pytest.approx(least, rel=1e-12)


def test_the_best_number_of_pieces() -> None:
    check_pieces(1, 500)


@pytest.mark.slow
def test_the_best_number_of_many_pieces() -> None:
    check_pieces(2, 20_000)


@pytest.mark.parametrize("nodes", [2, 4, 16])
@pytest.mark.parametrize("ranks", [2, 8])
def test_groups_follow_the_formulas(nodes: int, ranks: int) -> None:
    size, inside, between, hop = 64.0, 8.0, 1.0, 0.01

    def seconds(phase: CollectivePhase) -> float:
        return phase.amount / (inside if phase.channels == ("NVLink",) else between) + hop * phase.starts

    def of(collective: str, label: str) -> tuple[CollectivePhase, ...]:
        decompositions, labels = collective_decompositions(collective, size, nodes=nodes, ranks_of_node=ranks)
        return decompositions[labels.index(label)]

    far = size * (nodes - 1) / (nodes * ranks * between) + hop * (nodes - 1)
    near = size * (ranks - 1) / (ranks * inside) + hop * (ranks - 1)
    assert [seconds(each) for each in of("all_gather", "grouped")] == pytest.approx([far, near])
    assert [seconds(each) for each in of("reduce_scatter", "grouped")] == pytest.approx([near, far])
    assert [seconds(each) for each in of("all_reduce", "grouped")] == pytest.approx([near, 2 * far, near])
    both = of("all_reduce", "substituted and grouped")
    assert [seconds(each) for each in both] == pytest.approx([near, far, far, near])
    flat = size * (nodes * ranks - 1) / (nodes * ranks * between) + hop * (nodes * ranks - 1)
    assert seconds(*of("all_gather", "plain")) == pytest.approx(flat)
    assert sum(map(seconds, of("all_reduce", "substituted"))) == pytest.approx(2 * flat)
    # An exchange between nodes carries what leaves the node, whatever the decomposition.
    for label in ("plain", "grouped", "substituted"):
        sent = sum(each.amount for each in of("all_to_all", label) if each.channels == ("NIC",))
        assert sent == pytest.approx(size * (nodes - 1) / nodes)


def test_groups_that_cannot_be() -> None:
    with pytest.raises(InputError, match="a group of two ranks or more, found 1 nodes of 1"):
        collective_decompositions("all_reduce", 1.0, nodes=1, ranks_of_node=1)
    with pytest.raises(InputError, match="found 'gather'"):
        collective_decompositions("gather", 1.0, nodes=1, ranks_of_node=2)
    decompositions, labels = collective_decompositions("all_reduce", 8.0, nodes=1, ranks_of_node=4)
    assert labels == ("plain", "substituted")
    assert {phase.channels for decomposition in decompositions for phase in decomposition} == {("NVLink",)}
    assert collective_decompositions("all_reduce", 8.0, nodes=4, ranks_of_node=4, axes=())[1] == ("plain",)


def some_step(draw: random.Random, layers: int) -> OperationGraph:
    """Layers of a backward pass: gradients, a collective of them beside the next layer, and a sum on the way."""
    operations: list[GraphOperation] = []
    before: tuple[int, ...] = ()
    for layer in range(layers):
        where = f"layer {layer}"
        work = CollectivePhase(kind="backward", amount=draw.choice([0.5, 1, 3]), channels=("device",))
        blocking = draw.random() < 0.5
        name = f"C{layer}"
        operations.append(
            GraphOperation(
                name=f"B{layer}",
                decompositions=((work,),),
                after=before,
                layer=where,
                decision=name if blocking else "",
                group=name if blocking else "",
            )
        )
        own = len(operations) - 1
        kind = draw.choice(["all_reduce", "all_gather", "all_to_all"])
        decompositions, labels = collective_decompositions(
            kind, draw.choice([1.0, 4.0]), nodes=2, ranks_of_node=2
        )
        operations.append(
            GraphOperation(
                name=name,
                decompositions=decompositions,
                labels=labels,
                after=(own,),
                decision=name,
                group=name if blocking else "",
                layer=where,
            )
        )
        before = (own + 1,) if blocking else (own,)
    channels = {
        "device": Channel(),
        "NIC": Channel(start_seconds=draw.choice([0, 0.05])),
        "NVLink": Channel(units_per_second=4, start_seconds=draw.choice([0, 0.01])),
    }
    return OperationGraph(operations=tuple(operations), channels=channels)


def brute_force(graph: OperationGraph, axes: frozenset[str], pieces: tuple[int, ...]) -> float:
    """The least time of all plans along some axes."""
    known = graph.decisions()
    rows = [
        [
            OperationChoice(pieces=count, decomposition=decomposition)
            for decomposition, label in enumerate(operation.labels)
            if AXES_OF_LABEL[label] <= axes
            for count in (pieces if "workload" in axes else (1,))
        ]
        for operation in known.values()
    ]
    return least_seconds(graph, rows)


def check_brute_force(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    missed = 0
    for _ in range(cases):
        graph = some_step(draw, draw.randint(1, 2))
        least = brute_force(graph, frozenset(AXES), (1, 2, 4))
        assert graph.seconds(tiered_plan(graph, most_pieces=4)) == pytest.approx(least, abs=1e-8)
        # The same by tiers, without trying all.
        tiers = graph.seconds(tiered_plan(graph, most_pieces=4, budget=100))
        assert tiers >= least - 1e-8
        missed += tiers > least + 1e-8
        for axis in AXES:
            alone = graph.seconds(tiered_plan(graph, axes=(axis,), most_pieces=4))
            assert alone >= brute_force(graph, frozenset({axis}), (1, 2, 4)) - 1e-8
    assert missed <= 0.05 * cases


def test_tiers_find_what_brute_force_finds() -> None:
    check_brute_force(3, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_tiers_find_what_brute_force_finds_often(seed: int) -> None:
    check_brute_force(100 + seed, 100)


def check_random(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        graph = some_step(draw, draw.randint(1, 4))
        plan = tiered_plan(graph, most_pieces=4, budget=100)
        assert plan == tiered_plan(graph, most_pieces=4, budget=100)
        found = graph.seconds(plan)
        assert graph.lower_bound_seconds() - 1e-8 <= found <= graph.seconds() + 1e-8
        for axis in AXES:
            alone = graph.seconds(tiered_plan(graph, axes=(axis,), most_pieces=4, budget=100))
            assert found <= alone + 1e-8
        times = [
            graph.seconds(tiered_plan(graph, tiers=tiers, most_pieces=4, budget=100)) for tiers in (1, 2, 3)
        ]
        assert times == sorted(times, reverse=True)


def test_more_to_choose_from_never_takes_longer() -> None:
    check_random(5, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_more_to_choose_from_never_takes_longer_often(seed: int) -> None:
    check_random(100 + seed, 75)


def test_the_three_axes_together() -> None:
    decompositions, labels = collective_decompositions("all_reduce", 16.0, nodes=4, ranks_of_node=4)
    work = CollectivePhase(kind="backward", amount=12.0, channels=("device",))
    given = {"decision": "sum", "group": "sum"}
    graph = OperationGraph(
        operations=(
            GraphOperation(name="layer", decompositions=((work,),), **given),
            GraphOperation(name="sum", decompositions=decompositions, labels=labels, after=(0,), **given),
        ),
        channels={
            "device": Channel(),
            "NIC": Channel(start_seconds=0.01),
            "NVLink": Channel(units_per_second=4, start_seconds=0.01),
        },
    )
    alone = {axis: graph.seconds(tiered_plan(graph, axes=(axis,))) for axis in AXES}
    together = graph.seconds(Centauri.of().plan(graph))
    assert together < min(alone.values()) - 1
    assert alone["group"] < graph.seconds() - 10


def test_paths_are_those_of_operations() -> None:
    graph = some_step(random.Random(9), 3)
    tails = path_tails(graph)
    assert max(tails) >= max(
        sum(phase.amount for phase in each.decompositions[0])
        for each in graph.operations
        if not each.decision
    )
    for number, each in enumerate(graph.operations):
        assert all(tails[other] >= tails[number] for other in each.after)
