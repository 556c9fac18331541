"""How plans are made to fit: other numbers of trees, what that loses, and the sizes at which the file is worth it."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.export.msccl.program import MscclOptions, program_for, rough_program
from coppice.export.msccl.rows import excesses
from coppice.fitting.size_range import (
    LADDER,
    Matchup,
    WinningRange,
    _best_run,
    block_gb_per_s,
    busiest_gb_per_s,
    winning_range,
)
from coppice.fitting.trees import FittedPlan, fit_trees, takes
from coppice.planners.planning import plan as make_plan
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset

SIZES = tuple(2**exponent for exponent in range(20, 31))


def planned(
    name: str, collective: Collective = Collective.ALL_REDUCE, *, trees: int | None = None, **options: int
) -> Plan:
    problem = Problem(
        topology=preset(name, **options), collective=collective, root=0 if collective.rooted else None
    )
    return make_plan(problem, trees=trees, ring=False).plan


def fitted(plan: Plan, target: str, form: MscclOptions | None = None, **options: Any) -> FittedPlan:
    form = form or MscclOptions()
    lowering = partial(rough_program, target=target, form=form)
    return fit_trees(plan, lowering, instances=form.instances, **options)


def test_a_plan_that_fits_is_taken_as_it_is() -> None:
    plan = planned("mi250", boxes=2)
    found = fitted(plan, "rccl")
    assert found.plan is plan
    assert (found.trees, found.reason, found.loss, found.left_out) == (None, "", 0, ())
    assert found.program.num_chunks == 32 * 83


def test_chunks_divide_the_sizes() -> None:
    """83 trees divide no power of two: the best number that does is taken, not the next smaller power."""
    plan = planned("mi250", boxes=2)
    found = fitted(plan, "rccl", sizes=SIZES)
    assert found.trees == 128
    assert found.left_out == ()
    assert "2,656 chunks do not divide" in found.reason
    assert not excesses(found.program, target="rccl")
    assert verify(found.plan).ok
    assert found.plan.bound is not None
    assert found.loss == 1 - found.plan.bound.inv_rate / found.plan.inv_rate == Fraction(19, 16019)
    assert fitted(plan, "rccl", trees=64).plan.inv_rate >= found.plan.inv_rate


@pytest.mark.slow
@pytest.mark.parametrize("trees", [1, 2, 4, 8, 16, 32])
def test_no_smaller_power_of_two_is_faster(trees: int) -> None:
    plan = planned("mi250", boxes=2)
    found = fitted(plan, "rccl", sizes=SIZES)
    assert fitted(plan, "rccl", trees=trees).plan.inv_rate >= found.plan.inv_rate


def test_sizes_that_no_number_of_trees_divides_are_told() -> None:
    found = fitted(planned("dgx-a100", boxes=3), "msccl", sizes=SIZES)
    assert found.left_out == SIZES  # 24 ranks: 2^n float32 are no multiple of 24
    whole = fitted(planned("dgx-a100", boxes=3), "msccl", sizes=[24 * 2**20])
    assert whole.left_out == ()
    gather = fitted(planned("dgx-a100", Collective.ALL_GATHER, boxes=3), "msccl", sizes=SIZES)
    assert gather.left_out == ()  # every rank has whole elements, as nccl-tests sees to it


def test_sizes_count_elements_of_whole_blocks() -> None:
    program = lower_to_program(planned("star", Collective.ALL_GATHER, trees=1, gpus=3).body)
    assert takes(program, 2**20)
    assert not takes(program, 8)
    assert not takes(program, 0)
    whole = lower_to_program(planned("star", Collective.ALL_REDUCE, trees=1, gpus=3).body)
    assert not takes(whole, 2**20)
    assert takes(whole, 3 * 2**20)


def test_what_does_not_fit_names_the_nearest_number_that_does() -> None:
    """Both neighbours are tried here: the named number fits, one more does not."""
    plan = planned("mi250", Collective.ALL_GATHER, boxes=2)
    form = MscclOptions(channels=1)
    with pytest.raises(CheckError) as caught:
        fitted(plan, "azure-executor", form, keep=True)
    words = str(caught.value)
    assert "steps in a thread block where 64 are allowed" in words
    assert "too many" in words
    nearest = int(words.split("that fits is ")[1].split()[0])
    assert nearest != 83
    inner = nearest + (1 if nearest < 83 else -1)
    assert f"(`trees={nearest}`)" in words
    rough_program(
        planned("mi250", Collective.ALL_GATHER, boxes=2, trees=nearest).body, "azure-executor", form
    )
    with pytest.raises(CheckError):
        fitted(plan, "azure-executor", form, trees=inner)
    # Left to itself, it takes the fastest that fits.
    found = fitted(plan, "azure-executor", form)
    assert found.trees is not None
    assert "are allowed" in found.reason


@pytest.mark.slow
def test_the_nearest_number_is_found_between_those_that_were_tried_first() -> None:
    plan = planned("mi250", boxes=2)
    form = MscclOptions(channels=4)
    with pytest.raises(
        CheckError, match=r"the nearest number of trees per root that fits is 69 \(`trees=69`\)"
    ):
        fitted(plan, "rccl", form, keep=True)
    assert fitted(plan, "rccl", form, trees=69).trees == 69
    with pytest.raises(CheckError, match="are allowed"):
        rough_program(planned("mi250", boxes=2, trees=70).body, "rccl", form)


def test_where_nothing_fits_it_says_so() -> None:
    with pytest.raises(CheckError, match="no other number of trees per root that was tried fits"):
        fitted(planned("star", Collective.ALL_GATHER, gpus=66), "rccl")
    ring = make_plan(
        Problem(topology=preset("star", gpus=70), collective=Collective.ALL_GATHER), algorithm="ring"
    ).plan
    with pytest.raises(CheckError, match=r"steps in a thread block|elements that a rank") as caught:
        fitted(ring, "rccl")
    assert "trees=N" not in str(caught.value)
    with pytest.raises(
        InputError, match="expected a plan of the forest planner with `trees`, found one by ring"
    ):
        fitted(ring, "msccl", trees=2)


def test_instances_stay_within_the_limits() -> None:
    plan = planned("dgx-a100", Collective.ALL_GATHER, trees=1)
    one, four = fitted(plan, "rccl"), fitted(plan, "rccl", MscclOptions(instances=4))
    assert four.program.most_blocks == 4 * one.program.most_blocks <= 64
    assert four.program.num_chunks == 4 * one.program.num_chunks
    with pytest.raises(
        CheckError, match="at most 64 thread blocks a rank, found 70, one for each peer and each of 10"
    ):
        fitted(plan, "rccl", MscclOptions(instances=10))
    with pytest.raises(CheckError, match="at most 3 instances, one channel each, found 4"):
        fitted(plan, "rccl", MscclOptions(instances=4, channels=3))
    # The busiest thread block has a quarter of the work.
    rate = plan.algbw_gb_per_s
    assert busiest_gb_per_s(one.program, rate) == 4 * busiest_gb_per_s(four.program, rate) == Fraction(300, 7)


def test_load_of_a_thread_block_is_known_where_the_gpus_are() -> None:
    assert block_gb_per_s(preset("dgx-a100"), "Simple") == 24.0
    assert block_gb_per_s(preset("mi250"), "Simple") is None
    assert block_gb_per_s(preset("dgx-a100"), "LL") is None


def test_range_begins_where_the_plan_wins() -> None:
    plan = planned("dgx-a100", Collective.ALL_GATHER, trees=1)
    found = winning_range(plan, program_for(plan.body, "msccl", MscclOptions(instances=2)))
    assert found is not None
    assert found.max_bytes is None
    assert found.above is None
    assert found.below is not None
    assert found.below.size_bytes * 2 == found.min_bytes
    assert not found.below.won
    assert all(matchup.won for matchup in found.inside)
    assert {matchup.size_bytes for matchup in found.matchups} >= set(LADDER)
    # One thread block for each connection cannot carry the rate: at large sizes the library is faster.
    slow = winning_range(plan, program_for(plan.body, "msccl"))
    assert slow is not None
    assert slow.max_bytes is not None
    assert slow.above is not None
    assert not slow.above.won
    assert slow.min_bytes == found.min_bytes


def test_range_of_a_plan_that_is_what_the_library_does_is_none() -> None:
    problem = Problem(topology=preset("mi300x"), collective=Collective.ALL_TO_ALL)
    same = make_plan(problem, algorithm="linear").plan
    assert winning_range(same, program_for(same.body, "rccl")) is None


def test_range_gains_most_in_all() -> None:
    def matchups(*gains: float) -> list[Matchup]:
        return [
            Matchup(size_bytes=4**number, plan_us=1.0, rival_us=gain, rival="ring")
            for number, gain in enumerate(gains)
        ]

    assert _best_run(matchups(0.5, 0.9)) == []
    assert [matchup.size_bytes for matchup in _best_run(matchups(2, 0.99, 3, 0.5))] == [1, 4, 16]
    assert [matchup.size_bytes for matchup in _best_run(matchups(1.1, 0.5, 3, 2))] == [16, 64]
    found = WinningRange(min_bytes=4, max_bytes=16, matchups=tuple(matchups(0.5, 2, 2, 0.5)))
    assert [matchup.size_bytes for matchup in found.inside] == [4, 16]
    assert (found.below, found.above) == (found.matchups[0], found.matchups[3])


def test_topologies_without_rivals_are_refused() -> None:
    wires = [Link(src="a", dst="b", gb_per_s=Fraction(1)), Link(src="b", dst="c", gb_per_s=Fraction(1))]
    chain = Topology.of("chain", [Node(id=name) for name in "abc"], wires)
    plan = make_plan(Problem(topology=chain, collective=Collective.ALL_TO_ALL)).plan
    with pytest.raises(InputError, match="expected a ring or tree to compare with"):
        winning_range(plan, program_for(plan.body, "msccl"))


def test_many_boxes_fit_the_executor() -> None:
    """More than 32 peers on a channel, and more than 127 thread blocks of which some are waited for."""
    plan = planned("dgx-h100", Collective.ALL_GATHER, boxes=64, trees=1)
    program = program_for(plan.body, "azure-executor")
    assert program.most_blocks > 128
    assert int(program.dep_block.max()) < 128
    assert program.num_channels <= 32
    assert not excesses(program, target="azure-executor")
