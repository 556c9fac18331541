"""Steps cut into messages: what the verifier says of every size against runtimes that are acted out."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.export.msccl.program import MscclOptions, program_for, rough_program
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.channels import ChannelLimits
from coppice.program.dialects.thread_blocks.cutting import (
    AMD,
    NVIDIA,
    Buffers,
    fewest_together,
    fifo_depth,
    largest_safe,
    most_in_passes,
    within_safe_sizes,
)
from coppice.program.dialects.thread_blocks.lower import emit, lower_to_program, prepare
from coppice.program.dialects.thread_blocks.order import check_in_parts, execution_order
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.dialects.thread_blocks.structure import check_structure
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings
from coppice.topology.presets import preset
from reference.programs import OUT, TMP, built
from reference.runtime_run import Wire, finishes

SMALL = Buffers(simple=64, ll=128, ll128=128, line=16)
"""A message carries 32 bytes with Simple, 8 with LL and LL128."""
STEP_BYTES = {"Simple": 8, "LL": 8, "LL128": 8}


def exchange(count: int, *, turns: bool, protocol: str = "Simple", ranks: int = 2) -> Program:
    """All-gather in a circle of one step: all send first, or every other rank receives first."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        block = build.block(rank, send=(rank + 1) % ranks, recv=(rank - 1) % ranks)
        for hop in range(ranks - 1):
            out = (rank - hop) % ranks * count
            steps = [
                (StepOp.SEND, {"src": (OUT, out)}),
                (StepOp.RECV, {"dst": (OUT, (rank - hop - 1) % ranks * count)}),
            ]
            for op, slots in reversed(steps) if turns and rank % 2 else steps:
                build.step(block, op, count=count, **slots)
    return built(build, Collective.ALL_GATHER, ranks, ranks * count, inputs=count, protocol=protocol)


def limit_of(program: Program, buffers: Buffers) -> int | None:
    """Largest M that is safe; None where all are."""
    findings = Findings()
    messages = check_structure(program, findings)
    assert messages is not None, findings.failures
    depth = fifo_depth(program.protocol)
    try:
        execution_order(program, messages, depth=depth)
    except Deadlock:
        return 0
    return largest_safe(program, fewest_together(program, messages, depth=depth)[0], buffers)


@pytest.mark.parametrize(
    ("count", "protocol", "slot"),
    [(2, "Simple", None), (3, "Simple", 16), (6, "Simple", 10), (8, "LL", None), (9, "LL", 4)],
)
def test_a_circle_of_sends_is_safe_up_to_two_messages_each(
    count: int, protocol: str, slot: int | None
) -> None:
    program = exchange(count, turns=False, protocol=protocol)
    limit = limit_of(program, SMALL)
    assert limit == (None if slot is None else slot * program.num_chunks)
    wire = Wire(STEP_BYTES[protocol], (0, 0))
    for size in range(1, 70):
        safe = limit is None or size * program.num_chunks <= limit
        assert finishes(program, size * program.num_chunks, wire, seed=size) == safe


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_ranks_that_take_turns_are_safe_at_every_size(ranks: int) -> None:
    program = exchange(9, turns=True, ranks=ranks)
    report = verify_program(program)
    assert report.ok
    assert report.safe_bytes is None
    assert not verify_program(exchange(9, turns=False, ranks=ranks)).ok


