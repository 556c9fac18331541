"""Hand an all-reduced activation to the next pipeline stage, as slices where that is faster.

Source: CoCoNet (ASPLOS 2022): instead of an all-reduce and a send of the whole by each rank, a reduce-scatter, a send
of slices, and an all-gather on the receiving side, whose ranks have the same number and place in their group. The
tuner decides on the program of simulation, for both sides alike. In chunks, the slice of one goes to the next stage
while the next is summed and the one before gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.machine import Cluster
from coppice.iteration.policies.tensor.coconet.costs import Tuned, autotune
from coppice.iteration.policies.tensor.coconet.program import OpKind, pipeline_handoff
from coppice.topology.model import Topology
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.tensor.passes_hops import (
    MeasuredCosts,
    MeasuredMachine,
    all_gather_single,
    modelled_costs,
    reduce_scatter_single,
)

_TAG = 0x7C10
"""Above the tags that training programs choose."""


class PipelineHandoff:
    """Boundary of two stages; both construct it with the same arguments but group and peer.

    Activations go one way, and terms of their gradients the other way, by the same object::

        way.send(partial)                        x = way.receive().requires_grad_()
                                                 loss(stage(x)).backward()
        partial.backward(way.receive())          way.send(x.grad)

    where ``partial`` is this rank's term of the sum that ends a stage, and ``x.grad`` its term of the gradient.

    Args:
        shape: Shape of the sum.
        group: This stage's tensor-parallel group.
        peer: Global rank of the counterpart in the other stage.
        costs: What collectives of a group cost: a topology, a cluster, or bytes a second and seconds per message.
        between: Bytes a second and seconds per message from a rank to its counterpart.
        chunks: Chunks at most, where they go side by side.
        dtype: Type of the sum.
        device: Where it lies; None: the CPU.

    Raises:
        InputError: If the tensor has no dimension, a rate is not above 0, or the other stage hands on otherwise.
        CheckError: If the other stage does not answer.
    """

    @checked
    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        group: dist.ProcessGroup,
        peer: int,
        costs: Topology | Cluster | MeasuredCosts | tuple[float, float],
        between: tuple[float, float],
        chunks: int = 4,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        if not shape or min(shape) < 1 or chunks < 1 or between[0] <= 0 or between[1] < 0:
            raise InputError(
                f"expected a shape, chunks and rates above 0, found {shape}, {chunks} and {between}."
            )
        self.shape, self.peer, self.dtype = shape, peer, dtype
        self.device = torch.device("cpu") if device is None else device
        self.sent_bytes = 0  # Bytes that this rank has sent to the other stage
        # What the last hand-off did here, in order: `start` or `wait` of operations of the tuned program, and
        # the chunk
        self.tasks: list[str] = []
        self._group, self._ranks = group, dist.get_world_size(group)
        rows, columns = prod(shape[:-1]), shape[-1]
        fitting = [each for each in range(1, chunks + 1) if rows * columns % (each * self._ranks) == 0]
        program = pipeline_handoff(ranks=self._ranks, rows=rows, columns=columns)
        if self._ranks == 1:
            machine = MeasuredMachine.of(MeasuredCosts(ranks=1, flops_per_s=1.0, network={}))
            # The transforms that the tuner chose, and what it expects
            self.tuned = Tuned(program, 0.0, (), 1)
        else:
            machine = MeasuredMachine.of(
                modelled_costs(costs, ranks=self._ranks, flops_per_s=1.0),
                element_bytes=dtype.itemsize,
                chunks=max(fitting, default=1),
                between_rate=between[0],
                between=between[1],
            )
            self.tuned = autotune(program, machine)
        self.simulated = machine.graph(self.tuned.program)  # The tasks of a hand-off, as simulated
        self.sliced = self.tuned.program.ops["sent"].kind is OpKind.ALL_GATHER  # Slices are sent
        self._chunks = machine.chunks if self.tuned.program.overlaps else 1
        self._sum, self._sent = ("sum.scatter", "sent.slice") if self.sliced else ("sum", "sent")
        self._agree(list(shape))

    def _agree(self, shape: list[int]) -> None:
        """Check that both stages use the same transfer."""
        said = [self._ranks, int(self.sliced), self._chunks, self.dtype.itemsize, len(shape), prod(shape)]
        ours = torch.tensor(said, device=self.device)
        theirs = torch.empty_like(ours)
        with _both_answer():
            both = [(dist.isend, ours), (dist.irecv, theirs)]
            swapped = [dist.P2POp(way, tensor, self.peer, tag=_TAG - 1) for way, tensor in both]
            for each in dist.batch_isend_irecv(swapped):
                each.wait()
        if theirs.tolist() != said:
            raise InputError(
                "expected both stages to hand on alike (ranks, slices, chunks, bytes of an element, dimensions, "
                f"elements), found {said} here and {theirs.tolist()} on rank {self.peer}: give both the same shape, "
                "`costs`, `between`, `chunks` and `dtype`."
            )

    def send(self, partial: torch.Tensor) -> None:
        """Reduce over the group, and send the result.

        Raises:
            InputError: If it has another shape or type.
            CheckError: If a rank does not answer.
        """
        if tuple(partial.shape) != self.shape or partial.dtype != self.dtype:
            found = f"{tuple(partial.shape)} and {partial.dtype}"
            raise InputError(f"expected a tensor of shape {self.shape} and {self.dtype}, found {found}.")
        self.tasks = []
        pieces = partial.detach().reshape(-1).chunk(self._chunks)
        with _both_answer():
            sums = [self._summed(number, piece) for number, piece in enumerate(pieces)]
            sends: list[Any] = []
            for number, (held, work) in enumerate(sums):
                work.wait()
                self.tasks.append(f"wait {self._sum} {number}")
                sends.append(dist.isend(held, self.peer, tag=_TAG + number))
                self.tasks.append(f"start {self._sent} {number}")
                self.sent_bytes += held.nbytes
            for each in sends:
                each.wait()

    def _summed(self, number: int, piece: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start the reduction of a chunk; return its buffer and work."""
        self.tasks.append(f"start {self._sum} {number}")
        if not self.sliced:
            whole = piece.clone()
            return whole, dist.all_reduce(whole, group=self._group, async_op=True)
        held = piece.new_empty(len(piece) // self._ranks)
        return held, reduce_scatter_single(held, piece, group=self._group, async_op=True)

    def receive(self) -> torch.Tensor:
        """The reduced tensor, whole on every rank of the receiving group.

        Raises:
            CheckError: If a rank does not answer.
        """
        self.tasks = []
        result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        pieces = result.view(-1).chunk(self._chunks)
        came = [piece.new_empty(len(piece) // self._ranks) if self.sliced else piece for piece in pieces]
        with _both_answer():
            receives: list[Any] = [
                dist.irecv(each, self.peer, tag=_TAG + number) for number, each in enumerate(came)
            ]
            gathers = []
            for number, (piece, part, work) in enumerate(zip(pieces, came, receives, strict=True)):
                work.wait()
                self.tasks.append(f"wait {self._sent} {number}")
                if self.sliced:
                    gathers.append(all_gather_single(piece, part, group=self._group, async_op=True))
                    self.tasks.append(f"start sent {number}")
            for number, each in enumerate(gathers):
                each.wait()
                self.tasks.append(f"wait sent {number}")
        return result


@contextmanager
def _both_answer() -> Iterator[None]:
    """Context that names an unresponsive rank."""
    try:
        yield
    except RuntimeError as error:
        raise lost_rank(error, "pass the sum on", all_ranks="both stages", lost="a rank") from error
