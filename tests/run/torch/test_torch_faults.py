"""Ranks that differ, come late, abort or die: an error on every other rank, at once or within the timeout."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")

from coppice import __version__
from run.torch.launching import run_ranks

MODES = ["messages", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("shm", "puts"))]
TIMEOUT_S, SLACK_S = 2.0, 120.0  # of ranks that wait for nothing, against the 600 s that they might wait


@pytest.fixture(scope="module", params=MODES)
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp(f"faults-{request.param}")
    # A directory of its own: other tests that run meanwhile share memory too.
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="coppice-faults-", dir=in_memory) as shared:
        variables = {"COPPICE_SHM_DIR": shared}
        found = run_ranks("faults_worker.py", 4, folder, request.param, killed=(1,), variables=variables)
        assert not list(Path(shared).iterdir()), "shared memory is left behind"
    return found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("types", "differ"),
        ("calls", "on all ranks"),
        ("options", "expected threshold_bytes 0 as on rank 0, found 5 on rank 1"),
        ("topologies", "the set-up of its group differs between ranks: expected topology"),
        (
            "ranks",
            "rank 1 cannot take part in the set-up of its group: expected a topology of 4 ranks, found 2",
        ),
        ("files", "rank 1 cannot take part in the set-up of its group: there is no file"),
        ("versions", f"expected version {__version__} as on rank 0, found 0.0.1 on rank 1"),
    ],
)
def test_ranks_that_differ_say_so_on_every_rank(
    outcomes: list[dict[str, Any]], name: str, words: str
) -> None:
    for outcome in outcomes:
        found = outcome[name]
        assert found["kinds"][0] == "DistBackendError", found
        assert found["cause"] == "Mismatch"
        assert words in found["words"]
        assert found["seconds"] < SLACK_S


def test_a_repeated_call_beside_another_one(
    outcomes: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    """Of an old size on some ranks, of a new one on the others: at the latest the timeout tells."""
    for outcome in outcomes:
        assert outcome["sizes"]["cause"] in ("Mismatch", "TimedOut", "PeerLost")
        assert outcome["sizes"]["seconds"] < TIMEOUT_S + SLACK_S
    told = "TimedOut" if request.node.callspec.params["outcomes"] == "puts" else "Mismatch"
    assert any(outcome["sizes"]["cause"] == told for outcome in outcomes)


def test_a_broken_group_stays_broken(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert outcome["later"]["kinds"][0] == "DistBackendError"
        assert outcome["later"]["seconds"] < SLACK_S


def test_a_slow_rank_is_waited_for(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert not outcome["slow"]["kinds"], outcome["slow"]


def test_a_hanging_rank_ends_in_errors(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        found = outcome["hang"]
        assert found["cause"] in ("TimedOut", "PeerLost", "Mismatch"), found
    assert any(outcome["hang"]["cause"] == "TimedOut" for outcome in outcomes)


def test_what_gloo_carries_out_fails_like_everything_else(outcomes: list[dict[str, Any]]) -> None:
    """Below the threshold: the same kind of error, which names the rank, and the group stays broken."""
    for outcome in outcomes:
        found = outcome["hang of a small one"]
        assert found["kinds"][0] == "DistBackendError", found
        assert found["cause"] in ("TimedOut", "PeerLost"), found
        assert re.match(r"rank \d (waited too long for|lost) another rank", found["words"]), found
        assert "in a call that gloo carries out (" in found["words"]
        assert found["later"][0] == "DistBackendError"
    assert any(outcome["hang of a small one"]["cause"] == "TimedOut" for outcome in outcomes)


def test_an_aborted_group_ends_on_every_rank_at_once(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        found = outcome["abort"]
        assert found["kinds"][0] == "DistBackendError"
        assert found["cause"] == "PeerLost"
        assert found["seconds"] < SLACK_S


def test_the_death_of_a_rank_reaches_the_backward_pass(outcomes: list[dict[str, Any]]) -> None:
    """Where C++ waits for the future, and where Python waits for the work."""
    for outcome in outcomes:
        assert "RuntimeError" in outcome["killed"]["kinds"]
        assert "rank 1" in outcome["killed"]["words"] or "lost" in outcome["killed"]["words"]
        assert outcome["killed"]["seconds"] < SLACK_S
        assert outcome["after"]["kinds"][0] == "DistBackendError"
