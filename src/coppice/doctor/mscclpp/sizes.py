"""Rules about chunks and sizes, and whether a message of a size would use the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coppice.collectives import Collective
from coppice.doctor.framework import ERROR, WARNING, Complaint
from coppice.doctor.mscclpp.plan import RULES, MscclppPlan, number, slots
from coppice.export.mscclpp.limits import LIMITS
from coppice.export.mscclpp.reader import COLLECTIVES, SCRATCH_BYTES

__all__ = ["reason_not_used"]

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
    low, high = number(plan.top.get("min_message_size")) or 0, number(plan.top.get("max_message_size"))
    if high is not None and high < low:
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


@RULES.rule("Z07", ERROR, "alignments are multiples of 16", "sums of the last bytes are read elsewhere")
def _aligned(plan: MscclppPlan) -> Iterator[Complaint]:
    alignment = number(plan.top.get("buffer_alignment"))
    if alignment is not None and (alignment < 1 or alignment % 16):
        text = f"buffer_alignment {alignment} lets chunks end within 16 bytes"
        yield ("buffer_alignment",), text, "write a multiple of 16"


def reason_not_used(plan: MscclppPlan, size: int) -> str | None:
    """Why a message would not use the plan, or None.

    Args:
        plan: The plan.
        size: M in bytes: of the output in an all-gather, else of the input.
    """
    found = plan.gpus
    if plan.ranks is not None and plan.ranks != len(found):
        return f"the plan is for {len(found)} ranks, not {plan.ranks}"
    alignment = _alignment(plan)
    low = number(plan.top.get("min_message_size")) or 0
    high = number(plan.top.get("max_message_size"))
    if size < low:
        return f"min_message_size is {low}"
    if size > (_NO_LIMIT if high is None else high):
        return f"max_message_size is {high}"
    for here in found:
        told = _told(plan, here.gpu)
        if not told:
            return "a rank has no chunks"
        if not size or size % (alignment * told):
            return (
                f"it is no positive multiple of {alignment * told} bytes ({told} chunks of {alignment} bytes)"
            )
        if size > _largest(plan, here.gpu):
            return f"offsets above {_largest(plan, here.gpu)} bytes do not fit into 32 bits"
    return None
