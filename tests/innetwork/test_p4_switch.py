"""The generated P4 program on frames, through the interpreter: published scenarios, and what it is to refuse."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Literal

import pytest

from coppice.errors import InputError
from coppice.innetwork.p4.generator import AttachedHost, P4Export, Rack, default_rack, export_p4
from coppice.innetwork.serving.settings import SWITCHML_COUNTS
from innetwork.frames import SWITCH_IPV4, SWITCH_MAC, Request, ipv4_frame, reply_frame, worker_address
from innetwork.scenarios import SCENARIOS, Scenario
from reference.p4.control_plane import interpreter_of
from reference.p4.device import P4Switch

Variant = Literal["guarded", "published"]
VARIANTS: tuple[Variant, ...] = ("guarded", "published")
SLOTS = 16
HOST = (bytes.fromhex("020000000900"), bytes((192, 168, 1, 9)))
OTHER = (bytes.fromhex("020000000901"), bytes((192, 168, 1, 10)))


@cache
def exported(workers: int, variant: Variant, values: int = 64, first_packet: int = 0) -> P4Export:
    """A program with two more hosts behind the workers' ports."""
    rack = default_rack(workers)
    others = (AttachedHost("02:00:00:00:09:00", workers), AttachedHost("02:00:00:00:09:01", workers + 1))
    rack = Rack(rack.switch, rack.workers, others)
    return export_p4(rack=rack, slots=SLOTS, values=values, variant=variant, first_packet=first_packet)


def switch_of(workers: int, variant: Variant, values: int = 64, first_packet: int = 0) -> P4Switch:
    return interpreter_of(exported(workers, variant, values, first_packet))


def ramp(times: int, values: int = 64) -> tuple[int, ...]:
    return tuple(times * i for i in range(values))


class Driver:
    """Sends packets of workers, numbers them as workers do, and says whom the answer goes to."""

    def __init__(self, switch: P4Switch, workers: int, values: int = 64) -> None:
        self.switch, self.workers, self.values = switch, workers, values
        self.last: dict[tuple[int, int], tuple[int, int, int]] = {}

    def request(self, worker: int, of_set: int, times: int, *, slot: int = 0, **fields: Any) -> Request:
        before = self.last.get((worker, slot))
        number = slot if before is None else before[2] + SLOTS * (before[:2] != (of_set, times))
        self.last[worker, slot] = (of_set, times, number)
        return Request(worker, slot, of_set, ramp(times, self.values), id=number, **fields)

    def answer(self, request: Request, port: int | None = None) -> str:
        """What comes back in words, after every byte of it was compared."""
        port = request.worker if port is None else port
        sent = self.switch.receive(port, request.frame())
        if not sent:
            return "-"
        times = struct.unpack(">i", sent[0][1][56:60])[0]
        sums = ramp(times, self.values)
        if len(sent) == self.workers and (self.workers > 1 or times):
            everyone = [(each, reply_frame(request, each, sums)) for each in range(self.workers)]
            if sent == everyone and self.workers > 1:
                return f"all {times}"
        assert sent == [(port, reply_frame(request, request.worker, sums))]
        return f"{request.worker} {times}"


def state_of(switch: P4Switch, slot: int = 0) -> tuple[tuple[int | None, ...], ...]:
    """Bitmaps, contributions to come and values of both sets."""
    cells = (slot, SLOTS + slot)
    registers = switch.registers
    read = [
        [registers[f"SwitchIngress.{name}"].get(cell, 0) for cell in cells] for name in ("seen", "missing")
    ]
    sums = [registers["SwitchIngress.value_1"].get(cell) for cell in cells]
    return tuple(read[0]), tuple(read[1]), tuple(sums)


def counts(switch: P4Switch) -> dict[str, int]:
    return {
        name: number
        for name, number in zip(SWITCHML_COUNTS, switch.counters["SwitchIngress.counts"], strict=True)
        if number
    }


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_published_scenarios(scenario: Scenario, variant: Variant) -> None:
    switch = switch_of(scenario.workers, variant)
    driver = Driver(switch, scenario.workers)
    for step in scenario.steps:
        found = driver.answer(driver.request(step.worker, step.set, step.times))
        to_all = step.to is None and scenario.workers > 1
        wanted = "-" if step.answer is None else f"{'all' if to_all else step.to or 0} {step.answer}"
        assert found == wanted, step
    assert state_of(switch) == (scenario.bitmaps, scenario.missing, scenario.sums)


