"""Placements timed: what is best, how far others are, and what cannot be asked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import coppice
from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison import placing
from coppice.comparison.placing import hierarchy_of, placement
from coppice.comparison.planned import plan_for
from coppice.errors import InputError, UnreachableError
from coppice.planners.alternatives import alternatives
from coppice.planners.choice import PlannerOptions
from coppice.planners.synthesis.p2.lowering import calls_of, chunks_of, schedule_of_all
from coppice.simulation import ALPHA_BETA, DEFAULT_MODEL
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.operations import remove_links, remove_nodes, subset
from coppice.topology.presets import preset


def test_the_best_placement_of_one_axis_keeps_it_in_a_box() -> None:
    found = placement(preset("dgx-a100", boxes=4), axes="dp=4,tp=8", reduce="dp,tp=0")
    assert found.number == 3
    assert found.best.placement.matrix == ((1, 4), (4, 2))
    assert found.default is not None
    assert found.default.placement.matrix == ((4, 1), (1, 8))
    assert found.default_factor is not None
    assert found.default_factor > 4
    assert found.spread >= found.default_factor
    assert found.verified == 8
    assert coppice.placement is placement


def test_blue_connect_is_the_best_program_across_many_boxes() -> None:
    found = placement(preset("dgx-a100", boxes=4), axes={"dp": 16, "tp": 2}, reduce="dp,tp=0")
    across = next(each for each in found.placed if each.placement.matrix == ((4, 4), (1, 2)))
    assert across.program == "reduce_scatter in node, all_reduce across node, all_gather in node"
    words = {each.words for each in across.reductions[0].programs}
    assert "reduce in node, all_reduce across node masters, broadcast in node" in words
    assert found.verified == 2
    plans = found.plans()
    assert [coppice.verify(each).ok for each in plans] == [True, True]
    assert coppice.simulate(plans[0], "1M").time_us > 0


def test_no_program_is_faster_than_the_bound() -> None:
    for axes, reduce in (("dp=4,tp=4", "dp,tp=0"), ("dp=2,tp=8", "dp,tp"), ("dp=4,pp=2,tp=2", "dp+tp,pp=0")):
        found = placement(preset("dgx-h100", boxes=2), axes=axes, reduce=reduce, model="alpha-beta")
        for each in found.placed:
            for one in each.reductions:
                assert one.bound_us > 0
                assert all(one.bound_us <= program.time_us * (1 + 1e-9) for program in one.programs)


def test_several_axes_in_turn_add_up() -> None:
    topology = preset("dgx-a100", boxes=2)
    both = placement(topology, axes="dp=2,tp=8", reduce="dp=64M,tp=1M")
    alone = {
        (name, each.placement.matrix): each.time_us
        for name, size in (("dp", "64M"), ("tp", "1M"))
        for each in placement(topology, axes="dp=2,tp=8", reduce=f"dp=0,tp=0,{name}={size}").placed
    }
    for each in both.placed:
        own = [alone[name, each.placement.matrix] for name in ("dp", "tp")]
        assert each.time_us == pytest.approx(sum(own))


def test_long_calls_take_what_they_take_in_full() -> None:
    """A ring of 20 and a chain are timed from their first rounds; all rounds take as long."""
    star = preset("star", gpus=20, gb_per_s=25)
    found = placement(star, axes="dp=20", reduce="dp")
    groups = found.best.reductions[0].groups
    model = replace(model_of(None), steps_bind=True)
    for program in found.best.reductions[0].programs:
        for call, time_us in zip(
            calls_of(program.program, [20], program.blocks), program.call_us, strict=True
        ):
            full = schedule_of_all(star, groups, [call], chunks_of(program.program, [20], program.blocks))
            assert fastest(full, 2**26, model=model, pieces=1).time_us == pytest.approx(time_us, rel=0.02)


def test_rails_are_used_without_relays() -> None:
    """NICs of dgx-h100 reach their own rail only: rings leave a box where they enter the next."""
    found = placement(preset("dgx-h100", boxes=3), axes="dp=24", reduce="dp", most_calls=1)
    assert found.best.program == "all_reduce"
    assert found.best.reductions[0].left_out == 0


@pytest.mark.parametrize("gpus", [1, 2, 3, 5])
def test_few_gpus(gpus: int) -> None:
    found = placement(preset("star", gpus=gpus), axes={"dp": gpus, "tp": 1}, reduce=["dp", "tp"])
    assert found.number == 1
    assert (found.best.time_us > 0) == (gpus > 1)
    assert found.best.reductions[1].best.words == "nothing to reduce"
    assert found.best.bound_us <= found.best.time_us


def test_linked_gpus_come_in_the_order_of_a_tour() -> None:
    """GPU 7 of a DGX-1V is not linked with GPU 0: a ring in the order of the ranks would need a relay."""
    found = placement("dgx-1v", axes="dp=8", reduce="dp")
    assert found.best.reductions[0].left_out == 0
    assert sorted(found.devices) == list(range(8))


def test_boxes_that_differ_are_one_level() -> None:
    uneven = subset(preset("dgx-a100", boxes=2), [0, 1, 2, 8, 9])
    assert hierarchy_of(uneven) == ({"gpu": 5}, (0, 1, 2, 3, 4))


def test_a_hierarchy_of_ones_own() -> None:
    found = placement(
        preset("dgx-a100-pcie"),
        axes="dp=2,tp=4",
        reduce="dp,tp=0",
        hierarchy="socket=2,switch=2,gpu=2",
        most_calls=3,
    )
    assert found.number == 3
    assert found.hierarchy == {"socket": 2, "switch": 2, "gpu": 2}


def test_the_same_question_gets_the_same_answer() -> None:
    answers = {
        json.dumps(placement(preset("mi300x", boxes=2), axes="dp=4,tp=4", reduce="dp,tp=0").record())
        for _ in range(2)
    }
    assert len(answers) == 1


def test_what_cannot_be_asked() -> None:
    topology = preset("dgx-a100", boxes=2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"axes": "dp=3,tp=5", "reduce": "dp,tp"}, "16 devices of node=2,gpu=8, found 15 of dp=3,tp=5"),
        ({"axes": "dp=16", "reduce": "pp"}, "`reduce` of dp, found 'pp'"),
        ({"axes": "dp=16", "reduce": ""}, "`reduce` of dp"),
        ({"axes": "dp=16", "reduce": "dp+dp"}, "once"),
        (
            {"axes": "dp=2,tp=8"},
            "what every axis exchanges .* found nothing of tp: .* `reduce=dp,tp=16M`, or tp=0",
        ),
        ({"axes": "dp=2,tp=8", "reduce": "dp=0,tp=0"}, "1 byte"),
        ({"axes": "dp=16", "size": 0}, "1 byte"),
        ({"axes": "dp=16", "hierarchy": "node=3,gpu=5"}, "16 GPUs"),
        ({"axes": "dp=16", "most_calls": 6}, "`most_calls=5`"),
        ({"axes": 7}, "axes"),
    ]
    for options, words in cases:
        with pytest.raises(InputError, match=words):
            placement(topology, **{"reduce": "dp", **options})
    apart = remove_links(preset("ring", gpus=4), [("gpu0", "gpu1"), ("gpu2", "gpu3")])
    with pytest.raises(UnreachableError, match="path from"):
        placement(apart, axes="dp=4", reduce="dp")


def test_ctrl_c_keeps_the_best_found_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = placing._PlacementSearch.placed
    calls = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return placed(*arguments)

    monkeypatch.setattr(placing._PlacementSearch, "placed", interrupted)
    found = placement(preset("dgx-a100", boxes=4), axes="dp=4,tp=8", reduce="dp,tp=0")
    assert found.interrupted
    assert (found.number, len(found.placed)) == (3, 2)


def dead_nic() -> Problem:
    """Two DGX A100 of which one has lost a NIC."""
    topology = remove_nodes(preset("dgx-a100", boxes=2), ["box1/nic0"])
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


@pytest.mark.parametrize("model", [DEFAULT_MODEL, ALPHA_BETA], ids=lambda model: model.name)
@pytest.mark.parametrize(
    "size", [2**10, *(pytest.param(size, marks=pytest.mark.slow) for size in (2**20, 2**28))]
)
@pytest.mark.spread(2)
def test_no_alternative_is_faster_at_the_size_that_was_asked_for(model, size) -> None:
    problem = dead_nic()
    found = plan_for(problem, size, model=model, ring=False)
    result, chosen = found.result, found.preferred
    assert result.report.ok
    own = fastest(result.plan.body, size, model=model).time_us
    assert chosen.time_us == {size: own}
    plain = PlannerOptions.of(problem)
    for other in alternatives(problem, plain, bound(problem)):
        assert own <= fastest(other.made.body, size, model=model).time_us, other.name


@pytest.mark.slow
def test_several_sizes_share_the_loss() -> None:
    chosen = plan_for(dead_nic(), "1K:1G:1024", ring=False).preferred
    assert list(chosen.time_us) == [2**10, 2**20, 2**30]
    assert 0 <= chosen.worst_loss < 0.5


def test_a_size_is_needed() -> None:
    with pytest.raises(InputError, match="sizes to plan for"):
        plan_for(dead_nic(), [])
