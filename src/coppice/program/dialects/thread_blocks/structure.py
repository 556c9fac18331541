"""Structural checks of a two-sided program: scalars, peers, connections, slots, dependencies, message pairs.

The form is judged before the program is run. What passes has exactly one thread block at either end of every
connection, as many receives as sends on it, and both ends of each message agree on its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.memory import Buffer, ProgramMemory, all_sizes
from coppice.rows import begins_run, nth_in_run
from coppice.schedule.verification.report import Findings

_EXAMPLES = 5
_BLOCKED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.GATHER)


@dataclass(frozen=True, eq=False, repr=False)
class MessagePairs(Brief):
    """Messages of a program by connection."""

    send: NDArray[np.int64]  # Step that sends each message, by (connection, place on it) (int64)
    recv: NDArray[np.int64]  # Step that receives it (int64)
    place: NDArray[np.int64]  # Place on its connection, from 0 (int64)


def step_addresses(program: Program, memory: ProgramMemory) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First address read and first written by each step; meaningless where it does neither."""
    rank = program.step_rank
    return (
        memory.base[program.src_buffer, rank] + program.src_offset,
        memory.base[program.dst_buffer, rank] + program.dst_offset,
    )


def step_name(program: Program, step: int) -> str:
    """``rank 3, thread block 2, step 5 (send)``."""
    rank, block, place = program.step_place(step)
    op = int(program.op[step])
    name = StepOp(op).name.lower() if op in StepOp.__members__.values() else f"operation {op}"
    return f"rank {rank}, thread block {block}, step {place} ({name})"


def check_structure(program: Program, findings: Findings) -> MessagePairs | None:
    """Judge the form of a program.

    Returns:
        Its messages, or None if the program cannot be run.
    """
    _check_scalars(program, findings)
    if findings.failures:
        return None
    _check_blocks(program, findings)
    _check_steps(program, findings)
    _check_dependencies(program, findings)
    if findings.failures:
        return None
    messages = message_pairs(program, findings)
    return None if findings.failures else messages


def _check_scalars(program: Program, findings: Findings) -> None:
    ranks, chunks, collective = program.num_ranks, program.num_chunks, program.collective
    if ranks < 1 or chunks < 1:
        findings.add(f"expected 1 or more ranks and chunks, found {ranks} and {chunks}.")
        return
    if collective is Collective.BARRIER:
        findings.add("expected a collective that moves data, found a barrier.")
    if collective in (*_BLOCKED, Collective.SCATTER) and chunks % ranks:
        findings.add(
            f"expected a number of chunks that {ranks} ranks divide for {collective}, found {chunks}."
        )
    if collective.rooted and not 0 <= program.root < ranks:
        findings.add(f"expected a root between 0 and {ranks - 1} for {collective}, found {program.root}.")
    if (program.scratch_chunks < 0).any():
        rank = int(np.flatnonzero(program.scratch_chunks < 0)[0])
        findings.add(f"rank {rank} has {program.scratch_chunks[rank]} slots of scratch: expected 0 or more.")


def _block_name(program: Program, block: int) -> str:
    rank, place = program.block_id(block)
    return f"rank {rank}, thread block {place}"


def _examples(findings: Findings, mask: NDArray[np.bool_], what: str, told: Callable[[int], str]) -> None:
    """A sentence for the first few rows of a mask."""
    rows = np.flatnonzero(mask)
    findings.add_examples([told(int(row)) for row in rows[:_EXAMPLES]], len(rows), what)


def _check_blocks(program: Program, findings: Findings) -> None:
    """Peers and channels, and one thread block at either end of a connection."""
    for peer, verb in ((program.block_send, "sends to"), (program.block_recv, "receives from")):
        _check_peers(program, findings, peer, verb)
    _examples(
        findings,
        program.block_channel < 0,
        "thread blocks",
        lambda block: (
            f"{_block_name(program, block)} has channel {program.block_channel[block]}: expected 0 or more."
        ),
    )
    for peer, verb in ((program.block_send, "send to"), (program.block_recv, "receive from")):
        _check_connections(program, findings, peer, verb)


