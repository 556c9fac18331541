"""MPI's own collectives on memory as programs use it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.run.engines.datatype import ReduceOp


def run_native(
    mpi: Any,  # The module `mpi4py.MPI`
    communicator: Any,
    collective: Collective,
    given: NDArray[Any] | None,  # INPUT, or None
    output: NDArray[Any],
    *,
    op: ReduceOp,  # The reduction; an average is a sum that is divided afterwards
    root: int,  # Root rank, or -1
) -> None:
    """Run it; in place if nothing is given."""
    source = mpi.IN_PLACE if given is None else given
    rank, ranks = communicator.Get_rank(), communicator.Get_size()
    names = {ReduceOp.AVG: "SUM", ReduceOp.PRODUCT: "PROD"}
    operation = getattr(mpi, names.get(op, op.name))
    match collective:
        case Collective.ALL_REDUCE:
            communicator.Allreduce(source, output, op=operation)
        case Collective.ALL_GATHER:
            communicator.Allgather(source, output)
        case Collective.REDUCE_SCATTER:
            communicator.Reduce_scatter_block(source, output, op=operation)
        case Collective.BROADCAST:
            communicator.Bcast(output, root=root)
        case Collective.REDUCE:
            # Programs reduce in place; elsewhere than at the root, MPI calls that memory the send buffer.
            at_root = rank == root
            communicator.Reduce(
                mpi.IN_PLACE if at_root else output, output if at_root else None, operation, root
            )
        case Collective.ALL_TO_ALL:
            communicator.Alltoall(source, output)
        case Collective.GATHER if given is None and rank != root:
            communicator.Gather(output, None, root=root)
        case Collective.GATHER:
            communicator.Gather(source, output, root=root)
        case Collective.SCATTER if given is None and rank != root:
            communicator.Scatter(None, output, root=root)
        case Collective.SCATTER if given is None:
            communicator.Scatter(output, mpi.IN_PLACE, root=root)
        case Collective.SCATTER:
            communicator.Scatter(source, output, root=root)
        case Collective.BARRIER:
            communicator.Barrier()
    if op is ReduceOp.AVG and collective.reduces and (collective is not Collective.REDUCE or rank == root):
        output /= ranks
