"""Tensor parallelism in real processes: the weights of a plain training, by the plan that is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from training.data_parallel.test_torch_overlap import LIKE, run

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = "tensor_ranks.py"
STEPS = 8
"""Of each training there."""


def simulated_as_carried(region: dict[str, Any]) -> None:
    """What ranks do is in the order of the simulated tasks: those of a device or a link one after the other."""
    begun = [task.split(" ", 1)[1] for task in region["tasks"] if not task.startswith("wait")]
    for tasks in region["simulated"].values():
        names = [task.partition(" at ")[0].partition(" from ")[0] for task in tasks]
        ours = [f"{name.split()[0]} {name.split()[-1]}" for name in names]
        ours = [each for each in ours if not each.startswith(("launch", "sum of"))]
        places = [begun.index(each) for each in ours if each in begun]
        assert len(places) == len(set(ours)), (ours, begun)
        assert places == sorted(places), (ours, begun)


def check_blocks(outcome: dict[str, Any]) -> None:
    for name, found in outcome.items():
        assert found["keys"], name
        assert max(found["first"], found["last"], found["distance"]) < LIKE, name
    for name in ("decomposition 0", "decomposition 1"):
        regions = outcome[name]["regions"]
        assert [each["collective"] for each in regions] == ["all_gather", "reduce_scatter"] * 4
        assert regions[0]["cases"] == ["non-contracting"] * 3
        assert "contracting" in regions[4]["cases"]
        for number, region in enumerate(regions):
            assert region["tasks"] == region["expected"]
            assert region["seconds"] < region["before"]
            assert region["simulated_seconds"] == pytest.approx(region["seconds"], rel=1e-6)
            done = [task for which, task in outcome[name]["carried"] if which == number]
            once = [task for task in region["tasks"] if task != "run sum 0"]
            assert done == once * STEPS
            if name == "decomposition 0":
                simulated_as_carried(region)
    assert not any(region["tasks"] for region in outcome["decomposition 2"]["regions"])
    sums, scatters = (outcome[name]["regions"] for name in ("coconet 3", "coconet 4"))
    assert sums[0]["cases"][0].startswith("split sum")
    assert sums[0]["cases"][-1] == "overlap product and sum.scatter"
    assert any("native_dropout" in each for each in sums[0]["cases"])
    assert sums[2]["cases"] == scatters[0]["cases"] == ["overlap product and sum"]
    for number, region in enumerate((*sums[:3], *scatters)):
        assert region["simulated_seconds"] == pytest.approx(region["seconds"], rel=1e-6)
        assert region["seconds"] < region["before"]
        simulated_as_carried(region)
        name = "coconet 3" if number < 3 else "coconet 4"
        done = [task for which, task in outcome[name]["carried"] if which == number % 3]
        assert done == region["tasks"] * STEPS


def check_graphs(outcome: dict[str, Any]) -> None:
    rings = {
        "rows": ["non-contracting"],
        "linear": ["non-contracting"],
        "weights": ["non-contracting"],
        "contracting": ["contracting"],
        "with bias": ["contracting"],
        "batch": ["batch"],
        "scatter": ["non-contracting"],
        "sum": ["non-contracting", "non-contracting"],
        "batches": ["batch"],
    }
    for name, found in outcome.items():
        kind = name.rsplit(" ", 1)[0]
        assert found["equal"], name
        if kind in rings:
            assert found["rings"] == [rings[kind]], name
            assert found["left"] == 0, name
    assert outcome["split False"] == {
        "equal": True,
        "rings": [],
        "left": 1,
    }  # 3 does not divide what a rank has


def check_optimizers(outcome: dict[str, Any], size: int) -> None:
    for name, found in outcome.items():
        assert max(found["distance"], found["state"], found["from plain"]) < LIKE, name
        assert found["resumed"] <= (LIKE if "clipped" in name else 0.0), name
        assert found["keys"], name
        assert found["groups"], name
        assert found["buffers"], name
        assert found["norm"] < LIKE, name
        begun = [task for task in found["tasks"] if not task.startswith("wait") and task != "run norm"]
        chunks = sorted({task.split()[-1] for task in begun})
        for chunk in chunks:  # of a chunk, what is simulated in its order
            own = [word for task in begun if task.split()[-1] == chunk for word in task.split()[1:-1]]
            assert own == found["simulated"], name
        if "whole" in name:
            assert not any(each.startswith("split") for each in found["rewrites"]), name
            continue
        assert any(each.startswith("as slice") for each in found["rewrites"]), name
        assert found["held"] < found["whole"] / size + 20, name
        assert len(chunks) > 2
        if "clipped" not in name:
            assert found["tasks"].index("start step 0") < found["tasks"].index("wait sum.scatter 1")


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(4, "coppice", marks=pytest.mark.slow),
    ],
)
def test_tensor_parallel_training_is_that_of_one_process(size: int, backend: str, tmp_path: Path) -> None:
    outcomes = run("parts", size, tmp_path, backend=backend, program=PROGRAM)
    for outcome in outcomes.values():
        check_blocks(outcome["blocks"])
        check_graphs(outcome["graphs"])
        check_optimizers(outcome["optimizers"], size)
        said = outcome["refused"]
        assert "of shape [8, 8] alike on all ranks, as it meets a sum over them, found otherwise" in said[0]
        assert "(decomposition, coconet), found 'oases'" in said[1]
        assert "expected `flops_per_s` above 0 with `costs`, found none" in said[2]
        assert "found 'chunk'" in said[3]
        for place, words in enumerate(
            (
                "found Adagrad",
                "found none of one of shape [2, 2]",
                "found one of shape [2] elsewhere",
                "found a GradScaler",
                "taken the same number of steps",
                "found a closure",
                "expected all parameters when the optimizer is fused",
                "expected a `max_norm` above 0, found 0",
            ),
            start=4,
        ):
            assert words in said[place], (words, said[place])
    orders = [
        [region["tasks"] for found in each["blocks"].values() for region in found["regions"]]
        for each in outcomes.values()
    ]
    assert all(order == orders[0] for order in orders)


@pytest.mark.slow
def test_a_killed_rank_ends_rings_with_an_error(tmp_path: Path) -> None:
    found = run("killed", 4, tmp_path, dies=1, program=PROGRAM)
    for outcome in found.values():
        assert (
            "expected every rank of the ring to pass its shard on, found one that does not" in outcome["said"]
        )
        assert 3 <= outcome["step"] <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("killed_optimizer", "expected all ranks to update their slices, found one that does not answer"),
        ("killed_handoff", "expected both stages to pass the sum on, found a rank that does not answer"),
    ],
)
def test_a_killed_rank_ends_what_is_under_way_with_an_error(mode: str, expected: str, tmp_path: Path) -> None:
    for outcome in run(mode, 4, tmp_path, dies=1, program=PROGRAM).values():
        assert expected in outcome["said"]
        assert 3 <= outcome["step"] <= 6
