"""Lina: exact times of the small case, pieces of tokens by their formula, packing, popularity and placement."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from coppice.errors import InputError
from coppice.iteration.policies.whole.lina import Lina, packed_experts, remote_share
from coppice.iteration.policies.whole.lina_inference import PathPopularity, place_experts, second_phase
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationChoice,
    OperationGraph,
    WholePlan,
)
from coppice.iteration.tasks import run_tasks


def operation(
    name: str,
    kind: str,
    amount: float,
    channel: str,
    after: tuple[int, ...] = (),
    *,
    decision: str = "",
    group: str = "",
) -> GraphOperation:
    phase = CollectivePhase(kind=kind, amount=amount, channels=(channel,))
    return GraphOperation(name=name, decompositions=((phase,),), after=after, decision=decision, group=group)


def late_exchange() -> OperationGraph:
    """A sum of 12 s is there from the start, an exchange of 2 s after 1 s, computation of 3 s after it."""
    return OperationGraph(
        operations=(
            operation("sum", "all_reduce", 12, "network", decision="sum"),
            operation("gate", "backward", 1, "device"),
            operation("exchange", "all_to_all", 2, "network", (1,), decision="exchange"),
            operation("experts", "backward", 3, "device", (2,)),
        ),
        channels={"device": Channel(), "network": Channel()},
    )


@pytest.mark.parametrize(("micro", "computed", "summed"), [(12, 17, 12), (6, 11, 14), (3, 8, 14), (1, 6, 14)])
def test_exact_times(micro: float, computed: float, summed: float) -> None:
    graph = late_exchange()
    tasks = graph.task_graph(Lina.of(micro_bytes=micro, token_pieces=1).plan(graph))
    times = run_tasks(tasks)
    ends = {tasks.kind_names[kind]: 0.0 for kind in tasks.kinds}
    for task, kind in enumerate(tasks.kinds):
        name = tasks.kind_names[kind]
        ends[name] = max(ends[name], float(times.finish[task]))
    assert ends["backward"] == pytest.approx(computed, abs=1e-8)
    assert ends["all_reduce"] == pytest.approx(summed, abs=1e-8)


@pytest.mark.parametrize("micro", [0.5, 1, 4])
def test_an_exchange_waits_for_one_micro_operation(micro: float) -> None:
    exchange, sums = 8.0, 100.0
    shared = {name: Channel(loads={"link": 1.0}) for name in ("network of exchanges", "network of sums")}
    plain = OperationGraph(
        operations=(
            operation("sum", "all_reduce", sums, "network of sums"),
            operation("exchange", "all_to_all", exchange, "network of exchanges"),
        ),
        channels=shared,
    )
    assert run_tasks(plain.task_graph()).finish[1] == pytest.approx(2 * exchange, abs=1e-8)
    graph = OperationGraph(
        operations=(
            operation("sum", "all_reduce", sums, "network", decision="sum"),
            operation("gate", "backward", 0.3, "device"),
            operation("exchange", "all_to_all", exchange, "network", (1,), decision="exchange"),
        ),
        channels={"device": Channel(), "network": Channel()},
    )
    tasks = graph.task_graph(Lina.of(micro_bytes=micro, token_pieces=1).plan(graph))
    end = run_tasks(tasks).finish[[tasks.kind_names[kind] for kind in tasks.kinds].index("all_to_all")]
    assert end <= 0.3 + exchange + micro + 1e-8


def experts(exchange: float, computes: float) -> OperationGraph:
    given = {"decision": "tokens", "group": "tokens"}
    return OperationGraph(
        operations=(
            operation("dispatch", "all_to_all", exchange, "network", **given),  # type: ignore[arg-type]
            operation("experts", "forward", computes, "device", (0,), **given),  # type: ignore[arg-type]
            operation("combine", "all_to_all", exchange, "network", (1,), **given),  # type: ignore[arg-type]
        ),
        channels={"device": Channel(), "network": Channel()},
    )


@pytest.mark.parametrize("computes", [0, 0.5, 1, 1.5, 2, 3, 10])
@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 8])
def test_pieces_of_tokens_follow_the_formula(computes: float, pieces: int) -> None:
    exchange = 2.0
    graph = experts(exchange, computes)
    found = graph.seconds(Lina.of(token_pieces=pieces).plan(graph))
    expected = max(2 * exchange, computes + 2 * exchange / pieces) if pieces > 1 else 2 * exchange + computes
    assert found == pytest.approx(expected, abs=1e-8)
    assert found >= graph.lower_bound_seconds() - 1e-8


def test_the_number_of_pieces_is_searched() -> None:
    graph = experts(2, 8)
    costly = OperationGraph(
        operations=graph.operations, channels={"device": Channel(), "network": Channel(start_seconds=0.4)}
    )
    for each in (graph, costly):
        best = min(each.seconds(Lina.of(token_pieces=pieces).plan(each)) for pieces in (1, 2, 4, 8))
        assert each.seconds(Lina.of().plan(each)) == best
    assert Lina.of().plan(graph).choices["tokens"].pieces == 8
    assert Lina.of().plan(costly).choices["tokens"].pieces < 8


def test_experts_are_packed_until_they_take_longer() -> None:
    for slow, memory in itertools.product((0.1, 1, 1.5, 3, 20), (1, 2, 3, 8)):
        found = packed_experts(
            8,
            expert_seconds=lambda count, slow=slow: slow * count,  # type: ignore[misc]
            exchange_seconds=lambda count: 8 * remote_share(8, count),
            fits=lambda count, memory=memory: count <= memory,  # type: ignore[misc]
        )
        assert found <= memory
        before = [count for count in (1, 2, 4) if count < found]
        assert all(slow * count < 8 * remote_share(8, count) for count in before)
        stopped = slow * found >= 8 * remote_share(8, found) or 2 * found > min(memory, 8)
        assert stopped
    with pytest.raises(InputError, match="of which one fits a device"):
        packed_experts(8, expert_seconds=float, exchange_seconds=float, fits=lambda count: count > 1)


def test_popularity_of_paths() -> None:
    table = PathPopularity(experts=4)
    draw = random.Random(1)
    # The expert is known from the last three layers, and not from the last one.
    for _ in range(200):
        token = [draw.randrange(4) for _ in range(3)]
        table.observe([*token, (token[0] + token[2]) % 4])
    paths = [(one, 0, two) for one in range(4) for two in range(4)]
    estimate = table.estimate([path for path in paths if sum(path) % 4 == 1])
    assert estimate == [0, 4, 0, 0]
    short = PathPopularity(experts=4, length=1)
    assert short.estimate([(0,)]) == [Fraction(1, 4)] * 4
    short.observe((2, 3))
    short.observe((2, 1))
    assert short.estimate([(0, 2), (1, 2)]) == [0, 1, 0, 1]
    # A path that has not been seen counts as nothing known: what the next layer took in general.
    assert short.estimate([(0,)]) == [0, Fraction(1, 2), 0, Fraction(1, 2)]


def test_popular_experts_get_more_devices() -> None:
    popularity = [1 / rank**1.2 for rank in range(1, 17)]
    alone = max(popularity) * 16 / sum(popularity)
    placement = place_experts(popularity, 16)
    assert alone > 5
    assert placement.imbalance(popularity) < 1.3
    assert sum(placement.replicas) == sum(len(own) for own in placement.devices)
    wrong = list(reversed(popularity))
    again = second_phase(placement, wrong, most=2)
    assert again.imbalance(wrong) < 1.3 < placement.imbalance(wrong)
    assert second_phase(placement, popularity, most=2) is placement
    with pytest.raises(InputError, match="found \\[1, -1\\] and 2"):
        place_experts([1, -1], 2)


def least_load(pieces: list[Fraction], devices: int) -> Fraction:
    """Least load of the busiest device, by trying all decompositions."""
    best = sum(pieces, Fraction(0))

    def put(number: int, loads: list[Fraction]) -> None:
        nonlocal best
        if max(loads) >= best:
            return
        if number == len(pieces):
            best = max(loads)
            return
        for device in {load: device for device, load in enumerate(loads)}.values():
            loads[device] += pieces[number]
            put(number + 1, loads)
            loads[device] -= pieces[number]

    put(0, [Fraction(0)] * devices)
    return best


def check_placements(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        devices = draw.randint(1, 4)
        popularity = [draw.choice([0, 1, 2, 3, 5, 8, 20]) for _ in range(draw.randint(1, 6))]
        placement = place_experts(popularity, devices)
        assert placement == place_experts(popularity, devices)
        total = sum(popularity)
        found = [0] * len(popularity)
        for own in placement.devices:
            for expert in own:
                found[expert] += 1
        assert tuple(found) == placement.replicas
        assert min(found) >= 1
        assert sum(placement.loads(popularity)) == total
        if total:
            for count, share in zip(found, popularity, strict=True):
                assert abs(count - max(1, Fraction(share * devices, total))) < 1
        pieces = [
            Fraction(share) / count
            for share, count in zip(popularity, found, strict=True)
            for _ in range(count)
        ]
        # First fit of what is sorted, at the least size found by bisection, is within 13/11 of the best (Yue 1990).
        best = least_load(sorted(pieces, reverse=True), devices)
        assert max(placement.loads(popularity)) <= Fraction(13, 11) * best + Fraction(1, 1000)


def test_placements_are_close_to_the_best() -> None:
    check_placements(2, 300)


@pytest.mark.slow
def test_many_placements_are_close_to_the_best() -> None:
    check_placements(3, 5000)


def test_what_is_sent_is_the_same_in_pieces() -> None:
    graph = late_exchange()
    for pieces in (1, 3, 7):
        tasks = graph.task_graph(WholePlan(choices={"sum": OperationChoice(pieces=pieces)}))
        kind = tasks.kind_names.index("all_reduce")
        assert tasks.seconds[tasks.kinds == kind].sum() == pytest.approx(12)
