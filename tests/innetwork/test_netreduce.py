"""NetReduce: native machines against their twins, and whole jobs over simulated links."""

from __future__ import annotations

import numpy as np
import pytest

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.simulated import search_interleavings, simulate_all_reduce

from ..reference.innetwork import netreduce
from ..support.twins import Altering, Both, Exchange

SPINE = 100


def both_jobs(**fields: object) -> tuple[_switch.AggregationJob, netreduce.Job]:
    twin = netreduce.Job(**fields)  # type: ignore[arg-type]
    native = _switch.AggregationJob(
        id=twin.id,
        workers=twin.workers,
        slots=twin.slots,
        values=twin.values,
        window=twin.window,
        element=_switch.Element.float32 if twin.floats else _switch.Element.int32,
        timeout_ns=twin.timeout_ns,
        patience_ns=2**62,
        settings=twin.settings,
    )
    return native, twin


class Net:
    """Two jobs over one switch, or over leaves below it."""

    def __init__(self, seed: int, exchange: Exchange) -> None:
        self.exchange = exchange
        chance = self.chance = np.random.default_rng(seed)
        spine = exchange.nodes[SPINE] = Both(
            _switch.aggregation_switch("netreduce", 4096), netreduce.Switch()
        )
        self.jobs: list[tuple[netreduce.Job, list[list[int]]]] = []
        for number in range(2):
            sizes = [int(chance.integers(1, 4)) for _ in range(2 if (seed + number) % 3 == 0 else 1)]
            kind = int(chance.integers(3))
            native, twin = both_jobs(
                id=int(chance.integers(2**31)) * 2 + number,
                workers=sum(sizes),
                slots=1,
                values=int(chance.choice([1, 3, 16])),
                window=int(chance.integers(1, 4)),
                floats=kind > 0,
                timeout_ns=1_000_000,
                settings={
                    "message_packets": float(chance.integers(1, 5)),
                    "fixed_point": 1000.0 * (kind == 2),
                },
            )
            groups: list[list[int]] = []
            switches = []
            for size in sizes:
                start = 10 * number + sum(map(len, groups))
                hosts = list(range(start, start + size))
                at, switch = SPINE, spine
                if len(sizes) > 1:
                    at = 50 + 10 * number + len(groups)
                    switch = Both(_switch.aggregation_switch("netreduce", 4096), netreduce.Switch())
                    exchange.nodes[at] = switch
                    switches.append(at)
                switch.native.open(native, hosts, -1 if at == SPINE else SPINE)
                switch.twin.open(twin, hosts, -1 if at == SPINE else SPINE)
                for host in hosts:
                    index = host - 10 * number
                    worker = netreduce.Worker(twin, index, at)
                    exchange.nodes[host] = Both(
                        _switch.aggregation_worker("netreduce", native, index, at), worker
                    )
                groups.append(hosts)
            if switches:
                spine.native.open(native, switches)
                spine.twin.open(twin, switches)
            self.jobs.append((twin, groups))
        self.workers = [exchange.nodes[host] for _, groups in self.jobs for hosts in groups for host in hosts]

    def begin(self) -> None:
        self.inputs: dict[int, np.ndarray] = {}
        self.outputs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for job, groups in self.jobs:
            count = int(self.chance.integers(1, 8 * job.values * job.packets))
            for host in (host for hosts in groups for host in hosts):
                given = self.chance.integers(-(2**31), 2**31, count).astype(np.int32)
                if job.floats:
                    given = (self.chance.normal(size=count) * 100).astype(np.float32)
                self.inputs[host] = given
                one, other = self.outputs[host] = given.copy(), given.copy()  # in and out are one memory
                worker, now = self.exchange.nodes[host], self.exchange.now
                sent = worker.native.begin(one.ctypes.data, one.ctypes.data, count, now)
                self.exchange.put(host, worker.agree(sent, worker.twin.begin(other, other, now)))

    def done(self) -> bool:
        assert all(each.native.done() == each.twin.done for each in self.workers)
        return all(each.twin.done for each in self.workers)

    def check(self) -> None:
        for job, groups in self.jobs:
            sums = [self.added([self.given(job, host) for host in hosts]) for hosts in groups]
            total = self.added(sums)
            if job.fixed_point:
                total = (total / job.fixed_point).astype(np.float32)
            for host in (host for hosts in groups for host in hosts):
                one, other = self.outputs[host]
                assert one.tobytes() == other.tobytes() == total.tobytes()

    def given(self, job: netreduce.Job, host: int) -> np.ndarray:
        values = self.inputs[host]
        return np.round(values.astype(np.float64) * job.fixed_point) if job.fixed_point else values

    def added(self, rows: list[np.ndarray]) -> np.ndarray:
        """In order, one after the other, and rounded or wrapped each time."""
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return total


