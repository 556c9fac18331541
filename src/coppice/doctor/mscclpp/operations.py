"""Doctor rules about operations, and what they refer to by number: channels, remote buffers, barriers, semaphores."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Path
from coppice.doctor.mscclpp.form import RULES, MscclppPlan, PlanObject, entries, listed, number, slots
from coppice.export.mscclpp.operations import OPERATIONS


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
def _unpaired_channels(plan: MscclppPlan) -> Iterator[Complaint]:
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


_PUTS = ("put", "pws", "pwsf")
_TELL = ("signal", "wait", "rlxsignal", "rlxwait")
_PACKETS = ("ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt", "recspkt", "gstorepkt")
_SUMS = ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt", "glres")
_ON_DATA = (*_PUTS, *_PACKETS, *_SUMS, "get", "copy", "gstore")
_NEEDS = {
    **dict.fromkeys(_ON_DATA, ("src_buff", "dst_buff")),
    **dict.fromkeys(_TELL, ("channel_ids", "channel_type")),
    **dict.fromkeys((*_PUTS, "ppkt", "rppkt"), ("src_buff", "dst_buff", "channel_type")),
    "barrier": ("barrier_id", "num_threadblocks"),
    "sem_acquire": ("semaphore_ids",),
    "sem_release": ("semaphore_ids",),
    "pipeline": ("iter_context", "ops"),
}


def _lists(here: PlanObject) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Sources and targets of an operation."""
    sources, targets = ([each for _, each in entries(here.op.get(key))] for key in ("src_buff", "dst_buff"))
    return sources, targets


