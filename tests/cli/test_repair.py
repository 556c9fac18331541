"""`coppice plan --repair`: what it prints, writes and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import coppice
from cli.conftest import Run


@pytest.fixture
def files(run: Run, tmp_path: Path) -> tuple[Path, Path]:
    """A plan of two boxes, and the boxes with one NIC at half rate."""
    plan, slow = tmp_path / "plan.json", tmp_path / "slow.json"
    run("plan", "dgx-a100", "--boxes", "2", "-c", "all_gather", "--no-ring", "-o", plan)
    run("topology", "degrade", "dgx-a100", "--boxes", "2", "--node", "box0/nic3=50%", "-o", slow)
    return plan, slow


def test_a_repair_says_what_became_of_the_trees(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    plan, slow = files
    target = tmp_path / "new.json"
    shown = run("plan", slow, "--repair", plan, "-o", target).out
    assert "50% slower than before" in shown
    assert "made anew" in shown
    assert run("verify", target).code == 0
    found = run("plan", slow, "--repair", plan, "--json").json
    assert found["collective"] == "all_gather"
    assert found["verified"] is True
    assert found["optimum_computed"] is True
    trees = coppice.read_plan(target).trees
    assert found["trees_kept"] + found["trees_rerouted"] + found["trees_made_anew"] == len(trees)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trees", "2"), "found --trees as well"),
        (("-c", "all_reduce"), "found --collective all_reduce"),
        (("--root", "1"), "has root None, found --root 1"),
        (("--algorithm", "ring"), "found --algorithm as well"),
        (("--sizes", "1M"), "found --sizes as well"),
    ],
)
def test_options_that_contradict_the_plan_are_refused(
    run: Run, files: tuple[Path, Path], options: tuple[str, ...], words: str
) -> None:
    plan, slow = files
    result = run("plan", slow, "--repair", plan, *options)
    assert result.code == 2
    assert words in result.err


def test_the_plans_own_collective_may_be_named(run: Run, files: tuple[Path, Path]) -> None:
    plan, slow = files
    assert run("plan", slow, "--repair", plan, "-c", "all-gather").code == 0
