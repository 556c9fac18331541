"""All-gather algorithms: partners, distances, and the steps and bytes that the literature gives them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.planners.algorithms.parts.cost import Chain, Clocks
from coppice.planners.algorithms.parts.radix import folding, levels, reversed_digits
from planners.algorithms.exchange_cases import RANKS, made, refused, steps_of

GATHER = Collective.ALL_GATHER


def log_up(ranks: int, radix: int = 2) -> int:
    """ceil(log_radix ranks), counted."""
    steps = 0
    while radix**steps < ranks:
        steps += 1
    return steps


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["bruck", "sparbit", "circulant"])
def test_fewest_steps_and_bytes(name: str, ranks: int) -> None:
    """No rank can have all blocks after fewer steps, or having received fewer bytes."""
    schedule, cost = made(name, GATHER, ranks)
    assert len(steps_of(schedule)) == cost.steps == log_up(ranks)
    assert cost.sent == Fraction(ranks - 1, ranks)
    assert schedule.num_transfers == ranks * (ranks - 1)
    expected = Chain(messages=log_up(ranks), sent=cost.sent)
    assert cost.chains == ((expected,) if ranks > 1 else ())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("radix", [2, 3, 4, 7, 100])
def test_bruck_of_radix_k(radix: int, ranks: int) -> None:
    schedule, cost = made("bruck", GATHER, ranks, radix=radix)
    steps = steps_of(schedule)
    assert len(steps) == cost.steps == log_up(ranks, radix)
    for i, step in enumerate(steps):
        sent = {(src - dst) % ranks: chunks for (src, dst), chunks in step.items() if src == 0}
        wanted = [j * radix**i for j in range(1, radix) if j * radix**i < ranks]
        assert sorted(sent) == wanted
        for distance, chunks in sent.items():
            assert chunks == list(range(min(radix**i, ranks - distance)))
    messages = sum(len({dst for src, dst in step if src == 0}) for step in steps)
    assert cost.chains == ((Chain(messages=messages, sent=cost.sent),) if ranks > 1 else ())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("radix", [2, 3, 4, 7, 100])
def test_bruck_backwards(radix: int, ranks: int) -> None:
    """The reduce-scatter is the all-gather from its end to its beginning; the all-reduce is both."""
    gather, there = made("bruck", GATHER, ranks, radix=radix)
    scatter, back = made("bruck", Collective.REDUCE_SCATTER, ranks, radix=radix)
    both, whole = made("bruck", Collective.ALL_REDUCE, ranks, radix=radix)
    backwards = [
        {(dst, src): sorted(chunks) for (src, dst), chunks in step.items()} for step in steps_of(gather)[::-1]
    ]
    assert [{pair: sorted(c) for pair, c in step.items()} for step in steps_of(scatter)] == backwards
    assert steps_of(both) == steps_of(scatter) + steps_of(gather)
    part = Fraction(ranks - 1, ranks)
    for cost, phases in ((back, 1), (whole, 2)):
        assert (cost.steps, cost.sent) == (phases * there.steps, phases * part)
        assert [(c.messages, c.sent, c.reduced) for c in cost.chains] == [
            (phases * c.messages, phases * part, part) for c in there.chains
        ]


def test_digits() -> None:
    assert [distance for distance, _ in levels(28, 3)] == [1, 3, 9, 27]
    assert levels(28, 3)[-1] == (27, [27])
    assert levels(2, 100) == [(1, [1])]
    assert reversed_digits(2, 3).tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert reversed_digits(0).tolist() == [0]


@pytest.mark.parametrize(
    ("ranks", "blocks"),
    [
        (8, [1, 2, 4]),
        (5, [1, 1, 2]),
        (6, [1, 1, 3]),
        (12, [1, 1, 3, 6]),
        (13, [1, 2, 3, 6]),
        (17, [1, 1, 2, 4, 8]),
    ],
)
def test_sparbit_goes_far_first_and_never_twice(ranks: int, blocks: list[int]) -> None:
    """Distances halve; where P is no power of two, a block that is there already is left out."""
    steps = steps_of(made("sparbit", GATHER, ranks)[0])
    received = {rank: [rank] for rank in range(ranks)}
    for i, step in enumerate(steps):
        assert {(dst - src) % ranks for src, dst in step} == {2 ** (len(steps) - 1 - i)}
        assert {len(chunks) for chunks in step.values()} == {blocks[i]}
        for (_, dst), chunks in step.items():
            received[dst] += chunks
    assert all(sorted(chunks) == list(range(ranks)) for chunks in received.values())


@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 10, 16, 24, 64])
def test_neighbor_exchange(ranks: int) -> None:
    """Everybody talks to two neighbours in turn, about one block and then about two."""
    schedule, cost = made("neighbor-exchange", GATHER, ranks)
    steps = steps_of(schedule)
    assert len(steps) == cost.steps == ranks // 2
    for i, step in enumerate(steps):
        assert {len(chunks) for chunks in step.values()} == {1 if i == 0 else 2}
        for src, dst in step:
            towards = 1 if src % 2 == i % 2 else -1
            assert dst == (src + towards) % ranks
            assert (dst, src) in step
    assert cost.sent == Fraction(ranks - 1, ranks)
    assert schedule.num_transfers == ranks * (ranks - 1)


def test_conditions_are_told() -> None:
    for ranks in (3, 5, 17):
        assert "even number of ranks" in (refused("neighbor-exchange", GATHER, ranks) or "")
    for ranks in (1, 3, 4):
        assert "exactly 2 ranks" in (refused("two-proc", GATHER, ranks) or "")
    assert refused("two-proc", GATHER, 2) is None


def test_circulant_distances_are_halves_rounded_up() -> None:
    steps = steps_of(made("circulant", GATHER, 11)[0])
    assert [(src - dst) % 11 for step in steps for src, dst in step if src == 0] == [1, 2, 3, 6]
    assert [len(chunks) for step in steps for (src, _), chunks in step.items() if src == 0] == [1, 1, 3, 5]


def test_direct_sends_to_the_next_first() -> None:
    """Everybody has one receiver of its own at a time, so that one engine each is enough."""
    steps = steps_of(made("direct", GATHER, 5)[0])
    assert len(steps) == 1
    assert [dst for src, dst in steps[0] if src == 3] == [4, 0, 1, 2]
    assert [(dst - src) % 5 for src, dst in steps[0]] == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5


@pytest.mark.parametrize("ranks", RANKS)
def test_through_one_rank(ranks: int) -> None:
    others, depth = ranks - 1, log_up(ranks)
    share = Fraction(others, ranks)
    assert made("linear", GATHER, ranks)[1].sent == others
    assert made("gather-broadcast", GATHER, ranks)[1].sent == depth
    if ranks > 1:
        assert made("linear", GATHER, ranks)[1].chains == (Chain(messages=2 * others, sent=others + share),)
        tree = made("gather-broadcast", GATHER, ranks)[1]
        assert tree.chains == (Chain(messages=2 * depth, sent=depth + share),)
        assert tree.steps == 2 * depth


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("name", ["recursive-doubling", "recexch-doubling"])
def test_recursive_doubling_of_a_power_of_two(name: str, ranks: int) -> None:
    schedule, cost = made(name, GATHER, ranks)
    for i, step in enumerate(steps_of(schedule)):
        assert len(step) == ranks
        for (src, dst), chunks in step.items():
            assert dst == src ^ (1 << i)
            assert chunks == [block for block in range(ranks) if block >> i == src >> i]
    assert cost.steps == log_up(ranks)
    assert cost.chains == (Chain(messages=cost.steps, sent=Fraction(ranks - 1, ranks)),)


def test_recursive_doubling_helps_those_without_a_partner() -> None:
    """Five ranks: only rank 0 meets rank 4, and tells the others in two steps more, as a binomial tree does."""
    steps = steps_of(made("recursive-doubling", GATHER, 5)[0])
    assert [sorted(step) for step in steps[2:]] == [[(0, 4), (4, 0)], [(0, 2)], [(0, 1), (2, 3)]]
    assert steps[2][0, 4] == [0, 1, 2, 3]
    assert steps[3][0, 2] == [4]
    # Seven ranks: three of four have a partner, and one step is enough.
    steps = steps_of(made("recursive-doubling", GATHER, 7)[0])
    assert list(steps[-1]) == [(1, 3)]
    assert steps[-1][1, 3] == [4, 5, 6]


def test_recexch_folds_runs_of_k() -> None:
    """Twelve ranks, radix 3: a run of three, one of two, and seven single ones."""
    fold = folding(12, 3)
    assert fold.leader.tolist() == [2, 4, 5, 6, 7, 8, 9, 10, 11]
    steps = steps_of(made("recexch-doubling", GATHER, 12, radix=3)[0])
    assert steps[0] == {(0, 2): [0], (1, 2): [1], (3, 4): [3]}
    assert steps[-1] == {(2, 0): list(range(12)), (2, 1): list(range(12)), (4, 3): list(range(12))}
    assert steps[1][2, 4] == [0, 1, 2]
    # A radix above the number of ranks is cut to it.
    assert len(steps_of(made("recexch-doubling", GATHER, 6, radix=9)[0])) == 1


def test_recexch_halving_starts_far_away_and_keeps_neighbouring_blocks() -> None:
    steps = steps_of(made("recexch-halving", GATHER, 16)[0])
    assert steps[0][1, 8] == [1]
    assert (0, 0) not in steps[0]
    assert len(steps[0]) == 16 - 4  # 0, 6, 9, 15 are their own mirror images
    for i, step in enumerate(steps[1:]):
        for (src, dst), chunks in step.items():
            assert dst == src ^ (8 >> i)
            assert chunks == list(range(chunks[0], chunks[0] + 2**i))


@pytest.mark.parametrize("ranks", [3, 6, 7, 13, 24])
def test_folded_cost_is_the_formula(ranks: int) -> None:
    core = 2 ** (ranks.bit_length() - 1)
    depth, rest = core.bit_length() - 1, ranks - core
    exchanged = sum(2**i + min(2**i, rest) for i in range(depth))
    cost = made("recexch-doubling", GATHER, ranks)[1]
    assert cost.steps == depth + 2
    assert cost.chains == (Chain(messages=depth + 2, sent=Fraction(1 + exchanged + ranks, ranks)),)
    late = int(rest > 1)
    cost = made("recexch-halving", GATHER, ranks)[1]
    assert cost.steps == depth + 2 + (depth > 1)
    assert cost.chains == (
        Chain(messages=depth + 2 + late, sent=Fraction(1 + 2 * late + exchanged + ranks, ranks)),
    )


def test_larger_radix_takes_fewer_steps_and_as_many_messages() -> None:
    two, eight = (made("recexch-doubling", GATHER, 64, radix=radix)[1] for radix in (2, 8))
    assert (two.steps, eight.steps) == (6, 2)
    assert (two.chains[0].messages, eight.chains[0].messages) == (6, 14)
    assert two.sent == eight.sent == Fraction(63, 64)


def test_clocks_keep_every_chain_that_can_be_the_longest() -> None:
    """One big message against two small ones: which is longer depends on alpha and beta."""
    clocks = Clocks(4, unit=1)
    clocks.step([(0, 1, 5, 0), (2, 3, 1, 0)])
    clocks.step([(3, 2, 1, 0)])
    clocks.step([(1, 2, 1, 1)])
    cost = clocks.cost()
    assert cost.steps == 3
    assert cost.sent == 5
    assert set(cost.chains) == {
        Chain(messages=2, sent=Fraction(6), reduced=Fraction(1)),
        Chain(messages=3, sent=Fraction(3), reduced=Fraction(1)),
    }
