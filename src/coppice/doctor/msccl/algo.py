"""Doctor rules about ``<algo>``, ``<gpu>`` and thread blocks: attributes, names, counts of slots, connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint
from coppice.doctor.msccl.text import RULES, MscclFile
from coppice.export.formats import PROTOCOLS
from coppice.export.msccl.document import ABSENT, STEP_TYPES


@RULES.rule("A01", ERROR, "required attributes of <algo>", "the file is refused")
def _required(file: MscclFile) -> Iterator[Complaint]:
    for key in file.target.required:
        if key not in file.document.algo:
            yield file.document.algo_line, f"<algo> has no attribute {key}", f'add {key}="..."'


@RULES.rule("A02", ERROR, "numbers of <algo>", "another number is used")
def _numbers(file: MscclFile) -> Iterator[Complaint]:
    keys = ("nchannels", "nchunksperloop", "ngpus", "inplace", "outofplace", "minBytes", "maxBytes")
    for key in keys:
        text = file.document.algo.get(key)
        if text is None:
            continue
        if file.integer(key) is None:
            words = f"{key} is {text[:40]!r}, no integer, which the loader reads as far as it goes or as 0"
            yield file.document.algo_line, words, "write an integer"
        elif text.lstrip("-").startswith("0") and len(text.lstrip("-")) > 1:
            words = f"{key} is {text[:40]!r}: a leading zero means base 8 to the loader"
            yield file.document.algo_line, words, "remove the zero"


@RULES.rule("A03", ERROR, "required attributes of <gpu>, <tb>, <step>", "the file is refused")
def _missing(file: MscclFile) -> Iterator[Complaint]:
    for defect in file.document.defects:
        if defect.kind == "missing":
            yield defect.line, defect.text, "add it; the loaders have no default values there"


@RULES.rule("A04", ERROR, "numbers of <gpu>, <tb>, <step>", "another number is used")
def _integers(file: MscclFile) -> Iterator[Complaint]:
    for defect in file.document.defects:
        if defect.kind in ("number", "octal"):
            text = f"{defect.text}; the loader reads a leading zero as base 8, and anything else as far as it goes"
            yield defect.line, text, "write a plain integer"


@RULES.rule("A05", ERROR, "protocol", "the file is refused")
def _protocol(file: MscclFile) -> Iterator[Complaint]:
    name = file.document.algo.get("proto")
    if name is not None and name not in PROTOCOLS:
        text = f"proto is {name[:40]!r}; the loader knows Simple, LL and LL128, in this spelling"
        yield file.document.algo_line, text, "choose one of them"


@RULES.rule("A06", ERROR, "name of the collective", "the file is refused")
def _collective(file: MscclFile) -> Iterator[Complaint]:
    name = file.document.algo.get("coll")
    target = file.target
    known = (*target.collectives.values(), *target.other_collectives)
    if name is not None and name not in known:
        spelling = {word.replace("_", ""): word for word in known}.get(name.replace("_", ""))
        fix = f"write {spelling}" if spelling else f"use one of {', '.join(known)}"
        yield file.document.algo_line, f"coll is {name[:40]!r}, which {target.title} does not know", fix


@RULES.rule("A07", ERROR, "number of channels", "the file is refused, or ranks hang")
def _channels(file: MscclFile) -> Iterator[Complaint]:
    stated = file.integer("nchannels")
    used = max(file.document.tb["chan"], default=-1) + 1
    if stated is None:
        return
    if stated > file.target.max_channels or stated < 1:
        text = f"nchannels is {stated}; {file.target.title} has 1 to {file.target.max_channels}"
        yield file.document.algo_line, text, f"use {file.target.max_channels} channels at most"
    if used > stated:
        text = (
            f"nchannels is {stated}, but channel {used - 1} is used: "
            "its connections are never made and the ranks hang"
        )
        yield file.document.algo_line, text, f'write nchannels="{used}"'


@RULES.rule("A08", NOTE, "idle channels", "smaller communicators cannot use the file")
def _channels_idle(file: MscclFile) -> Iterator[Complaint]:
    stated = file.integer("nchannels")
    used = max(file.document.tb["chan"], default=-1) + 1
    if stated is not None and 0 < used < stated:
        text = f"nchannels is {stated}, but only {used} are used: the communicator must have {stated} for nothing"
        yield file.document.algo_line, text, f'write nchannels="{used}"'


@RULES.rule("A09", ERROR, "one <gpu> per rank", "ranks hang")
def _gpus(file: MscclFile) -> Iterator[Complaint]:
    document = file.document
    stated = file.integer("ngpus")
    for rank, number in Counter(document.gpu["id"]).items():
        if number > 1 and rank != ABSENT:
            row = document.gpu["id"].index(rank)
            yield document.gpu["line"][row], f"gpu {rank} stands there {number} times", "keep one"
    if stated is None:
        return
    present = set(document.gpu["id"])
    missing = [rank for rank in range(min(stated, 10**6)) if rank not in present]
    if missing:
        more = f" and {len(missing) - 1} others" if missing[1:] else ""
        text = (
            f"ngpus is {stated}, but gpu {missing[0]} is missing{more}: "
            "such a rank does nothing and its peers hang"
        )
        yield document.algo_line, text, "give every rank a <gpu>"
    for row, rank in enumerate(document.gpu["id"]):
        if rank >= stated or (rank < 0 and rank != ABSENT):
            text = f"gpu {rank} is no rank below ngpus = {stated}"
            yield document.gpu["line"][row], text, "remove it, or mend ngpus"


@RULES.rule("A10", ERROR, "chunks", "the runtime divides by zero")
def _chunks(file: MscclFile) -> Iterator[Complaint]:
    chunks = file.integer("nchunksperloop")
    if chunks is not None and chunks < 1:
        text = f"nchunksperloop is {chunks}: the loader divides by it"
        yield file.document.algo_line, text, "use 1 or more"


def _slots(file: MscclFile) -> Iterator[tuple[int, str, str]]:
    document = file.document
    chunks, ranks = file.integer("nchunksperloop"), file.integer("ngpus")
    name = document.algo.get("coll", "")
    known = (*file.target.collectives.values(), *file.target.other_collectives)
    if not chunks or not ranks or name not in known or name in ("send", "recv", "alltoallv"):
        return
    whole, share = Fraction(chunks), Fraction(chunks, ranks)
    due = {
        "allgather": (share, whole),
        "reduce_scatter": (whole, share),
        "reducescatter": (whole, share),
        "gather": (whole, whole * ranks),
        "scatter": (whole * ranks, whole),
    }.get(name, (whole, whole))
    for row, line in enumerate(document.gpu["line"]):
        for key, slots in zip(("i_chunks", "o_chunks"), due, strict=True):
            found = document.gpu[key][row]
            if found > 0 and found != slots:
                text = f"{key} is {found} where {name} of {chunks} chunks on {ranks} ranks has {slots}"
                yield line, text, "make them agree (0 for a buffer that is not used is allowed)"


@RULES.rule("A11", ERROR, "slots agree with the collective (checked)", "the file is refused")
def _slots_refused(file: MscclFile) -> Iterator[Complaint]:
    if file.target.checks_chunks:
        yield from _slots(file)


@RULES.rule("A12", WARNING, "slots agree with the collective", "memory beyond the buffers may be touched")
def _slots_doubtful(file: MscclFile) -> Iterator[Complaint]:
    if file.target.checks_chunks:
        return
    by_share = file.document.algo.get("coll") in ("gather", "scatter")
    for line, text, fix in _slots(file):
        if by_share:
            text = f"{text}, whose chunks are counted by the share of one rank: another part of it is moved"
        yield ERROR if by_share else WARNING, line, text, fix


@RULES.rule("A13", ERROR, "scratch slots", "the file is refused")
def _scratch(file: MscclFile) -> Iterator[Complaint]:
    for row, number in enumerate(file.document.gpu["s_chunks"]):
        if number < 0 and number != ABSENT:
            yield file.document.gpu["line"][row], f"s_chunks is {number}", "use 0 or more"


@RULES.rule("A14", NOTE, "length of the name", "the name is cut")
def _name(file: MscclFile) -> Iterator[Complaint]:
    name, most = file.document.algo.get("name"), file.target.max_name
    if name is not None and most is not None and len(name) > most:
        yield file.document.algo_line, f"name has {len(name)} characters, {most} are kept", "shorten it"


SENDS = frozenset(STEP_TYPES.index(name) for name in ("s", "rcs", "rrs", "rrcs"))
"""Places of the step types that send."""

RECEIVES = frozenset(STEP_TYPES.index(name) for name in ("r", "rcs", "rrs", "rrc", "rrcs"))
"""Places of the step types that receive."""


@dataclass
class _End:
    """One end of a connection: the thread block's line, and the counts of its messages with their lines."""

    line: int
    counts: list[tuple[int, int]] = field(default_factory=list)


