"""What NCCL would pick: the smallest time that its cost model predicts."""

from __future__ import annotations

from collections.abc import Mapping

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.nccl_data import constants
from coppice.selection.nccl_inputs import inputs_of
from coppice.selection.nccl_model import CostCell, NcclCommunicator, cells
from coppice.selection.request import SelectionRequest
from coppice.selection.selection import Selection
from coppice.topology.model import Topology

__all__ = ["select_by_cost"]

_DIRECT = (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER)


def select_by_cost(
    request: SelectionRequest, *, topology: Topology | None = None, settings: Mapping[str, str] | None = None
) -> Selection:
    """The pick of NCCL 2.30, with the predicted time of every algorithm and protocol.

    Args:
        request: The call.
        topology: Where it runs: boxes, NICs and GPU generation are read off it as far as it says them.
        settings: Properties of the communicator (see :data:`coppice.selection.nccl_inputs.SETTINGS`).

    Raises:
        InputError: If NCCL does not perform the collective, or a setting has no meaning.
    """
    collective = request.collective
    function = collective.dialects.nccl
    if function is None:
        msg = f"NCCL has no {collective}: choose another collective, or a library of MPI."
        raise InputError(msg)
    if collective in _DIRECT or request.ranks == 1:
        return _without_model(request, function)
    inputs = inputs_of(request, topology, settings or {})
    found = cells(inputs.communicator, collective, request.size_bytes)
    best = min((cell for cell in found if cell.time_us is not None), key=lambda cell: cell.time_us or 0.0)
    ours = constants().ours[collective].get(best.algorithm)
    return Selection(
        library="NCCL",
        version=constants().version,
        source=constants().source,
        function=function,
        collective=collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component="cost model",
        algorithm=f"{best.algorithm}/{best.protocol}",
        runs_as=best.algorithm,
        ours=ours,
        parameters={"group": request.ranks // inputs.communicator.nodes} if ours == "nccl-tree" else {},
        reason=None if ours else constants().missing[best.algorithm],
        assumptions=inputs.assumptions,
        notes=_notes(inputs.communicator, best, request.size_bytes),
        cells=found,
    )


def _without_model(request: SelectionRequest, function: str) -> Selection:
    alone = request.ranks == 1
    return Selection(
        library="NCCL",
        version=constants().version,
        source=constants().source,
        function=function,
        collective=request.collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component="no choice",
        algorithm="copy" if alone else "point-to-point",
        runs_as="copy" if alone else "point-to-point",
        ours=None if alone else constants().ours[request.collective]["p2p"],
        reason="one rank: nothing moves" if alone else None,
        notes=() if alone else ("NCCL sends and receives every block directly; there is nothing to choose",),
    )


def _notes(comm: NcclCommunicator, best: CostCell, size_bytes: int) -> tuple[str, ...]:
    """Channels and threads of the kernel, and what the model leaves out."""
    found = [
        "symmetric-memory and copy-engine kernels, registered buffers, tuner plugins and NCCL_ALGO are not modelled"
    ]
    if best.algorithm in ("Ring", "Tree", "CollNetChain", "PAT"):
        channels, threads = _kernel(comm, best, size_bytes)
        found.insert(
            0, f"the kernel takes {channels} of {comm.channels} channels, {threads} threads to move data each"
        )
    return tuple(found)


def _kernel(comm: NcclCommunicator, best: CostCell, size_bytes: int) -> tuple[int, int]:
    """Channels and threads: fewer for sizes that would leave each less than its threshold."""
    data = constants()
    threads, channels = data.most_threads[best.protocol], comm.channels
    if best.algorithm == "Ring" and best.protocol == "Simple":
        slow = comm.ring.within * comm.ring.count <= data.nic_gb_per_s_of_100_gbit
        threads = 256 if slow else threads
    threshold = data.thread_threshold_bytes[best.protocol]
    if best.algorithm == "Ring" and best.protocol == "LL":
        threshold *= comm.ranks
    while channels >= 2 and size_bytes < channels * threads * threshold:
        channels -= 1
    while size_bytes < channels * threads * threshold and threads % 128 == 0:
        threads //= 2
    threads = max(threads, 96)
    return channels, 640 if best.algorithm in ("Tree", "PAT") else threads
