"""Streaming aggregation: the native machines and their reference, byte for byte; whole jobs; hardware laws."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from coppice import _switch
from coppice.innetwork.simulated import simulate_all_reduce
from reference.innetwork.driving import (
    Both,
    all_done,
    drawn_job,
    frames_exchange,
    in_tree,
    inputs_of,
    native_job,
)
from reference.innetwork.machine import Job
from reference.innetwork.streaming import StreamingSwitchReference, StreamingWorkerReference


def play(seed: int) -> None:
    random = Random(seed)
    job = drawn_job(random)
    job.settings = {**job.settings, "headroom": random.randrange(job.slots)}
    hostile = seed % 3 == 0
    network = frames_exchange(random, seed, [0.5, 0.9, 1])
    switches = in_tree(job.workers, random.choice([2, 3, 8]))
    for at, (children, parent) in enumerate(switches):
        switch = StreamingSwitchReference(job, children, parent)
        network.nodes[job.workers + at] = Both.switch("streaming", job.slots, job, children, parent, switch)
    above = {child: job.workers + at for at, (children, _) in enumerate(switches) for child in children}
    workers = []
    for index in range(job.workers):
        reference = StreamingWorkerReference(job, above[index])
        workers.append(Both.worker("streaming", job, index, above[index], reference))
        network.nodes[index] = workers[-1]
    for _ in range(2):
        words, total = inputs_of(random, job.element, job.workers, random.randrange(25))
        for index, worker in enumerate(workers):
            network.put(index, worker.begin_words(words[index], network.now))
        ended = network.run_for(2000 if hostile else 200_000, lambda: all_done(workers))
        if hostile:
            return
        assert ended
        for worker in workers:
            assert np.array_equal(worker.output, total)
            assert np.array_equal(worker.reference.output[: len(total)], total)


def test_the_rate_of_the_link_whatever_the_number_of_workers() -> None:
    """x/B and a round trip, where a ring takes 2 (n - 1)/n x/B: up to 1.75 times as fast with 8 workers."""
    frame, overhead, packets = 16 + 4 * 256, 66, 4000
    for workers in (2, 8, 32):
        run = simulate_all_reduce(
            protocol="streaming", workers=workers, elements=256 * packets, slots=64, overhead_bytes=overhead
        )
        assert run.complete
        wire_us = (frame + overhead) / 12.5e3
        assert run.time_us == pytest.approx(packets * wire_us + 2 * (1 + wire_us), rel=0.01)
    efficiency = 4 * 256 / (frame + overhead)
    ring = 2 * (8 - 1) / 8
    assert run.algbw_gb_per_s / 12.5 * ring == pytest.approx(1.75 * efficiency, rel=0.01)


@pytest.mark.parametrize("skew_us", [0.5, 5.0, 50.0])
def test_full_queues_pause_their_senders_and_lose_nothing(skew_us: float) -> None:
    """Where the headroom holds what a worker may still have on its way: its window less what is queued then."""
    wire_us = (16 + 4 * 256 + 66) / 12.5e3
    run = simulate_all_reduce(
        protocol="streaming",
        workers=4,
        elements=256 * 2000,
        slots=64,
        window=64,
        starts_us=[0, 0, 0, skew_us],
        settings={"headroom": 32},
    )
    assert run.complete
    assert run.wrong == 0
    assert run.switch_counts["over_quota"] == run.worker_counts["resent"] == 0
    assert run.time_us == pytest.approx(2000 * wire_us + skew_us + 2 * (1 + wire_us), rel=0.02)


def test_queues_without_headroom_drop_and_recover_without_a_timeout() -> None:
    run = simulate_all_reduce(
        protocol="streaming", workers=4, elements=256 * 2000, slots=16, window=64, starts_us=[0, 0, 0, 50.0]
    )
    assert run.complete
    assert run.wrong == 0
    assert run.switch_counts["over_quota"] > 0
    assert run.time_us < 1000


def test_refusals() -> None:
    job = Job(id=1, workers=2, slots=4, values=4, window=4)
    node = _switch.aggregation_switch("streaming", 4)
    for wrong in ([], [3, 3], [-1, 2]):
        with pytest.raises(ValueError, match="expected"):
            node.open(native_job(job), wrong)
    job.settings = {"headroom": 4}
    with pytest.raises(ValueError, match="headroom"):
        node.open(native_job(job), [0, 1])
