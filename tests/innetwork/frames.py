"""Frames of SwitchML over UDP, put together and taken apart without any code of the package."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

__all__ = ["SWITCH_IPV4", "SWITCH_MAC", "Request", "checksum", "ipv4_frame", "reply_frame", "worker_address"]

SWITCH_MAC = bytes.fromhex("020000000001")
SWITCH_IPV4 = IPv4Address("10.0.0.254").packed
KINDS = {64: 0x11, 256: 0x13}


def worker_address(worker: int) -> tuple[bytes, bytes]:
    """MAC and IPv4 address of a worker of the default rack."""
    return bytes.fromhex(f"0200000001{worker:02x}"), IPv4Address(f"10.0.0.{worker + 1}").packed


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def ipv4_frame(
    ends: tuple[tuple[bytes, bytes], tuple[bytes, bytes]],
    ports: tuple[int, int],
    payload: bytes,
    *,
    udp_checksum: bool = True,
    **fields: int,
) -> bytes:
    """Ethernet, IPv4 and UDP from the first end to the second; fields of the IPv4 header by name."""
    (source_mac, source), (mac, destination) = ends
    udp_length = fields.get("udp_length", 8 + len(payload))
    header = struct.pack(
        ">BBHHHBBH4s4s",
        fields.get("first", 0x45),
        0,
        fields.get("total_length", 28 + len(payload)),
        0x1234,
        fields.get("fragment", 0x4000),
        fields.get("ttl", 57),
        fields.get("protocol", 17),
        0,
        source,
        destination,
    )
    header = header[:10] + struct.pack(">H", fields.get("checksum", checksum(header))) + header[12:]
    udp = struct.pack(">HHHH", *ports, udp_length, 0)
    if udp_checksum:
        pseudo = source + destination + struct.pack(">HH", 17, udp_length)
        udp = udp[:6] + struct.pack(">H", checksum(pseudo + udp + payload) or 0xFFFF)
    return mac + source_mac + struct.pack(">H", fields.get("ethertype", 0x0800)) + header + udp + payload


@dataclass(frozen=True)
class Request:
    """A packet of a worker; values are int32."""

    worker: int
    slot: int
    set: int
    values: tuple[int, ...]
    id: int = 0
    exponents: tuple[int, int] = (0, 0)
    job: int = 0
    ports: tuple[int, int] = (0x4000, 0xBEE0)
    pool_bits: int = 0

    def body(self) -> bytes:
        """What UDP carries."""
        return struct.pack(
            f">BB4sHbb{len(self.values)}i",
            KINDS.get(len(self.values), 0x10),
            self.job,
            self.id.to_bytes(4, "little"),
            self.set << 15 | self.slot | self.pool_bits,
            *self.exponents,
            *self.values,
        )

    def frame(self, **fields: int) -> bytes:
        """As the worker sends it."""
        return ipv4_frame(
            (worker_address(self.worker), (SWITCH_MAC, SWITCH_IPV4)), self.ports, self.body(), **fields
        )


def reply_frame(
    request: Request, to: int, sums: tuple[int, ...], exponents: tuple[int, int] = (0, 0)
) -> bytes:
    """What the switch sends to a worker because of a request."""
    answered = Request(
        to,
        request.slot,
        request.set,
        sums,
        id=request.id,
        exponents=exponents,
        job=request.job,
        pool_bits=request.pool_bits,
    )
    return ipv4_frame(
        ((SWITCH_MAC, SWITCH_IPV4), worker_address(to)),
        (request.ports[1], request.ports[0]),
        answered.body(),
        ttl=64,
        udp_checksum=False,
    )
