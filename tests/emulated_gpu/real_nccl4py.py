"""nccl4py itself on the emulated runtime, which takes the place of the driver that it would ask."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

import torch

from emulated_gpu.cuda_of_torch import call, tensor_at


class Device:
    """As ``cuda.core.Device``, as far as nccl4py needs it."""

    def __init__(self, device_id: int | None = None) -> None:
        if device_id is None:
            found = ctypes.c_int()
            call("cudaGetDevice", ctypes.byref(found))
            device_id = found.value
        self.device_id = device_id

    def set_current(self) -> None:
        call("cudaSetDevice", self.device_id)


def install() -> str:
    """Let nccl4py find devices, and tensors of a CPU that show memory of a device; return its release."""
    import cuda.core

    cuda.core.Device = Device
    import nccl.core
    import nccl.core.interop.torch as tensors

    resolve = tensors.resolve_tensor

    def allocated(shape: Any, dtype: torch.dtype, device: Any, order: str) -> torch.Tensor:
        del device, order
        [count] = shape
        buffer = nccl.core.mem_alloc(count * dtype.itemsize)
        _KEPT.append(buffer)
        return tensor_at(int(buffer.handle), count, dtype)

    def resolved(tensor: torch.Tensor) -> Any:
        return (*resolve(tensor)[:3], Device().device_id)

    tensors._allocate_nccl_tensor = allocated
    tensors._parse_device = lambda _: Device().device_id
    tensors.resolve_tensor = resolved
    return version("nccl4py")


_KEPT: list[Any] = []
"""Memory that tensors show."""
