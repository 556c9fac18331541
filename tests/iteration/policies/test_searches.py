"""What policies search for, against all there is: on small random cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.fusion import communication_end, gradient_times
from coppice.iteration.policies.data_parallel.pace import (
    Preemptive,
    due_dates,
    fuse_tensors,
)
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.tictac import (
    TransferGraph,
    tac_order,
    tic_priorities,
)
from coppice.iteration.policies.data_parallel.tuning import minimize_by_expected_improvement, policy_seconds
from coppice.iteration.step.workloads import steady_iteration
from iteration.policies.workloads import (
    SIX,
    THREE,
    VGG_LIKE,
    alike,
    random_workload,
    seconds,
    ten,
    workload_of,
)
from reference.policies import earliest_due_date, greatest_lateness, order_efficiency, order_seconds


def cuts(layers: int) -> Iterator[list[list[int]]]:
    """All cuts of the order of the backward pass into groups."""
    order = list(reversed(range(layers)))
    for marks in itertools.product([False, True], repeat=layers - 1):
        groups = [[order[0]]]
        for layer, new in zip(order[1:], marks, strict=True):
            if new:
                groups.append([])
            groups[-1].append(layer)
        yield groups


def test_fusion_by_dynamic_programming_is_the_best_of_all_cuts() -> None:
    draw = random.Random(7)
    better = 0
    for case in range(300):
        work = random_workload(draw, most=10 if case % 10 == 0 else 7)
        best = min(communication_end(work, groups) for groups in cuts(work.layers))
        assert communication_end(work, fuse_tensors(work)) == pytest.approx(best, abs=1e-12)
        better += best < communication_end(work, [[layer] for layer in reversed(range(work.layers))]) - 1e-9
    assert better > 50


def test_the_end_of_communication_is_what_is_simulated() -> None:
    draw = random.Random(8)
    for _ in range(100):
        work = replace(random_workload(draw), inputs=())
        end = communication_end(work, fuse_tensors(work))
        found = seconds(work, "pace", fusion="end", update_scope="barrier")
        assert found == pytest.approx(sum(work.forward) + max(end, sum(work.backward)), abs=1e-7)
        merged = seconds(work, "mg-wfbp")
        assert merged >= found - 1e-7  # a heuristic of the same problem


class CutAsTold(Preemptive):
    """Groups that are given."""

    told: list[list[int]]

    def groups(self, workload: LayerWorkload) -> list[list[int]]:
        del workload
        return self.told


def test_fusion_by_schedule_is_close_to_the_best_of_all_cuts() -> None:
    draw = random.Random(9)
    ratios, gains = [], 0
    for _ in range(20):
        sizes = tuple(draw.choice([0.1, 0.2, 0.5, 1, 3]) for _ in range(6))
        work = alike(1, 1, sizes, draw.choice([0.3, 0.6, 1.0]))

        def of(groups: list[list[int]], work: LayerWorkload = work) -> float:
            each = CutAsTold(policy_named("pace").of(quantum_bytes=1).settings)
            each.told = groups
            return steady_iteration(lambda count: each.iterations(work, count)).seconds

        best = min(of(groups) for groups in cuts(work.layers))
        alone = of([[layer] for layer in reversed(range(work.layers))])
        found = seconds(work, "pace", quantum_bytes=1, fusion="schedule")
        assert best - 1e-7 <= found <= alone + 1e-7
        ratios.append(found / best)
        gains += best < alone - 1e-7
    assert gains > 3
    assert sum(ratio < 1 + 1e-7 for ratio in ratios) >= 19
    assert max(ratios) < 1.01


class FirstComeFirstServed(DataParallelPolicy):
    """Whole messages in the order of the backward pass, without a barrier."""

    name = "first come"
    about = "for the test"
    update_scope = UpdateScope.GROUP


def test_due_dates_lose_to_no_other_order_on_graphs() -> None:
    draw = random.Random(5)
    better = 0
    for _ in range(100):
        work = random_workload(draw, graph=True, free=True)
        if not max(work.bytes):
            continue
        quantum = max(work.bytes) / 20
        slack = quantum / work.bytes_per_second * work.layers
        found = seconds(work, "pace", quantum_bytes=quantum)
        by_layer = seconds(work, "priority", partition_bytes=quantum)
        in_turn = steady_iteration(partial(FirstComeFirstServed(None).iterations, work)).seconds
        assert found <= min(by_layer, in_turn) + slack
        better += found < by_layer - 1e-7
    assert better > 3


def test_earliest_due_date_is_the_least_late_of_all() -> None:
    draw = random.Random(10)
    for _ in range(400):
        jobs = draw.randint(1, 8)
        release = [Fraction(draw.randint(0, 12)) for _ in range(jobs)]
        work = [Fraction(draw.randint(1, 6), draw.choice([1, 2])) for _ in range(jobs)]
        due = [Fraction(draw.randint(0, 25)) for _ in range(jobs)]
        ends = earliest_due_date(release, work, due)
        late = max(Fraction(end) - by for end, by in zip(ends, due, strict=True))
        assert late == greatest_lateness(release, work, due)
        in_quanta = earliest_due_date(release, work, due, quantum=0.5)
        assert max(end - float(by) for end, by in zip(in_quanta, due, strict=True)) <= late + Fraction(1, 2)


def test_due_dates_in_small_quanta_are_the_best_of_all_orders_on_chains() -> None:
    draw = random.Random(11)
    for case in range(60):
        work = replace(random_workload(draw, most=4, free=True), inputs=())
        if not sum(work.bytes):
            continue
        quantum = max(work.bytes) / 40
        found = seconds(work, "pace", quantum_bytes=quantum)
        late = greatest_lateness(
            gradient_times(work),
            [size / work.bytes_per_second for size in work.bytes],
            [sum(work.backward) + due for due in due_dates(work)],
        )
        expected = max(work.compute_seconds + max(0.0, late), sum(work.bytes) / work.bytes_per_second)
        slack = quantum / work.bytes_per_second * (work.layers + 1)
        assert expected - 1e-7 <= found <= expected + slack + 1e-7, case


def test_due_dates_are_the_order_of_the_layers_on_chains() -> None:
    draw = random.Random(12)
    for _ in range(60):
        work = replace(random_workload(draw, most=6), inputs=())
        if max(work.bytes):
            found = seconds(work, "pace", quantum_bytes=max(work.bytes) / 3)
            assert found == seconds(work, "priority", partition_bytes=max(work.bytes) / 3)


def test_a_branch_that_is_needed_late_is_due_late() -> None:
    # Layer 1 is a short cut: its output is needed by layer 6 only, and its parameters are large.
    work = workload_of(
        (1, 1, 2, 2, 2, 2, 1),
        (1,) * 7,
        (1, 6, 2, 2, 2, 2, 1),
        inputs=((), (0,), (0,), (2,), (3,), (4,), (1, 5)),
    )
    assert due_dates(work) == [0, 9, 2, 4, 6, 8, 10]
    messages = policy_named("pace").of(quantum_bytes=1).messages(work)  # type: ignore[attr-defined]
    rank = {message.layers[0]: message.priority for message in messages}
    assert rank[1] > rank[5]
    assert seconds(work, "pace", quantum_bytes=0.5) == 19
    assert seconds(work, "priority", partition_bytes=0.5) == 23


def random_transfers(draw: random.Random, most: int) -> TransferGraph:
    receives = draw.randint(1, most)
    operations = draw.randint(1, 6)
    return TransferGraph(
        receives=tuple(float(draw.randint(1, 5)) for _ in range(receives)),
        operations=tuple(float(draw.randint(1, 6)) for _ in range(operations)),
        needs_receives=tuple(
            tuple(draw.sample(range(receives), draw.randint(0, min(2, receives)))) for _ in range(operations)
        ),
        needs_operations=tuple(
            tuple(draw.sample(range(number), draw.randint(0, min(2, number)))) for number in range(operations)
        ),
    )


def transfers_against_all(draw: random.Random, cases: int, most: int) -> None:
    ratios, below_median = [], 0
    for _ in range(cases):
        graph = random_transfers(draw, most)
        order = tac_order(graph)
        assert sorted(order) == list(range(len(graph.receives)))
        found = order_seconds(graph, order)
        every = sorted(
            order_seconds(graph, each) for each in itertools.permutations(range(len(graph.receives)))
        )
        assert every[0] - 1e-9 <= found <= every[-1] + 1e-9
        ratios.append(found / every[0])
        below_median += found <= every[len(every) // 2] + 1e-9
        least = max(sum(graph.receives), sum(graph.operations))
        assert order_efficiency(graph, least) == pytest.approx(1)
        rank = tic_priorities(graph)
        by_structure = order_seconds(graph, sorted(range(len(rank)), key=rank.__getitem__))
        assert every[0] - 1e-9 <= by_structure <= every[-1] + 1e-9
    assert sum(ratios) / cases < 1.02
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) > 0.75 * cases
    assert below_median > 0.95 * cases


def test_orders_of_transfers_against_all() -> None:
    transfers_against_all(random.Random(13), 100, 5)


@pytest.mark.slow
def test_orders_of_seven_transfers_against_all() -> None:
    transfers_against_all(random.Random(14), 200, 7)


def test_the_toy_of_the_paper() -> None:
    toy = TransferGraph(
        receives=(1, 3), operations=(5, 1), needs_receives=((0,), (1,)), needs_operations=((), ())
    )
    assert tac_order(toy) == [0, 1]
    assert [order_seconds(toy, order) for order in ([0, 1], [1, 0])] == [7, 9]
    assert [order_efficiency(toy, each) for each in (7, 9)] == [0.75, 0.25]
    swapped = TransferGraph(
        receives=(3, 1), operations=(1, 5), needs_receives=((0,), (1,)), needs_operations=((), ())
    )
    assert tac_order(swapped) == [1, 0]
    assert tic_priorities(toy) == [0, 0]


def test_transfers_on_a_chain_go_layer_by_layer() -> None:
    draw = random.Random(15)
    for _ in range(50):
        layers = draw.randint(1, 8)
        chain = TransferGraph(
            receives=tuple(draw.uniform(0.5, 3) for _ in range(layers)),
            operations=tuple(draw.uniform(0.5, 3) for _ in range(layers)),
            needs_receives=tuple((layer,) for layer in range(layers)),
            needs_operations=tuple((layer - 1,) if layer else () for layer in range(layers)),
        )
        assert tac_order(chain) == list(range(layers))


def test_no_order_of_transfers_beats_tac_on_chains() -> None:
    draw = random.Random(18)
    for _ in range(100):
        work = random_workload(draw)
        least = policy_named("tictac").of().lower_bound_seconds(work)
        assert seconds(work, "tictac") == pytest.approx(least, abs=1e-7)
        assert seconds(work, "tictac", order="backward") >= least - 1e-7


def test_transfers_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"expected operation 0 after .* found \[1\]"):
        TransferGraph(receives=(1,), operations=(1,), needs_receives=((1,),), needs_operations=((),))
    with pytest.raises(InputError, match="operation 0 after"):
        TransferGraph(receives=(1,), operations=(1,), needs_receives=((),), needs_operations=((0,),))
    with pytest.raises(InputError, match="each of 1 operations needs, found 0 and 1"):
        TransferGraph(receives=(1,), operations=(1,), needs_receives=(), needs_operations=((),))


def test_the_best_k_is_the_best_of_all() -> None:
    draw = random.Random(16)
    gains = 0
    for _ in range(120):
        work = replace(random_workload(draw, most=7), inputs=())
        every = [seconds(work, "ooo", k=k) for k in range(work.layers + 1)]
        found = policy_named("ooo").of().tune(work)
        assert seconds(work, "ooo", **found) == min(every)
        gains += min(every) < every[0] - 1e-7
    assert gains > 5
    with pytest.raises(InputError, match="expected `k` at most 3"):
        seconds(THREE, "ooo", k=4)


def test_a_layer_whose_halves_cannot_be_told_apart_is_not_delayed() -> None:
    work = replace(THREE, separable=(True, False, True))
    passes = policy_named("ooo").of(k=2).backward(work)
    assert [(each.work.value, each.layer) for each in passes] == [
        ("I", 2),
        ("W", 2),
        ("B", 1),
        ("I", 0),
        ("W", 0),
    ]


@pytest.mark.parametrize("policy", ["ddp", "gradientflow", "jia"])
@pytest.mark.spread(2)
def test_tuned_sizes_are_close_to_the_best_of_all_cuts(policy: str) -> None:
    draw = random.Random(17)
    ratios = []
    for _ in range(100):
        work = replace(random_workload(draw, most=7), inputs=(), dtypes=())
        best = sum(work.forward) + max(
            sum(work.backward), min(communication_end(work, groups) for groups in cuts(work.layers))
        )
        made = policy_named(policy).of()
        found = policy_seconds(made, work, made.tune(work))
        assert best - 1e-7 <= found <= policy_seconds(made, work, {}) + 1e-7
        ratios.append(found / best if best else 1.0)
    assert sum(ratios) / len(ratios) < 1.05


@pytest.mark.parametrize("policy", ["bytescheduler", "dear"])
@pytest.mark.parametrize(
    "work", [ten(3, 0.05), VGG_LIKE, SIX, alike(1, 2, (3,) * 8, 0.1, round_trip_seconds=0.5)]
)
@pytest.mark.spread(3)
def test_bayesian_tuning_is_close_to_the_best_of_the_grid(policy: str, work: LayerWorkload) -> None:
    made = policy_named(policy).of()
    found = policy_seconds(made, work, made.tune(work))
    best = min(policy_seconds(made, work, each) for each in choices_of(policy, work))
    assert best - 1e-7 <= found <= best * 1.05
    assert made.tune(work) == made.tune(work)


def choices_of(policy: str, work: LayerWorkload) -> list[dict[str, Any]]:
    """The grid that a policy tunes on."""
    largest, whole = max(work.bytes), sum(work.bytes)
    if policy == "dear":
        return [{"threshold_bytes": float(size)} for size in np.geomspace(whole / 256, whole, 64)]
    return [
        {"partition_bytes": float(size), "credit_bytes": float(size * room)}
        for size in np.geomspace(largest / 64, largest, 12)
        for room in (1, 2, 3, 4, 8, 16)
    ]


def bayesian_tuning_against_all(policy: str, cases: int) -> None:
    draw = random.Random(19)
    made = policy_named(policy).of()
    ratios = []
    while len(ratios) < cases:
        work = random_workload(draw, most=5)
        if not max(work.bytes):
            continue
        best = min(policy_seconds(made, work, each) for each in choices_of(policy, work))
        ratios.append(policy_seconds(made, work, made.tune(work)) / best)
    assert sum(ratios) / cases < 1.01
    assert sum(ratio < 1.02 for ratio in ratios) > 0.85 * cases


@pytest.mark.parametrize("policy", ["bytescheduler", "dear"])
def test_bayesian_tuning_against_all(policy: str) -> None:
    bayesian_tuning_against_all(policy, 8)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bytescheduler", "dear"])
def test_bayesian_tuning_against_all_on_many(policy: str) -> None:
    bayesian_tuning_against_all(policy, 200)


def test_expected_improvement_beats_chance() -> None:
    line = np.linspace(0, 1, 201)[:, None]
    by_chance, by_search = [], []
    for seed in range(20):
        peak = np.random.default_rng(seed).uniform(0.1, 0.9)

        def objective(number: int, peak: float = peak) -> float:
            return float((line[number, 0] - peak) ** 2)

        tried = minimize_by_expected_improvement(objective, line, initial=3, trials=10, seed=seed)
        assert len(tried) == 10
        by_search.append(min(tried.values()))
        chance = minimize_by_expected_improvement(objective, line, initial=10, trials=10, seed=seed)
        by_chance.append(min(chance.values()))
    assert np.median(by_search) < np.median(by_chance) / 4


def test_a_search_that_may_try_all_finds_the_best() -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        values = draw.random(12)
        places = draw.random((12, 2))
        tried = minimize_by_expected_improvement(
            lambda k, v=values: float(v[k]), places, initial=3, trials=99
        )
        assert min(tried.values()) == values.min()
        assert len(tried) == 12


def test_layers_without_parameters_are_no_receives() -> None:
    """Both orders are those of the graph in which nothing but parameters is received, on random graphs."""
    numbers = random.Random(0)
    differs = 0
    for _ in range(200):
        layers = numbers.randint(4, 20)
        parents = [
            tuple(sorted(numbers.sample(range(k), min(k, numbers.randint(1, 3))))) for k in range(layers)
        ]
        sizes = [numbers.choice((0, 0, numbers.randint(1, 9))) for _ in range(layers - 1)] + [1]
        work = workload_of(
            tuple(float(numbers.randint(1, 9)) for _ in range(layers)),
            (1.0,) * layers,
            tuple(float(size) for size in sizes),
            message=0.5,
            workers=2,
            inputs=tuple(parents),
        )
        real = [layer for layer in range(layers) if sizes[layer]]
        alone = TransferGraph(
            receives=tuple(work.message(float(sizes[layer])) for layer in real),
            operations=work.forward,
            needs_receives=tuple((real.index(k),) if k in real else () for k in range(layers)),
            needs_operations=tuple(work.inputs_of(k) for k in range(layers)),
        )
        policy: Any = policy_named("tictac")
        ranks = policy.of(order="tac").priorities(work)
        assert sorted(real, key=ranks.__getitem__) == [real[place] for place in tac_order(alone)]
        levels = policy.of(order="tic").priorities(work)
        assert [levels[layer] for layer in real] == tic_priorities(alone)
        differs += len(real) < layers
    assert differs > 150
