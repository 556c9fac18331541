"""NetReduce: native machines against their twins, and whole jobs over simulated links."""

from __future__ import annotations

import numpy as np
import pytest

from coppice import _core
from coppice.errors import InputError
from coppice.innetwork.simulated import simulate_all_reduce

from ..reference.innetwork import netreduce
from .side_by_side import Both, BothWorkers, run

SPINE = 100


def both_jobs(**fields: object) -> tuple[_core.AggregationJob, netreduce.Job]:
    twin = netreduce.Job(**fields)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("garbage", [0.0, 0.3])
def test_native_machines_and_twins_send_the_same_bytes(garbage: float) -> None:
    """Two jobs, one of them over leaves and a spine in every third run, under loss, copies and reordering."""
    for seed in range(60):
        chance = np.random.default_rng(seed)
        spine = Both(_core.aggregation_switch("netreduce", 4096), netreduce.Switch())
        nodes: dict[int, Both] = {SPINE: spine}
        first = []
        expected = []
        for number in range(2):
            groups = [int(chance.integers(1, 4)) for _ in range(2 if (seed + number) % 3 == 0 else 1)]
            kind = int(chance.integers(3))
            native, twin = both_jobs(
                id=int(chance.integers(2**31)) * 2 + number,
                workers=sum(groups),
                slots=1,
                values=int(chance.choice([1, 3, 16])),
                window=int(chance.integers(1, 4)),
                floats=kind > 0,
                timeout_ns=1_000_000,
                settings={
                    "message_packets": float(chance.integers(1, 5)),
                    "fixed_point": 1000.0 if kind == 2 else 0.0,
                },
            )
            children: list[int] = []
            switches = []
            for group, size in enumerate(groups):
                hosts = [10 * number + len(children) + each for each in range(size)]
                at = SPINE if len(groups) == 1 else 50 + 10 * number + group
                switch = spine
                if at != SPINE:
                    switch = nodes[at] = Both(_core.aggregation_switch("netreduce", 4096), netreduce.Switch())
                    switches.append(at)
                for machine, job in ((switch.native, native), (switch.twin, twin)):
                    machine.open(job, hosts, -1 if at == SPINE else SPINE)
                for host in hosts:
                    index = host - 10 * number
                    machines = (
                        _core.aggregation_worker("netreduce", native, index, at),
                        netreduce.Worker(twin, index, at),
                    )
                    nodes[host] = BothWorkers(*machines)
                children += hosts
            if switches:
                for machine, job in ((spine.native, native), (spine.twin, twin)):
                    machine.open(job, switches)
            count = int(chance.integers(1, 8 * twin.values * twin.packets))
            for child in children:
                values = chance.integers(-(2**31), 2**31, count).astype(np.int32)
                if twin.floats:
                    values = (chance.normal(size=count) * 100).astype(np.float32)
                pair = nodes[child]
                assert isinstance(pair, BothWorkers)
                first.append((child, pair.begin(values, 0)))
            expected.append((children, groups, twin))
        run(
            nodes,
            first,
            seed=seed,
            loss=0.05 * (seed % 4),
            copy=0.1 * (seed % 2),
            reach=1 + seed % 4,
            garbage=garbage,
        )
        if garbage:
            continue
        for children, groups, twin in expected:
            pairs = [nodes[child] for child in children]
            rows = [pair.values for pair in pairs if isinstance(pair, BothWorkers)]
            if twin.fixed_point:
                rows = [np.round(row.astype(np.float64) * 1000) for row in rows]
            # Hosts of a leaf first, in their order; then the leaves.
            sums = []
            for group, size in enumerate(groups):
                part = rows[sum(groups[:group]) : sum(groups[: group + 1])]
                assert len(part) == size
                sums.append(part[0])
                for row in part[1:]:
                    sums[-1] = sums[-1] + row
            total = sums[0]
            for row in sums[1:]:
                total = total + row
            if twin.fixed_point:
                total = (total / 1000).astype(np.float32)
            for pair in pairs:
                assert isinstance(pair, BothWorkers)
                assert pair.twin.done
                assert pair.results[0].tobytes() == total.tobytes()


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
