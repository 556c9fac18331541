"""NCCL as a put/signal device: ``ncclPutSignal``, ``ncclSignal`` and ``ncclWaitSignal`` through nccl4py.

Windows are whole allocations of NCCL, of equal size on all ranks; every communicator registers them once per size. The
emulated device has the same semantics; nothing in this file has run on a GPU yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import signature
from threading import Thread
from typing import Any

from coppice.errors import InputError
from coppice.run.engines.put_signal.cuda import CudaStreams
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.errors import RunError

_LOG = logging.getLogger("coppice")

FIRST_NCCL = (2, 29, 2)
"""The first release that puts and signals."""

_MANY_SIGNALS = (2, 31, 2)
_GRAPHS = (2, 30, 3)
_SIGNALS = 4


FIRST_NCCL4PY = "0.4.1"
"""The first release of nccl4py that says which NCCL was loaded."""


def nccl4py() -> Any:
    """Import ``nccl.core``."""
    try:
        return import_module("nccl.core")
    except ImportError:
        raise InputError(
            "expected nccl4py for puts of NCCL, found none: `pip install nccl4py`, or use torch's symmetric memory."
        ) from None


def _release(nccl: Any) -> tuple[int, ...]:
    """Release of NCCL that nccl4py has loaded."""
    versions = nccl.get_version()
    if not hasattr(versions, "libnccl"):
        raise InputError(
            f"expected nccl4py {FIRST_NCCL4PY} or later, which tells the release of NCCL, found "
            f"{getattr(versions, 'nccl4py_version', 'an older one')}: `pip install -U nccl4py`."
        )
    library = versions.libnccl
    version = (0,) if library is None else tuple(library.version.release)
    if version < FIRST_NCCL:
        raise InputError(
            f"expected NCCL {'.'.join(map(str, FIRST_NCCL))} or later for puts and signals, found "
            f"{'none' if library is None else library.version}: install a later one."
        )
    return version


def _supported(group: Any) -> bool:
    """Whether NCCL puts between the ranks of a communicator, as far as it can be asked.

    Bindings for a later NCCL than the loaded one cannot ask; then the first put decides.
    """
    try:
        return bool(group.host_rma_support)
    except Exception as error:  # noqa: BLE001 (of the library, whose classes are not known without it)
        _LOG.info("NCCL could not be asked for hostRmaSupport: %s", error)
        return True


class NcclDevice(CudaStreams):
    """Endpoint of one rank in NCCL communicators; see :class:`coppice.run.engines.put_signal.device.PutSignalDevice`.

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
        version = _release(self._nccl)
        many = version >= _MANY_SIGNALS and "num_rma_sig" in signature(self._nccl.NCCLConfig).parameters
        self.signals = _SIGNALS if many else 1
        self.captures = version >= _GRAPHS
        self._groups: list[Any] = []
        self._windows: list[Any] = []
        self._kept: list[Any] = []  # windows that graphs use, and their memory

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
            if self.window_kept():
                self._kept.append((self._windows, self.window))
            else:
                for window in self._windows:
                    window.close()
            self._windows = []
            self.window = self._nccl.torch.empty(length, dtype=self.torch.uint8, device=self.device)
        for group in self._groups[0 if length else before :]:
            window = group.register_window(self.window, self._nccl.WindowFlag.COLL_SYMMETRIC)
            if window is None or not window.handle:  # None in some releases of nccl4py
                raise RunError(
                    "expected a window of symmetric memory, found none on this platform: NCCL needs cuMem, and peer "
                    "access or GPUDirect RDMA between all ranks."
                )
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
        """Asynchronous error of a communicator."""
        for group in list(self._groups):
            try:
                found = group.get_async_error()
            except Exception as error:  # noqa: BLE001 (such as of a communicator that was given up just now)
                return f"an error of NCCL ({type(error).__name__}: {error})"
            if int(found) not in (0, 7):  # success, in progress
                return f"an error of NCCL ({getattr(found, 'name', found)})"
        return ""

    def let_go(self) -> None:
        """Abort all communicators.

        NCCL's abort waits for what is on the user's streams, such as a wait for signals that its copy engines never see
        aborted, so that no communicator may stand in another's way.
        """
        super().let_go()
        groups, self._groups, self._windows, self._kept = self._groups, [], [], []
        threads = [Thread(target=self._on_device, args=(group.abort,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.close`."""
        self.leave(lambda: self._on_device(self._destroy))

    def _destroy(self) -> None:
        """Close windows, also those that were kept for graphs, and communicators."""
        for windows, _ in (*self._kept, (self._windows, None)):
            while windows:
                windows.pop().close()
        self._kept = []
        while self._groups:
            self._groups.pop().destroy()

    def _on_device(self, action: Callable[[], None]) -> None:
        """Do something on this rank's GPU, in a thread that has none of its own."""
        with self.torch.cuda.device(self.device):
            action()

    def _new_group(self) -> Any:
        """A communicator of all ranks."""
        mine = bytes(self._nccl.get_unique_id()) if self.rank == 0 else b""
        number = self._nccl.UniqueId.from_bytes(self._exchange(mine)[0])
        settings = {"num_rma_sig": self.signals, "rma_eager_init": True} if self.signals > 1 else {}
        config = self._nccl.NCCLConfig(**settings)
        group = self._nccl.Communicator.init(self.ranks, self.rank, number, config)
        if not _supported(group):
            raise RunError(
                "expected NCCL to put between these ranks, found that it does not (hostRmaSupport is false): see "
                "`coppice doctor --target nccl`, or use another engine."
            )
        return group
