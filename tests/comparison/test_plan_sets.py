"""Sets of plans: fewest changes by brute force, changes by bisection, and what a set promises at every size."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import coppice
from coppice.bounds.problem import Problem
from coppice.comparison import compare
from coppice.comparison.plan_sets import change_between, fewest_changes, plan_set
from coppice.comparison.planned import NEAR
from coppice.errors import CheckError, InputError
from coppice.schedule.files.set_file import PlanSet, read_plan_set
from coppice.schedule.verification.verify import verify_plan_set
from coppice.simulation.models import model_of
from coppice.simulation.set_times import timer_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset
from support.random_clusters import boxes

times = st.sampled_from([1.0, 1.01, 1.02, 1.05, 1.3, 2.0, 7.0])


def cost(table: list[list[float]], rows: tuple[int, ...]) -> tuple[int, Fraction]:
    """Changes and losses of a way to take a plan at each size."""
    columns = list(zip(*table, strict=True))
    lost = sum(
        Fraction(column[row]) / Fraction(min(column)) - 1 for row, column in zip(rows, columns, strict=True)
    )
    return sum(one != other for one, other in pairwise(rows)), Fraction(lost)


@given(data=st.data(), share=st.sampled_from([0.0, 0.02, 0.1, 1.5]))
@settings(max_examples=200, deadline=None)
def test_no_way_to_take_plans_changes_less_often_or_loses_less(data: st.DataObject, share: float) -> None:
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    table = data.draw(
        st.lists(st.lists(times, min_size=columns, max_size=columns), min_size=rows, max_size=rows)
    )
    good = [
        [row for row in range(rows) if at[row] <= min(at) * (1 + share)] for at in zip(*table, strict=True)
    ]
    found = tuple(fewest_changes(table, share))
    assert all(row in allowed for row, allowed in zip(found, good, strict=True))
    assert cost(table, found) == min(cost(table, each) for each in product(*good))


@given(low=st.integers(1, 2**20), factor=st.integers(2, 64), cross=st.integers(0, 2**26))
@settings(max_examples=200, deadline=None)
def test_a_change_is_found_to_an_eighth_of_a_doubling(low: int, factor: int, cross: int) -> None:
    high = low * factor
    found = change_between(low, high, lambda size: size >= cross)
    unit = max(1, (1 << (found.bit_length() - 1)) // 8)
    assert low < found <= high
    assert found == high or not found % unit
    if low < cross <= high:
        assert cross <= found < cross + unit


@pytest.mark.parametrize(
    "collective",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("all_reduce", "broadcast")),
        *("all_gather", "all_to_all"),
    ],
)
@given(data=st.data())
@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_at_every_size_the_plan_is_as_fast_as_promised(
    collective: str, data: st.DataObject, tmp_path: Path
) -> None:
    topology = data.draw(boxes())
    share = data.draw(st.sampled_from([0.0, 0.03, 0.5]))
    problem = Problem(topology, collective, root=0 if collective == "broadcast" else None)
    sizes = [4**power for power in range(5, 13, 2)]
    found = plan_set(problem, sizes, least_gain=share, ring=False)
    plans = found.plans
    rows = compare(problem, sizes=sizes, jobs=1, in_network=False, relay_gpus=False)
    for size, row in zip(sizes, plans.sizes, strict=True):
        own = fastest(plans.at(size).body, size, model=model_of(None)).time_us
        best = rows.best(size)
        assert row.size_bytes == size
        assert row.simulated_seconds == pytest.approx(own / 1e6)
        assert row.simulated_seconds <= row.fastest_seconds * (1 + share) * (1 + 1e-9)
        assert best is None or row.fastest_seconds <= best.time_us / 1e6 * NEAR
        assert row.gap == pytest.approx(max(0, own / 1e6 / row.least_seconds - 1), abs=1e-9)
        single = found.single.preferred.time_us[size] / 1e6
        assert row.fastest_seconds <= single * (1 + 1e-9)
    for one, other in pairwise(plans.ranges):
        # Both plans were simulated on either side of the change.
        assert one.plan is not other.plan
        at = other.first_bytes
        assert _us(other.plan, at) <= _us(one.plan, at) or at == other.sizes[0].size_bytes
    back = read_plan_set(plans.save(tmp_path / "plans") and tmp_path / "plans")
    assert verify_plan_set(back, time_us=timer_of(back)).ok


def _us(plan: object, size: int) -> float:
    return fastest(coppice.schedule.files.plan_file.body_of(plan), size, model=model_of(None)).time_us


@pytest.fixture(scope="module")
def plans() -> PlanSet:
    return coppice.plan_set(preset("star", gpus=6), "all_reduce", sizes="1K:64M:16")


def test_a_set_has_a_plan_for_every_size(plans: PlanSet) -> None:
    assert len(plans.plans) > 1
    assert plans.ranges[0].first_bytes == 0
    assert plans.ranges[-1].last_bytes is None
    for one, other in pairwise(plans.ranges):
        assert other.first_bytes == (one.last_bytes or 0) + 1
        assert plans.at(other.first_bytes) is other.plan
        assert plans.at(other.first_bytes - 1) is one.plan
    assert plans.at(0) is plans.ranges[0].plan
    assert plans.at("64G") is plans.ranges[-1].plan


@pytest.mark.parametrize(
    ("name", "gpus", "sizes"),
    [("ring", 4, "1K,64M"), pytest.param("star", 6, "1K:64M:16", marks=pytest.mark.slow)],
)
def test_larger_losses_mean_fewer_plans(name: str, gpus: int, sizes: str) -> None:
    problem = Problem(preset(name, gpus=gpus), "all_reduce")
    counts = [
        len(plan_set(problem, sizes, least_gain=share, ring=False).plans.ranges) for share in (0, 0.03, 3)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_the_same_set_has_the_same_bytes(plans: PlanSet, tmp_path: Path) -> None:
    again = coppice.plan_set(preset("star", gpus=6), "all_reduce", sizes="1K:64M:16")
    plans.save(tmp_path / "one")
    again.save(tmp_path / "other")
    files = sorted(each.name for each in (tmp_path / "one").iterdir())
    assert files == sorted(each.name for each in (tmp_path / "other").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_claims_of_time_are_simulated_again(plans: PlanSet) -> None:
    assert verify_plan_set(plans, time_us=timer_of(plans)).ok
    with pytest.raises(CheckError, match=r"expected a simulated time of .*, as claimed, found"):
        verify_plan_set(plans, time_us=lambda *_: 1.0).require_ok()


def test_what_no_set_can_be_made_for() -> None:
    star = preset("star", gpus=4)
    with pytest.raises(InputError, match="expected sizes for a set of plans, found none"):
        coppice.plan_set(star, "all_reduce")
    with pytest.raises(InputError, match="expected `least_gain`"):
        coppice.plan_set(star, "all_reduce", sizes="1K", least_gain=-1)
    with pytest.raises(InputError, match="found `prefer=low` as well"):
        coppice.plan_set(star, "all_reduce", sizes="1K", prefer="low")
