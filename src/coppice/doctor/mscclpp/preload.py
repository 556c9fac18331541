"""Doctor rules for the preloaded NCCL API library of MSCCL++: whether it uses a plan for NCCL calls, correctly.

Read in MSCCL++ 0.9.0, commit 1f5f065d: src/ext/collectives/algorithm_collection_builder.cc (files, P01 to P03, P06),
src/core/algorithm.cc (which calls are in place, P04 and P05), src/ext/nccl/algorithm_selector.cc (choice, P02, P07 and
P08), src/core/executor/execution_plan.cc (sizes, P08) and executor.cc (connections, P09 and P10). A plan is judged by
them if it has one of the names that the library opens, or lies in a directory of the name that it looks into.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint
from coppice.doctor.mscclpp.capacity import size_range, unit_bytes
from coppice.doctor.mscclpp.form import RULES, MscclppPlan, entries, listed, number
from coppice.errors import InputError
from coppice.export.mscclpp.document import parse_document
from coppice.export.mscclpp.limits import PRELOAD_DIRECTORY, PRELOAD_SLOTS
from coppice.files import read_bytes

_ASKED = ("allreduce", "allgather", "reducescatter", "broadcast")
"""Collectives for which the library looks for a plan."""

_NATIVE = "default_all"
"""How the library's own algorithms are called."""


def neighbours_of(file: FilePath) -> dict[str, dict[str, Any]]:
    """Other plans in the same directory, which the library loads too: top-level objects by file name."""
    found: dict[str, dict[str, Any]] = {}
    for name in PRELOAD_SLOTS:
        other = file.parent / name
        if name == file.name or not other.is_file():
            continue
        try:
            tree = parse_document(read_bytes(other), file=name).tree
        except InputError:
            continue  # the library leaves it out too
        if isinstance(tree, dict):
            found[name] = tree
    return found


