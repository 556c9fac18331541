"""The probe of what puts cost: found exactly where the costs are known, and taken over by the simulation."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import DEVICE_VARIABLE
from coppice.run.probe.put_signal_costs import measure_put_signal_costs
from coppice.simulation.put_signal import (
    PutSignalCosts,
    encode_put_signal_costs,
    read_put_signal_costs,
    simulate_put_signal,
)
from support.emulated_groups import on_emulated_device
from support.put_signal_cases import forest
from support.rank_groups import in_threads
from support.rank_processes import rank_codes

WORKER = Path(__file__).parents[2] / "support" / "emulated_ranks.py"
KNOWN = PutSignalCosts(
    wave_us=7,
    signal_us=2.5,
    wait_us=1.25,
    proxy_us=4,
    request_us=0.75,
    told_us=4,
    launch_us=3,
    memory_gb_per_s=900,
)


class PricedDevice:
    """A device that takes just so long, on a clock of its own: what is issued is paid for when it ends."""

    name = "a priced device"
    captures = False

    def __init__(self, rank: int, ranks: int, hosts: Sequence[str], *, single: bool) -> None:
        self.rank, self.ranks, self._hosts, self.single = rank, ranks, hosts, single
        self.signals = 4 if single else 1
        self.now_us = self._pending_us = 0.0
        self._raised: dict[Any, int] = {}

    def prepare(self, num_bytes: int, *, communicators: int, streams: int) -> None:
        del num_bytes, communicators, streams

    def begin(self) -> None:
        pass

    def transfer(self, communicator: int, stream: int, puts: Sequence[Put]) -> None:
        assert stream == 0
        for put in puts:
            key = (communicator, put.peer, put.signal)
            self._raised[key] = self._raised.get(key, 0) + 1
            assert not self.single or self._raised[key] == 1 or put.peer != 1, "a flag is raised twice"
        if self._hosts[puts[0].peer] == self._hosts[self.rank]:
            self._pending_us += KNOWN.signal_us + KNOWN.wave_us * any(put.num_bytes for put in puts)
        else:
            self._pending_us += KNOWN.proxy_us + KNOWN.told_us + KNOWN.request_us * len(puts)

    def wait(self, communicator: int, stream: int, awaited: Sequence[Awaited]) -> None:
        assert stream == 0
        del communicator
        assert all(each.count == 1 for each in awaited)
        self._pending_us += KNOWN.wait_us

    def copy(self, stream: int, source: int, target: int, num_bytes: int) -> None:
        assert stream == 0
        assert source + num_bytes <= target
        self._pending_us += KNOWN.launch_us + 2 * num_bytes / KNOWN.memory_gb_per_s / 1e3

    def finish(self, what: str, timeout_s: float) -> None:
        assert what
        assert timeout_s
        self.now_us += self._pending_us
        self._pending_us = 0.0
        self._raised.clear()

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("hosts", "single"),
    [(["a", "a"], False), (["a", "a"], True), (["a", "b"], False), (["a", "b", "a"], False)],
)
def test_known_costs_are_found(hosts: list[str], single: bool) -> None:
    below = numpy_engines(len(hosts))

    def serve(rank: int) -> dict[str, float]:
        device: Any = PricedDevice(rank, len(hosts), hosts, single=single)
        engine = PutSignalEngine(device, below[rank])
        return measure_put_signal_costs(
            engine, rounds=1, clock=lambda: device.now_us / 1e6, host=hosts[rank], timeout_s=60
        )

    found = in_threads(len(hosts), serve)
    assert all(each == found[0] for each in found)
    near, far = {"wave_us", "signal_us"}, {"proxy_us", "request_us", "told_us"}
    wanted = {"wait_us", "launch_us", "memory_gb_per_s"}
    wanted |= (near if hosts.count("a") > 1 else set()) | (far if "b" in hosts else set())
    assert set(found[0]) == wanted
    assert found[0] == pytest.approx({name: getattr(KNOWN, name) for name in wanted}, rel=1e-4)


def test_costs_of_the_emulated_device_are_taken_over_by_the_simulation(tmp_path: Path) -> None:
    """Whatever a busy machine takes: what the probe has found is what the simulation reckons with."""
    found = on_emulated_device(lambda engine: measure_put_signal_costs(engine, rounds=1), ranks=2)
    assert isinstance(found[0], dict), found
    assert found[0] == found[1]
    path = tmp_path / "costs.json"
    path.write_text(encode_put_signal_costs(found[0], measured="2 ranks on the emulated device"))
    costs = read_put_signal_costs(path)
    assert {name: getattr(costs, name) for name in found[0]} == found[0]
    assert costs == replace(PutSignalCosts(), **found[0])
    assert costs.proxy_us == PutSignalCosts().proxy_us  # no other host: still an assumption
    body = forest("ring", Collective.ALL_REDUCE, (("gpus", 3),))
    program = lower_put_signal(body)
    measured, assumed = (
        simulate_put_signal(program, body, 3 << 10, costs=each).time_us for each in (costs, None)
    )
    assert measured != assumed
    slower = replace(costs, wait_us=costs.wait_us + 1000)
    assert simulate_put_signal(program, body, 3 << 10, costs=slower).time_us > measured + 1000


def test_from_the_command_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path, logs = tmp_path / "costs.json", [tmp_path / f"log{rank}" for rank in range(2)]
    words = ["probe", "--engine", "put-signal", "--costs", str(path), "-n", "1", "--json"]
    codes = rank_codes(
        WORKER, [(rank, 2, port, "cli", *words) for rank in range(2)], logs,
        variables={DEVICE_VARIABLE: "emulated"}, timeout_s=120,
    )  # fmt: skip
    said = [log.read_text() for log in logs]
    assert codes == [0, 0], said
    costs = read_put_signal_costs(path)
    assert json.loads(said[0])["wait_us"] == costs.wait_us
    assert json.loads(path.read_text())["measured"] == "2 ranks on the emulated device"


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected costs out of .* found lunch_us: remove it"):
        encode_put_signal_costs({"lunch_us": 1.0}, measured="")
    with pytest.raises(InputError, match="expected wait_us of 0 or more"):
        encode_put_signal_costs({"wait_us": -1.0}, measured="")
    path = tmp_path / "costs.json"
    for text, words in (
        ("{}", "holds no costs of puts and signals"),
        (
            encode_put_signal_costs({}, measured="").replace('"version": 1', '"version": 2'),
            "found coppice-put-signal",
        ),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as found:
            read_put_signal_costs(path)
        assert words in str(found.value)
    assert isinstance(on_emulated_device(measure_put_signal_costs, ranks=1)[0], InputError)
