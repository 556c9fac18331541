"""Doctor rules about references by number: channels, remote buffers, barriers and semaphores."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from coppice.doctor.framework import ERROR, WARNING, Complaint, Path
from coppice.doctor.mscclpp.plan import RULES, MscclppPlan, PlanObject, entries, listed, number, slots


def _ends(gpu: dict[str, Any], kind: str) -> list[Any]:
    """Peers of a GPU's channels of a type, or its groups of ranks."""
    key = "rank_groups" if kind == "switch" else "connected_to"
    return [
        each
        for _, channel in entries(gpu.get("channels"))
        if channel.get("channel_type") == kind
        for each in listed(channel.get(key))
    ]


def _held(here: PlanObject, kind: Any, list_key: str, kind_key: str, ids_key: str) -> list[Any]:
    """Numbers that a thread block lists for one type."""
    return [
        each
        for _, entry in entries(here.block.get(list_key))
        if entry.get(kind_key) == kind
        for each in listed(entry.get(ids_key))
    ]


def _outside(path: Path, found: list[Any], have: int, what: str) -> Iterator[Complaint]:
    for place, each in enumerate(found):
        value = number(each)
        if value is None or not 0 <= value < have:
            yield (*path, place), f"{what} {each} is not there: there are {have}", f"write 0 to {have - 1}"


@RULES.rule("C01", ERROR, "channels exist", "the executor reads beyond the end of its lists")
def _channel_ids(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        for place, entry in entries(here.block.get("channels")):
            kind = entry.get("channel_type")
            have = len(_ends(here.gpu, str(kind)))
            path = (*here.path, "channels", place, "channel_ids")
            yield from _outside(path, listed(entry.get("channel_ids")), have, f"{kind} channel")
    for here in plan.operations:
        kind = here.op.get("channel_type")
        if kind in ("memory", "port"):
            have = len(_held(here, kind, "channels", "channel_type", "channel_ids"))
            path = (*here.path, "channel_ids")
            yield from _outside(path, listed(here.op.get("channel_ids")), have, f"{kind} channel")
        switches = len(_held(here, "switch", "channels", "channel_type", "channel_ids"))
        for where, each in slots(here):
            if "switch_channel_id" in each and not 0 <= (number(each["switch_channel_id"]) or 0) < switches:
                text = f"switch channel {each['switch_channel_id']} is not there: the thread block has {switches}"
                yield (*where, "switch_channel_id"), text, "list it among the channels of the thread block"


@RULES.rule(
    "C02",
    ERROR,
    "remote buffers exist, for their type of channel",
    "the executor writes to memory that is not meant",
)
def _buffer_ids(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.blocks:
        known = listed(here.gpu.get("remote_buffers"))
        for place, entry in entries(here.block.get("remote_buffer_refs")):
            path = (*here.path, "remote_buffer_refs", place, "remote_buffer_ids")
            ids = listed(entry.get("remote_buffer_ids"))
            yield from _outside(path, ids, len(known), "remote buffer")
            kind = entry.get("access_channel_type")
            for spot, each in enumerate(ids):
                value = number(each)
                buffer = known[value] if value is not None and 0 <= value < len(known) else None
                if isinstance(buffer, dict) and kind not in listed(buffer.get("access_channel_types")):
                    text = f"remote buffer {value} is not open to {kind} channels"
                    yield (*path, spot), text, "add the type to its access_channel_types"
    for here in plan.operations:
        kind = here.op.get("channel_type")
        have = len(_held(here, kind, "remote_buffer_refs", "access_channel_type", "remote_buffer_ids"))
        for where, each in slots(here):
            if "buffer_id" in each and not 0 <= (number(each["buffer_id"]) or 0) < have:
                text = (
                    f"remote buffer {each['buffer_id']} is not there: the thread block has {have} for {kind}"
                )
                yield (*where, "buffer_id"), text, "list it among the remote_buffer_refs of the thread block"


@RULES.rule("C03", ERROR, "channels lead to other GPUs", "connecting fails or waits for ever")
def _peers(plan: MscclppPlan) -> Iterator[Complaint]:
    ranks = len(plan.gpus)
    for here in plan.gpus:
        for place, channel in entries(here.gpu.get("channels")):
            for spot, peer in enumerate(listed(channel.get("connected_to"))):
                if number(peer) is None or not 0 <= peer < ranks or peer == here.rank:
                    path = (*here.path, "channels", place, "connected_to", spot)
                    yield path, f"GPU {here.rank} is connected to {peer}", f"name another GPU of the {ranks}"


@RULES.rule(
    "C04",
    WARNING,
    "channels have two ends",
    "no thread block at the other GPU can wait for or signal the ones that are missing",
)
def _unpaired(plan: MscclppPlan) -> Iterator[Complaint]:
    ends: dict[tuple[str, int, int], int] = Counter()
    for here in plan.gpus:
        for kind in ("memory", "port"):
            for peer in _ends(here.gpu, kind):
                if number(peer) is not None:
                    ends[kind, here.rank, peer] += 1
    for (kind, rank, peer), count in sorted(ends.items()):
        back = ends.get((kind, peer, rank), 0)
        if count > back and rank != peer:
            text = f"GPU {rank} has {count} {kind} channels to GPU {peer}, which has {back} back"
            yield ("gpus", rank, "channels"), text, "list as many on both sides"


@RULES.rule("C05", ERROR, "barriers wait for those who come", "the kernel never ends")
def _barriers(plan: MscclppPlan) -> Iterator[Complaint]:
    users: dict[tuple[int, int], dict[Path, int]] = defaultdict(dict)
    first: dict[tuple[int, int], tuple[Path, int]] = {}
    for here in plan.named("barrier"):
        name, parties = number(here.op.get("barrier_id")), number(here.op.get("num_threadblocks"))
        if name is None or parties is None:
            continue
        block = here.path[:4]
        users[here.rank, name][block] = users[here.rank, name].get(block, 0) + 1
        first.setdefault((here.rank, name), (here.path, parties))
        if parties != first[here.rank, name][1]:
            text = f"barrier {name} waits for different numbers of thread blocks"
            yield here.path, text, "write the same number"
    for key, (path, parties) in first.items():
        if len(users[key]) != parties:
            text = f"barrier {key[1]} waits for {parties} thread blocks, and {len(users[key])} use it"
            yield path, text, f"write {len(users[key])}"
        elif len(set(users[key].values())) > 1:
            yield path, f"barrier {key[1]} is not used equally often by its thread blocks", "add or drop some"


@RULES.rule("C06", ERROR, "semaphores exist", "the executor spoils memory")
def _semaphores(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.named("sem_acquire", "sem_release"):
        have = len(listed(here.gpu.get("semaphores")))
        path = (*here.path, "semaphore_ids")
        yield from _outside(path, listed(here.op.get("semaphore_ids")), have, "semaphore")
