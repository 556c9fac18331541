"""Decode the operations of an execution plan: their buffers, channels and semaphores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coppice.export.mscclpp.document import Value
from coppice.program.dialects.puts.program import Act, Operation, Slots
from coppice.program.memory import Buffer

_LETTERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}

_SYNCHRONISE = {
    "signal": (Act.SIGNAL, False),
    "wait": (Act.WAIT, False),
    "rlxsignal": (Act.SIGNAL, True),
    "rlxwait": (Act.WAIT, True),
}

# Of each operation that adds: how many sources are local data, and the kinds of targets in order ("d" data here,
# "p" packets here, "D" data there, "P" packets there); the last kind repeats, as do further sources.
_SUMS = {
    "re": ("d", "d", "d"),
    "res": ("d", "d", "dD"),
    "rre": ("d", "D", "d"),
    "rres": ("d", "D", "dD"),
    "repkt": ("d", "p", "d"),
    "respkt": ("d", "p", "dP"),
    "recpkt": ("d", "p", "dp"),
    "recspkt": ("d", "p", "dpP"),
}
_SWITCHED = {"glres": (None, False), "gstore": (False, False), "gstorepkt": (True, True)}
_PUTS = ("put", "pws", "pwsf")

OPERATIONS = (
    "nop",
    "barrier",
    *_PUTS,
    "get",
    "copy",
    *_SYNCHRONISE,
    "flush",
    *_SUMS,
    "ppkt",
    "rppkt",
    "cpkt",
    "upkt",
    *_SWITCHED,
    "pipeline",
    "sem_acquire",
    "sem_release",
)
"""Names of operations that the executor accepts."""


@dataclass
class BlockReferences:
    """Channels and buffers that the operations of one thread block refer to by number."""

    rank: int  # Its rank
    memory: list[int] = field(default_factory=list)  # Rows of its memory channels
    port: list[int] = field(default_factory=list)  # Rows of its port channels
    # (buffer, ranks) of its switch channels
    switch: list[tuple[Buffer, tuple[int, ...]]] = field(default_factory=list)
    # (rank, buffer) of the memory that it reaches by threads
    remote_memory: list[tuple[int, Buffer]] = field(default_factory=list)
    # (rank, buffer) of the memory that it reaches by proxies
    remote_port: list[tuple[int, Buffer]] = field(default_factory=list)


def operation_of(value: Value, place: BlockReferences) -> Operation:
    """Decode one operation."""
    name = value["name"].string()
    if name not in OPERATIONS:
        why = "; the executor refuses what its language writes so" if name in ("glre", "start") else ""
        value["name"].refuse(f"an operation that the executor knows ({', '.join(OPERATIONS)}){why}")
    match name:
        case "nop":
            return Operation(act=Act.JOIN, name=name)
        case "flush":
            return Operation(act=Act.IDLE, name=name)
        case "barrier":
            return Operation(
                act=Act.BARRIER,
                name=name,
                ids=(value["barrier_id"].integer(),),
                parties=value["num_threadblocks"].integer(1),
            )
        case "sem_acquire" | "sem_release":
            act = Act.ACQUIRE if name == "sem_acquire" else Act.RELEASE
            return Operation(
                act=act, name=name, ids=tuple(i.integer() for i in value["semaphore_ids"].items())
            )
        case "pipeline":
            return Operation(
                act=Act.LOOP,
                name=name,
                piece_bytes=value["iter_context"]["unit_size"].integer(1),
                pieces_of=value["iter_context"]["num_chunks"].integer(1),
                body=tuple(operation_of(each, place) for each in value["ops"].items()),
            )
        case _:
            pass
    if name in _SYNCHRONISE:
        act, relaxed = _SYNCHRONISE[name]
        return Operation(act=act, name=name, relaxed=relaxed, channels=_channels(value, place))
    if name in _PUTS or name == "ppkt":
        return _put(value, place, name)
    if name in _SUMS:
        return _sum(value, place, name)
    if name in _SWITCHED:
        return _switched(value, place, name)
    return _single(value, place, name)


def _channels(value: Value, place: BlockReferences) -> tuple[int, ...]:
    rows = place.port if value["channel_type"].string("memory", "port") == "port" else place.memory
    return tuple(rows[each.integer(0, len(rows))] for each in value["channel_ids"].items())


def _share(value: Value) -> tuple[int, int]:
    if not value.has("tbg_info"):
        return 0, 1
    size = value["tbg_info"]["tbg_size"].integer(1)
    return value["tbg_info"]["tb_id"].integer(0, size), size


def _slots(value: Value, place: BlockReferences, *, port: bool, packets: bool = False) -> Slots:
    """A local, remote or multicast run of chunks."""
    index, size = value["index"].integer(), value["size"].integer(1)
    if value.has("switch_channel_id"):
        number = value["switch_channel_id"].integer(0, len(place.switch))
        buffer, ranks = place.switch[number]
        return Slots(ranks=ranks, buffer=buffer, index=index, size=size, packets=packets)
    if value.has("buffer_id"):
        known = place.remote_port if port else place.remote_memory
        rank, buffer = known[value["buffer_id"].integer(0, len(known))]
        return Slots(ranks=(rank,), buffer=buffer, index=index, size=size, packets=packets)
    buffer = _LETTERS[value["type"].string(*_LETTERS)]
    return Slots(ranks=(place.rank,), buffer=buffer, index=index, size=size, packets=packets)


def _local(value: Value, place: BlockReferences, *, packets: bool = False) -> Slots:
    if not value.has("type"):
        value.refuse("memory of its own rank, with a type")
    return _slots(value, place, port=False, packets=packets)


def _remote(value: Value, place: BlockReferences, *, port: bool = False, packets: bool = False) -> Slots:
    if not value.has("buffer_id"):
        value.refuse("memory of another rank, with a buffer_id")
    return _slots(value, place, port=port, packets=packets)


def _several(value: Value, least: int, most: int | None = None) -> list[Value]:
    found = list(value.items())
    if len(found) < least or (most is not None and len(found) > most):
        number = f"{least}" if most == least else f"{least} or more"
        value.refuse(f"{number} entries")
    return found


def _put(value: Value, place: BlockReferences, name: str) -> Operation:
    port = value["channel_type"].string("memory", "port") == "port"
    targets = _several(value["dst_buff"], 1)
    sources = _several(value["src_buff"], len(targets), len(targets))
    packets = name == "ppkt"
    defect = ""
    if packets and port:
        defect = "over port channels the executor takes it from the wrong memory"
    elif not port and name in ("pws", "pwsf"):
        defect = "over memory channels the executor puts, but does not signal"
    channels = _channels(value, place) if port else ()
    if port and len(channels) < len(targets):
        value["channel_ids"].refuse(f"a channel for each of the {len(targets)} targets")
    return Operation(
        act=Act.MOVE,
        name=name,
        sources=tuple(_local(each, place, packets=packets and port) for each in sources),
        targets=tuple(_remote(each, place, port=port, packets=packets) for each in targets),
        channels=channels[: len(targets)],
        port=port,
        signals=port and name in ("pws", "pwsf"),
        flushes=port and name == "pwsf",
        share=_share(value),
        defect=defect,
    )


def _sum(value: Value, place: BlockReferences, name: str) -> Operation:
    first, further, kinds = _SUMS[name]
    port = value.has("channel_type") and value["channel_type"].string("memory", "port") == "port"
    sources = _several(value["src_buff"], 2)
    targets = _several(value["dst_buff"], len(kinds) - kinds[-1].isupper())
    into = kinds + kinds[-1] * len(targets) if kinds[-1].isupper() else kinds
    if len(targets) > len(into):
        value["dst_buff"].refuse(f"{len(kinds)} entries")
    return Operation(
        act=Act.SUM,
        name=name,
        sources=_of_kinds(sources, first + further * len(sources), place),
        targets=_of_kinds(targets, into, place),
        share=_share(value),
        defect="it works over memory channels only" if port else "",
    )


def _of_kinds(values: Sequence[Value], kinds: str, place: BlockReferences) -> tuple[Slots, ...]:
    return tuple(
        (_remote if kind.isupper() else _local)(value, place, packets=kind in "pP")
        for value, kind in zip(values, kinds, strict=False)
    )


def _switched(value: Value, place: BlockReferences, name: str) -> Operation:
    reads, writes = _SWITCHED[name]
    (source,) = _several(value["src_buff"], 1, 1)
    (target,) = _several(value["dst_buff"], 1, 1)
    for each in (target,) if reads is not None else (source, target):
        if not each.has("switch_channel_id"):
            each.refuse("memory of several ranks, with a switch_channel_id")
    one = _slots(source, place, port=False) if reads is None else _local(source, place, packets=reads)
    two = _slots(target, place, port=False, packets=writes)
    return Operation(act=Act.SUM, name=name, sources=(one,), targets=(two,), share=_share(value))


def _single(value: Value, place: BlockReferences, name: str) -> Operation:
    """Operations with one source: get, copy, upkt, cpkt, and rppkt with many targets."""
    share = _share(value)
    if name == "get":
        sources, targets = _several(value["src_buff"], 1), _several(value["dst_buff"], 1)
        read = tuple(_remote(each, place) for each in sources)
        written = tuple(_local(each, place) for each in targets)
        swapped = any(one.index != two.index for one, two in zip(read, written, strict=False))
        defect = "the executor swaps the places of source and target" if swapped else ""
        return Operation(act=Act.MOVE, name=name, sources=read, targets=written, share=share, defect=defect)
    if name == "rppkt":
        port = value["channel_type"].string("memory", "port") == "port"
        (source,) = _several(value["src_buff"], 1, 1)
        read_one = _local(source, place, packets=True)
        put = tuple(_remote(each, place, port=port, packets=True) for each in _several(value["dst_buff"], 1))
        if not port:
            return Operation(act=Act.SUM, name=name, sources=(read_one,), targets=put, share=share)
        channels = _channels(value, place)
        if len(channels) < len(put):
            value["channel_ids"].refuse(f"a channel for each of the {len(put)} targets")
        return Operation(
            act=Act.MOVE,
            name=name,
            sources=(read_one,) * len(put),
            targets=put,
            channels=channels[: len(put)],
            port=True,
            share=share,
        )
    (source,) = _several(value["src_buff"], 1, 1)
    (target,) = _several(value["dst_buff"], 1, 1)
    return Operation(
        act=Act.SUM if name != "copy" else Act.MOVE,
        name=name,
        sources=(_local(source, place, packets=name == "upkt"),),
        targets=(_local(target, place, packets=name == "cpkt"),),
        share=share,
    )
