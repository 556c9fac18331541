"""Algorithms that work level by level: tori, BlueConnect, EFLOPS, PLink, and the k-grouped all-reduce."""

from __future__ import annotations

from math import prod

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.hierarchies.levels import halves
from coppice.topology.presets import preset
from planners.algorithms.crossbar import RANKS, check_cost, made, verified, with_ranks_shuffled

ALL = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("name", "collective"),
    [
        *((name, collective) for name in ("2d-torus", "blueconnect", "accl") for collective in ALL),
        ("plink", Collective.ALL_REDUCE),
        ("k-grouped", Collective.ALL_REDUCE),
    ],
)
def test_cost(name: str, collective: Collective, ranks: int) -> None:
    check_cost(name, collective, ranks)


@pytest.mark.parametrize(("columns", "ranks"), [(1, 6), (2, 6), (3, 6), (6, 6), (4, 24), (8, 64)])
def test_steps_of_the_torus(columns: int, ranks: int) -> None:
    schedule = check_cost("2d-torus", Collective.ALL_REDUCE, ranks, columns=columns)
    assert int(schedule.step.max()) + 1 == 2 * (columns - 1) + 2 * (ranks // columns - 1)


def test_rows_of_the_torus_move_more_than_columns() -> None:
    schedule = check_cost("2d-torus", Collective.REDUCE_SCATTER, 12, columns=4)
    along_rows = schedule.src // 4 == schedule.dst // 4
    assert int(along_rows.sum()) == 12 * 3 * 3
    assert int((~along_rows).sum()) == 12 * 2 * 1


@pytest.mark.parametrize("levels", ["2x2x2x3", "24", "3x8", "8x3", "4x1x6"])
def test_steps_of_blueconnect(levels: str) -> None:
    sizes = [int(part) for part in levels.split("x")]
    schedule = check_cost("blueconnect", Collective.ALL_REDUCE, prod(sizes), levels=levels)
    assert int(schedule.step.max()) + 1 == 2 * sum(size - 1 for size in sizes)


@pytest.mark.parametrize(("group", "ranks"), [(1, 16), (3, 24), (4, 32), (8, 8)])
@pytest.mark.parametrize("mapping", ["natural", "opposite"])
def test_steps_of_accl(group: int, ranks: int, mapping: str) -> None:
    schedule = check_cost("accl", Collective.ALL_REDUCE, ranks, group=group, mapping=mapping)
    assert int(schedule.step.max()) + 1 == 2 * (group - 1) + 2 * (ranks // group - 1).bit_length()
    if mapping == "opposite" and ranks > group:
        between = schedule.src // group != schedule.dst // group
        half = ranks // 2
        assert ((schedule.src[between] < half) != (schedule.dst[between] < half)).all()


@pytest.mark.parametrize("groups", [1, 2, 4, 16, 64])
def test_halves_are_apart_in_every_bit(groups: int) -> None:
    near = [group < (groups + 1) // 2 for group in halves(groups)]
    assert sorted(halves(groups)) == list(range(groups))
    for bit in range((groups - 1).bit_length()):
        assert all(near[number] != near[number ^ (1 << bit)] for number in range(groups))


def test_leaders_of_plink_rotate() -> None:
    """In the first level every rank receives the part of its own number only, straight from its owner."""
    schedule = check_cost("plink", Collective.ALL_REDUCE, 24, group=4)
    first = schedule.step < 3
    assert (schedule.src[first] // 4 == schedule.dst[first] // 4).all()
    assert (schedule.chunk[first] % 4 == schedule.dst[first] % 4).all()


def test_steps_of_k_grouped() -> None:
    """4 (k - 1) + 2 (P/k - 1): 186 where one ring takes 2046."""
    entry = find("k-grouped", Collective.ALL_REDUCE)
    problem = Problem(topology=preset("star", gpus=1024), collective=Collective.ALL_REDUCE)
    assert entry.cost is not None
    assert entry.cost(case_of(entry, problem, {"k": 16})).steps == 186
    ring = find("ring", Collective.ALL_REDUCE)
    assert ring.cost is not None
    assert ring.cost(case_of(ring, problem)).steps == 2046
    for k, ranks in ((1, 7), (2, 12), (12, 12), (8, 64)):
        schedule = check_cost("k-grouped", Collective.ALL_REDUCE, ranks, k=k)
        assert int(schedule.step.max()) + 1 == 4 * (k - 1) + 2 * (ranks // k - 1)
        masters = schedule.src // k != schedule.dst // k
        assert not (schedule.src[masters] % k).any()
        assert not (schedule.dst[masters] % k).any()


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("2d-torus", {"columns": 5}, "divide 12 ranks, found 5"),
        ("blueconnect", {"levels": "4x4"}, "multiply to 12 ranks, found '4x4'"),
        ("blueconnect", {"levels": "grid"}, "multiply to 12 ranks, found 'grid'"),
        ("accl", {"group": 4}, "power of two of groups, found 3 of 4 ranks"),
        ("accl", {"group": 5}, "divides 12 ranks, found 5"),
        ("plink", {"group": 5}, "divides 12 ranks, found 5"),
        ("k-grouped", {"k": 5}, "divides 12 ranks, found 5"),
        ("nccl-tree", {"group": 5}, "divides 12 ranks, found 5"),
        ("hierarchical", {"group": 5}, "divides 12 ranks, found 5"),
    ],
)
def test_refusals(name: str, given: dict[str, int | str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        made(name, Collective.ALL_REDUCE, preset("star", gpus=12), **given)


@pytest.mark.parametrize(
    "name", ["2d-torus", "blueconnect", "accl", "plink", "k-grouped", "hierarchical", "nccl-tree"]
)
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
def test_boxes_meet_on_one_rail(name: str, machine: str) -> None:
    """Boxes and rails are found whatever the numbering, so no other GPU has to forward."""
    topology = with_ranks_shuffled(preset(machine, boxes=4), seed=7)
    verified(made(name, Collective.ALL_REDUCE, topology))
