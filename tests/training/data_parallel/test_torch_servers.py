"""Parameter servers in processes of their own: P3's slices, TicTac's pulls, beside the same training in one process."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import msgspec
import torch

from coppice.training.torch import serve_parameters
from coppice.training.torch.data_parallel.server import (
    FrameKind,
    ServerHello,
    ServerLink,
    ServerSlice,
    packed,
    raw,
)
from training.data_parallel.test_torch_overlap import LIKE, run


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_servers_train_as_one_process_would(size: int, tmp_path: Path) -> None:
    outcomes = run("killed", size, tmp_path, dies=1, program="servers_ranks.py")
    for outcome in outcomes.values():
        assert len(outcome["served"]) == 4
        for name, found in outcome["served"].items():
            # sums in the order of the workers, but of the recorded iterations, which are all-reduces
            like = 0.0 if size == 2 else LIKE if name in ("p3 0", "tictac 2") else 10 * LIKE
            assert max(found["distance"], found["states"], found["resumed"]) <= like, name
            assert found["ordered"], name
            assert found["executor"] == "ServerExecutor"
            assert found["messages"] > 6
        said = outcome["refused"]
        assert "found policy priority, which is not p3" in said[0]
        assert "found policy p3, which is not p3 (with `transport=" in said[1]
        assert "found `tune` in training" in said[2]
        assert "found `unused=True`" in said[3]
        assert "expected an address like 10.0.0.5:7000, found 'nowhere'" in said[4]
        assert "one or more different addresses" in said[5]
        assert "expected gradients to be left to servers" in said[6]
        assert "found lr changed from 0.05 to 0.5" in said[7]
        assert " is gone" in outcome["server"]
        assert " gone" in outcome["worker"]
        assert any("found worker 1 gone" in each for each in outcome["said"])


def test_values_that_one_worker_tells_do_not_reach_another_before_its_next_step() -> None:
    """Worker 0 is a step ahead: it has changed a parameter, of which worker 1 still wants what the last step made."""
    ready: SimpleQueue[str] = SimpleQueue()
    serving = threading.Thread(target=serve_parameters, args=("127.0.0.1:0",), kwargs={"ready": ready.put})
    serving.start()
    host, port = ready.get(timeout=60).split(":")
    links = [ServerLink(socket.create_connection((host, int(port)), timeout=60)) for _ in range(2)]
    for worker, link in enumerate(links):
        slices = [ServerSlice(number=0, elements=2, kind="float32", group=0)]
        hello = ServerHello(worker=worker, workers=2, optimizer="SGD", groups=[{"lr": 1.0}], slices=slices)
        link.send(FrameKind.HELLO, body=msgspec.msgpack.encode(hello))

    def tell(values: list[float]) -> None:
        entries = {"values": torch.tensor(values), "whole": False}
        links[0].send(FrameKind.TAKE, 0, 0, packed(entries))

    def push(worker: int, gradient: list[float]) -> None:
        sent = torch.tensor(gradient)
        links[worker].send(FrameKind.PUSH, 0, 0, raw(sent))

    def pulled(worker: int) -> list[float]:
        links[worker].send(FrameKind.PULL, 0)
        kind, _, _, body = links[worker].receive(lambda *_: None)
        assert kind is FrameKind.VALUES
        return cast("list[float]", torch.frombuffer(bytearray(body), dtype=torch.float32).tolist())

    tell([10.0, 20.0])
    for worker in range(2):
        push(worker, [1.0, 2.0])
    assert pulled(0) == [8.0, 16.0]
    tell([4.0, 8.0])
    links[0].send(FrameKind.ASK, 0)  # answered behind what was told
    assert links[0].receive(lambda *_: None)[0] is FrameKind.STATE
    assert pulled(1) == [8.0, 16.0]
    for worker in range(2):
        push(worker, [1.0, 2.0])
    assert [pulled(worker) for worker in range(2)] == [[2.0, 4.0]] * 2
    for link in links:
        link.send(FrameKind.END)
    serving.join(timeout=60)
    assert not serving.is_alive()
    for link in links:
        link.close()


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
