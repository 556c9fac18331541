"""Recomputation in windows: the search and the program against all choices, and what memory and windows must do."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from coppice.errors import InputError
from coppice.iteration.policies.tensor.recompute_windows import (
    KEPT,
    LayerWindows,
    RecomputedOp,
    least_bytes,
    plan_layer,
    split_layers,
    stage_graph,
)
from coppice.iteration.policies.tensor.stage_windows import (
    plan_stage,
    shared_places,
    stage_added_seconds,
    stage_bytes,
)
from coppice.iteration.tasks import lower_bound_seconds, run_tasks


def drawn_layer(draw: random.Random, most_ops: int = 5, windows: int = 2) -> LayerWindows:
    count = draw.randint(1, most_ops)
    return LayerWindows(
        ops=tuple(
            RecomputedOp(
                name=f"op {number}",
                seconds=draw.randint(0, 12) / 4,
                size_bytes=draw.randint(0, 6),
                after=tuple(before for before in range(number) if draw.random() < 0.3),
            )
            for number in range(count)
        ),
        backward=tuple(draw.randint(0, 12) / 4 for _ in range(windows)),
        forward=tuple(draw.randint(0, 12) / 4 for _ in range(windows)),
        compute=draw.randint(0, 8),
    )


def allowed(layer: LayerWindows, place: tuple[int, ...]) -> bool:
    """Whether everything that is computed again comes after what it takes from."""
    return all(
        at == KEPT or all(place[before] <= at for before in op.after)
        for op, at in zip(layer.ops, place, strict=True)
    )


def best_of_all(layer: LayerWindows, layers: int, in_flight: int, limit: int, *, whole: bool) -> float:
    best = math.inf
    windows = len(layer.backward)
    for place in itertools.product(range(KEPT, windows + 1), repeat=len(layer.ops)):
        places = shared_places(layer, place, layers)
        if not allowed(layer, place) or stage_bytes(layer, places, in_flight) > limit:
            continue
        if whole:
            loads = [
                sum(op.seconds for op, at in zip(layer.ops, place, strict=True) if at == window)
                for window in range(windows)
            ]
            used = [layer.forward] + [layer.backward] * (layers > 1)
            if any(load > room for rooms in used for load, room in zip(loads, rooms, strict=True)):
                continue
        best = min(best, stage_added_seconds(layer, places))
    return best


def check_search(count: int) -> None:
    draw = random.Random(41)
    for _ in range(count):
        layer = drawn_layer(draw, 4)
        layers, in_flight, whole = draw.randint(1, 4), draw.randint(1, 4), draw.random() < 0.3
        limit = least_bytes(layer) + draw.randint(0, 40)
        plan = plan_layer(layer, layers=layers, in_flight=in_flight, limit_bytes=limit, whole=whole)
        places = shared_places(layer, plan.place, layers)
        assert allowed(layer, plan.place)
        assert plan.memory_bytes == stage_bytes(layer, places, in_flight) <= limit
        assert plan.added_seconds == stage_added_seconds(layer, places)
        assert plan.added_seconds == best_of_all(layer, layers, in_flight, limit, whole=whole)
        assert plan.added_seconds <= layers * sum(op.seconds for op in layer.ops)
        graph = stage_graph(layer, places)
        seconds = run_tasks(graph).seconds
        assert seconds == layers * layer.base_seconds + plan.added_seconds
        assert seconds >= lower_bound_seconds(graph) - 1e-9


def test_search_finds_the_best_of_all() -> None:
    check_search(250)


@pytest.mark.slow
def test_search_finds_the_best_of_all_in_many_cases() -> None:
    check_search(5000)


def test_ten_operations() -> None:
    draw = random.Random(3)
    for _ in range(2):
        layer = drawn_layer(draw, 1, windows=1)
        ops = tuple(
            RecomputedOp(name=f"{number}", seconds=draw.randint(1, 9), size_bytes=draw.randint(1, 9))
            for number in range(8)
        )
        layer = LayerWindows(ops=ops, backward=(11.0,), forward=(7.0,))
        limit = least_bytes(layer) + 60
        plan = plan_layer(layer, layers=3, in_flight=2, limit_bytes=limit)
        assert plan.added_seconds == best_of_all(layer, 3, 2, limit, whole=False)


def test_one_window_hides_the_largest_sum_that_fits() -> None:
    draw = random.Random(9)
    for _ in range(100):
        times = [draw.randint(1, 9) for _ in range(draw.randint(1, 8))]
        room = draw.randint(0, 30)
        ops = tuple(RecomputedOp(name="", seconds=each, size_bytes=1) for each in times)
        layer = LayerWindows(ops=ops, backward=(room,), forward=(room,), compute=5)
        sums = {sum(part) for size in range(len(times) + 1) for part in itertools.combinations(times, size)}
        hidden = max(each for each in sums if each <= room)
        # Two in flight, one layer, and memory for one micro-batch: nothing can be kept.
        plan = plan_layer(layer, layers=1, in_flight=2, limit_bytes=len(ops), whole=True)
        graph = stage_graph(layer, shared_places(layer, plan.place, 1))
        assert run_tasks(graph).seconds == layer.base_seconds + sum(times) - hidden
        parts = plan_layer(layer, layers=1, in_flight=2, limit_bytes=len(ops))
        assert parts.added_seconds == sum(times) - min(room, sum(times))


def test_memory_and_windows() -> None:
    """More memory is never slower; enough of it and nothing is computed again; without windows all is on demand."""
    draw = random.Random(14)
    for _ in range(60):
        layer = drawn_layer(draw)
        layers, in_flight = draw.randint(1, 3), draw.randint(1, 3)
        most = layers * in_flight * least_bytes(layer)
        added = [
            plan_layer(
                layer, layers=layers, in_flight=in_flight, limit_bytes=max(limit, least_bytes(layer))
            ).added_seconds
            for limit in range(0, most + 1, max(1, most // 6))
        ]
        assert added == sorted(added, reverse=True)
        kept = plan_layer(layer, layers=layers, in_flight=in_flight, limit_bytes=most)
        assert kept.added_seconds == 0
        free = LayerWindows(ops=layer.ops, backward=(0.0, 0.0), forward=(0.0, 0.0), compute=layer.compute)
        plan = plan_layer(
            free, layers=layers, in_flight=in_flight, limit_bytes=max(most // 2, least_bytes(layer))
        )
        graph = stage_graph(free, shared_places(free, plan.place, layers))
        computed = sum(op.seconds for op, at in zip(free.ops, plan.place, strict=True) if at != KEPT) * layers
        assert run_tasks(graph).seconds == layers * free.compute + computed


def best_stage(layer: LayerWindows, layers: int, in_flight: int, limit: int) -> float:
    """By trying every choice of every layer."""
    windows = len(layer.backward)
    choices = [
        [
            place
            for place in itertools.product(
                range(KEPT, windows * (layers - number) + 1), repeat=len(layer.ops)
            )
            if allowed(layer, place)
        ]
        for number in range(layers)
    ]
    return min(
        stage_added_seconds(layer, places)
        for places in itertools.product(*choices)
        if stage_bytes(layer, places, in_flight) <= limit
    )


def test_the_program_of_a_stage_finds_the_best_of_all() -> None:
    draw = random.Random(23)
    for _ in range(60):
        layers = draw.choice([1, 2, 2, 3])
        layer = drawn_layer(draw, {1: 4, 2: 3, 3: 2}[layers], windows=1)
        in_flight = draw.randint(1, 3)
        limit = least_bytes(layer) + draw.randint(0, 15)
        plan = plan_stage(layer, layers=layers, in_flight=in_flight, limit_bytes=limit)
        assert plan.optimal
        assert plan.memory_bytes <= limit
        assert all(allowed(layer, place) for place in plan.places)
        assert plan.added_seconds == best_stage(layer, layers, in_flight, limit)
        graph = stage_graph(layer, plan.places)
        seconds = run_tasks(graph).seconds
        assert seconds == layers * layer.base_seconds + plan.added_seconds
        assert seconds >= lower_bound_seconds(graph) - 1e-9


def test_a_stage_is_no_slower_than_what_layers_share() -> None:
    draw = random.Random(29)
    quicker = 0
    for _ in range(40):
        layer, layers, in_flight = drawn_layer(draw), draw.randint(1, 4), draw.randint(1, 3)
        limit = least_bytes(layer) + draw.randint(0, 40)
        shared = plan_layer(layer, layers=layers, in_flight=in_flight, limit_bytes=limit)
        stage = plan_stage(layer, layers=layers, in_flight=in_flight, limit_bytes=limit)
        assert stage.added_seconds <= shared.added_seconds
        quicker += stage.added_seconds < shared.added_seconds
    assert quicker


def test_split_of_layers() -> None:
    draw = random.Random(31)
    moved = 0
    for _ in range(60):
        layer = drawn_layer(draw, 3)
        stages = draw.randint(1, 3)
        layers = draw.randint(stages, stages + 4)
        # Room for a stage of half of the layers more than evenly, and for some of its activations.
        options = {
            "layers": layers,
            "stages": stages,
            "micro_batches": 4,
            "device_bytes": 20 * (layers // stages + 2) + least_bytes(layer) * draw.randint(1, 4),
            "layer_bytes": 20,
        }
        ways = [split_layers(layer, **options, exact=exact) for exact in (False, True)]
        for way in ways:
            assert sum(way.layers) == layers
            assert min(way.layers) >= 1
        splits = [
            each for each in itertools.product(range(1, layers + 1), repeat=stages) if sum(each) == layers
        ]

        def slowest(split: tuple[int, ...], layer: LayerWindows = layer, options: dict = options) -> float:
            times = []
            for stage, count in enumerate(split):
                room = options["device_bytes"] - 20 * count
                if room < least_bytes(layer):
                    return math.inf
                in_flight = min(4, len(split) - stage)
                plan = plan_layer(layer, layers=count, in_flight=in_flight, limit_bytes=room)
                times.append(count * layer.base_seconds + plan.added_seconds)
            return max(times)

        assert max(ways[1].seconds) == min(map(slowest, splits)) <= max(ways[0].seconds)
        even = tuple(layers // stages + (stage >= stages - layers % stages) for stage in range(stages))
        assert max(ways[0].seconds) <= slowest(even)
        moved += ways[1].layers != even
    assert moved


def test_refusals() -> None:
    op = RecomputedOp(name="product", seconds=1.0, size_bytes=4)
    layer = LayerWindows(ops=(op,), backward=(1.0,), forward=(1.0,))
    for plan in (plan_layer, plan_stage):
        with pytest.raises(InputError, match="room for 4 bytes"):
            plan(layer, layers=1, in_flight=1, limit_bytes=3)
        with pytest.raises(InputError, match="in flight"):
            plan(layer, layers=1, in_flight=0, limit_bytes=4)
    with pytest.raises(InputError, match="as many windows"):
        LayerWindows(ops=(), backward=(1.0,), forward=())
    with pytest.raises(InputError, match="0 or more seconds"):
        LayerWindows(ops=(), backward=(-1.0,), forward=(1.0,))
    with pytest.raises(InputError, match="operations before it"):
        LayerWindows(
            ops=(RecomputedOp(name="a", seconds=1, size_bytes=1, after=(0,)),), backward=(), forward=()
        )
    with pytest.raises(InputError, match="2 layers or more"):
        split_layers(layer, layers=1, stages=2, micro_batches=1, device_bytes=9, layer_bytes=1)
    with pytest.raises(InputError, match="room for 2 layers"):
        split_layers(layer, layers=2, stages=2, micro_batches=1, device_bytes=4, layer_bytes=1)
