"""NetReduce: native machines against their references, and whole jobs over simulated links."""

from __future__ import annotations

import numpy as np
import pytest

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.simulated import simulate_all_reduce
from reference.innetwork import netreduce
from reference.innetwork.driving import Both, Exchange, all_done

SPINE = 100


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
            element = "float32" if kind else "int32"
            reference = netreduce.Job(
                id=int(chance.integers(2**31)) * 2 + number,
                workers=sum(sizes),
                slots=1,
                values=int(chance.choice([1, 3, 16])),
                window=int(chance.integers(1, 4)),
                element=element,
                timeout=1_000_000,
                give_up_timeout=2**62,
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
                switch.open(reference, hosts, -1 if at == SPINE else SPINE)
                for host in hosts:
                    index = host - 10 * number
                    worker = netreduce.Worker(reference, index, at)
                    exchange.nodes[host] = Both.worker("netreduce", reference, index, at, worker)
                groups.append(hosts)
            if switches:
                spine.open(reference, switches)
            self.jobs.append((reference, groups))
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
                self.exchange.put(
                    host, worker.begin(one, one, worker.reference.begin(other, other, now), now)
                )

    def done(self) -> bool:
        return all_done(self.workers)

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
    with pytest.raises(
        InputError, match=r"255 free slots \(a job takes two windows of messages\), found 256"
    ):
        simulate_all_reduce(protocol="netreduce", workers=2, elements=10, slots=255, window=8)