def test_a_swap_of_two_steps_that_hangs_large_messages_only_is_caught() -> None:
    """What is right as long as messages are whole, for up to 2 messages a step."""
    program = exchange(6, turns=True)
    assert verify_program(program).ok
    swapped = replace(program, **{
        name: getattr(program, name)[[0, 1, 3, 2]]
        for name in ("op", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    })  # fmt: skip
    report = verify_program(swapped)
    most = AMD.pass_bytes("Simple") // 3 * 12
    assert report.safe_bytes == most
    assert report.failures[0].startswith(f"it deadlocks with messages of more than {most} bytes, where ")
    assert "rank 0, thread block 0, step 0 (send) waits for room on its connection" in report.failures[0]
    assert verify_program(replace(swapped, max_bytes=most)).ok
    assert not verify_program(replace(swapped, max_bytes=most + 1)).ok


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Messages along random connections, each thread block in some order; many deadlock, some always."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    ranks, channels = rng.randint(2, 4), rng.randint(1, 3)
    loose = rng.choice([0.0, 0.0, 0.6, 1.5])
    protocol = rng.choice(["Simple", "Simple", "LL"])
    most = rng.choice([1, 3, 6]) if protocol == "Simple" else rng.choice([4, 12, 20])
    events: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    peers: dict[tuple[int, int], list[int]] = {}
    for channel in range(channels):
        around = list(range(ranks))
        rng.shuffle(around)
        for place, src in enumerate(around):
            if rng.random() < 0.2:
                continue
            dst = around[(place + 1) % ranks]
            peers.setdefault((src, channel), [-1, -1])[0] = dst
            peers.setdefault((dst, channel), [-1, -1])[1] = src
            out, into = 0.0, 0.0
            for number in range(rng.randint(1, 4)):
                count = rng.randint(1, most)
                out = max(out, number + loose * rng.random())
                into = max(into, number + rng.choice([0.5, 0.0, -0.1]) + loose * rng.random())
                events.setdefault((src, channel), []).append((out, 0, count))
                events.setdefault((dst, channel), []).append((into, 1, count))
    build = ProgramBuilder(ranks)
    made: dict[int, list[tuple[int, float]]] = {}
    for (rank, channel), own in sorted(events.items()):
        own.sort(key=lambda event: event[0])
        send, recv = peers[rank, channel]
        block = build.block(rank, send=send, recv=recv, channel=channel)
        mine = made.setdefault(rank, [])
        ident = len(mine)
        time, joined = 0.0, False
        for place, (time, kind, count) in enumerate(own):
            if joined:
                joined = False
                continue
            after = []
            if ident and rng.random() < 0.4:
                other, its_time = mine[rng.randrange(ident)]
                if its_time <= time or rng.random() < 0.1:
                    after = [(other, 0)]
            following = own[place + 1] if place + 1 < len(own) else None
            if kind and following is not None and following[1:] == (0, count) and rng.random() < 0.7:
                joined = True
                build.step(block, StepOp.RECV_COPY_SEND, dst=(TMP, 0), count=count, after=after)
            elif kind:
                build.step(block, StepOp.RECV, dst=(TMP, 0), count=count, after=after)
            else:
                build.step(block, StepOp.SEND, src=(TMP, 0), count=count, after=after)
        mine.append((ident, own[0][0]))
    return built(
        build,
        rng.choice([Collective.ALL_REDUCE, Collective.ALL_GATHER]),
        ranks,
        ranks,
        scratch=80,
        protocol=protocol,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.integers(0, 2**20))
def test_sizes_that_hang_are_those_that_the_verifier_names(program: Program, seed: int) -> None:
    limit = limit_of(program, SMALL)
    whole = program.num_chunks
    wire = Wire(8, (0,) * program.num_ranks)
    apart = Wire(8, tuple(range(program.num_ranks)))
    for slot in (1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 70):
        safe = limit is None or slot * whole <= limit
        assert finishes(program, slot * whole, wire, seed=seed) == safe, slot
        if safe:  # connections between hosts hold more
            assert finishes(program, slot * whole, apart, seed=seed), slot


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_fewer_slots_in_a_message_only_hang_more(program: Program) -> None:
    messages = check_structure(program, Findings())
    assert messages is not None

    def ends(together: int) -> bool:
        try:
            check_in_parts(program, messages, depth=fifo_depth(program.protocol), together=together)
        except Deadlock:
            return False
        return True

    found = [ends(together) for together in range(1, int(program.count.max(initial=1)) + 1)]
    assert found == sorted(found)
    if found[-1]:
        assert (
            fewest_together(program, messages, depth=fifo_depth(program.protocol))[0] == found.index(True) + 1
        )


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE, Collective.SCATTER])
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_proxies_that_are_told_of_a_quarter_of_the_steps_stand_still(
    collective: Collective, protocol: str
) -> None:
    made = plan(Problem(topology=preset("ring", gpus=3), collective=collective, root=0), ring=False).plan
    program = lower_to_program(made.body, channels=1, protocol=protocol)
    misled = protocol == "Simple" and collective is not Collective.SCATTER
    for slot in (1, 8, 9, 32, 33, 100):
        size = slot * program.num_chunks
        assert finishes(program, size, Wire(8, (0, 0, 0)), seed=slot)
        assert finishes(program, size, Wire(8, (0, 1, 2)), seed=slot) != misled


