"""What the put/signal device uses of ``nccl.core`` (nccl4py), over a given libnccl by ctypes."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from emulated_gpu.cuda_of_torch import tensor_at

_BYTE, _COLL_SYMMETRIC = 1, 1  # ncclUint8, NCCL_WIN_COLL_SYMMETRIC


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


class _WaitSignalDesc(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("count", "peer", "signal", "context"))


class Library:
    """A libnccl.

    Args:
        path: The file, or its name on the path of libraries.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        version = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(version))
        self.version = (version.value // 10000, version.value // 100 % 100, version.value % 100)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function, and raise what is wrong."""
        code = getattr(self._library, name)(*arguments)
        if code:
            said = self._library.ncclGetLastError
            said.restype = ctypes.c_char_p
            raise RuntimeError(f"{name} returned {code}: {said(None).decode()}")

    def unique_id(self) -> _UniqueId:
        """A new one."""
        made = _UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return made

    def module(self) -> ModuleType:
        """The module ``nccl.core``."""
        made: Any = ModuleType("nccl.core")
        told = SimpleNamespace(version=SimpleNamespace(release=self.version))
        made.get_version = lambda: SimpleNamespace(libnccl=told)
        made.get_unique_id = self.unique_id
        made.UniqueId = SimpleNamespace(from_bytes=_UniqueId.from_buffer_copy)
        made.Communicator = SimpleNamespace(init=self._init)
        made.NCCLConfig = lambda: None
        made.WindowFlag = SimpleNamespace(COLL_SYMMETRIC=_COLL_SYMMETRIC)
        made.WaitSignalDesc = _descriptor
        made.group = self._group
        made.torch = SimpleNamespace(empty=self._empty)
        return made  # type: ignore[no-any-return]

    def _init(self, ranks: int, rank: int, unique_id: _UniqueId, config: None = None) -> Communicator:
        del config
        return Communicator(self, ranks, rank, unique_id)

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        self.call("ncclGroupStart")
        try:
            yield
        finally:
            self.call("ncclGroupEnd")

    def _empty(self, count: int, *, dtype: torch.dtype, device: Any = None) -> torch.Tensor:
        del device
        pointer = ctypes.c_void_p()
        self.call("ncclMemAlloc", ctypes.byref(pointer), ctypes.c_size_t(count * dtype.itemsize))
        return tensor_at(pointer.value or 0, count, dtype)


def _descriptor(*, peer: int, op_count: int = 1, signal_index: int = 0, context: int = 0) -> _WaitSignalDesc:
    return _WaitSignalDesc(op_count, peer, signal_index, context)


class Communicator:
    """One rank's end."""

    host_rma_support = True  # not asked for: a window is missing, or the first put fails

    def __init__(self, library: Library, ranks: int, rank: int, unique_id: _UniqueId) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        library.call("ncclCommInitRank", ctypes.byref(self._handle), ranks, unique_id, rank)

    def register_window(self, buffer: torch.Tensor, flags: int = 0) -> Any:
        window = ctypes.c_void_p()
        size = ctypes.c_size_t(buffer.numel() * buffer.itemsize)
        memory = ctypes.c_void_p(buffer.data_ptr())
        self._library.call("ncclCommWindowRegister", self._handle, memory, size, ctypes.byref(window), flags)
        if not window.value:
            return None
        return SimpleNamespace(
            handle=window, close=lambda: self._library.call("ncclCommWindowDeregister", self._handle, window)
        )

    def put_signal(
        self,
        local: torch.Tensor,
        peer: int,
        window: Any,
        peer_window_offset: int,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: int,
    ) -> None:
        assert local.dtype == torch.uint8
        self._library.call(
            "ncclPutSignal",
            ctypes.c_void_p(local.data_ptr()),
            ctypes.c_size_t(local.numel()),
            _BYTE,
            peer,
            window.handle,
            ctypes.c_size_t(peer_window_offset),
            *(signal_index, context, flags, self._handle, ctypes.c_void_p(stream)),
        )

    def signal(
        self, peer: int, signal_index: int = 0, context: int = 0, flags: int = 0, *, stream: int
    ) -> None:
        self._library.call(
            "ncclSignal", peer, signal_index, context, flags, self._handle, ctypes.c_void_p(stream)
        )

    def wait_signal(self, descriptors: Sequence[_WaitSignalDesc], *, stream: int) -> None:
        rows = (_WaitSignalDesc * len(descriptors))(*descriptors)
        self._library.call("ncclWaitSignal", len(descriptors), rows, self._handle, ctypes.c_void_p(stream))

    def all_gather(self, source: torch.Tensor, target: torch.Tensor, *, stream: int) -> None:
        pointers = ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr())
        count = ctypes.c_size_t(source.numel() * source.itemsize)
        self._library.call("ncclAllGather", *pointers, count, _BYTE, self._handle, ctypes.c_void_p(stream))

    def all_reduce(self, source: torch.Tensor, target: torch.Tensor, *, stream: int) -> None:
        pointers = ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr())
        float32, total = 7, 0
        count = ctypes.c_size_t(source.numel())
        self._library.call(
            "ncclAllReduce", *pointers, count, float32, total, self._handle, ctypes.c_void_p(stream)
        )

    def get_async_error(self) -> int:
        found = ctypes.c_int()
        self._library.call("ncclCommGetAsyncError", self._handle, ctypes.byref(found))
        return found.value

    def abort(self) -> None:
        self._library.call("ncclCommAbort", self._handle)

    def destroy(self) -> None:
        self._library.call("ncclCommDestroy", self._handle)
