"""ATP: native machines against their twins, and whole jobs over simulated links."""

from __future__ import annotations

import numpy as np
import pytest

from coppice import _core
from coppice.innetwork.simulated import simulate_all_reduce

from ..reference.innetwork import atp
from .side_by_side import Both, BothWorkers, run

SWITCH, SERVER = 100, 101


def both_jobs(**fields: object) -> tuple[_core.AggregationJob, atp.Job]:
    twin = atp.Job(**fields)  # type: ignore[arg-type]
    native = _core.AggregationJob(
        id=twin.id,
        workers=twin.workers,
        slots=twin.slots,
        values=twin.values,
        window=twin.window,
        element=_core.Element.float32 if twin.floats else _core.Element.int32,
        timeout_ns=twin.timeout_ns,
        patience_ns=2**62,
        settings=twin.settings,
    )
    return native, twin


def tensors(chance: np.random.Generator, *, count: int, floats: bool) -> np.ndarray:
    if floats:
        values = chance.normal(size=count).astype(np.float32)
        values[chance.random(count) < 0.01] = np.float32(chance.choice([1800.0, -1e9, 3e38, -np.inf]))
        return values
    return (chance.integers(-(2**31), 2**31, count) >> chance.integers(0, 30)).astype(np.int32)


@pytest.mark.parametrize("garbage", [0.0, 0.3])
def test_native_machines_and_twins_send_the_same_bytes(garbage: float) -> None:
    """Two jobs share a switch and a server, under loss, copies and reordering."""
    for seed in range(60):
        chance = np.random.default_rng(seed)
        slots = int(chance.integers(1, 9))
        switch = Both(_core.aggregation_switch("atp", slots), atp.Switch(slots))
        native_server = _core.aggregation_server("atp")
        assert native_server is not None
        server = Both(native_server, atp.Server())
        nodes: dict[int, Both] = {SWITCH: switch, SERVER: server}
        first = []
        expected = []
        for number in range(2):
            workers, floats = int(chance.integers(1, 5)), bool(chance.integers(2))
            native, twin = both_jobs(
                id=int(chance.integers(100)) * 2 + number,
                workers=workers,
                slots=int(chance.integers(1, slots + 1)),
                values=int(chance.choice([1, 5, 62])),
                window=int(chance.integers(1, 7)),
                floats=floats,
                timeout_ns=1_000_000,
                settings={"mark_bytes": 0.0} if seed % 4 == 0 else {"short_timeout": 150_000.0},
            )
            children = [10 * number + index for index in range(workers)]
            for machine, job in ((switch.native, native), (switch.twin, twin)):
                machine.open(job, children, SERVER)
            for machine, job in ((server.native, native), (server.twin, twin)):
                machine.open(job, children, SWITCH)
            count = int(chance.integers(1, 12 * twin.values))
            inputs = [tensors(chance, count=count, floats=floats) for _ in children]
            for index, child in enumerate(children):
                pair = BothWorkers(
                    _core.aggregation_worker("atp", native, index, SWITCH), atp.Worker(twin, index, SWITCH)
                )
                nodes[child] = pair
                first.append((child, pair.begin(inputs[index], 0)))
            expected.append((children, inputs, floats))
        run(
            nodes,
            first,
            seed=seed,
            loss=0.05 * (seed % 4),
            copy=0.1 * (seed % 2),
            reach=1 + seed % 9,
            garbage=garbage,
        )
        if garbage:
            continue
        for children, inputs, floats in expected:
            for child in children:
                pair = nodes[child]
                assert isinstance(pair, BothWorkers)
                assert pair.twin.done
                if floats:
                    exact = np.sum(np.array(inputs, np.float64), axis=0)
                    bound = len(inputs) * 0.5e-6 + 1e-6 * np.abs(exact)
                    with np.errstate(invalid="ignore", over="ignore"):
                        near = np.abs(pair.results[0] - exact) <= bound
                        assert np.all(near | (pair.results[0] == exact.astype(np.float32)))
                else:
                    exact = np.sum(np.array(inputs, np.int64), axis=0)
                    reached = np.sum(np.abs(np.array(inputs, np.int64)), axis=0) >= 2**31 - 1
                    assert np.all(reached | (pair.results[0] == exact))


def test_a_job_of_atp_over_simulated_links() -> None:
    run = simulate_all_reduce(
        protocol="atp", workers=4, elements=62_000, slots=256, window=64, timeout_ms=50, drop=0.001
    )
    assert (run.complete, run.wrong) == (True, 0)
    assert run.switch_counts["aggregated"] >= 4 * 900
    assert run.server_counts["completed"] == 1000


def atp_fault_run(seed: int) -> None:
    workers = 1 + seed % 32
    fault = (seed // 32) % 21 / 100
    tree = [workers] if seed % 3 or workers == 1 else [workers // 2, workers - workers // 2]
    run = simulate_all_reduce(
        protocol="atp",
        workers=workers,
        tree=tree,
        elements=(200, 50),
        element="float32" if seed % 7 == 0 else "int32",
        slots=1 + seed % 8,
        window=1 + seed % 11,
        values=4 + seed % 59,
        drop=fault,
        duplicate=fault * (seed % 2),
        reorder=fault * (seed % 5 > 0),
        reorder_us=50,
        timeout_ms=0.05,
        settings={"short_timeout": 20_000},
        seed=seed,
    )
    assert (run.complete, run.wrong) == (True, 0), seed
    assert run.worst_error <= workers * 0.5e-6 + 32 * 2**-22


def test_sums_are_exact_under_every_fault() -> None:
    for seed in range(0, 10_000, 31):
        atp_fault_run(seed)


@pytest.mark.slow
def test_ten_thousand_seeds() -> None:
    """1 to 32 workers, each fault up to 20 %, with and without a second level of switches."""
    for seed in range(10_000):
        atp_fault_run(seed)


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
