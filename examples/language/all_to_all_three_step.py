"""All-to-all in three steps: one message between every two boxes, gathered before and handed out behind."""

from coppice import ChunkProgram


def program(ranks: int = 16, boxes: int = 4) -> ChunkProgram:
    if ranks % boxes:
        raise ValueError(f"expected boxes that divide {ranks} ranks, found {boxes}")
    gpus = ranks // boxes
    exchange = ChunkProgram("all_to_all", ranks=ranks, name="all-to-all three step")
    for rank in range(ranks):
        box, gpu = divmod(rank, gpus)
        for peer in range(ranks):
            block = exchange.chunk(rank, "input", peer)
            there, slot = divmod(peer, gpus)
            if there == box:
                block.copy(peer, "output", rank)
            else:  # gathered at the GPU that serves the other box
                block.copy(box * gpus + there % gpus, f"for box {there}", slot * gpus + gpu)
    for box in range(boxes):
        for there in range(boxes):
            if there == box:
                continue
            gathered = exchange.chunk(box * gpus + there % gpus, f"for box {there}", 0, gpus * gpus)
            arrived = gathered.copy(there * gpus + box % gpus, f"from box {box}", 0)
            for slot, part in enumerate(arrived.split(gpus)):
                part.copy(there * gpus + slot, "output", box * gpus)
    return exchange
