"""Modules of PyTorch traced on fake tensors: operations, collectives, layers, times, and what goes wrong."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import read_workload
from coppice.iteration.machine import cluster_of
from coppice.iteration.modules import tracing
from coppice.iteration.modules.timed import time_module
from coppice.iteration.modules.tracing import ModuleTrace, TraceRequest, TraceResult, trace_module
from coppice.iteration.predicted import predict
from coppice.topology.presets import preset

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

MODEL = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def mlp(d):
    return nn.Sequential(nn.Linear(d, 4 * d, bias=False), nn.ReLU(), nn.Linear(4 * d, d, bias=False))

def build():
    return nn.Sequential(mlp(256), mlp(256)), torch.randn(8, 256)

def parallelized(mesh):
    module, inputs = build()
    for each in module:
        parallelize_module(each, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(each, mesh=mesh["dp"])
    return fully_shard(module, mesh=mesh["dp"]), inputs

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(100, 16), nn.Linear(16, 100, bias=False)
        self.head.weight = self.words.weight
    def forward(self, x):
        return nn.functional.cross_entropy(self.head(self.words(x)).flatten(0, 1), x.flatten())

def tied():
    return Tied(), torch.zeros(2, 5, dtype=torch.long)

class Looks(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

def looks():
    return Looks(4, 4), torch.randn(2, 4)

def alone():
    return nn.Linear(4, 8)

def text():
    return "a module"

def asks(width):
    return nn.Linear(width, width)

def fails():
    raise KeyError("width")

def flat():
    return nn.Linear(4, 4), torch.randn(2, 5)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "model.py"
    path.write_text(MODEL)
    return path


def answered(
    file: Path, function: str, mesh: Mapping[str, int], shard: str = "none", inputs: Sequence[str] = ()
) -> TraceResult:
    """What the tracing process answers, in this process: importing PyTorch once is enough."""
    from coppice.iteration.modules.worker import answer

    return answer(
        TraceRequest(
            file=str(file),
            function=function,
            ranks=math.prod(mesh.values()),
            mesh=dict(mesh),
            shard=shard,
            inputs=list(inputs),
        )
    )


def traced(file: Path, function: str, mesh: Mapping[str, int], shard: str = "none") -> ModuleTrace:
    result = answered(file, function, mesh, shard)
    assert result.trace is not None, result.error
    return result.trace


def collectives(trace: ModuleTrace) -> list[tuple[str, str, int, int]]:
    return [(each.collective, each.group, each.count, each.size_bytes) for each in trace.collectives()]


@needs_torch
def test_replicas_sum_gradients_in_buckets(file: Path) -> None:
    trace = traced(file, "build", {"dp": 16})
    assert [(layer.name, layer.parameters) for layer in trace.layers] == [
        (name, 256 * 1024) for name in ("0.0", "0.2", "1.0", "1.2")
    ]
    # The first bucket holds a megabyte, the second what is left.
    assert collectives(trace) == [("all_reduce", "0-15", 2, 4 * 4 * 256 * 1024)]
    forward, backward = trace.layer_sums({number: each.flops for number, each in enumerate(trace.operations)})
    product = 2 * 8 * 256 * 1024
    assert forward == [product] * 4
    assert backward == [product, *[2 * product] * 3]  # nothing asks for the gradient of the inputs
    sends = [number for number, each in enumerate(trace.operations) if each.collective]
    assert all(trace.operations[number].after for number in sends)
    assert sends[0] < max(number for number, each in enumerate(trace.operations) if each.flops)


@needs_torch
def test_parameters_shared_out(file: Path) -> None:
    trace = traced(file, "build", {"dp": 16}, "zero3")
    whole = 4 * 2 * 256 * 1024  # of a block
    assert collectives(trace) == [
        ("all_gather", "0-15", 4, 4 * whole),
        ("reduce_scatter", "0-15", 2, 2 * whole),
    ]
    assert trace.parameters == 4 * 256 * 1024
    timed = time_module(trace, cluster_of(preset("dgx-a100", boxes=2)))
    start, finish = timed.times.start, timed.times.finish
    gathers = [number for number, each in enumerate(trace.operations) if each.collective == "all_gather"]
    # The second gather runs beside the first block, whose products come before it in the program.
    assert start[gathers[1]] == finish[gathers[0]]
    assert timed.lower_bound_seconds <= timed.seconds <= timed.compute_seconds + timed.communication_seconds


@needs_torch
def test_tensor_parallelism_of_ones_own(file: Path) -> None:
    trace = traced(file, "parallelized", {"dp": 2, "tp": 8})
    part = 4 * 2 * 256 * 1024 // 8  # of a block on a rank
    assert collectives(trace) == [
        ("all_gather", "0,8", 4, 4 * part),
        ("reduce_scatter", "0,8", 2, 2 * part),
        ("all_reduce", "0-7", 3, 3 * 4 * 8 * 256),  # two forward; backward the first block needs none
    ]
    forward, _ = trace.layer_sums({number: each.flops for number, each in enumerate(trace.operations)})
    assert forward == [2 * 8 * 256 * 1024 / 8] * 4
    waits = [each for each in trace.operations if each.waits]
    assert len(waits) == 3
    assert all(each.after for each in waits)


@needs_torch
def test_shared_parameters_count_once(file: Path) -> None:
    trace = traced(file, "tied", {"dp": 4})
    assert [(layer.name, layer.parameters) for layer in trace.layers] == [("words", 1600)]
    assert collectives(trace) == [("all_reduce", "0-3", 1, 6400)]


@needs_torch
def test_the_workload_of_policies(file: Path, tmp_path: Path) -> None:
    timed = time_module(traced(file, "build", {"dp": 16}), cluster_of(preset("dgx-a100", boxes=2)))
    workload = timed.workload()
    assert workload.bytes == (4.0 * 256 * 1024,) * 4
    assert workload.compute_seconds == pytest.approx(timed.compute_seconds)
    assert workload.message(2.0 * 1024 * 1024) == pytest.approx(
        timed.cluster.ring_seconds(2.0 * 1024 * 1024, 16, 1)
    )
    same = predict(workload, "ddp", {"first_bytes": 2**20, "bucket_bytes": 25 * 2**20})
    assert same.iteration_seconds == pytest.approx(timed.seconds, rel=1e-6)
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(workload.record()))
    assert read_workload(path) == workload


@needs_torch
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nothing", "expected a function `nothing` in .*, which has mlp, build"),
        ("looks", r"without looking at values, found DataDependentOutputException at .*model\.py:\d+"),
        ("alone", "expected example inputs, found a module alone"),
        ("text", "to return a module or .*, found str"),
        ("asks", "to need nothing or `mesh`, found width"),
        ("fails", r"builds the module on the device meta, found KeyError at .*model\.py:\d+: 'width'"),
        ("flat", r"runs under fake tensors.*, found RuntimeError at .*model\.py"),
    ],
)
def test_what_goes_wrong(file: Path, function: str, words: str) -> None:
    error = answered(file, function, {"dp": 2}).error
    assert re.search(words, error), error
    assert error.count(": ") <= 3
    assert "\n" not in error


@needs_torch
def test_inputs_by_their_shapes(file: Path) -> None:
    given = answered(file, "alone", {"dp": 2}, inputs=["16x4"]).trace
    assert given is not None
    assert given.operations[0].flops == 2 * 16 * 4 * 8
    assert "found '16y4'" in answered(file, "alone", {"dp": 2}, inputs=["16y4"]).error
    assert "found '16:int65'" in answered(file, "alone", {"dp": 2}, inputs=["16:int65"]).error


@needs_torch
def test_a_process_of_its_own(file: Path) -> None:
    found = trace_module(file, "build", mesh={"dp": 4})
    assert found.ranks == 4
    assert found.collectives()[0].ranks == 4
    found.require_collectives()


def test_before_anything_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="product is the 8 ranks, found dp=4"):
        trace_module(file, ranks=8, mesh={"dp": 4})
    with pytest.raises(InputError, match="none or zero3"):
        trace_module(file, mesh={"dp": 4}, shard="zero9")
    with pytest.raises(InputError, match="no such file"):
        trace_module(tmp_path / "nothing.py", mesh={"dp": 4})
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"found it not installed: install coppice\[torch\]"):
        trace_module(file, mesh={"dp": 4})


def test_no_collectives() -> None:
    trace = ModuleTrace(module="Net", ranks=1, mesh={"dp": 1}, layers=[], operations=[], torch="2.13")
    with pytest.raises(InputError, match="on 1 ranks, found none: share the job out"):
        trace.require_collectives()
