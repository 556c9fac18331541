"""All-to-all in two steps: what a box has for a GPU of another box is gathered at one GPU, and sent as one message."""

from coppice import ChunkProgram


def program(ranks: int = 16, boxes: int = 2) -> ChunkProgram:
    if ranks % boxes:
        raise ValueError(f"expected boxes that divide {ranks} ranks, found {boxes}")
    gpus = ranks // boxes
    exchange = ChunkProgram("all_to_all", ranks=ranks, name="all-to-all two step")
    for rank in range(ranks):
        box, gpu = divmod(rank, gpus)
        for peer in range(ranks):
            block = exchange.chunk(rank, "input", peer)
            there, slot = divmod(peer, gpus)
            if there == box:
                block.copy(peer, "output", rank)
            else:  # gathered at the GPU with the receiver's place in its box
                block.copy(box * gpus + slot, f"for box {there}", gpu)
    for rank in range(ranks):
        box, gpu = divmod(rank, gpus)
        for there in range(boxes):
            if there != box:
                gathered = exchange.chunk(rank, f"for box {there}", 0, gpus)
                gathered.copy(there * gpus + gpu, "output", box * gpus)
    return exchange
