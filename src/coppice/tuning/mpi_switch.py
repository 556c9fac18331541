"""Force the algorithm of a running MPI library, and undo that, call by call.

Open MPI's component coll/tuned reads its forced algorithms when a communicator is made: every choice gets a copy of the
communicator, made while the variables say so. The component coll/han would come before it and is kept out of these
copies (as rules files need it); the copy for the default is made with everything as the library has it. MPICH reads its
variables at every call.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, Protocol

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.tables import FUNCTIONS, SEGMENTED
from coppice.tuning.records import LibraryChoice

MPICH_FUNCTIONS = {collective: name.upper() for collective, name in FUNCTIONS.items()}
"""Functions of MPICH, as its variables name them."""

DEPLOYED = "deployed"
"""A choice that stands for whatever the environment tells the library: a rules file, or variables."""

CHAIN_FANOUT = 4
"""Number of chains of Open MPI's algorithm ``chain``, its default for forced algorithms."""

_ONLY_SEGMENTED = ("segmented_ring",)


class Switch(Protocol):
    """An MPI library whose algorithm can be forced."""

    name: str
    version: str

    def choices(self, collective: Collective, size_bytes: int) -> tuple[LibraryChoice, ...]:
        """Algorithms that can be forced for a collective, without :data:`DEPLOYED`."""

    def use(self, collective: Collective, choice: LibraryChoice | None) -> Any:
        """Communicator on which the next calls use a choice; None is the default. Collective over the ranks."""

    def close(self) -> None:
        """Free the communicators. Collective over the ranks."""


def open_switch(mpi: Any, library: str, *, segments: tuple[int, ...] = ()) -> Switch:
    """Open the switch of the running library.

    Args:
        mpi: The module ``mpi4py.MPI``.
        library: ``open-mpi`` or ``mpich``, as the user expects it.
        segments: Sizes of segments to try with Open MPI.
    """
    words = mpi.Get_library_version()
    first = words.split("\n")[0].replace(",", " ").split()
    found = (
        "open-mpi" if words.startswith("Open MPI") else "mpich" if words.startswith("MPICH") else words[:40]
    )
    if found != library:
        raise InputError(
            f"expected {library} under mpi4py, found {found}: set MPI4PY_MPIABI, or name the library that runs."
        )
    version = next((word.lstrip("v") for word in first if word.lstrip("v")[:1].isdigit()), "")
    if library == "open-mpi":
        return _OpenMpi(mpi, version, segments)
    return _Mpich(mpi, version)


class _OpenMpi:
    """Open MPI, by copies of the communicator."""

    name = "open-mpi"
    _DYNAMIC = "coll_tuned_use_dynamic_rules"
    _HAN = "coll_han_priority"

    def __init__(self, mpi: Any, version: str, segments: tuple[int, ...]) -> None:
        self.version = version
        self._world = mpi.COMM_WORLD
        self._segments = segments
        self._variables = Variables()
        self._han = self._variables.read(self._HAN) if self._variables.has(self._HAN) else None
        self._copies: dict[tuple[Collective, LibraryChoice | None], Any] = {}

    def choices(self, collective: Collective, size_bytes: int) -> tuple[LibraryChoice, ...]:
        found: list[LibraryChoice] = []
        function = FUNCTIONS[collective]
        for number, name in self._variables.values(f"coll_tuned_{function}_algorithm"):
            if not number:
                continue
            if name not in _ONLY_SEGMENTED:
                found.append(LibraryChoice(name, number=number))
            if name in SEGMENTED.get(function, ()):
                found += [
                    LibraryChoice(name, segment_bytes=size, number=number)
                    for size in self._segments
                    if size < size_bytes
                ]
        return tuple(found)

    def use(self, collective: Collective, choice: LibraryChoice | None) -> Any:
        key = (collective, choice)
        if key not in self._copies:
            self._copies[key] = self._copy(collective, choice)
        return self._copies[key]

    def _copy(self, collective: Collective, choice: LibraryChoice | None) -> Any:
        write = self._variables.write
        stem = f"coll_tuned_{FUNCTIONS[collective]}_algorithm"
        deployed = choice is not None and choice.algorithm == DEPLOYED
        segment = f"{stem}_segmentsize"
        forced = 0
        if choice is not None and not deployed:
            numbers = {name: number for number, name in self._variables.values(stem)}
            forced = numbers[choice.algorithm]
        write(self._DYNAMIC, int(choice is not None))
        if self._han is not None and choice is not None:
            write(self._HAN, 0)
        write(stem, forced)
        before = self._variables.read(segment) if self._variables.has(segment) else None
        if before is not None and choice is not None and forced:
            write(segment, choice.segment_bytes)
        copy = self._world.Dup()
        write(stem, 0)
        if before is not None:
            write(segment, before)
        if self._han is not None:
            write(self._HAN, self._han)
        return copy

    def close(self) -> None:
        for copy in self._copies.values():
            copy.Free()
        self._copies.clear()


