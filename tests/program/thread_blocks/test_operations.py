"""Operations on slots lowered to programs: what is asked for is had, and what is not needed is left out."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.language import ChunkProgram, per_rank_program
from coppice.program.dialects.thread_blocks.operations.connections import chains_of, connect
from coppice.program.dialects.thread_blocks.operations.instructions import (
    Hints,
    SlotOperation,
    instructions_of,
)
from coppice.program.dialects.thread_blocks.operations.lower import SlotLayout, lower_operations
from coppice.program.dialects.thread_blocks.operations.sequence import sequence
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import Buffer, memory_of
from reference.programs_run import run_program


def layout(collective: Collective, ranks: int, chunks: int, root: int = -1, scratch: int = 0) -> SlotLayout:
    return SlotLayout(collective, ranks, chunks, root, np.full(ranks, scratch))


def send(
    src: int, dst: int, slot: int = 0, *, count: int = 1, adds: bool = False, **hints: int
) -> SlotOperation:
    """Within the output of an all-reduce or broadcast in place."""
    return SlotOperation(
        src_rank=src,
        src_buffer=int(Buffer.OUTPUT),
        src_offset=slot,
        dst_rank=dst,
        dst_buffer=int(Buffer.OUTPUT),
        dst_offset=slot,
        count=count,
        adds=adds,
        where=f"{src} to {dst}",
        hints=Hints(**hints),
    )


def broadcast(operations: list[SlotOperation], ranks: int, chunks: int = 1, **options: object) -> Program:
    program = lower_operations(
        operations,
        layout(Collective.BROADCAST, ranks, chunks, 0),
        in_place=True,
        **options,  # type: ignore[arg-type]
    )
    verify_program(program).require_ok()
    return program


def blocks(program: Program) -> list[tuple[int, int, int, int, list[str]]]:
    """(rank, sends to, receives from, channel, steps) of all thread blocks."""
    return [
        (
            int(program.block_rank[row]),
            int(program.block_send[row]),
            int(program.block_recv[row]),
            int(program.block_channel[row]),
            [StepOp(op).name for op in program.op[program.step_start[row] : program.step_start[row + 1]]],
        )
        for row in range(program.num_blocks)
    ]


def test_a_chain_is_passed_on() -> None:
    assert blocks(broadcast([send(0, 1), send(1, 2)], 3)) == [
        (0, 1, -1, 0, ["SEND"]),
        (1, 2, 0, 0, ["RECV_COPY_SEND"]),
        (2, -1, 1, 0, ["RECV"]),
    ]


def test_only_one_send_of_several_is_joined_that_with_the_longest_way_to_go() -> None:
    program = broadcast([send(0, 1), send(1, 2), send(1, 3), send(3, 4)], 5)
    of_rank_1 = [row[1:] for row in blocks(program) if row[0] == 1]
    assert of_rank_1 == [(2, -1, 0, ["SEND"]), (3, 0, 0, ["RECV_COPY_SEND"])]
    assert program.dep_target.tolist() == [2]  # the other send waits for what was received


def test_a_sum_that_somebody_needs_is_kept() -> None:
    """The sum of rank 1 is overwritten in the end, but was sent to two ranks."""
    program = ChunkProgram("all_reduce", ranks=3)
    total = program.chunk(1, "input", 0).reduce(program.chunk(0, "input", 0))
    total.copy(0, "tmp", 0)
    total = program.chunk(2, "input", 0).reduce(total)
    for rank in (0, 1):
        total.copy(rank, "input")
    found = [row for row in blocks(per_rank_program(program)) if row[0] == 1]
    assert any("RECV_REDUCE_COPY_SEND" in row[4] for row in found)
    program = ChunkProgram("all_reduce", ranks=3)
    total = program.chunk(1, "input", 0).reduce(program.chunk(0, "input", 0))
    total = program.chunk(2, "input", 0).reduce(total)
    for rank in (0, 1):
        total.copy(rank, "input")
    found = [row for row in blocks(per_rank_program(program)) if row[0] == 1]
    assert any("RECV_REDUCE_SEND" in row[4] for row in found)


def test_a_sum_that_the_collective_wants_is_kept() -> None:
    """Of a reduce-scatter in place, rank 1 wants block 1 and passes block 0 on."""
    program = ChunkProgram("reduce_scatter", ranks=3)
    for block in range(3):
        total = program.chunk((block + 1) % 3, "input", block)
        for step in (2, 3):
            total = program.chunk((block + step) % 3, "input", block).reduce(total)
    lowered = per_rank_program(program)
    names = [StepOp(op) for op in lowered.op]
    assert names.count(StepOp.RECV_REDUCE_SEND) == names.count(StepOp.RECV_REDUCE_COPY) == 3
    assert StepOp.RECV_REDUCE_COPY_SEND not in names


def test_channels_that_are_asked_for() -> None:
    program = broadcast([send(0, 1, channel=5), send(1, 2, channel=5), send(0, 3)], 4)
    assert [row[3] for row in blocks(program)] == [0, 5, 5, 5, 0]
    # Another channel on the way: what arrives is not passed on in the same step.
    program = broadcast([send(0, 1, channel=5), send(1, 2, channel=4)], 3)
    assert StepOp.RECV_COPY_SEND not in program.op
    assert sorted(row[3] for row in blocks(program)) == [4, 4, 5, 5]


def test_thread_blocks_that_are_asked_for() -> None:
    """Two receives of one thread block come over one channel; sends to two peers need two thread blocks."""
    operations = [
        send(0, 1, 0, send_block=1, recv_block=7),
        send(0, 1, 1, send_block=2, recv_block=8),
        send(1, 2, 0, send_block=7, recv_block=0),
        send(1, 2, 1, send_block=7, recv_block=0),
    ]
    program = broadcast(operations, 3, 2)
    assert sorted(blocks(program)) == [
        (0, 1, -1, 0, ["SEND"]),
        (0, 1, -1, 1, ["SEND"]),
        (1, -1, 0, 1, ["RECV"]),
        (1, 2, 0, 0, ["RECV_COPY_SEND", "SEND"]),
        (2, -1, 1, 0, ["RECV", "RECV"]),
    ]


def test_what_is_asked_for_comes_first() -> None:
    """The first chain would take channel 0 through rank 1, where the second wants to turn."""
    operations = [
        *[send(0, 1, 0), send(1, 2, 0)],
        *[send(0, 1, 1, channel=0), send(1, 3, 1, channel=0)],
        *[send(0, 3, 0), send(0, 2, 1)],
    ]
    program = broadcast(operations, 4, 2)
    turning = {row[1]: row[3] for row in blocks(program) if row[0] == 1 and row[4] == ["RECV_COPY_SEND"]}
    assert turning == {2: 1, 3: 0}


def test_places_that_are_asked_for() -> None:
    """The other way round than they were written down, at both ends."""
    operations = [send(0, 1, slot, send_step=3 - slot, recv_step=3 - slot) for slot in range(3)]
    program = broadcast(operations, 2, 3)
    assert program.src_offset[:3].tolist() == program.dst_offset[3:].tolist() == [2, 1, 0]


def test_what_cannot_be_had() -> None:
    with pytest.raises(
        CheckError, match=r"^0 to 2: the message from rank 0 to rank 2 cannot have thread block 0 of rank 0"
    ):
        broadcast([send(0, 1, send_block=0), send(0, 2, send_block=0)], 3)
    with pytest.raises(InputError, match=r"^0 to 1: expected a place"):
        broadcast([send(0, 1, 0, send_step=0), send(0, 1, 1)], 2, 2)
    with pytest.raises(CheckError, match="at most 32 channels"):
        broadcast([send(0, 1, channel=10)], 2, instances=3)


def test_a_chain_whose_thread_blocks_differ_is_taken_apart() -> None:
    program = broadcast([send(0, 1, recv_block=0), send(1, 2, send_block=1)], 3)
    assert StepOp.RECV_COPY_SEND not in program.op
    assert len([row for row in blocks(program) if row[0] == 1]) == 2


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_instances_are_side_by_side(instances: int) -> None:
    """Each has its part of every block, its channels, and waits for nobody else."""
    program = ChunkProgram("all_gather", ranks=4, chunks=3, instances=instances)
    for owner in range(4):
        part = program.chunk(owner, "output", 3 * owner, 3)
        for step in range(1, 4):
            part = part.copy((owner + step) % 4, "output")
    both = program.chunk(0, "output", 2, 3).copy(0, "tmp", 0)  # over the end of a block
    assert both.size == 3
    lowered = per_rank_program(program)
    assert lowered.num_chunks == 12 * instances
    assert lowered.num_channels == instances
    assert lowered.scratch_chunks.tolist() == [3 * instances, 0, 0, 0]
    waits = lowered.block_channel[lowered.step_block[lowered.dep_waiter]]
    assert (waits == lowered.block_channel[lowered.dep_target_block]).all()
    assert run_program(lowered, in_place=True, depth=2, seed=instances).good


def test_long_steps_are_safe_or_limited() -> None:
    """Ranks that exchange long messages get thread blocks of their own for both ways."""
    program = ChunkProgram("all_gather", ranks=2, chunks=8)
    for rank in range(2):
        program.chunk(rank, "output", 8 * rank, 8).copy(1 - rank, "output")
    lowered = per_rank_program(program)
    assert lowered.max_bytes is None
    assert lowered.most_blocks == 2
    program = ChunkProgram("all_gather", ranks=2)
    for rank in range(2):
        program.chunk(rank, "output", rank).copy(1 - rank, "output")
    assert per_rank_program(program).most_blocks == 1


def test_waits_are_few() -> None:
    """A sum of many waits once for each thread block that received a part of it."""
    program = ChunkProgram("reduce", ranks=5)
    for rank in range(1, 5):
        program.chunk(rank, "input", 0).copy(0, "tmp", rank)
    total = program.chunk(0, "input", 0)
    for rank in range(1, 5):
        total = total.reduce(program.chunk(0, "tmp", rank))
    lowered = per_rank_program(program)
    assert len(lowered.dep_block) <= 2 * 4
    assert sum(StepOp(op) is StepOp.REDUCE for op in lowered.op) == 4


def test_work_within_a_rank_is_spread() -> None:
    """Sums of many chunks are not all done by one thread block."""
    program = ChunkProgram("reduce", ranks=5, chunks=8)
    for rank in range(1, 5):
        program.chunk(rank, "input", 0, 8).copy(0, f"from {rank}", 0)
    for chunk in range(8):
        total = program.chunk(0, "input", chunk)
        for rank in range(1, 5):
            total = total.reduce(program.chunk(0, f"from {rank}", chunk))
    assert per_rank_program(program).most_steps <= 12


def test_order_of_operations_within_what_they_touch_is_kept() -> None:
    """A slot that is used again and again."""
    program = ChunkProgram("all_gather", ranks=3)
    for owner in range(3):
        mine = program.chunk(owner, "output", owner)
        for step in (1, 2):
            mine.copy((owner + step) % 3, "tmp", 0).copy((owner + step) % 3, "output", owner)
    lowered = per_rank_program(program)
    for seed in range(20):
        assert run_program(lowered, in_place=True, depth=2, seed=seed).good


@pytest.mark.parametrize("room", [1, 2])
def test_a_connection_delivers_in_the_order_of_sends(room: int) -> None:
    """The first of two messages has to wait for its slot, the second for nothing but the first."""
    operations = [
        *[send(*ends, 0) for ends in ((2, 3), (3, 2), (2, 3), (3, 1))],
        send(1, 2, 0),
        send(0, 1, 0),  # overwrites what was sent on
        send(0, 1, 1),
    ]
    memory = memory_of(layout(Collective.ALL_REDUCE, 4, 2), in_place=True)
    graph = instructions_of(operations, memory)
    table = connect(graph, chains_of(graph), refused={}, paired=True)
    order = sequence(graph, table, room=room)
    first, second = graph.messages[-2], graph.messages[-1]
    assert table.channel[len(graph.messages) - 2] == table.channel[len(graph.messages) - 1]
    assert order.index(first.send) < order.index(second.send)
    assert order.index(first.recv) < order.index(second.recv)
    assert (order.index(first.recv) < order.index(second.send)) == (room == 1)


def test_a_mutant_is_noticed() -> None:
    """A sum that is not kept although it is wanted does not pass the verifier."""
    program = ChunkProgram("all_reduce", ranks=2)
    program.chunk(1, "input", 0).reduce(program.chunk(0, "input", 0)).copy(0, "input")
    lowered = per_rank_program(program)
    kept = np.flatnonzero(lowered.op == StepOp.RECV_REDUCE_COPY_SEND)
    op, buffer, offset = lowered.op.copy(), lowered.dst_buffer.copy(), lowered.dst_offset.copy()
    op[kept], buffer[kept], offset[kept] = StepOp.RECV_REDUCE_SEND, Buffer.NONE, -1
    broken = replace(lowered, op=op, dst_buffer=buffer, dst_offset=offset)
    assert not verify_program(broken).ok
    assert not run_program(broken, in_place=True, depth=2, seed=random.Random(0).randrange(9)).good
