"""All-to-all in one step: every rank sends to every other what is meant for it."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    exchange = ChunkProgram("all_to_all", ranks=ranks, name="all-to-all all pairs")
    for rank in range(ranks):
        for step in range(ranks):
            peer = (rank + step) % ranks
            exchange.chunk(rank, "input", peer).copy(peer, "output", rank)
    return exchange
