"""All-reduce in boxes: added up around a ring in every box, then across boxes, then handed out in every box."""

from coppice import ChunkProgram, ChunkRef


def around(reduce: ChunkProgram, ring: list[int], first: int, chunk: int) -> ChunkRef:
    """Add a chunk up around a ring of ranks; the sum ends at the one before ``first``."""
    total = reduce.chunk(ring[first], "input", chunk)
    for step in range(1, len(ring)):
        total = reduce.chunk(ring[(first + step) % len(ring)], "input", chunk).reduce(total)
    return total


def hand_out(total: ChunkRef, ring: list[int], first: int) -> None:
    """Send a sum around the ring, from the one before ``first``."""
    for step in range(len(ring) - 1):
        total = total.copy(ring[(first + step) % len(ring)], "input")


def program(ranks: int = 8, boxes: int = 2) -> ChunkProgram:
    if ranks % boxes:
        raise ValueError(f"expected boxes that divide {ranks} ranks, found {boxes}")
    gpus = ranks // boxes
    reduce = ChunkProgram("all_reduce", ranks=ranks, chunks=ranks, name="all-reduce hierarchical")
    inside = [[box * gpus + gpu for gpu in range(gpus)] for box in range(boxes)]
    for chunk in range(ranks):
        gpu, box = chunk % gpus, chunk // gpus
        for ring in inside:
            around(reduce, ring, gpu, chunk)
        across = [ring[gpu - 1] for ring in inside]
        hand_out(around(reduce, across, box, chunk), across, box)
        for ring in inside:
            hand_out(reduce.chunk(ring[gpu - 1], "input", chunk), ring, gpu)
    return reduce