def _blocks(file: MscclFile) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(row, rank, id, send, recv, channel) of every thread block."""
    document = file.document
    ranks = document.gpu["id"]
    columns = (document.tb[key] for key in ("gpu", "id", "send", "recv", "chan"))
    for row, (gpu, name, send, recv, channel) in enumerate(zip(*columns, strict=True)):
        yield row, ranks[gpu], name, send, recv, channel


@RULES.rule("B01", ERROR, "ids of thread blocks", "the file is refused")
def _ids(file: MscclFile) -> Iterator[Complaint]:
    document = file.document
    names: list[list[int]] = [[] for _ in range(document.num_gpus)]
    for gpu, name in zip(document.tb["gpu"], document.tb["id"], strict=True):
        names[gpu].append(name)
    for gpu, found in enumerate(names):
        if sorted(found) == list(range(len(found))):
            continue
        twice = [name for name, number in Counter(found).items() if number > 1]
        what = (
            f"{twice[0]} stands there twice"
            if twice
            else f"they are {', '.join(map(str, sorted(found)[:8]))}"
        )
        text = (
            f"thread blocks of gpu {document.gpu['id'][gpu]} are not numbered 0 .. {len(found) - 1}: {what}"
        )
        yield document.gpu["line"][gpu], text, "number them anew, and depid with them"


@RULES.rule("B02", ERROR, "number of thread blocks", "the file is refused")
def _number(file: MscclFile) -> Iterator[Complaint]:
    document, most = file.document, file.target.max_blocks
    for gpu, found in sorted(Counter(document.tb["gpu"]).items()):
        if found > most:
            text = (
                f"gpu {document.gpu['id'][gpu]} has {found} thread blocks, {found - most} more than the {most} of "
                f"{file.target.title}"
            )
            yield document.gpu["line"][gpu], text, "let trees share thread blocks, or use fewer channels"


@RULES.rule("B03", ERROR, "peers are other ranks", "the file is refused, or memory overwritten")
def _peers(file: MscclFile) -> Iterator[Complaint]:
    ranks = file.integer("ngpus")
    lines = file.document.tb["line"]
    for row, rank, name, send, recv, _ in _blocks(file):
        for word, peer in (("sends to", send), ("receives from", recv)):
            if peer == ABSENT:
                continue
            if peer == rank or peer < -1:
                what = "itself" if peer == rank else f"rank {peer}"
                text = f"thread block {name} of gpu {rank} {word} {what}"
                yield lines[row], text, "name another rank, or -1"
            elif ranks is not None and peer >= ranks:
                text = f"thread block {name} of gpu {rank} {word} rank {peer}, but ngpus is {ranks}"
                yield lines[row], text, f"name a rank below {ranks}, or -1"


@RULES.rule("B04", ERROR, "channels of thread blocks", "the file is refused")
def _channel(file: MscclFile) -> Iterator[Complaint]:
    lines, most = file.document.tb["line"], file.target.max_channels
    for row, rank, name, _, _, channel in _blocks(file):
        if channel != ABSENT and not 0 <= channel < most:
            text = f"thread block {name} of gpu {rank} has channel {channel}; there are 0 .. {most - 1}"
            yield lines[row], text, "use one of them, for thread blocks without a peer as well"


@RULES.rule("B05", ERROR, "thread blocks per channel", "the file is refused")
def _crowded(file: MscclFile) -> Iterator[Complaint]:
    most = file.target.max_peers
    senders: Counter[tuple[int, int]] = Counter()
    receivers: Counter[tuple[int, int]] = Counter()
    for _, rank, _, send, recv, channel in _blocks(file):
        senders[rank, channel] += send >= 0
        receivers[rank, channel] += recv >= 0
    for word, numbers in (("send", senders), ("receive", receivers)):
        for (rank, channel), number in sorted(numbers.items()):
            if number > most:
                text = f"{number} thread blocks of gpu {rank} {word} on channel {channel}; {most} may"
                yield 0, text, "spread them over more channels"


@RULES.rule("B06", ERROR, "one thread block at each end of a connection", "messages are mixed up")
def _shared(file: MscclFile) -> Iterator[Complaint]:
    lines = file.document.tb["line"]
    seen: dict[tuple[str, int, int, int], int] = {}
    for row, rank, name, send, recv, channel in _blocks(file):
        for word, peer in (("send", send), ("receive", recv)):
            if peer < 0:
                continue
            pair = (rank, peer) if word == "send" else (peer, rank)
            key = (word, *pair, channel)
            if key in seen:
                text = (
                    f"thread block {name} of gpu {rank} uses channel {channel} of {pair[0]} -> {pair[1]} to "
                    f"{word}, as that of line {seen[key]} does"
                )
                yield lines[row], text, "give each its own channel, or one thread block for both"
            seen.setdefault(key, lines[row])


def _ends(file: MscclFile) -> tuple[dict[tuple[int, int, int], _End], dict[tuple[int, int, int], _End]]:
    """Sending and receiving ends by (source, destination, channel), with the messages of their steps."""
    document = file.document
    senders: dict[tuple[int, int, int], _End] = {}
    receivers: dict[tuple[int, int, int], _End] = {}
    of_block: list[tuple[_End | None, _End | None]] = []
    for row, rank, _, send, recv, channel in _blocks(file):
        line = document.tb["line"][row]
        out = senders.setdefault((rank, send, channel), _End(line)) if send >= 0 else None
        into = receivers.setdefault((recv, rank, channel), _End(line)) if recv >= 0 else None
        of_block.append((out, into))
    columns = (document.step[key] for key in ("tb", "type", "cnt", "line"))
    for block, kind, count, line in zip(*columns, strict=True):
        out, into = of_block[block]
        if kind in SENDS and out is not None:
            out.counts.append((count, line))
        if kind in RECEIVES and into is not None:
            into.counts.append((count, line))
    return senders, receivers


@RULES.rule("B07", ERROR, "messages have both ends", "ranks hang, or take wrong data")
def _matched(file: MscclFile) -> Iterator[Complaint]:
    senders, receivers = _ends(file)
    for key in sorted(senders.keys() | receivers.keys()):
        sent = senders.get(key, _End(0))
        received = receivers.get(key, _End(0))
        source, destination, channel = key
        for (given, line), (taken, other) in zip(sent.counts, received.counts, strict=False):
            if given != taken:
                text = f"{source} sends {given} slots on channel {channel}, {destination} takes {taken} (line {other})"
                yield line, text, "let both ends agree on cnt"
                break
        if len(sent.counts) != len(received.counts):
            text = (
                f"{source} sends {len(sent.counts)} messages to {destination} on channel {channel}, which takes "
                f"{len(received.counts)}"
            )
            yield sent.line or received.line, text, "give each message a sender and a receiver"


@RULES.rule("B08", NOTE, "connections are used", "connections take memory for nothing")
def _unused(file: MscclFile) -> Iterator[Complaint]:
    senders, receivers = _ends(file)
    for word, ends in (("sends", senders), ("receives", receivers)):
        for (source, destination, channel), end in sorted(ends.items()):
            if not end.counts:
                text = f"a thread block is connected {source} -> {destination} on channel {channel} but never {word}"
                yield end.line, text, "use -1 for a peer that is not needed"


@RULES.rule("B09", ERROR, "steps have their peers", "the file is refused")
def _without_peer(file: MscclFile) -> Iterator[Complaint]:
    document = file.document
    columns = (document.step[key] for key in ("tb", "type", "line"))
    for block, kind, line in zip(*columns, strict=True):
        for word, kinds in (("send", SENDS), ("recv", RECEIVES)):
            if kind in kinds and document.tb[word][block] == -1:
                text = f"a step of type {STEP_TYPES[kind]} stands in a thread block with {word}=-1"
                yield line, text, f"name the peer in {word}"
