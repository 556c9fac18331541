"""Packets to a switch that runs, made by hand: the envelope of cpp/udp/envelope.h and SwitchML's packets, in Python."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field

MASK = (1 << 64) - 1
KINDS = (
    *("join", "challenge", "waiting", "ready", "refused", "data"),
    *("result", "beat", "probe", "state", "status", "report"),
)
HEADER, ASKING, STATUS, EVERYBODY = 28, 480, 1400, 0xFFFF


def siphash(key: tuple[int, int], data: bytes) -> int:
    """SipHash-2-4, as in its paper."""
    v0, v1 = key[0] ^ 0x736F6D6570736575, key[1] ^ 0x646F72616E646F6D
    v2, v3 = key[0] ^ 0x6C7967656E657261, key[1] ^ 0x7465646279746573

    def left(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & MASK

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded) + 8, 8):
        final = at == len(padded)
        word = 0 if final else int.from_bytes(padded[at : at + 8], "little")
        if final:
            v2 ^= 0xFF
        v3 ^= word
        for _ in range(4 if final else 2):
            v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
            v1, v3 = left(v1, 13) ^ v0, left(v3, 16) ^ v2
            v0 = left(v0, 32)
            v2, v0 = (v2 + v1) & MASK, (v0 + v3) & MASK
            v1, v3 = left(v1, 17) ^ v2, left(v3, 21) ^ v0
            v2 = left(v2, 32)
        v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


def text(words: str | bytes) -> bytes:
    raw = words.encode() if isinstance(words, str) else words
    return struct.pack(">H", len(raw)) + raw


def derived(key: tuple[int, int], purpose: str, job: int, epoch: int, nonce: int) -> tuple[int, int]:
    body = text(purpose) + struct.pack(">IIQ", job, epoch, nonce)
    return siphash(key, b"\0" + body), siphash(key, b"\1" + body)


def master_key(secret: bytes) -> tuple[int, int]:
    public = (0x243F6A8885A308D3, 0x13198A2E03707344)
    body = struct.pack(">I", len(secret)) + secret
    return siphash(public, b"\0" + body), siphash(public, b"\1" + body)


def sealed(
    kind: str, body: bytes, key: tuple[int, int], *, job: int, epoch: int, worker: int, protocol: str
) -> bytes:
    hashed = siphash((0, 0), protocol.encode()) & 0xFFFF
    head = struct.pack(">HBBIIHHI", 0xC0BB, 1, KINDS.index(kind) + 1, job, epoch, worker, hashed, len(body))
    return struct.pack(">Q", siphash(key, head + body)) + head + body


def switchml_packet(
    *, slot: int, which: int, packet: int, times: int, values: int = 64, job: int = 1
) -> bytes:
    """The values times * i for i = 0, 1, ..."""
    code = {64: 1, 256: 3}.get(values, 4)
    numbers = struct.pack(f">{values}i", *(times * i for i in range(values)))
    return (
        bytes([0x10 | code, job & 0xFF])
        + struct.pack("<I", packet & 0xFFFFFFFF)
        + struct.pack(">H", which << 15 | slot)
        + bytes(2)
        + numbers
    )


def times_of(body: bytes) -> int:
    """What the values of a packet are multiples of."""
    count = (len(body) - 10) // 4
    numbers = struct.unpack(f">{count}i", body[10:])
    assert numbers == tuple(numbers[1] * i for i in range(count))
    return numbers[1]


@dataclass
class RawWorker:
    """One worker's end of a switch, packet by packet."""

    port: int
    worker: int
    workers: int
    job: int = 1
    epoch: int = 1
    slots: int = 4
    values: int = 64
    window: int = 4
    threads: int = 1
    secret: bytes = b""
    protocol: str = "switchml"
    nonce: int = 77
    members: int | None = None
    patience_s: float = 20.0
    key: tuple[int, int] | None = None
    said: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.connect(("127.0.0.1", self.port))
        self.socket.settimeout(self.patience_s)
        self.control = derived(master_key(self.secret), "control", 0, 0, 0)
        self.query, self.cookie, self.refusal = 0, 0, ""
        self.seen: list[bytes] = []

    def close(self) -> None:
        self.socket.close()

    def seal(self, kind: str, body: bytes, key: tuple[int, int]) -> bytes:
        return sealed(
            kind, body, key, job=self.job, epoch=self.epoch, worker=self.worker, protocol=self.protocol
        )

    def push(self, packet: bytes) -> None:
        self.said.append(packet)
        self.socket.send(packet)

    def next(self) -> tuple[str, bytes]:
        packet = self.socket.recv(65536)
        self.seen.append(packet)
        kind = KINDS[packet[11] - 1]
        key = self.control if kind != "result" else self.key
        assert key is not None
        assert struct.unpack(">Q", packet[:8])[0] == siphash(key, packet[8:])
        return kind, packet[HEADER:]

    def join_packet(self) -> bytes:
        members = self.workers if self.members is None else self.members
        body = struct.pack(">QQ", self.nonce, self.cookie) + text(self.protocol)
        body += struct.pack(">HHHH", self.workers, members, self.threads, 0)
        body += struct.pack(">BIII", 0, self.slots, self.values, self.window)
        body += struct.pack(">QQH", 10_000_000, 10**15, 0)
        return self.seal("join", body.ljust(ASKING, b"\0"), self.control)

    def join(self) -> str:
        """Ask until the switch says waiting, ready or refused."""
        while True:
            self.push(self.join_packet())
            kind, body = self.next()
            if kind != "challenge":
                return self.understand(kind, body)
            self.cookie = struct.unpack(">Q", body[8:16])[0]

    def understand(self, kind: str, body: bytes) -> str:
        assert struct.unpack(">Q", body[:8])[0] == self.nonce
        if kind == "ready":
            nonce = struct.unpack(">Q", body[8:16])[0]
            self.key = derived(master_key(self.secret), "job", self.job, self.epoch, nonce)
        elif kind == "refused":
            self.refusal = body[10 : 10 + struct.unpack(">H", body[8:10])[0]].decode()
        return kind

    def ready(self) -> None:
        """Wait for the word that all are there."""
        while self.key is None:
            self.understand(*self.next())

    def data(self, body: bytes) -> bytes:
        assert self.key is not None
        return self.seal("data", body, self.key)

    def results(self) -> list[bytes]:
        """What came so far: the switch answers a question after all that it had to say before."""
        self.query += 1
        ask = struct.pack(">QQB", self.query, self.nonce, 0) + text("")
        self.socket.send(self.seal("probe", ask.ljust(ASKING, b"\0"), self.control))
        found = []
        while True:
            kind, body = self.next()
            if kind == "result":
                found.append(body)
            elif kind == "state" and struct.unpack(">Q", body[:8])[0] == self.query:
                self.state = body[8]
                return found

    def leave(self, why: str = "") -> None:
        self.query += 1
        ask = struct.pack(">QQB", self.query, self.nonce, 2 if why else 1) + text(why)
        self.socket.send(self.seal("probe", ask.ljust(ASKING, b"\0"), self.control))
        while self.next()[0] != "state":
            pass


