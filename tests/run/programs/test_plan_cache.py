"""Plans on disk: found again, never believed when damaged, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.planning import plan
from coppice.run.programs.planned import PlanCache, cache_directory
from coppice.schedule.plan import Plan
from support.run_cases import star

PROBLEM = Problem(topology=star(3), collective=Collective.ALL_GATHER)


class Planner:
    """Counts how often it is asked."""

    def __init__(self, problem: Problem = PROBLEM) -> None:
        self.problem, self.calls = problem, 0

    def __call__(self) -> Plan:
        self.calls += 1
        return plan(self.problem, ring=False).plan


def test_a_plan_is_made_once(tmp_path: Path) -> None:
    make = Planner()
    first = PlanCache(tmp_path).plan(PROBLEM, "forest", make)
    again = PlanCache(tmp_path).plan(PROBLEM, "forest", make)
    assert make.calls == 1
    assert again.inv_rate == first.inv_rate
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [
        PlanCache(tmp_path).path(PROBLEM, "forest").name
    ]


def test_everything_that_matters_is_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PlanCache(tmp_path)
    names = {
        cache.path(PROBLEM, "forest"),
        cache.path(PROBLEM, "ring"),
        cache.path(Problem(topology=star(4), collective=Collective.ALL_GATHER), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.ALL_REDUCE), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.BROADCAST, root=0), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.BROADCAST, root=1), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.ALL_GATHER, weights=(1, 2, 3)), "forest"),
    }
    monkeypatch.setattr("coppice.version.__version__", "9.9")
    names.add(cache.path(PROBLEM, "forest"))
    assert len(names) == 8


@pytest.mark.parametrize("injury", ["cut", "flip", "empty", "other", "directory"])
def test_damaged_files_are_made_again(tmp_path: Path, injury: str) -> None:
    make = Planner()
    cache = PlanCache(tmp_path)
    cache.plan(PROBLEM, "forest", make)
    path = cache.path(PROBLEM, "forest")
    data = path.read_bytes()
    if injury == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif injury == "flip":
        path.write_bytes(data.replace(b'"all_gather"', b'"all_reduce"', 1))
    elif injury == "empty":
        path.write_bytes(b"")
    elif injury == "other":
        other = Problem(topology=star(3), collective=Collective.REDUCE_SCATTER)
        cache.plan(other, "forest", Planner(other))
        path.write_bytes(cache.path(other, "forest").read_bytes())
    else:
        path.unlink()
        path.mkdir()
    assert cache.plan(PROBLEM, "forest", make).problem.collective is Collective.ALL_GATHER
    assert make.calls == 2
    if injury != "directory":
        assert path.read_bytes() == data
    assert not list((tmp_path / "plans").glob("*.tmp"))


def test_a_place_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    make = Planner()
    cache = PlanCache(tmp_path / "file")
    for _ in range(2):
        assert cache.plan(PROBLEM, "forest", make).problem is PROBLEM
    assert make.calls == 2


def test_where_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COPPICE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_directory() == Path("/home/someone/.cache/coppice")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_directory() == Path("/caches/coppice")
    monkeypatch.setenv("COPPICE_CACHE", "/plans")
    assert cache_directory() == Path("/plans")
    assert cache_directory("/given") == Path("/given")
