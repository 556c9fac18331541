"""Torch's symmetric memory on the emulated runtime: torch's own bookkeeping, over devices that are emulated.

The CPU build of torch has all of it that knows no device: the table of allocators, the table of process groups that
ranks meet by, the meeting, buffers and signal pads of peers, the size of a pad. That runs here unchanged. Two things
are not torch's. Its allocator of CUDA (``CUDASymmetricMemory``) is not in that build, as no kernel is:
``of_torch/symmetric_memory.cc`` is one for the emulated runtime; a signal is a word of the peer's pad, raised once it
is 0 and taken once it is 1, in the order of the stream, as torch's kernels do. And ``empty_strided_p2p`` takes devices
with a number only, which tensors of the CPU do not have: memory of torch's table becomes a tensor here.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import _SymmetricMemory

from emulated_gpu import cuda_of_torch as cuda

_SOURCE = Path(__file__).parent / "of_torch" / "symmetric_memory.cc"
_LIBRARIES = Path(__file__).parents[2] / "build" / "emulated_gpu"
_Stream = ctypes.CFUNCTYPE(ctypes.c_void_p)
_kept: list[Any] = []


def install() -> None:
    """Put an allocator of the emulated runtime into torch's own table; ranks are threads."""
    built = _LIBRARIES / "libsymmetric_memory.so"
    if not built.exists() or built.stat().st_mtime < _SOURCE.stat().st_mtime:
        _build(built)
    library = ctypes.CDLL(str(built))
    stream = _Stream(lambda: cuda.current_stream().handle.value)
    _kept.append(stream)
    library.emulated_symmetric_memory(stream)
    made = ctypes.PyDLL(str(built)).emulated_tensor
    made.restype, made.argtypes = ctypes.py_object, (ctypes.c_long,)
    patched: Any = _SymmetricMemory

    def allocate(size: Sequence[int], stride: Any, dtype: torch.dtype, *rest: Any) -> torch.Tensor:
        del stride, rest
        [count] = size
        found: torch.Tensor = made(count * dtype.itemsize)
        return found.view(dtype)

    patched.empty_strided_p2p = allocate


def _build(built: Path) -> None:
    """Compile the allocator; ranks of other processes may do so at the same time."""
    torch_of = Path(torch.__file__).parent
    include, libraries = torch_of / "include", torch_of / "lib"
    part = built.with_suffix(f".{os.getpid()}")
    command = [
        os.environ.get("CXX", "g++"),
        *("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"),
        *(f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", str(_SOURCE), "-o", str(part)),
        *(
            f"-L{libraries}",
            "-ltorch_python",
            "-ltorch_cpu",
            "-lc10",
            f"-L{_LIBRARIES}",
            "-l:libcudart.so.13",
        ),
        f"-Wl,-rpath,{libraries}",
    ]
    subprocess.run(command, check=True)
    part.replace(built)
