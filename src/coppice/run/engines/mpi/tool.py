"""Open MPI's tool interface: what a program may set in the running library, and what the library counts.

mpi4py does not have this part of MPI (chapter "Tool Support" of the standard), so it is called through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError

__all__ = ["MONITORED", "Tool"]

MONITORED = (
    *("--mca", "pml_monitoring_enable", "1"),
    *("--mca", "coll_tuned_use_dynamic_rules", "1"),
    *("--mca", "coll_tuned_priority", "100"),
)
"""Words for Open MPI's launcher: count messages, let algorithms be forced, and let nothing but ``tuned`` decide."""

_BYTES, _MESSAGES = "pml_monitoring_messages_size", "pml_monitoring_messages_count"
_CLASS_SIZE = 2  # MPI_T_PVAR_CLASS_SIZE of Open MPI's mpi.h
_SINGLE = 0  # MPI_THREAD_SINGLE


class Tool:
    """Open MPI's tool interface, as one rank sees it; a context manager.

    Args:
        mpi: The module ``mpi4py.MPI``, loaded with Open MPI.
        communicator: Peers are counted by their rank here, whichever communicator a message belongs to.

    Raises:
        InputError: If another library is loaded, or the launcher was not told to count messages.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        name, _ = mpi.get_vendor()
        if name != "Open MPI":
            msg = f"expected Open MPI, whose counters are read here, found {name}: start it with Open MPI's launcher."
            raise InputError(msg)
        # The symbols of the library that this very module is linked to.
        self._library = ctypes.CDLL(mpi.__file__)
        self._peers: int = communicator.Get_size()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            self._call("init_thread", _SINGLE, ctypes.byref(ctypes.c_int()))
            opened.callback(self._call, "finalize")
            self._session = ctypes.c_void_p()
            self._call("pvar_session_create", ctypes.byref(self._session))
            opened.callback(self._call, "pvar_session_free", ctypes.byref(self._session))
            address = ctypes.c_void_p(mpi._addressof(communicator))  # noqa: SLF001 (mpi4py's documented way)
            self._counters = [
                opened.enter_context(self._counter(name, address)) for name in (_BYTES, _MESSAGES)
            ]
            self._open = opened.pop_all()

    def __enter__(self) -> Self:
        """Nothing more to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give everything back."""
        self._open.close()

    def sent(self) -> NDArray[np.int64]:
        """Bytes and messages that this rank has sent to each peer so far: 2 rows of P."""
        return np.stack([self._read(handle) for handle in self._counters])

    def set(self, name: str, value: int) -> None:
        """Set a parameter of the library; algorithms are forced in communicators that are made afterwards.

        Raises:
            InputError: If the library has no such parameter, or does not let it be changed.
        """
        index, handle = ctypes.c_int(), ctypes.c_void_p()
        if self._library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            msg = f"expected a parameter of Open MPI, found {name!r}: `ompi_info --all --level 9` lists them."
            raise InputError(msg)
        self._call("cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(ctypes.c_int()))
        try:
            if self._library.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(value))):
                msg = f"expected a value that Open MPI accepts for {name}, found {value}: `ompi_info` says which."
                raise InputError(msg)
        finally:
            self._call("cvar_handle_free", ctypes.byref(handle))

    @contextlib.contextmanager
    def _counter(self, name: str, communicator: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if self._library.MPI_T_pvar_get_index(name.encode(), _CLASS_SIZE, ctypes.byref(index)):
            msg = (
                f"Open MPI counts no messages in this run: start it with `mpirun {' '.join(MONITORED[:3])}`."
            )
            raise InputError(msg)
        self._call(
            "pvar_handle_alloc", self._session, index, communicator, ctypes.byref(handle), ctypes.byref(count)
        )
        try:
            if count.value != self._peers:
                msg = f"expected {self._peers} counters of {name}, found {count.value}: another release of Open MPI?"
                raise InputError(msg)
            self._call("pvar_start", self._session, handle)
            yield handle
        finally:
            self._call("pvar_handle_free", self._session, ctypes.byref(handle))

    def _read(self, handle: ctypes.c_void_p) -> NDArray[np.int64]:
        found = np.zeros(self._peers, dtype=np.uint64)
        self._call("pvar_read", self._session, handle, ctypes.c_void_p(found.ctypes.data))
        return found.astype(np.int64)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, f"MPI_T_{name}")(*arguments)
        if code:
            msg = f"MPI_T_{name} of Open MPI failed with code {code}: is this a release before 5.0?"
            raise InputError(msg)
