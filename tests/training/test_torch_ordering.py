"""What is needed first goes first, in real processes: the weights of a plain training, in the order of simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from training.test_torch_overlap import LIKE, run


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """All quick cases of two ranks, run once."""
    return run("every", 2, tmp_path_factory.mktemp("ordering"), program="ordering_ranks.py")


def out_of_order(outcomes: dict[int, dict[str, Any]]) -> None:
    for cases in outcomes.values():
        for name, found in cases.items():
            assert found["distance"] < LIKE * (10 if "adam" in name else 1), name
            assert found["made"] == found["simulated"], name
            assert found["launched"] == found["planned"], name
            assert found["whole"] == ["own.scale"], name
            assert found["keys"], name
        late = ["one.weight", "one.bias", "two.weight", "norm.weight", "norm.bias"]
        assert set(cases["{'k': 4} sgd"]["made"][-4:]) <= set(late)
        assert cases["{'k': 0} sgd"]["made"][0] == "out.bias"
        everything = cases["{'k': 10, 'partition_bytes': 200} sgd"]
        assert everything["made"][0] == "own.scale"
        assert everything["made"][-1] == "out.bias"
        assert len(everything["launched"]) > len(everything["made"])
    assert {name: found["k"] for name, found in outcomes[0].items()} == {
        name: found["k"] for name, found in outcomes[1].items()
    }


def test_gradients_of_weights_out_of_order(outcomes: dict[int, dict[str, Any]]) -> None:
    out_of_order({rank: found["out_of_order"] for rank, found in outcomes.items()})


@pytest.mark.slow
@pytest.mark.parametrize(("size", "backend"), [(4, "gloo"), (3, "coppice")])
def test_more_ranks_out_of_order(size: int, backend: str, tmp_path: Path) -> None:
    out_of_order(run("out_of_order", size, tmp_path, backend=backend, program="ordering_ranks.py"))


def test_deferred_gradients_under_checkpointing_autocast_and_resumed(
    outcomes: dict[int, dict[str, Any]],
) -> None:
    for outcome in outcomes.values():
        found = dict(outcome["features"])
        assert "expected `k` at most 10" in found.pop("refused")
        assert set(found.values()) == {0.0}, found
        assert len(found) == 5


RUN = ["(root)", "blocks.0", "blocks.1", "blocks.2", "outer", "outer.1"]


def gathers(outcomes: dict[int, dict[str, Any]]) -> None:
    alone = [each for name in RUN for each in (name, f"{name} runs")]
    for outcome in outcomes.values():
        found = dict(outcome)
        refused = found.pop("refused")
        assert "expected a model that is sharded by fully_shard" in refused[0]
        assert "expected `ahead` of 1 or more, found 0" in refused[1]
        assert found.pop("closed") == alone
        plain = found.pop("alone")
        assert plain == {"forward": alone, "backward": [*RUN[4:], *RUN[3:0:-1]]}
        for name, case in found.items():
            assert case["same"], name  # losses and weights bit for bit
            there, again = case["said"]
            assert [each for each in case["forward"] if " " not in each] == there, name
            assert ["(root)", *case["backward"]] == again, name  # the root keeps its parameters
            assert case["bytes"] == [608, 800, 1440, 1312, 576, 544]
            backwards = name.startswith("backward")
            assert there == (["(root)", *RUN[:0:-1]] if backwards else RUN), name
            assert again == ["(root)", *(RUN[1:4] + RUN[:3:-1] if backwards else plain["backward"])], name
        before = {
            name: [case["forward"].index(f"{each} runs") for each in RUN] for name, case in found.items()
        }
        assert before["tac 1"] == [2, 4, 6, 8, 10, 11]  # with one gather ahead of each
        assert before["tac 2"] == [3, 5, 7, 9, 10, 11]
        assert before["tac None"] == [6, 7, 8, 9, 10, 11]


def test_gathers_of_fsdp2_go_in_the_order_of_the_policy(outcomes: dict[int, dict[str, Any]]) -> None:
    gathers({rank: found["gathers"] for rank, found in outcomes.items()})


@pytest.mark.slow
@pytest.mark.parametrize(("size", "backend"), [(4, "gloo"), (2, "coppice")])
def test_more_ranks_gather_in_order(size: int, backend: str, tmp_path: Path) -> None:
    gathers(run("gathers", size, tmp_path, backend=backend, program="ordering_ranks.py"))
