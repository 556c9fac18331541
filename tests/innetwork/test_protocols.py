"""What every protocol promises: exact sums under every fault, errors and never a wrong sum where parties fail, and no
interleaving of packets that gives one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from coppice import _switch
from coppice.innetwork.simulated import SwitchedAllReduce, search_interleavings, simulate_all_reduce

# Whole jobs over links that lose, double and delay packets: arguments by seed, with trees of 1 to 32 workers.


def _drawn_tree(random: Random) -> dict[str, Any]:
    groups = [random.randint(1, 8) for _ in range(random.randint(1, 4))]
    return {"workers": sum(groups), "tree": groups}


def _drawn_faults(random: Random, most: float = 0.2) -> dict[str, Any]:
    return {
        "drop": random.choice([share for share in (0, 0.01, 0.1, 0.2) if share <= most]),
        "duplicate": random.choice([0, 0.05]),
        "reorder": random.choice([0, 0.1]),
        "timeout_ms": 0.05,
        "give_up_timeout_ms": 1e6,
    }


def _drawn_tensors(random: Random) -> dict[str, Any]:
    return {
        "elements": [random.randrange(200) for _ in range(3)],
        "element": random.choice(["int32", "float32"]),
        "values": random.randint(1, 8),
    }


def _streaming(seed: int) -> dict[str, Any]:
    random = Random(seed)
    slots = random.randint(1, 16)
    chosen = {"headroom": random.randrange(slots), "first": random.choice([0, 2**32 - 9])}
    job = {"slots": slots, "window": random.randint(1, 16), "settings": chosen}
    return _drawn_tree(random) | _drawn_tensors(random) | _drawn_faults(random) | job


def _sharp(seed: int) -> dict[str, Any]:
    random = Random(seed)
    slots = random.randint(1, 16)
    chosen = {"low_latency": random.choice([0, 100, 4096]), "first": random.choice([0, 2**32 - 9])}
    job = {"slots": slots, "window": random.randint(1, slots), "settings": chosen}
    return _drawn_tree(random) | _drawn_tensors(random) | _drawn_faults(random) | job


def _camdoop(seed: int) -> dict[str, Any]:
    random = Random(seed)
    chosen = {"first": random.choice([0, 2**32 - 9])}
    job = {"slots": random.randint(1, 16), "window": random.randint(1, 16), "settings": chosen}
    return _drawn_tree(random) | _drawn_tensors(random) | _drawn_faults(random) | job


def _fpisa(seed: int) -> dict[str, Any]:
    random = Random(seed)
    job = {"slots": random.randint(1, 8), "element": "float32"}
    return _drawn_tree(random) | _drawn_tensors(random) | _drawn_faults(random, most=0.1) | job


def _counted(seed: int, *, reorder_us: float = 50) -> dict[str, Any]:
    """1 to 32 workers, each fault up to 20 %, with and without a second level of switches."""
    workers, fault = 1 + seed % 32, (seed // 32) % 21 / 100
    return {
        "workers": workers,
        "tree": [workers] if seed % 3 or workers == 1 else [workers // 2, workers - workers // 2],
        "elements": (200, 50),
        "drop": fault,
        "duplicate": fault * (seed % 2),
        "reorder": fault * (seed % 5 > 0),
        "reorder_us": reorder_us,
        "timeout_ms": 0.05,
    }


def _switchml(seed: int) -> dict[str, Any]:
    return _counted(seed) | {"slots": 8, "values": 4}


def _atp(seed: int) -> dict[str, Any]:
    return _counted(seed) | {
        "element": "float32" if seed % 7 == 0 else "int32",
        "slots": 1 + seed % 8,
        "window": 1 + seed % 11,
        "values": 4 + seed % 59,
        "settings": {"short_timeout": 20_000},
    }


def _netreduce(seed: int) -> dict[str, Any]:
    packets = 1 + seed % 5
    return _counted(seed, reorder_us=5) | {
        "element": "float32" if seed % 7 == 0 else "int32",
        "slots": 8 * packets,
        "window": 1 + seed % 4,
        "values": 4 + seed % 20,
        "settings": {"message_packets": packets},
    }


def _keys_or_boxes(protocol: str, seed: int) -> dict[str, Any]:
    random = Random(seed)
    workers = random.randint(1, 32)
    tree = None
    if random.random() < 0.5 and workers > 1:
        first = random.randint(1, workers - 1)
        tree = [first, workers - first]
    fault = random.choice([0, 0.01, 0.05, 0.1, 0.2])
    settings: dict[str, float] = {"sequence": random.choice([0, 2**32 - 5])}
    if protocol == "switchagg":
        settings |= {"lanes": random.choice([1, 4]), "back": random.choice([0, 3, 40])}
    else:
        settings |= {"straggler": random.choice([0, 200_000]), "rate": random.choice([0, 10**9])}
    return {
        "workers": workers,
        "tree": tree,
        "elements": [random.randrange(0, 200), random.randrange(0, 60)],
        "element": random.choice(["int32", "float32"]),
        "slots": random.choice([2, 8, 64]),
        "window": random.choice([1, 4, 64]),
        "values": 4,
        "drop": fault,
        "duplicate": random.choice([0, fault]),
        "reorder": random.choice([0, fault]),
        "reorder_us": 50,
        "timeout_ms": 0.1,
        "settings": settings,
    }


# Arguments, and the largest error of a sum of so many workers with values from -1 to 1.
JOBS: dict[str, tuple[Callable[[int], dict[str, Any]], Callable[[int], float]]] = {
    "atp": (_atp, lambda workers: workers * 0.5e-6 + 32 * 2**-22),
    "camdoop": (_camdoop, lambda _: 1e-4),
    # Each addition loses less than 2^-24 of the largest partial sum.
    "fpisa": (_fpisa, lambda workers: workers**2 * 2**-23),
    "netagg": (lambda seed: _keys_or_boxes("netagg", seed), lambda workers: 1e-6 * workers),
    "netreduce": (_netreduce, lambda _: 1e-5),
    "sharp": (_sharp, lambda _: 1e-4),
    "streaming": (_streaming, lambda _: 1e-4),
    "switchagg": (lambda seed: _keys_or_boxes("switchagg", seed), lambda workers: 1e-6 * workers),
    "switchml": (_switchml, lambda _: 0.0),
}


def whole_job(protocol: str, seed: int) -> None:
    arguments, error = JOBS[protocol]
    job = arguments(seed)
    run = simulate_all_reduce(protocol=protocol, **job, seed=seed)
    # Copies that only wait for their acknowledgement are no sums under way.
    assert run.complete or (protocol == "camdoop" and None not in run.finish_us), (seed, run)
    assert run.wrong == 0, (seed, run)
    assert run.worst_error <= error(job["workers"]), (seed, run)


SEEDS = {"atp": range(0, 10_000, 31), "netreduce": range(0, 10_000, 61), "fpisa": range(150)}


@pytest.mark.parametrize("protocol", sorted(set(JOBS) - {"switchml"}))  # in test_network.py, by hypothesis
@pytest.mark.spread(3)
def test_whole_jobs_are_exact_under_every_fault(protocol: str) -> None:
    for seed in SEEDS.get(protocol, range(200)):
        whole_job(protocol, seed)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", sorted(set(JOBS) - {"fpisa"}))
def test_ten_thousand_whole_jobs_are_exact(protocol: str) -> None:
    first = 200 if protocol in ("camdoop", "sharp", "streaming") else 0
    for seed in range(first, first + 10_000):
        whole_job(protocol, seed)


# Parties that fail.


def crashed(protocol: str, **job: Any) -> SwitchedAllReduce:
    """A job one of whose workers dies: the others give up, and nobody has a wrong sum."""
    run = simulate_all_reduce(protocol=protocol, **job)
    assert run.wrong == 0
    assert not run.complete
    lost = job["crash_worker"]
    assert [bool(each) for each in run.failures] == [worker != lost for worker in range(job["workers"])]
    return run


@pytest.mark.parametrize("protocol", ["camdoop", "sharp", "streaming"])
@pytest.mark.parametrize("tree", [None, [3, 2]])
def test_a_silent_worker_is_an_error(protocol: str, tree: list[int] | None) -> None:
    run = crashed(
        protocol,
        workers=5,
        tree=tree,
        elements=100_000,
        slots=16,
        crash_worker=3,
        crash_us=20.0,
        timeout_ms=0.05,
        give_up_timeout_ms=5.0,
    )
    assert run.finish_us == (None,) * 5
    assert all("give-up timeout" in run.failures[worker] for worker in (0, 1, 2, 4))
    assert run.waited_for


@pytest.mark.parametrize("protocol", ["switchagg", "netagg", "switchml"])
def test_a_crashed_worker_is_named_and_a_restarted_switch_gives_no_wrong_sum(protocol: str) -> None:
    large = protocol == "switchml"
    job = (
        {"workers": 4, "elements": 10**6, "slots": 16, "give_up_timeout_ms": 100}
        if large
        else {"workers": 4, "elements": 10**5, "timeout_ms": 0.1, "give_up_timeout_ms": 20}
    )
    crash = crashed(protocol, **job, crash_worker=2, crash_us=100 if large else 30)
    assert crash.waited_for == (2,)
    if protocol == "switchagg":
        assert "child 2 of its switch is not at the end" in crash.failures[0]
    if large:
        assert "worker 0" in crash.failures[0]
        assert "100 ms" in crash.failures[0]
    for restart in (2,) if large else (0, 1, 2):
        run = simulate_all_reduce(
            protocol=protocol, **job, tree=[2, 2], restart_switch=restart, restart_us=100 if large else 40
        )
        assert run.wrong == 0
        assert all(run.failures) if large else None not in run.finish_us or any(run.failures)


@pytest.mark.parametrize("protocol", ["camdoop", "sharp", "streaming"])
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
        give_up_timeout_ms=5.0,
    )
    assert run.wrong == 0
    assert all(run.failures)


@pytest.mark.parametrize("protocol", ["camdoop", "sharp", "streaming"])
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
            give_up_timeout_ns=10**9,
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
    # A worker of one job is unknown to the other.
    before = node.counters()["unknown_sender"]
    [(_, packet)] = workers[10].begin(outputs[10].ctypes.data, outputs[10].ctypes.data, 1, 0)
    assert node.receive(20, packet, 0) == []
    assert node.counters()["unknown_sender"] == before + 1


# Interleavings. Of ATP time-outs have one length, so that what comes again is the same state.
ATP = {"protocol": "atp", "workers": 2, "settings": {"short_timeout": 1e7}}
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
WHOLE_SEARCHES: dict[str, dict[str, Any]] = {
    "atp": {**ATP, "slots": 1, "elements": 2},
    "netreduce": {
        "protocol": "netreduce",
        "workers": 2,
        "slots": 2,
        "window": 1,
        "elements": 2,
        "early_timeouts": 0,
        "settings": {"message_packets": 1, "linger": 2},
    },
}


@pytest.mark.parametrize("name", SEARCHES)
def test_no_interleaving_gives_a_wrong_sum_or_an_end_without_one(name: str) -> None:
    search_interleavings(**SEARCHES[name], most_states=8_000).require_ok()


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_no_interleaving_is_wrong_farther_away(name: str) -> None:
    search_interleavings(**SEARCHES[name], most_states=400_000).require_ok()


@pytest.mark.parametrize("name", WHOLE_SEARCHES)
def test_every_interleaving_sums_and_ends(name: str) -> None:
    found = search_interleavings(**WHOLE_SEARCHES[name])
    found.require_ok()
    assert found.whole
    assert found.states > 10_000


@pytest.mark.slow
def test_every_interleaving_of_two_slots_sums_and_ends() -> None:
    """2 workers, 2 slots, 3 chunks, one loss and one copy: half a minute on one core."""
    found = search_interleavings(**ATP, slots=2, elements=3, early_timeouts=0)
    found.require_ok()
    assert found.whole
