"""Build, find, test and remove a lab: `ip` and `tc` on namespaces named after it.

Everything that a lab is lies inside its own namespaces (cables are created with both ends in them), so the network of
the machine is never touched, and deleting the namespaces deletes the lab. A lab is found by the names of its
namespaces, also when whoever built it was killed half-way. The self-test says what TCP gets through every link, beside
the rate that the link was given.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.run.lab.blueprint import Blueprint, CableEnd, draw, load_of
from coppice.topology.operations import scale as scaled
from coppice.topology.readers.document import write_topology
from coppice.topology.sources import resolve

STATE = Path("/run/coppice-lab")

IDENTITY = "id0"
"""Interface that bears the identity address of a node."""

_NAME = re.compile(r"[a-z0-9]{1,16}")
_MTU = 9000  # with 1500, headers take 4.4% of every link

BURST_BYTES = 80_000
"""What a link lets through at once after a rest: above the 64 KiB that the kernel hands down at once; below, it cuts
them up in software."""

_QUEUE_MS = 20

_SHORT_BYTES = 128
"""Packets below it, a power of two, have no data to speak of."""

_SYSCTLS = (
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_slow_start_after_idle=0",
)


class _Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is written down about a lab that stands."""

    scale: str
    topology: str
    acknowledgements_first: bool = False


class Lab:
    """A running lab."""

    def __init__(self, name: str, blueprint: Blueprint, *, acknowledgements_first: bool = False) -> None:
        self.name = name  # Its name
        self.blueprint = blueprint  # What was built
        self.acknowledgements_first = acknowledgements_first  # They have a queue of their own
        # Files of this lab: `topology.json` (at the rates of the lab) and what launchers need
        self.directory = STATE / name

    @property
    def topology_file(self) -> Path:
        """Topology with the lab's rates, for programs in it."""
        return self.directory / "topology.json"

    def namespace(self, node: int) -> str:
        """Namespace of a node."""
        return namespace(self.name, node)


def namespace(name: str, node: int) -> str:
    """Namespace of ``node`` in the lab ``name``."""
    return f"coppice-{name}-{node}"


def build(
    name: str, blueprint: Blueprint, *, burst_bytes: int = BURST_BYTES, acknowledgements_first: bool = False
) -> Lab:
    """Build a lab; an error or interrupt removes all of it.

    Args:
        burst_bytes: What a link lets through at once after a rest, at least two packets. On slow links much of a
            message: at 100 Mbit/s the default is what they carry in 6.4 ms.
        acknowledgements_first: Acknowledgements of TCP do not wait behind data: packets of less than 128 bytes pass
            links freely. In one queue with data they slow a flow as much as data in the other direction is slowed.
    """
    if burst_bytes < 2 * _MTU:
        raise InputError(f"expected bursts of two packets ({2 * _MTU} bytes) or more, found {burst_bytes}.")
    _check_name(name)
    _check_rights()
    if _standing(name):
        raise InputError(
            f"a lab named {name!r} stands already: take it down with `coppice lab down --name {name}`."
        )
    lab = Lab(name, blueprint, acknowledgements_first=acknowledgements_first)
    try:
        _write_files(lab)
        _raise(lab, burst_bytes)
    except BaseException:
        remove(name)
        raise
    return lab


def find(name: str) -> Lab:
    """Find the running lab of this name."""
    _check_name(name)
    standing = _standing(name)
    if not standing:
        others = sorted({match[1] for each in _all_namespaces() if (match := _OURS.fullmatch(each))})
        hint = f"; these stand: {', '.join(others)}" if others else ""
        raise InputError(f"no lab named {name!r} stands{hint}: build one with `coppice lab up TOPOLOGY`.")
    directory = STATE / name
    try:
        record = msgspec.json.decode((directory / "lab.json").read_bytes(), type=decodable(_Record))
        blueprint = draw(resolve(str(directory / record.topology)), Fraction(record.scale))
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise InputError(
            f"the lab {name!r} was not built to its end ({error}): take it down with `coppice lab down`."
        ) from None
    if len(standing) != blueprint.topology.num_nodes:
        raise InputError(
            f"expected {blueprint.topology.num_nodes} namespaces of the lab {name!r}, found {len(standing)}: "
            "take it down with `coppice lab down`."
        )
    return Lab(name, blueprint, acknowledgements_first=record.acknowledgements_first)


def remove(name: str) -> int:
    """Remove the lab ``name`` with every process in it; return the number of namespaces."""
    _check_name(name)
    _check_rights()
    standing = _standing(name)
    for each in standing:
        _kill_inside(each)
    if standing:
        _batch(["ip", "-batch", "-"], [f"netns del {each}" for each in standing])
    shutil.rmtree(STATE / name, ignore_errors=True)
    return len(standing)


