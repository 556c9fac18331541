"""P2: placements and programs against brute force, and every program verified as an all-reduce of its group."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.p2.group_bounds import groups_bound
from coppice.planners.synthesis.p2.lowering import (
    calls_of,
    chunks_of,
    group_schedule,
    round_trip,
    schedule_of_all,
    shares_of,
    transfers_of,
)
from coppice.planners.synthesis.p2.placements import default_placement, parse_counts, placements
from coppice.planners.synthesis.p2.reductions import programs
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset
from reference import p2

quick = settings(max_examples=30, deadline=None)


def split(number: int, parts: int, choose: random.Random) -> list[int]:
    """Numbers whose product is ``number``."""
    found = [1] * parts
    left = number
    for factor in (2, 2, 2, 2, 3, 3, 5):
        if left % factor == 0:
            found[choose.randrange(parts)] *= factor
            left //= factor
    found[0] *= left
    return found


@quick
@given(
    number=st.integers(1, 24), axes=st.integers(1, 3), levels=st.integers(1, 3), seed=st.integers(0, 10**6)
)
def test_placements_are_all_matrices_with_these_margins(
    number: int, axes: int, levels: int, seed: int
) -> None:
    choose = random.Random(seed)
    sizes = {f"a{i}": n for i, n in enumerate(split(number, axes, choose))}
    counts = {f"l{i}": n for i, n in enumerate(split(number, levels, choose))}
    found = placements(sizes, counts)
    matrices = [each.matrix for each in found]
    assert len(set(matrices)) == len(matrices)
    assert set(matrices) == p2.matrices(list(sizes.values()), list(counts.values()))
    usual = default_placement(sizes, counts)
    assert usual is None or usual in found
    reduced = {name for name in sizes if choose.random() < 0.5} or {"a0"}
    for each in found:
        groups = each.groups(reduced)
        assert {frozenset(row) for row in groups.tolist()} == p2.groups(
            each.matrix, {n for n, name in enumerate(sizes) if name in reduced}
        )
        assert prod(n for _, n in each.shape(reduced)) == groups.shape[1]


def test_three_placements_of_four_by_eight() -> None:
    found = placements({"dp": 4, "tp": 8}, {"node": 4, "gpu": 8})
    assert [each.matrix[0][0] for each in found] == [1, 2, 4]


def test_the_default_placement_is_the_mesh_of_the_frameworks() -> None:
    found = default_placement({"pp": 2, "dp": 4, "tp": 4}, {"node": 4, "gpu": 8})
    assert found is not None
    mesh = np.arange(32).reshape(2, 4, 4)
    for axis, name in enumerate(("pp", "dp", "tp")):
        rows = np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])
        assert sorted(found.groups([name]).tolist()) == sorted(rows.tolist())
        assert all((found.coordinates()[row] == np.unravel_index(row, mesh.shape)).all() for row in range(32))


@pytest.mark.parametrize(
    ("sizes", "most"), [([5], 5), ([2, 2], 5), ([2, 3], 4), ([3, 2], 4), ([4, 2], 3), ([2, 2, 2], 3)]
)
def test_programs_are_those_that_brute_force_finds(sizes: list[int], most: int) -> None:
    mine = {
        tuple(((each.form.value, each.depth, each.ancestor), each.operation.value) for each in program)
        for program in programs(len(sizes), most)
    }
    assert mine == p2.programs(sizes, most)


def test_known_programs_are_found() -> None:
    found = {tuple(each.words(["node", "gpu"]) for each in program) for program in programs(2)}
    assert ("reduce_scatter in node", "all_reduce across node", "all_gather in node") in found
    assert ("reduce in node", "all_reduce across node masters", "broadcast in node") in found
    assert ("all_reduce",) in found


@pytest.mark.parametrize("sizes", [[2], [3], [5], [2, 2], [2, 3], [3, 2], [3, 4], [2, 2, 2], [3, 2, 2]])
@pytest.mark.spread(2)
def test_every_program_is_an_all_reduce(sizes: list[int]) -> None:
    count = prod(sizes)
    star = preset("star", gpus=count)
    every = programs(len(sizes), 5)
    for program in every[:: 1 + len(every) // 60]:
        calls = calls_of(program, sizes)
        assert verify_schedule(group_schedule(star, range(count), calls, chunks_of(program, sizes))).ok, (
            program
        )


def test_a_program_without_its_last_call_is_none() -> None:
    star = preset("star", gpus=6)
    for program in programs(2, 3):
        if len(program) > 1:
            calls = calls_of(program, [2, 3])[:-1]
            assert not verify_schedule(group_schedule(star, range(6), calls, chunks_of(program, [2, 3]))).ok


@pytest.mark.parametrize("sizes", [[4], [2, 3], [4, 2], [2, 2, 2]])
def test_shares_and_numbers_are_those_of_the_transfers(sizes: list[int]) -> None:
    for program in programs(len(sizes), 3):
        calls = calls_of(program, sizes)
        assert transfers_of(program, sizes) == sum(len(call.chunk) for call in calls)
        for call, share in zip(calls, shares_of(program, sizes), strict=True):
            # Around a ring every member sends (members - 1) parts; along a chain all of it passes each hop.
            places = call.instruction.members(sizes)
            count = len(places[0])
            whole = chunks_of(program, sizes) * share * len(places) * (count - 1)
            times = {"all_reduce": 2, "all_gather": count}.get(call.instruction.operation.value, 1)
            assert len(call.chunk) == whole * times


@given(sizes=st.lists(st.integers(2, 5), min_size=1, max_size=3))
def test_a_round_trip_changes_one_level_a_step(sizes: list[int]) -> None:
    order = round_trip(sizes)
    assert sorted(order) == list(range(prod(sizes)))
    if len(sizes) == 1 or (sizes[0] % 2 and prod(sizes[1:]) == 2):
        return
    inner = prod(sizes[1:])
    for a, b in zip(order, [*order[1:], order[0]], strict=True):
        assert a // inner == b // inner or a % inner == b % inner


@quick
@given(seed=st.integers(0, 10**6))
def test_the_bound_of_groups_holds(seed: int) -> None:
    choose = random.Random(seed)
    boxes, gpus = choose.choice([2, 3, 4]), choose.choice([2, 4])
    topology = preset("fat-tree", leaves=boxes, gpus_per_leaf=gpus, spines=choose.choice([1, 2]))
    order = list(range(boxes * gpus))
    choose.shuffle(order)
    size = choose.choice([n for n in (2, 3, 4, 6) if len(order) % n == 0])
    groups = np.array(order).reshape(-1, size)
    parts = [("node", np.arange(boxes * gpus).reshape(boxes, -1).tolist()), ("gpu", [[r] for r in order])]
    found = groups_bound(topology, groups, parts)
    program = choose.choice(programs(1))
    calls = calls_of(program, [size])
    everywhere = schedule_of_all(topology, groups, calls, chunks_of(program, [size]))
    model = replace(Model(overhead_us=0), steps_bind=False)
    m = 1_000_000 * size
    timeline = fastest(everywhere, m * len(groups), model=model, pieces=1, keep_hops=False)
    assert timeline.time_us * 1000 >= float(found.ns_per_byte * m) * (1 - 1e-9)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "mi300x"])
def test_the_bound_of_one_group_is_that_of_an_all_reduce(name: str) -> None:
    topology = preset(name, boxes=2)
    ranks = np.arange(16)
    parts = [("node", ranks.reshape(2, 8).tolist()), ("gpu", ranks.reshape(16, 1).tolist())]
    found = groups_bound(topology, ranks.reshape(1, 16), parts)
    exact = bound(Problem(topology, Collective.ALL_REDUCE))
    assert Fraction(9, 10) / exact.algbw_gb_per_s <= found.ns_per_byte <= 1 / exact.algbw_gb_per_s


@pytest.mark.parametrize("text", ["", "dp", "dp=0", "dp=-1", "dp=x", "dp=2,dp=2", "dp=2,", "dp=9999999"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(InputError, match="`axes`"):
        parse_counts(text, option="axes")