def _check_peers(program: Program, findings: Findings, peer: NDArray[np.int32], verb: str) -> None:
    _examples(
        findings,
        (peer < -1) | (peer >= program.num_ranks) | (peer == program.block_rank),
        "thread blocks",
        lambda block: (
            f"{_block_name(program, block)} {verb} rank {peer[block]}: expected another rank of the "
            f"{program.num_ranks}, or -1."
        ),
    )


def _check_connections(program: Program, findings: Findings, peer: NDArray[np.int32], verb: str) -> None:
    """No connection has two thread blocks at one end."""
    key = _connection(program, program.block_rank, peer)
    order = np.argsort(key, kind="stable")
    shared = np.zeros(program.num_blocks, dtype=np.bool_)
    shared[order] = ~begins_run(key[order]) & (peer[order] >= 0)
    before = np.zeros(program.num_blocks, dtype=np.int64)
    before[order[1:]] = order[:-1]
    _examples(
        findings,
        shared,
        "connections",
        lambda block: (
            f"{_block_name(program, int(before[block]))} and thread block "
            f"{program.block_id(block)[1]} both {verb} rank {peer[block]} on channel "
            f"{program.block_channel[block]}: expected one of them at most."
        ),
    )


def _connection(
    program: Program, sender: NDArray[np.int32], receiver: NDArray[np.int32]
) -> NDArray[np.int64]:
    """A number for each (sender, receiver, channel)."""
    channels = max(program.num_channels, 1)
    ranks = program.num_ranks + 1
    return (sender.astype(np.int64) * ranks + receiver + 1) * channels + program.block_channel


def _check_steps(program: Program, findings: Findings) -> None:
    """Operations, peers that they need, counts, and slots in bounds."""
    op, block = program.op, program.step_block
    known = (op >= 0) & (op <= max(StepOp))
    _examples(
        findings, ~known, "steps", lambda step: f"{step_name(program, step)}: expected a known operation."
    )
    for mask, peer, verb in (
        (program.sends, program.block_send, "send"),
        (program.receives, program.block_recv, "receive"),
    ):
        lonely = np.flatnonzero(mask & (peer[block] < 0))
        sentences = [
            f"{step_name(program, step)} has no peer to {verb}: its thread block names none."
            for step in lonely[:_EXAMPLES].tolist()
        ]
        findings.add_examples(sentences, len(lonely), "steps")
    _examples(
        findings,
        known & (op != StepOp.NOP) & (program.count < 1),
        "steps",
        lambda step: f"{step_name(program, step)} has count {program.count[step]}: expected 1 chunk or more.",
    )
    sizes = all_sizes(program)
    if program.in_place and not program.out_of_place and _whole_alias(program.collective):
        sizes[:2] = sizes[:2].max(axis=0)
    for mask, buffer, offset, verb in (
        (program.reads_src, program.src_buffer, program.src_offset, "reads"),
        (program.writes_dst, program.dst_buffer, program.dst_offset, "writes"),
    ):
        _check_slots(program, findings, sizes, mask, buffer, offset, verb)


def _check_slots(
    program: Program,
    findings: Findings,
    sizes: NDArray[np.int64],
    mask: NDArray[np.bool_],
    buffer: NDArray[np.int8],
    offset: NDArray[np.int32],
    verb: str,
) -> None:
    """Slots that steps of a mask read or write are slots of a buffer."""
    real = (buffer >= 0) & (buffer <= Buffer.SCRATCH)
    limit = np.where(real, sizes[np.where(real, buffer, 0), program.step_rank], 0)
    outside = (offset < 0) | (offset.astype(np.int64) + program.count > limit)

    def beyond(step: int) -> str:
        if not real[step]:
            return f"{step_name(program, step)} {verb} no buffer: expected input, output or scratch."
        first, count = int(offset[step]), int(program.count[step])
        slots = f"slot {first}" if count == 1 else f"slots {first} to {first + count - 1}"
        return (
            f"{step_name(program, step)} {verb} {slots} of the {Buffer(buffer[step]).name.lower()}, which has "
            f"{limit[step]} there."
        )

    _examples(findings, mask & (~real | outside), "steps", beyond)


