"""Blocks in the degrees of tensor parallelism that Oases' planner gives each, beside one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from training.test_torch_overlap import LIKE, run

PROGRAM = "degrees_ranks.py"


def check_degrees(found: dict, others: list[dict]) -> None:
    said = found.pop("refused")
    for place, words in enumerate(
        (
            "expected degrees that divide each other",
            "found 7",
            "replicas divide, found",
            "expected parts of one degree without `groups`",
            "build it with `group=groups.of(degree)`",
            "expected parts of one degree where they share a parameter",
            "groups of 1 ranks divide, found",
        )
    ):
        assert words in said[place], said[place]
    assert sorted(found["planned"]["degrees"]) == [1, 1, 2, 2]
    for name, outcome in found.items():
        assert max(outcome["losses"], outcome["distance"], outcome["evaluated"]) < LIKE, name
        assert outcome["compared"] >= 0.4, name
        assert outcome["resumed"] == 0.0, name
        assert outcome["launched"] == outcome["simulated"], name
        assert any(each.startswith("regroup before B") for each in outcome["launched"]), name
        assert all(other[name]["launched"] == outcome["launched"] for other in others), name
        assert outcome["keys"], name
        assert outcome["predicted"] > 0, name


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(2, "coppice", marks=pytest.mark.slow),
    ],
)
def test_blocks_of_several_degrees_train_as_one_process_would(
    size: int, backend: str, tmp_path: Path
) -> None:
    outcomes = run("quick", size, tmp_path, backend=backend, program=PROGRAM)
    for rank, found in outcomes.items():
        check_degrees(dict(found), [other for each, other in outcomes.items() if each != rank])


def test_a_killed_rank_ends_the_others_with_an_error(tmp_path: Path) -> None:
    for outcome in run("killed", 3, tmp_path, dies=1, program=PROGRAM).values():
        blocks, optimizer, regrouped = outcome["said"]
        assert "expected all ranks to sum activations, found one that does not answer" in blocks
        assert "expected all ranks to update their slices, found one that does not" in optimizer
        assert "expected all ranks to sum activations, found one that does not answer" in regrouped
        assert outcome["launched"][-1] == "regroup before F1"
