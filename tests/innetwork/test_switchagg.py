"""SwitchAgg: the native machine and its reference agree packet by packet, and every worker gets the exact result."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from coppice._switch import SwitchAggWorker
from reference.innetwork import switchagg as reference
from reference.innetwork.driving import Both, Exchange, all_done, drawn_exchange, native_job, under_switches
from reference.innetwork.streams import combine

ROOT = 100


class Net:
    """Workers under one switch, or over leaf switches under a root; natives and references side by side."""

    def __init__(self, options: reference.Options, leaves: int, exchange: Exchange) -> None:
        self.options, self.exchange = options, exchange
        above, children = under_switches(options.workers, leaves, ROOT)
        for rank, switch in enumerate(above):
            native = SwitchAggWorker(native_job(options), rank, switch)
            exchange.nodes[rank] = Both(native, reference.Worker(options, switch))
        self.workers = [exchange.nodes[rank] for rank in range(options.workers)]
        self.switches = []
        for at, below in children.items():
            parent = -1 if at == ROOT else ROOT
            exchange.nodes[at] = Both.switch(
                "switchagg", 1 << 16, options, below, parent, reference.Switch(options, below, parent)
            )
            self.switches.append(exchange.nodes[at])

    def done(self) -> bool:
        assert not any(each.native.failure() for each in self.workers)
        return all_done(self.workers)

    def combine_pairs(
        self, streams: Sequence[list[tuple[bytes, reference.Values]]]
    ) -> list[dict[bytes, list[int]]]:
        for rank, (worker, pairs) in enumerate(zip(self.workers, streams, strict=True)):
            native = worker.native.begin_pairs(pairs, self.exchange.now)
            self.exchange.put(rank, worker.agree(native, worker.reference.begin([pairs], self.exchange.now)))
        self.exchange.run(self.done)
        for worker in self.workers:
            assert worker.native.combined() == {
                key: list(values) for key, values in worker.reference.combined.items()
            }
        return [worker.native.combined() for worker in self.workers]

    def all_reduce(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = [np.zeros_like(each) for each in inputs]
        for rank, worker in enumerate(self.workers):
            given, now = inputs[rank], self.exchange.now
            begun = worker.reference.begin_tensor(given.view(np.uint32).tolist(), now)
            self.exchange.put(rank, worker.begin(given, outputs[rank], begun, now))
        self.exchange.run(self.done)
        for worker, found in zip(self.workers, outputs, strict=True):
            assert worker.reference.tensor(found.size) == found.view(np.uint32).tolist()
        return outputs

    def slots_in_use(self) -> list[int]:
        return [each.slots_in_use for each in self.switches]


def options(
    generator: random.Random, settings: Mapping[str, float], element: str = "int32"
) -> reference.Options:
    return reference.Options(
        id=generator.randrange(1 << 32),
        workers=generator.choice([1, 2, 3, 5, 9]),
        slots=generator.randrange(1, 7),
        values=16,
        window=generator.choice([1, 2, 5, 100]),
        element=element,
        timeout=60_000,
        give_up_timeout=10**9,
        settings={"sequence": generator.choice([0, 2**32 - 3]), **settings},
    )


@pytest.mark.parametrize("seed", range(40))
def test_streams_of_pairs_agree_with_the_reference_and_are_exact(seed: int) -> None:
    generator = random.Random(seed)
    operation = generator.randrange(3)
    lanes = generator.choice([1, 1, 3])
    back = generator.choice([0, 1, 3, 8, 40])
    with_settings = {
        "lanes": lanes,
        "key_bytes": generator.choice([4, 20, 64]),
        "back": back,
        "operation": operation,
    }
    chosen = options(generator, with_settings)
    net = Net(chosen, generator.randrange(4), drawn_exchange(generator, seed))
    for _ in range(2):
        keys = [generator.randbytes(generator.randrange(1, chosen.key_bytes + 1)) for _ in range(12)]
        streams = [
            [
                (generator.choice(keys), tuple(generator.randrange(1 << 32) for _ in range(lanes)))
                for _ in range(generator.choice([0, 3, 60]))
            ]
            for _ in range(chosen.workers)
        ]
        expected: dict[bytes, list[int]] = {}
        for key, values in (pair for stream in streams for pair in stream):
            known = expected.get(key)
            joined = [
                combine(chosen.operation, "int32", a, b) for a, b in zip(known or values, values, strict=True)
            ]
            expected[key] = joined if known else list(values)
        for found in net.combine_pairs(streams):
            assert found == expected
        assert set(net.slots_in_use()) == {0}


@pytest.mark.parametrize("seed", range(40))
def test_tensors_agree_with_the_reference(seed: int) -> None:
    generator = random.Random(seed)
    element = generator.choice(["int32", "float32"])
    sizes = {"lanes": generator.choice([1, 4, 16]), "back": generator.choice([0, 2, 20])}
    chosen = options(generator, {**sizes, "round": generator.choice([1, 7, 100])}, element)
    net = Net(chosen, generator.randrange(4), drawn_exchange(generator, seed))
    for _ in range(2):
        count = generator.choice([0, 1, 15, 16, 17, 130])
        if element == "int32":
            inputs = [
                np.array([generator.randrange(-(2**31), 2**31) for _ in range(count)], dtype=np.int32)
                for _ in range(chosen.workers)
            ]
        else:
            inputs = [
                np.array([generator.gauss(0, 1) for _ in range(count)], dtype=np.float32)
                for _ in range(chosen.workers)
            ]
        found = net.all_reduce(inputs)
        for each in found:
            assert each.tobytes() == found[0].tobytes()
        if element == "int32":
            wide = np.sum([each.astype(np.int64) for each in inputs], axis=0)
            assert found[0].tolist() == wide.astype(np.int32).tolist()
        else:
            exact = np.sum([each.astype(np.float64) for each in inputs], axis=0)
            assert np.allclose(found[0], exact, rtol=0, atol=1e-6 * chosen.workers * 5)


def test_input_and_output_may_be_one_memory() -> None:
    generator = random.Random(1)
    chosen = options(generator, {"lanes": 2, "back": 1, "round": 50})
    net = Net(chosen, 0, Exchange(1, 0.1, 0.1, 0))
    both = [np.arange(100, dtype=np.int32) * (rank + 1) for rank in range(chosen.workers)]
    expected = np.sum(both, axis=0).tolist()
    for rank, worker in enumerate(net.workers):
        begun = worker.reference.begin_tensor(both[rank].tolist(), 0)
        net.exchange.put(rank, worker.begin(both[rank], both[rank], begun, 0))
    net.exchange.run(net.done)
    assert [each.tolist() for each in both] == [expected] * chosen.workers


def test_a_packet_of_the_next_round_waits_for_the_flush() -> None:
    chosen = reference.Options(1, 2, 4, 4, 4, "int32", 1_000, 10**9, {"lanes": 1})
    net = Net(chosen, 0, Exchange(1, 0, 0, 0))
    switch = net.switches[0]
    pair = reference.packed(b"k", (1,))
    early = reference.HEAD.pack(reference.UP, 0, 1, 0, 1, 1, 0, 1, 1) + pair
    assert switch.receive(0, early, 0) == []
    assert switch.reference.counters["future"] == 1
    first = reference.HEAD.pack(reference.UP, 0, 1, 0, 1, 0, 0, 0, 1) + pair
    assert [packet[:2] for _, packet in switch.receive(0, first, 0)] == [b"\3\0"]
    last = reference.HEAD.pack(reference.UP, 0, 1, 0, 1, 0, 0, 0, 0)
    acknowledged, result, again = switch.receive(1, last, 0)
    assert (acknowledged[0], acknowledged[1][:2]) == ([1], b"\3\0")
    assert (result[0], result[1][0]) == ([0, 1], reference.DOWN)
    assert (again[0], again[1][:2]) == ([0], b"\3\1")  # the round is over: what was refused may come again
