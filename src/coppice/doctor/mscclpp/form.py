"""Execution plan of MSCCL++ under examination, and doctor rules about its keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coppice.doctor.framework import ERROR, WARNING, Complaint, Path, Place, Rulebook, Subject
from coppice.export.mscclpp.document import JsonText, line_of, path_text
from coppice.export.mscclpp.limits import PreloadSlot
from coppice.export.mscclpp.reader import COLLECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanObject:
    """An object of the file with its ancestors."""

    path: Path  # Where it is
    gpu: dict[str, Any]  # Its GPU
    block: dict[str, Any]  # Its thread block; empty above thread blocks
    op: dict[str, Any]  # The operation; empty above operations
    loop: dict[str, Any]  # The pipeline that the operation is in; empty outside
    rank: int  # Place of its GPU

    @property
    def name(self) -> Any:
        """Name of the operation."""
        return self.op.get("name")


@dataclass(frozen=True, eq=False, kw_only=True)
class MscclppPlan(Subject):
    """An execution plan under examination."""

    document: JsonText  # The file
    ranks: int | None  # Ranks of the communicator, or None if not known
    # Communicators that the preloaded NCCL API library takes a file of its name for, None for other names
    slot: PreloadSlot | None = None
    preloaded: bool = False  # It has such a name, or lies where that library looks
    # Other plans that the library reads beside it, by the name of the file
    neighbours: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def locate(self, place: Place) -> tuple[int, str]:
        """Line and JSON path of a value."""
        return (
            super().locate(place)
            if isinstance(place, int)
            else (line_of(self.document.text, place), path_text(place))
        )

    @property
    def top(self) -> dict[str, Any]:
        """Top-level object."""
        return self.document.tree if isinstance(self.document.tree, dict) else {}

    @cached_property
    def gpus(self) -> tuple[PlanObject, ...]:
        """All GPUs."""
        return tuple(
            PlanObject(path=("gpus", rank), gpu=gpu, block={}, op={}, loop={}, rank=rank)
            for rank, gpu in entries(self.top.get("gpus"))
        )

    @cached_property
    def blocks(self) -> tuple[PlanObject, ...]:
        """All thread blocks."""
        return tuple(
            PlanObject(
                path=(*here.path, "threadblocks", place),
                gpu=here.gpu,
                block=block,
                op={},
                loop={},
                rank=here.rank,
            )
            for here in self.gpus
            for place, block in entries(here.gpu.get("threadblocks"))
        )

    @cached_property
    def operations(self) -> tuple[PlanObject, ...]:
        """All operations; those in pipelines follow their pipeline."""
        found = []
        for here in self.blocks:
            for place, op in entries(here.block.get("ops")):
                path = (*here.path, "ops", place)
                within = [
                    (path, op, {}),
                    *(((*path, "ops", k), each, op) for k, each in entries(op.get("ops"))),
                ]
                found += [
                    PlanObject(path=where, gpu=here.gpu, block=here.block, op=each, loop=loop, rank=here.rank)
                    for where, each, loop in within
                ]
        return tuple(found)

    def named(self, *names: str, by: str | None = None) -> Iterator[PlanObject]:
        """Operations by name, for one type of channel if ``by`` is given."""
        for here in self.operations:
            if here.name in names and by in (None, here.op.get("channel_type")):
                yield here


RULES = Rulebook[MscclppPlan]()
"""Rules about execution plans."""


def listed(value: Any) -> list[Any]:
    """Elements of a list; none where it is no list."""
    return value if isinstance(value, list) else []


def entries(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, object) of the objects of a list."""
    for place, each in enumerate(listed(value)):
        if isinstance(each, dict):
            yield place, each


def number(value: Any) -> int | None:
    """An integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def slots(here: PlanObject) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(path, object) of the chunks that an operation reads and writes."""
    for key in ("src_buff", "dst_buff"):
        for place, each in entries(here.op.get(key)):
            yield (*here.path, key, place), each


_TOP = {
    "name": ("text", True),
    "collective": ("text", True),
    "protocol": ("text", True),
    "inplace": ("true or false", True),
    "gpus": ("a list", True),
    "reuse_resources": ("true or false", False),
    "use_double_scratch_buffer": ("true or false", False),
    "buffer_alignment": ("a number", False),
    "num_threads_per_block": ("a number", False),
    "min_message_size": ("a number", False),
    "max_message_size": ("a number", False),
}
_GPU = {
    "id": ("a number", True),
    "input_chunks": ("a number", True),
    "output_chunks": ("a number", True),
    "scratch_chunks": ("a number", True),
    "threadblocks": ("a list", True),
    "channels": ("a list", True),
    "remote_buffers": ("a list", True),
    "semaphores": ("a list", False),
}
_BLOCK = {
    "id": ("a number", True),
    "ops": ("a list", True),
    "channels": ("a list", True),
    "remote_buffer_refs": ("a list", False),
}
_REMOTE = {"rank": ("a number", True), "type": ("text", True), "access_channel_types": ("a list", True)}
_SLOTS = {
    "index": ("a number", True),
    "size": ("a number", True),
    "type": ("text", False),
    "buffer_id": ("a number", False),
    "switch_channel_id": ("a number", False),
}
_OPERATION = {
    "name": ("text", True),
    "src_buff": ("a list", False),
    "dst_buff": ("a list", False),
    "channel_ids": ("a list", False),
    "channel_type": ("text", False),
    "barrier_id": ("a number", False),
    "num_threadblocks": ("a number", False),
    "semaphore_ids": ("a list", False),
    "ops": ("a list", False),
}
_TYPES = ("memory", "port", "switch", "none")
_BUFFERS = ("i", "o", "s")


