"""Runs an exported script on the emulated runtime, as one rank of its own: ``nccl_script.py SCRIPT OPTION...``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from emulated_gpu import cuda_of_torch as cuda

if __name__ == "__main__":
    cuda.install(setattr)
    as_tensor = torch.as_tensor

    def shown(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        told = getattr(data, "__cuda_array_interface__", None)
        if told is None:
            return as_tensor(data, dtype=dtype, device=device)
        count = 1
        for size in told["shape"]:
            count *= size
        return cuda.tensor_at(told["data"][0], count, dtype).view(told["shape"])

    torch.as_tensor = shown  # type: ignore[assignment]
    del sys.argv[0]
    with cuda.Issued():
        runpy.run_path(sys.argv[0], run_name="__main__")
