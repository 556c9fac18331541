"""Stock NCCL as a device: ``ncclPutSignal``, ``ncclSignal`` and ``ncclWaitSignal`` through nccl4py.

Windows are whole allocations of NCCL, of equal size on all ranks; every communicator registers them once per size. The
twin has the same semantics; nothing in this file has run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from coppice.errors import InputError
from coppice.run.engines.put_signal.cuda import CudaStreams
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.errors import RunError

__all__ = ["FIRST_NCCL", "NcclDevice", "nccl4py"]

FIRST_NCCL = (2, 29, 2)
"""The first release that puts and signals."""

_MANY_SIGNALS = (2, 31, 2)
_GRAPHS = (2, 30, 3)
_SIGNALS = 4


def nccl4py() -> Any:
    """The module ``nccl.core``.

    Raises:
        InputError: If it is not installed.
    """
    try:
        return import_module("nccl.core")
    except ImportError:
        msg = "expected nccl4py for puts of NCCL, found none: `pip install nccl4py`, or use torch's symmetric memory."
        raise InputError(msg) from None


class NcclDevice(CudaStreams):
    """One rank's end of NCCL communicators; see :class:`coppice.run.engines.put_signal.device.PutSignalDevice`.

    Args:
        rank: This rank; its GPU is torch's current one.
        ranks: Number of ranks.
        exchange: Gives every rank the bytes of all, in rank order.

    Raises:
        MissingExtraError: If torch is not installed.
        InputError: If there is no GPU, no nccl4py, or NCCL is too old.
        RunError: If NCCL cannot put between these ranks.
    """

    single = False

    def __init__(self, rank: int, ranks: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        super().__init__("NCCL")
        self.rank, self.ranks = rank, ranks
        self._nccl = nccl4py()
        self._exchange = exchange
        library = self._nccl.get_version().libnccl
        version = (0,) if library is None else tuple(library.version.release)
        if version < FIRST_NCCL:
            msg = (
                f"expected NCCL {'.'.join(map(str, FIRST_NCCL))} or later for puts and signals, found "
                f"{'none' if library is None else library.version}: install a later one."
            )
            raise InputError(msg)
        self.signals = _SIGNALS if version >= _MANY_SIGNALS else 1
        self.captures = version >= _GRAPHS
        self._groups: list[Any] = []
        self._windows: list[Any] = []

    def prepare(self, num_bytes: int, *, communicators: int, streams: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.prepare`."""
        self.order()
        length = self.new_window(num_bytes)
        self.want_streams(streams)
        before = len(self._groups)
        while len(self._groups) < communicators:
            self._groups.append(self._new_group())
        if length:
            self._exchange(b"")  # nobody puts into what is let go
            for window in self._windows:
                window.close()
            self._windows = []
            self.window = self._nccl.torch.empty(length, dtype=self.torch.uint8, device=self.device)
        for group in self._groups[0 if length else before :]:
            window = group.register_window(self.window, self._nccl.WindowFlag.COLL_SYMMETRIC)
            if window is None or not window.handle:  # None in some releases of nccl4py
                msg = (
                    "expected a window of symmetric memory, found none on this platform: NCCL needs cuMem, and peer "
                    "access or GPUDirect RDMA between all ranks."
                )
                raise RunError(msg)
            self._windows.append(window)

    def transfer(self, communicator: int, stream: int, puts: Sequence[Put]) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.transfer`."""
        group, window, queue = (
            self._groups[communicator],
            self._windows[communicator],
            self.stream(stream).cuda_stream,
        )
        with self._nccl.group():
            for put in puts:
                if put.num_bytes:
                    group.put_signal(
                        self.window[put.source : put.source + put.num_bytes],
                        put.peer,
                        window,
                        put.target,  # in elements, which are bytes
                        put.signal,
                        put.context,
                        stream=queue,
                    )
                else:
                    group.signal(put.peer, put.signal, put.context, stream=queue)

    def wait(self, communicator: int, stream: int, awaited: Sequence[Awaited]) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.wait`."""
        rows = [
            self._nccl.WaitSignalDesc(
                peer=each.peer, op_count=each.count, signal_index=each.signal, context=each.context
            )
            for each in awaited
        ]
        self._groups[communicator].wait_signal(rows, stream=self.stream(stream).cuda_stream)

    def failure(self) -> str:
        """What a communicator reports by itself."""
        for group in self._groups:
            found = group.get_async_error()
            if int(found) not in (0, 7):  # success, in progress
                return f"an error of NCCL ({getattr(found, 'name', found)})"
        return ""

    def abort(self, reason: str) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.abort`."""
        super().abort(reason)
        while self._groups:
            self._groups.pop().abort()
        self._windows = []

    def close(self) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.close`."""
        self.leave()
        while self._windows:
            self._windows.pop().close()
        while self._groups:
            self._groups.pop().destroy()

    def _new_group(self) -> Any:
        """A communicator of all ranks."""
        mine = bytes(self._nccl.get_unique_id()) if self.rank == 0 else b""
        number = self._nccl.UniqueId.from_bytes(self._exchange(mine)[0])
        settings = {"num_rma_sig": self.signals, "rma_eager_init": True} if self.signals > 1 else {}
        config = self._nccl.NCCLConfig(**settings)
        group = self._nccl.Communicator.init(self.ranks, self.rank, number, config)
        if not group.host_rma_support:
            msg = (
                "expected NCCL to put between these ranks, found that it does not (hostRmaSupport is false): see "
                "`coppice doctor --target nccl`, or use another engine."
            )
            raise RunError(msg)
        return group
