"""Lower slot operations to a two-sided program, following their author's hints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.program.dialects.thread_blocks.cutting import fewest_together, fifo_depth, within_safe_sizes
from coppice.program.dialects.thread_blocks.operations.connections import (
    MOST_CHANNELS,
    BlockTable,
    OpenBlock,
    UnplacedChainError,
    chains_of,
    connect,
)
from coppice.program.dialects.thread_blocks.operations.instructions import (
    InstructionGraph,
    SlotOperation,
    fuse,
    instructions_of,
)
from coppice.program.dialects.thread_blocks.operations.sequence import Stuck, block_lists, sequence
from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, Slot
from coppice.program.dialects.thread_blocks.structure import message_pairs
from coppice.program.memory import Buffer, buffer_sizes, memory_of
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings

_ATTEMPTS = 64


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """Attributes that determine addresses and values: a :class:`~coppice.program.memory.MemoryLayout`."""

    collective: Collective
    num_ranks: int
    num_chunks: int
    root: int
    scratch_chunks: np.ndarray

    @property
    def block(self) -> int:
        """Slots of a block, whose parts are adjacent."""
        return self.num_chunks // self.num_ranks if self.collective.sharded else self.num_chunks


def lower_operations(
    operations: Sequence[SlotOperation],  # What is to be done, in an order in which it can be
    layout: SlotLayout,
    *,
    in_place: bool,
    # Copies of the program side by side, each on its part of every slot, with channels of its own
    instances: int = 1,
    # Steps may receive and add, and receive and send. Otherwise what is received to be added goes by way of
    # scratch memory.
    fused: bool = True,
    name: str = "program",
    protocol: str = "Simple",  # `Simple`, `LL` or `LL128`
) -> Program:
    """Lower operations with sequential semantics on slots.

    Returns:
        A program for all sizes at which it comes to an end.
    """
    if not fused:
        operations, layout = _by_way_of_scratch(operations, layout)
    if instances > 1:
        operations = [part for each in operations for part in _within_blocks(each, layout)]
    tried: list[tuple[int, Program]] = []
    failed: list[CheckError] = []
    for joins, paired in ((True, True), (True, False), (False, False)):
        if joins and not fused:
            continue
        try:
            program = _lowered(
                operations,
                layout,
                in_place=in_place,
                instances=instances,
                fused=joins,
                paired=paired,
                attributes={"name": name, "protocol": protocol},
            )
        except CheckError as error:
            failed.append(error)
            continue
        pairs = message_pairs(program, Findings())
        together, _ = fewest_together(program, pairs, depth=fifo_depth(protocol))
        if together == 1:
            return within_safe_sizes(program)
        tried.append((together or int(program.count.max()) + 1, program))
    if not tried:
        raise failed[0]
    return within_safe_sizes(min(tried, key=lambda each: each[0])[1])


def _by_way_of_scratch(
    operations: Sequence[SlotOperation], layout: SlotLayout
) -> tuple[list[SlotOperation], SlotLayout]:
    """Sums of two ranks as a message to scratch memory, and a sum there."""
    scratch = layout.scratch_chunks.copy()
    found: list[SlotOperation] = []
    for each in operations:
        if not each.adds or each.src_rank == each.dst_rank:
            found.append(each)
            continue
        buffer, slot = int(Buffer.SCRATCH), int(scratch[each.dst_rank])
        scratch[each.dst_rank] += each.count
        found.append(replace(each, dst_buffer=buffer, dst_offset=slot, adds=False))
        found.append(replace(each, src_rank=each.dst_rank, src_buffer=buffer, src_offset=slot))
    return found, replace(layout, scratch_chunks=scratch)


def _within_blocks(operation: SlotOperation, layout: SlotLayout) -> list[SlotOperation]:
    """The operation in parts that leave no block of a buffer."""
    found, done = [], 0
    while done < operation.count:
        room = [
            layout.block - (offset + done) % layout.block
            for buffer, offset in (
                (operation.src_buffer, operation.src_offset),
                (operation.dst_buffer, operation.dst_offset),
            )
            if buffer != Buffer.SCRATCH
        ]
        count = min([operation.count - done, *room])
        found.append(
            replace(
                operation,
                src_offset=operation.src_offset + done,
                dst_offset=operation.dst_offset + done,
                count=count,
            )
        )
        done += count
    return found


def _lowered(
    operations: Sequence[SlotOperation],
    layout: SlotLayout,
    *,
    in_place: bool,
    instances: int,
    fused: bool,
    paired: bool,
    attributes: dict[str, Any],
) -> Program:
    memory = memory_of(layout, in_place=in_place)
    apart: set[int] = set()
    while True:
        graph = instructions_of(operations, memory)
        if fused:
            fuse(graph, memory, apart=apart)
        try:
            table, order = _ordered(graph, paired=paired, protocol=attributes["protocol"])
        except UnplacedChainError as unplaced:
            if len(unplaced.chain) == 1:
                raise
            apart.update(unplaced.chain)
        else:
            break
    blocks, lists = block_lists(graph, table, order)
    program = _built(
        graph, blocks, lists, layout, in_place=in_place, instances=instances, attributes=attributes
    )
    try:
        execution_order(program, message_pairs(program, Findings()), depth=fifo_depth(program.protocol))
    except Deadlock as circle:
        raise CheckError(_standing_still(graph, lists, circle, program)) from None
    return program


def _ordered(graph: InstructionGraph, *, paired: bool, protocol: str) -> tuple[BlockTable, list[int]]:
    """Channels, and an order that keeps to them; chains that come in each other's way get other channels."""
    chains = chains_of(graph)
    place = {message: number for number, chain in enumerate(chains) for message in chain}
    refused: dict[int, set[int]] = defaultdict(set)
    for _ in range(_ATTEMPTS):
        table = connect(graph, chains, refused=refused, paired=paired)
        for room in (1, fifo_depth(protocol)):
            try:
                return table, sequence(graph, table, room=room)
            except Stuck as stuck:
                late = stuck.messages
        moved = next((m for m in reversed(late) if graph.messages[m].channel is None), None)
        if moved is None:
            break
        refused[chains[place[moved]][0]].add(table.channel[moved])
    worst = max((chains[place[message]] for message in late), key=len)
    message = graph.messages[worst[0]]
    raise UnplacedChainError(
        f"{graph.at(message.recv).where}: the message from rank {message.src} to rank {message.dst} has to wait for "
        "one behind it on its channel: use another channel, or fewer hints.",
        worst,
    )


