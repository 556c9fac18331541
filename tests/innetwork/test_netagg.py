"""NetAgg: native boxes and shims agree with the references by packet, and every worker gets the exact result, also
when a box dies on the way."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from reference.innetwork import netagg as reference
from reference.innetwork.driving import Both, Exchange, all_done, drawn_exchange, under_switches

MASTER, BOX = 100, 101


class Net:
    """Workers below boxes below a master, natives against references; with `trees`, further masters too."""

    def __init__(
        self, options: reference.Options, boxes: int, exchange: Exchange, failover: bool = False
    ) -> None:
        self.options, self.exchange = options, exchange
        ranks = list(range(options.workers))
        above, children = under_switches(options.workers, boxes, MASTER)
        everyone = {"standby": len(ranks), "members": (1 << len(ranks)) - 1} if failover else {}
        if failover:
            children[MASTER] += ranks
        for tree in range(1, options.number("trees", 1)):
            children[options.number(f"above_{tree}", -1)] = ranks
        for rank in ranks:
            mine = self.changed({"next": MASTER} if failover else {})
            worker = reference.Worker(mine, rank, above[rank])
            exchange.nodes[rank] = Both.worker("netagg", mine, rank, above[rank], worker)
        self.workers = [exchange.nodes[rank] for rank in ranks]
        self.boxes = []
        for at, below in children.items():
            parent = MASTER if at in children.get(MASTER, []) else -1
            mine = self.changed(everyone if at == MASTER else {})
            exchange.nodes[at] = Both.switch(
                "netagg", 1 << 10, mine, below, parent, reference.Box(mine, below, parent)
            )
            self.boxes.append(exchange.nodes[at])

    def changed(self, settings: Mapping[str, float]) -> reference.Options:
        return replace(self.options, settings={**self.options.settings, **settings})

    def done(self) -> bool:
        assert not any(each.native.failure() for each in self.workers)
        return all_done(self.workers)

    def begin(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = [np.zeros_like(each) for each in inputs]
        for rank, worker in enumerate(self.workers):
            given, now = inputs[rank], self.exchange.now
            begun = worker.reference.begin(given.view(np.uint32).tolist(), now)
            self.exchange.put(rank, worker.begin(given, outputs[rank], begun, now))
        return outputs

    def all_reduce(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = self.begin(inputs)
        self.exchange.run(self.done)
        if inputs[0].size:
            for worker, found in zip(self.workers, outputs, strict=True):
                assert worker.reference.tensor() == found.view(np.uint32).tolist()
        return outputs

    def slots_in_use(self) -> list[int]:
        return [each.slots_in_use for each in self.boxes]


def options(
    generator: random.Random, settings: Mapping[str, float], element: str = "int32"
) -> reference.Options:
    return reference.Options(
        id=generator.randrange(1 << 32),
        workers=generator.choice([1, 2, 3, 5, 9]),
        slots=generator.choice([2, 16, 19, 40]),
        values=6,
        window=generator.choice([1, 2, 5, 100]),
        element=element,
        timeout=150_000,
        give_up_timeout=10**9,
        settings={"sequence": generator.choice([0, 2**32 - 3]), **settings},
    )


def numbers(generator: random.Random, count: int, workers: int) -> list[np.ndarray]:
    draw = generator.randrange
    return [np.array([draw(-(2**31), 2**31) for _ in range(count)], dtype=np.int32) for _ in range(workers)]


def expected(operation: str, inputs: Sequence[np.ndarray]) -> list[int]:
    if operation == "sum":
        return list(np.sum([each.astype(np.int64) for each in inputs], axis=0).astype(np.int32))
    if operation == "minimum":
        return list(np.min(inputs, axis=0))
    if operation == "maximum":
        return list(np.max(inputs, axis=0))
    found: list[int] = []
    for at in range(0, inputs[0].size, 6):
        chunk = [each[at : at + 6] for each in inputs]
        best = sorted(np.concatenate(chunk).tolist(), reverse=True)[: min(2, chunk[0].size * len(inputs))]
        found += (best + [0] * 6)[: chunk[0].size]
    return found


@pytest.mark.parametrize("seed", range(30))
def test_boxes_and_shims_agree_with_the_reference_and_sums_are_exact(seed: int) -> None:
    generator = random.Random(seed)
    operation = generator.randrange(4)
    settings: dict[str, float] = {"operation": operation, "k": 2}
    for name, choices in (
        ("straggler", [0, 40_000]),
        ("rate", [0, 200_000_000]),
        ("again", [2_000_000, 10**8]),
    ):
        settings[name] = generator.choice(choices)
    if generator.random() < 0.3:
        settings["heartbeat"] = 200_000
    boxes = generator.randrange(4)
    if boxes == 0 and generator.random() < 0.5:
        settings |= {"trees": 3, "above_1": 201, "above_2": 202}
    chosen = options(generator, settings)
    net = Net(chosen, boxes, drawn_exchange(generator, seed))
    for count in (generator.choice([0, 1, 5, 6, 7, 100]), 30):
        inputs = numbers(generator, count if operation < 3 else count // 6 * 6, chosen.workers)
        for found in net.all_reduce(inputs):
            assert list(found) == expected(chosen.operation, inputs)
        assert set(net.slots_in_use()) == {0}


@pytest.mark.parametrize("seed", range(8))
def test_a_box_that_dies_costs_no_sum(seed: int) -> None:
    generator = random.Random(seed)
    settings = {
        "heartbeat": 200_000,
        "straggler": 900_000,
        "again": 10**8,
        "rate": generator.choice([0, 10**8]),
    }
    chosen = replace(options(generator, settings), workers=5, slots=64)
    net = Net(chosen, 2, drawn_exchange(generator, seed), failover=True)
    inputs = numbers(generator, 90, 5)
    outputs = net.begin(inputs)
    dies = generator.randrange(1, 400)
    for _ in range(dies):
        if not net.done():
            net.exchange.step()
    del net.exchange.nodes[BOX]
    net.exchange.run(net.done)
    assert [list(each) for each in outputs] == [expected("sum", inputs)] * 5
    again = numbers(generator, 20, 5)
    assert [list(each) for each in net.all_reduce(again)] == [expected("sum", again)] * 5
    assert net.boxes[-1].native.slots_in_use() == 0


@pytest.mark.parametrize("seed", range(10))
def test_floats_are_added_up_alike_everywhere(seed: int) -> None:
    generator = random.Random(seed)
    chosen = options(generator, {"straggler": 9_000}, "float32")
    net = Net(chosen, 2, drawn_exchange(generator, seed))
    inputs = [
        np.array([generator.gauss(0, 1) for _ in range(50)], dtype=np.float32) for _ in range(chosen.workers)
    ]
    found = net.all_reduce(inputs)
    assert len({each.tobytes() for each in found}) == 1
    exact = np.sum([each.astype(np.float64) for each in inputs], axis=0)
    assert np.allclose(found[0], exact, rtol=0, atol=1e-5)


def test_a_worker_without_an_answer_gives_up_and_says_so() -> None:
    chosen = reference.Options(1, 2, 8, 6, 2, "int32", 1_000_000, 50_000_000, {})
    net = Net(chosen, 0, Exchange(1, 0, 0, 0))
    net.workers[0].native.begin(np.zeros(6, np.int32).ctypes.data, np.zeros(6, np.int32).ctypes.data, 6, 0)
    net.workers[0].native.wake(50_000_000)
    assert net.workers[0].native.failure() == (
        "worker 0 had no answer for 50 ms: request 0 of 1 and those after it are open"
    )
