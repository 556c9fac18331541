"""All-reduce in one step, for small messages: every rank sends all that it has to all others, and adds up alone."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    reduce = ChunkProgram("all_reduce", ranks=ranks, name="all-reduce one step")
    for rank in range(ranks):
        mine = reduce.chunk(rank, "input", 0)
        for step in range(1, ranks):
            mine.copy((rank + step) % ranks, "received", rank)
    for rank in range(ranks):
        total = reduce.chunk(rank, "input", 0)
        for step in range(1, ranks):
            total = total.reduce(reduce.chunk(rank, "received", (rank - step) % ranks))
    return reduce
