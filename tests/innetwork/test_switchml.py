"""SwitchML: the published scenarios, and streams with every fault in which native machines and references agree."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from innetwork.scenarios import SCENARIOS, Scenario
from reference.innetwork import switchml as reference
from reference.innetwork.driving import Both, Exchange, drawn_exchange, under_switches

ROOT = 100


def switch_of(options: reference.Options, children: list[int], parent: int = -1) -> Both:
    readable = reference.Switch(options, children, parent)
    return Both.switch("switchml", options.slots, options, children, parent, readable)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
@pytest.mark.parametrize("first", [0, 2**32 - 1])
def test_published_scenarios(scenario: Scenario, first: int) -> None:
    """As written, with packet ids as workers set them: a packet for the other set is the next round of its slot."""
    options = reference.Options(0, scenario.workers, 4, 64, 4, settings={"first_packet": first})
    both = switch_of(options, list(range(scenario.workers)))
    last: dict[int, tuple[int, int]] = {}
    for step in scenario.steps:
        of_set, turn = last.get(step.worker, (step.set, 0))
        turn += of_set != step.set
        last[step.worker] = step.set, turn
        ident = (first + turn * options.slots) % 2**32
        packet = reference.Packet(ident, step.set, 0, (0, 0), [step.times * i for i in range(64)])
        found = both.receive(step.worker, packet.written(options), 0)
        if step.answer is None:
            assert found == []
            continue
        answer = reference.Packet(ident, step.set, 0, (0, 0), [step.answer * i for i in range(64)])
        to = list(range(scenario.workers)) if step.to is None else [step.to]
        assert found == [(to, answer.written(options))]
    sets = both.reference.slots[0]
    assert tuple(sum(1 << child for child in each.seen) for each in sets) == scenario.bitmaps
    assert tuple(each.missing for each in sets) == scenario.missing
    for each, expected in zip(sets, scenario.sums, strict=True):
        assert (each.values[1] if each.values else None) == expected


def test_another_slot_and_the_published_bytes() -> None:
    both = switch_of(reference.Options(7, 2, 4, 64, 4), [0, 1])
    packet = bytes([0x11, 7]) + struct.pack("<I", 3) + struct.pack(">Hbb", 3, 1, -1)
    packet += struct.pack(">64i", *range(64))
    assert len(packet) == 266
    assert both.receive(0, packet, 0) == []
    [(to, answer)] = both.receive(1, packet, 0)
    assert to == [0, 1]
    assert answer == packet[:10] + struct.pack(">64i", *range(0, 128, 2))


class Rack:
    """Workers below one switch, or below leaves with a root; natives and references side by side."""

    def __init__(self, options: reference.Options, leaves: int, exchange: Exchange) -> None:
        self.options, self.exchange = options, exchange
        above, below = under_switches(options.workers, leaves if leaves > 1 else 0, ROOT)
        for rank, switch in enumerate(above):
            worker = reference.Worker(options, rank, switch)
            exchange.nodes[rank] = Both.worker("switchml", options, rank, switch, worker)
        self.workers = [exchange.nodes[rank] for rank in range(options.workers)]
        for at, children in below.items():
            exchange.nodes[at] = switch_of(options, children, -1 if at == ROOT else ROOT)
        self.switches = [exchange.nodes[at] for at in below]

    def all_reduce(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Each worker's result, after every packet was the same on both sides."""
        outputs = [np.full_like(each, 77) for each in inputs]
        for rank, worker in enumerate(self.workers):
            given, now = inputs[rank], self.exchange.now
            self.exchange.put(
                rank, worker.begin(given, outputs[rank], worker.reference.begin(given, now), now)
            )
        self.exchange.run(lambda: all(each.reference.done or each.reference.failed for each in self.workers))
        for worker, found in zip(self.workers, outputs, strict=True):
            assert bool(worker.native.failure()) == worker.reference.failed
            if worker.done:
                assert (
                    np.concatenate([np.empty(0, found.dtype), *worker.reference.result]).tolist()
                    == found.tolist()
                )
        assert all(each.slots_in_use >= 0 for each in self.switches)
        return outputs