class Scenario:
    """Workers of one job, driven as the published scenarios are written: worker w sends x * i to a set of a slot."""

    def __init__(self, port: int, workers: int, **options: object) -> None:
        made = [RawWorker(port, each, workers, **options) for each in range(workers)]  # type: ignore[arg-type]
        self.workers = made
        for each in made:
            each.join()
        for each in made:
            each.ready()
        self._last: dict[tuple[int, int], tuple[int, int]] = {}

    def close(self) -> None:
        for each in self.workers:
            each.close()

    def say(self, worker: int, which: int, times: int, *, slot: int = 0) -> str:
        """A change of the set is the next round of the slot; returns the reply: ``-``, ``all y`` or ``w y``."""
        before = self._last.setdefault((worker, slot), (which, 0))
        if before[0] != which:
            self._last[worker, slot] = (which, before[1] + 1)
        return self.raw(worker, which, times, self._last[worker, slot][1], slot=slot)

    def raw(self, worker: int, which: int, times: int, turn: int, *, slot: int = 0) -> str:
        own = self.workers[worker]
        number = slot + turn * own.slots
        body = switchml_packet(
            slot=slot, which=which, packet=number, times=times, values=own.values, job=own.job
        )
        own.push(own.data(body))
        # The sender first: what is meant for others was on its way before the sender had an answer.
        order = [worker, *(each for each in range(len(self.workers)) if each != worker)]
        replies = {each: self.workers[each].results() for each in order}
        found = {each: bodies for each, bodies in replies.items() if bodies}
        assert all(len(bodies) == 1 for bodies in found.values())
        if not found:
            return "-"
        sums = {times_of(bodies[0]) for bodies in found.values()}
        assert len(sums) == 1
        if len(found) == len(self.workers) and len(self.workers) > 1:
            return f"all {sums.pop()}"
        assert set(found) == {worker}
        return f"{worker} {sums.pop()}"
