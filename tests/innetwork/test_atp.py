"""ATP: native machines against their references, and whole jobs over simulated links."""

from __future__ import annotations

import numpy as np
import pytest

from coppice import _switch
from coppice.innetwork.simulated import simulate_all_reduce
from reference.innetwork import atp
from reference.innetwork.driving import Both, Exchange, all_done

SWITCH, SERVER = 100, 101


def tensors(chance: np.random.Generator, *, count: int, floats: bool) -> np.ndarray:
    if floats:
        values = chance.normal(size=count).astype(np.float32)
        values[chance.random(count) < 0.01] = np.float32(chance.choice([1800.0, -1e9, 3e38, -np.inf]))
        return values
    return (chance.integers(-(2**31), 2**31, count) >> chance.integers(0, 30)).astype(np.int32)


class Rack:
    """Two jobs that share a switch and a server."""

    def __init__(self, seed: int, exchange: Exchange) -> None:
        self.exchange = exchange
        chance = np.random.default_rng(seed)
        slots = int(chance.integers(1, 9))
        switch = Both(_switch.aggregation_switch("atp", slots), atp.Switch(slots))
        server = Both(_switch.aggregation_server("atp"), atp.Server())
        exchange.nodes = {SWITCH: switch, SERVER: server}
        self.jobs = []
        for number in range(2):
            reference = atp.Job(
                id=int(chance.integers(100)) * 2 + number,
                workers=int(chance.integers(1, 5)),
                slots=int(chance.integers(1, slots + 1)),
                values=int(chance.choice([1, 5, 62])),
                window=int(chance.integers(1, 7)),
                element=("int32", "float32")[chance.integers(2)],
                timeout=1_000_000,
                give_up_timeout=2**62,
                settings={"mark_bytes": 0.0} if seed % 4 == 0 else {"short_timeout": 150_000.0},
            )
            children = [10 * number + index for index in range(reference.workers)]
            for node, parent in ((switch, SERVER), (server, SWITCH)):
                node.open(reference, children, parent)
            for index, child in enumerate(children):
                worker = atp.Worker(reference, index, SWITCH)
                exchange.nodes[child] = Both.worker("atp", reference, index, SWITCH, worker)
            self.jobs.append((reference, children))
        self.workers = [exchange.nodes[child] for _, children in self.jobs for child in children]
        self.chance = chance

    def begin(self) -> None:
        self.inputs: dict[int, np.ndarray] = {}
        self.outputs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for job, children in self.jobs:
            count = int(self.chance.integers(1, 12 * job.values))
            for child in children:
                given = self.inputs[child] = tensors(self.chance, count=count, floats=job.floats)
                one, other = self.outputs[child] = np.zeros_like(given), np.zeros_like(given)
                worker, now = self.exchange.nodes[child], self.exchange.now
                self.exchange.put(
                    child, worker.begin(given, one, worker.reference.begin(given, other, now), now)
                )

    def done(self) -> bool:
        return all_done(self.workers)

    def check(self) -> None:
        for job, children in self.jobs:
            rows = np.array(
                [self.inputs[child] for child in children], np.float64 if job.floats else np.int64
            )
            exact = np.sum(rows, axis=0)
            for child in children:
                one, other = self.outputs[child]
                assert one.tobytes() == other.tobytes()
                with np.errstate(invalid="ignore", over="ignore"):
                    if job.floats:
                        near = np.abs(one - exact) <= job.workers * 0.5e-6 + 1e-6 * np.abs(exact)
                        assert np.all(near | (one == exact.astype(np.float32)))
                    else:
                        stuck = np.sum(np.abs(rows), axis=0) >= 2**31 - 1
                        assert np.all(stuck | (one == exact))


def test_a_job_of_atp_over_simulated_links() -> None:
    run = simulate_all_reduce(
        protocol="atp", workers=4, elements=62_000, slots=256, window=64, timeout_ms=50, drop=0.001
    )
    assert (run.complete, run.wrong) == (True, 0)
    assert run.switch_counts["aggregated"] >= 4 * 900
    assert run.server_counts["completed"] == 1000


def test_with_fewer_slots_more_goes_to_the_server() -> None:
    """The share that found no slot crosses the server's link n times: max(q x / B, (1 - q) n x / B)."""
    times = []
    for slots in (1, 8, 128):
        run = simulate_all_reduce(
            protocol="atp",
            workers=8,
            elements=62 * 4000,
            slots=slots,
            window=100,
            latency_us=0.2,
            overhead_bytes=34,
            timeout_ms=50,
            settings={"mark_bytes": 1e12},
        )
        assert (run.complete, run.wrong) == (True, 0)
        frame_us = (274 + 34) / 12.5 / 1000
        assert run.server_counts["received"] >= 4000
        assert run.time_us == pytest.approx(run.server_counts["received"] * frame_us + 4 * 0.225, rel=0.03)
        times.append(run.time_us)
    assert times[0] > times[1] > times[2]
    assert times[0] > 7 * times[2]