class _Mpich:
    """MPICH, by variables that it reads at every call."""

    name = "mpich"

    def __init__(self, mpi: Any, version: str) -> None:
        self.version = version
        self._world = mpi.COMM_WORLD
        self._variables = Variables()
        self._given: dict[str, int] = {}

    def choices(self, collective: Collective, size_bytes: int) -> tuple[LibraryChoice, ...]:  # noqa: ARG002
        values = self._variables.values(f"MPIR_CVAR_{MPICH_FUNCTIONS[collective]}_INTRA_ALGORITHM")
        return tuple(LibraryChoice(name) for _, name in values if name not in ("auto", "ccl"))

    def use(self, collective: Collective, choice: LibraryChoice | None) -> Any:
        stem = f"MPIR_CVAR_{MPICH_FUNCTIONS[collective]}"
        algorithm, device = f"{stem}_INTRA_ALGORITHM", f"{stem}_DEVICE_COLLECTIVE"
        for name in (algorithm, device):
            self._given.setdefault(name, self._variables.read(name))
        if choice is None:
            self._variables.write(algorithm, 0)
            self._variables.write(device, 1)
        elif choice.algorithm == DEPLOYED:
            for name in (algorithm, device):
                self._variables.write(name, self._given[name])
        else:
            numbers = {name: number for number, name in self._variables.values(algorithm)}
            self._variables.write(algorithm, numbers[choice.algorithm])
            self._variables.write(device, 0)
        return self._world

    def close(self) -> None:
        for name, value in self._given.items():
            self._variables.write(name, value)
        self._given.clear()


_TEXT = 8192
_NAMED = re.compile(r"^\s*([A-Za-z0-9_]+)\s+- ", re.MULTILINE)


class Variables:
    """MPI_T control variables of the library loaded in this process.

    Raises:
        InputError: If no MPI library is loaded, or it has no such interface.
    """

    def __init__(self) -> None:
        path = _loaded_library()
        if path is None:
            raise InputError("expected a loaded MPI library, found none: import mpi4py.MPI first.")
        self._library = ctypes.CDLL(path)
        provided = ctypes.c_int()
        if self._library.MPI_T_init_thread(0, ctypes.byref(provided)):
            raise InputError(f"the MPI library {path} has no tool interface (MPI_T): use one that does.")

    def has(self, name: str) -> bool:
        """Whether the variable exists."""
        return self._index(name) is not None

    def values(self, name: str) -> tuple[tuple[int, str], ...]:
        """Numbers and names of an enumerated variable's values; empty for others.

        The names come from the enumeration where the library has one (Open MPI), else from the lines ``NAME - TEXT``
        of the description, in their order (MPICH).
        """
        index = self._index(name)
        if index is None:
            return ()
        length, words = ctypes.c_int(_TEXT), ctypes.create_string_buffer(_TEXT)
        enumeration, unasked = ctypes.c_void_p(), [None] * 4  # name and its length, verbosity, type
        self._library.MPI_T_cvar_get_info(
            index, *unasked, ctypes.byref(enumeration), words, ctypes.byref(length), None, None
        )
        found = self._items(enumeration) if enumeration.value else ()
        return found or tuple(enumerate(_NAMED.findall(words.value.decode(errors="replace"))))

    def _items(self, enumeration: ctypes.c_void_p) -> tuple[tuple[int, str], ...]:
        count, length, words = ctypes.c_int(), ctypes.c_int(_TEXT), ctypes.create_string_buffer(_TEXT)
        if self._library.MPI_T_enum_get_info(enumeration, ctypes.byref(count), words, ctypes.byref(length)):
            return ()
        found = []
        for item in range(count.value):
            value, length = ctypes.c_int(), ctypes.c_int(_TEXT)
            self._library.MPI_T_enum_get_item(
                enumeration, item, ctypes.byref(value), words, ctypes.byref(length)
            )
            found.append((value.value, words.value.decode(errors="replace")))
        return tuple(found)

    def read(self, name: str) -> int:
        """Read an integer variable."""
        value = ctypes.c_int()
        self._access(name, self._library.MPI_T_cvar_read, value)
        return value.value

    def write(self, name: str, number: int) -> None:
        """Write an integer variable."""
        self._access(name, self._library.MPI_T_cvar_write, ctypes.c_int(number))

    def _access(self, name: str, call: ctypes._NamedFuncPointer, value: ctypes.c_int) -> None:
        index = self._index(name)
        handle, count = ctypes.c_void_p(), ctypes.c_int()
        if index is None or self._library.MPI_T_cvar_handle_alloc(
            index, None, ctypes.byref(handle), ctypes.byref(count)
        ):
            raise InputError(f"this MPI library has no variable {name}: use Open MPI 5 or MPICH 4 or later.")
        failed = call(handle, ctypes.byref(value))
        self._library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        if failed:
            raise InputError(
                f"this MPI library does not let {name} be set while it runs (code {failed}): use a newer one."
            )

    def _index(self, name: str) -> int | None:
        index = ctypes.c_int()
        if self._library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            return None
        return index.value


def _loaded_library() -> str | None:
    """Path of the MPI library that this process has loaded (the very one, not another of that name)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if re.search(r"/libmpi(ch)?\.so[^/]*$", path):
            return path
    return None
