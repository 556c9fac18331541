"""Commands that print the same quantity of the same case print the same number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.conftest import Run
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.costs.simulated import costs_named
from coppice.text import number, rate_line
from coppice.topology.presets import preset

SIZE = 2**26

CLUSTERS = {
    "star": ("star", "--set", "gpus=6"),
    "ring": ("ring", "--set", "gpus=5"),
    "torus": ("torus", "--set", "dims=3x3"),
    "dgx-1v": ("dgx-1v",),
    "dgx-a100": ("dgx-a100",),
    "dgx-h100": ("dgx-h100",),
    "mi250": ("mi250",),
    "two dgx-a100": ("dgx-a100", "--boxes", "2"),
    "two mi300x": ("mi300x", "--boxes", "2"),
    "two dgx-h100": ("dgx-h100", "--boxes", "2"),
    "two ndv2": ("ndv2", "--boxes", "2"),
    "fat-tree": ("fat-tree",),
}
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")
QUICK = {
    ("star", "broadcast"),
    ("ring", "reduce_scatter"),
    ("torus", "all_to_all"),
    ("dgx-a100", "all_gather"),
    ("dgx-h100", "all_reduce"),
    ("mi250", "all_gather"),
    ("two dgx-a100", "all_reduce"),
}
CASES = [
    pytest.param(cluster, collective, marks=() if (cluster, collective) in QUICK else pytest.mark.slow)
    for cluster in CLUSTERS
    for collective in COLLECTIVES
]


class Case(NamedTuple):
    """A collective on a cluster, with a way to ask a command about it."""

    words: tuple[str, ...]
    run: Run
    plan_file: Path

    def of_problem(self, command: str, *options: str) -> dict[str, Any]:
        """JSON of a command about the problem."""
        return self._json(command, *self.words, *options)

    def of_plan(self, command: str, *options: str) -> dict[str, Any]:
        """JSON of a command about the plan."""
        return self._json(command, self.plan_file, *options)

    def _json(self, *words: str | Path) -> dict[str, Any]:
        done = self.run(*words, "--json")
        assert done.code == 0, done.err
        return done.json


@pytest.fixture
def case(run: Run, tmp_path: Path) -> Callable[[str, str], Case]:
    def made(cluster: str, collective: str) -> Case:
        root = ("--root", "0") if collective in ("broadcast", "reduce") else ()
        words = (*CLUSTERS[cluster], "--collective", collective, *root)
        return Case(words, run, tmp_path / "plan.json")

    return made


def agree(**found: Any) -> None:
    assert len({str(value) for value in found.values()}) == 1, found


@pytest.mark.parametrize(("cluster", "collective"), CASES)
def test_all_commands_state_the_same_numbers(
    cluster: str, collective: str, case: Callable[[str, str], Case]
) -> None:
    asked = case(cluster, collective)
    bound = asked.of_problem("bound", "--size", str(SIZE))
    plan = asked.of_problem("plan", "--output", str(asked.plan_file))
    verified, explained = asked.of_plan("verify"), asked.of_plan("explain")
    size = ("--size", str(SIZE))
    simulated = asked.of_plan("simulate", *size)
    compared = asked.of_problem("compare", "--sizes", str(SIZE), "--algorithm", plan["planner"])

    agree(bound=bound["algbw_exact"], plan=plan["algbw_exact"], compare=compared["optimum"]["algbw_exact"])
    agree(bound=bound["busbw_exact"], plan=plan["busbw_exact"])
    for key in (
        *("optimum_algbw_exact_gb_per_s", "optimum_busbw_exact_gb_per_s", "optimum_ns_per_byte"),
        *("optimum_algbw_gb_per_s", "optimum_busbw_gb_per_s"),
    ):
        agree(bound=bound[key], plan=plan[key])
    agree(
        bound=bound["optimum_ns_per_byte"],
        former=bound["optimum_inv_rate"],
        plan=plan["inv_rate"],
        verify=verified["optimum_ns_per_byte"],
    )
    agree(
        plan=plan["load_ns_per_byte"],
        former=plan["planned_inv_rate"],
        verify=verified["load_ns_per_byte"],
        explain=explained["load_ns_per_byte"],
    )
    agree(bound=bound["inv_rate"], plan=plan["inv_rate"], verify=verified["bound_inv_rate"])
    agree(
        bound=bound["cut_in_words"],
        plan=plan["cut_in_words"],
        explain=explained["cut_in_words"],
        compare=compared["optimum"]["cut_in_words"],
    )
    agree(
        plan=plan["planned_inv_rate"],
        verify=verified["planned_inv_rate"],
        explain=explained["planned_inv_rate"],
    )
    agree(plan=plan["planned_algbw_exact"], verify=verified["planned_algbw_exact"])
    agree(plan=plan["optimal"], verify=verified["optimal"], explain=explained["optimal"])
    agree(plan=plan["max_link_load"], verify=verified["max_link_load"])
    if plan["trees_per_root"] is not None and bound["trees_per_root"] is not None:
        # As many fill the links exactly; trees of the plan that are all alike count once
        assert bound["trees_per_root"] % plan["trees_per_root"] == 0
    highest: Counter[str] = Counter()
    for row in explained["heights"] or []:
        highest[row["phase"]] = max(highest[row["phase"]], row["height"])
    if highest:  # Of a forest: those of both phases together
        agree(plan=plan["max_height"], explain=sum(highest.values()))

    (row,) = compared["rows"]
    agree(simulate=simulated["time_us"], compare=row["time_us"])
    agree(
        simulate=simulated["reached_algbw_gb_per_s"],
        former=simulated["algbw_gb_per_s"],
        compare=row["reached_algbw_gb_per_s"],
    )
    agree(simulate=simulated["pieces"], compare=row["pieces"])
    least_us = SIZE / float(Fraction(bound["algbw_exact"])) / 1000
    assert simulated["optimum_us"] == pytest.approx(least_us)
    assert simulated["share_of_optimum"] == pytest.approx(least_us / simulated["time_us"])
    assert row["share_of_limit"] == pytest.approx(row["limit_us"] / row["time_us"])
    assert row["limit_us"] >= max(least_us, compared["latency_bound"]["time_us"]) * (1 - 1e-9)
    assert row["limit_us"] == pytest.approx(bound["sizes"][0]["least_seconds"] * 1e6)


@pytest.mark.parametrize(
    ("cluster", "collective"),
    [
        ("dgx-a100", "all_gather"),
        ("two dgx-a100", "all_reduce"),
        pytest.param("two dgx-h100", "all_reduce", marks=pytest.mark.slow),
        pytest.param("dgx-1v", "all_reduce", marks=pytest.mark.slow),
    ],
)
def test_the_pick_of_nccl_has_one_time(
    cluster: str, collective: str, case: Callable[[str, str], Case]
) -> None:
    """What NCCL picks is compared on its own rings, in its protocol, as `simulate --algorithm library` times it."""
    asked = case(cluster, collective)
    picked = asked.of_problem("select", "--library", "nccl", "--size", str(SIZE))
    ours = picked["ours"]
    simulated = asked.of_problem("simulate", "--algorithm", "library", "--size", str(SIZE))
    compared = asked.of_problem("compare", "--sizes", str(SIZE), "--algorithm", f"forest,{ours}")
    (pick,) = compared["nccl"]
    rows = (compared["in_network"] if pick["in_network"] else compared)["rows"]
    best = min(row["time_us"] for row in rows if row["time_us"] is not None)
    agree(select=picked["algorithm"], compare=pick["pick"])
    agree(simulate=simulated["time_us"], compare=pick["time_us"])
    assert pick["ratio"] == pick["time_us"] / best


def test_a_plan_whose_steps_wait_states_what_it_reaches(case: Callable[[str, str], Case]) -> None:
    """The load of the busiest link is named so; the rate of the largest message is that of `simulate`."""
    asked = case("two dgx-a100", "all_reduce")
    words = ("--algorithm", "double-binary-tree")
    plan = asked.of_problem("plan", *words, "--output", str(asked.plan_file))
    simulated = asked.of_plan("simulate", "--size", "64G")
    assert plan["algbw_gb_per_s_at_64_gib"] == simulated["algbw_gb_per_s"]
    assert plan["algbw_gb_per_s_at_64_gib"] < 0.9 * plan["planned_algbw_gb_per_s"]
    # What is reached is affine in the size, and the steady state its slope.
    steady = Fraction(plan["steady_algbw_exact_gb_per_s"])
    half = asked.of_plan("simulate", "--size", "32G", "--protocol", "simple", "--pieces", "1")
    whole = asked.of_plan("simulate", "--size", "64G", "--protocol", "simple", "--pieces", "1")
    assert 2**35 / (whole["time_us"] - half["time_us"]) / 1000 == pytest.approx(float(steady), rel=1e-3)
    assert simulated["algbw_gb_per_s"] <= float(steady) < float(plan["planned_algbw_gb_per_s"])
    verified = asked.of_plan("verify")
    agree(plan=plan["steady_algbw_exact_gb_per_s"], verify=verified["steady_algbw_exact_gb_per_s"])
    text = asked.run("plan", *asked.words, *words).out
    by_link = (
        rf"algbw {re.escape(rate_line(Fraction(plan['planned_algbw_exact'])))}, busbw .* by its busiest link"
    )
    assert re.search(by_link, text)
    assert f"algbw {number(simulated['algbw_gb_per_s'])} GB/s" in text
    for command in ("verify", "explain"):
        assert re.search(by_link, asked.run(command, asked.plan_file).out), command
    for printed in (text, asked.run("verify", asked.plan_file).out):
        assert re.search(
            rf"^  steady state +algbw {re.escape(rate_line(steady))}, busbw", printed, re.MULTILINE
        )
    assert "algbw_gb_per_s_at_64_gib" not in asked.of_problem("plan")


def test_the_report_of_a_plan_has_the_rates_of_its_bound(
    case: Callable[[str, str], Case], tmp_path: Path
) -> None:
    asked = case("dgx-a100", "all_gather")
    bound = asked.of_problem("bound")
    asked.of_problem("plan", "--output", str(asked.plan_file))
    page = tmp_path / "page.html"
    assert asked.run("report", asked.plan_file, "--output", page).code == 0
    assert f"{float(bound['algbw_gb_per_s']):.6g}" in page.read_text()


@pytest.mark.parametrize("name", ["forest", "nccl"])
@pytest.mark.spread(2)
def test_a_collective_of_a_job_takes_as_long_as_by_itself(
    name: str, case: Callable[[str, str], Case]
) -> None:
    """`train estimate --collectives` times a collective as `simulate` does, and NCCL's pick as `compare` does."""
    asked = case("two dgx-a100", "all_reduce")
    costs = costs_named(name, preset("dgx-a100", boxes=2))
    assert costs is not None
    found = costs.cost("all_reduce", SIZE, RankGroup(16, 1))
    asked.of_problem("plan", "--output", str(asked.plan_file))
    compared = asked.of_problem("compare", "--sizes", str(SIZE), "--algorithm", "forest,nccl-ring")
    (pick,) = compared["nccl"]
    simulated = asked.of_plan("simulate", "--size", str(SIZE))
    expected = pick["time_us"] if name == "nccl" else simulated["time_us"]
    assert 1e6 * found.seconds == pytest.approx(expected, rel=1e-9)
