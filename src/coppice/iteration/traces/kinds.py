"""Read traces of training programs, detecting the format by content.

Execution traces of MLCommons (Chakra) are binary, one a rank; those of PyTorch (``ExecutionTraceObserver``) have
operators with their tensors, in JSON, without times.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.export.chakra.reading import ChakraNode, ChakraNodeType, read_chakra
from coppice.files import read_bytes
from coppice.iteration.totals import ELEMENT_BYTES, standard_collective
from coppice.iteration.traces.replay import ExecutionTrace, TraceNode, TraceWork

_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "barrier"),
)
"""By number (``CollectiveCommType`` of the schema)."""


def chakra_nodes(data: bytes, *, file: str, rank: int) -> ExecutionTrace:
    """Read a Chakra trace.

    Nodes wait by their data dependencies, as the feeder of Chakra issues them; control dependencies name the node that
    called one, and bind nothing. Collectives of the host that have no size only launch those of the device.

    Args:
        rank: The rank, unless the header or the name of the file (``NAME.RANK.et``) says another.
    """
    header, nodes = read_chakra(data, file=file)
    told = re.search(r"\.(\d+)\.et$", file)
    own = header.get("rank")
    if isinstance(own, int):
        rank = own
    elif told is not None:
        rank = int(told[1])
    return ExecutionTrace(file=file, kind="Chakra", rank=rank, nodes=[_node(each) for each in nodes])


def _node(each: ChakraNode) -> TraceNode:
    """Convert a node of the schema."""
    on_host = bool(each.attributes.get("is_cpu_op", False))
    work, stream = TraceWork.COMPUTE, "device"
    group = str(each.attributes.get("pg_name", "") or each.attributes.get("comm_group", ""))
    collective, peer = "", -1
    size = each.whole("comm_size")
    if each.type is ChakraNodeType.COLL and not (on_host and not size):
        work, stream = TraceWork.COLLECTIVE, f"group {group}" if group else "collectives"
        number = each.whole("comm_type", -1)
        known = 0 <= number < len(_COLLECTIVES)
        collective = _COLLECTIVES[number] if known else standard_collective(each.name) or "collective"
    elif each.type is ChakraNodeType.SEND:
        work, stream, peer = TraceWork.SEND, "", each.whole("comm_dst", -1)
    elif each.type is ChakraNodeType.RECV:
        work, stream, peer = TraceWork.RECEIVE, "", each.whole("comm_src", -1)
    elif on_host:
        work, stream = TraceWork.HOST, f"thread {each.whole('tid')}"
    elif "stream" in each.attributes:
        stream = f"stream {each.whole('stream')}"
    return TraceNode(
        id=each.id,
        name=each.name[:80],
        work=work,
        after=each.data,
        seconds=each.duration_us / 1e6,
        stream=stream,
        collective=collective,
        size_bytes=size if work in (TraceWork.COLLECTIVE, TraceWork.SEND, TraceWork.RECEIVE) else 0,
        group=group,
        ranks=each.whole("pg_size") if work is TraceWork.COLLECTIVE else 0,
        peer=peer,
        tag=each.whole("comm_tag"),
    )


_TENSOR = 6  # tensor, storage, offset, elements, bytes of an element, device


class _OperatorAttribute(msgspec.Struct):
    """Attribute of a node."""

    name: str = ""
    value: Any = None


class _OperatorValues(msgspec.Struct):
    """Inputs or outputs of a node."""

    values: list[Any] = []


class _Operator(msgspec.Struct):
    """Node of the file."""

    id: int
    name: str = ""
    ctrl_deps: int = 0
    inputs: _OperatorValues | list[Any] = []
    outputs: _OperatorValues | list[Any] = []
    attrs: list[_OperatorAttribute] = []


class _OperatorFile(msgspec.Struct):
    """Fields of the file."""

    schema: str
    nodes: list[_Operator]
    rank: int = -1


def pytorch_nodes(data: bytes, *, file: str, rank: int) -> ExecutionTrace:
    """Read a trace of PyTorch's ExecutionTraceObserver.

    Operators that call no others are the work, in the order in which threads ran them; an operator waits for the
    collectives that wrote storages that it reads, and runs after the one before it of its thread. Collectives are what
    ``record_param_comms`` notes.

    Args:
        rank: The rank, unless the file says another.
    """
    try:
        found = msgspec.json.decode(data, type=decodable(_OperatorFile))
    except JSON_FAULTS as error:
        fault = json_fault(error, data)
        if "cut off" in fault:
            raise InputError(
                f"expected a whole execution trace in {file}, found {fault}: unregister the observer first."
            ) from None
        raise InputError(
            f"expected an execution trace of PyTorch in {file} (schema, nodes), found otherwise: {fault}."
        ) from None
    sizes = _group_sizes(found.nodes)
    callers = {each.ctrl_deps for each in found.nodes}
    inside = {each.id for each in found.nodes if each.name == "record_param_comms"}
    nodes: list[TraceNode] = []
    wrote: dict[int, int] = {}
    before: dict[int, int] = {}
    for each in sorted(found.nodes, key=lambda one: one.id):
        told = {one.name: one.value for one in each.attrs}
        communicates = each.name == "record_param_comms"
        if each.ctrl_deps in inside or (each.id in callers and not communicates):
            continue
        if each.name.startswith(("[", "##")):
            continue
        thread = int(told.get("tid", 0) or 0)
        last = [before[thread]] if thread in before else []
        collective = standard_collective(str(told.get("collective_name", ""))) if communicates else ""
        waits = {wrote[key] for key in _storages(each.inputs) if key in wrote}
        if communicates and not collective:  # a wait
            continue
        after = tuple(sorted({*waits, *last}))
        if not communicates:
            node = TraceNode(
                id=each.id, name=each.name, work=TraceWork.COMPUTE, after=after, stream=f"thread {thread}"
            )
            before[thread] = each.id
        else:
            node = _collective(each.id, collective, told, sizes, after)
            for key in [*_storages(each.outputs), *_storages(each.inputs)]:
                wrote[key] = each.id
        nodes.append(node)
    return ExecutionTrace(
        file=file, kind="PyTorch", rank=found.rank if found.rank >= 0 else rank, nodes=nodes
    )


def _collective(
    number: int, collective: str, told: dict[str, Any], sizes: dict[str, int], after: tuple[int, ...]
) -> TraceNode:
    """Collective from a node's attributes."""
    elements = max(int(told.get("in_msg_nelems", 0) or 0), int(told.get("out_msg_nelems", 0) or 0))
    width = ELEMENT_BYTES.get(str(told.get("dtype", "float")).lower(), 4)
    group = str(told.get("pg_name", ""))
    work = {"send": TraceWork.SEND, "recv": TraceWork.RECEIVE}.get(collective, TraceWork.COLLECTIVE)
    return TraceNode(
        id=number,
        name=collective,
        work=work,
        after=after,
        stream=f"group {group}",
        collective=collective,
        size_bytes=elements * width,
        group=group,
        ranks=int(told.get("pg_size", 0) or 0) or sizes.get(group, 0),
    )


