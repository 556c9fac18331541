"""Structural checks of a put/signal program: calls of one kind, existing peers, ranges within windows.

Libraries check next to nothing of this: neither the peer of a wait nor the end of a put against the window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.memory import Buffer, all_sizes
from coppice.schedule.verification.report import Findings

_MOST_NUMBER = 1024
"""Streams, communicators, contexts and signals are fewer; what is known of calls is kept for every stream."""
_MOST_SLOTS = 2**32
_KIND_OF = np.array(
    [
        PutSignalCall.TRANSFER,
        PutSignalCall.TRANSFER,
        PutSignalCall.WAIT,
        PutSignalCall.LOCAL,
        PutSignalCall.LOCAL,
    ]
)


def check_form(program: PutSignalProgram, findings: Findings) -> None:
    """Check the structure of a program.

    Args:
        program: Any program whose columns have the right lengths.
    """
    ranks, chunks = program.num_ranks, program.num_chunks
    if program.collective is Collective.BARRIER:
        findings.add("expected a collective that moves data, found a barrier.")
        return
    in_blocks = program.collective.sharded
    if ranks < 1 or chunks < 1 or (in_blocks and chunks % ranks):
        findings.add(
            f"expected 1 or more ranks and chunks, and blocks of whole chunks, found {chunks} chunks for {ranks} ranks."
        )
        return
    if program.collective.rooted != (0 <= program.root < ranks):
        findings.add(f"expected a root only where the collective has one, a rank, found {program.root}.")
        return
    if not (program.in_place or program.out_of_place):
        findings.add("it may be run neither in place nor out of place.")
    if program.in_place and program.collective is Collective.ALL_TO_ALL:
        findings.add("an all-to-all in place would overwrite what is still to be sent.")
    if len(program.staging) != ranks or (program.staging < 0).any():
        findings.add("expected the slots of staging memory of every rank.")
        return
    slots = 2 * ranks * chunks + sum(program.staging.tolist())
    if slots > _MOST_SLOTS:
        findings.add(f"expected memory of {_MOST_SLOTS} chunks at most on all ranks, found {slots}.")
        return
    sentences = list(_faults(program))
    findings.add_examples(sentences, len(sentences), "faults of form")


def _faults(program: PutSignalProgram) -> Iterator[str]:
    act = program.act
    if ((act < 0) | (act >= len(PutSignalAct))).any() or (np.diff(program.call_start) < 1).any():
        yield "expected calls of one known operation or more."
        return
    kind = _KIND_OF[act]
    mixed = np.flatnonzero(kind != program.call_kind[program.call_of])
    yield from (
        f"{program.place(op)} is in one call with operations of another kind." for op in mixed.tolist()
    )
    local = program.call_kind == PutSignalCall.LOCAL
    wrong = np.flatnonzero((program.stream < 0) | (local != (program.communicator < 0)))
    for call in wrong.tolist():
        yield (
            f"{program.place(int(program.call_start[call]))} has stream {program.stream[call]} and communicator "
            f"{program.communicator[call]}: expected a stream, and a communicator unless it is local."
        )
    remote = kind != PutSignalCall.LOCAL
    outside = np.flatnonzero(remote & ((program.peer < 0) | (program.peer >= program.num_ranks)))
    yield from (f"{program.place(op)} names rank {program.peer[op]}." for op in outside.tolist())
    below = np.flatnonzero(remote & ((program.context < 0) | (program.signal < 0)))
    yield from (f"{program.place(op)} has a context or signal below 0." for op in below.tolist())
    numbers = {"context": program.context, "signal": program.signal}
    numbers |= {each: getattr(program, each)[program.call_of] for each in ("stream", "communicator")}
    for what, number in numbers.items():
        above = np.flatnonzero(number >= _MOST_NUMBER)
        yield from (
            f"{program.place(op)} has {what} {number[op]}: expected one below {_MOST_NUMBER}."
            for op in above.tolist()
        )
    empty = np.flatnonzero((act != PutSignalAct.SIGNAL) & (program.count < 1))
    yield from (
        f"{program.place(op)} counts {program.count[op]}: expected 1 or more." for op in empty.tolist()
    )
    if len(outside) or len(empty):
        return
    puts, moves = (
        act == PutSignalAct.PUT,
        np.isin(act, (PutSignalAct.PUT, PutSignalAct.COPY, PutSignalAct.SUM)),
    )
    sums = act == PutSignalAct.SUM
    whose = np.where(puts, program.peer, program.rank_of)
    yield from _beyond(program, moves, program.rank_of, program.source_buffer, program.source)
    yield from _beyond(program, sums, program.rank_of, program.addend_buffer, program.addend)
    yield from _beyond(program, moves, whose, program.target_buffer, program.target)


def _beyond(
    program: PutSignalProgram,
    chosen: NDArray[np.bool_],
    rank: NDArray[np.int64],
    buffer: NDArray[np.int64],
    first: NDArray[np.int64],
) -> Iterator[str]:
    """Operands that are not within their window."""
    rows = np.flatnonzero(chosen)
    sizes = all_sizes(program)
    known = (buffer[rows] >= 0) & (buffer[rows] < len(sizes))
    size = np.where(known, sizes[np.where(known, buffer[rows], 0), rank[rows]], 0)
    wrong = ~known | (first[rows] < 0) | (first[rows] + program.count[rows] > size)
    for op, have in zip(rows[wrong].tolist(), size[wrong].tolist(), strict=True):
        name = Buffer(int(buffer[op])).name.lower() if 0 <= buffer[op] < len(sizes) else "no buffer"
        yield (
            f"{program.place(op)} uses slots {first[op]} to {first[op] + program.count[op] - 1} of the {name} of rank "
            f"{rank[op]}, which has {have}."
        )
