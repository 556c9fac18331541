"""Plans of SYNDICATE and Centauri in real processes: torch's own results, in the order of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from training.data_parallel.test_torch_overlap import LIKE, run

PROGRAM = "chunked_ranks.py"


SAID = {
    "carried": (
        "InputError: expected an order of the",
        "InputError: expected buffers of layer, or what computes it, found none",
        "CheckError: expected the same operations on all ranks, found others on rank 1",
        "CheckError: expected the same plan on all ranks, found another on rank 1",
        "InputError: expected syndicate or centauri as the policy of a whole step, found 'lina'",
        "InputError: expected channels named inside or between",
    ),
    "refused": (
        "expected a model with TensorParallelModule parts, found none",
        "expected the `data` group",
        "expected 2 recorded iterations or more, found 1",
        "expected a plan of the whole step for all ranks, made by simulation, found `tune=True`",
        "expected figures of the network for inside and between boxes, found one pair",
        "expected `network` of ddp as bytes per second",
        "expected a topology of 4 ranks, found one of 8",
        "found `ahead=-1`",
        "expected an optimizer that updates every element by itself, as weights are sharded, found Adafactor",
        "expected a backward pass after each forward pass of training",
        "found 2 in the place of 1: define them in the order in which they run",
        "expected passes outside of training without gradients where weights are sharded",
        "expected a step of 2 sections, found one of 4",
    ),
}


def check_templates(found: dict[str, Any], cases: int) -> None:
    """Every way gives what torch's collective gives, bit for bit where two numbers are added."""
    assert found["wrong"] == []
    assert found["cases"] == cases
    assert found["labels"] == ["grouped", "plain", "substituted", "substituted and grouped"]
    assert found["near"] < 2e-6
    assert found["exact"] == 0.0


def check_training(found: dict[str, Any], replicas: int = 2) -> None:
    """Weights of one process, in the order that was simulated."""
    for name, each in found.items():
        assert each["distance"] < LIKE, name
        assert each["evaluated"] < LIKE, name
        assert each["orders"], name
        assert each["keys"], name
        assert each["closed"], name
        assert each["norms"] < 1e-5, name
        if "sharded" in name:
            # Weights of at most two sections of four are whole at once, and none between steps; one replica has all.
            assert each["most"] == (2 if replicas > 1 else 0), name
            assert each["freed"], name
            if "forced" in found:
                assert (each["kept"] < found["forced"]["kept"]) == (replicas > 1), name
        if name == "forced, sharded":
            assert each["as whole"]
        assert each["resumed"] == 0.0, name
        assert each["same plan"], name
        if not name.startswith("forced"):
            assert each["predicted"] <= each["plain"] * (1 + 1e-9), name


def test_plans_on_four_ranks(tmp_path: Path) -> None:
    outcomes = run("quick", 4, tmp_path, program=PROGRAM)
    for rank, outcome in outcomes.items():
        check_templates(outcome["templates"], 72)
        check_training(outcome["training"])
        for mode, sentences in SAID.items():
            for said, wanted in zip(outcome[mode]["said"], sentences, strict=True):
                assert wanted in said
        carried = outcome["carried"]
        for policy in ("syndicate", "centauri"):
            assert carried[policy]["launched"] == carried[policy]["planned"], policy
            assert carried[policy]["digest"] == outcomes[0]["carried"][policy]["digest"], policy
            assert carried[policy]["better"], policy
            assert carried[policy]["tokens"], policy
        assert carried["sums"]
        assert carried["pipelined"]
        refused, legal, both = carried["mutations"]
        assert both == 200
        assert min(refused, legal) > 10
        forced = outcome["training"]["forced"]
        assert forced["digest"] == outcomes[0]["training"]["forced"]["digest"]
        # Rows of a section are computed while those before them are summed, weights while gradients of inputs are.
        order = forced["launched"]["device"]
        assert order.index("4 backward 2.0") < order.index("4 weights 2.0") < order.index("end 0.0"), rank
        assert "1 sums 2.1" in forced["launched"]["inside"]
        assert "late means 2.1" in forced["launched"]["between"]
        between = outcome["training"]["forced, sharded"]["launched"]["between"]
        assert between.index("4 gather 2.0") < between.index("1 second gather 0.0")
        assert "2 means 2.0" in between


def test_weights_in_parts_and_a_killed_rank(tmp_path: Path) -> None:
    for outcome in run("killed", 2, tmp_path, program=PROGRAM, dies=1).values():
        assert outcome["planned"]
        assert outcome["distance"] < LIKE
        assert "expected all ranks to carry the plan out, found one that does not answer" in outcome["said"]
        assert outcome["step"] == 11


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "coppice"])
def test_every_way_in_any_number_of_pieces(backend: str, tmp_path: Path) -> None:
    for outcome in run("templates", 4, tmp_path, program=PROGRAM, backend=backend).values():
        check_templates(outcome, 432)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "backend"), [(2, "gloo"), (4, "gloo"), (4, "coppice")])
def test_training_on_other_ranks(size: int, backend: str, tmp_path: Path) -> None:
    for outcome in run("training", size, tmp_path, program=PROGRAM, backend=backend).values():
        check_training(outcome, replicas=size // 2)