@pytest.mark.parametrize("variant", VARIANTS)
def test_different_ports(variant: Variant) -> None:
    """A slot may use other ports: the reply has them the other way round."""
    driver = Driver(switch_of(2, variant), 2)
    assert [driver.answer(driver.request(w, 0, 1)) for w in (0, 1)] == ["-", "all 2"]
    ports = (0x4001, 0xBEE1)
    assert [driver.answer(driver.request(w, 0, 1, slot=1, ports=ports)) for w in (0, 1)] == ["-", "all 2"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_packet_through_a_foreign_port_is_answered_there(variant: Variant) -> None:
    driver = Driver(switch_of(3, variant), 3)
    for worker in range(3):
        request = driver.request(worker, 0, 1)
        driver.answer(request)
    assert driver.answer(request, port=0) == "2 3"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("port", range(4))
def test_ordinary_traffic_passes_unchanged(variant: Variant, port: int) -> None:
    switch = switch_of(2, variant)
    one, two = worker_address(0), worker_address(1)
    payload = Request(0, 0, 0, ramp(1)).body()
    frames = [
        ipv4_frame((HOST, OTHER), (5, 7), b"any"),
        ipv4_frame(
            (HOST, OTHER), (5, 0xBEE0), payload
        ),  # to the port of the aggregation, but not to the switch
        ipv4_frame((one, OTHER), (0x4000, 0xBEE0), payload),
        ipv4_frame((one, OTHER), (0x4000, 0xBEE0), payload[:40]),
        ipv4_frame((one, OTHER), (0x4000, 0xBEE0), b""),
        ipv4_frame((one, OTHER), (5, 7), b"", protocol=6),
        ipv4_frame((one, OTHER), (5, 7), b"options", first=0x46),
        ipv4_frame((one, OTHER), (5, 0xBEE0), payload, fragment=0x2000),
        ipv4_frame((one, OTHER), (5, 0xBEE0), payload, fragment=0x0001),
        ipv4_frame((one, OTHER), (5, 7), b"", checksum=1),
        ipv4_frame((one, OTHER), (5, 7), b"", ethertype=0x86DD),
        ipv4_frame((one, OTHER), (5, 7), b"", ethertype=0x8100),
        ipv4_frame((one, OTHER), (5, 7), b"")[:20],
        ipv4_frame((one, OTHER), (5, 7), b"")[:14],
    ]
    for frame in frames:
        assert switch.receive(port, frame) == [(3, frame)]
    assert switch.receive(port, ipv4_frame((OTHER, two), (5, 7), b"x"))[0][0] == 1
    unknown = ipv4_frame((one, (bytes.fromhex("020000000999"), OTHER[1])), (5, 7), b"x")
    assert switch.receive(port, unknown) == [(out, unknown) for out in range(4) if out != port]
    assert switch.receive(port, b"short") == []
    assert counts(switch) == {}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("values", [64, 256])
def test_sums_wrap_and_exponents_are_the_greatest(variant: Variant, values: int) -> None:
    switch = switch_of(3, variant, values)
    most = (2**31 - 1,) * values
    for worker, exponents in enumerate(((-3, 7), (5, -128), (-128, 127))):
        request = Request(worker, 2, 0, most, id=2, exponents=exponents)
        sent = switch.receive(worker, request.frame())
    wrapped = (2**31 - 3,) * values
    assert sent == [(each, reply_frame(request, each, wrapped, (5, 127))) for each in range(3)]
    again = Request(0, 2, 0, most, id=2, exponents=(-3, 7))
    assert switch.receive(0, again.frame()) == [(0, reply_frame(again, 0, wrapped, (5, 127)))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_refused_changes_nothing(variant: Variant) -> None:
    switch = switch_of(2, variant)
    good = Request(0, 0, 0, ramp(1))
    switch.receive(0, good.frame())
    before = (repr(switch.registers), counts(switch))
    outsider = ipv4_frame((HOST, (SWITCH_MAC, SWITCH_IPV4)), (0x4000, 0xBEE0), good.body())
    ends = (worker_address(0), (SWITCH_MAC, SWITCH_IPV4))
    wrong = {
        "unknown_sender": [outsider, ipv4_frame(((ends[0][0], HOST[1]), ends[1]), good.ports, good.body())],
        "malformed": [
            *(good.frame()[:-cut] for cut in (1, 2, 4, 100, 256, 257, 265, 266)),
            good.frame() + b"\0",
            good.frame(total_length=293),
            good.frame(udp_length=20),
            good.frame(checksum=7),
            ipv4_frame(ends, good.ports, b"\x10" + good.body()[1:]),
            ipv4_frame(ends, good.ports, b"\x12" + good.body()[1:]),
            ipv4_frame(ends, good.ports, b"\x21" + good.body()[1:]),
        ],
        "out_of_range": [Request(0, SLOTS, 0, ramp(1)).frame(), Request(0, 0x3FFF, 1, ramp(1)).frame()],
    }
    if variant == "guarded":
        wrong["unknown_sender"].append(Request(0, 0, 0, ramp(1), job=9).frame())
        wrong["out_of_range"].append(Request(0, 0, 0, ramp(1), pool_bits=0x4000).frame())
    for frames in wrong.values():
        for frame in frames:
            assert switch.receive(0, frame) == []
    expected = {**before[1], **{reason: len(frames) for reason, frames in wrong.items()}}
    expected["received"] = 1 + sum(len(frames) for frames in wrong.values())
    assert counts(switch) == expected
    assert repr(switch.registers) == before[0]
    reply = reply_frame(
        good, 0, ramp(1)
    )  # sent to the switch, its sender is unknown, or it goes to its receiver
    assert [port for port, _ in switch.receive(1, reply)] == [0]


class TestLateDuplicates:
    """A packet that was long on its way: the published program takes it for a new one, the guarded one does not."""

    def run(self, variant: Variant, steps: list[tuple[int, int, int, int]]) -> list[str]:
        driver = Driver(switch_of(2, variant), 2)
        return [
            driver.answer(Request(worker, 0, of_set, ramp(times), id=number * SLOTS))
            for worker, of_set, times, number in steps
        ]

    def test_while_the_other_set_is_open(self) -> None:
        steps = [(0, 0, 1, 0), (1, 0, 1, 0), (0, 1, 5, 1), (0, 0, 1, 0), (1, 1, 5, 1), (0, 1, 5, 1)]
        assert self.run("guarded", steps) == ["-", "all 2", "-", "-", "all 10", "0 10"]
        steps = [
            *steps[:3],
            steps[3],
            (0, 1, 5, 1),
            (1, 1, 5, 1),
        ]  # the loss of its bit lets worker 0 count twice
        assert "all 10" not in self.run("published", steps)
        assert self.run("guarded", steps)[-1] == "all 10"

    def test_when_both_sets_are_complete(self) -> None:
        steps = [(w, s, 1, s) for s in (0, 1) for w in (0, 1)]
        steps += [(0, 0, 1, 0), (0, 0, 7, 2), (1, 0, 7, 2)]
        assert self.run("published", steps)[-1] == "all 8"
        assert self.run("guarded", steps) == ["-", "all 2", "-", "all 2", "-", "-", "all 14"]

    def test_ids_wrap_around(self) -> None:
        first = 2**32 - 2 * SLOTS
        switch = switch_of(2, "guarded", first_packet=first)
        driver = Driver(switch, 2)
        for use in range(6):
            number = (first + use * SLOTS) % 2**32
            for worker in (0, 1):
                request = Request(worker, 0, use % 2, ramp(use + 1), id=number)
                found = driver.answer(request)
            assert found == f"all {2 * use + 2}"
            for ago in (1, 2, 3):  # of the use before the copy is there still, but its workers have gone on
                late = Request(0, 0, (use - ago) % 2, ramp(1), id=(number - ago * SLOTS) % 2**32)
                assert driver.answer(late) == "-"
            early = Request(0, 0, use % 2, ramp(1), id=(number + 2 * SLOTS) % 2**32)
            assert driver.answer(early) == "-"
        assert counts(switch)["stale"] == 18
        assert counts(switch)["future"] == 6

    def test_a_restart_needs_its_own_first_packet(self) -> None:
        """Workers that begin again from the start are refused; with new entries and registers they are served."""
        driver = Driver(switch_of(2, "guarded"), 2)
        for use in range(3):
            for worker in (0, 1):
                driver.answer(Request(worker, 0, use % 2, ramp(1), id=use * SLOTS))
        assert driver.answer(Request(0, 0, 0, ramp(9), id=0)) == "-"
        assert driver.answer(Request(1, 0, 0, ramp(9), id=0)) == "-"

    def test_more_workers_than_bits(self) -> None:
        with pytest.raises(InputError, match=r"expected `workers` of 1 .. 32, found 33"):
            export_p4(workers=33)


@pytest.mark.parametrize("workers", range(1, 33))
@pytest.mark.spread(3)
def test_programs_for_any_number_of_workers(workers: int) -> None:
    """All workers together make a sum, and no fewer."""
    switch = interpreter_of(export_p4(workers=workers, slots=4))
    for worker in range(workers):
        request = Request(worker, 3, 0, ramp(1), id=3)
        sent = switch.receive(worker, request.frame())
        assert (len(sent) == workers) == (worker == workers - 1)
        assert len(sent) in (0, workers)
