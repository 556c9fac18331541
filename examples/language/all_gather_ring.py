"""All-gather around a ring: every rank passes on what it got last."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    gather = ChunkProgram("all_gather", ranks=ranks, name="all-gather ring")
    for owner in range(ranks):
        block = gather.chunk(owner, "output", owner)
        for step in range(1, ranks):
            block = block.copy((owner + step) % ranks, "output")
    return gather
