"""Streaming, SHARP and Camdoop where parties fail: an error that says so, and never a wrong sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coppice import _switch
from coppice.innetwork.simulated import search_interleavings, simulate_all_reduce

PROTOCOLS = ("camdoop", "sharp", "streaming")

# What is searched: a stream of SHARP after a small message, a tree of switches, more than a window, several tensors.
SEARCHES: dict[str, dict[str, Any]] = {
    "camdoop": {"protocol": "camdoop", "elements": 2},
    "camdoop-tree": {"protocol": "camdoop", "elements": 1, "tree": [1, 1]},
    "sharp": {"protocol": "sharp", "elements": [1, 2], "settings": {"low_latency": 4}},
    "sharp-window": {"protocol": "sharp", "elements": 4, "slots": 2},
    "sharp-tree": {"protocol": "sharp", "elements": 2, "tree": [1, 1], "settings": {"low_latency": 4}},
    "streaming": {"protocol": "streaming", "elements": [2, 1], "slots": 2, "settings": {"headroom": 1}},
    "streaming-full": {"protocol": "streaming", "elements": 3, "slots": 1, "window": 2},
    "streaming-tree": {"protocol": "streaming", "elements": 2, "tree": [1, 1]},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("tree", [None, [3, 2]])
def test_a_silent_worker_is_an_error(protocol: str, tree: list[int] | None) -> None:
    run = simulate_all_reduce(
        protocol=protocol,
        workers=5,
        tree=tree,
        elements=100_000,
        slots=16,
        crash_worker=3,
        crash_us=20.0,
        timeout_ms=0.05,
        patience_ms=5.0,
    )
    assert run.finish_us == (None,) * 5
    assert all("patience" in run.failures[worker] for worker in (0, 1, 2, 4))
    assert run.wrong == 0
    assert run.waited_for


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("restart_us", [3.0, 10.0, 17.5])
def test_a_switch_that_forgets_everything_gives_no_wrong_sum(protocol: str, restart_us: float) -> None:
    run = simulate_all_reduce(
        protocol=protocol,
        workers=4,
        elements=50_000,
        slots=16,
        restart_switch=0,
        restart_us=restart_us,
        timeout_ms=0.05,
        patience_ms=5.0,
    )
    assert run.wrong == 0
    assert all(run.failures)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_jobs_do_not_mix(protocol: str) -> None:
    """The same numbers of frames in two jobs of different sizes, in turn through one switch."""
    node = _switch.aggregation_switch(protocol, 8)
    outputs = {}
    workers = {}
    for job_id, count in ((1, 2), (2, 3)):
        job = _switch.AggregationJob(
            id=job_id,
            workers=count,
            slots=4,
            values=3,
            window=4,
            element=_switch.Element.int32,
            timeout_ns=10**6,
            patience_ns=10**9,
            settings={},
        )
        ends = [10 * job_id + w for w in range(count)]
        node.open(job, ends)
        for w, end in enumerate(ends):
            workers[end] = _switch.aggregation_worker(protocol, job, w, 99)
            outputs[end] = np.full(20, end, dtype=np.int32)
    flying = [
        (end, 99, packet)
        for end, worker in workers.items()
        for _, packet in worker.begin(outputs[end].ctypes.data, outputs[end].ctypes.data, 20, 0)
    ]
    while flying:
        sender, receiver, packet = flying.pop(0)
        machine = node if receiver == 99 else workers[receiver]
        flying += [(receiver, to, sent) for tos, sent in machine.receive(sender, packet, 0) for to in tos]
    assert all(worker.done() for worker in workers.values())
    for end, output in outputs.items():
        assert set(output.tolist()) == {21 if end < 20 else 63}
    assert node.slots_in_use() == 0
    # A worker of one job is a stranger to the other.
    before = node.counters()["stranger"]
    [(_, packet)] = workers[10].begin(outputs[10].ctypes.data, outputs[10].ctypes.data, 1, 0)
    assert node.receive(20, packet, 0) == []
    assert node.counters()["stranger"] == before + 1


@pytest.mark.parametrize("name", SEARCHES)
def test_no_interleaving_gives_a_wrong_sum_or_an_end_without_one(name: str) -> None:
    found = search_interleavings(**SEARCHES[name], most_states=8_000)
    assert found.ok, found.trace


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_no_interleaving_is_wrong_farther_away(name: str) -> None:
    found = search_interleavings(**SEARCHES[name], most_states=400_000)
    assert found.ok, found.trace