def _whole_alias(collective: Collective) -> bool:
    """In place, input and output are the same slots at every rank."""
    return collective in (
        Collective.ALL_REDUCE,
        Collective.BROADCAST,
        Collective.REDUCE,
        Collective.ALL_TO_ALL,
    )


def _check_dependencies(program: Program, findings: Findings) -> None:
    """Each names a step that is there, in another thread block or earlier in its own."""
    step = program.dep_waiter
    rank = program.step_rank[step]
    blocks = np.diff(program.rank_start)[rank]
    there = (program.dep_block >= 0) & (program.dep_block < blocks)
    target = program.rank_start[rank] + np.where(there, program.dep_block, 0)
    length = np.diff(program.step_start)
    good = there.copy()
    if len(length):
        good &= (program.dep_step >= 0) & (program.dep_step < length[np.minimum(target, len(length) - 1)])
    _examples(
        findings,
        ~good,
        "dependencies",
        lambda row: (
            f"{step_name(program, int(step[row]))} waits for step {program.dep_step[row]} of thread block "
            f"{program.dep_block[row]}, which is not there."
        ),
    )


def message_pairs(program: Program, findings: Findings) -> MessagePairs:
    """Pair the sends and the receives of every connection, and judge that they fit.

    Args:
        program: A program whose thread blocks and steps are well formed.
    """
    block = program.step_block
    out = _connection(program, program.block_rank, program.block_send)
    into = _connection(program, program.block_recv, program.block_rank)
    send = np.flatnonzero(program.sends)
    recv = np.flatnonzero(program.receives)
    send_key, recv_key = out[block[send]], into[block[recv]]
    send_order, recv_order = np.argsort(send_key, kind="stable"), np.argsort(recv_key, kind="stable")
    send, recv = send[send_order], recv[recv_order]
    send_key, recv_key = send_key[send_order], recv_key[recv_order]
    if len(send) != len(recv) or (send_key != recv_key).any():
        _report_unmatched(program, send, send_key, recv, recv_key, findings)
        return MessagePairs(send[:0], recv[:0], send[:0])
    differ = program.count[send] != program.count[recv]
    _examples(
        findings,
        differ,
        "messages",
        lambda row: (
            f"{step_name(program, int(send[row]))} sends {program.count[send[row]]} chunks, which "
            f"{step_name(program, int(recv[row]))} takes for {program.count[recv[row]]}."
        ),
    )
    return MessagePairs(send, recv, nth_in_run(send_key))


def _report_unmatched(
    program: Program,
    send: NDArray[np.int64],
    send_key: NDArray[np.int64],
    recv: NDArray[np.int64],
    recv_key: NDArray[np.int64],
    findings: Findings,
) -> None:
    """Connections with more sends than receives, or the other way round."""
    keys, inverse = np.unique(np.concatenate([send_key, recv_key]), return_inverse=True)
    sent = np.bincount(inverse[: len(send_key)], minlength=len(keys))
    taken = np.bincount(inverse[len(send_key) :], minlength=len(keys))
    wrong = np.flatnonzero(sent != taken)
    sentences = []
    for row in wrong[:_EXAMPLES].tolist():
        key, more, less = keys[row], int(sent[row]), int(taken[row])
        if more > less:
            step = int(send[np.searchsorted(send_key, key) + less])
            peer = program.block_send[program.step_block[step]]
            sentences.append(
                f"{step_name(program, step)} sends a message that rank {peer} never receives: "
                f"{more} are sent on that connection, {less} received."
            )
        else:
            step = int(recv[np.searchsorted(recv_key, key) + more])
            peer = program.block_recv[program.step_block[step]]
            sentences.append(
                f"{step_name(program, step)} receives a message that rank {peer} never sends: "
                f"{more} are sent on that connection, {less} received."
            )
    findings.add_examples(sentences, len(wrong), "connections")