@pytest.mark.parametrize("seed", range(60))
def test_native_machines_and_twins_send_the_same_bytes_and_sums_are_exact(seed: int) -> None:
    net = Net(seed, Exchange(seed, 0.05 * (seed % 4), 0.1 * (seed % 2), 0.2 * (seed % 3 > 0)))
    for _ in range(2):
        net.begin()
        net.exchange.run(net.done)
        net.check()


@pytest.mark.parametrize("seed", range(40))
def test_native_machines_and_twins_agree_on_packets_with_changed_bytes(seed: int) -> None:
    exchange = Altering(seed, 0.05 * (seed % 4), 0.1, 0.5)
    net = Net(seed, exchange)
    net.begin()
    exchange.run_for(1000, net.done)


def fault_run(seed: int) -> None:
    workers = 1 + seed % 32
    fault = (seed // 32) % 21 / 100
    tree = [workers] if seed % 3 or workers == 1 else [workers // 2, workers - workers // 2]
    window, packets = 1 + seed % 4, 1 + seed % 5
    run = simulate_all_reduce(
        protocol="netreduce",
        workers=workers,
        tree=tree,
        elements=(200, 50),
        element="float32" if seed % 7 == 0 else "int32",
        slots=8 * packets,
        window=window,
        values=4 + seed % 20,
        drop=fault,
        duplicate=fault * (seed % 2),
        reorder=fault * (seed % 5 > 0),
        reorder_us=5,
        timeout_ms=0.05,
        settings={"message_packets": packets},
        seed=seed,
    )
    assert (run.complete, run.wrong) == (True, 0), seed
    assert run.worst_error < 1e-5


def test_sums_are_exact_under_every_fault() -> None:
    for seed in range(0, 10_000, 61):
        fault_run(seed)


@pytest.mark.slow
def test_ten_thousand_seeds() -> None:
    """1 to 32 workers, each fault up to 20 %, with and without a second level of switches."""
    for seed in range(10_000):
        fault_run(seed)


def test_time_is_that_of_the_tensor_on_one_link_whatever_the_workers() -> None:
    for workers in (2, 8, 32):
        run = simulate_all_reduce(
            protocol="netreduce",
            workers=workers,
            elements=256 * 16 * 200,
            slots=256,
            window=8,
            overhead_bytes=78,
        )
        assert (run.complete, run.wrong) == (True, 0)
        packets, messages = (
            3200 * (1024 + 8 + 78),
            200 * (12 + 8 + 78),
        )  # header of the first; acknowledgement
        assert run.time_us == pytest.approx((packets + messages) / 12.5e3, rel=0.02)


def test_one_lost_packet_stalls_all_flows() -> None:
    """A message lost before the switch costs every host the sender's time-out."""
    clean = simulate_all_reduce(protocol="netreduce", workers=8, elements=256 * 16 * 50, slots=256, window=8)
    lossy = simulate_all_reduce(
        protocol="netreduce",
        workers=8,
        elements=256 * 16 * 50,
        slots=256,
        window=8,
        drop=0.001,
        timeout_ms=1,
        seed=2,
    )
    assert (lossy.complete, lossy.wrong) == (True, 0)
    assert lossy.up.dropped + lossy.down.dropped > 0
    assert lossy.worker_counts["resent"] > lossy.up.dropped + lossy.down.dropped
    assert lossy.time_us > clean.time_us


def test_switches_refuse_windows_they_cannot_keep() -> None:
    with pytest.raises(InputError, match="at least 256 free slots, two windows of messages, found 255"):
        simulate_all_reduce(protocol="netreduce", workers=2, elements=10, slots=255, window=8)


def test_every_interleaving_sums_and_ends() -> None:
    found = search_interleavings(
        protocol="netreduce",
        workers=2,
        slots=2,
        window=1,
        elements=2,
        early_timeouts=0,
        settings={"message_packets": 1, "linger": 2},
    )
    found.require_ok()
    assert found.whole
    assert found.states > 10_000