@RULES.rule("O01", ERROR, "operations are known", "the loader refuses the plan")
def _known(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        if isinstance(here.name, str) and here.name not in OPERATIONS:
            text = f"operation {here.name!r} is not known"
            yield (*here.path, "name"), text, "write it with operations that are"


@RULES.rule("O02", ERROR, "operations say all that they need", "the operation does nothing, or too much")
def _fields(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        for key in _NEEDS.get(here.name, ()):
            if key not in here.op or here.op[key] == []:
                yield here.path, f"{here.name} has no {key}", f"add {key}"
        if here.name in _TELL and here.op.get("channel_type") not in (None, "memory", "port"):
            path = (*here.path, "channel_type")
            text = f"{here.name} on a {here.op['channel_type']} channel does nothing"
            yield path, text, "write memory or port"
        if here.name in (*_PUTS, "rppkt") and here.op.get("channel_type") == "port":
            have, targets = len(listed(here.op.get("channel_ids"))), _lists(here)[1]
            if have < len(targets):
                text = f"{here.name} has {have} channels for {len(targets)} targets"
                yield here.path, text, "name a port channel for each target"


@RULES.rule("O03", ERROR, "get has equal indices", "it reads and writes the wrong memory")
def _get(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.named("get"):
        for one, two in zip(*_lists(here), strict=False):
            if one.get("index") != two.get("index"):
                text = f"get from chunk {one.get('index')} to chunk {two.get('index')} swaps the two"
                yield here.path, text, "let the other rank put, or use equal chunks"


@RULES.rule("O04", ERROR, "nothing is flushed by flush", "data may not have been sent yet")
def _flush(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.named("flush"):
        yield here.path, "flush does nothing", "put with pwsf instead"


@RULES.rule("O05", ERROR, "put over memory reads one buffer", "wrong data are sent")
def _mixed(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.named(*_PUTS, "ppkt", by="memory"):
        kinds = {str(each.get("type")) for each in _lists(here)[0]}
        if len(kinds) > 1:
            text = f"{here.name} reads {' and '.join(sorted(kinds))}, and all are taken from the first"
            yield here.path, text, "use an operation for each buffer"


@RULES.rule("O06", ERROR, "put over memory does not signal", "the other rank waits for ever")
def _silent(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.named("pws", "pwsf", by="memory"):
        yield here.path, f"{here.name} over a memory channel does not signal", "use put, nop and signal"


@RULES.rule("O07", ERROR, "no ppkt over ports", "wrong data are sent")
def _packets_by_port(plan: MscclppPlan) -> Iterator[Complaint]:
    reused = plan.top.get("reuse_resources") is True
    for here in plan.named("ppkt", by="port"):
        sources = [each for _, each in entries(here.op.get("src_buff"))]
        if reused and sources and all(each.get("type") == "s" for each in sources):
            text = "ppkt over a port channel takes the scratch memory of the communicator's first plan"
            yield (
                WARNING,
                here.path,
                text,
                "let all plans of a communicator reuse resources, or use cpkt and rppkt",
            )
        else:
            yield here.path, "ppkt over a port channel takes the wrong memory", "use cpkt and rppkt"


@RULES.rule("O08", ERROR, "a source for each target", "the first bytes of a buffer are sent")
def _unpaired(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        sources, targets = _lists(here)
        if here.name in (*_PUTS, "ppkt", "get") and sources and targets and len(sources) != len(targets):
            text = f"{here.name} has {len(sources)} sources for {len(targets)} targets"
            yield here.path, text, "name a source for each target, even if it is the same"


@RULES.rule("O09", ERROR, "sources and targets have one size", "too much or too little is written")
def _sizes(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        sources, targets = _lists(here)
        if here.name in (*_PUTS, "ppkt", "get"):
            wrong = any(
                one.get("size") != two.get("size") for one, two in zip(sources, targets, strict=False)
            )
        else:
            wrong = len({str(each.get("size")) for each in (*sources, *targets)}) > 1
        if wrong and here.name in OPERATIONS:
            text = f"{here.name} joins different numbers of chunks"
            yield here.path, text, "write the same size everywhere"


@RULES.rule("O10", ERROR, "pipelines are flat", "the executor crashes or waits for ever")
def _nested(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        if here.loop and here.name in ("pipeline", "barrier"):
            yield here.path, f"there is a {here.name} in a pipeline", "take it out of the pipeline"


@RULES.rule("O11", ERROR, "pipelines walk through what they handle", "memory beyond it is overwritten")
def _pipelines(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        context = here.loop.get("iter_context")
        if not isinstance(context, dict) or here.name not in _ON_DATA:
            continue
        chunks = number(context.get("num_chunks"))
        sources, targets = _lists(here)
        if here.name in _PACKETS:
            text = f"{here.name} handles all its packets in every round of a pipeline"
            yield here.path, text, "take it out"
        elif "tbg_info" in here.op:
            text = f"{here.name} is shared by thread blocks in a pipeline"
            yield here.path, text, "give each its own chunks"
        elif any(each.get("size") != chunks for each in (*sources, *targets)):
            text = f"{here.name} does not handle the {chunks} chunks of its pipeline"
            yield here.path, text, f"write size {chunks}, or another num_chunks"


@RULES.rule("O12", ERROR, "sums only", "wrong results")
def _operators(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        if here.op.get("reduce_op", "sum") != "sum":
            path = (*here.path, "reduce_op")
            yield path, f"reduce_op {here.op['reduce_op']!r} is not read: the executor adds", "write sum"


@RULES.rule("O13", ERROR, "packets need protocol LL", "memory beyond the scratch memory is overwritten")
def _ll(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.top.get("protocol") != "LL":
        for here in plan.named(*_PACKETS):
            yield here.path, f"{here.name} needs twice the scratch memory", "write protocol LL"


@RULES.rule("O14", WARNING, "packets need two scratch memories", "a fast rank disturbs a slow one")
def _two_scratch(plan: MscclppPlan) -> Iterator[Complaint]:
    if plan.top.get("use_double_scratch_buffer") is not True:
        for _ in plan.named(*_PACKETS):
            text = "packets of one run may overwrite those of the run before"
            yield ("protocol",), text, "write use_double_scratch_buffer true"
            return


@RULES.rule("O15", ERROR, "shares are parts", "part of the data is left out, or handled twice")
def _shares(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.operations:
        share = here.op.get("tbg_info")
        if share is None:
            continue
        which, of = (
            (number(share.get(key)) for key in ("tb_id", "tbg_size"))
            if isinstance(share, dict)
            else (None, 0)
        )
        if which is None or not of or not 0 <= which < of:
            path = (*here.path, "tbg_info")
            yield path, f"part {which} of {of} is none", "write tb_id from 0 to one less than tbg_size"


@RULES.rule("O16", NOTE, "switch channels", "it does nothing on older GPUs")
def _switches(plan: MscclppPlan) -> Iterator[Complaint]:
    for here in plan.named("glres", "gstore", "gstorepkt"):
        text = f"{here.name} needs NVLink multicast"
        yield here.path, text, "run it on GPUs of compute capability 9.0 or more"
        return