def _together(plan: MscclppPlan) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, plan) of the others that are read for the same communicators and collective."""
    for name, other in plan.neighbours.items():
        if PRELOAD_SLOTS[name] == plan.slot and other.get("collective") == plan.top.get("collective"):
            yield name, other


@RULES.rule("P01", ERROR, "preloaded plans have a name that is opened", "no call uses the plan")
def _named(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.preloaded and plan.slot is None:
        text = f"the library opens four names in {PRELOAD_DIRECTORY!r} only, and this is none of them"
        yield (), text, f"call it {', '.join(PRELOAD_SLOTS)}, or register it by code"


@RULES.rule("P02", ERROR, "preloaded plans have the ranks of their name", "ranks read beyond the file")
def _ranks(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.slot is not None and len(plan.gpus) != plan.slot.ranks:
        text = f"communicators of {plan.slot} use it, and it has {len(plan.gpus)} GPUs"
        yield ("gpus",), text, f"write a plan of {plan.slot.ranks} ranks"


@RULES.rule("P03", ERROR, "preloaded plans are for collectives that are looked up", "no call uses the plan")
def _asked(plan: MscclppPlan) -> Iterator[Complaint]:
    name = plan.top.get("collective")
    if plan.preloaded and isinstance(name, str) and name not in _ASKED:
        text = f"the library looks up no plan for {name!r}"
        yield ("collective",), text, f"plan one of {', '.join(_ASKED)}"


@RULES.rule("P04", ERROR, "preloaded plans are all in place, or none", "calls are mistaken for others")
def _one_mode(plan: MscclppPlan) -> Iterator[Complaint]:
    mine = plan.top.get("inplace")
    for name, other in plan.neighbours.items():
        theirs = other.get("inplace")
        if plan.slot is not None and isinstance(theirs, bool) and theirs != mine:
            text = f"inplace differs from that of {name}, and the first plan that is asked tells for all"
            yield ("inplace",), text, f"keep plans of one kind in {PRELOAD_DIRECTORY!r}"


@RULES.rule(
    "P05", ERROR, "preloaded reduce-scatters are called out of place", "ranks choose differently and hang"
)
def _scatter(plan: MscclppPlan) -> Iterator[Complaint]:
    if not plan.preloaded or plan.top.get("collective") != "reducescatter":
        return
    fix = "keep calls in place from it by MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION=reducescatter, or drop it"
    if plan.top.get("inplace") is True:
        text = "a call counts as in place where output begins where input does, at rank 0 only"
        yield ERROR, ("inplace",), text, fix
    elif plan.top.get("inplace") is False:
        text = "of a call in place rank 0 takes NCCL and the other ranks take the plan"
        yield WARNING, ("inplace",), text, fix


@RULES.rule("P06", ERROR, "preloaded plans have names of their own", "one replaces the other")
def _names(plan: MscclppPlan) -> Iterator[Complaint]:
    mine = plan.top.get("name")
    if not plan.preloaded or not isinstance(mine, str):
        return
    if mine.startswith(_NATIVE):
        yield ("name",), f"an algorithm of the library may be called {mine!r}", "give the plan another name"
    for name, other in plan.neighbours.items():
        if other.get("name") == mine:
            yield ("name",), f"{name} is called {mine!r} too", "give each plan a name of its own"


@RULES.rule("P07", WARNING, "sizes of preloaded plans do not overlap", "nothing tells which is taken")
def _overlap(plan: MscclppPlan) -> Iterator[Complaint]:
    low, high = size_range(plan.top)
    for name, other in _together(plan):
        first, last = size_range(other)
        if max(low, first) <= min(high, last):
            text = f"sizes {low} to {high} overlap with those of {name}, {first} to {last}"
            yield ("min_message_size",), text, "write ranges that do not meet"


@RULES.rule(
    "P08",
    WARNING,
    "calls in a preloaded plan's range have sizes that it takes",
    "the call throws instead of going to NCCL",
)
def _fits(plan: MscclppPlan) -> Iterator[Complaint]:
    low, high = size_range(plan.top)
    units = {unit_bytes(plan, here.gpu) for here in plan.gpus}
    if not plan.preloaded or not units or 0 in units or high < low:
        return
    unit = max(units)
    text = (
        f"only multiples of {unit} bytes are taken, and the plan is chosen for all sizes from {low} to {high}"
    )
    if low < unit:
        yield (
            WARNING,
            ("min_message_size",),
            text,
            f"write min_message_size {unit} or more: jobs also sum few bytes",
        )
    elif low != high or low % unit:
        yield NOTE, ("min_message_size",), text, "see that calls of these sizes are such multiples"


@RULES.rule(
    "P09",
    WARNING,
    "memory channels of a preloaded plan stay in a node",
    "connecting fails, unless both are in one NVLink domain",
)
def _nodes(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.slot is None:
        return
    size = plan.slot.ranks_per_node
    for here in plan.gpus:
        for place, channel in entries(here.gpu.get("channels")):
            path = (*here.path, "channels", place)
            if channel.get("channel_type") == "memory":
                peers = [number(peer) for peer in listed(channel.get("connected_to"))]
            else:
                groups = entries(channel.get("rank_groups"))
                peers = [number(peer) for _, group in groups for peer in listed(group.get("ranks"))]
            if channel.get("channel_type") == "port":
                continue
            far = [peer for peer in peers if peer is not None and peer // size != here.rank // size]
            if far:
                text = (
                    f"GPU {here.rank} reaches GPU {far[0]} of another node, {size} ranks each, without a port"
                )
                yield path, text, "take port channels between nodes"


@RULES.rule(
    "P10",
    WARNING,
    "preloaded plans keep what they set up",
    "ranks hang if one has met the buffers before and others have not",
)
def _buffers(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.preloaded and plan.top.get("reuse_resources") is not True:
        text = "each new pair of allocations is connected anew, by all ranks in the same call"
        yield (), text, "let all ranks allocate alike, or keep to buffers that were allocated at the start"
