"""Switches and workers that die, stop or are started anew: hosts take over, or every rank raises; no wrong sum."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.innetwork.serving import PacketFaults, SwitchClient, SwitchError, SwitchServer
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.numpy import run_ranks
from coppice.run.errors import RunError
from coppice.topology.presets import preset

RANKS = 3
SETTINGS = "values=64,slots=16,timeout_ms=5,silence_s=3"


class Switch:
    """A switch that is a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "coppice", "switch", "serve", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[2].rstrip(":")

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Switch]]:
    started: list[Switch] = []

    def make(*options: str) -> Switch:
        options = options if "--port" in options else ("--port", "0", *options)
        started.append(Switch(*options))
        monkeypatch.setenv("COPPICE_SWITCH", started[-1].address)
        monkeypatch.setenv("COPPICE_SWITCH_SETTINGS", SETTINGS)
        return started[-1]

    yield make
    for each in started:
        each.kill()


def reduced(
    tmp_path: Path, between: Callable[[int], None], *, fall_back: bool, calls: int = 3, size: int = 5000
) -> list[Any]:
    """Sums of each call on each rank, all checked; ``between(call)`` runs before each call, on no rank's behalf."""

    def work(engine: Any) -> list[float]:
        topology = preset("star", gpus=RANKS)
        found = []
        with Communicator(
            engine, topology, algorithm="switchml", cache_dir=tmp_path, timeout_s=60, fall_back=fall_back
        ) as group:
            for call in range(calls):
                group.barrier()
                if engine.rank == 0:
                    between(call)
                group.barrier()
                data = np.arange(size, dtype=np.float32) % 50 + engine.rank + call
                group.all_reduce(data)
                wanted = RANKS * (np.arange(size) % 50 + call) + 3
                np.testing.assert_allclose(data, wanted, rtol=1e-6)
                found.append(float(data[0]))
        return found

    return run_ranks(RANKS, work)


WANTED = [[3.0, 6.0, 9.0]] * RANKS