def test_flags_count_so_many_passes() -> None:
    build = ProgramBuilder(1)
    build.step(build.block(0), StepOp.COPY, src=(TMP, 0), dst=(OUT, 0))
    build.step(build.block(0), StepOp.COPY, src=(OUT, 0), dst=(TMP, 1), after=[(0, 0)])
    program = built(build, Collective.ALL_REDUCE, 1, 1, scratch=2, protocol='LL')  # fmt: skip
    assert most_in_passes(program, AMD) == 2**30
    assert most_in_passes(program, NVIDIA) == 2**31
    assert [finishes(program, size, Wire(8, (0,), most_passes=4), seed=0) for size in (32, 33)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("name", "boxes", "collective", "target"),
    [
        ("dgx-1v", 1, Collective.ALL_REDUCE, "msccl"),
        ("dgx-a100", 2, Collective.ALL_REDUCE, "rccl"),
        ("mi100", 2, Collective.ALL_REDUCE, "azure-executor"),
    ],
)
def test_exports_that_hung_on_large_messages_hang_at_no_size(
    name: str, boxes: int, collective: Collective, target: str
) -> None:
    topology = preset(name, boxes=boxes) if boxes > 1 else preset(name)
    body = plan(Problem(topology=topology, collective=collective), trees=8).plan.body
    program = rough_program(body, target)
    assert int(program.count.max()) > 2
    assert program.max_bytes is None
    report = verify_program(program)
    assert report.ok
    assert report.safe_bytes is None
    if topology.num_ranks == 8:
        wire = Wire(NVIDIA.pass_bytes("Simple") // 4, (0,) * topology.num_ranks)
        assert finishes(program, 2**20 * program.num_chunks, wire, seed=0)


@pytest.mark.parametrize("fused", [True, False])
def test_thread_blocks_take_turns_where_sending_first_hangs(*, fused: bool) -> None:
    topology = preset("ring", gpus=4)
    body = plan(Problem(topology=topology, collective=Collective.ALL_GATHER), trees=3, ring=False).plan.body
    prepared, one = prepare(body, in_place=True), ChannelLimits(channels=1)
    first = emit(prepared, one, fused=fused, any_size=False)
    program = emit(prepared, one, fused=fused)
    assert (limit_of(first, SMALL), limit_of(program, SMALL)) == (16 * 12, None)
    assert program.num_steps == first.num_steps
    wire = Wire(8, (0,) * 4)
    assert [finishes(first, slot * 12, wire, seed=slot) for slot in (16, 17)] == [True, False]
    assert all(finishes(program, slot * 12, wire, seed=slot) for slot in (16, 17, 40))


def test_values_exchanged_in_place_are_limited_by_max_bytes() -> None:
    """Two ranks that give each other the value that they are about to replace cannot take turns."""
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank, send=1 - rank, recv=1 - rank)
        build.step(block, StepOp.SEND, src=(OUT, 0), count=8)
        build.step(block, StepOp.RECV_REDUCE_COPY, src=(OUT, 0), dst=(OUT, 0), count=8)
    program = built(build, Collective.ALL_REDUCE, 2, 8)  # fmt: skip
    assert not verify_program(program).ok
    limited = within_safe_sizes(program)
    assert limited.max_bytes == AMD.pass_bytes("Simple") // 4 * 8
    assert verify_program(limited).ok
    assert within_safe_sizes(replace(program, max_bytes=1000)).max_bytes == 1000


def test_a_broadcast_between_hosts_is_written_with_ll() -> None:
    body = plan(
        Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.BROADCAST, root=0), trees=1
    ).plan.body
    assert program_for(body, "rccl").protocol == "LL"
    assert program_for(body, "rccl", MscclOptions(protocol="LL128")).protocol == "LL128"
    alone = plan(
        Problem(topology=preset("dgx-a100"), collective=Collective.REDUCE, root=0), trees=1
    ).plan.body
    assert program_for(alone, "msccl").protocol == "Simple"


def test_buffers_of_the_runtimes() -> None:
    protocols = ("Simple", "LL", "LL128")
    assert [AMD.pass_bytes(each) for each in protocols] == [2**21, 2**14, 50_176]
    assert [NVIDIA.pass_bytes(each) for each in protocols] == [2**21, 2**15, 576_000]
    assert NVIDIA.message_bytes("Simple", Collective.BROADCAST) == 2**19
    assert np.array([NVIDIA.together("Simple", Collective.BROADCAST, size) for size in (1, 2**18, 2**20)]).tolist() == [
        71, 2, 1,
    ]  # fmt: skip
