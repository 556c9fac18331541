"""Torch's symmetric memory as a put/signal device: copies into peer buffers and signal pads within an NVLink domain.

A signal of the pad is one bit for each (source, peer, channel): a second one waits until the first was taken, as in
CUDA graphs. Every peer has a stream of its own for puts, so that a signal that waits holds up no other peer's. Nothing
in this file has run on a GPU yet.

The module's own ``put_signal``, of torch's NCCL back end, puts to the start of a tensor only, up to torch 2.13: landing
at an offset of one window goes by :mod:`.nccl`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from coppice.errors import InputError
from coppice.run.engines.put_signal.cuda import CudaStreams
from coppice.run.engines.put_signal.device import Awaited, Put

_LOG = logging.getLogger("coppice")
_SIGNALS = 4
_NUMBER = count()
_FIRST_OF_PROCESS_GROUPS = (2, 11)
"""The first torch whose symmetric memory looks groups up among process groups."""

_KEPT: list[Any] = []
"""Memory of groups that are closed, which graphs may still use."""


class SymmetricMemoryDevice(CudaStreams):
    """Endpoint in symmetric memory; see :class:`coppice.run.engines.put_signal.device.PutSignalDevice`.

    Args:
        rank: This rank; its GPU is torch's current one.
        ranks: Number of ranks.
        exchange: Gives every rank the bytes of all, in rank order.
        store: Store of torch that these ranks have in common and nobody else uses; None takes the default process
            group, which is made where there is none.

    Raises:
        MissingExtraError: If torch is not installed.
        InputError: If there is no GPU, torch has no symmetric memory, or it is set to another back end than CUDA's.
    """

    signals = _SIGNALS
    single = True
    captures = True

    def __init__(
        self, rank: int, ranks: int, exchange: Callable[[bytes], list[bytes]], *, store: Any = None
    ) -> None:
        super().__init__("torch's symmetric memory")
        try:
            import torch.distributed as dist
            import torch.distributed._symmetric_memory as symmetric
            from torch._C import _distributed_c10d as c10d
        except ImportError:
            raise InputError(
                "expected a torch with symmetric memory, found an older one: install torch 2.9 or later."
            ) from None
        self.rank, self.ranks, self._exchange = rank, ranks, exchange
        self._symmetric: Any = symmetric
        self._c10d: Any = c10d
        self._process_group: Any = None  # torch's table of names holds it weakly
        chosen = symmetric.get_backend(self.device)
        if chosen not in (None, "CUDA"):
            raise InputError(
                f'expected symmetric memory of the back end CUDA, found {chosen}: call `set_backend("CUDA")` first.'
            )
        if store is None:
            if not dist.is_initialized():
                dist.init_process_group("nccl", rank=rank, world_size=ranks)
            self._group: Any = dist.group.WORLD
        else:
            self._group = self._register(store)
        self._handle: Any = None
        self._peer_streams: list[Any] = []
        self._kept: list[Any] = []  # windows and handles that graphs use

    def prepare(self, num_bytes: int, *, communicators: int, streams: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.prepare`."""
        self.order()
        length = self.new_window(num_bytes)
        self.want_streams(streams)
        if not self._peer_streams:
            self._peer_streams = [self.torch.cuda.Stream(self.device) for _ in range(self.ranks)]
        room = self._symmetric.get_signal_pad_size() // (4 * self.ranks)
        if communicators * _SIGNALS > room:
            raise InputError(
                f"expected a program of {room // _SIGNALS} communicators or fewer for the signal pad, found "
                f"{communicators}: use fewer communicators."
            )
        if not length:
            return
        self._exchange(b"")  # nobody puts into what is let go
        if self.window_kept():
            self._kept.append((self._handle, self.window))
        self.window = self._symmetric.empty(length, dtype=self.torch.uint8, device=self.device)
        self._handle = self._symmetric.rendezvous(self.window, self._group)

    def transfer(self, communicator: int, stream: int, puts: Sequence[Put]) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.transfer`."""
        queue = self.stream(stream)
        peers = sorted({put.peer for put in puts})
        for peer in peers:
            self._peer_streams[peer].wait_stream(queue)
        for put in puts:
            with self.torch.cuda.stream(self._peer_streams[put.peer]):
                if put.num_bytes:
                    there = self._handle.get_buffer(
                        put.peer, (put.num_bytes,), self.torch.uint8, storage_offset=put.target
                    )
                    there.copy_(self.window[put.source : put.source + put.num_bytes], non_blocking=True)
                self._handle.put_signal(put.peer, communicator * _SIGNALS + put.signal)
        for peer in peers:
            queue.wait_stream(self._peer_streams[peer])

    def wait(self, communicator: int, stream: int, awaited: Sequence[Awaited]) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.wait`."""
        with self.torch.cuda.stream(self.stream(stream)):
            for each in awaited:
                for _ in range(each.count):
                    self._handle.wait_signal(each.peer, communicator * _SIGNALS + each.signal)

    def close(self) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.close`.

        Memory that a graph may use is not let go while the process runs: nothing says when the last graph is gone.
        """
        self.leave()  # a kernel that waits for a signal cannot be called back: the watchdog ends the process
        if self._given_up:
            return
        if self._recorded or self._kept:
            _KEPT.append((self._kept, self._handle, self.window))
            _LOG.warning(
                "%s keeps %d bytes until this process ends, since graphs captured calls of a group that is closed",
                self.name,
                sum(window.numel() for _, window in (*self._kept, (None, self.window))),
            )
        self._handle = self.window = None
        self._kept, self._recorded = [], False
        if self._process_group is not None:
            self._c10d._unregister_process_group(self._group)  # noqa: SLF001
            self._process_group = None

    def _register(self, store: Any) -> str:
        """Make the ranks known to torch as a group, by a name of this process alone; ranks meet in the store.

        From torch 2.11 on symmetric memory looks groups up among process groups, before in a table of its own.
        """
        name = f"coppice-put-signal-{next(_NUMBER)}"
        self._process_group = self._c10d.ProcessGroup(store, self.rank, self.ranks)
        self._c10d._register_process_group(name, self._process_group)  # noqa: SLF001
        if tuple(map(int, self.torch.__version__.split(".")[:2])) < _FIRST_OF_PROCESS_GROUPS:
            self._symmetric._SymmetricMemory.set_group_info(name, self.rank, self.ranks, store)  # noqa: SLF001
        return name
