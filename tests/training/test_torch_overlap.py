"""Policies of overlap in real processes: the weights of a plain training, in the order that the policy says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

SUPPORT = Path(__file__).resolve().parents[1] / "support"
LIKE = 2e-6
"""Sums of the same numbers in another order, and 20 steps with momentum on them."""


def run(
    mode: str,
    size: int,
    folder: Path,
    *,
    dies: int | None = None,
    backend: str = "gloo",
    program: str = "overlap_ranks.py",
) -> dict[int, dict[str, Any]]:
    """The outcome of each rank that was not killed."""
    processes = []
    for rank in range(size):
        with (folder / f"errors-{rank}").open("w") as errors:
            command = [
                sys.executable,
                str(SUPPORT / program),
                mode,
                str(rank),
                str(size),
                str(folder),
                backend,
            ]
            processes.append(subprocess.Popen(command, stderr=errors, stdout=errors))
    try:
        codes = [process.wait(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    living = [rank for rank in range(size) if rank != dies]
    said = {rank: (folder / f"errors-{rank}").read_text() for rank in living}
    assert [codes[rank] for rank in living] == [0] * len(living), said
    return {rank: json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in living}


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(3, "coppice", marks=pytest.mark.slow),
    ],
)
def test_every_policy_trains_as_one_process_would(size: int, backend: str, tmp_path: Path) -> None:
    outcomes = run("policies", size, tmp_path, backend=backend)
    assert len(outcomes[0]) == 20
    for name, found in outcomes[0].items():
        assert found["distance"] < LIKE, name
        assert found["launched"] == found["planned"], name
        assert found["step"] in ("ScheduledSGD", "ScheduledAdamW")
        assert found["closed"] in ("SGD", "AdamW")
        assert found["predicted"] > 0
        others = [outcomes[rank][name] for rank in range(1, size)]
        assert all(other["launched"] == found["launched"] for other in others), name
    of = {name: found["messages"] for name, found in outcomes[0].items()}
    assert of["wfbp 3 sgd"] == 10  # a message for each tensor
    assert of["ddp 0 sgd"] < of["ddp 1 sgd"] < of["bytescheduler 5 sgd"]
    assert set(outcomes[0]["p3 8 sgd"]["launched"]) == {"up", "down"}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_buckets_of_ddp_give_its_weights_bit_for_bit(size: int, tmp_path: Path) -> None:
    for outcome in run("same_as_ddp", size, tmp_path).values():
        assert {found["distance"] for found in outcome.values()} == {0.0}
        assert outcome["25.0"]["messages"] < outcome["0.03"]["messages"]


def test_tied_frozen_and_mixed_parameters_accumulation_clipping_and_checkpoints(tmp_path: Path) -> None:
    for outcome in run("features", 2, tmp_path).values():
        said = outcome.pop("refused")
        for name, found in outcome.items():
            assert found["distance"] < 2e-5, name
            assert found["worst"] < 2e-5, name
            assert found["resumed"] == 0.0, name
            assert found["keys"] == [
                "scale",
                "embed.weight",
                "frozen.weight",
                "frozen.bias",
                "mix.weight",
                "mix.bias",
            ]
        assert "call optimizer.synchronize() first" in said[0]
        assert "expected step() without a closure" in said[1]
        assert "expected optimizer.step() after each backward pass" in said[2]
        assert "found none of 1.weight, 1.bias: freeze what is not used" in said[3]


def test_a_killed_rank_ends_the_others_with_an_error(tmp_path: Path) -> None:
    found = run("killed", 3, tmp_path, dies=1)
    for outcome in found.values():
        assert "expected all ranks to sum gradients, found one that does not answer" in outcome["said"]
        assert 7 <= outcome["step"] <= 10


def test_chunks_of_the_greatest_norms_train_as_the_algorithm_says(tmp_path: Path) -> None:
    outcomes = run("sparse", 2, tmp_path, program="overlap_parts.py")
    assert outcomes[0]["sent"] == outcomes[1]["sent"]
    for rank, found in outcomes.items():
        assert found["dense"] < LIKE
        assert found["reference"] < LIKE
        assert found["resumed"] == 0.0
        assert found["alike"]
        assert found["sent"] == found["chosen"]
        every = set(range(found["chunks"]))
        assert set(found["sent"][0]) == every  # dense until there are norms
        assert {len(sent) for sent in found["sent"][1:]} == {-(-found["chunks"] // 4)}
        assert set().union(*found["sent"][1:]) == every
        assert len(found["messages"]) > 2
        assert found["messages"][-1] == "norms"
        said = found["refused"]
        assert f"(rank={rank}), found rank={rank + 1}: each rank loads" in said[0]
        assert "expected a state of a training that sends whole gradients" in said[1]
        assert "found AdamW: parts of gradients add up with the momentum of SGD" in said[2]
        assert "found SGD with nesterov" in said[3]


def test_gradients_of_matrices_are_rebuilt_from_factors(tmp_path: Path) -> None:
    for found in run("factors", 2, tmp_path, program="overlap_parts.py").values():
        said = found.pop("refused")
        for kind, outcome in found.items():
            assert outcome["distance"] < LIKE, kind
            assert outcome["alike"]
            # not: `twice` (the sum of two products), `pooled` (other rows), `narrow` (whole is less), biases
            assert outcome["factors"] == ["deep.weight", "wide.weight"]
            assert outcome["messages"] == 9
            assert outcome["samples"] == 4
        assert "expected no optimizer.no_sync() where gradients are sent as factors" in said[0]
        assert "expected one forward pass of" in said[1]
