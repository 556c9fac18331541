"""Pipelines in real processes: the weights of a plain training, in the order that simulation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from coppice.training.torch.pipelined.plan import StageCosts, pipeline_plan, stage_workload
from coppice.training.torch.whole.mixture.planning import SharedGradients, cut_message
from training.data_parallel.test_torch_overlap import run

PROGRAM = "training_pipeline_ranks.py"
LIKE = 2e-6
"""Sums of the same numbers in another order, and 20 steps on them."""


def judge(outcomes: dict[int, dict[str, Any]]) -> None:
    """Weights, evaluation, losses, checkpoints and order of every case on every rank."""
    for rank, outcome in outcomes.items():
        for name, found in outcome.items():
            where = f"{name} on rank {rank}"
            assert found["distance"] < LIKE, where
            assert found["evaluated"] < 10 * LIKE, where
            assert found["worst"] < 10 * LIKE, where
            assert found.get("resumed", 0.0) == 0.0, where
            assert found["predicted"] > 0, where
            if "passes" in found:
                assert found["passes"] == found["simulated passes"], where
            if not name.startswith("trirace") and "sums" in found:
                mine = [each for each in found["sums"] if not each.startswith("tied")]
                assert mine == found["simulated sums"], where
            elif "sums" in found:
                # Simulation starts an operation at a time; the two classes of a rank are lanes of their own.
                for own in (embedding(name, found["sums"]), embedding(name, found["simulated sums"])):
                    assert own[0] == sorted(own[0], key=group_and_number), where
                    assert own[1] == sorted(own[1], key=group_and_number), where
                assert sorted(found["sums"]) == sorted(found["simulated sums"]), where


def judge_handoffs(outcomes: dict[int, dict[str, Any]]) -> None:
    """Sums that tensor-parallel ranks hand to the next stage, and terms of gradients that come back."""
    half = len(outcomes) // 2
    for rank, outcome in outcomes.items():
        said = outcome.pop("refused")
        assert "expected a tensor of shape (4, 2) and torch.float32, found (4, 3)" in said[0]
        assert "found (4, 2) and torch.float64" in said[1]
        assert "expected a shape, chunks and rates above 0, found ()" in said[2]
        assert "expected both stages to hand on alike" in said[3]
        for name, found in outcome.items():
            where = f"{name} on rank {rank}"
            assert max(found["distance"], found["losses"]) < LIKE, where
            assert found["sent"] == found["expected"], where
            assert found["sliced"] == (name != "whole"), where
            assert found["sent"] == found["whole"] / (half if found["sliced"] else 1), where
            # Operations of a kind start chunk by chunk, a chunk's one after the other, as they are simulated.
            begun = [each.split(" ", 1)[1] for each in found["tasks"] if each.startswith("start")]
            for own in kinds_and_chunks(begun):
                assert own == [each for each in found["simulated"] if each in own], where
            ours = ("sum", "sent") if rank < half else ()
            if found["sliced"]:
                ours = ("sum.scatter", "sent.slice") if rank < half else ("sent",)
            assert {each.split()[0] for each in begun} == set(ours), where
        begun = outcome["sliced"]["tasks"]
        if rank < half:  # a chunk is sent before the next one is summed
            assert begun.index("start sent.slice 0") < begun.index("wait sum.scatter 1"), begun
        else:  # and gathered while the next one comes
            assert begun.index("start sent 0") < begun.index("wait sent.slice 1"), begun


def kinds_and_chunks(names: list[str]) -> list[list[str]]:
    """Names of one kind, and of one chunk."""
    words = [name.split() for name in names]
    return [
        [name for name, own in zip(names, words, strict=True) if own[place] == each]
        for place in (0, 1)
        for each in {own[place] for own in words}
    ]


def group_and_number(name: str) -> tuple[int, int]:
    """Of a message of an asynchronous pipeline."""
    words = name.split()
    return int(words[-1]), int(words[1])


def embedding(case: str, names: list[str]) -> tuple[list[str], list[str]]:
    """Messages of the embedding, and the others."""
    first = {"trirace sparse": 1, "trirace tied": 6}.get(case, 0)
    split: tuple[list[str], list[str]] = ([], [])
    for name in names:
        split[group_and_number(name)[1] >= first].append(name)
    return split


def test_orders_and_policies_train_as_one_process_would(tmp_path: Path) -> None:
    outcomes = run("quick", 4, tmp_path, program=PROGRAM)
    said = [outcome.pop("refused") for outcome in outcomes.values()]
    judge_handoffs({rank: outcome.pop("handoffs") for rank, outcome in outcomes.items()})
    judge(outcomes)
    assert all(each[0].startswith("expected no `max_norm` with fold3d") for each in said)
    for place, words in enumerate(
        (
            "which has 2 on 2, found 3",
            "found 'sideways'",
            "divide 4 ranks, found 3",
            "each of 4 ranks once in 2 rows of 2",
            "found LBFGS",
            "found none of unused.weight: freeze what is not used",
        ),
        start=1,
    ):
        assert all(words in each[place] for each in said), words
    assert "rows are a multiple of 2 micro-batches, found 3" in said[0][7]
    assert "found a sparse one of 0.weight of stage 0" in said[0][8]
    first = outcomes[0]
    assert first["breadth-first"]["stages"] == [0, 2]
    assert first["own"]["stages"] == [1, 2]
    assert first["tied fold3d"]["keys"] == ["0.0.weight", "0.1.weight", "0.1.bias", "2.0.weight", "2.0.bias"]
    # Gradients of chunk 1 are on the network while passes of chunk 0 run.
    events = first["breadth-first"]["events"]
    asked = events.index("gradients of stage 2 of 5 asked for")
    assert events.index("2B3 of 5") < asked < events.index("0B0 of 5") < events.index("stage 2 updated by 5")
    # Their second part goes with the next forward pass of chunk 0, and chunk 1 is updated before it runs.
    events = first["fold3d"]["events"]
    parts = [place for place, name in enumerate(events) if name == "gradients of stage 2 of 5 asked for"]
    assert events.index("2B3 of 5") < parts[0] < events.index("0B0 of 5") < parts[1]
    assert (
        parts[1] < events.index("0F0 of 6") < events.index("stage 2 updated by 5") < events.index("2F0 of 6")
    )
    assert events.index("stage 0 updated by 5") < parts[1]
    # Groups are updated by gradients of the group before the last one.
    events = first["trirace"]["events"]
    assert events.index("0B23") < events.index("stage 0 updated by 5")
    assert events.index("0F27") < events.index("stage 0 updated by 5") < events.index("0F28")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "coppice"])
def test_all_orders_train_as_one_process_would(backend: str, tmp_path: Path) -> None:
    outcomes = run("rest", 4, tmp_path, program=PROGRAM, backend=backend)
    judge_handoffs({rank: outcome.pop("handoffs") for rank, outcome in outcomes.items()})
    judge(outcomes)


def test_a_killed_rank_ends_the_pipeline_with_an_error(tmp_path: Path) -> None:
    for outcome in run("killed", 3, tmp_path, dies=1, program=PROGRAM).values():
        assert (
            "expected all ranks to go on with the pipeline, found one that does not answer" in outcome["said"]
        )
        assert 7 <= outcome["step"] <= 10


@pytest.mark.parametrize(
    ("order", "stages", "settings"),
    [
        ("1f1b", 2, {}),
        ("zero-bubble", 2, {}),
        ("breadth-first", 6, {}),
        ("fold3d", 6, {}),
        ("fold3d", 6, {"share": 0.3}),
        ("fold3d", 4, {"share": 1.0}),
        ("trirace", 2, {"chunk_bytes": 7}),
        ("trirace", 2, {"chunk_bytes": 30, "classes": False}),
        ("trirace", 2, {"chunk_bytes": 9, "tied": True}),
    ],
)
def test_messages_of_a_stage_carry_each_of_its_gradients_once(
    order: str, stages: int, settings: dict[str, Any]
) -> None:
    sizes = [17.0 + 13 * stage for stage in range(stages)]
    costs = StageCosts(
        forward=[1.0] * stages,
        backward=[2.0] * stages,
        bytes=sizes,
        network=(10.0, 0.1),
        embedding_bytes=5.0 if order == "trirace" else 0.0,
    )
    plan = pipeline_plan(
        order,
        settings,
        stage_workload(costs, 2),
        devices=2,
        stages=stages,
        micro_batches=4,
        transfer_seconds=0.0,
    )
    rows: dict[tuple[int | None, int], list[Any]] = {}
    for message, part in zip(plan.messages, plan.parts(), strict=True):
        rows.setdefault((message.stage, message.priority), []).append((*part, message))
    sent = [0.0] * stages
    for (stage, _), row in rows.items():
        row.sort(key=lambda each: each[:2])
        assert [each[0] for each in row] == [0, *(each[1] for each in row[:-1])]
        assert row[-1][1] == 1
        assert all(low < high for low, high, _ in row)
        total = sum(message.size_bytes for *_, message in row)
        for low, _, message in row:
            assert message.offset_bytes == pytest.approx(float(low) * total)
        sent[stage or 0] += total
    if settings.get("tied"):
        sent[1] -= 5.0  # the embedding goes from both ends
    assert sent == pytest.approx(sizes)


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_pieces_of_a_message_are_the_message(pieces: int) -> None:
    whole = SharedGradients(bytes=[8, 20, 14]).message("sum 0", (2, 0), 0, seconds=2.5)
    cut = cut_message(whole, pieces, start_seconds=0.5)
    assert whole.size_bytes == pytest.approx(sum(each.size_bytes for each in cut)) == 22
    assert [each.offset_bytes for each in cut] == pytest.approx([22 * at / pieces for at in range(pieces)])
    assert sum(each.seconds - 0.5 for each in cut) == pytest.approx(2.0)
    assert {(each.layers, each.stream) for each in cut} == {((2, 0), "network")}
