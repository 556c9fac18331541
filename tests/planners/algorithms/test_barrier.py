"""Barriers: who tells whom, and how many messages follow each other."""

from __future__ import annotations

import pytest

from coppice.collectives import Collective
from coppice.planners.algorithms.parts.cost import Chain
from planners.algorithms.exchange_cases import RANKS, made, steps_of

BARRIER = Collective.BARRIER


def log_up(ranks: int, radix: int = 2) -> int:
    steps = 0
    while radix**steps < ranks:
        steps += 1
    return steps


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_steps_and_messages(ranks: int) -> None:
    power_of_two = ranks & (ranks - 1) == 0
    depth = log_up(ranks)
    for name, steps, messages in (
        ("linear", 2, 2 * (ranks - 1)),
        ("double-ring", 2 * ranks, 2 * ranks),
        ("tree", 2 * depth, 2 * depth),
        ("recursive-doubling", depth + (not power_of_two), depth + (not power_of_two)),
        ("bruck", depth, depth),
    ):
        schedule, cost = made(name, BARRIER, ranks)
        assert len(steps_of(schedule)) == cost.steps == steps, name
        assert cost.sent == 0
        (chain,) = cost.chains
        assert (chain.messages, chain.sent, chain.reduced) == (messages, 0, 0), name
        assert int(schedule.slot_weight.sum()) == 0


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("radix", [2, 3, 4, 100])
def test_dissemination_of_radix_k(radix: int, ranks: int) -> None:
    schedule, cost = made("k-dissemination", BARRIER, ranks, radix=radix)
    steps = steps_of(schedule)
    assert len(steps) == cost.steps == log_up(ranks, radix)
    messages = 0
    for i, step in enumerate(steps):
        distances = [j * radix**i for j in range(1, radix) if j * radix**i < ranks]
        assert [dst for src, dst in step if src == 0] == distances
        messages += len(distances)
    assert [chain.messages for chain in cost.chains] == [messages] * (ranks > 1)


def test_bruck_is_dissemination_of_radix_two() -> None:
    assert steps_of(made("bruck", BARRIER, 13)[0]) == steps_of(
        made("k-dissemination", BARRIER, 13, radix=2)[0]
    )


def test_double_ring_goes_around_twice() -> None:
    around = [{(0, 1): [0]}, {(1, 2): [0]}, {(2, 0): [0]}]
    assert steps_of(made("double-ring", BARRIER, 3)[0]) == around * 2


def test_recursive_doubling_folds_the_upper_ranks() -> None:
    steps = steps_of(made("recursive-doubling", BARRIER, 6)[0])
    assert list(steps[0]) == [(4, 0), (5, 1)]
    assert sorted(steps[1]) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert sorted(steps[2]) == [(0, 2), (1, 3), (2, 0), (3, 1)]
    assert list(steps[3]) == [(0, 4), (1, 5)]


def test_tree_of_five() -> None:
    up = [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    down = [[(dst, src) for src, dst in step] for step in reversed(up)]
    assert [list(step) for step in steps_of(made("tree", BARRIER, 5)[0])] == up + down


def test_nothing_to_wait_for_alone() -> None:
    for name in ("linear", "double-ring", "tree", "recursive-doubling", "bruck", "k-dissemination"):
        schedule, cost = made(name, BARRIER, 1)
        assert schedule.num_transfers == 0
        assert (cost.steps, cost.chains) == (0, ())


def test_two_ranks_tell_each_other_at_once() -> None:
    schedule, cost = made("two-proc", BARRIER, 2)
    assert steps_of(schedule) == [{(0, 1): [0], (1, 0): [0]}]
    assert cost.chains == (Chain(messages=1, sent=cost.sent),)
