"""Rules about the room that the executor has; it checks only the first of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.mscclpp.diagnose import Complaint, PlanRule
from coppice.doctor.mscclpp.walk import PlanCase, entries, number
from coppice.export.mscclpp.limits import LIMITS

__all__ = ["RULES"]

_SMALL_GPU = 104
"""Multiprocessors of the smallest GPU that is in use for this: half an MI250."""


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _operations(case: PlanCase) -> Iterator[Complaint]:
    for here in case.blocks:
        have = sum(1 + _length(op.get("ops")) for _, op in entries(here.block.get("ops")))
        if have > LIMITS.operations:
            text = (
                f"the thread block has {have} operations of {LIMITS.operations}, those in pipelines counted"
            )
            yield (*here.path, "ops"), text, "spread them over more thread blocks"


def _channels(case: PlanCase) -> Iterator[Complaint]:
    for here in case.blocks:
        count: Counter[str] = Counter()
        for _, entry in entries(here.block.get("channels")):
            count[str(entry.get("channel_type"))] += _length(entry.get("channel_ids"))
        for kind, have in count.items():
            if have > LIMITS.channels:
                text = f"the thread block has {have} {kind} channels of {LIMITS.channels}"
                yield (*here.path, "channels"), text, "spread them over more thread blocks"


def _references(case: PlanCase) -> Iterator[Complaint]:
    for here in case.blocks:
        count: Counter[str] = Counter()
        for _, entry in entries(here.block.get("remote_buffer_refs")):
            count[str(entry.get("access_channel_type"))] += _length(entry.get("remote_buffer_ids"))
        for kind, have in count.items():
            if have > LIMITS.remote_buffers:
                text = (
                    f"the thread block refers to {have} remote buffers of {LIMITS.remote_buffers} for {kind}"
                )
                yield (*here.path, "remote_buffer_refs"), text, "spread them over more thread blocks"


def _together(case: PlanCase) -> Iterator[Complaint]:
    for here in case.operations:
        have = _length(here.op.get("channel_ids"))
        if have > LIMITS.together:
            text = f"the operation has {have} channels of {LIMITS.together}"
            yield (*here.path, "channel_ids"), text, "split it"


def _buffers(case: PlanCase) -> Iterator[Complaint]:
    for here in case.operations:
        for key in ("src_buff", "dst_buff"):
            have = _length(here.op.get(key))
            if have > LIMITS.buffers:
                text = f"the operation has {have} entries of {LIMITS.buffers} in {key}"
                yield (*here.path, key), text, "split it"


def _barriers(case: PlanCase) -> Iterator[Complaint]:
    for here in case.operations:
        name = number(here.op.get("barrier_id"))
        if name is not None and name >= LIMITS.barriers:
            path = (*here.path, "barrier_id")
            yield path, f"barrier {name} is beyond the {LIMITS.barriers} there are", "use smaller numbers"


def _semaphores(case: PlanCase) -> Iterator[Complaint]:
    for here in case.operations:
        have = _length(here.op.get("semaphore_ids"))
        if have > LIMITS.semaphores:
            text = f"the operation has {have} semaphores of {LIMITS.semaphores}"
            yield (*here.path, "semaphore_ids"), text, "split it"


def _threads(case: PlanCase) -> Iterator[Complaint]:
    threads = number(case.top.get("num_threads_per_block"))
    if threads is not None and (not 1 <= threads <= LIMITS.threads or threads % 32):
        text = f"thread blocks have {threads} threads"
        yield ("num_threads_per_block",), text, f"write a multiple of 32 up to {LIMITS.threads}"


def _resident(case: PlanCase) -> Iterator[Complaint]:
    for here in case.gpus:
        have = _length(here.gpu.get("threadblocks"))
        if have > _SMALL_GPU:
            text = f"{have} thread blocks must run at once, each on a multiprocessor of its own"
            yield (*here.path, "threadblocks"), text, "make sure that the GPU has as many, or use fewer"


def _some(case: PlanCase) -> Iterator[Complaint]:
    for here in case.gpus:
        if here.gpu.get("threadblocks") == []:
            yield (*here.path, "threadblocks"), "a GPU has no thread block", "give it one with a nop"


RULES = (
    PlanRule(
        "L01", Severity.ERROR, "64 operations in a thread block", "the executor refuses the plan", _operations
    ),
    PlanRule(
        "L02",
        Severity.ERROR,
        "16 channels of a type in a thread block",
        "memory is overwritten, unchecked",
        _channels,
    ),
    PlanRule(
        "L03",
        Severity.ERROR,
        "16 remote buffers of a thread block",
        "memory is overwritten, unchecked",
        _references,
    ),
    PlanRule(
        "L04", Severity.ERROR, "8 channels of an operation", "memory is overwritten, unchecked", _together
    ),
    PlanRule(
        "L05", Severity.ERROR, "10 buffers of an operation", "memory is overwritten, unchecked", _buffers
    ),
    PlanRule("L06", Severity.ERROR, "16 barriers", "memory is overwritten, unchecked", _barriers),
    PlanRule(
        "L07",
        Severity.ERROR,
        "16 semaphores of an operation",
        "memory is overwritten, unchecked",
        _semaphores,
    ),
    PlanRule(
        "L08", Severity.ERROR, "whole warps, 1,024 threads at most", "the kernel is not launched", _threads
    ),
    PlanRule(
        "L09",
        Severity.WARNING,
        "all thread blocks run at once",
        "those that wait keep those that they wait for from running",
        _resident,
    ),
    PlanRule(
        "L10", Severity.ERROR, "every GPU has a thread block", "a kernel without any is not launched", _some
    ),
)
"""Rules about room."""
