"""Doctor rules about thread blocks and the connections between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from coppice.doctor.framework import ERROR, NOTE, Complaint
from coppice.doctor.msccl.file import RULES, MscclFile
from coppice.export.msccl.document import ABSENT, STEP_TYPES

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