def _group_sizes(nodes: list[_Operator]) -> dict[str, int]:
    """Ranks of each process group, from its creation."""
    found: dict[str, int] = {}
    for each in nodes:
        if "process_group:init" not in each.name:
            continue
        values = each.inputs.values if isinstance(each.inputs, _OperatorValues) else each.inputs
        for text in values:
            try:
                groups = json.loads(text) if isinstance(text, str) else []
            except ValueError:
                continue
            for group in groups if isinstance(groups, list) else []:
                if isinstance(group, dict):
                    count = group.get("group_size") or len(group.get("ranks", ()))
                    found[str(group.get("pg_name", ""))] = int(count)
    return found


def _storages(values: _OperatorValues | list[Any]) -> list[int]:
    """Storages of the tensors among values."""
    found: list[int] = []
    waiting = list(values.values if isinstance(values, _OperatorValues) else values)
    while waiting:
        each = waiting.pop()
        if not isinstance(each, list):
            continue
        numbers = len(each) == _TENSOR and all(isinstance(one, int) for one in each[: _TENSOR - 1])
        if numbers and isinstance(each[-1], str):
            found.append(each[1])
        else:
            waiting.extend(each)
    return found


_MOST_BYTES = 4 * 2**30
_LOOK = 1 << 16
_ZIPPED = (b"PK\x03\x04", b"PK\x05\x06")
_ASCEND = (b'"Ascend Hardware"', b'"CANN"')
"""Processes that the traces of Ascend's profiler (torch_npu, MindStudio) name."""
_SUFFIXES = (".et", ".json", ".json.gz", ".gz")


