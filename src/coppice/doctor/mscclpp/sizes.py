"""Rules about chunks and sizes, and whether a message of a size would use the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coppice.collectives import Collective
from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.mscclpp.diagnose import Complaint, PlanRule
from coppice.doctor.mscclpp.walk import PlanCase, number, slots
from coppice.export.mscclpp.limits import LIMITS
from coppice.export.mscclpp.reader import COLLECTIVES, SCRATCH_BYTES

__all__ = ["RULES", "reason_not_used"]

_KEYS = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
_NO_LIMIT = 2**64 - 1


def _alignment(case: PlanCase) -> int:
    return number(case.top.get("buffer_alignment")) or 16


def _chunks(gpu: dict[str, Any]) -> tuple[int, int, int]:
    """Chunks of the input, the output and the scratch memory; 0 where they are not told."""
    inputs, outputs, scratch = (number(gpu.get(key)) or 0 for key in _KEYS.values())
    return inputs, outputs, scratch


def _told(case: PlanCase, gpu: dict[str, Any]) -> int:
    """Chunks of the buffer by which messages are measured."""
    inputs, outputs, _ = _chunks(gpu)
    return outputs if case.top.get("collective") == "allgather" else inputs


def _largest(case: PlanCase, gpu: dict[str, Any]) -> int:
    """Largest message whose offsets fit into 32 bits."""
    wide = 2 if case.top.get("protocol") == "LL" else 1
    inputs, outputs, scratch = _chunks(gpu)
    alignment = _alignment(case)
    chunk = (LIMITS.offset - 1) // max(inputs, outputs, scratch * wide, 1) // alignment * alignment
    return chunk * _told(case, gpu)


def _zero(case: PlanCase) -> Iterator[Complaint]:
    for here in case.gpus:
        for key in ("input_chunks", "output_chunks"):
            if here.gpu.get(key) == 0:
                yield (
                    (*here.path, key),
                    f"{key} is 0, and sizes are divided by it",
                    "give every rank 1 chunk or more",
                )


def _ratio(case: PlanCase) -> Iterator[Complaint]:
    collective = COLLECTIVES.get(str(case.top.get("collective")))
    found = case.gpus
    for here in found:
        inputs, outputs, _ = _chunks(here.gpu)
        if collective is None or not inputs or not outputs:
            continue
        into = inputs * (len(found) if collective is Collective.ALL_GATHER else 1)
        out = outputs * (len(found) if collective is Collective.REDUCE_SCATTER else 1)
        if into != out:
            text = f"{inputs} chunks of input and {outputs} of output are of different sizes in {collective}"
            yield (*here.path, "output_chunks"), text, "cut both into chunks of one size"


def _bounds(case: PlanCase) -> Iterator[Complaint]:
    for here in case.operations:
        for path, each in slots(here):
            key = _KEYS.get(str(each.get("type")))
            index, size = number(each.get("index")), number(each.get("size"))
            have = number(here.gpu.get(key)) if key is not None else None
            if key == "output_chunks" and have == 0 and case.top.get("inplace") is True:
                have = number(here.gpu.get("input_chunks"))
            if index is None or size is None or have is None:
                continue
            if size < 1 or index + size > have:
                text = f"chunks {index} to {index + size - 1} are not within the {have} of {key}"
                yield path, text, "write chunks that are there"


def _order(case: PlanCase) -> Iterator[Complaint]:
    low, high = number(case.top.get("min_message_size")) or 0, number(case.top.get("max_message_size"))
    if high is not None and high < low:
        yield (
            ("max_message_size",),
            f"sizes from {low} to {high} are none",
            "write min_message_size up to max_message_size",
        )


def _offsets(case: PlanCase) -> Iterator[Complaint]:
    high = number(case.top.get("max_message_size"))
    found = case.gpus
    if not found or not _told(case, found[0].gpu):
        return
    largest = min(_largest(case, here.gpu) for here in found)
    if high is None or high > largest:
        path = ("max_message_size",) if high is not None else ()
        text = f"offsets of messages above {largest:,} bytes do not fit into 32 bits"
        yield path, text, f"write max_message_size {largest}"


def _rings(case: PlanCase) -> Iterator[Complaint]:
    if case.top.get("reuse_resources") is not True:
        return
    found = case.gpus
    different = {_chunks(here.gpu)[2] for here in found}
    if len(different) > 1:
        path = (*found[0].path, "scratch_chunks")
        yield (
            path,
            f"ranks have {min(different)} to {max(different)} scratch chunks",
            "give all of them as many",
        )
        return
    scratch = max(different, default=0)
    high = number(case.top.get("max_message_size"))
    for here in case.operations:
        beside = [each for _, each in slots(here) if each.get("type") == "s" and not here.loop]
        told = _told(case, here.gpu)
        if beside and told and scratch:
            limit = SCRATCH_BYTES // scratch * told
            if high is None or high > limit:
                text = (
                    f"outside a pipeline it uses scratch memory, too small for messages above {limit:,} bytes"
                )
                yield here.path, text, f"write max_message_size {limit}, or put it into a pipeline"
                return


def _aligned(case: PlanCase) -> Iterator[Complaint]:
    alignment = number(case.top.get("buffer_alignment"))
    if alignment is not None and (alignment < 1 or alignment % 16):
        text = f"buffer_alignment {alignment} lets chunks end within 16 bytes"
        yield ("buffer_alignment",), text, "write a multiple of 16"


RULES = (
    PlanRule("Z01", Severity.ERROR, "no rank without chunks", "the loader divides by zero", _zero),
    PlanRule("Z02", Severity.ERROR, "chunks have one size", "the loader refuses the plan", _ratio),
    PlanRule(
        "Z03", Severity.ERROR, "chunks are within their buffers", "memory is overwritten, unchecked", _bounds
    ),
    PlanRule("Z04", Severity.ERROR, "sizes rise", "no message uses the plan", _order),
    PlanRule("Z05", Severity.WARNING, "offsets have 32 bits", "wrong memory is used, unchecked", _offsets),
    PlanRule(
        "Z06",
        Severity.WARNING,
        "reused scratch memory has 64 MiB",
        "memory beyond it is overwritten, unchecked",
        _rings,
    ),
    PlanRule(
        "Z07",
        Severity.ERROR,
        "alignments are multiples of 16",
        "sums of the last bytes are read elsewhere",
        _aligned,
    ),
)
"""Rules about chunks and sizes."""


def reason_not_used(case: PlanCase, size: int) -> str | None:
    """Why a message would not use the plan, or None.

    Args:
        case: The plan.
        size: M in bytes: of the output in an all-gather, else of the input.
    """
    found = case.gpus
    if case.ranks is not None and case.ranks != len(found):
        return f"the plan is for {len(found)} ranks, not {case.ranks}"
    alignment = _alignment(case)
    low = number(case.top.get("min_message_size")) or 0
    high = number(case.top.get("max_message_size"))
    if size < low:
        return f"min_message_size is {low}"
    if size > (_NO_LIMIT if high is None else high):
        return f"max_message_size is {high}"
    for here in found:
        told = _told(case, here.gpu)
        if not told:
            return "a rank has no chunks"
        if not size or size % (alignment * told):
            return (
                f"it is no positive multiple of {alignment * told} bytes ({told} chunks of {alignment} bytes)"
            )
        if size > _largest(case, here.gpu):
            return f"offsets above {_largest(case, here.gpu)} bytes do not fit into 32 bits"
    return None
