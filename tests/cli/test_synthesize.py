"""`coppice synthesize`: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.conftest import Run

pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'coppice[smt]'")

WORDS = ("synthesize", "dgx-1v", "--collective", "all_gather", "--method", "sccl")


def instance(steps: int, rounds: int, chunks: int) -> tuple[str, ...]:
    return ("--steps", str(steps), "--rounds", str(rounds), "--chunks", str(chunks))


def test_sat(run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    outcome = run(*WORDS, *instance(2, 3, 2), "--json", "-o", path)
    assert outcome.code == 0
    found = outcome.json
    assert found["status"] == "sat"
    assert found["method"] == "sccl"
    assert found["verified"] is True
    assert found["gap"] == pytest.approx(2 / 9)
    assert found["parameters"]["chunks"] == 2
    verified = run("verify", path)
    assert verified.code == 0


def test_unsat(run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    outcome = run(*WORDS, *instance(2, 4, 3), "--json", "-o", path)
    assert outcome.code == 1
    assert outcome.json["status"] == "unsat"
    assert outcome.json["gap"] is None
    assert not path.exists()
    shown = run(*WORDS, *instance(2, 4, 3))
    assert shown.code == 1
    assert "unsat" in shown.out
    assert "2 steps need 3/2 rounds per chunk" in shown.out


def test_unknown(run) -> None:
    outcome = run(*WORDS, "--boxes", "2", *instance(4, 20, 10), "--time-limit", "0.01", "--json")
    assert outcome.code == 1
    assert outcome.json["status"] == "unknown"


def test_front(run) -> None:
    outcome = run(*WORDS, "--pareto", "--json")
    assert outcome.code == 0
    assert outcome.json["front"] == [[2, 3, 2], [3, 7, 6]]
    assert outcome.json["proved"] is True
    shown = run(*WORDS, "--pareto")
    assert "(S=2, R=3, C=2)  (S=3, R=7, C=6)" in shown.out
    assert "nothing else is better with any number of chunks" in shown.out


def test_the_same_seed_writes_the_same_bytes(run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(*WORDS, *instance(3, 4, 3), "--seed", "7", "-o", tmp_path / name).code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_options_of_the_method_are_named_as_flags(run, one_way: Path) -> None:
    refused = run(*WORDS, "--sketch", "x.json")
    assert refused.code == 2
    assert "it takes `steps`" in refused.err
    refused = run(*WORDS, "--pareto", "--steps", "2")
    assert refused.code == 2
    assert "leave out `steps` and `rounds`" in refused.err
    assert run(*WORDS, "--method", "nonsense").code == 2
    outcome = run("synthesize", one_way, "--collective", "all_gather", "--method", "sccl")
    assert outcome.code == 2


def test_a_missing_solver_is_named(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    outcome = run(*WORDS)
    assert outcome.code == 2
    assert "pip install 'coppice[smt]'" in outcome.err


def test_a_plan_to_standard_output(run) -> None:
    outcome = run(*WORDS, *instance(2, 2, 1), "-o", "-")
    assert json.loads(outcome.out)["format"] == "coppice-plan"
    assert "sat" in outcome.err


def test_ctrl_c(tmp_path: Path) -> None:
    """Nothing is left behind by a search that had found nothing yet."""
    path = tmp_path / "plan.json"
    words = [
        sys.executable,
        "-m",
        "coppice",
        *WORDS[:1],
        "dgx-a100",
        "--boxes",
        "2",
        *WORDS[2:],
        *instance(3, 15, 13),
    ]
    program = subprocess.Popen([*words, "-o", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        time.sleep(5.0)
        os.kill(program.pid, signal.SIGINT)
        program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode in (130, -signal.SIGINT)  # the latter where it was still starting
    assert not path.exists()


def test_several_groups_at_once(run: Run, tmp_path: Path) -> None:
    words = ("synthesize", "dgx-a100", "--boxes", "2", "--collective", "all_reduce", "--method", "tacos")
    found = run(*words, "--groups", "2:8", "-o", str(tmp_path / "jobs.json"))
    assert "8 of 2 ranks, matched together" in found.out
    assert len(list(tmp_path.glob("jobs-*.json"))) == 8
    together = run("simulate", "--jobs", str(tmp_path / "jobs.json"))
    assert "8 jobs on 2 x dgx-a100" in together.out
    record = run(*words, "--groups", "2:8", "--json").json
    assert record["verified"]
    assert len(record["groups"]) == 8
    refused = run(*words[:-1], "sccl", "--groups", "2:8")
    assert refused.code == 2
    assert "matched by tacos" in refused.err
