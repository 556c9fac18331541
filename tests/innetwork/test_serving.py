"""A switch that runs: the published scenarios, loss, jobs beside each other, switches above each other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.innetwork.serving import (
    PacketFaults,
    SwitchClient,
    SwitchError,
    SwitchServer,
    parse_address,
    read_secret,
)
from coppice.innetwork.systems.registry import PROTOCOLS
from support.outputs import require_valid
from support.switch_packets import Scenario

TWO = {
    "basic": "0:0*1 -, 1:0*1 all 2",
    "other set first": "0:1*1 -, 1:1*1 all 2",
    "both sets": "0:0*1 -, 1:0*1 all 2, 0:1*3 -, 1:1*3 all 6",
    "slot reuse": "0:0*1 -, 1:0*1 all 2, 0:1*1 -, 1:1*1 all 2, 0:0*3 -, 1:0*3 all 6, 0:1*3 -, 1:1*3 all 6",
    "ignore retransmissions": "0:1*1 -, 0:1*1 -, 0:1*1 -, 1:1*1 all 2",
    "retransmit after reduction": "0:0*1 -, 1:0*1 all 2, 1:0*1 1 2, 1:0*1 1 2, 1:0*1 1 2, 0:0*1 0 2, 0:0*1 0 2",
    "previous set": "0:1*1 -, 1:1*1 all 2, 1:0*3 -, 0:1*1 0 2, 0:1*1 0 2, 0:1*1 0 2",
    "reuse and retransmit": "0:0*1 -, 1:0*1 all 2, 0:1*1 -, 1:1*1 all 2, 0:0*3 -, 1:0*3 all 6, 1:1*3 -, 0:0*3 0 6",
}
THREE = {
    "basic": "0:0*1 -, 1:0*1 -, 2:0*1 all 3",
    "other set": "0:1*1 -, 1:1*1 -, 2:1*1 all 3",
    "both sets": "0:0*1 -, 1:0*1 -, 2:0*1 all 3, 0:1*3 -, 1:1*3 -, 2:1*3 all 9",
    "slot reuse": "0:0*1 -, 1:0*1 -, 2:0*1 all 3, 0:1*1 -, 1:1*1 -, 2:1*1 all 3, 0:0*3 -, 1:0*3 -, 2:0*3 all 9",
    "ignore retransmissions": "0:1*1 -, 0:1*1 -, 0:1*1 -, 1:1*1 -, 2:1*1 all 3",
    "retransmit after reduction": "0:0*1 -, 1:0*1 -, 2:0*1 all 3, 1:0*1 1 3, 2:0*1 2 3, 0:0*1 0 3",
    "previous set": "0:1*1 -, 1:1*1 -, 2:1*1 all 3, 1:0*1 -, 0:1*1 0 3, 0:1*1 0 3, 0:1*1 0 3",
    "reuse and retransmit": "0:0*1 -, 1:0*1 -, 2:0*1 all 3, 0:1*1 -, 1:1*1 -, 2:1*1 all 3, "
    "0:0*3 -, 1:0*3 -, 2:0*3 all 9, 1:1*3 -, 0:0*3 0 9, 2:0*3 2 9",
}
ONE = {"one worker": "0:0*1 0 1, 0:0*1 0 1, 0:1*2 0 2, 0:0*3 0 3"}


def play(job: Scenario, script: str, *, slot: int = 0) -> None:
    for step in script.split(", "):
        what, _, reply = step.partition(" ")
        worker, _, rest = what.partition(":")
        which, _, times = rest.partition("*")
        assert job.say(int(worker), int(which), int(times), slot=slot) == reply, (script, step)


@pytest.mark.parametrize(
    ("workers", "name"),
    [(1, name) for name in ONE] + [(2, name) for name in TWO] + [(3, name) for name in THREE],
)
@pytest.mark.parametrize("values", [64, 256])
def test_published_scenarios(workers: int, name: str, values: int) -> None:
    with SwitchServer(slots=8) as switch:
        job = Scenario(switch.port, workers, values=values)
        play(job, (ONE, TWO, THREE)[workers - 1][name])
        play(job, (ONE, TWO, THREE)[workers - 1][name], slot=3)  # 9: another slot on its own
        job.close()


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results of ``work(worker)`` in threads, or what it raised."""
    found: list[Any] = [None] * count

    def run(worker: int) -> None:
        try:
            found[worker] = work(worker)
        except BaseException as error:  # noqa: BLE001  (given to the caller)
            found[worker] = error

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def sums(switch: SwitchServer, workers: int, sizes: list[int], **options: Any) -> None:
    """Tensors of whole numbers over all workers, checked at every one."""

    def work(worker: int) -> None:
        with SwitchClient(switch.address, worker=worker, workers=workers, element="int32", **options) as end:
            for number, size in enumerate(sizes):
                data = np.arange(size, dtype=np.int32) * (worker + 1) + number
                end.all_reduce(data, timeout_s=60)
                wanted = np.arange(size, dtype=np.int32) * (workers * (workers + 1) // 2) + workers * number
                np.testing.assert_array_equal(data, wanted)

    for found in together(workers, work):
        if found is not None:
            raise found


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("loss", [0.0, 0.001, 0.01, 0.1])
def test_sums_are_exact_under_loss(workers: int, loss: float) -> None:
    """C6, C3, C13: also the loss of the first window, duplicates, reordering, and sizes that fill no packet."""
    faults = PacketFaults(drop=loss, duplicate=loss, reorder=loss, seed=workers)
    with SwitchServer(slots=64, faults=faults) as switch:
        sums(switch, workers, [1, 63, 64, 65, 257, 3000, 0, 5], values=64, slots=16, timeout_ms=3)


@pytest.mark.parametrize("workers", [2, 32])
@pytest.mark.parametrize("loss", [0.0001, 0.01, 0.1])
@pytest.mark.spread(2)
def test_sums_of_many_packets_and_workers_are_exact_under_loss(workers: int, loss: float) -> None:
    faults = PacketFaults(drop=loss, duplicate=loss, reorder=loss, seed=9)
    with SwitchServer(slots=64, faults=faults) as switch:
        sums(switch, workers, [100_000, 99_999], values=64, slots=32, timeout_ms=10)


def test_floats_and_halves() -> None:
    choice = np.random.default_rng(1)
    data = choice.standard_normal((2, 5000)).astype(np.float32)

    def work(worker: int) -> tuple[Any, Any, Any]:
        with SwitchClient(switch.address, worker=worker, workers=2) as end:
            half = end.all_reduce(data[worker].astype(np.float16), op="avg")
            return (
                end.all_reduce(data[worker].copy()),
                half,
                end.all_reduce(data[worker], np.empty(5000, np.float32)),
            )

    with SwitchServer(workers=2) as switch:
        first, second = together(2, work)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_allclose(first[0], data.sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(first[1].astype(float), data.mean(axis=0), atol=3e-3)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_every_protocol_sums_over_sockets(protocol: str, loss: float) -> None:
    """With all that it needs beside the switch: NetReduce many slots, ATP a server."""

    def work(worker: int) -> list[Any]:
        options = {"protocol": protocol, "slots": 64, "window": 8, "timeout_ms": 5}
        with SwitchClient(switch.address, worker=worker, workers=3, **options) as end:
            return [
                end.all_reduce(np.arange(size, dtype=np.float32) % 100 + worker, timeout_s=60)
                for size in (1, 3000, 700)
            ]

    faults = PacketFaults(drop=loss, duplicate=loss, reorder=loss, seed=2)
    with SwitchServer(protocol, slots=1024, faults=faults) as switch:
        for found in together(3, work):
            assert isinstance(found, list), found
            for each in found:
                np.testing.assert_allclose(each, 3 * (np.arange(len(each)) % 100) + 3, rtol=1e-5, atol=1e-5)


def jobs_at_once(protocol: str, loss: float, jobs: int, size: int, seed: int) -> None:
    """Jobs of two workers beside each other at one switch that loses packets: every one ends, with the right sum."""
    need = {"netreduce": {"slots": 256, "window": 8}}.get(protocol, {"slots": 16})

    def work(place: int) -> Any:
        job, worker = divmod(place, 2)
        options = {"job": job + 1, "protocol": protocol, "timeout_ms": 5.0, "silence_s": 60.0, **need}
        with SwitchClient(switch.address, worker=worker, workers=2, join_timeout_s=120, **options) as end:
            return end.all_reduce(np.arange(size, dtype=np.float32) % 1000 + worker, timeout_s=120)

    faults = PacketFaults(drop=loss, seed=seed)
    with SwitchServer(protocol, slots=need["slots"] * jobs, faults=faults, silence_s=60.0) as switch:
        for found in together(2 * jobs, work):
            assert isinstance(found, np.ndarray), found
            np.testing.assert_allclose(found, 2 * (np.arange(size) % 1000) + 1, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("loss", [0.03, 0.1])
def test_many_jobs_at_once_end_under_loss(protocol: str, loss: float) -> None:
    jobs_at_once(protocol, loss, 8, 65_537 if protocol == "netagg" else 20_000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.03, 0.05, 0.1])
@pytest.mark.parametrize("jobs", [1, 16])
def test_jobs_end_under_loss_again_and_again(protocol: str, loss: float, jobs: int) -> None:
    for seed in range(1, 6):
        jobs_at_once(protocol, loss, jobs, 65_537, seed)


def test_one_switch_speaks_several_protocols() -> None:
    with SwitchServer("switchml,atp,sharp") as switch:
        for protocol in ("sharp", "switchml", "atp"):
            sums(switch, 2, [3000], protocol=protocol, window=8)
        end = SwitchClient(switch.address, worker=0, workers=1, protocol="netagg")
        with pytest.raises(SwitchError, match="the switch speaks switchml,atp,sharp, the worker netagg"):
            end.join()
    with pytest.raises(InputError, match="each protocol once"):
        SwitchServer("switchml,switchml")
    with pytest.raises(InputError, match="expected one of the protocols"):
        SwitchServer("switchml,")


def test_several_threads() -> None:
    with SwitchServer(slots=64, threads=3) as switch:
        sums(switch, 2, [1, 10_000, 200], values=64, slots=24, threads=3)
        sums(switch, 2, [5000], values=64, slots=8, threads=2, job=2)


def test_two_jobs_at_once_and_slots_that_come_back() -> None:
    """C14: slots return after a job's end and after a crash; both make progress; one more is refused."""
    with SwitchServer(slots=32, silence_s=3.0) as switch:
        results = together(
            2, lambda job: sums(switch, 2 + job, [20_000], values=64, slots=16, window=8, job=job + 1)
        )
        assert results == [None, None]
        sums(switch, 2, [1000], values=64, slots=32, job=3)
        held = Scenario(switch.port, 2, job=4, slots=32, window=32)
        held.say(0, 0, 1)
        with pytest.raises(SwitchError, match="cannot serve job 5"):
            sums(switch, 1, [10], values=64, slots=8, job=5)
        held.close()  # without a word
        for _ in range(600):
            if any("job 4, epoch 1 ends: worker" in line for line in switch.events()):
                break
            time.sleep(0.05)
        sums(switch, 2, [1000], values=64, slots=32, job=6)


def test_switches_above_each_other_add_up_the_sums_of_those_below() -> None:
    """C17: two leaves and a root, each dropping packets."""
    faults = PacketFaults(drop=0.02, duplicate=0.02, reorder=0.02, seed=4)
    with SwitchServer(slots=64, faults=faults) as root:
        leaves = [
            SwitchServer(slots=64, faults=faults, parent=root.address, index=index, siblings=2)
            for index in range(2)
        ]

        def work(worker: int) -> Any:
            leaf, member = leaves[worker // 2], worker % 2
            options = {"values": 64, "slots": 16, "timeout_ms": 5}
            with SwitchClient(leaf.address, worker=worker, workers=4, member=(member, 2), **options) as end:
                return [end.all_reduce(np.full(1000, worker + 1, dtype=np.float32)).max() for _ in range(3)]

        assert together(4, work) == [[10.0] * 3] * 4
        for leaf in leaves:
            leaf.close()


def test_a_switch_whose_workers_left_leaves_the_one_above() -> None:
    with SwitchServer() as root, SwitchServer(parent=root.address, index=0, siblings=1) as leaf:
        sums(leaf, 2, [1000])
        lines: list[str] = []
        while not any("ends" in line for line in lines):
            time.sleep(0.02)
            lines += root.events()
        assert lines[-1] == "job 1, epoch 1 ends: all workers left"


def test_what_is_refused_before_anything_is_sent() -> None:
    with SwitchServer() as switch:
        with pytest.raises(InputError, match="float32 or float16, found float64"):
            SwitchClient(switch.address, worker=0, workers=1).all_reduce(np.zeros(3))
        with pytest.raises(InputError, match="expected a worker of 0 to 1"):
            SwitchClient(switch.address, worker=2, workers=2)
        with pytest.raises(InputError, match="switchml"):
            SwitchClient(switch.address, worker=0, workers=1, protocol="smoke")
        with pytest.raises(InputError, match="another program has it"):
            SwitchServer(port=switch.port)
    with pytest.raises(InputError, match="IPv4"):
        SwitchServer(host="nowhere.invalid")
    with pytest.raises(InputError, match="does not have that address"):
        SwitchServer(host="192.0.2.1")
    with pytest.raises(InputError, match="of 0 to 1"):
        PacketFaults(drop=1.5)
    for wrong in ("", "host", "host:", ":1", "host:0", "host:99999", "host:x"):
        with pytest.raises(InputError, match="HOST:PORT"):
            parse_address(wrong)


def test_a_secret_in_a_file(tmp_path: Any) -> None:
    path = tmp_path / "secret"
    path.write_text(" sesame\n")
    assert read_secret(path) == b"sesame"
    path.write_text("\n")
    with pytest.raises(InputError, match="1 to 65536 bytes"):
        read_secret(path)
    with SwitchServer(secret=b"sesame") as switch:
        sums(switch, 2, [100], secret=b"sesame")
        with pytest.raises(
            SwitchError, match=r"has not answered for .* s: it is out of reach, or its secret is not"
        ):
            sums(switch, 1, [100], secret=b"simsim", silence_s=0.3)


def test_a_worker_with_another_secret_is_not_called_missing() -> None:
    """The other workers of the job hear why it does not come."""

    def work(worker: int) -> None:
        secret = b"sesame" if worker == 0 else b"simsim"
        with SwitchClient(
            switch.address,
            worker=worker,
            workers=2,
            secret=secret,
            join_timeout_s=3,
            silence_s=60,
        ) as end:
            end.join()

    with SwitchServer(secret=b"sesame") as switch:
        right, wrong = together(2, work)
    assert isinstance(right, SwitchError)
    assert "worker 1 asks with another secret than the switch's" in str(right)
    assert isinstance(wrong, SwitchError)
    assert "not this worker's" in str(wrong)


def test_a_worker_that_does_not_come_is_named() -> None:
    with SwitchServer() as switch:
        end = SwitchClient(switch.address, worker=1, workers=3, join_timeout_s=0.3)
        with pytest.raises(SwitchError, match="worker 0 has not joined, worker 2 has not joined"):
            end.join()


def test_the_command_serves_reports_and_ends() -> None:
    """C16: counters while it runs, by signal; it ends soon when asked to."""
    command = [sys.executable, "-m", "coppice", "switch", "serve", "--port", "0", "--workers", "2", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = json.loads(process.stdout.readline())
        assert first["event"] == "listening"
        require_valid(first)
        port = parse_address(first["address"])[1]
        job = Scenario(port, 2)
        job.say(0, 0, 1)
        begun = json.loads(process.stdout.readline())
        require_valid(begun)
        assert begun["what"].startswith("job 1, epoch 1 begins with 2 workers")
        while True:
            process.send_signal(signal.SIGUSR1)
            found = json.loads(process.stdout.readline())
            assert found["event"] == "counters"
            require_valid(found)
            if found["protocol"]["aggregated"] == 1:
                break
        assert found["jobs"] == 1
        assert found["gate"]["stranger"] == found["gate"]["unknown_sender"]  # under its former name, too
        again = subprocess.run(
            [*command[:6], str(port)], capture_output=True, text=True, timeout=60, check=False
        )
        assert again.returncode == 2
        assert again.stderr.count("\n") <= 2
        assert "another program has it" in again.stderr.replace("\n", " ")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=300)
        for line in rest.splitlines():
            require_valid(json.loads(line))
        assert json.loads(rest.splitlines()[-1])["event"] == "counters"
        assert (process.returncode, errors) == (0, "")
        job.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("slots", [1, 16])
def test_a_switch_with_fewer_slots_than_workers_ask_for_by_default(slots: int) -> None:
    """Who does not say how many slots it wants takes what a job may have; who does is refused."""
    given = np.arange(10_000, dtype=np.int32)
    sums = {}
    with SwitchServer(workers=2, slots=slots) as switch:

        def work(worker: int) -> None:
            with SwitchClient(switch.address, worker=worker, workers=2, element="int32") as end:
                sums[worker] = end.all_reduce(given + worker)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        with pytest.raises(SwitchError, match=f"a job may have {slots} slots, found 17"):
            SwitchClient(switch.address, worker=0, workers=2, slots=17, job=2).join()
    assert np.array_equal(sums[0], 2 * given + 1)
    assert np.array_equal(sums[1], 2 * given + 1)
