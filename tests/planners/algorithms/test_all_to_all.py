"""All-to-all algorithms: windows and batches, partners, hops of Bruck, and what recursive doubling costs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.planners.algorithms.parts.cost import Chain
from planners.algorithms.exchange_cases import RANKS, Steps, made, refused, steps_of

EXCHANGE = Collective.ALL_TO_ALL


def sent_by(steps: Steps, rank: int) -> list[list[int]]:
    """Receivers of a rank's messages, step by step."""
    return [[dst for src, dst in step if src == rank] for step in steps]


def test_linear_is_one_step_in_which_nobody_is_everybodys_target() -> None:
    steps = steps_of(made("linear", EXCHANGE, 6)[0])
    assert sent_by(steps, 4) == [[5, 0, 1, 2, 3]]
    assert [(dst - src) % 6 for src, dst in steps[0]] == [i for i in range(1, 6) for _ in range(6)]


@pytest.mark.parametrize(("window", "sizes"), [(1, [1] * 9), (4, [4, 4, 1]), (9, [9]), (100, [9])])
def test_window(window: int, sizes: list[int]) -> None:
    schedule, cost = made("linear-sync", EXCHANGE, 10, window=window)
    assert [len(receivers) for receivers in sent_by(steps_of(schedule), 3)] == sizes
    assert cost.steps == len(sizes)


@pytest.mark.parametrize(
    ("batch", "sizes"), [(1, [1] * 9), (4, [3, 4, 2]), (5, [4, 5]), (10, [9]), (32, [9])]
)
def test_batches_count_the_message_to_oneself(batch: int, sizes: list[int]) -> None:
    schedule, cost = made("scattered", EXCHANGE, 10, batch=batch)
    assert [len(receivers) for receivers in sent_by(steps_of(schedule), 3)] == sizes
    assert cost.steps == len(sizes)


def test_default_batch_is_32() -> None:
    assert [made("scattered", EXCHANGE, ranks)[1].steps for ranks in (32, 33, 64)] == [1, 2, 2]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["linear", "linear-sync", "scattered", "pairwise", "sendrecv-replace"])
def test_direct_ones_send_every_block_once(name: str, ranks: int) -> None:
    schedule, cost = made(name, EXCHANGE, ranks)
    assert schedule.num_transfers == ranks * (ranks - 1)
    moved = Fraction(ranks - 1, ranks)
    assert cost.sent == moved
    if name != "sendrecv-replace" and ranks > 1:
        assert cost.chains == (Chain(messages=ranks - 1, sent=moved),)


@pytest.mark.parametrize("ranks", RANKS)
def test_pairwise_partners(ranks: int) -> None:
    steps = steps_of(made("pairwise", EXCHANGE, ranks)[0])
    assert len(steps) == ranks - 1
    power_of_two = ranks & (ranks - 1) == 0
    for i, step in enumerate(steps, start=1):
        for (src, dst), chunks in step.items():
            assert dst == (src ^ i if power_of_two else (src + i) % ranks)
            assert chunks == [src * ranks + dst]
        assert len(step) == ranks


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 16])
def test_in_place_swaps_pairs_in_order(ranks: int) -> None:
    schedule, cost = made("sendrecv-replace", EXCHANGE, ranks)
    steps = steps_of(schedule)
    assert len(steps) == cost.steps == 2 * ranks - 3
    assert cost.chains == (Chain(messages=2 * ranks - 3, sent=Fraction(2 * ranks - 3, ranks)),)
    for step in steps:
        assert all((dst, src) in step for src, dst in step)
        busy = [src for src, _ in step]
        assert len(busy) == len(set(busy))
    for rank in range(ranks):
        partners = [dst for receivers in sent_by(steps, rank) for dst in receivers]
        assert partners == [other for other in range(ranks) if other != rank]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("radix", [2, 3, 4, 8, 100])
def test_bruck_hops_once_for_every_digit(radix: int, ranks: int) -> None:
    schedule, cost = made("bruck", EXCHANGE, ranks, radix=radix)
    steps = steps_of(schedule)
    depth = 0
    while radix**depth < ranks:
        depth += 1
    assert len(steps) == cost.steps == depth
    hops = sum(
        digit != 0 for number in range(ranks) for digit in (number // radix**i % radix for i in range(depth))
    )
    assert cost.sent == Fraction(hops, ranks)
    assert schedule.num_transfers == ranks * hops
    if ranks > 1:
        messages = len([dst for receivers in sent_by(steps, 0) for dst in receivers])
        assert cost.chains == (Chain(messages=messages, sent=cost.sent),)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_bruck_of_a_power_of_two_sends_half_of_everything_in_a_step(ranks: int) -> None:
    depth = ranks.bit_length() - 1
    cost = made("bruck", EXCHANGE, ranks)[1]
    assert cost.chains == (Chain(messages=depth, sent=Fraction(depth, 2)),)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_recursive_doubling_brings_everything_everywhere(ranks: int) -> None:
    schedule, cost = made("recursive-doubling", EXCHANGE, ranks)
    depth = ranks.bit_length() - 1
    assert cost.chains == (Chain(messages=depth, sent=Fraction(ranks - 1)),)
    assert cost.sent == ranks - 1
    assert schedule.num_transfers == ranks * ranks * (ranks - 1)


def test_recursive_doubling_is_refused_where_it_is_hopeless() -> None:
    assert refused("recursive-doubling", EXCHANGE, 128) is None
    assert "at most 128 ranks, found 129" in (refused("recursive-doubling", EXCHANGE, 129) or "")
    assert refused("recursive-doubling", Collective.ALL_GATHER, 129) is None