def chosen(generator: random.Random, element: str) -> reference.Options:
    slots = generator.randrange(1, 6)
    return reference.Options(
        id=generator.randrange(2**32),
        workers=generator.choice([1, 2, 3, 5, 32]),
        slots=slots,
        values=generator.choice([1, 3, 64]),
        window=generator.randrange(1, slots + 1),
        element=element,
        timeout=generator.choice([5_000, 50_000]),
        settings={
            "first_packet": generator.choice([0, 5, 2**32 - 3]),
            "doubled_after": generator.choice([0, 1, 3, 100]),
            "adaptive_timeout": generator.random() < 0.3,
        },
    )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.spread(3)
def test_streams_of_integers_agree_with_the_reference_and_wrap(seed: int) -> None:
    generator = random.Random(seed)
    options = chosen(generator, "int32")
    rack = Rack(options, generator.randrange(4), drawn_exchange(generator, seed))
    numbers = np.random.default_rng(seed)
    for _ in range(3):
        count = generator.choice([0, 1, 2, 63, 64, 65, 200]) // (4 if options.workers > 5 else 1)
        inputs = [numbers.integers(-(2**31), 2**31, count, dtype=np.int32) for _ in range(options.workers)]
        expected = np.sum(inputs, axis=0, dtype=np.int32)
        for found in rack.all_reduce(inputs):
            assert found.tolist() == expected.tolist()
        assert {each.native.slots_in_use() for each in rack.switches} == {0}


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.spread(3)
def test_streams_of_floats_agree_with_the_reference(seed: int) -> None:
    generator = random.Random(seed)
    options = chosen(generator, "float32")
    rack = Rack(options, generator.randrange(4), drawn_exchange(generator, seed))
    numbers = np.random.default_rng(seed)
    for _ in range(2):
        count = generator.choice([0, 1, 2, 33, 64, 100]) // (4 if options.workers > 5 else 1)
        scale = generator.choice([0.0, 1e-44, 1e-3, 1.0, 1e38])
        inputs = [(numbers.uniform(-1, 1, count) * scale).astype(np.float32) for _ in range(options.workers)]
        results = rack.all_reduce(inputs)
        assert all(found.tobytes() == results[0].tobytes() for found in results)
        exact = np.sum(np.array(inputs, dtype=np.float64).reshape(options.workers, count), axis=0)
        with np.errstate(over="ignore"):
            bound = scale * 8 * options.workers**2 / 2**31 + np.abs(exact) * 2**-23 + 1e-37
            close = np.abs(results[0].astype(np.float64) - exact) <= bound
        assert np.all(close | (np.abs(exact) > 3.4e38))


def test_values_that_are_not_finite_stop_everybody() -> None:
    options = reference.Options(1, 3, 2, 4, 2, element="float32", timeout=50_000)
    rack = Rack(options, 0, Exchange(1, 0.1, 0.1, 0.1))
    inputs = [np.ones(40, np.float32) for _ in range(3)]
    inputs[1][21] = np.inf
    rack.all_reduce(inputs)
    for each in rack.workers:
        assert "elements from 20 on" in each.native.failure()


def test_a_silent_worker_is_named_and_the_others_give_up() -> None:
    options = reference.Options(1, 3, 2, 4, 2, timeout=50_000, give_up_timeout=2_000_000)
    exchange = Exchange(1, 0, 0, 0)
    rack = Rack(options, 0, exchange)
    del exchange.nodes[1]
    rack.workers.pop(1)
    with pytest.raises(AssertionError, match="no end"):
        exchange.run(lambda: False, steps=10)
    rack.all_reduce([np.ones(40, np.int32) for _ in range(2)])
    assert [each.native.failure().partition(" of")[0] for each in rack.workers] == ["worker 0", "worker 2"]
    assert rack.switches[0].native.waits_for(1) == [1]
