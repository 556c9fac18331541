"""Structural checks of a one-sided program: slots, sources and targets, channel ends, barriers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from coppice.collectives import Collective
from coppice.program.dialects.puts.program import Act, OneSidedProgram, Operation, Slots
from coppice.program.memory import Buffer, all_sizes
from coppice.schedule.verification.report import Findings

RUNS = (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
"""Collectives that one-sided runtimes know."""

_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch memory"}


def check_form(program: OneSidedProgram, findings: Findings) -> None:
    """Check the structure of a program."""
    ranks, chunks = program.num_ranks, program.num_chunks
    if program.collective not in RUNS:
        findings.add(f"expected one of {', '.join(RUNS)}, found {program.collective}.")
        return
    if ranks < 1 or chunks < 1 or (program.collective is not Collective.ALL_REDUCE and chunks % ranks):
        findings.add(
            f"expected 1 or more ranks and chunks, and blocks of whole chunks, found {chunks} chunks for {ranks} ranks."
        )
        return
    sizes = all_sizes(program).tolist()
    sentences: list[str] = []
    for row, block in enumerate(program.blocks):
        if not 0 <= block.rank < ranks:
            findings.add(f"thread block row {row} is of rank {block.rank}: expected 0 to {ranks - 1}.")
            return
        for position, op in enumerate(block.operations):
            for inner, each in enumerate((op, *op.body), start=-1):
                place = program.place(row, position, inner)
                found = _faults(program, block.rank, each, op if inner >= 0 else None, sizes)
                sentences += [f"{place} {fault}" for fault in found]
    sentences += _barriers(program)
    findings.add_examples(sentences, len(sentences), "faults of form")


def _faults(
    program: OneSidedProgram, rank: int, op: Operation, loop: Operation | None, sizes: list[list[int]]
) -> Iterator[str]:
    """What is wrong with one operation."""
    for slots in (*op.sources, *op.targets):
        yield from _slots(program, slots, sizes)
    for channel in op.channels:
        end = program.channels[channel]
        if end.rank != rank:
            yield f"uses a channel of rank {end.rank}: expected one of its own rank."
        elif end.peer_channel < 0:
            yield f"uses a channel to rank {end.peer}, which has no channel back: both ends need one."
    for number in op.ids if op.act in (Act.ACQUIRE, Act.RELEASE) else ():
        if not 0 <= number < len(program.semaphores[rank]):
            yield f"uses semaphore {number} of the {len(program.semaphores[rank])} that rank {rank} has."
    if op.defect:
        yield f"does not do what it says: {op.defect}."
    which, of = op.share
    if of < 1 or not 0 <= which < of:
        yield f"handles part {which} of {of}: expected a part from 0 to one less than their number."
    match op.act:
        case Act.MOVE:
            yield from _move(op)
        case Act.SUM:
            every = {slots.size for slots in (*op.sources, *op.targets)}
            if not op.sources or not op.targets:
                yield "has nothing to read or nothing to write."
            elif len(every) > 1:
                yield f"joins {min(every)} and {max(every)} chunks: expected the same number."
        case Act.LOOP:
            if loop is not None:
                yield "is a loop in a loop, which runtimes cannot run."
            if op.pieces_of > max(map(max, sizes)):
                yield f"walks through {op.pieces_of} chunks, of which no buffer has as many."
            if op.piece_bytes < 1 or op.pieces_of < 1 or op.piece_bytes % program.alignment:
                yield (
                    f"walks through {op.pieces_of} chunks by {op.piece_bytes} bytes: expected positive multiples of "
                    f"{program.alignment} bytes."
                )
        case _:
            pass
    if loop is not None and op.act.on_data:
        yield from _in_loop(op, loop)


def _slots(program: OneSidedProgram, slots: Slots, sizes: list[list[int]]) -> Iterator[str]:
    for rank in slots.ranks:
        if not 0 <= rank < program.num_ranks:
            yield f"uses the memory of rank {rank}, which is not there."
            continue
        size = sizes[slots.buffer][rank]
        if slots.index < 0 or slots.size < 1 or slots.index + slots.size > size:
            yield (
                f"uses chunks {slots.index} to {slots.index + slots.size - 1} of the {_NAMES[slots.buffer]} of rank "
                f"{rank}, which has {size}."
            )
    if slots.packets and slots.buffer is not Buffer.SCRATCH:
        yield f"has packets in the {_NAMES[slots.buffer]}: they take twice the room, which only scratch memory has."
    elif slots.packets and program.protocol != "LL":
        yield f"uses packets with protocol {program.protocol}: only with LL has scratch memory room for them."


def _move(op: Operation) -> Iterator[str]:
    if not op.sources or len(op.sources) != len(op.targets):
        yield f"has {len(op.sources)} sources for {len(op.targets)} targets: expected one for each."
    elif any(one.size != two.size for one, two in zip(op.sources, op.targets, strict=True)):
        yield "moves chunks to another number of chunks: expected the same number at both ends."
    elif not op.port and len({slots.buffer for slots in op.sources}) > 1:
        yield "reads several buffers at once, of which the executor takes the first for all: split it."
    if op.port and len(op.channels) < len(op.targets):
        yield f"has {len(op.channels)} channels for {len(op.targets)} targets: expected one for each."


def _in_loop(op: Operation, loop: Operation) -> Iterator[str]:
    if any(slots.packets for slots in (*op.sources, *op.targets)):
        yield "handles packets in a loop, each time all of them: take it out of the loop."
    if op.share[1] > 1:
        yield "is shared by thread blocks in a loop: its last pieces would begin beyond its part."
    wrong = {slots.size for slots in (*op.sources, *op.targets)} - {loop.pieces_of}
    if wrong:
        yield (
            f"handles {min(wrong)} chunks in a loop over {loop.pieces_of}: the loop would run past their end, or stop "
            "before it."
        )


def _barriers(program: OneSidedProgram) -> Iterator[str]:
    """Barriers that not all of their thread blocks reach equally often."""
    users: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, block in enumerate(program.blocks):
        for op in block.operations:
            for each in (op, *op.body):
                if each.act is Act.BARRIER:
                    users[block.rank, each.ids[0]][row].append(each.parties)
                    if each is not op:
                        yield (
                            f"rank {block.rank}, thread block {program.block_ids[row]} has a barrier in a loop: use "
                            "semaphores there."
                        )
    for (rank, number), blocks in users.items():
        parties = {each for counts in blocks.values() for each in counts}
        wrong = sorted(parties - {len(blocks)})
        if wrong:
            yield (
                f"barrier {number} of rank {rank} is used by {len(blocks)} thread blocks and waits for {wrong[0]}: "
                "expected the same number."
            )
        elif len({len(counts) for counts in blocks.values()}) > 1:
            yield f"barrier {number} of rank {rank} is not used equally often by its thread blocks."
