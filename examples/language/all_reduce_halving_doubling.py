"""All-reduce by recursive halving and doubling: two ranks add up one half each, then exchange the sums."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    if ranks & (ranks - 1):
        raise ValueError(f"expected a power of two as number of ranks, found {ranks}")
    reduce = ChunkProgram("all_reduce", ranks=ranks, chunks=ranks, name="all-reduce halving doubling")
    distance = ranks // 2
    while distance:
        for rank in range(ranks):
            kept = rank - rank % distance  # the half that this rank goes on with
            peer = rank ^ distance
            reduce.chunk(peer, "input", kept, distance).copy(rank, f"from {distance} away")
        for rank in range(ranks):
            kept = rank - rank % distance
            reduce.chunk(rank, "input", kept, distance).reduce(
                reduce.chunk(rank, f"from {distance} away", kept, distance)
            )
        distance //= 2
    distance = 1
    while distance < ranks:
        sums = [reduce.chunk(rank, "input", rank - rank % distance, distance) for rank in range(ranks)]
        for rank, part in enumerate(sums):
            part.copy(rank ^ distance, "input")
        distance *= 2
    return reduce
