"""All-reduce around a ring: every chunk goes round once to be added up, and once more to be handed out."""

from coppice import ChunkProgram


def program(ranks: int = 8, instances: int = 1, protocol: str = "Simple") -> ChunkProgram:
    reduce = ChunkProgram(
        "all_reduce",
        ranks=ranks,
        chunks=ranks,
        instances=instances,
        protocol=protocol,
        name="all-reduce ring",
    )
    for index in range(ranks):
        total = reduce.chunk(index, "input", index)
        for step in range(1, ranks):
            total = reduce.chunk((index + step) % ranks, "input", index).reduce(total)
        for step in range(ranks - 1):
            total = total.copy((index + step) % ranks, "input")
    return reduce
