"""Several processes over gloo: one decision for all, shards captured by each rank, checkpoints that go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.rank_processes import rank_codes

pytest.importorskip("torch", reason="torch is not installed")

from coppice.training.autolrs.log import TrialEnd, read_events

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "rank_program.py"


def run(mode: str, size: int, folder: Path) -> list[dict[str, Any]]:
    codes = rank_codes(
        PROGRAM,
        [(mode, rank, size, folder) for rank in range(size)],
        [folder / f"errors-{rank}" for rank in range(size)],
    )
    assert codes == [0] * size, [(folder / f"errors-{rank}").read_text() for rank in range(size)]
    return [json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_all_ranks_agree_on_every_rate_and_go_on_from_checkpoints(
    mode: str, size: int, tmp_path: Path
) -> None:
    outcomes = run(mode, size, tmp_path)
    rates = outcomes[0]["rates"]
    assert len(set(rates)) > 8
    assert all(outcome["rates"] == rates for outcome in outcomes)
    assert all(outcome["phases"] == ["warmup", "search", "exploit"] for outcome in outcomes)
    assert all(outcome["whole"]["phase"] == "done" for outcome in outcomes)
    if mode == "ddp":
        assert len({outcome["whole"]["weights"] for outcome in outcomes}) == 1
    for outcome in outcomes:
        assert len(outcome["resumed"]) == 3
        for resumed in outcome["resumed"]:
            assert resumed["found"]
            assert resumed["end"] == outcome["whole"]
            assert resumed["rates"] == rates[len(rates) - len(resumed["rates"]) :]
    log = (tmp_path / "log-0.jsonl").read_bytes()
    assert not (tmp_path / "log-1.jsonl").exists()  # rank 0 alone decides and logs
    assert all((tmp_path / f"again-{stop}-0.jsonl").read_bytes() == log for stop in (3, 12, 60))


def test_one_rank_that_fails_fails_the_trial_for_all(tmp_path: Path) -> None:
    outcomes = run("poisoned", 2, tmp_path)
    assert outcomes[0]["rates"] == outcomes[1]["rates"]
    assert outcomes[0]["whole"]["weights"] == outcomes[1]["whole"]["weights"]
    trials = [event for event in read_events(tmp_path / "log-0.jsonl") if isinstance(event, TrialEnd)]
    assert any(trial.lr > 0.003 for trial in trials)
    assert all((trial.verdict == "not finite") == (trial.lr > 0.003) for trial in trials)
    # The ranks' validations are 0.5 and 0.6 and a hundredth per batch: what is judged lies between.
    validated = [trial.validations.losses for trial in trials if trial.validations is not None]
    assert validated
    first = validated[0][0]
    assert all(
        abs(loss - first - 0.01 * number) < 1e-9 for losses in validated for number, loss in enumerate(losses)
    )
    assert abs((first - 0.55) * 100 - round((first - 0.55) * 100)) < 1e-6
