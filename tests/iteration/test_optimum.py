"""The optimum of small workloads equals brute force; no policy beats it, and it does not beat the bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.optimum import MOST_ITEMS, optimal_messages
from coppice.iteration.predicted import predict


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
    return LayerWorkload(
        forward=tuple(draw.randint(0, 4) for _ in range(layers)),
        backward=tuple(draw.randint(0, 6) for _ in range(layers)),
        bytes=tuple(draw.randint(1, 9) for _ in range(layers)),
        bytes_per_second=draw.choice([0.5, 1.0, 2.0]),
        message_seconds=draw.choice([0.0, 0.5, 1.0]),
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
    six = LayerWorkload(
        forward=(1,) * 6,
        backward=(1,) * 6,
        bytes=(0.5, 0.1, 0.1, 2, 0.2, 3),
        bytes_per_second=1.0,
        message_seconds=0.6,
    )
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
