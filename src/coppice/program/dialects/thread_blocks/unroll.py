"""A two-sided program as an execution: what steps read, make and write, and what always comes before what.

A step *happens before* another if a chain of these leads from it to the other: the next step of its thread block, a
step that depends on it, the step that receives its message. That a connection has no room left also orders steps, but
it does so with one depth and not with another, and is not counted on.

What waits for an *early send* need not come after its reads. Such a step has two points: at the first it counts as done
for those that depend on it, at the second it has read. Who receives its message, and later steps of its thread block,
come after the second; but for a write of the next step by threads that may be ahead, which comes after the first, and
after its message was sent.

An early send completes before all its threads have read. A thread block moves a message with hundreds of threads. When
a step is done, its last thread stores a flag, which other thread blocks wait for; in almost all steps a barrier of all
threads comes before that. A send with LL has none at its end in RCCL since ROCm 6.0 ("Use send instead of
sendWithBarrier", November 2023): its flag says that the last thread has read, not that all have. So what waits for such
a send must not write what it sends. All later steps of the thread block come after its reads: a send begins with a
barrier, a step that waits has one behind the wait, and all others end with one. Who receives the message comes after
them, too, since it takes every value that was read.

In the same thread block, the step right behind the send needs a barrier of its own if it writes what was sent, unless
each thread writes just what it has read: a receive or copy into the very slots of the send. A reduction is shared out
among threads otherwise than a send.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.thread_blocks.cutting import Buffers
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.structure import MessagePairs, step_addresses
from coppice.program.memory import ProgramMemory
from coppice.program.order import MemoryAccesses, Points, ProgramExecution, Values
from coppice.rows import inverse, offsets

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


def early_sends(program: Program, buffers: Buffers) -> _Bools:
    """Steps that complete before all their threads have read."""
    early: _Bools = (program.op == StepOp.SEND) & (program.protocol in buffers.early)
    return early


def overwritten_next(program: Program, memory: ProgramMemory, early: _Bools) -> _Bools:
    """Early sends whose slots are overwritten by other threads of the next step.

    Args:
        early: What :func:`early_sends` found.
    """
    found = np.zeros(program.num_steps, dtype=np.bool_)
    send = np.flatnonzero(early[:-1] & (program.step_block[:-1] == program.step_block[1:]))
    after = send + 1
    src, dst = step_addresses(program, memory)
    count = program.count.astype(np.int64)
    overlap = (dst[after] < src[send] + count[send]) & (src[send] < dst[after] + count[after])
    same = (dst[after] == src[send]) & (count[after] == count[send]) & (program.op[after] != StepOp.REDUCE)
    no_barrier = program.writes_dst[after] & ~program.sends[after] & (np.diff(program.dep_start)[after] == 0)
    found[send] = no_barrier & overlap & ~same
    return found


def unroll(
    program: Program,
    messages: MessagePairs,
    order: _Ints,  # An order in which its steps can take place
    memory: ProgramMemory,
    early: _Bools | None = None,  # Sends that count as done before they have read; None: none does
) -> ProgramExecution:
    """A program of sound structure, with the given addresses."""
    steps = program.num_steps
    src, dst = step_addresses(program, memory)
    adds = program.op == StepOp.REDUCE
    # Copies of slots onto themselves, as in place, leave every byte as it is and disturb no reader.
    writing = program.writes_dst & ~((program.op == StepOp.COPY) & (src == dst))
    reads, held, writes = np.flatnonzero(program.reads_src), np.flatnonzero(adds), np.flatnonzero(writing)
    actor = np.concatenate([reads, held, writes])
    # What a step makes is a value of its own, of what it reads or of what its sender has made; a send makes none.
    read_of, held_of, sent = np.full((3, steps), -1)
    read_of[reads] = np.arange(len(reads))
    held_of[held] = len(reads) + np.arange(len(held))
    plain = program.op[messages.send] == StepOp.SEND
    sent[messages.recv] = np.where(plain, read_of[messages.send], len(actor) + messages.send)
    both = program.reads_src & program.receives
    points, begin, end, write_begin = _points(program, messages, memory, early)
    time = inverse(order)
    over = actor if early is None else end[actor]
    begins = actor if early is None else np.concatenate([begin[reads], begin[held], write_begin[writes]])
    count = np.where(program.op == StepOp.NOP, 0, program.count).astype(np.int64)
    return ProgramExecution(
        accesses=MemoryAccesses(
            actor=actor,
            first=np.concatenate([src[reads], dst[held], dst[writes]]).astype(np.int64),
            count=count[actor],
            stride=np.broadcast_to(np.int64(1), len(actor)),
            write=np.arange(len(actor)) >= len(reads) + len(held),
            value=actor,
            time=time[actor],
            begin=begins,
            end=over,
            also=over,
        ),
        values=Values(
            actor=np.arange(steps),
            count=np.where(program.op == StepOp.SEND, 0, count),
            one=np.where(adds, held_of, np.where(program.reads_src, read_of, sent)),
            other=np.where(adds, read_of, np.where(both, sent, -1)),
        ),
        points=points,
    )


def _points(
    program: Program, messages: MessagePairs, memory: ProgramMemory, early: _Bools | None
) -> tuple[Points, _Ints, _Ints, _Ints]:
    """Points, where each step begins and ends among them, and where what it writes begins."""
    block = program.step_block.astype(np.int64)
    edges = [(messages.send, messages.recv), (program.dep_target, program.dep_waiter)]
    if early is None:
        every = np.arange(program.num_steps)
        earlier, later = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        return Points(chain=block, earlier=earlier, later=later), every, every, every
    number = 1 + early
    start = offsets(number)
    begin, end, write_begin = start[:-1], start[1:] - 1, start[:-1].copy()
    sends = np.flatnonzero(overwritten_next(program, memory, early))
    ahead = int(start[-1]) + np.arange(len(sends))
    write_begin[sends + 1] = ahead
    sent_by = np.full(program.num_steps, -1, dtype=np.int64)
    sent_by[messages.recv] = messages.send
    told = np.flatnonzero(sent_by[sends + 1] >= 0)
    pairs = [
        (end[messages.send], begin[messages.recv]),
        (begin[program.dep_target], begin[program.dep_waiter]),
        (begin[sends], ahead),
        (end[sent_by[sends[told] + 1]], ahead[told]),
        (ahead, begin[sends + 1]),
    ]
    earlier, later = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    chain = np.concatenate([np.repeat(block, number), program.num_blocks + np.arange(len(sends))])
    return Points(chain=chain, earlier=earlier, later=later), begin, end, write_begin
