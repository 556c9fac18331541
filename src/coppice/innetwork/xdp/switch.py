"""A switch in the Linux kernel: SwitchML's sums in XDP, in the drivers of network interfaces (`switchml.bpf.c`).

Of the C library libbpf there is what that needs: objects, maps, programs, attachments.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import msgspec

from coppice.arguments import checked
from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import file_name, read_bytes
from coppice.innetwork.p4.generator import number_of_mac
from coppice.innetwork.serving.settings import SWITCHML_COUNTS, with_former_names

_LIBRARY = "libbpf.so.1"
_ATTACH_XDP = 37
_NATIVE = 1 << 2  # XDP_FLAGS_DRV_MODE
_LIVE_FRAMES = 1 << 1  # BPF_F_TEST_XDP_LIVE_FRAMES
_MOST_FRAME_BYTES = 4096


class _RunOptions(ctypes.Structure):
    _fields_ = (
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    )


class _LinkOptions(ctypes.Structure):
    _fields_ = (("sz", c_size_t), ("flags", c_uint32), ("rest", c_uint32 * 11))


@dataclass(frozen=True)
class FrameRun:
    """A program's verdict on a frame, and the frame after it."""

    action: int  # 1 drop, 2 pass on to the kernel, 3 send back, 4 send elsewhere
    frame: bytes  # As the program left it
    nanoseconds: int  # It took, on average of the repetitions


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        raise InputError(
            f"a switch in the kernel needs the library {_LIBRARY}: install it (Debian: libbpf1)."
        ) from None
    for name, result, arguments in (
        ("libbpf_set_print", c_void_p, (c_void_p,)),
        ("libbpf_num_possible_cpus", c_int, ()),
        ("bpf_object__open_mem", c_void_p, (c_char_p, c_size_t, c_void_p)),
        ("bpf_object__load", c_int, (c_void_p,)),
        ("bpf_object__close", None, (c_void_p,)),
        ("bpf_object__find_map_by_name", c_void_p, (c_void_p, c_char_p)),
        ("bpf_object__find_program_by_name", c_void_p, (c_void_p, c_char_p)),
        ("bpf_map__fd", c_int, (c_void_p,)),
        ("bpf_map__set_max_entries", c_int, (c_void_p, c_uint32)),
        ("bpf_map__set_initial_value", c_int, (c_void_p, c_void_p, c_size_t)),
        ("bpf_program__fd", c_int, (c_void_p,)),
        ("bpf_program__set_autoload", c_int, (c_void_p, ctypes.c_bool)),
        ("bpf_map_update_elem", c_int, (c_int, c_void_p, c_void_p, c_uint64)),
        ("bpf_map_lookup_elem", c_int, (c_int, c_void_p, c_void_p)),
        ("bpf_link_create", c_int, (c_int, c_int, c_int, c_void_p)),
        ("bpf_prog_test_run_opts", c_int, (c_int, c_void_p)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(None)
    return library


def _require(result: int, what: str) -> int:
    """Return the result of a call, or raise its error."""
    if result < 0:
        raise InputError(
            f"the kernel refused to {what} ({os.strerror(-result)}): run as root, on a kernel with XDP."
        )
    return result


class BpfObject:
    """The programs and maps of a BPF object file, some of the programs loaded.

    Args:
        code: The object file.
        settings: What its constants are.
        programs: Names of those that are loaded.
        without: Names of those that are not.
        sizes: Entries of maps that differ from the file.

    Raises:
        InputError: If the library is not there, or the kernel refuses a program.
    """

    def __init__(
        self,
        code: bytes,
        settings: bytes,
        *,
        programs: tuple[str, ...],
        without: tuple[str, ...],
        sizes: dict[str, int] | None = None,
    ) -> None:
        self._handle: int | None = None
        library = _library()
        self._handle = library.bpf_object__open_mem(code, len(code), None)
        if not self._handle:
            raise InputError(
                f"libbpf cannot read the program ({os.strerror(ctypes.get_errno())}): build it with another clang."
            )
        for name in without:
            program = library.bpf_object__find_program_by_name(self._handle, name.encode())
            _require(library.bpf_program__set_autoload(program, False), f"leave out {name}")  # noqa: FBT003
        for name, entries in (sizes or {}).items():
            _require(library.bpf_map__set_max_entries(self._map(name), entries), f"make {name} larger")
        _require(
            library.bpf_map__set_initial_value(self._map(".rodata"), settings, len(settings)), "set constants"
        )
        _require(library.bpf_object__load(self._handle), f"load {', '.join(programs)}")
        self.programs = {
            name: library.bpf_program__fd(
                library.bpf_object__find_program_by_name(self._handle, name.encode())
            )
            for name in programs
        }

    def _map(self, name: str) -> int:
        found: int | None = _library().bpf_object__find_map_by_name(self._handle, name.encode())
        if found is None:
            raise AssertionError(f"the program has no map {name}.")
        return found

    def map(self, name: str) -> int:
        """The descriptor of a map."""
        descriptor: int = _library().bpf_map__fd(self._map(name))
        return descriptor

    def close(self) -> None:
        """Unload all that nothing else holds."""
        if self._handle is not None:
            _library().bpf_object__close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def update(descriptor: int, key: bytes, value: bytes) -> None:
    """Set an entry of a map."""
    _require(_library().bpf_map_update_elem(descriptor, key, value, 0), "fill a map")


def look_up(descriptor: int, key: bytes, size: int) -> bytes:
    """An entry of a map."""
    value = ctypes.create_string_buffer(size)
    _require(_library().bpf_map_lookup_elem(descriptor, key, value), "read a map")
    return value.raw


def processors() -> int:
    """Number of processors that a per-processor map has values for."""
    found: int = _library().libbpf_num_possible_cpus()
    return found


def link_xdp(program: int, interface: int) -> int:
    """Attach a program to an interface, in the driver; closing the returned link detaches it."""
    options = _LinkOptions(sz=ctypes.sizeof(_LinkOptions), flags=_NATIVE)
    result = _library().bpf_link_create(program, interface, _ATTACH_XDP, ctypes.byref(options))
    return _require(result, f"attach to the interface {interface} (in its driver)")


def run_on_frame(program: int, frame: bytes, *, repeat: int = 1, live: bool = False) -> FrameRun:
    """Run a program on a frame, without any interface.

    Args:
        repeat: How often; the frame is not made anew.
        live: What the program sends is really sent, and nothing comes back here.
    """
    out = ctypes.create_string_buffer(_MOST_FRAME_BYTES)
    options = _RunOptions(
        sz=ctypes.sizeof(_RunOptions),
        data_in=ctypes.cast(ctypes.c_char_p(frame), c_void_p),
        data_out=None if live else ctypes.cast(out, c_void_p),
        data_size_in=len(frame),
        data_size_out=0 if live else _MOST_FRAME_BYTES,
        repeat=repeat,
        flags=_LIVE_FRAMES if live else 0,
    )
    _require(_library().bpf_prog_test_run_opts(program, ctypes.byref(options)), "run a program")
    return FrameRun(options.retval, out.raw[: options.data_size_out], options.duration)


_SOURCE = Path(__file__).parent / "switchml.bpf.c"
_PROGRAMS = ("aggregate", "address_copy", "pass")
_MOST_WORKERS, _MOST_SLOTS = 32, 8192
_SETTINGS = struct.Struct("=IIII4s16s")
_HARDWARE_ADDRESS = 0x8927  # SIOCGIFHWADDR


class XdpWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker of a switch in the kernel."""

    mac: str  # Its address
    ipv4: str  # Its address
    interface: str  # Of the switch, by which the worker is reached


class XdpHosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The switch's address, and its workers in the order of their numbers."""

    ipv4: str
    workers: tuple[XdpWorker, ...]


def read_xdp_hosts(path: str | os.PathLike[str]) -> XdpHosts:
    """Read the hosts of a switch in the kernel from a JSON file with the fields of :class:`XdpHosts`."""
    data = read_bytes(path, what="the hosts", hint="name a JSON file with ipv4 and workers")
    try:
        return msgspec.json.decode(data, type=decodable(XdpHosts))
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{file_name(path)}: {error}: write an object with ipv4 and workers, as docs/in-network.md shows."
        ) from None


class XdpSwitch:
    """A switch in the kernel that serves one job until it is closed; also a context manager.

    Made by :func:`serve_xdp`.
    """

    def __init__(self, hosts: XdpHosts, settings: bytes, *, slots: int, code: bytes) -> None:
        self._links: list[int] = []
        self._main = BpfObject(
            code, settings, programs=("aggregate",), without=_PROGRAMS[1:], sizes={"slot_array": slots}
        )
        # Descriptors of the program for frames, and of the one for copies to each worker
        self.programs = [self._main.programs["aggregate"]]
        self._copies = []
        senders, copies = self._main.map("senders"), self._main.map("copies")
        for index, worker in enumerate(hosts.workers):
            address, mac = IPv4Address(worker.ipv4).packed, _mac(worker.mac)
            update(senders, address + mac + bytes(2), struct.pack("=I", index))
            receiver = address + mac + _mac_of(worker.interface)
            own = settings[: -len(receiver)] + receiver
            copy = BpfObject(code, own, programs=("address_copy",), without=("aggregate", "pass"))
            self._copies.append(copy)
            self.programs.append(copy.programs["address_copy"])
            number = _index_of(worker.interface)
            update(copies, struct.pack("=I", index), struct.pack("=Ii", number, self.programs[-1]))

    def attach(self, interfaces: tuple[str, ...]) -> None:
        """Attach the switch to these interfaces."""
        for each in interfaces:
            self._links.append(link_xdp(self.programs[0], _index_of(each)))

    def counters(self) -> dict[str, int]:
        """Count packets so far, by what happened to them."""
        counts, number = self._main.map("counts"), processors()
        found = {}
        for index, name in enumerate(SWITCHML_COUNTS):
            each = look_up(counts, struct.pack("=I", index), 8 * number)
            found[name] = sum(struct.unpack(f"={number}Q", each))
        return with_former_names(found)

    def close(self) -> None:
        """Detach the programs from the interfaces; partial sums are lost."""
        while self._links:
            os.close(self._links.pop())
        for each in (*self._copies, self._main):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@checked
def serve_xdp(
    hosts: XdpHosts,  # The address that workers send to, and the workers
    *,
    slots: int = 256,  # Slots, 1 to 8192, each with two sets
    values: int = 64,  # Values of a packet: 64 or 256
    job: int = 0,  # Low eight bits of the job's id
    first_packet: int = 0,  # Packet id of the first packet of slot 0
    attach: bool = True,  # Serve at once; otherwise :meth:`XdpSwitch.attach` does
) -> XdpSwitch:
    """Serve SwitchML's int32 sums in the kernel, in the drivers of the interfaces that workers are reached by.

    Decides as the native switch does, packet ids included. Frames that are none of SwitchML to the switch go on to the
    kernel. Of a virtual cable (veth) the other end needs an XDP program too, or frames vanish there.

    Returns:
        The switch, which serves until it is closed.
    """
    for name, found, least, most in (
        ("slots", slots, 1, _MOST_SLOTS),
        ("job", job, 0, 255),
        ("first_packet", first_packet, 0, 2**32 - 1),
    ):
        if not least <= found <= most:
            raise InputError(
                f"expected `{name}` of {least} .. {most:,}, found {found:,}: choose a number in between."
            )
    if values not in (64, 256):
        raise InputError(
            f"expected `values` of 64 or 256, found {values}: the packets of SwitchML have one of these sizes."
        )
    number = len(hosts.workers)
    if not 1 <= number <= _MOST_WORKERS:
        raise InputError(
            f"expected 1 to {_MOST_WORKERS} workers, found {number}: a bitmap has a bit for each."
        )
    try:
        addresses = [
            IPv4Address(each).packed for each in (hosts.ipv4, *(each.ipv4 for each in hosts.workers))
        ]
    except AddressValueError as error:
        raise InputError(f"{error}: write IPv4 addresses such as 10.0.0.1.") from None
    if len(set(addresses)) != len(addresses):
        raise InputError("expected addresses of one party each, found one twice: give each its own.")
    settings = _SETTINGS.pack(number, slots, first_packet, job, addresses[0], bytes(16))
    switch = XdpSwitch(hosts, settings, slots=slots, code=_compiled(values))
    if attach:
        try:
            switch.attach(tuple(dict.fromkeys(each.interface for each in hosts.workers)))
        except InputError:
            switch.close()
            raise
    return switch


class XdpPass:
    """An XDP program that passes all frames, for the far ends of virtual cables; also a context manager.

    Without one there, what a switch in the kernel sends into the cable vanishes.

    Args:
        interfaces: Names of interfaces in the namespace that we are in.

    Raises:
        InputError: If one cannot take a program in its driver, or clang or libbpf is missing.
    """

    @checked
    def __init__(self, *interfaces: str) -> None:
        self._links: list[int] = []
        self._object = BpfObject(
            _compiled(64), bytes(_SETTINGS.size), programs=("pass",), without=_PROGRAMS[:2]
        )
        try:
            for each in interfaces:
                self._links.append(link_xdp(self._object.programs["pass"], _index_of(each)))
        except InputError:
            self.close()
            raise

    def close(self) -> None:
        """Detach the program."""
        while self._links:
            os.close(self._links.pop())
        self._object.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@cache
def _compiled(values: int) -> bytes:
    """Compile the program, once, and return its object file."""
    compiler = shutil.which("clang")
    if compiler is None:
        raise InputError(
            "a switch in the kernel needs clang: install it, with the headers of libbpf (Debian: clang libbpf-dev)."
        )
    own = Path("/usr/include") / f"{os.uname().machine}-linux-gnu"
    command = [compiler, "-O2", "-g", "-target", "bpf", f"-DVALUES={values}", f"-I{own}"]
    with TemporaryDirectory(prefix="coppice-") as folder:
        path = Path(folder) / "switchml.o"
        done = subprocess.run([*command, "-c", str(_SOURCE), "-o", str(path)], capture_output=True, text=True)
        if done.returncode == 0:
            return path.read_bytes()
    first = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
    raise InputError(
        f"clang could not build {_SOURCE.name} ({first.strip()}): install libbpf-dev and the kernel's headers."
    )


def _mac(text: str) -> bytes:
    return number_of_mac(text).to_bytes(6, "big")


def _index_of(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        raise InputError(f"there is no interface {interface!r} here: see `ip link`.") from None


def _mac_of(interface: str) -> bytes:
    """Hardware address of an interface in the current namespace."""
    _index_of(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe, _HARDWARE_ADDRESS, struct.pack("16s24x", interface.encode()[:15]))
    return found[18:24]
