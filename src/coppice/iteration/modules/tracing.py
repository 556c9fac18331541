"""Trace a training step of a module in a separate process: operations in the issue order of one rank."""

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
from coppice.iteration.totals import CollectiveTotal, collective_totals, group_text


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the tracing process."""

    file: str  # File with the function
    function: str  # Its name
    ranks: int  # Ranks of the fake process group
    mesh: dict[str, int]  # Degrees by name, the slowest first, such as `{"dp": 2, "tp": 8}`
    # `none`: replicas sum gradients in buckets; `zero3`: parameters are sharded by `fully_shard`
    shard: str
    # Shapes and types of the inputs, such as `8x256` or `4x128:int64`; none: those of the function
    inputs: list[str]


class ModuleOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation of one rank."""

    name: str  # Name of the operator, such as `aten.mm`
    layer: int = -1  # Index of the layer that it belongs to; -1: none
    backward: bool = False  # Whether it is of the backward pass
    again: bool = False  # Whether it is of a forward pass that the backward pass runs again
    update: bool = False  # Whether it is of the optimizer
    flops: int = 0  # Floating-point operations of matrix products, convolutions and attention
    moved_bytes: int = 0  # Bytes that it reads and writes
    element_bytes: int = 2  # Bytes of an element of its result
    after: list[int] = []  # Operations that wrote what it reads, those that other streams run
    collective: str = ""  # Name of the collective; empty: it computes
    # Bytes of the collective: the whole buffer of a rank, the larger one of what goes in and comes out
    size_bytes: int = 0
    ranks: list[int] = []  # Ranks of its group
    waits: bool = False  # It lets the computation wait for what it comes after, and does nothing itself


class ModuleLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A module with parameters of its own, in order of first use."""

    name: str  # Its qualified name
    kind: str  # Its class
    parameters: int  # Its parameters on this rank, before they are sharded over replicas
    gradient_bytes: int  # Bytes of their gradients


class ModuleTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Forward and backward pass of a module on one rank."""

    module: str  # Class of the module
    ranks: int  # Ranks of the job
    mesh: dict[str, int]  # Degrees by name
    layers: list[ModuleLayer]  # Layers
    operations: list[ModuleOperation]  # Operations in the order in which they are issued
    torch: str  # Version of PyTorch

    @property
    def parameters(self) -> int:
        """Parameters on this rank, before sharding over replicas."""
        return sum(layer.parameters for layer in self.layers)

    def collectives(self) -> list[CollectiveTotal]:
        """Collectives by kind and group, the largest first."""
        return collective_totals(
            (each.collective, group_text(each.ranks), len(each.ranks), each.size_bytes)
            for each in self.operations
            if each.collective and len(each.ranks) > 1
        )

    def layer_sums(self, values: Mapping[int, float]) -> tuple[list[float], list[float]]:
        """Sum of per-operation values by layer: forward, backward.

        Operations that belong to no layer count for the last layer before them, or for the first one.
        """
        forward, backward = [0.0] * len(self.layers), [0.0] * len(self.layers)
        at = 0
        for number, each in enumerate(self.operations):
            at = each.layer if each.layer >= 0 else at
            if self.layers and number in values:
                (backward if each.backward else forward)[at] += values[number]
        return forward, backward

    def require_collectives(self) -> None:
        """Raise unless some collective has more than one rank."""
        if not self.collectives():
            raise InputError(
                f"expected collectives in a step of {self.module} on {self.ranks} ranks, found none: share the job out "
                "with `parallel` (dp=16), or let the function take a `mesh` and parallelize with it."
            )


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """Output of the tracing process: a trace, or an error."""

    trace: ModuleTrace | None = None
    error: str = ""


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
    """Trace forward and backward pass of a PyTorch module on fake tensors, without computing or allocating.

    The function returns a module, or (module, inputs). It is called on the device ``meta`` with a fake process group of
    all ranks. If it takes an argument ``mesh``, it gets the device mesh, and may parallelize the module and share it
    out (``parallelize_module``, ``fully_shard``). Parameters that it does not shard over ``dp`` are summed in
    buckets as PyTorch's DDP does, or sharded block by block by ``fully_shard``.
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
    """Run the tracing process."""
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
