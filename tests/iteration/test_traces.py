"""Execution traces: kinds told apart, ranks replayed together, and public files if they are there."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.chakra import wire
from coppice.export.chakra.traces import chakra_trace
from coppice.iteration.kineto import read_kineto
from coppice.iteration.machine import cluster_of
from coppice.iteration.traces.kinds import (
    TraceKind,
    kind_of,
    pytorch_nodes,
    read_trace_bytes,
    read_traces,
    trace_files,
)
from coppice.iteration.traces.replay import ExecutionTrace, TraceNode, TraceWork, replay_traces
from coppice.planners.planning import plan
from coppice.topology.presets import preset

FOLDER = os.environ.get("COPPICE_PUBLIC_TRACES")
"""A folder with `chakra.0.et` (mlcommons/chakra, feeder_tests_trace.tar.gz), `resnet_2gpu_et.json.gz`
(facebookresearch/param) and `nccl_data.json.gz` (facebookresearch/HolisticTraceAnalysis)."""


def public(name: str) -> Path:
    if FOLDER is None:
        pytest.skip("COPPICE_PUBLIC_TRACES names no folder with public traces")
    path = Path(FOLDER) / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


def node(number: int, work: TraceWork, seconds: float = 0.0, **values: Any) -> TraceNode:
    return TraceNode(id=number, name=str(number), work=work, seconds=seconds, **values)


def rank(number: int, *nodes: TraceNode) -> ExecutionTrace:
    return ExecutionTrace(file=f"t.{number}.et", kind="Chakra", rank=number, nodes=nodes)


def test_an_exported_plan_is_replayed(tmp_path: Path) -> None:
    topology = preset("dgx-h100")
    body = plan(Problem(topology=topology, collective=Collective.ALL_REDUCE), ring=False).plan.body
    trace = chakra_trace(body, size_bytes=1 << 28)
    trace.write(tmp_path)
    files = trace_files([tmp_path])
    assert [file.name for file in files] == [f"trace.{number}.et" for number in range(8)]
    traces = read_traces([(file.name, read_trace_bytes(file)) for file in files])
    replay = replay_traces(traces)
    assert (replay.met, replay.alone) == (trace.messages.count, 0)
    assert replay.timeless == trace.messages.count
    sent = sum(
        total.size_bytes for each in traces for total in each.collectives() if total.collective == "send"
    )
    assert sent == int(trace.messages.num_bytes.sum())
    timed = replay_traces(traces, cluster=cluster_of(topology))
    assert timed.timeless == 0
    assert timed.seconds >= timed.lower_bound_seconds * (1 - 1e-9) > 0


def test_ranks_wait_for_each_other() -> None:
    """Rank 1 comes late to the collective, whose least measured time holds no waiting."""
    gather = {"collective": "all_gather", "size_bytes": 8, "group": "0", "stream": "group 0"}
    early = rank(0, node(1, TraceWork.COMPUTE, 1.0), node(2, TraceWork.COLLECTIVE, 5.0, after=(1,), **gather))
    late = rank(1, node(1, TraceWork.COMPUTE, 4.0), node(2, TraceWork.COLLECTIVE, 2.0, after=(1,), **gather))
    assert replay_traces([early]).seconds == 6.0
    assert replay_traces([early, late]).seconds == 6.0
    assert replay_traces([early, late], scale={"compute": 0.5}).seconds == 4.0
    assert replay_traces([early, late], scale={"communication": 2.0}).seconds == 8.0


def test_a_receipt_comes_after_its_send() -> None:
    sender = rank(
        0,
        node(1, TraceWork.COMPUTE, 3.0),
        node(2, TraceWork.SEND, 1.0, after=(1,), stream="", peer=1, tag=7, size_bytes=4),
    )
    taker = rank(
        1,
        node(1, TraceWork.RECEIVE, stream="", peer=0, tag=7, size_bytes=4),
        node(2, TraceWork.COMPUTE, 2.0, after=(1,)),
    )
    found = replay_traces([sender, taker])
    assert (found.seconds, found.met, found.alone) == (6.0, 1, 0)
    assert replay_traces([taker]).alone == 1
    other = dataclasses.replace(taker, nodes=[dataclasses.replace(taker.nodes[0], tag=8)])
    with pytest.raises(InputError, match="expected a send from rank 0 with tag 8"):
        replay_traces([sender, other])


def test_traces_that_do_not_belong_together() -> None:
    gather = node(2, TraceWork.COLLECTIVE, 5.0, collective="all_gather", group="0")
    with pytest.raises(InputError, match=r"1 in t\.0\.et and 2 in t\.1\.et"):
        replay_traces([rank(0, gather), rank(1, gather, dataclasses.replace(gather, id=3))])
    with pytest.raises(InputError, match="found rank 0 in"):
        replay_traces([rank(0, gather), rank(0, gather)])


def observed(**more: Any) -> dict[str, Any]:
    """An operator, a collective that reads what it wrote, and an operator that reads what that wrote."""

    def one(
        number: int, name: str, caller: int, reads: list[int], writes: list[int], **told: Any
    ) -> dict[str, Any]:
        tensors = [[[key, key, 0, 4, 4, "cuda:0"] for key in keys] for keys in (reads, writes)]
        return {
            "id": number,
            "name": name,
            "ctrl_deps": caller,
            "inputs": {"values": tensors[0]},
            "outputs": {"values": tensors[1]},
            "attrs": [{"name": key, "type": "", "value": value} for key, value in {"tid": 1, **told}.items()],
        }

    told = {
        "collective_name": "allreduce",
        "dtype": "Float",
        "in_msg_nelems": 4,
        "out_msg_nelems": 4,
        "pg_name": "0",
    }
    groups = one(2, "## process_group:init ##", 1, [], [])
    groups["inputs"]["values"] = ['[{"pg_name": "0", "group_size": 2}]']
    nodes = [
        one(1, "[pytorch|profiler|execution_trace|thread]", 0, [], []),
        groups,
        one(3, "aten::mm", 1, [7], [8]),
        one(4, "c10d::allreduce_", 1, [8], [8]),
        one(5, "record_param_comms", 4, [8], [8], **told),
        one(6, "nccl:all_reduce", 5, [8], [8]),
        one(7, "record_param_comms", 1, [], [], collective_name="wait"),
        one(9, "aten::add", 1, [8], [9]),
    ]
    return {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes, **more}


def test_an_execution_trace_of_pytorch() -> None:
    found = pytorch_nodes(json.dumps(observed()).encode(), file="et.json", rank=3)
    assert found.rank == 3
    assert [(each.id, each.work.value, each.after) for each in found.nodes] == [
        (3, "compute", ()),
        (5, "collective", (3,)),
        (9, "compute", (3, 5)),
    ]
    (total,) = found.collectives()
    assert (total.collective, total.group, total.ranks, total.count, total.size_bytes) == (
        "all_reduce",
        "0",
        2,
        1,
        16,
    )
    assert pytorch_nodes(json.dumps(observed(rank=1)).encode(), file="et.json", rank=3).rank == 1


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"schemaVersion": 1, "traceEvents": []}', TraceKind.PROFILER),
        (json.dumps(observed()).encode(), TraceKind.PYTORCH),
        (wire.delimited(b""), TraceKind.CHAKRA),
    ],
)
def test_kinds_are_told_apart(data: bytes, kind: TraceKind) -> None:
    assert kind_of(data) is kind


def test_files_that_cannot_be_read_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found other JSON"):
        kind_of(b'{"jobs": []}', file="x.json")
    with pytest.raises(InputError, match="found not JSON: cut off at line 1"):
        pytorch_nodes(json.dumps(observed()).encode()[:-40], file="x.json", rank=0)
    with pytest.raises(InputError, match="import one of its ranks alone"):
        read_traces([("a.json", b'{"traceEvents": []}')])
    with pytest.raises(InputError, match="found none: name a file"):
        trace_files([tmp_path])
    broken = tmp_path / "t.et.gz"
    broken.write_bytes(gzip.compress(b"abc")[:-4])
    with pytest.raises(InputError, match="a whole gzip file"):
        read_trace_bytes(broken)


def test_public_chakra() -> None:
    (trace,) = read_traces([("chakra.0.et", public("chakra.0.et").read_bytes())])
    assert len(trace.nodes) == 3664
    reduced = trace.collectives()[0]
    assert (reduced.collective, reduced.count, reduced.size_bytes) == ("all_reduce", 5, 4 * 25_557_032)
    replay = replay_traces([trace])
    assert 0.29 < replay.lower_bound_seconds <= replay.seconds < 0.3


def test_public_execution_trace() -> None:
    data = read_trace_bytes(public("resnet_2gpu_et.json.gz"))
    (trace,) = read_traces([("et.json", data)])
    reduced = trace.collectives()[0]
    assert (reduced.collective, reduced.ranks, reduced.count) == ("all_reduce", 2, 15)
    assert reduced.size_bytes == 3 * 4 * 25_557_032


def test_public_profile() -> None:
    profile = read_kineto(public("nccl_data.json.gz"))
    assert [each.number for each in profile.profiled] == [4, 5, 6]
    step = profile.step(4)
    assert step.steps[0] == pytest.approx(222_442, abs=1)
    assert step.busy_us()["communication"] == pytest.approx(11_989, abs=1)
    reduced = step.collectives()[0]
    assert (reduced.count, reduced.size_bytes, reduced.ranks) == (5, 4 * 25_557_032, 2)
    assert 1e6 * step.replay().seconds == pytest.approx(step.span_us, rel=1e-4)
