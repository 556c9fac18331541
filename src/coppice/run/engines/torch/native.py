"""The collectives of torch.distributed itself, on the memory that programs use: for comparison with programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.engines.datatype import DataType, ReduceOp

__all__ = ["run_native"]


def run_native(
    backend: Any,
    collective: Collective,
    given: NDArray[Any] | None,
    output: NDArray[Any],
    *,
    dtype: DataType,
    op: ReduceOp,
    root: int,
) -> None:
    """Carry out a collective of a backend of torch on NumPy memory, and wait for it.

    Args:
        backend: A backend of torch, such as gloo.
        collective: The collective.
        given: This rank's input; None if the output holds it, as :mod:`coppice.run.programs.rank_program` says.
        output: Takes the result.
        dtype: Type of the elements.
        op: The reduction.
        root: Root rank of a rooted collective, otherwise -1.

    Raises:
        InputError: If the backend has no such type.
    """
    import torch

    from coppice.run.engines.torch.tensors import c10d, torch_op

    if dtype in (DataType.UINT16, DataType.UINT32, DataType.UINT64, DataType.INT16, DataType.BOOL):
        msg = f"expected a type that gloo knows, found {dtype}: choose another one, or leave native out."
        raise InputError(msg)
    kind = getattr(torch, dtype.value)
    rank, ranks = backend.rank(), backend.size()

    def tensor(memory: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(memory.reshape(-1).view(np.uint8)).view(kind)

    wanted = tensor(output)
    source = wanted if given is None else tensor(given)

    def block(memory: torch.Tensor) -> torch.Tensor:
        """This rank's block of a buffer of all blocks."""
        own = len(memory) // ranks
        return memory[rank * own : (rank + 1) * own]

    match collective:
        case Collective.ALL_REDUCE | Collective.REDUCE:
            target = wanted
            if given is not None:
                target = wanted if len(wanted) == len(source) else source.clone()
                target.copy_(source)
            if collective is Collective.ALL_REDUCE:
                options = c10d.AllreduceOptions()
                options.reduceOp = torch_op(op)
                work = backend.allreduce([target], options)
            else:
                rooted = c10d.ReduceOptions()
                rooted.reduceOp, rooted.rootRank = torch_op(op), root
                work = backend.reduce([target], rooted)
        case Collective.BROADCAST:
            if given is not None and rank == root:
                wanted.copy_(source)
            sent = c10d.BroadcastOptions()
            sent.rootRank, sent.rootTensor = root, 0
            work = backend.broadcast([wanted], sent)
        case Collective.ALL_GATHER:
            own = block(wanted).clone() if given is None else source
            work = backend.allgather([list(wanted.chunk(ranks))] if len(wanted) else [[own] * ranks], [own])
        case Collective.REDUCE_SCATTER:
            result = wanted if given is not None else torch.empty_like(block(wanted))
            scattered = c10d.ReduceScatterOptions()
            scattered.reduceOp = torch_op(op)
            work = backend._reduce_scatter_base(result, source, scattered)  # noqa: SLF001  (the old name is older)
            if given is None:
                work.wait()
                block(wanted).copy_(result)
        case Collective.ALL_TO_ALL:
            work = backend.alltoall_base(wanted, source.clone() if given is None else source, [], [])
        case Collective.GATHER:
            gathered = c10d.GatherOptions()
            gathered.rootRank = root
            own = (block(wanted).clone() if rank == root else source) if given is None else source
            work = backend.gather([list(wanted.chunk(ranks))] if rank == root else [], [own], gathered)
        case Collective.SCATTER:
            divided = c10d.ScatterOptions()
            divided.rootRank = root
            result = block(wanted).clone() if given is None and rank == root else wanted
            work = backend.scatter([result], [list(source.chunk(ranks))] if rank == root else [], divided)
            if given is None and rank == root:
                work.wait()
                block(wanted).copy_(result)
        case _:
            work = backend.barrier()
    work.wait()