def _built(
    graph: InstructionGraph,
    blocks: Sequence[OpenBlock],
    lists: Sequence[Sequence[int]],
    layout: SlotLayout,
    *,
    in_place: bool,
    instances: int,
    attributes: dict[str, Any],
) -> Program:
    ranks, channels = layout.num_ranks, max([1, *(block.channel + 1 for block in blocks)])
    if channels * instances > MOST_CHANNELS:
        raise CheckError(
            f"expected at most {MOST_CHANNELS} channels, found {channels} for each of {instances} instances: use fewer "
            "`instances`."
        )
    number = _numbers(blocks)
    place = {
        each: (block, position) for block, steps in enumerate(lists) for position, each in enumerate(steps)
    }
    build = ProgramBuilder(ranks)
    mine: list[list[int]] = [[] for _ in range(ranks)]
    for row, block in enumerate(blocks):
        mine[block.rank].append(row)
    for rank in range(ranks):
        for part in range(instances):
            for row in mine[rank]:
                block = blocks[row]
                made = build.block(
                    rank, send=block.send, recv=block.recv, channel=max(block.channel, 0) + part * channels
                )
                waited: dict[int, int] = {}
                for position, each in enumerate(lists[row]):
                    found = graph.at(each)
                    build.step(
                        made,
                        found.op,
                        src=_slot(found.src, rank, part, instances, layout),
                        dst=_slot(found.dst, rank, part, instances, layout),
                        count=found.count,
                        after=[
                            (number[other] + part * len(mine[rank]), step)
                            for other, step in _waits(graph, each, row, position, place, waited)
                        ],
                    )
    chunks = layout.num_chunks * instances
    sizes = buffer_sizes(layout.collective, ranks, chunks, layout.root)
    return build.program(
        collective=layout.collective,
        num_chunks=chunks,
        root=layout.root,
        in_place=in_place,
        out_of_place=not in_place,
        input_chunks=sizes[0].tolist(),
        output_chunks=sizes[1].tolist(),
        scratch_chunks=(layout.scratch_chunks * instances).tolist(),
        **attributes,
    )


def _numbers(blocks: Sequence[OpenBlock]) -> list[int]:
    """Place of each thread block among those of its rank."""
    seen: dict[int, int] = defaultdict(int)
    found = []
    for block in blocks:
        found.append(seen[block.rank])
        seen[block.rank] += 1
    return found


def _slot(slot: Slot, rank: int, part: int, instances: int, layout: SlotLayout) -> Slot:
    """Where a slot of one part of the data lies."""
    buffer, offset = slot
    if instances == 1 or buffer == Buffer.NONE:
        return slot
    if buffer == Buffer.SCRATCH:
        return buffer, offset + part * int(layout.scratch_chunks[rank])
    block, within = divmod(offset, layout.block)
    return buffer, (block * instances + part) * layout.block + within


def _waits(
    graph: InstructionGraph,
    each: int,
    row: int,
    position: int,
    place: dict[int, tuple[int, int]],
    waited: dict[int, int],
) -> list[tuple[int, int]]:
    """(thread block, step) that an instruction waits for beyond what its thread block waited for before."""
    wanted: dict[int, int] = {}
    for earlier in graph.at(each).before:
        block, step = place[earlier]
        if block == row:
            if step > position:
                found = graph.at(each)
                name = f"thread block {found.block}" if found.block is not None else "its thread block"
                raise CheckError(
                    f"{found.where}: deadlock: this needs what {graph.at(earlier).where} does, which comes later in "
                    f"{name} of rank {found.rank}: put it behind."
                )
            continue
        if step > waited.get(block, -1):
            wanted[block] = max(step, wanted.get(block, -1))
    waited.update(wanted)
    return sorted(wanted.items())


def _standing_still(
    graph: InstructionGraph,
    lists: Sequence[Sequence[int]],
    circle: Deadlock,
    program: Program,
) -> str:
    """The deadlock, with the places where the steps that wait were written down."""
    steps: list[int] = []
    ranks = {each: graph.at(each).rank for numbers in lists for each in numbers}
    rows: dict[int, list[Sequence[int]]] = defaultdict(list)
    for numbers in lists:
        rows[ranks[numbers[0]]].append(numbers)
    places = []
    for step in circle.stuck:
        rank, block, position = program.step_place(step)
        each = rows[rank][block % len(rows[rank])][position]
        steps.append(each)
        where = graph.at(each).where
        if where and where not in places:
            places.append(where)
    head = f"{places[0]}: " if places else ""
    others = f" (with {', '.join(places[1:4])})" if len(places) > 1 else ""
    return f"{head}deadlock{others}: {circle}"
