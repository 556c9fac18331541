"""SHARP: the native machines and their reference, byte for byte; whole jobs; groups, streams and the order of sums."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from coppice import _switch
from coppice.innetwork.simulated import simulate_all_reduce
from reference.innetwork.driving import Both, all_done, frames_exchange, in_tree, inputs_of, native_job
from reference.innetwork.machine import Job
from reference.innetwork.sharp import SharpSwitchReference, SharpWorkerReference


def play(seed: int) -> None:
    """One to three groups on one tree of switches, whose streams take turns."""
    random = Random(seed)
    hostile = seed % 3 == 0
    network = frames_exchange(random, seed, [0, 0.5, 1])
    count, groups = random.randint(1, 6), random.randint(1, 3)
    element = random.choice(["int32", "float32"])
    shape = in_tree(count, random.choice([2, 3, 8]))
    switches = [Both(_switch.aggregation_switch("sharp", 64), SharpSwitchReference()) for _ in shape]
    # Endpoints: switches from 1000 on; worker w of group g is 100 g + w.
    for at, switch in enumerate(switches):
        network.nodes[1000 + at] = switch
    workers: list[list[Both]] = []
    for group in range(groups):
        job = Job(
            id=group,
            workers=count,
            slots=8,
            values=random.randint(1, 5),
            window=random.randint(1, 8),
            element=element,
            timeout=200_000,
            give_up_timeout=2**61,
            settings={
                "first": random.choice([0, 2**32 - 3]),
                "low_latency": random.choice([0, 30, 1000]),
                "streams": random.choice([1, 2]),
                "operation": 0,
                "half": random.randrange(3) if element == "float32" else 0,
            },
        )
        above = {}
        for at, (children, parent) in enumerate(shape):
            real = [100 * group + c if c < count else 1000 + c - count for c in children]
            above.update(dict.fromkeys(real, 1000 + at))
            upper = -1 if parent == -1 else 1000 + parent - count
            switches[at].open(job, real, upper)
        workers.append([])
        for index in range(count):
            at = 100 * group + index
            reference = SharpWorkerReference(job, above[at])
            workers[group].append(Both.worker("sharp", job, index, above[at], reference))
            network.nodes[at] = workers[group][index]
    for _ in range(2):
        totals = []
        for group in range(groups):
            words, total = inputs_of(random, element, count, random.randrange(25))
            if element == "float32":  # few enough bits for halves
                words = [np.sign(each.view(np.float32)).view(np.uint32) for each in words]
                total = np.sum([each.view(np.float32) for each in words], axis=0).view(np.uint32)
            totals.append(total)
            for index, worker in enumerate(workers[group]):
                network.put(100 * group + index, worker.begin_words(words[index], network.now))
        ended = network.run_for(
            2000 if hostile else 200_000,
            lambda: all_done([worker for members in workers for worker in members]),
        )
        if hostile:
            return
        assert ended
        for members, total in zip(workers, totals, strict=True):
            for worker in members:
                assert np.array_equal(
                    worker.output.view(np.float32), total.view(np.float32)
                ) or np.array_equal(worker.output, total)
    for switch in switches:
        assert switch.native.slots_in_use() == 0


@pytest.mark.parametrize("operation", [0, 1, 2])
@pytest.mark.parametrize(("element", "half"), [("int32", 0), ("float32", 0), ("float32", 1), ("float32", 2)])
def test_operations_and_types(operation: int, element: str, half: int) -> None:
    """Any floats: native and reference round alike, and the sum is that of the order of the children."""
    random = np.random.default_rng(operation)
    job = Job(
        id=3,
        workers=5,
        slots=4,
        values=33,
        window=4,
        element=element,
        settings={"operation": operation, "half": half},
    )
    both = Both(_switch.aggregation_switch("sharp", 4), SharpSwitchReference())
    both.open(job, [0, 1, 2, 3, 4])
    for number in range(4):
        packets = []
        for w in range(5):
            worker = SharpWorkerReference(job, 9)
            values = random.standard_normal(33) * 10.0 ** random.integers(-6, 5, 33)
            words = values.astype(np.float32) if element == "float32" else (values * 1000).astype(np.int32)
            worker.begin(words.view(np.uint32), 0)
            packets.append((w, _numbered(worker, number)))
        for w, packet in sorted(packets, key=lambda _: random.random()):
            both.receive(w, packet, 0)


def _numbered(worker: SharpWorkerReference, number: int) -> bytes:
    return replace(worker.frame(worker.first), number=number).pack()


def test_latency_of_small_messages_is_the_depth_of_the_tree() -> None:
    """Two links for each level of switches, whatever the number of workers: flat where a ring's is linear."""
    for workers, tree, levels in ((2, None, 1), (32, None, 1), (32, [8] * 4, 2), (8, [2] * 4, 2)):
        run = simulate_all_reduce(
            protocol="sharp", workers=workers, tree=tree, elements=8, values=8, slots=4, latency_us=1.0
        )
        wire_us = (16 + 32 + 66) / 12.5e3
        assert run.time_us == pytest.approx(2 * levels * (1 + wire_us), abs=2e-3 * levels)


def test_a_stream_costs_a_round_trip_for_the_tree() -> None:
    def time_us(low_latency: int) -> float:
        return simulate_all_reduce(
            protocol="sharp", workers=8, elements=256 * 1000, slots=64, settings={"low_latency": low_latency}
        ).time_us

    request_us = 2 * (1 + (16 + 66) / 12.5e3)
    assert time_us(0) - time_us(2**30) == pytest.approx(request_us, abs=0.01)


def test_a_group_without_slots_is_refused() -> None:
    node = _switch.aggregation_switch("sharp", 10)
    job = Job(id=1, workers=2, slots=8, values=4, window=8)
    node.open(native_job(job), [0, 1])
    job.id = 2
    with pytest.raises(ValueError, match="fall back"):
        node.open(native_job(job), [2, 3])
    node.close(1)
    node.open(native_job(job), [2, 3])
