"""The XDP program, run by the kernel on frames without any interface: as the native switch decides."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.innetwork.p4.generator import export_p4
from coppice.innetwork.serving.settings import SWITCHML_COUNTS, with_former_names
from coppice.innetwork.xdp import switch as switch_module
from coppice.innetwork.xdp.switch import XdpHosts, XdpSwitch, XdpWorker, read_xdp_hosts, serve_xdp
from coppice.innetwork.xdp.switch import run_on_frame as run_program
from innetwork.frames import (
    SWITCH_IPV4,
    SWITCH_MAC,
    Request,
    checksum,
    ipv4_frame,
    reply_frame,
    worker_address,
)
from innetwork.scenarios import SCENARIOS, Scenario
from innetwork.test_p4_streams import as_frames, native_switch, values_of
from reference.p4.control_plane import interpreter_of

SLOTS = 16
DROP, PASS, BACK, ELSEWHERE = 1, 2, 3, 4


@contextmanager
def served(
    workers: int, *, slots: int = SLOTS, values: int = 64, job: int = 0, first_packet: int = 0
) -> Iterator[XdpSwitch]:
    """A switch that is loaded, and attached to nothing."""
    if os.geteuid() != 0 or shutil.which("clang") is None:
        pytest.skip("needs root and clang")
    hosts = XdpHosts(
        "10.0.0.254",
        tuple(XdpWorker(f"02:00:00:00:01:{w:02x}", f"10.0.0.{w + 1}", "lo") for w in range(workers)),
    )
    try:
        switch = serve_xdp(
            hosts, slots=slots, values=values, job=job, first_packet=first_packet, attach=False
        )
    except InputError as error:
        pytest.skip(str(error))
    with switch:
        yield switch


def answers(switch: XdpSwitch, worker: int, frame: bytes) -> list[tuple[int, bytes]] | None:
    """What goes to whom; None where the frame goes on to the kernel as it is."""
    done = run_program(switch.programs[0], frame)
    if done.action == PASS:
        assert done.frame == frame
        return None
    if done.action == BACK:
        return [(worker, done.frame)]
    if done.action != ELSEWHERE:
        assert done.action == DROP
        return []
    # The programs that address copies run in no other place; test_xdp_network.py sees what they make.
    found = []
    for each in range(len(switch.programs) - 1):
        mac, address = worker_address(each)
        header = done.frame[14:24] + bytes(2) + done.frame[26:30] + address
        header = header[:10] + checksum(header).to_bytes(2, "big") + header[12:]
        found.append((each, mac + done.frame[6:14] + header + done.frame[34:]))
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_published_scenarios(scenario: Scenario) -> None:
    last: dict[int, tuple[int, int, int]] = {}
    with served(scenario.workers) as switch:
        for step in scenario.steps:
            before = last.get(step.worker)
            same = before is not None and before[:2] == (step.set, step.times)
            number = 0 if before is None else before[2] + (0 if same else SLOTS)
            last[step.worker] = (step.set, step.times, number)
            request = Request(step.worker, 0, step.set, tuple(step.times * i for i in range(64)), id=number)
            sums = tuple((step.answer or 0) * i for i in range(64))
            to = [] if step.answer is None else range(scenario.workers) if step.to is None else [step.to]
            wanted = [(each, reply_frame(request, each, sums)) for each in to]
            assert answers(switch, step.worker, request.frame()) == wanted, step


@pytest.mark.parametrize(("seed", "values"), [(0, 64), (1, 64), (2, 256), (3, 64)])
def test_it_is_the_native_switch(seed: int, values: int) -> None:
    """Packets near those that are due, in any order: every reply and every count is the same."""
    rng = random.Random(seed)
    workers, first, slots = rng.choice([1, 2, 3, 32]), rng.choice([0, 5, 2**32 - 4]), 3
    native = native_switch(workers, slots, values, first)
    round_of = [0] * slots
    with served(workers, slots=slots, values=values, job=7, first_packet=first) as switch:
        for _ in range(1500):
            worker, slot = rng.randrange(workers), rng.randrange(slots)
            use = max(0, round_of[slot] + rng.choice([-3, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1, 1, 2]))
            packet = Request(
                worker,
                slot,
                use % 2 if rng.random() < 0.9 else rng.randrange(2),
                values_of(rng, values),
                id=(first + slot + use * slots) % 2**32,
                exponents=(rng.randrange(-128, 128), rng.randrange(-128, 128)),
                job=7 if rng.random() < 0.95 else 8,
            )
            wanted = as_frames(native.receive(worker, packet.body(), 0), values)
            assert answers(switch, worker, packet.frame()) == wanted
            if len(wanted) == workers:
                round_of[slot] = use + 1
        counted = native.counters()
        assert switch.counters() == with_former_names({name: counted[name] for name in SWITCHML_COUNTS})
    assert counted["completed"] >= 3


def test_what_is_refused_and_what_is_not_for_the_switch() -> None:
    host = (bytes.fromhex("020000000900"), bytes((192, 168, 1, 9)))
    ends = (worker_address(0), (SWITCH_MAC, SWITCH_IPV4))
    good = Request(0, 0, 0, tuple(range(64)))
    wrong = {
        "unknown_sender": [
            ipv4_frame((host, ends[1]), good.ports, good.body()),
            ipv4_frame(((ends[0][0], host[1]), ends[1]), good.ports, good.body()),
            Request(0, 0, 0, good.values, job=9).frame(),
        ],
        "malformed": [
            *(good.frame()[:-cut] for cut in (1, 2, 4, 100, 256, 257, 265, 266)),
            good.frame() + b"\0",
            good.frame(total_length=293),
            good.frame(udp_length=20),
            good.frame(checksum=7),
            *(
                ipv4_frame(ends, good.ports, bytes((kind,)) + good.body()[1:])
                for kind in (0x10, 0x12, 0x13, 0x21)
            ),
        ],
        "out_of_range": [
            Request(0, SLOTS, 0, good.values).frame(),
            Request(0, 0x3FFF, 1, good.values).frame(),
            Request(0, 0, 0, good.values, pool_bits=0x4000).frame(),
        ],
    }
    ordinary = [
        ipv4_frame((ends[0], host), (0x4000, 0xBEE0), good.body()),
        ipv4_frame(ends, (5, 7), b"any"),
        ipv4_frame(ends, (5, 0xBEF0), good.body()),
        ipv4_frame(ends, good.ports, good.body(), first=0x46),
        ipv4_frame(ends, good.ports, good.body(), fragment=0x2000),
        ipv4_frame(ends, good.ports, good.body(), fragment=0x0001),
        ipv4_frame(ends, good.ports, good.body(), protocol=6),
        ipv4_frame(ends, good.ports, good.body(), ethertype=0x86DD),
        good.frame()[:30],
    ]
    with served(2) as switch:
        assert answers(switch, 0, good.frame()) == []
        for frame in (each for frames in wrong.values() for each in frames):
            assert answers(switch, 0, frame) == []
        for frame in ordinary:
            assert answers(switch, 0, frame) is None
        wanted = dict.fromkeys(SWITCHML_COUNTS, 0) | {reason: len(frames) for reason, frames in wrong.items()}
        wanted |= {"received": 1 + sum(map(len, wrong.values())), "aggregated": 1}
        assert switch.counters() == with_former_names(wanted)
        other = Request(1, 0, 0, good.values)
        sums = tuple(2 * value for value in good.values)
        assert answers(switch, 1, other.frame()) == [
            (each, reply_frame(other, each, sums)) for each in (0, 1)
        ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 0}, "expected `slots` of 1 .. 8,192, found 0"),
        ({"values": 128}, "expected `values` of 64 or 256, found 128"),
        ({"job": 256}, "expected `job` of 0 .. 255"),
        ({"workers": ()}, "expected 1 to 32 workers, found 0"),
        ({"workers": (XdpWorker("02:00:00:00:01:00", "10.0.0.300", "lo"),)}, "Octet 300"),
        ({"workers": (XdpWorker("02:00:00:00:01:00", "10.0.0.254", "lo"),)}, "found one twice"),
    ],
)
def test_what_is_asked_for_wrongly(changes: dict[str, object], words: str) -> None:
    workers = changes.pop("workers", (XdpWorker("02:00:00:00:01:00", "10.0.0.1", "lo"),))
    with pytest.raises(InputError, match=words):
        serve_xdp(XdpHosts("10.0.0.254", workers), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_p4_program_on_broken_frames(seed: int) -> None:
    """Two programs that share no code, on frames with changed bytes and lengths among good ones: the same replies and
    the same reasons."""
    rng = random.Random(seed)
    p4 = interpreter_of(export_p4(workers=2, slots=4))
    with served(2, slots=4) as switch:
        for number in range(300):
            slot, use = number % 4, number // 4
            for worker in (0, 1):
                values = values_of(rng)
                request = Request(worker, slot, use % 2, values, id=number)
                for _ in range(rng.randrange(3)):
                    frame = bytearray(request.frame())
                    for _ in range(rng.randrange(1, 4)):
                        frame[rng.randrange(6, 52)] ^= 1 << rng.randrange(8)
                    broken = bytes(frame)[: rng.choice([len(frame)] * 4 + [rng.randrange(60, 310)])]
                    sent = p4.receive(worker, broken)
                    done = answers(switch, worker, broken)
                    if done is None:  # P4 forwards it, XDP leaves that to the kernel
                        assert all(out == broken for _, out in sent)
                    else:
                        assert done == sent
                assert answers(switch, worker, request.frame()) == p4.receive(worker, request.frame())
        counts = zip(SWITCHML_COUNTS, p4.counters["SwitchIngress.counts"], strict=True)
        assert switch.counters() == with_former_names(dict(counts))
        counted = switch.counters()
        assert counted["completed"] > 250
        assert (
            min(
                counted[reason]
                for reason in ("malformed", "unknown_sender", "out_of_range", "stale", "future")
            )
            > 0
        )


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    switch_module._compiled.cache_clear()
    with pytest.raises(InputError, match=r"needs clang: install it, .*\(Debian: clang libbpf-dev\)"):
        serve_xdp(XdpHosts("10.0.0.254", (XdpWorker("02:00:00:00:01:00", "10.0.0.1", "lo"),)))


def test_without_an_interface() -> None:
    with served(1):
        pass  # skips where nothing can be loaded
    with pytest.raises(InputError, match="there is no interface 'nowhere0' here"):
        serve_xdp(XdpHosts("10.0.0.254", (XdpWorker("02:00:00:00:01:00", "10.0.0.1", "nowhere0"),)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Input data was truncated: write an object with ipv4 and workers"),
        ('{"ipv4": "10.0.0.1"}', "missing required field `workers`"),
        ('{"ipv4": "10.0.0.1", "workers": [{"mac": "x"}]}', r"`ipv4` - at `\$.workers\[0\]`"),
    ],
)
def test_hosts_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_xdp_hosts(file)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processors_that_meet_in_a_slot() -> None:
    """Two processes, a worker each, send to the same slot as nearly together as they can, 1,500 times: every sum is
    completed once and is exact. (Without the lock of a slot some hundred are not.)"""
    slots, values = 1500, 256
    made = [
        [
            Request(worker, slot, 0, ((worker + 1) * (slot + 1),) * values, id=slot).frame()
            for slot in range(slots)
        ]
        for worker in (0, 1)
    ]
    fork = multiprocessing.get_context("fork")
    places, found = mmap.mmap(-1, 16), fork.SimpleQueue()
    with served(2, slots=slots, values=values) as switch:

        def run(worker: int) -> None:
            own, other = 8 * worker, 8 * (1 - worker)
            sums = []
            for slot, frame in enumerate(made[worker]):
                places[own : own + 8] = slot.to_bytes(8, "little")
                patience = time.monotonic() + 0.0005  # the other may have no processor now
                while (
                    int.from_bytes(places[other : other + 8], "little") < slot and time.monotonic() < patience
                ):
                    pass
                done = run_program(switch.programs[0], frame)
                sums.append(done.frame[52:] if done.action == ELSEWHERE else b"")
            found.put(sums)

        workers = [fork.Process(target=run, args=(worker,)) for worker in (0, 1)]
        for each in workers:
            each.start()
        one, two = found.get(), found.get()
        for each in workers:
            each.join()
        wanted = [(3 * (slot + 1)).to_bytes(4, "big") * values for slot in range(slots)]
        assert [a + b for a, b in zip(one, two, strict=True)] == wanted
        assert switch.counters()["completed"] == slots
