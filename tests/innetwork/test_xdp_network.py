"""The XDP program between namespaces: native workers with sockets reach exact sums, with loss and duplicates."""

from __future__ import annotations

import json
import random
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.xdp.switch import serve_xdp
from innetwork.frames import Request
from innetwork.namespaces import inside, rack
from innetwork.test_p4_streams import native_job, native_switch
from support.outputs import require_valid


@pytest.mark.parametrize(("workers", "values"), [(1, 64), (2, 256), (3, 64)])
def test_exact_sums(workers: int, values: int) -> None:
    rng, numbers = random.Random(workers), np.random.default_rng(workers)
    slots, first = 8, 2**32 - 9
    native_switch(workers, slots, values, first)
    job = native_job(workers, slots, values, first)
    with rack(workers) as (switch, names, hosts), ExitStack() as stack:
        with inside(switch):
            try:
                served = stack.enter_context(
                    serve_xdp(hosts, slots=slots, values=values, job=7, first_packet=first)
                )
            except InputError as error:
                pytest.skip(str(error))
        sockets = []
        for worker, name in enumerate(names):
            with inside(name):
                each = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            each.bind((f"10.0.0.{worker + 1}", 0x4000))
            each.connect((hosts.ipv4, 0xBEE0))
            sockets.append(each)

        def post(worker: int, sent: list[tuple[list[int], bytes]]) -> None:
            for _, packet in sent:
                for _ in range(rng.choices([0, 1, 2], [1, 18, 1])[0]):
                    sockets[worker].send(packet)

        machines = [_switch.aggregation_worker("switchml", job, each, workers) for each in range(workers)]
        for count in (200 * values + 3, 50 * values - 1):
            inputs = [numbers.integers(-(2**31), 2**31, count, dtype=np.int32) for _ in machines]
            outputs = [np.zeros(count, np.int32) for _ in machines]
            for each, machine in enumerate(machines):
                now = time.monotonic_ns()
                post(each, machine.begin(inputs[each].ctypes.data, outputs[each].ctypes.data, count, now))
            while not all(machine.done() for machine in machines):
                assert not any(machine.failure() for machine in machines)
                for ready in select.select(sockets, [], [], 0.002)[0]:
                    each = sockets.index(ready)
                    packet = ready.recv(2000)
                    if rng.random() > 0.05:
                        post(each, machines[each].receive(workers, packet, time.monotonic_ns()))
                for each, machine in enumerate(machines):
                    post(each, machine.wake(time.monotonic_ns()))
            total = np.sum(inputs, axis=0, dtype=np.int32)
            assert all((output == total).all() for output in outputs)
        counted = served.counters()
        assert counted["completed"] == 251
        assert counted["aggregated"] == 251 * workers
        assert counted["answered"] > 0


def test_command(tmp_path: Path) -> None:
    """It serves until it is told to stop, and prints its counts."""
    with rack(2) as (switch, names, hosts):
        file = tmp_path / "hosts.json"
        file.write_bytes(msgspec.json.encode(hosts))
        words = ["switch", "xdp", "--hosts", str(file), "--slots", "4", "--json"]
        with inside(switch):
            served = subprocess.Popen(
                [sys.executable, "-m", "coppice", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert served.stdout is not None
        assert served.stderr is not None
        try:
            line = served.stderr.readline()
            if line.startswith("error"):
                pytest.skip(line)
            assert line == "serving 2 workers at 10.0.0.254, ports 48864 to 48879\n"
            sockets = []
            for worker, name in enumerate(names):
                with inside(name):
                    sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sockets[-1].bind((f"10.0.0.{worker + 1}", 0x4000))
                sockets[-1].sendto(Request(worker, 3, 0, tuple(range(64)), id=3).body(), (hosts.ipv4, 0xBEE0))
            wanted = Request(0, 3, 0, tuple(range(0, 128, 2)), id=3).body()
            for each in sockets:
                each.settimeout(60)
                assert each.recvfrom(2000) == (wanted, (hosts.ipv4, 0xBEE0))
                each.close()
        finally:
            served.send_signal(signal.SIGTERM)
            out, _ = served.communicate(timeout=60)
        require_valid(json.loads(out))
        counters = json.loads(out)["counters"]
        assert (served.returncode, counters["received"], counters["completed"]) == (0, 2, 1)
