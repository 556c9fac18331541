"""What one call of Open MPI sends from rank to rank, counted by the library itself through MPI's tool interface.

mpi4py does not have this part of MPI (chapter "Tool Support" of the standard), so it is called through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from mpi_traffic import MONITORED, Call, Traffic, find_forced

__all__ = ["Tool", "measure", "prepared"]

_BYTES, _MESSAGES = "pml_monitoring_messages_size", "pml_monitoring_messages_count"
_CLASS_SIZE = 2  # MPI_T_PVAR_CLASS_SIZE of Open MPI's mpi.h
_SINGLE = 0  # MPI_THREAD_SINGLE

_SET_AT_START = frozenset({"allgatherv"})
"""Functions whose algorithm the library lets only the launcher choose: ``--mca coll_tuned_allgatherv_algorithm N``."""


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
            raise InputError(
                f"expected Open MPI, whose counters are read here, found {name}: start it with Open MPI's launcher."
            )
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
            raise InputError(
                f"expected a parameter of Open MPI, found {name!r}: `ompi_info --all --level 9` lists them."
            )
        self._call("cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(ctypes.c_int()))
        try:
            if self._library.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(value))):
                raise InputError(
                    f"expected a value that Open MPI accepts for {name}, found {value}: `ompi_info` says which."
                )
        finally:
            self._call("cvar_handle_free", ctypes.byref(handle))

    @contextlib.contextmanager
    def _counter(self, name: str, communicator: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if self._library.MPI_T_pvar_get_index(name.encode(), _CLASS_SIZE, ctypes.byref(index)):
            raise InputError(
                f"Open MPI counts no messages in this run: start it with `mpirun {' '.join(MONITORED[:3])}`."
            )
        self._call(
            "pvar_handle_alloc", self._session, index, communicator, ctypes.byref(handle), ctypes.byref(count)
        )
        try:
            if count.value != self._peers:
                raise InputError(
                    f"expected {self._peers} counters of {name}, found {count.value}: another release of Open MPI?"
                )
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
            raise InputError(
                f"MPI_T_{name} of Open MPI failed with code {code}: is this a release before 5.0?"
            )


def measure(mpi: Any, communicator: Any, tool: Tool, call: Call) -> Traffic:
    """Run a call once and say who sent what; all ranks call this and get the same.

    Args:
        mpi: The module ``mpi4py.MPI``.
        communicator: The ranks, the same as those of ``tool``.
        tool: The counters of this rank.
        call: What to run; blocks are ``elements // ranks``.

    Raises:
        InputError: If there is no such algorithm.
    """
    collective, forced = find_forced(call)
    ranks = communicator.Get_size()
    if collective.sharded and call.elements % ranks:
        raise InputError(
            f"expected equal blocks of {ranks} ranks, found {call.elements} elements: choose a multiple."
        )
    numbers = {**forced.inner, call.function: call.number}
    settings = {
        f"coll_tuned_{function}_algorithm": number
        for function, number in numbers.items()
        if function not in _SET_AT_START
    }
    if forced.segmented is not None:
        settings[f"coll_tuned_{call.function}_algorithm_segmentsize"] = call.segment_bytes
    for name, value in settings.items():
        tool.set(name, value)
    own = communicator.Dup()
    try:
        run = prepared(own, call)
        before = tool.sent()
        run()
        sent = np.ascontiguousarray(tool.sent() - before)
    finally:
        for name in settings:
            tool.set(name, 0)
        own.Free()
    found = np.zeros((ranks, 2, ranks), dtype=np.int64)
    communicator.Allgather([sent, mpi.INT64_T], [found, mpi.INT64_T])
    return Traffic(size_bytes=found[:, 0], messages=found[:, 1])


def prepared(communicator: Any, call: Call) -> Callable[[], object]:
    """The call, with memory of its own; it may be made again."""
    ranks, root = communicator.Get_size(), call.root
    at_root = communicator.Get_rank() == root
    block = call.elements // ranks
    whole, other = np.zeros((2, call.elements), dtype=np.int32)
    part = np.zeros(block, dtype=np.int32)
    counts = [block] * ranks
    calls: dict[str, Callable[[], object]] = {
        "allgather": lambda: communicator.Allgather(part, whole),
        "allgatherv": lambda: communicator.Allgatherv(part, [whole, counts]),
        "allreduce": lambda: communicator.Allreduce(whole, other),
        "alltoall": lambda: communicator.Alltoall(whole, other),
        "alltoallv": lambda: communicator.Alltoallv([whole, counts], [other, counts]),
        "barrier": communicator.Barrier,
        "bcast": lambda: communicator.Bcast(whole, root),
        "gather": lambda: communicator.Gather(part, whole if at_root else None, root),
        "reduce": lambda: communicator.Reduce(whole, other if at_root else None, root=root),
        "reduce_scatter": lambda: communicator.Reduce_scatter(whole, part, counts),
        "reduce_scatter_block": lambda: communicator.Reduce_scatter_block(whole, part),
        "scatter": lambda: communicator.Scatter(whole if at_root else None, part, root),
    }
    return calls[call.function]
