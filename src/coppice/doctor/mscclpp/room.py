"""Rules about the room that the executor has; it checks only the first of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from coppice.doctor.framework import ERROR, WARNING, Complaint
from coppice.doctor.mscclpp.plan import RULES, MscclppPlan, PlanObject, entries, number
from coppice.export.mscclpp.limits import LIMITS

_SMALL_GPU = 104
"""Multiprocessors of the smallest GPU that is in use for this: half an MI250."""


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _counts(here: PlanObject, list_key: str, kind_key: str, ids_key: str) -> Iterable[tuple[str, int]]:
    """How many numbers a thread block lists for each type."""
    count: Counter[str] = Counter()
    for _, entry in entries(here.block.get(list_key)):
        count[str(entry.get(kind_key))] += _length(entry.get(ids_key))
    return count.items()


@RULES.rule("L01", ERROR, "64 operations in a thread block", "the executor refuses the plan")
def _operations(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        have = sum(1 + _length(op.get("ops")) for _, op in entries(here.block.get("ops")))
        if have > LIMITS.operations:
            text = (
                f"the thread block has {have} operations of {LIMITS.operations}, those in pipelines counted"
            )
            yield (*here.path, "ops"), text, "spread them over more thread blocks"


@RULES.rule("L02", ERROR, "16 channels of a type in a thread block", "memory is overwritten, unchecked")
def _channels(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        for kind, have in _counts(here, "channels", "channel_type", "channel_ids"):
            if have > LIMITS.channels:
                text = f"the thread block has {have} {kind} channels of {LIMITS.channels}"
                yield (*here.path, "channels"), text, "spread them over more thread blocks"


@RULES.rule("L03", ERROR, "16 remote buffers of a thread block", "memory is overwritten, unchecked")
def _references(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        for kind, have in _counts(here, "remote_buffer_refs", "access_channel_type", "remote_buffer_ids"):
            if have > LIMITS.remote_buffers:
                text = (
                    f"the thread block refers to {have} remote buffers of {LIMITS.remote_buffers} for {kind}"
                )
                yield (*here.path, "remote_buffer_refs"), text, "spread them over more thread blocks"


@RULES.rule("L04", ERROR, "8 channels of an operation", "memory is overwritten, unchecked")
def _together(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        have = _length(here.op.get("channel_ids"))
        if have > LIMITS.together:
            text = f"the operation has {have} channels of {LIMITS.together}"
            yield (*here.path, "channel_ids"), text, "split it"


@RULES.rule("L05", ERROR, "10 buffers of an operation", "memory is overwritten, unchecked")
def _buffers(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        for key in ("src_buff", "dst_buff"):
            have = _length(here.op.get(key))
            if have > LIMITS.buffers:
                text = f"the operation has {have} entries of {LIMITS.buffers} in {key}"
                yield (*here.path, key), text, "split it"


@RULES.rule("L06", ERROR, "16 barriers", "memory is overwritten, unchecked")
def _barriers(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        name = number(here.op.get("barrier_id"))
        if name is not None and name >= LIMITS.barriers:
            path = (*here.path, "barrier_id")
            yield path, f"barrier {name} is beyond the {LIMITS.barriers} there are", "use smaller numbers"


@RULES.rule("L07", ERROR, "16 semaphores of an operation", "memory is overwritten, unchecked")
def _semaphores(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        have = _length(here.op.get("semaphore_ids"))
        if have > LIMITS.semaphores:
            text = f"the operation has {have} semaphores of {LIMITS.semaphores}"
            yield (*here.path, "semaphore_ids"), text, "split it"


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
        have = _length(here.gpu.get("threadblocks"))
        if have > _SMALL_GPU:
            text = f"{have} thread blocks must run at once, each on a multiprocessor of its own"
            yield (*here.path, "threadblocks"), text, "make sure that the GPU has as many, or use fewer"


@RULES.rule("L10", ERROR, "every GPU has a thread block", "a kernel without any is not launched")
def _some(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.gpus:
        if here.gpu.get("threadblocks") == []:
            yield (*here.path, "threadblocks"), "a GPU has no thread block", "give it one with a nop"
