"""All-reduce in two steps: every rank adds up one chunk of all others, and sends the sum to all."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    reduce = ChunkProgram("all_reduce", ranks=ranks, chunks=ranks, name="all-reduce all pairs")
    for owner in range(ranks):
        for step in range(1, ranks):
            peer = (owner + step) % ranks
            reduce.chunk(peer, "input", owner).copy(owner, "received", peer)
    for owner in range(ranks):
        total = reduce.chunk(owner, "input", owner)
        for step in range(1, ranks):
            total = total.reduce(reduce.chunk(owner, "received", (owner + step) % ranks))
        for step in range(1, ranks):
            total.copy((owner + step) % ranks, "input")
    return reduce
