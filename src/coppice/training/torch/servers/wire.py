"""What workers and parameter servers send each other: frames over TCP, each a header and bytes.

Numbers, names and settings go as MessagePack, values as they lie in memory. Nothing that is received is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import msgspec
import torch

from coppice.errors import CheckError, InputError

_HEADER = struct.Struct("<BIiQ")
_MOST_BYTES = 2**40


class FrameKind(IntEnum):
    """What a frame is."""

    HELLO = 1  # worker: who it is, slices, optimizer
    TAKE = 2  # worker 0: values of a slice, and what the optimizer has of it
    SETTINGS = 3  # worker 0: of groups, for the steps that follow
    PUSH = 4  # worker: gradient of a slice
    PUSH_ANSWERED = 5  # the same, values wanted as soon as they are there
    PULL = 6  # worker: values wanted when they are there
    VALUES = 7  # server
    ASK = 8  # worker: what the optimizer has of a slice
    STATE = 9  # server
    END = 10  # worker
    FAILED = 11  # server: a sentence


def address_of(given: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    Examples:
        >>> address_of("10.0.0.5:7000")
        ('10.0.0.5', 7000)
    """
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"expected an address like 10.0.0.5:7000, found {given!r}.")
    return host.strip("[]"), int(port)


def raw(tensor: torch.Tensor) -> memoryview:
    """Bytes of a contiguous tensor in host memory; it must outlive them."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def packed(entries: Mapping[str, Any]) -> bytes:
    """Tensors and numbers by name, as bytes."""
    found: dict[str, Any] = {}
    for name, entry in entries.items():
        if isinstance(entry, torch.Tensor):
            here = entry.detach().cpu().contiguous()
            found[name] = {
                "kind": str(here.dtype).removeprefix("torch."),
                "shape": list(here.shape),
                "raw": bytes(raw(here)),
            }
        else:
            found[name] = entry
    return msgspec.msgpack.encode(found)


def unpacked(given: bytes) -> dict[str, Any]:
    """What :func:`packed` was given.

    Examples:
        >>> unpacked(packed({"step": torch.tensor(3.0), "rate": 0.5}))
        {'step': tensor(3.), 'rate': 0.5}
    """
    found = msgspec.msgpack.decode(given)
    for name, entry in found.items():
        if isinstance(entry, dict) and "raw" in entry:
            made = torch.empty(entry["shape"], dtype=getattr(torch, entry["kind"]))
            raw(made)[:] = entry["raw"]
            found[name] = made
    return dict(found)


class ServerLink:
    """One connection between a worker and a server; frames may be sent by several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            option = getattr(socket, name, None)
            if option is not None:  # a host that is gone without a word is noticed too
                connection.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def send(
        self, kind: FrameKind, number: int = 0, priority: int = 0, body: bytes | memoryview = b""
    ) -> None:
        """Send a frame; returns when its bytes may be changed."""
        with self._sending:
            self._connection.sendall(_HEADER.pack(kind, number, priority, len(body)))
            if len(body):
                self._connection.sendall(body)

    def receive(
        self, place: Callable[[FrameKind, int, int], memoryview | None]
    ) -> tuple[FrameKind, int, int, bytes]:
        """Wait for a frame: what it is, its number, its priority, and its body where nothing else takes it.

        Args:
            place: Where the body of a frame goes, by kind, number and bytes; None: into bytes of its own.
        """
        kind, number, priority, size = _HEADER.unpack(self._filled(memoryview(bytearray(_HEADER.size))))
        if kind not in FrameKind.__members__.values() or size > _MOST_BYTES:
            raise CheckError(
                f"expected a frame of coppice, found kind {kind} with {size} bytes: is another program on this port?"
            )
        where = place(FrameKind(kind), number, size) if size else None
        if where is not None:
            self._filled(where)
            return FrameKind(kind), number, priority, b""
        return FrameKind(kind), number, priority, bytes(self._filled(memoryview(bytearray(size))))

    def close(self) -> None:
        """End it, also for threads that wait at it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _filled(self, buffer: memoryview) -> memoryview:
        done = 0
        while done < len(buffer):
            count = self._connection.recv_into(buffer[done:])
            if not count:
                raise CheckError("connection closed by the other side")
            done += count
        return buffer
