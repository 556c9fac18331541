"""ATP over real sockets: collisions, partial sums, lost packets and overflow, its server beside the switch."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coppice.innetwork.serving import PacketFaults, SwitchClient, SwitchServer

NONE = PacketFaults()
HARSH = PacketFaults(drop=0.05, duplicate=0.05, reorder=0.05, seed=5)


def sums_of(
    given: dict[tuple[int, int], NDArray[Any]], *, slots: int, faults: PacketFaults = NONE
) -> tuple[dict[tuple[int, int], NDArray[Any]], dict[str, int]]:
    """What each (job, worker) gets when all of them sum at once, and what the switch and its server counted."""
    workers = 1 + max(worker for _, worker in given)
    element = next(iter(given.values())).dtype.name
    found: dict[tuple[int, int], NDArray[Any]] = {}
    all_joined = threading.Barrier(len(given))
    with SwitchServer("atp", workers=workers, slots=slots, faults=faults) as switch:

        def work(job: int, worker: int) -> None:
            with SwitchClient(
                switch.address,
                worker=worker,
                workers=workers,
                job=job,
                protocol="atp",
                element=element,
            ) as end:
                all_joined.wait(60)
                found[job, worker] = end.all_reduce(given[job, worker].copy())

        threads = [threading.Thread(target=work, args=each) for each in given]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    counted: dict[str, int] = switch.report()["protocol"]  # whole once the switch has ended
    return found, counted


def numbers(jobs: int, workers: int, count: int = 4000) -> dict[tuple[int, int], NDArray[Any]]:
    random = np.random.default_rng(jobs + workers)
    return {
        (job, worker): random.integers(-1000, 1000, count).astype(np.int32)
        for job in range(1, jobs + 1)
        for worker in range(workers)
    }


def check(given: dict[tuple[int, int], NDArray[Any]], found: dict[tuple[int, int], NDArray[Any]]) -> None:
    assert set(found) == set(given)
    for (job, worker), got in found.items():
        wanted = sum(values.astype(np.int64) for (other, _), values in given.items() if other == job)
        assert np.array_equal(got, wanted), (job, worker)


def test_one_job_with_many_slots_aggregates_in_the_switch() -> None:
    given = numbers(1, 3)
    found, counted = sums_of(given, slots=4096)
    check(given, found)
    assert counted["completed"]


@pytest.mark.parametrize(("jobs", "workers"), [(2, 2), (3, 3)])
def test_jobs_that_collide_are_summed_by_the_server(jobs: int, workers: int) -> None:
    """One slot for all: what finds it taken passes through, and every sum is exact all the same."""
    given = numbers(jobs, workers, 20_000)
    for _ in range(10):  # a busy machine may run one job after the other
        found, counted = sums_of(given, slots=1)
        check(given, found)
        if counted["collided"]:
            return
    pytest.fail("jobs that share a slot never met there")


@pytest.mark.parametrize("slots", [1, 64])
def test_partial_sums_and_lost_acknowledgements_are_repaired(slots: int) -> None:
    given = numbers(2, 3)
    found, _ = sums_of(given, slots=slots, faults=HARSH)
    check(given, found)


def test_what_overflows_is_summed_in_floats() -> None:
    """A factor of 10^6 leaves room for 2,147; beyond it the chunk goes round again as floats."""
    given = {(1, worker): np.full(300, 2000.0 + worker, dtype=np.float32) for worker in range(3)}
    found, counted = sums_of(given, slots=64)
    for got in found.values():
        assert np.allclose(got, 6003.0, rtol=1e-6)
    assert counted["saturated"]