def test_a_switch_that_is_killed_between_calls(
    start: Callable[..., Switch], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = start()
    with caplog.at_level(logging.WARNING, logger="coppice"):
        assert reduced(tmp_path, lambda call: switch.kill() if call == 1 else None, fall_back=True) == WANTED
    assert [record.message.startswith("switchml is no longer used") for record in caplog.records] == [True]
    assert "nothing listens at" in caplog.text


def test_a_switch_that_dies_amid_a_sum(start: Callable[..., Switch], tmp_path: Path) -> None:
    """Of the 240 or so packets of a sum, 300 pass: the second call begins, and stays without its end."""
    switch = start("--drop", "1", "--after", "300")
    timer = threading.Timer(0.5, switch.kill)

    def between(call: int) -> None:
        if call == 1:
            timer.start()

    assert reduced(tmp_path, between, fall_back=True) == WANTED
    timer.join()


@pytest.mark.parametrize("fall_back", [True, False])
def test_a_link_that_is_dead(start: Callable[..., Switch], tmp_path: Path, fall_back: bool) -> None:
    start("--drop", "1", "--after", "300")
    found = reduced(tmp_path, lambda _: None, fall_back=fall_back)
    if fall_back:
        assert found == WANTED
        return
    for each in found:
        assert isinstance(each, RunError), each
        assert "has not answered for" in str(each) or "nothing listens" in str(each)


def test_a_switch_that_hangs(start: Callable[..., Switch], tmp_path: Path) -> None:
    switch = start()

    def between(call: int) -> None:
        if call == 1:
            switch.process.send_signal(signal.SIGSTOP)

    assert reduced(tmp_path, between, fall_back=True) == WANTED


@pytest.mark.parametrize("fall_back", [True, False])
def test_a_switch_that_is_started_anew(
    start: Callable[..., Switch], tmp_path: Path, fall_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    switch = start()

    def between(call: int) -> None:
        if call == 1:
            switch.kill()
            start("--port", switch.address.rpartition(":")[2])

    with caplog.at_level(logging.WARNING, logger="coppice"):
        found = reduced(tmp_path, between, fall_back=fall_back)
    if fall_back:
        assert found == WANTED
        assert "does not know job" in caplog.text
    else:
        assert all(isinstance(each, RunError) and "does not know job" in str(each) for each in found)


def test_no_switch_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with SwitchServer() as gone:
        monkeypatch.setenv("COPPICE_SWITCH", gone.address)
    monkeypatch.setenv("COPPICE_SWITCH_SETTINGS", "silence_s=0.3")
    with caplog.at_level(logging.WARNING, logger="coppice"):
        assert reduced(tmp_path, lambda _: None, fall_back=True) == WANTED
    assert "is no longer used" in caplog.text
    for each in reduced(tmp_path, lambda _: None, fall_back=False):
        assert isinstance(each, RunError)


@pytest.mark.parametrize("losers", [(0,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("size", [1, 700])
def test_nobody_uses_a_sum_that_another_rank_does_not_have(
    losers: tuple[int, ...], size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ranks have the sum and some do not, with rubbish in their memory: all take the hosts' result."""
    real = SwitchClient.all_reduce_at
    calls = [0] * RANKS

    def half_broken(self: SwitchClient, given: int, wanted: int, count: int, *, timeout_s: float) -> None:
        real(self, given, wanted, count, timeout_s=timeout_s)
        calls[self.worker] += 1
        if calls[self.worker] == 2 and self.worker in losers:
            import ctypes

            ctypes.memset(wanted, 0x5A, 4 * count)
            raise SwitchError("torn")

    monkeypatch.setattr(SwitchClient, "all_reduce_at", half_broken)
    with SwitchServer() as switch:
        monkeypatch.setenv("COPPICE_SWITCH", switch.address)
        assert reduced(tmp_path, lambda _: None, fall_back=True, size=size) == WANTED
    assert calls == [2] * RANKS


WORKER = """
import os, sys, time
import numpy as np
from coppice.innetwork.serving import SwitchClient, SwitchError
address, worker = sys.argv[1], int(sys.argv[2])
end = SwitchClient(address, worker=worker, workers=3, element="int32")
end.join()
data = np.full(100, worker, dtype=np.int32)
end.all_reduce(data)
assert data.tolist() == [3] * 100
print("first", flush=True)
if worker == 2:
    time.sleep(600)
try:
    end.all_reduce(data)
except SwitchError as error:
    print(error, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def workers_of(address: str, tmp_path: Path) -> list[subprocess.Popen[str]]:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    made = [
        subprocess.Popen(
            [sys.executable, str(script), address, str(worker)], stdout=subprocess.PIPE, text=True
        )
        for worker in range(3)
    ]
    for each in made:
        assert each.stdout is not None
        assert each.stdout.readline() == "first\n"
    return made


def ended(made: list[subprocess.Popen[str]]) -> list[str]:
    try:
        return [each.communicate(timeout=60)[0].strip() for each in made]
    finally:
        for each in made:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_hangs_is_named(how: signal.Signals, tmp_path: Path) -> None:
    """C8: the others wait for it while it may still come, and are told when it is taken for lost."""
    with SwitchServer(silence_s=3) as switch:
        made = workers_of(switch.address, tmp_path)
        made[2].send_signal(how)
        try:
            said = ended(made[:2])
        finally:
            made[2].kill()
            made[2].communicate()
        assert len(said) == 2
        for words in said:
            assert words.startswith("job 1 has ended: worker 2 has been silent for 3 s"), words
    assert switch.report()["slots_in_use"] == 0  # whole once the switch has ended


def test_a_worker_that_is_interrupted_leaves_and_the_others_are_told(tmp_path: Path) -> None:
    with SwitchServer() as switch:
        made = workers_of(switch.address, tmp_path)
        while switch.report()["protocol"]["aggregated"] < 5:  # both have contributed to the second sum
            time.sleep(0.02)
        made[0].send_signal(signal.SIGINT)
        try:
            said = ended(made[:2])
        finally:
            made[2].kill()
            made[2].communicate()
        assert said[0] == "interrupted"
        assert said[1].startswith("job 1 has ended: worker 0 gave up: it was interrupted")


LOST = """
import os, signal, sys
import numpy as np
from coppice.errors import CoppiceError
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.torch.engine import TorchEngine
from coppice.topology.presets import preset
engine = TorchEngine.from_environment(timeout_s=300)
group = Communicator(engine, preset("star", gpus=3), algorithm="switchml", timeout_s=300)
data = np.full(100, engine.rank, dtype=np.int32)
group.all_reduce(data)
assert data.tolist() == [3] * 100
if engine.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    group.all_reduce(data)
except CoppiceError as error:
    print(f"rank {engine.rank}: {type(error).__name__}", flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_with_an_error(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import socket

    script = tmp_path / "lost.py"
    script.write_text(LOST)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with SwitchServer(silence_s=3) as switch:
        made = []
        for rank in range(3):
            variables = {
                **os.environ,
                "COPPICE_SWITCH": switch.address,
                "COPPICE_CACHE": str(tmp_path),
                "RANK": str(rank),
                "WORLD_SIZE": "3",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            made.append(
                subprocess.Popen(
                    [sys.executable, str(script)],
                    env=variables,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        said = ended(made)
    for rank in (0, 2):
        assert said[rank].startswith(f"rank {rank}: ")
    assert said[1] == ""


def test_a_slow_worker_is_waited_for() -> None:
    """C8: exact where it comes before the deadline, and named where it does not, although it lives."""
    ready = threading.Event()

    def work(worker: int) -> Any:
        with SwitchClient(switch.address, worker=worker, workers=2, element="int32") as end:
            data = np.full(10, 1, dtype=np.int32)
            if worker == 1:
                ready.wait(60)
            end.all_reduce(data, timeout_s=60)
            if worker == 0:
                with pytest.raises(SwitchError, match="worker 1 has not contributed"):
                    end.all_reduce(data, timeout_s=2)
                done.set()
            else:
                done.wait(60)
            return data.tolist()[0]

    done = threading.Event()
    found: list[Any] = [None, None]
    with SwitchServer(faults=PacketFaults(duplicate=0.5)) as switch:
        threads = [
            threading.Thread(target=lambda worker=worker: found.__setitem__(worker, work(worker)))
            for worker in range(2)
        ]
        for each in threads:
            each.start()
        ready.set()
        for each in threads:
            each.join()
    assert found[1] == 2
