"""Gloo as a transport: program messages, their completion, and gloo's own collectives.

Gloo tells nobody that a message is complete but who waits for it, so a rank waits for the message of the earliest step
and starts whatever that allows. (A thread for each connection would not do: while it waits for one message, a receive
of an earlier step may be started, without which that one never comes.)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.program import RowKind
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.interpreter import RankMemory
from coppice.run.engines.progress import ExecutionOrder
from coppice.run.errors import PeerLost, TimedOut

LARGEST_TAG = 2**31 - 1

_SENDS_LATER = 3
"""Steps by which waiting for a send stands back behind waiting for arrivals, below the window."""


def wait_steps(order: ExecutionOrder) -> list[int]:
    """Step in which to wait for each message: receives in their own, sends when their memory is needed, or later.

    A rank that waits by these numbers, of equal ones by row, never waits for what cannot come: of all rows in the group
    that are not started, one of the first step waits for messages of earlier steps only. Those are started at both
    ends, and are waited for before anything of that step.
    """
    found = list(order.step_of)
    for row, kind in enumerate(order.kind):
        if kind == RowKind.SEND:
            used = min((order.step_of[later] for later in order.dependents[row]), default=len(order.steps))
            found[row] = min(order.step_of[row] + _SENDS_LATER, used)
    return found


class GlooTransport:
    """Messages of one run: the transport of :func:`coppice.run.engines.progress.carry_out`.

    Args:
        gloo: Has ``send`` and ``recv``.
        order: Of the program.
        wait_step: :func:`wait_steps` of the order.
        memory: The rank's buffers.
        staging: Memory for arrivals that are added.
        first_tag: Added to the tags of the program.
        timeout_s: Longest time to wait for a message, in seconds.
    """

    def __init__(
        self,
        gloo: Any,
        order: ExecutionOrder,
        wait_step: Sequence[int],
        memory: RankMemory,
        staging: NDArray[Any],
        *,
        first_tag: int,
        timeout_s: float,
    ) -> None:
        import torch

        program = order.program
        self._gloo, self._order, self._wait_step, self._program = gloo, order, wait_step, program
        self._peers, self._tags = program.peer.tolist(), program.tag.tolist()
        self._memory, self._staging, self._first_tag = memory, staging, first_tag
        self._patience = timedelta(seconds=timeout_s)
        self._tensor = torch.from_numpy
        self._waiting: list[tuple[int, int, Any]] = []

    def start(self, row: int) -> None:
        """Start the message of a row."""
        kind, peer = self._order.kind[row], self._peers[row]
        tag = (self._first_tag + self._tags[row]) & LARGEST_TAG
        memory = self._memory.at(row)
        if self._order.staged[row]:
            memory = self._order.arrival(row, self._staging)
        # torch warns of memory that is not writable, and what is sent is not written.
        part = self._tensor((memory if memory.flags.writeable else memory.copy()).view(np.uint8))
        sends = kind == RowKind.SEND
        try:
            work = (self._gloo.send if sends else self._gloo.recv)([part], peer, tag)
        except RuntimeError as error:
            raise lost(self._program.rank, peer, str(self._program.collective), error) from None
        heapq.heappush(self._waiting, (self._wait_step[row], row, work))

    def completed(self) -> list[int]:
        """Wait for the message that is needed first."""
        _, row, work = heapq.heappop(self._waiting)
        program = self._program
        wait_for(work, self._patience, program.rank, self._peers[row], str(program.collective))
        return [row]

    def look_around(self) -> None:
        """No operation: every wait has its own timeout."""


def wait_for(work: Any, timeout: timedelta, rank: int, peer: int, what: str) -> None:
    """Wait for a message."""
    try:
        work.wait(timeout)
    except RuntimeError as error:
        if timed_out(error):
            raise TimedOut(
                f"rank {rank} waited {timeout.total_seconds():g} s in {what} for rank {peer}: see what that rank "
                "does, or allow more time."
            ) from None
        raise lost(rank, peer, what, error) from None


def timed_out(error: RuntimeError) -> bool:
    """Whether gloo gave up waiting; otherwise a connection is gone."""
    return "imed out" in str(error)


def first_line(error: Exception) -> str:
    """Gloo's error without source location and advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line.partition("] ")[2].partition(". This is")[0].strip() or line


def lost(rank: int, peer: int | None, what: str, error: Exception) -> PeerLost:
    """Gloo's error about a lost connection as PeerLost."""
    other = "another rank" if peer is None else f"rank {peer}"
    msg = (
        f"rank {rank} lost the connection to {other} in {what} ({first_line(error)}): see the output of the "
        "other ranks."
    )
    return PeerLost(msg)


def run_native(
    backend: Any,  # A backend of torch, such as gloo
    collective: Collective,
    # This rank's input; None if the output holds it, as :mod:`coppice.program.dialects.rank.program` says
    given: Any,
    output: Any,
    *,
    dtype: DataType,
    op: ReduceOp,
    root: int,  # Root rank of a rooted collective, otherwise -1
) -> None:
    """Run a collective of a torch backend on NumPy memory or tensors, and wait for it."""
    import torch

    from coppice.run.engines.torch.tensors import c10d, torch_op

    if dtype in (DataType.UINT16, DataType.UINT32, DataType.UINT64, DataType.INT16, DataType.BOOL):
        raise InputError(
            f"expected a type that gloo knows, found {dtype}: choose another one, or leave native out."
        )
    kind = getattr(torch, dtype.value)
    rank, ranks = backend.rank(), backend.size()

    def tensor(memory: Any) -> torch.Tensor:
        if isinstance(memory, torch.Tensor):
            return memory.view(-1)
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
