"""Execution of each collective phase on tensors.

The decompositions are those of :mod:`coppice.iteration.policies.whole.partition`, by their labels. A collective is cut
in pieces along its elements, or along those of each rank's part where parts of ranks take different routes; a piece
runs its phases one after the other, each of which ends before the next one starts. A sum over ranks of boxes is a
reduce-scatter inside, a sum between of a k-th, a gather inside; what goes to other ranks is put in order of places in
the box first, of boxes afterwards.

gloo's own reduce-scatter sends what an all-reduce sends. There ranks exchange parts and add them up by themselves, in
the order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.iteration.policies.whole.partition import GROUPED, GROUPED_AND_SUBSTITUTED, PLAIN, SUBSTITUTED
from coppice.training.torch.whole.grids import ALL, BETWEEN, INSIDE, RankGrid

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
"""What can be carried out."""

# torch 2.13 has new names and warns of the old ones.
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True, eq=False)
class CollectiveBuffers:
    """A collective of a group of ranks with its contiguous tensors.

    Raises:
        InputError: If there is no such collective, or a tensor does not suit it.

    Examples:
        >>> CollectiveBuffers("all_reduce", torch.ones(4)).size_bytes
        16
        >>> CollectiveBuffers("all_gather", torch.ones(4))
        Traceback (most recent call last):
        coppice.errors.InputError: expected an `output` of all_gather, found none.
    """

    # One of `all_reduce` (sum) and `broadcast`, which work in place; `all_gather`, `reduce_scatter` and
    # `all_to_all`, from `tensor` to `output`; `send`, of the `tensor` of rank `root` to that of `peer`
    collective: str
    tensor: torch.Tensor  # What goes in
    output: torch.Tensor | None = None  # What comes out, where it is another tensor
    group: dist.ProcessGroup | None = None  # The ranks; None: all of the groups it is carried out on
    root: int = 0  # Rank in the group that broadcasts, or sends
    peer: int = 1  # Rank in the group that receives

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InputError(f"expected a collective of {', '.join(COLLECTIVES)}, found {self.collective!r}.")
        separate = self.collective in {"all_gather", "reduce_scatter", "all_to_all"}
        if separate != (self.output is not None):
            found = "none" if separate else "one"
            raise InputError(
                f"expected {'an' if separate else 'no'} `output` of {self.collective}, found {found}."
            )
        for each in (self.tensor, self.output):
            if each is not None and not each.is_contiguous():
                raise InputError(
                    f"expected contiguous tensors of {self.collective}, found one of strides {each.stride()}."
                )

    @property
    def size_bytes(self) -> int:
        """Bytes of a rank's whole buffer: all shards where ranks have shards."""
        whole = self.output if self.collective == "all_gather" else self.tensor
        return 0 if whole is None else whole.numel() * whole.element_size()

    def require_parts(self, ranks: int) -> None:
        """Check that the buffer divides evenly among the ranks.

        Raises:
            InputError: If sizes do not fit.
        """
        if self.output is None:
            return
        tensor, output = self.tensor.numel(), self.output.numel()
        wanted = {
            "all_gather": (tensor * ranks, 1),
            "reduce_scatter": (tensor // ranks, ranks),
            "all_to_all": (tensor, ranks),
        }
        size, divisor = wanted[self.collective]
        if output != size or tensor % divisor or self.output.dtype != self.tensor.dtype:
            raise InputError(
                f"expected tensors of {self.collective} that fit {ranks} ranks, found {tensor} elements in and "
                f"{output} out ({self.tensor.dtype}, {self.output.dtype})."
            )


@dataclass(frozen=True)
class PhaseStep:
    """One phase of a chunk."""

    kind: str  # What it is
    role: str  # Who does it: all ranks, those inside a box, those at one place of all boxes
    # Does it on a process group of these, and returns when it is done
    run: Callable[[dist.ProcessGroup], None]


def piece_steps(
    buffers: CollectiveBuffers, label: str, grid: RankGrid, rank: int, *, piece: int = 0, pieces: int = 1
) -> tuple[PhaseStep, ...]:
    """Phases of one chunk of a collective.

    Args:
        label: Its decomposition, a label of ``collective_decompositions``.
        rank: Global rank of this process, one of them.
    """
    made = _ChunkPhases(buffers, grid, rank, piece, pieces)
    decompositions = made.decompositions()
    if label not in decompositions:
        raise InputError(
            f"expected a decomposition of {buffers.collective} ({', '.join(decompositions)}), found {label!r}."
        )
    return decompositions[label]()


class _ChunkPhases:
    """Phases of one chunk of a collective, each on the result of the previous one."""

    def __init__(
        self, buffers: CollectiveBuffers, grid: RankGrid, rank: int, piece: int, pieces: int
    ) -> None:
        self.buffers, self.grid = buffers, grid
        self.n, self.k = grid.nodes, grid.ranks_of_node
        self.ranks = self.n * self.k
        self.box, self.own = grid.place(rank)
        self.at = grid.ranks.index(rank)
        self.flat = buffers.tensor.view(-1)
        parts = buffers.collective in {"reduce_scatter", "all_to_all"}
        length = self.flat.numel() // (self.ranks if parts else 1)
        self.slice = slice(length * piece // pieces, length * (piece + 1) // pieces)
        self.length = self.slice.stop - self.slice.start
        self.held = self.flat[:0]

    def decompositions(self) -> dict[str, Callable[[], tuple[PhaseStep, ...]]]:
        """Phases of each decomposition."""
        split = self.n > 1 and self.k > 1
        if self.ranks == 1:
            return {PLAIN: lambda: (PhaseStep(self.buffers.collective, ALL, self._alone),)}
        found: dict[str, dict[str, Callable[[], tuple[PhaseStep, ...]]]] = {
            "all_reduce": {
                PLAIN: self._sum_plain,
                SUBSTITUTED: lambda: self._sum((ALL,)),
                GROUPED: lambda: self._sum((INSIDE,), between=True),
                GROUPED_AND_SUBSTITUTED: lambda: self._sum((INSIDE, BETWEEN)),
            },
            "all_gather": {
                PLAIN: self._gather_plain,
                SUBSTITUTED: lambda: self._sends(self._gather_sends),
                GROUPED: self._gather_grouped,
            },
            "reduce_scatter": {PLAIN: self._scatter_plain, GROUPED: self._scatter_grouped},
            "all_to_all": {
                PLAIN: self._exchange_plain,
                SUBSTITUTED: lambda: self._sends(self._exchange_sends),
                GROUPED: self._exchange_grouped,
            },
            "broadcast": {
                PLAIN: self._broadcast_plain,
                SUBSTITUTED: lambda: self._sends(self._broadcast_sends),
                GROUPED: self._broadcast_grouped,
            },
            "send": {PLAIN: lambda: (PhaseStep("send", ALL, self._send),)},
        }
        own = found[self.buffers.collective]
        return {
            label: decomposition for label, decomposition in own.items() if split or "grouped" not in label
        }

    def _alone(self, group: dist.ProcessGroup) -> None:
        del group
        if self.buffers.output is not None:
            self.buffers.output.view(-1)[self.slice].copy_(self.flat[self.slice])

    def _output(self) -> torch.Tensor:
        """Output chunk with a row per shard."""
        output = self.flat if self.buffers.output is None else self.buffers.output
        rows = 1 if self.buffers.collective == "reduce_scatter" else self.ranks
        return output.view(rows, -1)[:, self.slice]

    def _parts(self) -> torch.Tensor:
        """Input chunk with a row per rank."""
        return self.flat.view(self.ranks, -1)[:, self.slice]

    # Sums of all.

    def _sum_plain(self) -> tuple[PhaseStep, ...]:
        def run(group: dist.ProcessGroup) -> None:
            if self.length:
                dist.all_reduce(self.flat[self.slice], group=group)

        return (PhaseStep("all_reduce", ALL, run),)

    def _sum(self, roles: Sequence[str], *, between: bool = False) -> tuple[PhaseStep, ...]:
        """Reduce-scatter along groups, optionally all-reduce between boxes, all-gather."""
        levels: list[
            tuple[torch.Tensor, int]
        ] = []  # what each scatter was given, and its length without padding

        def scatter(group: dist.ProcessGroup) -> None:
            size = dist.get_world_size(group)
            given = self.held if levels else self.flat[self.slice]
            length = len(given)
            if length % size:
                given = torch.nn.functional.pad(given, (0, -length % size))
            levels.append((given, length))
            self.held = given.new_empty(len(given) // size)
            _reduce_scatter(self.held, given, group)

        def total(group: dist.ProcessGroup) -> None:
            if len(self.held):
                dist.all_reduce(self.held, group=group)

        def gather(group: dist.ProcessGroup) -> None:
            given, length = levels.pop()
            if length:
                all_gather_single(given, self.held, group=group)
            self.held = given[:length]
            if not levels and len(given) > length:
                self.flat[self.slice].copy_(self.held)

        down = [PhaseStep("reduce_scatter", role, scatter) for role in roles]
        middle = [PhaseStep("all_reduce", BETWEEN, total)] if between else []
        up = [PhaseStep("all_gather", role, gather) for role in reversed(roles)]
        return (*down, *middle, *up)

    # Parts of all ranks, gathered.

    def _gather_plain(self) -> tuple[PhaseStep, ...]:
        def run(group: dist.ProcessGroup) -> None:
            self._output().copy_(_gathered(self.flat[self.slice], self.ranks, group))

        return (PhaseStep("all_gather", ALL, run),)

    def _gather_grouped(self) -> tuple[PhaseStep, ...]:
        def between(group: dist.ProcessGroup) -> None:
            self.held = _gathered(self.flat[self.slice], self.n, group)

        def inside(group: dist.ProcessGroup) -> None:
            rows = _gathered(self.held.view(-1), self.k, group).view(self.k, self.n, -1)
            self._output().copy_(rows.transpose(0, 1).reshape(self.ranks, -1))

        return (PhaseStep("all_gather", BETWEEN, between), PhaseStep("all_gather", INSIDE, inside))

    def _gather_sends(self, others: Sequence[int], group: dist.ProcessGroup) -> None:
        own = self.flat[self.slice]
        rows = own.new_empty(len(others), self.length)
        _swap(dict.fromkeys(others, own), dict(zip(others, rows, strict=True)), group)
        output = self._output()
        for other, row in zip(others, rows, strict=True):
            output[other].copy_(row)
        output[self.at].copy_(own)

    # Sums of parts.

    def _scatter_plain(self) -> tuple[PhaseStep, ...]:
        def run(group: dist.ProcessGroup) -> None:
            self._scattered(self._parts().contiguous().view(-1), group, last=True)

        return (PhaseStep("reduce_scatter", ALL, run),)

    def _scatter_grouped(self) -> tuple[PhaseStep, ...]:
        def inside(group: dist.ProcessGroup) -> None:
            rows = self._parts().reshape(self.n, self.k, -1).transpose(0, 1).contiguous().view(-1)
            self._scattered(rows, group, last=False)

        def between(group: dist.ProcessGroup) -> None:
            self._scattered(self.held, group, last=True)

        return (PhaseStep("reduce_scatter", INSIDE, inside), PhaseStep("reduce_scatter", BETWEEN, between))

    def _scattered(self, given: torch.Tensor, group: dist.ProcessGroup, *, last: bool) -> None:
        self.held = given.new_empty(len(given) // dist.get_world_size(group))
        _reduce_scatter(self.held, given, group)
        if last:
            self._output().copy_(self.held.view(1, -1))

    # A part of each rank to each.

    def _exchange_plain(self) -> tuple[PhaseStep, ...]:
        def run(group: dist.ProcessGroup) -> None:
            self._output().copy_(_exchanged(self._parts(), group))

        return (PhaseStep("all_to_all", ALL, run),)

    def _exchange_grouped(self) -> tuple[PhaseStep, ...]:
        def inside(group: dist.ProcessGroup) -> None:
            rows = self._parts().reshape(self.n, self.k, -1).transpose(0, 1)
            self.held = _exchanged(rows, group)  # by place of the source, then box of the destination

        def between(group: dist.ProcessGroup) -> None:
            rows = _exchanged(self.held.transpose(0, 1), group)
            self._output().copy_(rows.reshape(self.ranks, -1))

        return (PhaseStep("all_to_all", INSIDE, inside), PhaseStep("all_to_all", BETWEEN, between))

    def _exchange_sends(self, others: Sequence[int], group: dist.ProcessGroup) -> None:
        parts, output = self._parts(), self._output()
        rows = parts.new_empty(len(others), self.length)
        sent = {other: parts[other].contiguous() for other in others}
        _swap(sent, dict(zip(others, rows, strict=True)), group)
        for other, row in zip(others, rows, strict=True):
            output[other].copy_(row)
        output[self.at].copy_(parts[self.at])

    # From one to all, or to one.

    def _broadcast_plain(self) -> tuple[PhaseStep, ...]:
        def run(group: dist.ProcessGroup) -> None:
            self._from(self.grid.ranks[self.buffers.root], group)

        return (PhaseStep("broadcast", ALL, run),)

    def _broadcast_grouped(self) -> tuple[PhaseStep, ...]:
        box, own = divmod(self.buffers.root, self.k)

        def between(group: dist.ProcessGroup) -> None:
            if self.own == own:
                self._from(self.grid.rows[box][own], group)

        def inside(group: dist.ProcessGroup) -> None:
            self._from(self.grid.rows[self.box][own], group)

        return (PhaseStep("broadcast", BETWEEN, between), PhaseStep("broadcast", INSIDE, inside))

    def _from(self, source: int, group: dist.ProcessGroup) -> None:
        if self.length:
            dist.broadcast(self.flat[self.slice], src=source, group=group)

    def _broadcast_sends(self, others: Sequence[int], group: dist.ProcessGroup) -> None:
        own, root = self.flat[self.slice], self.buffers.root
        if self.at == root:
            _swap(dict.fromkeys(others, own), {}, group)
        elif root in others:
            _swap({}, {root: own}, group)

    def _send(self, group: dist.ProcessGroup) -> None:
        own = self.flat[self.slice]
        if self.at == self.buffers.root:
            _swap({self.buffers.peer: own}, {}, group)
        elif self.at == self.buffers.peer:
            _swap({}, {self.buffers.root: own}, group)

    def _sends(self, run: Callable[[Sequence[int], dist.ProcessGroup], None]) -> tuple[PhaseStep, ...]:
        """Sends to ranks of other boxes, then of this one; none where there are neither."""
        far = [each for each in range(self.ranks) if each // self.k != self.box]
        near = [each for each in range(self.ranks) if each // self.k == self.box and each != self.at]
        return tuple(PhaseStep("send", ALL, partial(run, others)) for others in (far, near) if others)


def _reduce_scatter(output: torch.Tensor, given: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum of all ranks' parts for this one."""
    if not len(output):
        return
    if dist.get_backend(group) == "gloo":
        output.copy_(_exchanged(given.view(-1, len(output)), group).sum(dim=0))
    else:
        _reduce_scatter_single(output, given, group=group)


def _gathered(part: torch.Tensor, ranks: int, group: dist.ProcessGroup) -> torch.Tensor:
    """A row from each rank."""
    rows = part.new_empty(ranks, len(part))
    if len(part):
        all_gather_single(rows.view(-1), part.contiguous(), group=group)
    return rows


def _exchanged(rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Row i of rank j as row j of rank i."""
    rows = rows.contiguous()
    found = torch.empty_like(rows)
    if rows.numel():
        dist.all_to_all_single(found.view(-1), rows.view(-1), group=group)
    return found


def _swap(sent: dict[int, torch.Tensor], received: dict[int, torch.Tensor], group: dist.ProcessGroup) -> None:
    """Concurrent sends and receives within a group."""
    ranks = dist.get_process_group_ranks(group)
    wanted = [
        dist.P2POp(call, tensor, ranks[other], group)
        for call, row in ((dist.irecv, received), (dist.isend, sent))
        for other, tensor in row.items()
        if tensor.numel()
    ]
    for work in dist.batch_isend_irecv(wanted) if wanted else ():
        work.wait()
