"""Gather and scatter: the order of children, subtrees around any root, messages and bytes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.planners.algorithms.parts.cost import Chain
from planners.algorithms.exchange_cases import RANKS, made, steps_of

GATHER, SCATTER = Collective.GATHER, Collective.SCATTER


@pytest.mark.parametrize("root", [0, 2, 4])
def test_straight_ones_in_rank_order(root: int) -> None:
    others = [rank for rank in range(5) if rank != root]
    assert steps_of(made("linear", GATHER, 5, root)[0]) == [{(rank, root): [rank] for rank in others}]
    assert steps_of(made("linear-sync", GATHER, 5, root)[0]) == [{(rank, root): [rank]} for rank in others]
    assert steps_of(made("linear", SCATTER, 5, root)[0]) == [{(root, rank): [rank]} for rank in others]
    assert steps_of(made("linear-nb", SCATTER, 5, root)[0]) == [{(root, rank): [rank] for rank in others}]


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_straight_costs(ranks: int) -> None:
    moved = Fraction(ranks - 1, ranks)
    for name, collective, steps, sent in (
        ("linear", GATHER, 1, Fraction(1, ranks)),
        ("linear-sync", GATHER, ranks - 1, Fraction(1, ranks)),
        ("linear", SCATTER, ranks - 1, moved),
        ("linear-nb", SCATTER, 1, moved),
    ):
        cost = made(name, collective, ranks, root=ranks - 1)[1]
        assert (cost.steps, cost.sent) == (steps, sent)
        assert cost.chains == (Chain(messages=ranks - 1, sent=moved),)


def test_binomial_tree_around_root_four() -> None:
    """Six ranks, counted from the root: 4 5 0 1 2 3."""
    up = steps_of(made("binomial", GATHER, 6, root=4)[0])
    assert up == [{(5, 4): [5], (1, 0): [1], (3, 2): [3]}, {(0, 4): [0, 1]}, {(2, 4): [2, 3]}]
    down = steps_of(made("binomial", SCATTER, 6, root=4)[0])
    assert down == [{(4, 2): [2, 3]}, {(4, 0): [0, 1]}, {(4, 5): [5], (0, 1): [1], (2, 3): [3]}]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("radix", [2, 3, 4, 8, 100])
def test_k_nomial(radix: int, ranks: int) -> None:
    """As many steps as digits; the root has a child for every multiple j k^i below P."""
    root = ranks // 3
    depth, children = 0, 0
    while radix**depth < ranks:
        children += min(radix - 1, (ranks - 1) // radix**depth)
        depth += 1
    moved = Fraction(ranks - 1, ranks)
    for collective in (GATHER, SCATTER):
        schedule, cost = made("k-nomial", collective, ranks, root, radix=radix)
        steps = steps_of(schedule)
        end = 1 if collective is GATHER else 0
        assert sum(pair[end] == root for step in steps for pair in step) == children
        assert len(steps) == cost.steps == depth
        assert cost.chains == ((Chain(messages=children, sent=moved),) if ranks > 1 else ())
    assert cost.sent == moved


def test_binomial_is_k_nomial_of_radix_two() -> None:
    for collective in (GATHER, SCATTER):
        two = made("k-nomial", collective, 13, 5, radix=2)[0]
        assert steps_of(two) == steps_of(made("binomial", collective, 13, 5)[0])


@pytest.mark.parametrize(
    ("ranks", "blocks"), [(2, 1), (5, 2), (6, 2), (7, 3), (8, 4), (9, 4), (13, 5), (17, 8)]
)
def test_most_bytes_of_a_gather_are_those_of_the_largest_subtree(ranks: int, blocks: int) -> None:
    assert made("binomial", GATHER, ranks)[1].sent == Fraction(blocks, ranks)


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
