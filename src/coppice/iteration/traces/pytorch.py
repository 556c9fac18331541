"""Execution traces of PyTorch (``ExecutionTraceObserver``): operators with their tensors, in JSON, without times."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.iteration.totals import ELEMENT_BYTES, standard_collective
from coppice.iteration.traces.nodes import ExecutionTrace, TraceNode, TraceWork

_TENSOR = 6  # tensor, storage, offset, elements, bytes of an element, device


class _OperatorAttribute(msgspec.Struct):
    """An attribute of a node."""

    name: str = ""
    value: Any = None


class _OperatorValues(msgspec.Struct):
    """Inputs or outputs of a node."""

    values: list[Any] = []


class _Operator(msgspec.Struct):
    """A node of the file."""

    id: int
    name: str = ""
    ctrl_deps: int = 0
    inputs: _OperatorValues | list[Any] = []
    outputs: _OperatorValues | list[Any] = []
    attrs: list[_OperatorAttribute] = []


class _OperatorFile(msgspec.Struct):
    """The file."""

    schema: str
    nodes: list[_Operator]
    rank: int = -1


def pytorch_nodes(data: bytes, *, file: str, rank: int) -> ExecutionTrace:
    """The trace in a file.

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
    """A collective by its attributes."""
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
    """Ranks of each group, as they were made."""
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
