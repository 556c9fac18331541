"""Double binary trees: the trees themselves, colours, and the schedule on a crossbar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.planners.algorithms.parts.binary_trees import depths, pair_of_trees, rooted_pair, two_colours
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from planners.algorithms.crossbar import RANKS, check_cost, made, verified

COLLECTIVES = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
Pair = Callable[[int], tuple[list[int], list[int]]]
_ = -1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([_, 2, 4, 2, 0, 6, 4, 6], [1, 3, 1, 7, 5, 3, 5, _]),
        ([_, 2, 4, 2, 0, 6, 4], [5, _, 3, 5, 3, 1, 0]),
        ([_, 2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10], [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, _]),
    ],
    ids=["8", "7", "12"],
)
def test_trees_of_nccl(first: list[int], second: list[int]) -> None:
    assert pair_of_trees(len(first)) == (first, second)


@pytest.mark.parametrize("trees", [pair_of_trees, rooted_pair])
@pytest.mark.parametrize("ranks", [*range(1, 70), 127, 128, 129, 1000])
def test_trees_complement_each_other(trees: Pair, ranks: int) -> None:
    """Both span all ranks in logarithmic depth, and no rank has more than two children in both together."""
    pair = trees(ranks)
    for parents in pair:
        assert sum(parent < 0 for parent in parents) == 1
        assert max(depths(parents)) <= (ranks - 1).bit_length()
    children = Counter(parent for parents in pair for parent in parents if parent >= 0)
    assert max(children.values(), default=0) <= 2
    if trees is pair_of_trees and ranks % 2 == 0:
        assert not set(pair[0]) & set(pair[1]) - {-1}
    if trees is rooted_pair:
        assert pair[0][0] == pair[1][0] == -1


@pytest.mark.parametrize("ranks", [2, 3, 8, 17, 64])
@pytest.mark.parametrize("trees", [pair_of_trees, rooted_pair])
def test_colours_tell_all_edges_of_a_port_apart(trees: Pair, ranks: int) -> None:
    pair = trees(ranks)
    colour = two_colours(pair)
    ports: Counter[tuple[str, int, int]] = Counter()
    for tree, parents in enumerate(pair):
        for child, parent in enumerate(parents):
            if parent >= 0:
                assert colour[tree][child] in (0, 1)
                ports["out of", parent, colour[tree][child]] += 1
                ports["into", child, colour[tree][child]] += 1
    assert max(ports.values()) == 1


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("segments", [1, 3])
def test_cost(collective: Collective, ranks: int, segments: int) -> None:
    root = ranks // 2
    schedule = check_cost("double-binary-tree", collective, ranks, root, segments=segments)
    phases = 2 if collective is Collective.ALL_REDUCE else 1
    if ranks > 1:
        steps = int(schedule.step.max()) + 1
        assert steps <= phases * (2 * (ranks - 1).bit_length() + 2 * (segments - 1))


@pytest.mark.parametrize("ranks", [8, 13, 32])
def test_every_rank_sends_and_receives_one_message_a_step(ranks: int) -> None:
    schedule = check_cost("double-binary-tree", Collective.ALL_REDUCE, ranks, segments=4)
    for ends in (schedule.src, schedule.dst):
        assert max(Counter(zip(schedule.step.tolist(), ends.tolist(), strict=True)).values()) == 1


def test_many_segments_come_near_the_bound() -> None:
    """M beta for a broadcast: half of what one binary tree needs through one port."""
    entry = find("double-binary-tree", Collective.BROADCAST)
    problem = Problem(topology=preset("star", gpus=64), collective=Collective.BROADCAST, root=5)
    assert entry.cost is not None
    (chain,) = entry.cost(case_of(entry, problem, {"segments": 200})).chains
    assert chain.sent < Fraction(104, 100)


def test_on_boxes_with_one_network_switch() -> None:
    body = made("double-binary-tree", Collective.ALL_REDUCE, preset("mi250", boxes=2), segments=2)
    verified(body)


def test_among_boxes_the_vertices_are_boxes() -> None:
    """Across rails only partners on one rail exchange: trees of ranks have no routes there, trees of boxes do."""
    problem = Problem(topology=preset("dgx-h100", boxes=4), collective=Collective.ALL_REDUCE)
    entry = find("double-binary-tree", Collective.ALL_REDUCE)
    body = make(entry, case_of(entry, problem))
    assert isinstance(body, Schedule)
    assert verify_schedule(body).ok
    with pytest.raises(UnreachableError):
        make(entry, case_of(entry, problem, {"layout": "flat"}))
    with pytest.raises(InputError, match="depends on the topology"):
        entry.cost(case_of(entry, problem))  # type: ignore[misc]
    single = Problem(topology=preset("star", gpus=8), collective=Collective.ALL_REDUCE)
    refused = entry.refusal(case_of(entry, single, {"layout": "boxes"}))
    assert refused is not None
    assert "needs equal boxes" in refused
