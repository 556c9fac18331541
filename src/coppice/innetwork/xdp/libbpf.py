"""The C library libbpf, as far as a switch in the kernel needs it: objects, maps, programs, attachments."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache

from coppice.errors import InputError

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
    """What a program did with a frame."""

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
    """The result of a call, unless it is an error."""
    if result < 0:
        raise InputError(
            f"the kernel refused to {what} ({os.strerror(-result)}): run as root, on a kernel with XDP."
        )
    return result


class BpfObject:
    """Programs and maps of an object file, some of the programs loaded.

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
    """Values of an entry that has one for each processor."""
    found: int = _library().libbpf_num_possible_cpus()
    return found


def link_xdp(program: int, interface: int) -> int:
    """Attach a program to an interface, in the driver; what comes back detaches it when it is closed."""
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
