"""All-gather by recursive doubling: in every step two ranks exchange all that they have, and have twice as much."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    if ranks & (ranks - 1):
        raise ValueError(f"expected a power of two as number of ranks, found {ranks}")
    gather = ChunkProgram("all_gather", ranks=ranks, name="all-gather recursive doubling")
    have = 1
    while have < ranks:
        blocks = [gather.chunk(rank, "output", rank - rank % have, have) for rank in range(ranks)]
        for rank, block in enumerate(blocks):
            block.copy(rank ^ have, "output")
        have *= 2
    return gather