def _objects(plan: MscclppPlan) -> Iterator[tuple[Path, dict[str, Any], Mapping[str, tuple[str, bool]]]]:
    """(path, object, keys that it should have)."""
    yield (), plan.top, _TOP
    for here in plan.gpus:
        yield here.path, here.gpu, _GPU
        for place, buffer in entries(here.gpu.get("remote_buffers")):
            yield (*here.path, "remote_buffers", place), buffer, _REMOTE
    for here in plan.blocks:
        yield here.path, here.block, _BLOCK
    for here in plan.operations:
        yield here.path, here.op, _OPERATION
        for path, each in slots(here):
            yield path, each, _SLOTS


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "text":
            return isinstance(value, str)
        case "true or false":
            return isinstance(value, bool)
        case "a list":
            return isinstance(value, list)
        case _:
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@RULES.rule("J01", ERROR, "all keys are there", "the loader throws, or reads nothing")
def _missing(plan: MscclppPlan) -> Iterator[Complaint]:
    if not isinstance(plan.document.tree, dict):
        text = "the file holds no object"
        yield (), text, "write an object with name, collective, protocol, inplace and gpus"
        return
    for path, each, keys in _objects(plan):
        for key, (_, needed) in keys.items():
            if needed and key not in each:
                yield path, f"the key {key} is missing", f"add {key}"
    if plan.top.get("gpus") == []:
        yield ("gpus",), "there is no GPU", "add one for each rank"


@RULES.rule("J02", ERROR, "values have their kind", "the loader throws")
def _kinds(plan: MscclppPlan) -> Iterator[Complaint]:
    for path, each, keys in _objects(plan):
        for key, (kind, _) in keys.items():
            if key in each and not _is(each[key], kind):
                yield (*path, key), f"{key} is {str(each[key])[:30]!r}", f"write {kind}"


@RULES.rule("J03", ERROR, "GPUs stand by their id", "the loader refuses the plan")
def _gpu_ids(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.gpus:
        if here.gpu.get("id", here.rank) != here.rank:
            text = f"GPU {here.gpu['id']} is at place {here.rank}"
            yield (*here.path, "id"), text, "list GPUs by their id, from 0"


@RULES.rule(
    "J04",
    ERROR,
    "thread blocks stand by their id",
    "operations run with the channels of another thread block",
)
def _block_ids(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        if here.block.get("id", here.path[-1]) != here.path[-1]:
            text = f"thread block {here.block['id']} is at place {here.path[-1]}"
            yield (*here.path, "id"), text, "number thread blocks by their place, from 0"


@RULES.rule("J05", WARNING, "protocols are Simple and LL", "it may not run as it is meant to")
def _protocol(plan: MscclppPlan) -> Iterator[Complaint]:
    protocol = plan.top.get("protocol")
    if isinstance(protocol, str) and protocol not in ("Simple", "LL"):
        yield ("protocol",), f"protocol {protocol!r} is taken as Simple", "write Simple or LL"


@RULES.rule(
    "J06",
    WARNING,
    "collectives have their names",
    "sizes are compared with the input, and nobody can say what the plan should do",
)
def _collective(plan: MscclppPlan) -> Iterator[Complaint]:
    name = plan.top.get("collective")
    if isinstance(name, str) and name not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        text = f"collective {name!r} is not one that anybody calls by that name"
        yield ("collective",), text, f"write one of {known}"


@RULES.rule("J07", ERROR, "types have their names", "the loader refuses the plan")
def _words(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.gpus:
        for place, channel in entries(here.gpu.get("channels")):
            path = (*here.path, "channels", place)
            yield from _word(path, channel, "channel_type", _TYPES)
            if channel.get("channel_type") == "switch":
                yield from _word(path, channel, "buffer_type", _BUFFERS)
        for place, buffer in entries(here.gpu.get("remote_buffers")):
            yield from _word((*here.path, "remote_buffers", place), buffer, "type", _BUFFERS)
    for here in plan.blocks:
        for place, channel in entries(here.block.get("channels")):
            yield from _word((*here.path, "channels", place), channel, "channel_type", _TYPES)
        for place, reference in entries(here.block.get("remote_buffer_refs")):
            path = (*here.path, "remote_buffer_refs", place)
            yield from _word(path, reference, "access_channel_type", ("memory", "port"))
    for here in plan.operations:
        for path, each in slots(here):
            if not {"type", "buffer_id", "switch_channel_id"} & set(each):
                yield path, "it names no memory", "add a type, a buffer_id or a switch_channel_id"
            elif "type" in each:
                yield from _word(path, each, "type", _BUFFERS)


def _word(path: Path, each: dict[str, Any], key: str, words: tuple[str, ...]) -> Iterator[Complaint]:
    if each.get(key) not in words:
        found = f"{key} is {each[key]!r}" if key in each else f"the key {key} is missing"
        yield ((*path, key) if key in each else path), found, f"write one of {', '.join(words)}"
