"""Policies of overlap in real processes, in loops as they are written: weights of a plain training, by the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.rank_processes import rank_codes

pytest.importorskip("torch", reason="torch is not installed")

SUPPORT = Path(__file__).resolve().parents[2] / "support"
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
    codes = rank_codes(
        SUPPORT / program,
        [(mode, rank, size, folder, backend) for rank in range(size)],
        [folder / f"errors-{rank}" for rank in range(size)],
    )
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
        assert "add gradients up within optimizer.no_sync() before it" in said[3]
        assert "found none of 1.weight, 1.bias: freeze what is not used" in said[4]
        assert "expected trained parameters on one device, found cpu and meta" in said[5]


def test_odd_parameters_train_and_ranks_that_were_told_different_things_are_refused(tmp_path: Path) -> None:
    for rank, outcome in run("odd", 2, tmp_path).items():
        assert set(outcome["distances"]) == {"bytescheduler", "serial"}
        assert max(outcome["distances"].values()) < LIKE
        own, other = ("ddp", "dear")[rank], ("dear", "ddp")[rank]
        said = outcome["refused"]
        assert (
            f"same policy on all ranks, found {own!r} (str) on this rank and {other!r} (str) on rank"
            in said[0]
        )
        assert "expected the same bucket_bytes on all ranks" in said[1]
        assert "expected the same tune on all ranks" in said[2]
        assert "expected `network` as bytes per second above 0" in said[3]
        assert "found 'fast' (str): leave it out to have it measured" in said[4]
        assert "found that all are frozen or empty" in said[5]
        assert "found DistributedDataParallel, which sums gradients itself" in said[6]
        assert "as a DTensor: whoever shards it sums its gradients" in said[7]
        for words in said[8:10]:
            assert "expected the same policy on all ranks" in words
            assert "call schedule alike on all" in words
        assert "expected the same token_pieces on all ranks" in said[10]
        assert "expected the same micro_batches on all ranks, found" in said[11]
        assert "call pipeline alike on all" in said[11]
        assert len(said) == 12


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
            assert outcome["resumed"] == 0.0  # into a training that has ended recording
            assert outcome["resumed_anew"] < LIKE
            assert outcome["by_factors"] == 2
        assert "expected no optimizer.no_sync() where gradients are sent as factors" in said[0]
        assert "expected one forward pass of" in said[1]


@pytest.mark.parametrize("scope", ["group", "barrier"])
def test_pace_steps_when_its_settings_say(scope: str) -> None:
    from coppice.iteration.layers import LayerWorkload
    from coppice.iteration.policies.catalogue import policy_named
    from coppice.training.torch.data_parallel.recorder import launch_plan

    work = LayerWorkload(forward=(1, 1), backward=(2, 2), bytes=(2, 8), bytes_per_second=1.0)
    policy: Any = policy_named("pace").of(update_scope=scope)
    assert launch_plan(policy, work, (0, 1)).scope.value == scope


@pytest.mark.parametrize(
    ("size", "backend"), [(2, "gloo"), pytest.param(3, "coppice", marks=pytest.mark.slow)]
)
def test_settings_are_tried_while_weights_stay_those_of_plain_training(
    size: int, backend: str, tmp_path: Path
) -> None:
    outcomes = run("tuning", size, tmp_path, backend=backend, program="overlap_tuned.py")
    said = outcomes[0].pop("refused")
    assert "expected `tune` True, False, 'simulation' or 'training', found 'measure'" in said[0]
    assert "expected `trials` of 1 or more, found 0" in said[1]
    assert "expected `window` of 1 or more, found 0" in said[2]
    for name, found in outcomes[0].items():
        assert found["distance"] < LIKE, name
        assert found["resumed"] <= (0.0 if size == 2 else LIKE), name
        others = [outcomes[rank][name] for rank in range(1, size)]
        assert all(other["seen"] == found["seen"] for other in others), (
            name
        )  # the same iteration on all ranks
        assert all(other["trials"] == found["trials"] for other in others), name
        tried = name not in ("serial", "priority")
        assert found["during"] == tried
        assert not found["after"]
        assert found["keys"] == sorted(
            [
                "param_groups",
                "state",
                *(["tuning_trials"] if tried else []),
                *(["sparse_sums"] if name == "gradientflow" else []),
            ]
        )
        assert found["kept"], name
        seen = [each["settings"] for each in found["seen"]]
        count = len(found["trials"])
        assert len({settings for settings, _ in found["trials"]}) == count
        assert count == 4 if name in ("bytescheduler", "dear", "p3") else count > 1 if tried else count == 0
        for trial in range(count):  # each held for a window that is not measured and three that are
            assert len(set(seen[3 + 4 * trial : 7 + 4 * trial])) == 1, name
        assert len(set(seen)) >= count


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(3, "coppice", marks=pytest.mark.slow),
    ],
)
def test_loops_train_as_with_distributed_data_parallel(size: int, backend: str, tmp_path: Path) -> None:
    outcomes = run("loops", size, tmp_path, backend=backend, program="loops_ranks.py")
    # two terms have one sum, in whatever order; factors are multiplied anew
    like = 0.0 if size == 2 else 2e-5
    for outcome in outcomes.values():
        assert len(outcome["unused"]) == 8
        for name, found in outcome["unused"].items():
            assert found["distance"] <= (like or 2e-5 if name == "poseidon" else like), name
            assert found["read"] <= (like or 2e-5 if name == "poseidon" else like), name
            assert found["classes"] == ["Parameter"]
            assert found["states"] == found["their states"] == 10  # none of what is never used
        for name, found in outcome["scaled"].items():
            assert found["distance"] == 0.0, name
            skipped = [step for step in range(1, 20) if found["scales"][step] < found["scales"][step - 1]]
            assert skipped == [3, 9], name
        assert outcome["within_autocast"] <= (LIKE if like else 0.0)
        assert outcome["measured"] > 0
        said = outcome["refused"]
        assert "call optimizer.synchronize() first (before unscale_ and step of a GradScaler too)" in said[0]
        assert "expected finite gradients where parts of them are held back" in said[1]
        assert "expected `unused=False` where chunks are chosen" in said[2]
        assert said[3] == "InputError: expected better luck, found none."
    assert outcomes[0]["refused"][4] == "ZeroDivisionError: by zero"
    failed = (
        "CheckError: expected rank 0 to say how to go on, found that it failed (ZeroDivisionError: by zero)."
    )
    assert all(outcomes[rank]["refused"][4] == failed for rank in range(1, size))
