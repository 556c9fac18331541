"""All-reduce along a binomial tree: sums go up to rank 0 in log2 steps, and down again the same way."""

from coppice import ChunkProgram


def program(ranks: int = 8) -> ChunkProgram:
    reduce = ChunkProgram("all_reduce", ranks=ranks, name="all-reduce binomial tree")
    distances = [1 << level for level in range((ranks - 1).bit_length())]
    for distance in distances:
        for parent in range(0, ranks - distance, 2 * distance):
            reduce.chunk(parent, "input", 0).reduce(reduce.chunk(parent + distance, "input", 0))
    for distance in reversed(distances):
        for parent in range(0, ranks - distance, 2 * distance):
            reduce.chunk(parent, "input", 0).copy(parent + distance, "input")
    return reduce