class TraceKind(StrEnum):
    """Kinds of traces."""

    PROFILER = "trace of PyTorch's profiler"
    PYTORCH = "execution trace of PyTorch"
    CHAKRA = "Chakra execution trace"


def read_trace_bytes(path: Path | str, *, what: str = "the trace") -> bytes:
    """Content of a file, gzipped or not.

    Args:
        what: What it is expected to be, for messages.
    """
    data = read_bytes(path, what=what, most_bytes=_MOST_BYTES)
    if data[:4] in _ZIPPED:
        raise InputError(
            f"expected a trace, gzipped or not, in {path}, found a zip file: unzip it, and name the trace inside."
        )
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"expected a whole gzip file in {path}, found otherwise: {str(error).rstrip('.')}: copy it again."
        ) from None


def bare_list(data: bytes) -> str:
    """Advice on a list of events without ``traceEvents`` around it.

    Examples:
        >>> bare_list(b'[{"name": "process_name", "args": {"name": "CANN"}}]').split(": ")[0]
        "a bare list of events, as Ascend's profiler exports it, which is not read"
    """
    if any(name in data for name in _ASCEND):
        return (
            "a bare list of events, as Ascend's profiler exports it, which is not read: give the job to "
            "`coppice train estimate` instead, or profile it on GPUs with torch.profiler and export_chrome_trace"
        )
    return "a bare list of events: export it with torch.profiler's export_chrome_trace"


def kind_of(data: bytes, *, file: str = "the file") -> TraceKind:
    """Detect the kind of a trace by its content.

    Examples:
        >>> kind_of(b'{"schema": "1.1.0", "nodes": []}').value
        'execution trace of PyTorch'
    """
    start = data[:_LOOK].lstrip()
    if start[:1] in (b"{", b"["):
        if b'"traceEvents"' in start or b'"traceEvents"' in data:
            return TraceKind.PROFILER
        if b'"nodes"' in start and b'"schema"' in start:
            return TraceKind.PYTORCH
        if start[:1] == b"[":
            raise InputError(
                f"expected a trace of PyTorch's profiler (with traceEvents) in {file}, found {bare_list(data)}."
            )
        raise InputError(
            f"expected a trace of PyTorch's profiler (traceEvents), an execution trace of PyTorch (schema, nodes) or a "
            f"Chakra trace in {file}, found other JSON: profile with torch.profiler and export_chrome_trace."
        )
    return TraceKind.CHAKRA


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Files by name; a folder stands for its traces, in the order of their numbers."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = [each for each in path.iterdir() if each.is_file() and each.name.endswith(_SUFFIXES)]
        if not inside:
            raise InputError(
                f"expected traces (*{', *'.join(_SUFFIXES[:3])}) in the folder {path}, found none: name a file."
            )
        found += sorted(
            inside, key=lambda each: [int(part) if part.isdigit() else part for part in _parts(each.name)]
        )
    return found


def _parts(name: str) -> list[str]:
    """Sort key of a name: alternating text and numbers, text first.

    >>> _parts("trace.10.et")
    ['trace.', '10', '.et']
    """
    parts = [""]
    for letter in name:
        if parts[-1] and parts[-1][-1].isdigit() != letter.isdigit():
            parts.append("")
        parts[-1] += letter
    return ["", *parts] if name[:1].isdigit() else parts


def read_traces(contents: Sequence[tuple[str, bytes]]) -> list[ExecutionTrace]:
    """Read execution traces, one per rank; ranks that files do not name are numbered."""
    traces = []
    for number, (name, data) in enumerate(contents):
        kind = kind_of(data, file=name)
        if kind is TraceKind.PROFILER:
            raise InputError(
                f"expected execution traces together, found a {kind} in {name}: import one of its ranks alone."
            )
        read = chakra_nodes if kind is TraceKind.CHAKRA else pytorch_nodes
        traces.append(read(data, file=name, rank=number))
    return traces
