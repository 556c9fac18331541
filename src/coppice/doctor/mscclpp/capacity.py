"""Doctor rules about the executor's capacity, chunks and message sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from coppice.collectives import Collective
from coppice.doctor.framework import ERROR, WARNING, Complaint
from coppice.doctor.mscclpp.form import RULES, MscclppPlan, entries, listed, number, slots
from coppice.export.mscclpp.limits import LIMITS
from coppice.export.mscclpp.reader import COLLECTIVES, SCRATCH_BYTES

_SPREAD = "spread them over more thread blocks"
_SMALL_GPU = 104
"""Multiprocessors of the smallest GPU that is in use for this: half an MI250."""


def _per_block(
    plan: MscclppPlan, list_key: str, kind_key: str, ids_key: str, most: int, what: str
) -> Iterator[Complaint]:
    """Thread blocks that list more numbers of a type than there is room for."""
    for here in plan.blocks:
        count: Counter[str] = Counter()
        for _, entry in entries(here.block.get(list_key)):
            count[str(entry.get(kind_key))] += len(listed(entry.get(ids_key)))
        for kind, have in count.items():
            if have > most:
                text = what.format(have=have, most=most, kind=kind)
                yield (*here.path, list_key), f"the thread block {text}", _SPREAD


def _per_operation(plan: MscclppPlan, keys: Sequence[str], most: int, what: str) -> Iterator[Complaint]:
    """Operations that list more entries than there is room for."""
    for here in plan.operations:
        for key in keys:
            have = len(listed(here.op.get(key)))
            if have > most:
                text = what.format(have=have, most=most, key=key)
                yield (*here.path, key), f"the operation has {text}", "split it"


@RULES.rule("L01", ERROR, "64 operations in a thread block", "the executor refuses the plan")
def _operations(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        have = sum(1 + len(listed(op.get("ops"))) for _, op in entries(here.block.get("ops")))
        if have > LIMITS.operations:
            text = (
                f"the thread block has {have} operations of {LIMITS.operations}, those in pipelines counted"
            )
            yield (*here.path, "ops"), text, _SPREAD


@RULES.rule("L02", ERROR, "16 channels of a type in a thread block", "memory is overwritten, unchecked")
def _channels(plan: MscclppPlan) -> Iterator[Complaint]:
    what = "has {have} {kind} channels of {most}"
    yield from _per_block(plan, "channels", "channel_type", "channel_ids", LIMITS.channels, what)


@RULES.rule("L03", ERROR, "16 remote buffers of a thread block", "memory is overwritten, unchecked")
def _references(plan: MscclppPlan) -> Iterator[Complaint]:
    what = "refers to {have} remote buffers of {most} for {kind}"
    keys = ("remote_buffer_refs", "access_channel_type", "remote_buffer_ids")
    yield from _per_block(plan, *keys, LIMITS.remote_buffers, what)


@RULES.rule("L04", ERROR, "8 channels of an operation", "memory is overwritten, unchecked")
def _together(plan: MscclppPlan) -> Iterator[Complaint]:
    yield from _per_operation(plan, ["channel_ids"], LIMITS.together, "{have} channels of {most}")


@RULES.rule("L05", ERROR, "10 buffers of an operation", "memory is overwritten, unchecked")
def _buffers(plan: MscclppPlan) -> Iterator[Complaint]:
    what = "{have} entries of {most} in {key}"
    yield from _per_operation(plan, ["src_buff", "dst_buff"], LIMITS.buffers, what)


@RULES.rule("L06", ERROR, "16 barriers", "memory is overwritten, unchecked")
def _barriers(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        name = number(here.op.get("barrier_id"))
        if name is not None and name >= LIMITS.barriers:
            path = (*here.path, "barrier_id")
            yield path, f"barrier {name} is beyond the {LIMITS.barriers} there are", "use smaller numbers"


@RULES.rule("L07", ERROR, "16 semaphores of an operation", "memory is overwritten, unchecked")
def _semaphores(plan: MscclppPlan) -> Iterator[Complaint]:
    yield from _per_operation(plan, ["semaphore_ids"], LIMITS.semaphores, "{have} semaphores of {most}")


@RULES.rule("L08", ERROR, "whole warps, 1,024 threads at most", "the kernel is not launched")
def _threads(plan: MscclppPlan) -> Iterator[Complaint]:
    threads = number(plan.top.get("num_threads_per_block"))
    if threads is not None and (not 1 <= threads <= LIMITS.threads or threads % 32):
        text = f"thread blocks have {threads} threads"
        yield ("num_threads_per_block",), text, f"write a multiple of 32 up to {LIMITS.threads}"


@RULES.rule(
    "L09",
    WARNING,
    "all thread blocks run at once",
    "those that wait keep those that they wait for from running",
)
def _resident(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.gpus:
        have = len(listed(here.gpu.get("threadblocks")))
        if have > _SMALL_GPU:
            text = f"{have} thread blocks must run at once, each on a multiprocessor of its own"
            yield (*here.path, "threadblocks"), text, "make sure that the GPU has as many, or use fewer"


@RULES.rule("L10", ERROR, "every GPU has a thread block", "a kernel without any is not launched")
def _some(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.gpus:
        if here.gpu.get("threadblocks") == []:
            yield (*here.path, "threadblocks"), "a GPU has no thread block", "give it one with a nop"


_KEYS = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}

_NO_LIMIT = 2**64 - 1


def _alignment(plan: MscclppPlan) -> int:
    return number(plan.top.get("buffer_alignment")) or 16


def _chunks(gpu: dict[str, Any]) -> tuple[int, int, int]:
    """Chunks of the input, the output and the scratch memory; 0 where they are not told."""
    inputs, outputs, scratch = (number(gpu.get(key)) or 0 for key in _KEYS.values())
    return inputs, outputs, scratch


def _told(plan: MscclppPlan, gpu: dict[str, Any]) -> int:
    """Chunks of the buffer by which messages are measured."""
    inputs, outputs, _ = _chunks(gpu)
    return outputs if plan.top.get("collective") == "allgather" else inputs


def _largest(plan: MscclppPlan, gpu: dict[str, Any]) -> int:
    """Largest message whose offsets fit into 32 bits."""
    wide = 2 if plan.top.get("protocol") == "LL" else 1
    inputs, outputs, scratch = _chunks(gpu)
    alignment = _alignment(plan)
    chunk = (LIMITS.offset - 1) // max(inputs, outputs, scratch * wide, 1) // alignment * alignment
    return chunk * _told(plan, gpu)


def size_range(top: dict[str, Any]) -> tuple[int, int]:
    """Smallest and largest message of a plan in bytes."""
    high = number(top.get("max_message_size"))
    return number(top.get("min_message_size")) or 0, _NO_LIMIT if high is None else high


def unit_bytes(plan: MscclppPlan, gpu: dict[str, Any]) -> int:
    """Number of bytes that messages must be a multiple of; 0 where the plan has no chunks."""
    return _alignment(plan) * _told(plan, gpu)


@RULES.rule("Z01", ERROR, "no rank without chunks", "the loader divides by zero")
def _zero(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.gpus:
        for key in ("input_chunks", "output_chunks"):
            if here.gpu.get(key) == 0:
                text = f"{key} is 0, and sizes are divided by it"
                yield (*here.path, key), text, "give every rank 1 chunk or more"


@RULES.rule("Z02", ERROR, "chunks have one size", "the loader refuses the plan")
def _ratio(plan: MscclppPlan) -> Iterator[Complaint]:
    collective = COLLECTIVES.get(str(plan.top.get("collective")))
    found = plan.gpus
    for here in found:
        inputs, outputs, _ = _chunks(here.gpu)
        if collective is None or not inputs or not outputs:
            continue
        into = inputs * (len(found) if collective is Collective.ALL_GATHER else 1)
        out = outputs * (len(found) if collective is Collective.REDUCE_SCATTER else 1)
        if into != out:
            text = f"{inputs} chunks of input and {outputs} of output are of different sizes in {collective}"
            yield (*here.path, "output_chunks"), text, "cut both into chunks of one size"


@RULES.rule("Z03", ERROR, "chunks are within their buffers", "memory is overwritten, unchecked")
def _bounds(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        for path, each in slots(here):
            key = _KEYS.get(str(each.get("type")))
            index, size = number(each.get("index")), number(each.get("size"))
            have = number(here.gpu.get(key)) if key is not None else None
            if key == "output_chunks" and have == 0 and plan.top.get("inplace") is True:
                have = number(here.gpu.get("input_chunks"))
            if index is None or size is None or have is None:
                continue
            if size < 1 or index + size > have:
                text = f"chunks {index} to {index + size - 1} are not within the {have} of {key}"
                yield path, text, "write chunks that are there"


@RULES.rule("Z04", ERROR, "sizes rise", "no message uses the plan")
def _order(plan: MscclppPlan) -> Iterator[Complaint]:
    low, high = size_range(plan.top)
    if high < low:
        text = f"sizes from {low} to {high} are none"
        yield ("max_message_size",), text, "write min_message_size up to max_message_size"


@RULES.rule("Z05", WARNING, "offsets have 32 bits", "wrong memory is used, unchecked")
def _offsets(plan: MscclppPlan) -> Iterator[Complaint]:
    high = number(plan.top.get("max_message_size"))
    found = plan.gpus
    if not found or not _told(plan, found[0].gpu):
        return
    largest = min(_largest(plan, here.gpu) for here in found)
    if high is None or high > largest:
        path = ("max_message_size",) if high is not None else ()
        text = f"offsets of messages above {largest:,} bytes do not fit into 32 bits"
        yield path, text, f"write max_message_size {largest}"


@RULES.rule("Z06", WARNING, "reused scratch memory has 64 MiB", "memory beyond it is overwritten, unchecked")
def _rings(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.top.get("reuse_resources") is not True:
        return
    found = plan.gpus
    different = {_chunks(here.gpu)[2] for here in found}
    if len(different) > 1:
        path = (*found[0].path, "scratch_chunks")
        text = f"ranks have {min(different)} to {max(different)} scratch chunks"
        yield path, text, "give all of them as many"
        return
    scratch = max(different, default=0)
    high = number(plan.top.get("max_message_size"))
    for here in plan.operations:
        beside = [each for _, each in slots(here) if each.get("type") == "s" and not here.loop]
        told = _told(plan, here.gpu)
        if beside and told and scratch:
            limit = SCRATCH_BYTES // scratch * told
            if high is None or high > limit:
                text = (
                    f"outside a pipeline it uses scratch memory, too small for messages above {limit:,} bytes"
                )
                yield here.path, text, f"write max_message_size {limit}, or put it into a pipeline"
                return


@RULES.rule(
    "Z08",
    WARNING,
    "resources that are reused reach scratch memory only",
    "later calls with other buffers still use those of the first",
)
def _first_buffers(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.top.get("reuse_resources") is not True:
        return
    for here in plan.gpus:
        for place, buffer in entries(here.gpu.get("remote_buffers")):
            if buffer.get("type") in ("i", "o"):
                path = (*here.path, "remote_buffers", place)
                text = f"buffer {buffer['type']!r} of GPU {buffer.get('rank')} is that of the first call for ever"
                yield path, text, "drop reuse_resources, or go by way of scratch memory"


@RULES.rule("Z07", ERROR, "alignments are multiples of 16", "sums of the last bytes are read elsewhere")
def _aligned(plan: MscclppPlan) -> Iterator[Complaint]:
    alignment = number(plan.top.get("buffer_alignment"))
    if alignment is not None and (alignment < 1 or alignment % 16):
        text = f"buffer_alignment {alignment} lets chunks end within 16 bytes"
        yield ("buffer_alignment",), text, "write a multiple of 16"


@RULES.rule("Z09", ERROR, "ranks of the communicator", "no message uses the plan")
def _ranks(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.ranks is not None and plan.ranks != len(plan.gpus):
        text = f"the plan is for {len(plan.gpus)} ranks, the communicator has {plan.ranks}"
        yield ("gpus",), text, f"export a plan for {plan.ranks} ranks"


def reason_not_used(plan: MscclppPlan, size: int) -> str | None:
    """Why a message would not use the plan, or None.

    Args:
        size: M in bytes: of the output in an all-gather, else of the input.
    """
    found = plan.gpus
    if plan.ranks is not None and plan.ranks != len(found):
        return f"the plan is for {len(found)} ranks, not {plan.ranks}"
    alignment = _alignment(plan)
    low, high = size_range(plan.top)
    if size < low:
        return f"min_message_size is {low}"
    if size > high:
        return f"max_message_size is {high}"
    for here in found:
        told = _told(plan, here.gpu)
        if not told:
            return "a rank has no chunks"
        if not size or size % (alignment * told):
            throws = ", and the call throws" if plan.preloaded and size else ""
            unit = f"{alignment * told} bytes ({told} chunks of {alignment} bytes)"
            return f"it is no positive multiple of {unit}{throws}"
        if size > _largest(plan, here.gpu):
            return f"offsets above {_largest(plan, here.gpu)} bytes do not fit into 32 bits"
    return None
