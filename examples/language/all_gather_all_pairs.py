"""All-gather in one step: every rank sends its block to all others."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    gather = ChunkProgram("all_gather", ranks=ranks, name="all-gather all pairs")
    for owner in range(ranks):
        block = gather.chunk(owner, "output", owner)
        for step in range(1, ranks):
            block.copy((owner + step) % ranks, "output")
    return gather
