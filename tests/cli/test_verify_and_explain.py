"""`coppice verify` and `coppice explain` on good, damaged and wrong plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run

SEAL = b',\n"sha256": "'


@pytest.fixture
def plan(run: Run, star: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert run("plan", star, "-c", "all_gather", "-o", path).code == 0
    return path


def resealed(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The plan with a change that its checksum does not betray."""
    document = json.loads(path.read_bytes())
    del document["sha256"]
    change(document)
    body = json.dumps(document).encode()[:-1]
    path.write_bytes(body + SEAL + hashlib.sha256(body).hexdigest().encode() + b'"}\n')
    return path


def test_a_good_plan_verifies(run: Run, plan: Path) -> None:
    shown = run("verify", plan)
    assert shown.code == 0
    assert "all_gather on star: verified" in shown.out
    assert "optimal, proved: no schedule is faster" in shown.out
    found = run("verify", plan, "--json").json
    assert (found["verified"], found["optimal"], found["planned_algbw_exact"]) == (True, True, "100/3")
    assert run("verify", "-", stdin=plan.read_bytes()).code == 0


def test_a_wrong_plan_fails_with_1(run: Run, plan: Path) -> None:
    def swap_root(document: dict[str, Any]) -> None:
        document["trees"]["root"][0] = document["trees"]["root"][-1]

    shown = run("verify", resealed(plan, swap_root))
    assert shown.code == 1
    assert "FAILED" in shown.out
    assert shown.err.startswith("error: the plan does not verify")
    failed = run("verify", plan, "--json")
    assert failed.code == 1
    assert failed.json["verified"] is False
    assert failed.json["failures"]
    assert run("explain", plan).code == 1


def test_a_plan_that_claims_too_much_fails(run: Run, plan: Path) -> None:
    def boast(document: dict[str, Any]) -> None:
        document["inv_rate"] = "1/25"

    assert run("verify", resealed(plan, boast)).code == 1


def test_a_damaged_file_is_refused_with_2(run: Run, plan: Path) -> None:
    good = plan.read_bytes()
    newer = good.replace(b'"version": 1', b'"version": 2')
    for damaged in (
        good[: len(good) // 2],
        good.replace(b"100", b"101", 1) + b" ",
        newer,
        b"",
        b"[]",
        b"\xff",
    ):
        plan.write_bytes(damaged)
        refused = run("verify", plan)
        assert refused.code == 2, damaged[:40]
        assert refused.err.startswith("error: ")
        assert refused.err.count("\n") == 1
    assert run("verify", plan.with_name("absent.json")).code == 2


def test_explain_shows_cut_loads_and_trees(run: Run, plan: Path) -> None:
    shown = run("explain", plan).out
    assert "GPU 3 receives through 1 link of 25 GB/s from hub" in shown
    assert "100%" in shown
    assert "hub -> d" in shown
    assert "└─" in shown
    found = run("explain", plan, "--json").json
    links = found["links"]
    assert isinstance(links, list)
    assert links[0]["load"] == "1"
    assert sum(row["count"] for row in links) == 8
    assert "found 99999" in run("explain", plan, "--tree", "99999").err
