"""Random programs over chunks, right and wrong ones: the check while they are written, the verifier of per-rank
programs and runs with numbers in random orders agree, and so do all ways to compile the right ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import coppice
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.language import ChunkProgram, ChunkRef, compile_program, per_rank_program
from coppice.program.dialects.thread_blocks.cutting import fifo_depth
from coppice.program.dialects.thread_blocks.operations.lower import lower_operations
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.topology.presets import preset
from reference.programs_run import run_program

Hints = Callable[[], dict[str, int]]


def no_hints() -> dict[str, int]:
    return {}


def hinting(rng: random.Random) -> Hints:
    """A channel for every third message."""
    return lambda: {"channel": rng.randrange(4)} if rng.random() < 0.3 else {}


def handed_out(
    program: ChunkProgram, rng: random.Random, first: ChunkRef, buffer: str, index: int, hints: Hints
) -> None:
    """A value goes to all other ranks along a random tree, at some by way of scratch memory."""
    reached = [first]
    for rank in rng.sample(range(program.ranks), program.ranks):
        if rank == first.rank:
            continue
        source = rng.choice(reached)
        if rng.random() < 0.3:
            source = source.copy(rank, "stop", index, **hints())
        reached.append(source.copy(rank, buffer, index, **({} if source.rank == rank else hints())))


def added_up(program: ChunkProgram, rng: random.Random, index: int, size: int, hints: Hints) -> ChunkRef:
    """Contributions of all ranks meet along a random tree, at some by way of scratch memory."""
    buffer = "input" if program.in_place else "output"
    if not program.in_place:
        for rank in range(program.ranks):
            program.chunk(rank, "input", index, size).copy(rank, "output", index)
    left = rng.sample(range(program.ranks), program.ranks)
    while len(left) > 1:
        source = left.pop()
        target = rng.choice(left)
        value = program.chunk(source, buffer, index, size)
        if rng.random() < 0.4:
            value = value.copy(target, f"from {source}", index, **hints())
            hinted = {}
        else:
            hinted = hints()
        program.chunk(target, buffer, index, size).reduce(value, **hinted)
    return program.chunk(left[0], buffer, index, size)


def right_program(rng: random.Random, *, hints: Hints = no_hints, instances: int = 1) -> ChunkProgram:
    """A program that does what it should."""
    ranks, chunks = rng.randint(1, 5), rng.randint(1, 4)
    collective = rng.choice(
        [Collective.BROADCAST, Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE]
    )
    in_place = rng.random() < 0.5
    root = rng.randrange(ranks) if collective.rooted else None
    if collective is Collective.REDUCE:
        in_place = True
    program = ChunkProgram(
        collective,
        ranks=ranks,
        chunks=chunks,
        in_place=in_place,
        root=root,
        instances=instances,
        protocol=rng.choice(["Simple", "LL"]),
    )
    cut = sorted({0, chunks, *(rng.randint(0, chunks) for _ in range(2))})
    parts = [(low, high - low) for low, high in pairwise(cut)]
    if collective is Collective.ALL_GATHER:
        parts = [(owner * chunks + low, size) for owner in range(ranks) for low, size in parts]
    for low, size in rng.sample(parts, len(parts)):
        match collective:
            case Collective.BROADCAST | Collective.ALL_GATHER:
                owner = program.root if collective.rooted else low // chunks
                mine = program.chunk(owner, "input", low if collective.rooted else low % chunks, size)
                if not in_place:
                    mine = mine.copy(owner, "output", low)
                handed_out(program, rng, mine, "output", low, hints)
            case Collective.ALL_REDUCE:
                total = added_up(program, rng, low, size, hints)
                handed_out(program, rng, total, total.buffer, low, hints)
            case _:
                total = added_up(program, rng, low, size, hints)
                if total.rank != program.root:
                    total.copy(program.root, "output", low, **hints())
    return program


def unchecked(program: ChunkProgram, *, fused: bool = True) -> Program:
    """Lowered without having been checked."""
    return lower_operations(
        program.operations(),
        program.layout(),
        in_place=program.in_place,
        instances=program.instances,
        fused=fused,
        protocol=program.protocol,
    )


def runs_well(program: Program, seed: int) -> bool:
    """With numbers, in two random orders: with connections as deep as the protocol guarantees, and deeper ones."""
    return all(
        run_program(program, in_place=program.in_place, depth=depth, seed=seed, data_seed=seed).good
        for depth in (fifo_depth(program.protocol), 8)
    )


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=1464695)  # of LL: with connections of two messages, fewer than its eight, it deadlocks
def test_right_programs_stay_right(seed: int) -> None:
    """However they are compiled: fused or not, in instances, with channels that are asked for."""
    rng = random.Random(seed)
    program = right_program(rng, hints=hinting(rng), instances=rng.choice([1, 1, 2, 3]))
    program.check()
    for fused in (True, False):
        lowered = per_rank_program(program, fused=fused)
        assert runs_well(lowered, seed)
        assert lowered.num_chunks == program.num_chunks * program.instances
    assert coppice.verify(compile_program(program, topology=preset("star", gpus=program.ranks))).ok


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_wrong_programs_are_wrong_for_all(seed: int) -> None:
    """Operations at random: what the check says of the end is what the verifier and runs with numbers say."""
    rng = random.Random(seed)
    collective = rng.choice([Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.BROADCAST])
    ranks = rng.randint(2, 3)
    program = ChunkProgram(collective, ranks=ranks, chunks=rng.randint(1, 2), in_place=rng.random() < 0.5)
    for _ in range(rng.randint(1, 14)):
        places = [
            (rng.randrange(ranks), rng.choice(["input", "output", "a", "b"]), rng.randrange(2)) for _ in "xy"
        ]
        try:
            source = program.chunk(*places[0])
            if collective.reduces and rng.random() < 0.5:
                program.chunk(*places[1]).reduce(source)
            else:
                source.copy(*places[1])
        except (CheckError, InputError):
            continue
    try:
        program.check()
        right = True
    except CheckError:
        right = False
    lowered = unchecked(program)
    assert verify_program(lowered).ok == right
    assert runs_well(lowered, seed) == right


@pytest.mark.parametrize("seed", range(15))
def test_a_program_without_one_of_its_operations_is_refused(seed: int) -> None:
    """Unless its value was never used."""
    rng = random.Random(seed)
    program = right_program(rng)
    operations = program.operations()
    if not operations:
        return
    for left_out in range(len(operations)):
        kept = operations[:left_out] + operations[left_out + 1 :]
        lowered = lower_operations(kept, program.layout(), in_place=program.in_place)
        report = verify_program(lowered)
        assert runs_well(lowered, seed) <= report.ok
        assert not report.ok


def test_places_that_are_asked_for_run_or_are_refused() -> None:
    """Every order of steps in thread blocks either comes to its end in all runs, or is refused with a line."""
    refused = []
    for seed in range(80):
        rng = random.Random(seed)
        ranks = rng.randint(2, 4)
        program = ChunkProgram("all_gather", ranks=ranks)
        for owner in range(ranks):
            reached = [program.chunk(owner, "output", owner)]
            for rank in rng.sample(range(ranks), ranks):
                if rank != owner:
                    steps = {"send_step": rng.randrange(3), "recv_step": rng.randrange(3)}
                    reached.append(rng.choice(reached).copy(rank, "output", **steps))
        program.check()
        try:
            lowered = per_rank_program(program)
        except CheckError as error:
            refused.append(str(error))
            continue
        assert runs_well(lowered, seed)
    assert 0 < len(refused) < 80
    assert all(message.startswith("test_random_programs.py:") for message in refused)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_lowering_is_the_same_every_time(seed: int) -> None:
    one, other = (unchecked(right_program(random.Random(seed))) for _ in range(2))
    for name in ("op", "src_offset", "dst_offset", "block_send", "block_channel", "dep_block", "dep_step"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
