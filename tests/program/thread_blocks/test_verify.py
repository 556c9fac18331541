"""Programs written by hand: what is right passes, and every fault is named with its rank, thread block and step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.program.dialects.thread_blocks.cutting import fifo_depth
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import Buffer
from reference.programs import (
    IN,
    OUT,
    TMP,
    built,
    changed,
    pair_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    with_columns,
)


def only_failure(program: Program, **options: int) -> str:
    report = verify_program(program, **options)
    assert not report.ok
    assert len(report.failures) >= 1
    with pytest.raises(CheckError, match="does not verify"):
        report.require_ok()
    return report.failures[0]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("make", [ring_all_gather, ring_all_reduce])
@pytest.mark.parametrize("depth", [2, 8])
def test_rings_are_right(make, ranks: int, depth: int) -> None:
    report = verify_program(make(ranks), depth=depth)
    assert report.ok, report.failures
    assert report.depth == depth
    assert report.checked["messages"] == ranks * (ranks - 1) * (1 if make is ring_all_gather else 2)
    ways = 1 if make is ring_all_gather else 2
    assert report.checked["slots"] == ways * ranks * ranks
    assert not report.warnings


def test_pair_is_right_in_every_order() -> None:
    for seed in range(5):
        report = verify_program(pair_all_reduce(), seed=seed)
        assert report.ok, report.failures


def test_depth_follows_the_protocol() -> None:
    assert (fifo_depth("Simple"), fifo_depth("LL"), fifo_depth("LL128")) == (2, 8, 8)
    assert verify_program(ring_all_gather(protocol="LL128")).depth == 8


def test_fused_ring_stands_still_at_depth_1() -> None:
    """All ranks hold one message that they cannot pass on: the circle leads through all of them."""
    message = only_failure(ring_all_reduce(3), depth=1)
    assert message.startswith("it deadlocks with connections of 1 messages: rank 0, thread block 0")
    assert message.count("waits for room on its connection") == 3


def test_receiving_first_stands_still() -> None:
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank, send=1 - rank, recv=1 - rank)
        build.step(block, StepOp.RECV, dst=(OUT, 1 - rank))
        build.step(block, StepOp.SEND, src=(OUT, rank))
    program = built(build, Collective.ALL_GATHER, 2, 2, inputs=1)
    message = only_failure(program)
    assert "waits for the message of rank 1, thread block 0, step 1 (send), behind its step 0" in message


def test_circle_of_dependencies() -> None:
    program = pair_all_reduce()
    assert program.dep_step.tolist() == [0, 0]
    late = with_columns(program, dep_block=[1, 1], dep_step=[3, 3])  # the no-operation waits for a later step
    assert "depends on rank 0, thread block 1, step 3 (reduce)" in only_failure(late)


def test_missing_dependency_in_place_is_a_race() -> None:
    """In place, the sum overwrites what is being sent; the message that comes back orders nothing."""
    program = with_columns(pair_all_reduce(), dep_start=[0] * 11, dep_block=[], dep_step=[])
    message = only_failure(program)
    assert message.startswith("in place: rank 0, thread block 0, step 0 (send) and rank 0, thread block 1")
    assert "nothing puts them in order" in message
    assert verify_program(replace(program, in_place=False)).ok


def test_order_through_other_ranks_counts() -> None:
    """Rank 0 overwrites what it sent after the answer came: ordered by messages alone, through rank 1."""
    build = ProgramBuilder(2)
    build.step(build.block(0, send=1), StepOp.SEND, src=(OUT, 0))
    build.step(build.block(0, recv=1), StepOp.RECV, dst=(OUT, 0))
    build.step(build.block(1, send=0), StepOp.SEND, src=(OUT, 0), after=[(1, 0)])
    build.step(build.block(1, recv=0), StepOp.RECV_REDUCE_COPY, src=(OUT, 0), dst=(OUT, 0))
    program = built(build, Collective.ALL_REDUCE, 2, 1)
    assert verify_program(program).ok
    early = with_columns(program, dep_start=[0] * 5, dep_block=[], dep_step=[])
    report = verify_program(early)
    assert sum("nothing puts them in order" in failure for failure in report.failures) == 2


def test_uninitialised_reads() -> None:
    program = ring_all_gather(3)
    message = only_failure(replace(program, in_place=False, out_of_place=True))
    assert message == (
        "rank 0, thread block 0, step 0 (send) reads slot 0 of the output, which nothing was written to."
    )


def test_double_reduction() -> None:
    program = ring_all_reduce(3)
    row = int(program.step_start[0]) + 1
    wrong = changed(program, "src_offset", row, 0)  # adds its own share of another chunk
    assert only_failure(wrong) == (
        "in place: rank 0, thread block 0, step 1 (recv_reduce_send) adds chunk 2 to chunk 0: expected the same."
    )
    twice = ProgramBuilder(2)
    for rank in range(2):
        block = twice.block(rank, send=1 - rank, recv=1 - rank)
        for _ in range(2):
            twice.step(block, StepOp.SEND, src=(IN, 0))
        twice.step(block, StepOp.RECV_REDUCE_COPY, src=(IN, 0), dst=(OUT, 0))
        twice.step(block, StepOp.RECV_REDUCE_COPY, src=(OUT, 0), dst=(OUT, 0))
    message = only_failure(built(twice, Collective.ALL_REDUCE, 2, 1, in_place=False, out_of_place=True))
    assert message == (
        "rank 0, thread block 0, step 3 (recv_reduce_copy) adds the contribution of rank 1 to chunk 0 a second time."
    )


def test_wrong_outcomes() -> None:
    program = ring_all_gather(3)
    swapped = changed(program, "dst_offset", 2, 0)  # the last receive of rank 0 overwrites its own slot
    failures = " ".join(verify_program(swapped).failures)
    assert "slot 0 of the output of rank 0 ends with chunk 1: expected chunk 0." in failures
    assert "slot 1 of the output of rank 0 is never written: expected chunk 1." in failures


def test_missing_contribution() -> None:
    program = pair_all_reduce()
    nop = changed(program, "op", int(program.step_start[2]) - 1, StepOp.NOP)
    assert "without the contribution of rank 1 (1 missing)" in only_failure(nop)


@pytest.mark.parametrize(
    ("column", "row", "value", "told"),
    [
        ("count", 1, 2, "writes slots 3 to 4 of the output"),
        ("dst_offset", 1, 4, "writes slot 4 of the output, which has 4 there"),
        ("dst_offset", 1, -1, "writes slot -1"),
        ("dst_buffer", 1, 2, "of the scratch, which has 0 there"),
        ("dst_buffer", 1, -1, "writes no buffer"),
        ("count", 0, 0, "has count 0"),
        ("op", 0, 77, "expected a known operation"),
        ("block_send", 0, -1, "has no peer to send"),
        ("block_send", 0, 0, "sends to rank 0: expected another rank of the 4"),
        ("block_recv", 0, 9, "receives from rank 9"),
        ("block_channel", 0, -1, "has channel -1"),
        (
            "block_channel",
            0,
            1,
            "sends a message that rank 1 never receives: 3 are sent on that connection, 0",
        ),
        ("op", 0, 0, "receives a message that rank 0 never sends: 2 are sent on that connection, 3 received"),
        ("scratch_chunks", 2, -1, "rank 2 has -1 slots of scratch"),
    ],
)
def test_form(column: str, row: int, value: int, told: str) -> None:
    failures = " ".join(verify_program(changed(ring_all_gather(), column, row, value)).failures)
    assert told in failures


def test_both_ends_agree_on_the_length() -> None:
    assert only_failure(changed(pair_all_reduce(), "count", 0, 1)) == (
        "rank 0, thread block 0, step 0 (send) sends 1 chunks, which rank 1, thread block 1, step 0 (recv) takes "
        "for 2."
    )


def test_dependencies_that_are_not_there() -> None:
    for column, value in (("dep_block", 2), ("dep_block", -1), ("dep_step", 1), ("dep_step", -1)):
        assert "which is not there" in only_failure(changed(pair_all_reduce(), column, 0, value))


def test_connection_with_two_senders() -> None:
    build = ProgramBuilder(2)
    for rank in range(2):
        for _ in range(2):
            block = build.block(rank, send=1 - rank)
            build.step(block, StepOp.SEND, src=(IN, 0))
    program = built(build, Collective.BROADCAST, 2, 1, root=0)
    assert "rank 0, thread block 0 and thread block 1 both send to rank 1 on channel 0" in only_failure(
        program
    )


def test_scalars() -> None:
    program = ring_all_gather(4)
    assert "that 4 ranks divide" in only_failure(replace(program, num_chunks=6))
    assert "expected 1 or more ranks and chunks" in only_failure(replace(program, num_chunks=0))
    assert "found a barrier" in only_failure(replace(program, collective=Collective.BARRIER))
    assert "expected a root between 0 and 3" in only_failure(replace(program, collective=Collective.GATHER))
    neither = replace(program, in_place=False)
    assert "neither in place nor out of place" in only_failure(neither)


def test_warnings() -> None:
    program = replace(ring_all_reduce(2), input_chunks=ring_all_gather(2).input_chunks)
    assert verify_program(program).warnings == ("rank 0 declares 1 slots of input: all_reduce has 2.",)
    over = changed(ring_all_reduce(2), "dst_buffer", 1, Buffer.INPUT)
    assert any(
        "overwrites the input of its caller, at rank 0" in each for each in verify_program(over).warnings
    )


@pytest.mark.parametrize(
    "collective", [Collective.BROADCAST, Collective.GATHER, Collective.SCATTER, Collective.REDUCE]
)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("root", [0, 1])
def test_rooted_collectives(collective: Collective, *, in_place: bool, root: int) -> None:
    """Between two ranks, in and out of place, with either root."""
    other = 1 - root
    build = ProgramBuilder(2)
    up = collective in (Collective.GATHER, Collective.REDUCE)
    sender, receiver = (other, root) if up else (root, other)
    source = build.block(sender, send=receiver)
    target = build.block(receiver, recv=sender)
    match collective:
        case Collective.BROADCAST:
            if not in_place:
                build.step(source, StepOp.COPY, src=(IN, 0), dst=(OUT, 0), count=2)
            build.step(source, StepOp.SEND, src=(OUT, 0), count=2)
            build.step(target, StepOp.RECV, dst=(OUT, 0), count=2)
        case Collective.REDUCE:
            build.step(source, StepOp.SEND, src=(IN, 0), count=2)
            build.step(target, StepOp.RECV_REDUCE_COPY, src=(IN, 0), dst=(OUT, 0), count=2)
        case Collective.GATHER:
            build.step(source, StepOp.SEND, src=(IN, 0))
            build.step(target, StepOp.RECV, dst=(OUT, other))
            if not in_place:
                build.step(target, StepOp.COPY, src=(IN, 0), dst=(OUT, root))
        case _:
            build.step(source, StepOp.SEND, src=(IN, other))
            build.step(target, StepOp.RECV, dst=(OUT, 0))
            if not in_place:
                build.step(source, StepOp.COPY, src=(IN, root), dst=(OUT, 0))
    program = built(
        build, collective, 2, 2, inputs=0, outputs=0, in_place=in_place, out_of_place=not in_place, root=root
    )
    report = verify_program(program)
    assert report.ok, report.failures
    assert not verify_program(replace(program, root=other)).ok


def test_all_to_all() -> None:
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank, send=1 - rank, recv=1 - rank)
        build.step(block, StepOp.SEND, src=(IN, 2 * (1 - rank)), count=2)
        build.step(block, StepOp.COPY, src=(IN, 2 * rank), dst=(OUT, 2 * rank), count=2)
        build.step(block, StepOp.RECV, dst=(OUT, 2 * (1 - rank)), count=2)
    program = built(build, Collective.ALL_TO_ALL, 2, 4, in_place=False, out_of_place=True)
    assert verify_program(program).ok
    wrong = verify_program(changed(program, "dst_offset", 2, 0))
    assert (
        "slot 0 of the output of rank 0 ends with chunk 0 of rank 1: expected chunk 0 of rank 0."
        in wrong.failures
    )


def test_scratch_and_many_ranks() -> None:
    """A value may pass through scratch memory; `TMP` slots are bounded by what the rank declares."""
    program = pair_all_reduce()
    assert TMP in program.dst_buffer.tolist()
    assert "of the scratch, which has 1 there" in only_failure(changed(program, "scratch_chunks", 0, 1))


def test_copying_a_slot_onto_itself_disturbs_no_reader() -> None:
    """Out of place the copy moves the own block; in place it is the block, and others may read it meanwhile."""
    build = ProgramBuilder(2)
    for rank in range(2):
        sender = build.block(rank, send=1 - rank)
        build.step(sender, StepOp.SEND, src=(IN, 0))
        receiver = build.block(rank, recv=1 - rank)
        build.step(receiver, StepOp.RECV, dst=(OUT, 1 - rank))
        build.step(receiver, StepOp.COPY, src=(IN, 0), dst=(OUT, rank))
    both = built(build, Collective.ALL_GATHER, 2, 2, inputs=1, out_of_place=True)
    assert verify_program(both).ok
    # Copied to another slot, it is a write like any other.
    elsewhere = changed(both, "dst_offset", 2, 1 - int(both.dst_offset[2]))
    assert not verify_program(elsewhere).ok


def test_a_sum_with_what_was_never_written_names_its_buffer() -> None:
    """Slot 0 of the input is added to slot 0 of scratch memory: only the latter was never written."""
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank)
        build.step(block, StepOp.REDUCE, src=(Buffer.INPUT, 0), dst=(Buffer.SCRATCH, 0))
    program = built(build, Collective.ALL_REDUCE, 2, 1, scratch=1, in_place=False, out_of_place=True)
    failures = " ".join(verify_program(program).failures)
    assert "reads slot 0 of the scratch, which nothing was written to" in failures
    assert "of the input, which nothing" not in failures
