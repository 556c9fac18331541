"""ATP's P4 program on frames: what it sends and counts is what the native switch does, for any packets of two jobs."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from typing import Any

import pytest

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.p4.atp import COUNTS
from coppice.innetwork.p4.generator import default_rack, export_p4
from innetwork.frames import SWITCH_IPV4, SWITCH_MAC, ipv4_frame, worker_address
from reference.p4.control_plane import interpreter_of, load_commands
from reference.p4.device import P4Switch

WORKERS, SLOTS, JOBS = 3, 4, (7, 0x1234)
SERVER = (bytes.fromhex("020000000200"), bytes((10, 0, 0, 200)))
SWITCH = (SWITCH_MAC, SWITCH_IPV4)
EVERYBODY = (1 << WORKERS) - 1
ACK, COLLISION, RESEND, CONGESTED, OVERFLOW = 1, 2, 4, 8, 0x80


@dataclass(frozen=True)
class AtpPacket:
    """A packet of ATP, put together without any code of the package."""

    bitmap: int
    application: int
    chunk: int
    slot: int
    values: tuple[int, ...]
    flags: int = 0
    workers: int = WORKERS
    next: int = 0
    length: int = 62
    sequence: int | None = None

    def body(self) -> bytes:
        sequence = self.chunk & 0xFFFF if self.sequence is None else self.sequence
        head = struct.pack(
            ">IBBHHHH",
            self.bitmap,
            self.workers,
            self.flags,
            self.application,
            sequence,
            self.slot,
            self.next,
        )
        return head + struct.pack(">62iQI", *self.values, self.chunk, self.length)


def program_of_two_jobs() -> P4Switch:
    made = export_p4(workers=WORKERS, slots=SLOTS, system="atp", job=JOBS[0])
    switch = interpreter_of(made)
    second = export_p4(workers=WORKERS, slots=SLOTS, system="atp", job=JOBS[1]).entries.splitlines()
    # The second job has the number 1 in the switch.
    load_commands(
        switch, "\n".join(line[:-1] + "1" for line in second if "SwitchIngress.sender serve" in line)
    )
    return switch


def native_of_two_jobs() -> _switch.Aggregator:
    native = _switch.aggregation_switch("atp", SLOTS)
    for job in JOBS:
        native.open(
            _switch.AggregationJob(
                id=job,
                workers=WORKERS,
                slots=SLOTS,
                values=62,
                window=SLOTS,
                element=_switch.Element.int32,
                timeout_ns=1_000_000,
                give_up_timeout_ns=10**12,
                settings={},
            ),
            list(range(WORKERS)),
            WORKERS,
        )
    return native


def sent_by(switch: P4Switch, port: int, body: bytes) -> list[tuple[int, bytes]]:
    """Ports and bodies of what the program sends for a packet; its frames are looked at on the way."""
    source = SERVER if port == WORKERS else worker_address(port)
    to = SWITCH if port == WORKERS else SERVER
    found = []
    for out, frame in switch.receive(port, ipv4_frame((source, to), (0x4000, 0xBEF0), body)):
        receiver = SERVER if out == WORKERS else worker_address(out)
        changed = frame[40:42] == b"\0\0"
        assert frame == ipv4_frame((source, receiver), (0x4000, 0xBEF0), frame[42:], udp_checksum=not changed)
        found.append((out, frame[42:]))
    return sorted(found)


def some_packet(rng: random.Random, newest: dict[int, int]) -> tuple[int, AtpPacket]:
    """Where a packet comes from, and the packet: mostly such as are due, with all that may go wrong."""
    job = rng.choice(JOBS)
    chunk = max(0, newest[job] + rng.choice([-200, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1]))
    if rng.random() < 0.02:
        chunk += rng.choice([100, 300])
    newest[job] = max(newest[job], chunk if rng.random() < 0.9 else chunk + 1)
    ends = (-(2**31), 2**31 - 1)
    values = tuple(rng.choice([rng.randrange(-(2**31), 2**31), rng.randrange(99), *ends]) for _ in range(62))
    port = rng.choice([*range(WORKERS)] * 3 + [WORKERS])
    packet = AtpPacket(1 << port, job, chunk, chunk % SLOTS if rng.random() < 0.9 else 0, values)
    if port == WORKERS:
        flags, bitmap = rng.choice(
            [(ACK, EVERYBODY)] * 4 + [(RESEND, 2), (RESEND | OVERFLOW, EVERYBODY), (ACK, 5)]
        )
        packet = replace(packet, flags=flags, bitmap=bitmap, next=rng.randrange(SLOTS))
    else:
        flags = rng.choice([0] * 12 + [RESEND] * 3 + [CONGESTED, COLLISION, RESEND | OVERFLOW, RESEND | ACK])
        packet = replace(packet, flags=flags)
    if rng.random() < 0.1:
        wrong: list[dict[str, Any]] = [
            {"bitmap": 0},
            {"bitmap": 1 << WORKERS},
            {"bitmap": EVERYBODY},
            {"workers": 0},
            {"workers": 33},
            {"workers": WORKERS + 1},
            {"slot": SLOTS},
            {"next": SLOTS},
            {"length": 0},
            {"length": 63},
            {"length": 5},
            {"application": 8},
            {"flags": 0x20},
            {"flags": 0x10},
            {"sequence": (chunk + 1) & 0xFFFF},
        ]
        packet = replace(packet, **rng.choice(wrong))
    return port, packet


@pytest.mark.parametrize("seed", range(4))
def test_program_is_the_native_switch(seed: int) -> None:
    rng = random.Random(seed)
    native, switch = native_of_two_jobs(), program_of_two_jobs()
    newest = dict.fromkeys(JOBS, 0)
    for _ in range(400):
        port, packet = some_packet(rng, newest)
        body = packet.body()
        wanted = sorted((to, out) for receivers, out in native.receive(port, body, 0) for to in receivers)
        assert sent_by(switch, port, body) == wanted, packet
    counted = native.counters()
    found = dict(zip(COUNTS, switch.counters["SwitchIngress.counts"], strict=True))
    assert found == {name: counted[name] for name in COUNTS}
    assert all(found[name] > 0 for name in COUNTS)


@pytest.mark.parametrize(("chunk", "known"), [(44, True), (45, False), (300, True)])
def test_answers_that_are_remembered(chunk: int, known: bool) -> None:
    """Of the last 256 chunks those that were answered are known; all before them count as answered."""
    native, switch = native_of_two_jobs(), program_of_two_jobs()
    answer = AtpPacket(EVERYBODY, JOBS[0], 300, 0, (1,) * 62, flags=ACK).body()
    late = AtpPacket(1, JOBS[0], chunk, 0, (1,) * 62).body()
    for port, body in ((WORKERS, answer), (0, late)):
        native.receive(port, body, 0)
        sent_by(switch, port, body)
    counts = dict(zip(COUNTS, switch.counters["SwitchIngress.counts"], strict=True))
    assert counts["stale"] == native.counters()["stale"] == known


def test_frames_that_are_no_packets() -> None:
    """Short and long ones are counted and dropped; other traffic passes as it is."""
    switch = program_of_two_jobs()
    body = AtpPacket(1, JOBS[0], 0, 0, (1,) * 62).body()
    ends = (worker_address(0), SERVER)
    for wrong in (body[:-1], body + b"\0", body[:20], b""):
        assert switch.receive(0, ipv4_frame(ends, (1, 0xBEF0), wrong)) == []
    for other in (ipv4_frame(ends, (1, 0xBEEF), body), ipv4_frame(ends, (1, 0xBEF0), body, fragment=0x2000)):
        assert switch.receive(0, other) == [(WORKERS, other)]
    # A worker that sends as the server, or to the switch, is not heard.
    for source, to in ((worker_address(0), SWITCH), (SERVER, worker_address(1))):
        assert switch.receive(0, ipv4_frame((source, to), (1, 0xBEF0), body)) == []
    counts = dict(zip(COUNTS, switch.counters["SwitchIngress.counts"], strict=True))
    assert (counts["malformed"], counts["unknown_sender"], counts["received"]) == (4, 2, 6)


def test_crowded_ports_mark_packets() -> None:
    """A frame that waited behind 1,000 cells leaves with the mark of congestion."""
    switch = program_of_two_jobs()
    body = AtpPacket(1, JOBS[0], 0, 0, (1,) * 62, flags=RESEND).body()
    depth = switch.program.standard.members["enq_qdepth"]
    switch.program.initial[getattr(depth, "cell")] = 1000  # noqa: B009 (either kind of place)
    assert sent_by(switch, 0, body) == [(WORKERS, body[:5] + bytes([RESEND | CONGESTED]) + body[6:])]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": 64}, "expected `values` of 62, found 64"),
        ({"slots": 65537}, "expected `slots` of 1 .. 65,536"),
        ({"job": 65536}, "expected `job` of 0 .. 65,535"),
        ({"variant": "published"}, "`variant` and `first_packet` are SwitchML's"),
        ({"rack": default_rack(2)}, "expected a server in the rack, found none"),
    ],
)
def test_what_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        export_p4(system="atp", **options)  # type: ignore[arg-type]
