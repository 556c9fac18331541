"""Limits of the MSCCL++ executor and of its preloaded NCCL API library.

Most limits of the executor are not checked by it: a plan beyond them corrupts memory. The library (0.9) opens four
names in one directory and takes for which communicators each is from its own table (``buildDefaultDslAlgorithms`` in
src/ext/collectives/algorithm_collection_builder.cc); the collective, the sizes and whether calls are in place are what
the file tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.export.formats import Excess
from coppice.program.dialects.puts.program import Act, Block, OneSidedProgram, Operation
from coppice.program.memory import buffer_sizes


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """Numbers of the executor."""

    operations: int = 64  # Of a thread block, those in pipelines counted
    channels: int = 16  # Of a thread block, of one type
    remote_buffers: int = 16  # That a thread block refers to, of one type of access
    together: int = 8  # Channels of one operation
    buffers: int = 10  # Sources, or targets, of one operation: 2 of its own rank and 8 of others
    barriers: int = 16  # Of a GPU
    semaphores: int = 16  # Of a GPU
    threads: int = 1024  # Of a thread block
    offset: int = 2**32  # First byte that a buffer cannot have


LIMITS = _Limits()
"""Limits of the current executor."""


def block_excesses(program: OneSidedProgram) -> tuple[Excess, ...]:
    """Limits that thread blocks of a program exceed, the worst case of each."""
    worst: dict[str, Excess] = {}
    for row, block in enumerate(program.blocks):
        where = f"thread block {program.block_ids[row]} of rank {block.rank}"
        for limit, found, allowed in _needs(program, block):
            known = worst.get(limit)
            if found > allowed and (known is None or found > known.found):
                worst[limit] = Excess(limit=limit, found=found, allowed=allowed, where=where)
    return tuple(sorted(worst.values(), key=lambda excess: -excess.found / excess.allowed))


def message_chunks(program: OneSidedProgram) -> int:
    """Number of chunks in the buffer that defines the message size: the output of an all-gather, else the input."""
    buffer = 1 if program.collective is Collective.ALL_GATHER else 0
    sizes = buffer_sizes(program.collective, program.num_ranks, program.num_chunks, -1)
    return int(sizes[buffer, 0])


def size_unit(program: OneSidedProgram) -> int:
    """Number of bytes that messages must be a multiple of."""
    return message_chunks(program) * program.alignment


def largest_message(program: OneSidedProgram) -> int:
    """Largest message in bytes whose offsets fit the executor's 32 bits."""
    widest = max(program.num_chunks, *program.scratch) * (2 if program.uses_packets else 1)
    chunk = (LIMITS.offset - 1) // widest // program.alignment * program.alignment
    return chunk * message_chunks(program)


def _needs(program: OneSidedProgram, block: Block) -> Iterator[tuple[str, int, int]]:
    """(what, how much is needed, how much there is) of a thread block."""
    channels: dict[bool, set[int]] = {False: set(), True: set()}
    remote: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    every: list[Operation] = [each for op in block.operations for each in (op, *op.body)]
    yield "operations in a thread block", len(every), LIMITS.operations
    for op in every:
        for row in op.channels:
            channels[program.channels[row].port].add(row)
        yield "channels of one operation", len(op.channels), LIMITS.together
        if op.act.on_data:
            for slots in (*op.sources, *op.targets):
                if len(slots.ranks) == 1 and slots.ranks[0] != block.rank:
                    remote[op.port].add((slots.ranks[0], int(slots.buffer)))
            yield "buffers of one operation", max(len(op.sources), len(op.targets)), LIMITS.buffers
    for port, name in ((False, "memory"), (True, "port")):
        yield f"{name} channels of a thread block", len(channels[port]), LIMITS.channels
        yield f"remote buffers of a thread block by {name} channels", len(remote[port]), LIMITS.remote_buffers
    barriers = [op.ids[0] + 1 for op in every if op.act is Act.BARRIER]
    yield "barriers of a GPU", max(barriers, default=0), LIMITS.barriers
    yield "semaphores of a GPU", len(program.semaphores[block.rank]), LIMITS.semaphores


PRELOAD_DIRECTORY = "default"
"""Name of the directory, below the one that ``MSCCLPP_CACHE_DIR`` names (~/.cache/mscclpp)."""


@dataclass(frozen=True, slots=True)
class PreloadSlot:
    """Communicators that a file applies to."""

    ranks: int  # Their ranks
    ranks_per_node: int  # Ranks of a node

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.ranks_per_node} a node"


PRELOAD_SLOTS: Mapping[str, PreloadSlot] = {
    "allreduce_2nodes_1K_64K.json": PreloadSlot(16, 8),
    "allreduce_2nodes_128K_2M.json": PreloadSlot(16, 8),
    "allreduce_4nodes_1K_64K.json": PreloadSlot(32, 8),
    "allreduce_4nodes_128K_2M.json": PreloadSlot(64, 4),
}
"""Communicators by the name of the file; no other file is read."""


def slots_for(program: OneSidedProgram) -> tuple[str, ...]:
    """File names under which a program is loaded for its ranks, with the nodes its memory channels allow.

    Examples:
        >>> from coppice.export.mscclpp.program import one_sided_for
        >>> from coppice.planners.planning import plan
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)).plan
        >>> slots_for(one_sided_for(made.body))
        ('allreduce_2nodes_1K_64K.json', 'allreduce_2nodes_128K_2M.json')
    """
    local = [(end.rank, end.peer) for end in program.channels if not end.port]
    return tuple(
        name
        for name, slot in PRELOAD_SLOTS.items()
        if slot.ranks == program.num_ranks
        and all(rank // slot.ranks_per_node == peer // slot.ranks_per_node for rank, peer in local)
    )
