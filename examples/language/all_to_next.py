"""Every rank sends a block to the next one; between boxes all GPUs share the work, so that all NICs are busy."""

from coppice import ChunkProgram


def program(ranks: int = 8, boxes: int = 2) -> ChunkProgram:
    if ranks % boxes:
        raise ValueError(f"expected boxes that divide {ranks} ranks, found {boxes}")
    gpus = ranks // boxes
    demands = [[int(peer == rank + 1) for peer in range(ranks)] for rank in range(ranks)]
    send = ChunkProgram("all_to_all", ranks=ranks, chunks=gpus, demands=demands, name="all to next")
    for rank in range(ranks - 1):
        block = send.chunk(rank, "input", (rank + 1) * gpus, gpus)
        if (rank + 1) % gpus:
            block.copy(rank + 1, "output", rank * gpus)
            continue
        here, there = rank + 1 - gpus, rank + 1
        for gpu, part in enumerate(block.split(gpus)):
            if here + gpu != rank:
                part = part.copy(here + gpu, "to pass on", 0)
            part = part.copy(
                there + gpu, "output" if gpu == 0 else "passed on", rank * gpus if gpu == 0 else 0
            )
            if gpu:
                part.copy(there, "output", rank * gpus + gpu)
    return send
