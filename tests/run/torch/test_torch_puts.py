"""The torch backend on puts and signals: on the emulated device, with the code that carries out tensors on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")

from coppice.errors import InputError
from run.torch.launching import run_ranks
from run.torch.test_torch_backend import cases_of

RANKS, SLACK_S = 4, 120.0  # of ranks that need not wait, against the 600 s that they might


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("puts_worker.py", RANKS, tmp_path_factory.mktemp("puts"), killed=(1,))


@pytest.mark.parametrize("name", cases_of("api_worker.py"))
def test_call(outcomes: list[dict[str, Any]], name: str) -> None:
    for outcome in outcomes:
        assert outcome["calls"].get(name, "did not run") == ""


def test_what_is_planned_does_not_run_on_gloo(outcomes: list[dict[str, Any]]) -> None:
    wanted = {"all_reduce": 3, "broadcast": 1, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    for outcome in outcomes:
        assert outcome["calls"]["planned_calls"] == wanted
        assert outcome["device"] == "the emulated device"
        assert outcome["programs"] == ["all_gather 8", "all_reduce 10", "all_reduce 24", "all_reduce 5"]


def test_what_is_left_to_gloo_is_told_once_by_one_rank(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["told"] == [
        "gloo carries out what puts cannot: all_reduce without data",
        "gloo carries out what puts cannot: expected a kinder device",
    ]
    assert all(outcome["told"] == [] for outcome in outcomes[1:])


def test_rules_decide_by_size(outcomes: list[dict[str, Any]]) -> None:
    """What no rule names is gloo's: other sizes, other numbers of ranks, other collectives."""
    for outcome in outcomes:
        assert outcome["tuned"] == {
            "64": "ring", "200": "ring", "396": "ring", "400": "forest", "2000": "forest", "4000": "forest",
            "7600": "gloo",
        }  # fmt: skip
        assert outcome["tuned programs"] == [
            f"all_reduce {count // 4}"
            for count in sorted((64, 200, 396, 400, 2000, 4000), key=lambda n: str(n // 4))
        ]


def test_rules_must_be_the_same_everywhere(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert outcome["rules"]["cause"] == "Mismatch"
        assert "expected tuning" in outcome["rules"]["words"]
        assert outcome["no rules"]["cause"] == "Mismatch"
        assert "rank 1 cannot take part" in outcome["no rules"]["words"]
        assert "holds no rules for puts and signals" in outcome["no rules"]["words"]


def test_recorded_steps_are_replayed(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        assert outcome["wrong after replays"] == 0
        assert "make it once before" in outcome["new call"]["words"]


@pytest.mark.parametrize("fault", ["hang", "abort", "killed"])
def test_faults_are_errors_in_time(outcomes: list[dict[str, Any]], fault: str) -> None:
    for rank, outcome in zip((0, 2, 3), outcomes, strict=True):
        found = outcome[fault]
        assert found["kind"] in ("DistBackendError", "RuntimeError"), (rank, found)
        assert found["words"]
        assert found["s"] < SLACK_S
        for later in ("after hang", "after kill"):
            assert outcome[later]["kind"] == "DistBackendError"
    if fault == "hang":
        assert any(outcome["hang"]["cause"] == "TimedOut" for outcome in outcomes)


def test_rules_are_named_by_the_program_or_the_environment() -> None:
    from coppice.run.torch.backend_path import Options, options_from

    variables = {"COPPICE_TUNING": "site.json", "COPPICE_ENGINE": "put-signal"}
    assert options_from(None, variables).tuning == "site.json"
    assert options_from(None, variables).engine == "put-signal"
    assert options_from(Options(tuning="own.json"), variables).tuning == "own.json"
    assert options_from(None, {}).tuning is None


def test_a_name_of_no_algorithm_is_refused_and_not_left_to_the_planner() -> None:
    from coppice.run.torch.backend_path import Options, options_from

    for known in ("forest", "ring", "switchml"):
        assert options_from(None, {"COPPICE_ALGORITHM": known}).algorithm == known
    with pytest.raises(InputError, match="name of an algorithm, found 'rign': did you mean 'ring'"):
        options_from(None, {"COPPICE_ALGORITHM": "rign"})
    with pytest.raises(InputError, match="`coppice algorithms` lists all"):
        options_from(Options(algorithm="nosuch"), {})


def test_without_a_gpu_no_device_of_gpus_is_opened(tmp_path: Path) -> None:
    """The reasons of all devices are told, in one sentence each, and nothing is put."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    from coppice.run.torch.puts import open_puts

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    with pytest.MonkeyPatch.context() as patched:
        words: list[str] = []
        patched.setattr(
            "coppice.run.torch.puts._LOG.warning", lambda text, *values: words.append(text % values)
        )
        assert open_puts(store, 0, 1, device="cuda", timeout_s=300) is None
    [told] = words
    assert told.startswith("NCCL carries out all collectives, none is put: expected a device that puts")
    assert "nccl: expected a GPU for NCCL" in told
    assert "symmetric: expected a GPU for torch's symmetric memory" in told
