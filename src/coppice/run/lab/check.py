"""The self-test of a lab: what TCP gets through every link, beside the rate that the link was given."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from coppice.errors import InputError
from coppice.run.lab.blueprint import CableEnd, load_of
from coppice.run.lab.namespaces import Lab, entered

_FILL_S = 0.25  # until the first burst and the slow start are over
_MEASURE_S = 0.5
_ENOUGH = 0.9
_PIECE = bytes(1 << 16)
_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCheck:
    """One directed link: its two nodes, its rate and what TCP carried, in bits per second."""

    src: int
    dst: int
    bits_per_s: int
    measured_bits_per_s: float

    @property
    def ok(self) -> bool:
        """At least nine tenths of the rate arrive (headers take 0.7%)."""
        return self.measured_bits_per_s >= _ENOUGH * self.bits_per_s


def check_links(lab: Lab, *, progress: Callable[[int, int], None] | None = None) -> list[LinkCheck]:
    """Measure every link with a stream of its own, so many at a time as the cores can carry.

    Args:
        progress: Called with the numbers of links done and of all.
    """
    links = [link for link in lab.blueprint.cable_ends if link[2][3]]
    budget = load_of(lab.blueprint.topology, lab.blueprint.scale).limit_bits_per_s / 4
    found: list[LinkCheck] = []
    for group in _groups(links, budget):
        streams = [_TcpStream(lab, src, dst, end) for src, dst, end in group]
        for stream in streams:
            stream.start()
        found.extend(stream.result() for stream in streams)
        if progress is not None:
            progress(len(found), len(links))
    return found


_Link = tuple[int, int, CableEnd]


def _groups(links: list[_Link], budget: Fraction) -> list[list[_Link]]:
    groups: list[list[_Link]] = []
    room = Fraction(0)
    for link in links:
        if not groups or link[2][3] > room:
            groups.append([])
            room = budget
        groups[-1].append(link)
        room -= link[2][3]
    return groups


class _TcpStream:
    """One TCP stream over one link, a thread at each end."""

    def __init__(self, lab: Lab, src: int, dst: int, end: CableEnd) -> None:
        self._lab, self._src, self._dst = lab, src, dst
        _, self._near, self._far, self._bits = end
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._measured = 0.0
        with entered(lab, dst):
            self._server = socket.create_server((self._far, 0))
        self._server.settimeout(_TIMEOUT_S)
        self._threads = [
            threading.Thread(target=self._kept, args=(each,)) for each in (self._receive, self._send)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def result(self) -> LinkCheck:
        for thread in self._threads:
            thread.join()
        self._server.close()
        if self._error is not None:
            names = self._lab.blueprint.topology.node_ids
            raise InputError(
                f"no stream from {names[self._src]} to {names[self._dst]} ({self._error}): build the lab again."
            )
        return LinkCheck(
            src=self._src, dst=self._dst, bits_per_s=self._bits, measured_bits_per_s=self._measured
        )

    def _kept(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._error = self._error or error
        finally:
            self._stop.set()

    def _receive(self) -> None:
        stream, _ = self._server.accept()
        with stream:
            stream.settimeout(_TIMEOUT_S)
            begin = time.monotonic()
            counted, since = 0, 0.0
            while True:
                got = len(stream.recv(1 << 20))
                now = time.monotonic()
                if now - begin < _FILL_S:
                    continue
                if not since:
                    since = now
                    continue
                counted += got
                if now - since >= _MEASURE_S:
                    self._measured = 8 * counted / (now - since)
                    return

    def _send(self) -> None:
        with entered(self._lab, self._src):
            stream = socket.socket()
        with stream:
            stream.settimeout(_TIMEOUT_S)
            stream.bind((self._near, 0))
            stream.connect((self._far, self._server.getsockname()[1]))
            while not self._stop.is_set():
                try:
                    stream.send(_PIECE)
                except (ConnectionResetError, BrokenPipeError):
                    return  # the receiver has what it wanted
