"""The gate of a switch that runs: who may send what, over real sockets."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from coppice import _switch
from coppice.innetwork.serving import SwitchServer
from support.switch_packets import (
    HEADER,
    STATUS,
    RawWorker,
    Scenario,
    sealed,
    siphash,
    switchml_packet,
    times_of,
)


@pytest.fixture
def switch() -> Iterator[SwitchServer]:
    with SwitchServer(slots=64, secret=b"sesame") as running:
        yield running


def gate_counts(asking: RawWorker) -> dict[str, int]:
    """What the gate counted up to now: asked by packet, so that all before it has been counted."""
    request = asking.seal("status", struct.pack(">Q", 5).ljust(STATUS, b"\0"), asking.control)
    asking.socket.send(request)
    kind, body = asking.next()
    while kind != "report":
        kind, body = asking.next()
    assert len(body) <= len(request)
    length = struct.unpack(">H", body[8:10])[0]
    import json

    found: dict[str, int] = json.loads(body[10 : 10 + length])["gate"]
    return found


def test_siphash_of_the_core_is_the_published_one() -> None:
    key, message = (0x0706050403020100, 0x0F0E0D0C0B0A0908), bytes(range(15))
    assert siphash(key, message) == _switch.siphash(*key, message) == 0xA129CA6149BE45E5
    choice = random.Random(1)
    for length in range(40):
        data = choice.randbytes(length)
        assert siphash(key, data) == _switch.siphash(*key, data)


def test_a_packet_by_hand_is_a_packet(switch: SwitchServer) -> None:
    job = Scenario(switch.port, 2, secret=b"sesame")
    assert job.say(0, 0, 1) == "-"
    assert job.say(1, 0, 1) == "all 2"
    job.close()


def test_hostile_packets_change_nothing_and_get_no_answer(switch: SwitchServer) -> None:
    job = Scenario(switch.port, 2, secret=b"sesame")
    outsider = RawWorker(switch.port, 0, 2, secret=b"sesame")
    first, second = job.workers
    assert job.say(0, 0, 1) == "-"
    good = second.data(switchml_packet(slot=0, which=0, packet=0, times=5))
    fields = {"job": 1, "epoch": 1, "worker": 1, "protocol": "switchml"}
    body = good[HEADER:]
    assert second.key is not None

    def other(**changed: object) -> bytes:
        return sealed("data", body, second.key, **{**fields, **changed})  # type: ignore[arg-type]

    hostile: list[tuple[RawWorker, bytes, str]] = [
        (outsider, good, "unknown_sender"),
        (first, good, "unknown_sender"),
        (second, other(job=2), "unknown_sender"),
        (second, other(epoch=2), "bad_epoch"),
        (second, other(worker=2), "out_of_range"),
        (second, other(worker=0), "unknown_sender"),
        (second, other(protocol="atp"), "malformed"),
        (second, good + b"\0", "malformed"),
        (second, bytes(9500), "malformed"),
        (second, bytes([good[0] ^ 1]) + good[1:], "bad_tag"),
        (second, good[:-1] + bytes([good[-1] ^ 1]), "bad_tag"),
        (second, sealed("data", body, second.control, **fields), "bad_tag"),  # type: ignore[arg-type]
        (second, sealed("result", body, second.key, **fields), "malformed"),  # type: ignore[arg-type]
    ]
    hostile += [(second, packet, "malformed") for packet in first.seen if packet[11] != 6]
    hostile += [(second, good[:length], "malformed") for length in range(len(good))]
    for sender, packet, why in hostile:
        before = gate_counts(outsider).get(why, 0)
        sender.socket.send(packet)
        assert sender is outsider or sender.results() == []
        assert gate_counts(outsider).get(why, 0) == before + 1, why
    assert job.say(1, 0, 1) == "all 2"
    outsider.close()
    job.close()


def test_malformed_payloads_reach_the_protocol_machine(switch: SwitchServer) -> None:
    job = Scenario(switch.port, 2, secret=b"sesame")
    worker = job.workers[0]
    right = switchml_packet(slot=0, which=0, packet=0, times=1)
    lies = [
        right[:-4],
        right + bytes(4),
        b"\x20" + right[1:],  # type
        b"\x12" + right[1:],  # size
        right[:1] + b"\x02" + right[2:],  # job
        switchml_packet(slot=4, which=0, packet=4, times=1),
        switchml_packet(slot=8192, which=0, packet=8192, times=1),
        switchml_packet(slot=0x4000, which=0, packet=0, times=1),  # bit 14
        switchml_packet(slot=0, which=0, packet=99, times=1),
        b"",
    ]
    for lie in lies:
        worker.push(worker.data(lie))
        assert worker.results() == []
    assert job.say(0, 0, 1) == "-"
    assert job.say(1, 0, 1) == "all 2"
    job.close()


def test_a_switch_without_the_secret_is_silent(switch: SwitchServer) -> None:
    outsider, friend = RawWorker(switch.port, 0, 1), RawWorker(switch.port, 0, 1, secret=b"sesame")
    for _ in range(3):
        outsider.socket.send(outsider.join_packet())
    assert gate_counts(friend)["bad_tag"] == 3
    outsider.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        outsider.socket.recv(1000)
    outsider.close()
    friend.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": 33}, "the switch cannot serve|expected"),
        ({"workers": 3, "worker": 3}, "expected a worker of 0 to 2, found 3"),
        ({"slots": 65}, "a job may have 64 slots, found 65"),
        ({"slots": 4, "window": 5}, "window"),
        ({"values": 2049}, "values"),
        ({"protocol": "switchml", "threads": 2}, "1 threads"),
    ],
)
def test_jobs_that_cannot_be_are_refused_in_words(change: dict[str, int], words: str) -> None:
    import re

    with SwitchServer(slots=64) as switch:
        options = {"worker": 0, "workers": 1, **change}
        count = options["workers"] if options["workers"] == 33 else 1
        made = [
            RawWorker(switch.port, **{**options, "worker": options["worker"] + each})  # type: ignore[arg-type]
            for each in range(count)
        ]
        said = [each.join() for each in made]
        assert said[-1] == "refused"
        assert re.search(words, made[-1].refusal)
        for each in made:
            each.close()
        # What was refused holds nothing.
        job = Scenario(switch.port, 2, job=9, slots=64, window=64)
        job.say(0, 0, 1)
        assert job.say(1, 0, 1) == "all 2"
        job.close()


def test_joining_again_and_again_and_from_elsewhere(switch: SwitchServer) -> None:
    first, second = (RawWorker(switch.port, each, 2, secret=b"sesame") for each in range(2))
    assert [first.join() for _ in range(3)] == ["waiting"] * 3
    thief = RawWorker(switch.port, 0, 2, secret=b"sesame", nonce=78)
    assert thief.join() == "refused"
    assert "has joined already" in thief.refusal
    assert second.join() == "ready"
    first.ready()
    for packet in first.said:  # all that was said, once more
        first.socket.send(packet)
        first.understand(*first.next())
    thief.socket.send(first.said[-1])  # replayed by somebody else: asked to show where it is, or refused
    assert thief.next()[0] in ("challenge", "refused")
    first.push(first.data(switchml_packet(slot=0, which=0, packet=0, times=1)))
    second.push(second.data(switchml_packet(slot=0, which=0, packet=0, times=1)))
    assert [times_of(each) for each in second.results()] == [2]
    for each in (first, second, thief):
        each.close()


def test_a_restart_with_a_higher_epoch_never_gives_a_stale_sum(switch: SwitchServer) -> None:
    """C7: the job is started again without a word to the switch."""
    old = Scenario(switch.port, 2, secret=b"sesame")
    old.say(0, 0, 9)
    assert old.say(1, 0, 9) == "all 18"
    same = RawWorker(switch.port, 0, 2, secret=b"sesame", nonce=5)
    assert same.join() == "refused"
    new = Scenario(switch.port, 2, secret=b"sesame", epoch=2, nonce=6)
    assert new.say(0, 0, 1) == "-"
    late = old.workers[1]
    late.push(late.data(switchml_packet(slot=0, which=0, packet=0, times=9)))  # of the old session
    assert late.results() == []
    assert late.state == 0
    assert new.say(1, 0, 1) == "all 2"
    assert same.join() == "refused"
    assert "is over" in same.refusal or "is in epoch 2" in same.refusal
    for each in (old, new):
        each.close()
    same.close()


def test_noise_between_packets_leaves_sums_exact(switch: SwitchServer) -> None:
    """C15 over sockets; cpp/udp/gate.test.cc has the millions."""
    job = Scenario(switch.port, 2, secret=b"sesame")
    choice = random.Random(3)
    noise = RawWorker(switch.port, 0, 2, secret=b"sesame")
    for turn in range(40):
        for _ in range(100):
            sender = choice.choice([noise, *job.workers])
            packet = bytearray(choice.choice(job.workers[0].said + job.workers[0].seen))
            for _ in range(choice.randint(1, 4)):
                packet[choice.randrange(len(packet))] ^= choice.randint(1, 255)
            if choice.random() < 0.3:
                packet = packet[: choice.randrange(len(packet))]
            sender.socket.send(packet)
        for each in job.workers:
            assert each.results() == []
        assert job.say(0, turn % 2, turn + 1) == "-"
        assert job.say(1, turn % 2, 1) == f"all {turn + 2}"
    noise.close()
    job.close()
