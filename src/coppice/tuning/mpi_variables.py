"""Control variables of an MPI library that runs, through MPI_T: read, write, and what values have names."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from coppice.errors import InputError

__all__ = ["Variables"]

_TEXT = 8192
_NAMED = re.compile(r"^\s*([A-Za-z0-9_]+)\s+- ", re.MULTILINE)


class Variables:
    """The control variables of the library that this process has loaded.

    Raises:
        InputError: If no MPI library is loaded, or it has no such interface.
    """

    def __init__(self) -> None:
        path = _loaded_library()
        if path is None:
            msg = "expected a loaded MPI library, found none: import mpi4py.MPI first."
            raise InputError(msg)
        self._library = ctypes.CDLL(path)
        provided = ctypes.c_int()
        if self._library.MPI_T_init_thread(0, ctypes.byref(provided)):
            msg = f"the MPI library {path} has no tool interface (MPI_T): use one that does."
            raise InputError(msg)

    def has(self, name: str) -> bool:
        """There is such a variable."""
        return self._index(name) is not None

    def values(self, name: str) -> tuple[tuple[int, str], ...]:
        """Numbers and names of the values of a variable; empty where they have none.

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
        """The value of a variable that is a number.

        Raises:
            InputError: If there is none of that name.
        """
        value = ctypes.c_int()
        self._access(name, self._library.MPI_T_cvar_read, value)
        return value.value

    def write(self, name: str, number: int) -> None:
        """Set a variable that is a number.

        Raises:
            InputError: If there is none of that name, or it cannot be set while the library runs.
        """
        self._access(name, self._library.MPI_T_cvar_write, ctypes.c_int(number))

    def _access(self, name: str, call: ctypes._NamedFuncPointer, value: ctypes.c_int) -> None:
        index = self._index(name)
        handle, count = ctypes.c_void_p(), ctypes.c_int()
        if index is None or self._library.MPI_T_cvar_handle_alloc(
            index, None, ctypes.byref(handle), ctypes.byref(count)
        ):
            msg = f"this MPI library has no variable {name}: use Open MPI 5 or MPICH 4 or later."
            raise InputError(msg)
        failed = call(handle, ctypes.byref(value))
        self._library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        if failed:
            msg = (
                f"this MPI library does not let {name} be set while it runs (code {failed}): use a newer one."
            )
            raise InputError(msg)

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
