"""Products cut for a ring: the closed forms are what simulation says, values are those of the product as a whole."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.iteration.policies.tensor.ring_products import RingProduct, shard_sizes
from coppice.iteration.policies.tensor.triggered import TriggeredProduct
from coppice.iteration.tasks import lower_bound_seconds, run_tasks
from reference.ring_values import gathered_products, scattered_products


@pytest.mark.parametrize(
    ("ranks", "product", "hop", "cut", "serial"), [(4, 2, 1, 8, 11), (4, 1, 2, 7, 10), (8, 1, 1, 8, 15)]
)
def test_published_closed_form(ranks: int, product: float, hop: float, cut: float, serial: float) -> None:
    for scatter in (False, True):
        ring = RingProduct(ranks=ranks, product=product, hop=hop, scatter=scatter)
        assert (ring.seconds, ring.serial_seconds) == (cut, serial)
        assert run_tasks(ring.graph()).seconds == cut
        assert run_tasks(ring.graph(folded=False)).seconds == cut


def drawn(draw: random.Random) -> RingProduct:
    both_ways = draw.random() < 0.5
    plain = {} if both_ways else {"copy": draw.choice([0, 1, 0.25]), "later": draw.choice([None, 1.5, 4])}
    return RingProduct(
        ranks=draw.randint(1, 9),
        product=draw.choice([0, 1, 2, 0.5, draw.randint(1, 64) / 8]),
        hop=draw.choice([0, 1, 2, 0.5, draw.randint(1, 64) / 8]),
        scatter=draw.random() < 0.5,
        both_ways=both_ways,
        **plain,
    )


def check_closed_form(count: int) -> None:
    draw = random.Random(12)
    for _ in range(count):
        ring = drawn(draw)
        folded, whole = ring.graph(), ring.graph(folded=False)
        seconds = run_tasks(folded).seconds
        assert seconds == ring.seconds == run_tasks(whole).seconds, ring
        assert seconds >= lower_bound_seconds(folded) - 1e-9
        if not ring.hop and not ring.copy and ring.later is None:
            assert seconds == ring.ranks * ring.product


def test_closed_form_is_what_simulation_says() -> None:
    check_closed_form(200)


@pytest.mark.slow
def test_closed_form_is_what_simulation_says_of_many() -> None:
    check_closed_form(5000)


def test_both_ways_is_no_slower_and_cut_is_no_slower_than_serial() -> None:
    for ranks, product, hop in itertools.product(range(1, 10), (0.5, 1, 3), (0.25, 1, 2, 8)):
        one = RingProduct(ranks=ranks, product=product, hop=hop)
        both = RingProduct(ranks=ranks, product=product, hop=hop, both_ways=True)
        assert both.seconds <= one.seconds <= one.serial_seconds


def test_copies_cost_what_unrolling_saves() -> None:
    looped = RingProduct(ranks=4, product=2, hop=1, copy=0.5)
    assert looped.seconds == RingProduct(ranks=4, product=2, hop=1).seconds + 3 * 0.5


def test_gate() -> None:
    ring = RingProduct(ranks=4, product=2, hop=1)  # 8 s
    assert ring.pays(whole=6, collective=2)
    assert not ring.pays(whole=6, collective=2, extra=0.5)


@pytest.mark.parametrize("scatter", [False, True])
def test_shards_that_differ_take_no_longer_than_padded(scatter: bool) -> None:
    draw = random.Random(5)
    for _ in range(100):
        ranks = draw.randint(2, 7)
        sizes = shard_sizes(draw.randint(1, 40), ranks)
        most = max(sizes)
        hop = draw.choice([0.5, 1, 2])
        ring = RingProduct(ranks=ranks, product=most, hop=hop * most, scatter=scatter)
        graph = ring.graph(folded=False, products=sizes, hops=[hop * size for size in sizes])
        seconds = run_tasks(graph).seconds
        assert lower_bound_seconds(graph) - 1e-9 <= seconds <= ring.seconds
        if len(set(sizes)) == 1:
            assert seconds == ring.seconds


def test_refusals() -> None:
    with pytest.raises(InputError, match="1 or more ranks"):
        RingProduct(ranks=0, product=1, hop=1)
    with pytest.raises(InputError, match="both ways"):
        RingProduct(ranks=2, product=1, hop=1, both_ways=True, copy=1)
    with pytest.raises(InputError, match="`folded=False`"):
        RingProduct(ranks=2, product=1, hop=1).graph(products=[1, 2])
    with pytest.raises(InputError, match="rows"):
        shard_sizes(0, 2)


CASES = [("mk,kn->mn", "m"), ("mk,kn->mn", "k"), ("bmk,bkn->bmn", "b")]


@pytest.mark.parametrize(("spec", "along"), CASES, ids=["slices", "terms", "batch"])
def test_gathered_products_are_the_product(spec: str, along: str) -> None:
    numbers = np.random.default_rng(3)
    left_names, right_names = spec.split("->")[0].split(",")
    for ranks in (1, 2, 3, 5):
        sizes = {name: int(numbers.integers(1, 5)) for name in "mkn"} | {"b": 2, along: 7}
        whole = numbers.integers(-9, 9, [sizes[name] for name in left_names]).astype(float)
        cuts = np.cumsum(shard_sizes(7, ranks))[:-1]
        shards = np.split(whole, cuts, axis=left_names.index(along))
        others = [
            numbers.integers(-9, 9, [sizes[name] for name in right_names]).astype(float) for _ in range(ranks)
        ]
        for result, other in zip(gathered_products(spec, along, shards, others), others, strict=True):
            np.testing.assert_array_equal(result, np.einsum(spec, whole, other))


@pytest.mark.parametrize(("spec", "along"), [("mk,kn->mn", "m"), ("mk,kn->mn", "n"), ("bmk,bkn->bmn", "b")])
def test_scattered_products_are_the_sum(spec: str, along: str) -> None:
    numbers = np.random.default_rng(4)
    names = spec.split("->")[0].split(",")
    for ranks in (1, 2, 3, 5):
        sizes = {name: int(numbers.integers(1, 5)) for name in "mkn"} | {"b": 2, along: 7}
        lefts, rights = (
            [numbers.integers(-9, 9, [sizes[name] for name in each]).astype(float) for _ in range(ranks)]
            for each in names
        )
        total = sum(np.einsum(spec, left, right) for left, right in zip(lefts, rights, strict=True))
        found = scattered_products(spec, along, lefts, rights, shard_sizes(7, ranks))
        np.testing.assert_array_equal(np.concatenate(found, axis=spec.split("->")[1].index(along)), total)


def test_dimensions_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="'n'"):
        gathered_products("mk,kn->mn", "n", [np.ones((1, 1))], [np.ones((1, 1))])
    with pytest.raises(InputError, match="'k'"):
        scattered_products("mk,kn->mn", "k", [np.ones((1, 1))], [np.ones((1, 1))], [1])


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


def test_triggered_refusals() -> None:
    for bad in ({"contention": -1}, {"units": 1.0}, {"needed": 0.0}):
        with pytest.raises(InputError, match="compute units"):
            TriggeredProduct(ranks=2, product=1.0, hop=1.0, **bad)
