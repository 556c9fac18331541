"""Parameter servers in processes of their own: P3's slices, TicTac's pulls, beside the same training in one process."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import msgspec
import torch

from coppice.training.torch import serve_parameters
from coppice.training.torch.servers.server import FrameKind, ServerHello, ServerLink, ServerSlice, packed, raw
from training.test_torch_overlap import LIKE, run


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
            assert found["carrier"] == "ServerCarrier"
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