def remove_all() -> list[str]:
    """Remove every lab; return their names."""
    _check_rights()
    names = {match[1] for each in _all_namespaces() if (match := _OURS.fullmatch(each))}
    if STATE.is_dir():
        names.update(each.name for each in STATE.iterdir() if _NAME.fullmatch(each.name))
    for name in sorted(names):
        remove(name)
    return sorted(names)


_OURS = re.compile(r"coppice-([a-z0-9]{1,16})-[0-9]+")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"expected a lab's name of 1 to 16 small letters and digits, found {name!r}: choose another `name`."
        )


def _check_rights() -> None:
    if not sys.platform.startswith("linux"):
        raise InputError(
            f"a lab needs Linux's network namespaces, found {sys.platform}: run it in a Linux machine."
        )
    if os.geteuid() != 0:
        raise InputError(
            "building and entering network namespaces needs root, found another user: run it with sudo."
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise InputError(f"a lab needs the command {tool}, which is not on PATH: install iproute2.")


def _all_namespaces() -> list[str]:
    place = Path("/run/netns")
    return sorted(each.name for each in place.iterdir()) if place.is_dir() else []


def _standing(name: str) -> list[str]:
    return [each for each in _all_namespaces() if (match := _OURS.fullmatch(each)) and match[1] == name]


def _write_files(lab: Lab) -> None:
    lab.directory.mkdir(parents=True, exist_ok=True)
    blueprint = lab.blueprint
    write_topology(blueprint.topology, lab.directory / "true.json")
    write_topology(scaled(blueprint.topology, blueprint.scale), lab.topology_file)
    record = _Record(
        scale=str(blueprint.scale),
        topology="true.json",
        acknowledgements_first=lab.acknowledgements_first,
    )
    write_atomically(lab.directory / "lab.json", msgspec.json.encode(record))


def _raise(lab: Lab, burst_bytes: int) -> None:
    """Namespaces, cables between them, then in each its limits, addresses and routes."""
    blueprint = lab.blueprint
    nodes = range(blueprint.topology.num_nodes)
    lines = [f"netns add {lab.namespace(node)}" for node in nodes]
    for cable in blueprint.cables:
        near, far = cable.end(cable.near)[0], cable.end(cable.far)[0]
        lines.append(
            f"link add name {near} netns {lab.namespace(cable.near)} type veth "
            f"peer name {far} netns {lab.namespace(cable.far)}"
        )
    _batch(["ip", "-batch", "-"], lines)
    routes: dict[int, list[str]] = {node: [] for node in nodes}
    for route in blueprint.routes:
        source = blueprint.identity[route.node]
        routes[route.node].append(
            f"route add {route.to}/32 via {route.via} dev {route.interface} src {source}"
        )
    ends: dict[int, list[CableEnd]] = {node: [] for node in nodes}
    for node, _, end in blueprint.cable_ends:
        ends[node].append(end)
    for node in nodes:
        inside = lab.namespace(node)
        _run(["ip", "netns", "exec", inside, "sysctl", "-q", "-w", *_SYSCTLS])
        lines = [
            "link set lo up",
            f"link add {IDENTITY} type veth peer name id1",
            "link set id1 up",
            f"link set {IDENTITY} up",
            f"addr add {blueprint.identity[node]}/32 dev {IDENTITY}",
        ]
        limits = []
        for interface, address, _, bits in ends[node]:
            lines += [f"link set {interface} mtu {_MTU} up", f"addr add {address}/31 dev {interface}"]
            if bits:
                if lab.acknowledgements_first:
                    limits += _two_queues(interface, bits, burst_bytes)
                else:
                    limits.append(f"qdisc add {_one_queue(interface, bits, burst_bytes)}")
        _batch(["ip", "-n", inside, "-batch", "-"], lines + routes[node])
        if limits:
            _batch(["tc", "-n", inside, "-batch", "-"], limits)


def _one_queue(interface: str, bits: int, burst_bytes: int) -> str:
    """Words for `tc qdisc` that limit an interface."""
    return f"dev {interface} root handle 1: tbf rate {bits}bit burst {burst_bytes} latency {_QUEUE_MS}ms"


def _limited_class(interface: str, bits: int, burst_bytes: int) -> str:
    """Words for `tc class` that limit what is no short packet."""
    limit = f"rate {bits}bit ceil {bits}bit burst {burst_bytes} cburst {burst_bytes}"
    return f"dev {interface} parent 1: classid 1:2 htb {limit} prio 2 quantum {_MTU}"


def _two_queues(interface: str, bits: int, burst_bytes: int) -> list[str]:
    """Lines for `tc` that limit an interface, but for short packets."""
    short = f"u32 match u16 0 0x{0xFFFF - (_SHORT_BYTES - 1):x} at 2"  # the length of a packet of IPv4
    limit = bits * _QUEUE_MS // 8000 + burst_bytes
    return [
        f"qdisc add dev {interface} root handle 1: htb default 2",
        f"class add dev {interface} parent 1: classid 1:1 htb rate 10gbit prio 1 quantum {_MTU}",
        f"class add {_limited_class(interface, bits, burst_bytes)}",
        f"qdisc add dev {interface} parent 1:2 handle 2: bfifo limit {limit}",
        f"filter add dev {interface} parent 1: protocol ip prio 1 {short} flowid 1:1",
    ]


def throttle(lab: Lab, shares: Mapping[tuple[int, int], float], *, burst_bytes: int = BURST_BYTES) -> None:
    """Change the rates of a lab's links while programs run; links that are not named get their own rates.

    Args:
        lab: A lab that stands.
        shares: Share of its rate that a link keeps, by its nodes (sender, receiver).
        burst_bytes: What a link lets through at once after a rest.

    Raises:
        InputError: If the lab has no such link, or the kernel refuses.
    """
    ends = {(node, other): end for node, other, end in lab.blueprint.cable_ends if end[3]}
    for key in shares:
        if key not in ends:
            raise InputError(
                f"expected a link of the lab, found nodes {key[0]} and {key[1]}: choose one of its links."
            )
    limits: dict[int, list[str]] = {}
    for (node, other), (interface, _, _, bits) in ends.items():
        rate = max(1, round(bits * shares.get((node, other), 1.0)))
        limits.setdefault(node, []).append(
            f"class change {_limited_class(interface, rate, burst_bytes)}"
            if lab.acknowledgements_first
            else f"qdisc change {_one_queue(interface, rate, burst_bytes)}"
        )
    for node, lines in limits.items():
        _batch(["tc", "-n", lab.namespace(node), "-batch", "-"], lines)


def _batch(command: list[str], lines: list[str]) -> None:
    _run(command, text="".join(f"{line}\n" for line in lines))


def _run(command: list[str], *, text: str = "") -> None:
    # A session of its own: Ctrl-C must not stop it half-way, since what it leaves is found by name and removed.
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        complaint = " ".join((done.stderr or done.stdout).split())[:300]
        raise InputError(
            f"`{' '.join(command[:4])}` failed: {complaint}: a lab needs veth and tbf in this kernel."
        )


def _kill_inside(inside: str) -> None:
    found = subprocess.run(["ip", "netns", "pids", inside], capture_output=True, text=True, check=False)
    for pid in found.stdout.split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            continue


_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def entered(lab: Lab, node: int) -> Iterator[None]:
    """Move the calling thread into the namespace of ``node``: sockets created there stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        try:
            there = os.open(Path("/run/netns") / lab.namespace(node), os.O_RDONLY)
        except FileNotFoundError:
            raise InputError(
                f"the namespace {lab.namespace(node)} is gone: build the lab again with `coppice lab up`."
            ) from None
        try:
            _enter(libc, there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(libc, home)
    finally:
        os.close(home)


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        raise InputError(f"entering a network namespace failed ({reason}): it needs root.")


class _Counter(msgspec.Struct):
    bytes: int = 0


class _Counters(msgspec.Struct):
    tx: _Counter = msgspec.field(default_factory=_Counter)


class _Interface(msgspec.Struct):
    ifname: str
    stats64: _Counters = msgspec.field(default_factory=_Counters)


def link_bytes(lab: Lab) -> dict[tuple[int, int], int]:
    """Bytes carried by every directed link since the lab was built, headers included."""
    ends: dict[int, dict[str, int]] = {}
    for node, other, (interface_name, *_) in lab.blueprint.cable_ends:
        ends.setdefault(node, {})[interface_name] = other
    found: dict[tuple[int, int], int] = {}
    for node, names in ends.items():
        shown = subprocess.run(
            ["ip", "-n", lab.namespace(node), "-s", "-j", "link", "show"],
            capture_output=True,
            check=False,
            start_new_session=True,
        )
        if shown.returncode:
            complaint = shown.stderr.decode(errors="replace").strip()
            raise InputError(
                f"the namespace {lab.namespace(node)} cannot be read ({complaint}): build the lab again."
            )
        for interface in msgspec.json.decode(shown.stdout, type=decodable(list[_Interface])):
            if interface.ifname in names:
                found[node, names[interface.ifname]] = interface.stats64.tx.bytes
    return found


_FILL_S = 0.25  # until the first burst and the slow start are over
_MEASURE_S = 0.5
_ENOUGH = 0.9
_PIECE = bytes(1 << 16)
_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCheck:
    """Throughput of one directed link: its nodes, its rate and the TCP rate in bits per second."""

    src: int
    dst: int
    bits_per_s: int
    measured_bits_per_s: float

    @property
    def ok(self) -> bool:
        """Whether at least nine tenths of the rate arrive (headers take 0.7%)."""
        return self.measured_bits_per_s >= _ENOUGH * self.bits_per_s


def check_links(lab: Lab, *, progress: Callable[[int, int], None] | None = None) -> list[LinkCheck]:
    """Measure every link by a TCP stream, as many concurrently as the cores can carry.

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
