"""The search for an order: verified, repeatable, within its budget, and faster where links idled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.comparison.sizes.ordered import OrderSearch
from coppice.planners.choice import from_catalogue
from coppice.planners.ordering import plainly
from coppice.planners.planning import plan
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset


@pytest.mark.parametrize(
    "model", ["nccl-2.30", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mpi-tcp", "ideal"))]
)
@pytest.mark.parametrize(
    ("name", "more", "collective"),
    [
        ("dgx-a100", {"boxes": 2}, "all_reduce"),
        ("dgx-1v", {}, "all_gather"),
        ("dgx-a100", {"boxes": 2}, "all_to_all"),
    ],
)
def test_an_order_takes_what_it_says_and_no_less_than_the_least_time(
    name: str, more: dict[str, object], collective: str, model: str
) -> None:
    problem, assumed = Problem(preset(name, **more), collective), model_of(model)
    body = plan(problem, ring=False).plan.body
    for size in (2**16, 2**21):
        found = OrderSearch(body, assumed, 2**18).fastest(size, below_us=np.inf)
        again = OrderSearch(body, assumed, 2**18).fastest(size, below_us=np.inf)
        assert found is not None
        assert again is not None
        assert verify_schedule(found.schedule).ok
        assert np.array_equal(found.schedule.src, again.schedule.src)
        assert found.time_us == again.time_us
        # A number of pieces that saves less than 0.2% for each doubling is not taken.
        assert fastest(found.schedule, size, model=assumed).time_us <= found.time_us * 1.02
        assert found.time_us >= LeastTimes(problem, assumed).at(size).time_us * (1 - 1e-9)


def test_links_that_idled_do_not_in_order() -> None:
    problem, model = Problem(preset("dgx-1v"), "all_reduce"), model_of(None)
    ring = from_catalogue(problem, "best-ring").body
    least = LeastTimes(problem, model).at(2**18).time_us
    found = OrderSearch(ring, model, 2**18).fastest(2**18, below_us=np.inf)
    assert found is not None
    assert found.time_us < 1.01 * least
    assert fastest(ring, 2**18, model=model).time_us > 1.1 * least


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_reduce"])
def test_ranks_hold_back_what_is_not_urgent(collective: str) -> None:
    """What is ready at once keeps the channels of a GPU from sums that are urgent, but come later."""
    problem, model = Problem(preset("dgx-a100", boxes=2), collective), model_of(None)
    body = plan(problem, trees=1).plan.body
    found = OrderSearch(body, model, 2**18).fastest(2**18, below_us=np.inf)
    assert found is not None
    rows = found.schedule
    waiting = np.repeat(np.arange(rows.num_transfers), np.diff(rows.after_start))
    assert len(waiting)
    assert (rows.dst[rows.after] == rows.src[waiting]).all()  # a rank knows of its own receipts only
    assert verify_schedule(rows).ok
    least = LeastTimes(problem, model).at(2**18).time_us
    free = replace(rows, after_start=np.zeros(rows.num_transfers + 1, dtype=np.int64), after=rows.after[:0])
    assert least * (1 - 1e-9) <= found.time_us < 1.01 * least
    assert fastest(free, 2**18, model=model).time_us > 1.1 * least
    assert fastest(body, 2**18, model=model).time_us > 1.2 * least


def test_sums_are_put_where_copies_stand_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, model, size = Problem(preset("dgx-a100", boxes=2), "reduce_scatter"), model_of(None), 2**22
    body = plan(problem).plan.body
    found = OrderSearch(body, model, 2**18).fastest(size, below_us=np.inf)
    assert found is not None
    assert verify_schedule(found.schedule).ok
    least = LeastTimes(problem, model).at(size).time_us
    assert least * (1 - 1e-9) <= found.time_us < 1.02 * least
    monkeypatch.setattr(OrderSearch, "_mirrored", lambda *_: None)
    forwards = OrderSearch(body, model, 2**18).fastest(size, below_us=np.inf)
    assert forwards is not None
    assert forwards.time_us > 1.02 * found.time_us


def test_what_needs_its_steps_goes_in_pieces() -> None:
    """Ranks that exchange sums do so in one step; pieces pass from level to level while others are still added."""
    problem, model, size = Problem(preset("dgx-a100", boxes=2), "all_reduce"), model_of(None), 2**16
    body = from_catalogue(problem, "two-level", {"inside": "at-once", "between": "whole"}).body
    found = OrderSearch(body, model, 2**18).fastest(size, below_us=np.inf)
    assert found is not None
    assert found.pieces > 1
    assert verify_schedule(found.schedule).ok
    least, whole = LeastTimes(problem, model).at(size).time_us, fastest(body, size, model=model)
    assert least < found.time_us < 1.07 * least < 1.19 * least < whole.time_us
    # Rows of later pieces are held back: free, they stand in line before what is urgent.
    rows = found.schedule
    waiting = np.repeat(np.arange(rows.num_transfers), np.diff(rows.after_start))
    assert len(waiting)
    assert (rows.dst[rows.after] == rows.src[waiting]).all()
    assert (rows.step[rows.after] < rows.step[waiting]).all()
    assert fastest(plainly(rows), size, model=model).time_us > 1.02 * found.time_us
    # Where ranks wait for all of a step, as in MPI, pieces gain nothing.
    assert OrderSearch(body, model_of("mpi-tcp"), 2**18).fastest(size, below_us=np.inf) is None


def test_a_budget_and_a_time_to_undercut_are_kept() -> None:
    problem, model = Problem(preset("dgx-1v"), "all_gather"), model_of(None)
    body = plan(problem, ring=False).plan.body
    assert OrderSearch(body, model, 10).fastest(2**20, below_us=np.inf) is None
    search = OrderSearch(body, model, 2**14)
    found = search.fastest(2**20, below_us=np.inf)
    assert found is not None
    assert OrderSearch(body, model, 2**14).fastest(2**20, below_us=found.time_us / 2) is None


@pytest.mark.slow
def test_a_plan_for_a_size_is_in_order_where_that_is_faster() -> None:
    problem = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    quick, normal = (plan_for(problem, "4M", effort=each, ring=False) for each in ("quick", "normal"))
    assert "ordered in" in normal.preferred.taken.name
    assert normal.result.plan.parameters["ordered_for"] == 2**22
    assert normal.result.report.ok
    assert normal.gap(2**22) < 0.06 < quick.gap(2**22)


@pytest.mark.slow
def test_orders_are_for_sizes_about_their_own() -> None:
    problem = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    found = plan_for(problem, [2**14, 2**22, 2**30], ring=False)
    assert found.preferred.taken.size_bytes is None
    assert "ordered in" in found.preferred.fastest[2**22][0]
    assert found.preferred.worst_loss < np.inf


def test_small_messages_take_few_hops() -> None:
    problem = Problem(preset("dgx-1v"), "all_gather")
    quick, normal = (plan_for(problem, "1K", effort=each, ring=False) for each in ("quick", "normal"))
    hops = normal.result.plan.parameters
    assert hops.get("height") == 2 or "matched_for" in hops
    assert normal.result.report.ok
    assert normal.gap(1024) < 0.02 < quick.gap(1024)


def test_trees_of_few_hops_are_for_equal_shares() -> None:
    weighted = Problem(preset("dgx-1v"), "all_gather", weights=(1, 2, 1, 1, 1, 1, 1, 1))
    found = plan_for(weighted, "1K", ring=False)
    assert "height" not in found.result.plan.parameters
    assert found.result.report.ok
