"""Random streams through the generated P4 program: what it sends, keeps and counts is what a model, and the native
switch, say."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from coppice import _switch
from coppice.innetwork.p4.generator import P4Export, export_p4
from coppice.innetwork.serving.settings import SWITCHML_COUNTS
from innetwork.frames import Request, reply_frame
from reference.p4.control_plane import interpreter_of

SLOTS = 3
Replies = list[tuple[int, bytes]]


@dataclass
class PublishedSlot:
    """The published rule, for one slot."""

    bitmaps: list[int] = field(default_factory=lambda: [0, 0])
    missing: list[int] = field(default_factory=lambda: [0, 0])
    values: list[list[int]] = field(default_factory=lambda: [[], []])
    exponents: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 0)])


@dataclass
class PublishedSwitch:
    workers: int
    slots: dict[int, PublishedSlot] = field(default_factory=dict)

    def receive(self, packet: Request) -> Replies:
        slot, now = self.slots.setdefault(packet.slot, PublishedSlot()), packet.set
        own = 1 << packet.worker
        before = slot.bitmaps[now]
        slot.bitmaps[now] |= own
        slot.bitmaps[1 - now] &= ~own
        complete = False
        if not before & own:
            complete = slot.missing[now] == 1 or self.workers == 1
            slot.missing[now] = (slot.missing[now] or self.workers) - 1
            if before == 0:
                slot.values[now] = [value % 2**32 for value in packet.values]
                slot.exponents[now] = packet.exponents
            else:
                slot.values[now] = [
                    (a + b) % 2**32 for a, b in zip(slot.values[now], packet.values, strict=True)
                ]
                high, low = zip(slot.exponents[now], packet.exponents, strict=True)
                slot.exponents[now] = (max(high), max(low))
        elif slot.missing[now] > 0:
            return []
        to = range(self.workers) if complete else [packet.worker] if before & own else []
        sums = tuple(value - (value >> 31 << 32) for value in slot.values[now])
        return [(each, reply_frame(packet, each, sums, slot.exponents[now])) for each in to]


def values_of(rng: random.Random, values: int = 64) -> tuple[int, ...]:
    return tuple(rng.randrange(-(2**31), 2**31) for _ in range(values))


@pytest.mark.parametrize("seed", range(4))
def test_published_rule_for_any_packets(seed: int) -> None:
    """Sets, slots and workers in any order, also such that no protocol would send."""
    rng = random.Random(seed)
    workers = rng.choice([1, 2, 3, 5])
    switch = interpreter_of(export_p4(workers=workers, slots=SLOTS, variant="published"))
    model = PublishedSwitch(workers)
    for _ in range(150):
        worker, slot, now = rng.randrange(workers), rng.randrange(SLOTS), rng.randrange(2)
        exponents = (rng.randrange(-128, 128), rng.randrange(-128, 128))
        packet = Request(worker, slot, now, values_of(rng), id=rng.randrange(2**32), exponents=exponents)
        assert switch.receive(worker, packet.frame()) == model.receive(packet)
        cells = [now * SLOTS + slot for now in (0, 1)]
        kept = model.slots[slot]
        assert [switch.registers["SwitchIngress.seen"].get(cell, 0) for cell in cells] == kept.bitmaps
        assert [switch.registers["SwitchIngress.missing"].get(cell, 0) for cell in cells] == kept.missing


def native_switch(
    workers: int, slots: int, values: int, first: int, system: str = "switchml", **settings: float
) -> _switch.Aggregator:
    native = _switch.aggregation_switch(system, slots)
    native.open(native_job(workers, slots, values, first, system, **settings), list(range(workers)))
    return native


def native_job(
    workers: int, slots: int, values: int, first: int, system: str = "switchml", **settings: float
) -> _switch.AggregationJob:
    return _switch.AggregationJob(
        id=7,
        workers=workers,
        slots=slots,
        values=values,
        window=slots,
        element=_switch.Element.int32 if system == "switchml" else _switch.Element.float32,
        timeout_ns=1_000_000,
        give_up_timeout_ns=10**12,
        settings={"first_packet": float(first), **settings},
    )


def as_frames(sent: list[tuple[list[int], bytes]], values: int) -> Replies:
    """What the native switch sends, as frames."""
    found = []
    for receivers, body in sent:
        number, pool, *exponents = struct.unpack(">4sHbb", body[2:10])
        sums = struct.unpack(f">{values}i", body[10:])
        request = Request(0, pool & 0x3FFF, pool >> 15, (), id=int.from_bytes(number, "little"), job=body[1])
        found += [(to, reply_frame(request, to, sums, (exponents[0], exponents[1]))) for to in receivers]
    return found


def guarded(workers: int, slots: int, values: int, first: int, **options: Any) -> P4Export:
    return export_p4(workers=workers, slots=slots, values=values, job=7, first_packet=first, **options)


def float_values(rng: random.Random) -> tuple[int, ...]:
    """Floats as int32: of like and of unlike magnitudes, any bits at all, infinities, zeros, the largest ones."""
    near = [rng.gauss(0, 1) for _ in range(20)] + [
        rng.gauss(0, 1) * 2.0 ** rng.randrange(-40, 40) for _ in range(20)
    ]
    special = [rng.choice([0.0, -0.0, 1e-45, 3e38, -3e38, float("inf"), float("nan")]) for _ in range(4)]
    return struct.unpack("44i", struct.pack("44f", *near, *special)) + values_of(rng, 20)


@pytest.mark.parametrize("mode", ["full", "approximate"])
@pytest.mark.parametrize("seed", range(2))
def test_float_program_is_the_native_switch(seed: int, mode: str) -> None:
    """Floats with retransmissions and late duplicates: every reply is the same to the last bit."""
    rng = random.Random(seed)
    workers = rng.choice([2, 3, 5])
    native = native_switch(workers, SLOTS, 64, 0, "fpisa", approximate=float(mode == "approximate"))
    switch = interpreter_of(guarded(workers, SLOTS, 64, 0, system="fpisa", mode=mode))
    round_of = [0] * SLOTS
    for _ in range(150):
        worker, slot = rng.randrange(workers), rng.randrange(SLOTS)
        use = max(0, round_of[slot] + rng.choice([-1, 0, 0, 0, 0, 0, 1]))
        packet = Request(worker, slot, use % 2, float_values(rng), id=slot + use * SLOTS, job=7)
        wanted = as_frames(native.receive(worker, packet.body(), 0), 64)
        assert switch.receive(worker, packet.frame()) == wanted
        if len(wanted) == workers:
            round_of[slot] = use + 1
    counted = native.counters()
    assert switch.counters["SwitchIngress.counts"] == [counted[name] for name in SWITCHML_COUNTS]
    assert counted["completed"] > 5
    assert counted["answered"] > 0
    assert (counted["evicted"] > 0) == (mode == "approximate")


@pytest.mark.parametrize("seed", range(4))
def test_guarded_program_is_the_native_switch(seed: int) -> None:
    """Packets near those that are due, in any order: every reply, every sum and every count is the same."""
    rng = random.Random(seed)
    workers, first = rng.choice([1, 2, 3, 5]), rng.choice([0, 5, 2**32 - 4])
    native = native_switch(workers, SLOTS, 64, first)
    switch = interpreter_of(guarded(workers, SLOTS, 64, first))
    round_of = [0] * SLOTS
    for _ in range(500):
        worker, slot = rng.randrange(workers), rng.randrange(SLOTS)
        use = max(0, round_of[slot] + rng.choice([-3, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1, 1, 2]))
        now = use % 2 if rng.random() < 0.9 else rng.randrange(2)
        packet = Request(
            worker,
            slot,
            now,
            values_of(rng),
            id=(first + slot + use * SLOTS) % 2**32,
            exponents=(rng.randrange(-128, 128), rng.randrange(-128, 128)),
            job=7 if rng.random() < 0.95 else 8,
        )
        wanted = as_frames(native.receive(worker, packet.body(), 0), 64)
        assert switch.receive(worker, packet.frame()) == wanted
        if len(wanted) == workers:
            round_of[slot] = use + 1
    counted = native.counters()
    assert switch.counters["SwitchIngress.counts"] == [counted[name] for name in SWITCHML_COUNTS]
    assert counted["completed"] > 5
    assert counted["stale"] > 0


@pytest.mark.parametrize(("workers", "values"), [(1, 64), (2, 64), (3, 64), (4, 256)])
def test_native_workers_reach_exact_sums_through_the_program(workers: int, values: int) -> None:
    """Native workers over the interpreter, with loss, duplicates and reordering both ways: two tensors one after the
    other."""
    rng, numbers = random.Random(workers), np.random.default_rng(workers)
    slots, first = 4, 2**32 - 9
    native_switch(workers, slots, values, first)
    switch = interpreter_of(guarded(workers, slots, values, first))
    job = native_job(workers, slots, values, first)
    machines = [_switch.aggregation_worker("switchml", job, each, workers) for each in range(workers)]
    now = 0
    for count in (9 * values + 3, 5 * values - 1):
        inputs = [numbers.integers(-(2**31), 2**31, count, dtype=np.int32) for _ in machines]
        outputs = [np.zeros(count, np.int32) for _ in machines]
        under_way: list[tuple[int, bytes]] = []  # to worker, or to the switch from worker: ~worker

        def post(to: int, packet: bytes) -> None:
            copies = rng.choices([0, 1, 2], [1, 8, 1])[0]
            under_way.extend([(to, packet)] * copies)  # noqa: B023 (called in this round only)

        for each, machine in enumerate(machines):
            for _, packet in machine.begin(inputs[each].ctypes.data, outputs[each].ctypes.data, count, now):
                post(~each, packet)
        while not all(machine.done() for machine in machines):
            assert not any(machine.failure() for machine in machines)
            now += 100_000
            for each, machine in enumerate(machines):
                for _, packet in machine.wake(now):
                    post(~each, packet)
            for _ in range(len(under_way)):
                to, packet = under_way.pop(rng.randrange(len(under_way)))
                if to < 0:
                    for port, frame in switch.receive(~to, framed(~to, packet)):
                        post(port, frame[42:])
                else:
                    for _, answer in machines[to].receive(workers, packet, now):
                        post(~to, answer)
        total = np.sum(inputs, axis=0, dtype=np.int32)
        assert all((output == total).all() for output in outputs)


def framed(worker: int, body: bytes) -> bytes:
    """The bytes of a native worker as a frame."""
    pool, *exponents = struct.unpack(">Hbb", body[6:10])
    packet = Request(
        worker,
        pool & 0x3FFF,
        pool >> 15,
        struct.unpack(f">{(len(body) - 10) // 4}i", body[10:]),
        id=int.from_bytes(body[2:6], "little"),
        exponents=(exponents[0], exponents[1]),
        job=body[1],
    )
    assert packet.body() == body
    return packet.frame()
