"""Products that trigger their collective: closed forms in simulation, and the published order."""

from __future__ import annotations

import random

import pytest

from coppice.errors import InputError
from coppice.iteration.policies.tensor.triggered import TriggeredProduct
from coppice.iteration.running import lower_bound_seconds, run_tasks


def test_closed_forms_are_what_simulation_says() -> None:
    draw = random.Random(17)
    for _ in range(200):
        each = TriggeredProduct(
            ranks=draw.randint(1, 9),
            product=draw.choice([0.75, 1.5, 3]),
            hop=draw.choice([0, 0.5, 1, 4]),
            contention=draw.choice([0, 0.125, 0.5]),
            units=draw.choice([0.5, 0.25]),
        )
        count, c, h, gamma = each.ranks, each.product, each.hop, each.contention
        expected = c + (count - 1) * max(c * (1 + gamma), h)
        assert each.tracked.seconds == expected
        for ring in (each.split, each.tracked, each.arbitrated):
            for folded in (True, False):
                graph = ring.graph(folded=folded)
                assert run_tasks(graph).seconds == ring.seconds >= lower_bound_seconds(graph) - 1e-9
        assert each.ideal_seconds <= each.arbitrated.seconds <= each.tracked.seconds


def test_published_order() -> None:
    """Where contention is less than the split costs and than hops can hide, and hops are worth it."""
    draw = random.Random(4)
    for _ in range(500):
        units = draw.uniform(0.1, 0.3)
        each = TriggeredProduct(
            ranks=draw.choice([4, 8, 16, 32]),
            product=1.0,
            hop=draw.uniform(0.8, 1.0),
            contention=draw.uniform(0.01, 0.9) * units / (1 - units),
            units=units,
        )
        order = [
            each.sequential_seconds,
            each.split.seconds,
            each.tracked.seconds,
            each.arbitrated.seconds,
            each.ideal_seconds,
        ]
        assert order[0] > order[1] > order[2] > order[3] >= order[4], each


def test_shares_of_compute_units() -> None:
    """16 of 80 compute units: a quarter more for the product; 8 of 80: hops wait for compute units."""
    whole = TriggeredProduct(ranks=8, product=1.0, hop=1.0)
    assert TriggeredProduct(ranks=8, product=1.0, hop=1.0, units=16 / 80).split.product == 1.25
    few = TriggeredProduct(ranks=8, product=1.0, hop=1.0, units=8 / 80).split
    assert few.hop == pytest.approx(1.4)
    assert whole.split.hop == 1.0


def test_refusals() -> None:
    for bad in ({"contention": -1}, {"units": 1.0}, {"needed": 0.0}):
        with pytest.raises(InputError, match="compute units"):
            TriggeredProduct(ranks=2, product=1.0, hop=1.0, **bad)
