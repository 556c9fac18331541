"""Torch's symmetric memory on the emulated runtime: allocations and meetings, with operations for kernels.

Groups are looked up in torch's own table of process groups, and ranks meet in the store of theirs. A signal is a word
of the peer's pad: it is raised once it is 0 and taken once it is 1, in the order of the stream, as torch's kernels do.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from emulated_gpu import cuda_of_torch as cuda

_EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ
_PAD_BYTES = 1 << 16


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Put it into torch, in place of what needs a driver; ranks are threads.

    Args:
        patch: Sets an attribute, such as ``setattr``.
    """
    from torch._C._distributed_c10d import _SymmetricMemory

    met: dict[Any, int] = defaultdict(int)
    patch(_SymmetricMemory, "empty_strided_p2p", _allocate)
    patch(_SymmetricMemory, "rendezvous", lambda tensor, name=None: _meet(tensor, name, met))


def _device_memory(num_bytes: int) -> int:
    address = ctypes.c_void_p()
    cuda.call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(num_bytes))
    cuda.call("cudaMemset", address, 0, ctypes.c_size_t(num_bytes))
    cuda.synchronize()
    return address.value or 0


def _allocate(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    group_name: str | None = None,
    alloc_id: int | None = None,
) -> torch.Tensor:
    del stride, device, group_name, alloc_id
    [count] = size
    return cuda.tensor_at(_device_memory(count * dtype.itemsize), count, dtype)


def _meet(tensor: torch.Tensor, group_name: str | None, met: dict[Any, int]) -> Handle:
    from torch._C._distributed_c10d import _resolve_process_group

    assert group_name is not None
    group: Any = _resolve_process_group(group_name)  # type: ignore[arg-type]
    rank, ranks, store = group.rank(), group.size(), group.get_group_store()
    for peer in range(ranks):
        if peer != rank:
            code = ctypes.CDLL("libcudart.so.13").cudaDeviceEnablePeerAccess(peer, 0)
            assert code in (0, 704), code  # already enabled
    turn = met[group_name, rank] = met[group_name, rank] + 1
    store.set(f"met/{turn}/{rank}", f"{tensor.data_ptr()} {_device_memory(_PAD_BYTES)}")
    told = [store.get(f"met/{turn}/{peer}").decode().split() for peer in range(ranks)]
    return Handle(rank, [int(window) for window, _ in told], [int(pad) for _, pad in told])


class Handle:
    """As ``torch._C._distributed_c10d._SymmetricMemory``."""

    def __init__(self, rank: int, windows: list[int], pads: list[int]) -> None:
        self._rank, self._windows, self._pads = rank, windows, pads

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        [length] = sizes
        return cuda.tensor_at(self._windows[rank] + storage_offset * dtype.itemsize, length, dtype)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        del timeout_ms
        self._change(self._word(dst_rank, self._rank, channel), 0, 1)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        del timeout_ms
        self._change(self._word(self._rank, src_rank, channel), 1, 0)

    def _word(self, owner: int, giver: int, channel: int) -> ctypes.c_ulonglong:
        return ctypes.c_ulonglong(self._pads[owner] + 4 * (channel * len(self._pads) + giver))

    def _change(self, word: ctypes.c_ulonglong, known: int, then: int) -> None:
        stream = cuda.current_stream().handle
        cuda.call("cuStreamWaitValue32", stream, word, known, _EQUAL)
        cuda.call("cuStreamWriteValue32", stream, word, then, 0)
