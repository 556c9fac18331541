"""Traces a training step of a module in a process of its own."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.modules.operations import ModuleTrace, TraceRequest, TraceResult

_SHARDS = ("none", "zero3")


def trace_module(
    file: Path | str,
    function: str = "build",
    *,
    ranks: int = 0,  # Ranks of the job; 0: the product of the mesh
    # Degrees by name, the slowest first; without one all ranks are replicas (`dp`)
    mesh: Mapping[str, int] | None = None,
    shard: str = "none",  # `none` or `zero3`
    # Shapes and types of the inputs, such as `8x256` or `4x128:int64`; none: those of the function
    inputs: Sequence[str] = (),
) -> ModuleTrace:
    """Trace a forward and a backward pass of a module of PyTorch on fake tensors: nothing is computed or allocated.

    The function returns a module, or (module, inputs). It is called on the device ``meta`` with a fake process group of
    all ranks. If it takes an argument ``mesh``, it gets the device mesh, and may parallelize the module and share it
    out (``parallelize_module``, ``fully_shard``). Parameters that it does not share out over ``dp`` are summed in
    buckets as PyTorch's DDP does, or shared out block by block by ``fully_shard``.
    """
    degrees = dict(mesh or {"dp": max(ranks, 1)})
    product = math.prod(degrees.values())
    if ranks and product != ranks:
        found = ", ".join(f"{name}={degree}" for name, degree in degrees.items())
        raise InputError(
            f"expected degrees whose product is the {ranks} ranks, found {found}: change `parallel` or `ranks`."
        )
    if shard not in _SHARDS:
        raise InputError(
            f"expected `shard` to be {' or '.join(_SHARDS)} for a module of PyTorch, found {shard!r}."
        )
    path = Path(file)
    if not path.is_file():
        raise InputError(
            f"cannot read the module {path} (no such file): name a Python file, as model.py:build."
        )
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "expected PyTorch to trace a module with, found it not installed: install coppice[torch]."
        )
    request = TraceRequest(
        file=str(path), function=function, ranks=product, mesh=degrees, shard=shard, inputs=list(inputs)
    )
    return _traced(request)


def _traced(request: TraceRequest) -> ModuleTrace:
    """What the tracing process answers."""
    with tempfile.TemporaryDirectory(prefix="coppice-") as folder:
        target = Path(folder) / "answer.json"
        words = ["-m", "coppice.iteration.modules.worker", msgspec.json.encode(request).decode(), str(target)]
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"},
        )
        if not target.is_file():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            last = lines[-1] if lines else f"exit code {done.returncode}"
            raise InputError(
                f"expected the tracing of {request.file} to end, found it stopped: {last.strip().rstrip('.')}."
            )
        result = msgspec.json.decode(target.read_bytes(), type=decodable(TraceResult))
    if result.trace is None:
        raise InputError(result.error)
    return result.trace
