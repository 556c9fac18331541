"""Oases with several tensor-parallel degrees, as its planner assigns them.

A group of N ranks runs a micro-batch. A part of degree d lies on d of them that are next to each other, and N / d
replicas share its sequences out: the first has the first ones. Where the next part has a greater degree, sequences are
gathered from ranks with the same slice, where it has a smaller one each rank goes on with some of them; gradients go
the opposite way. All that is under way is waited for there, as in the simulation
(:class:`~coppice.iteration.policies.tensor.half_batches.RegroupedHalves`).

A loss is the mean over a rank's sequences, in the layout of the last part. Gradients are scaled where the degree
changes, so that in each part they are those of the mean over its own sequences: those of its replicas are averaged.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.policies.tensor.half_batches import HalvedBlock, RegroupedHalves, regrouped_before
from coppice.iteration.policies.tensor.lynx import WindowedRecompute
from coppice.iteration.policies.tensor.oases import TwoHalves
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.tensor.lynx import RecomputedBlocks
from coppice.training.torch.tensor.oases import HalvedBlocks
from coppice.training.torch.tensor.parts import SummedPart, parts_of
from coppice.training.torch.tensor.passes_hops import all_gather_single


class DegreeGroups:
    """Process groups for parts of several degrees; constructed alike on all ranks.

    Args:
        degrees: Degrees of the parts, in any order.
        size: Ranks that run a micro-batch together; None: all.

    Raises:
        InputError: If a degree does not divide the next greater one, or the greatest the size, or that the job.
    """

    @checked
    def __init__(self, degrees: Sequence[int], *, size: int | None = None) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        self.size = world if size is None else size  # Ranks that run a micro-batch together
        self.degrees = tuple(sorted(set(degrees)))  # Each degree once, the smallest first
        steps = [*self.degrees, self.size, world]
        if not degrees or steps[0] < 1 or any(more % less for less, more in itertools.pairwise(steps)):
            raise InputError(
                f"expected degrees that divide each other, a size that they divide, and a job that it divides, found "
                f"{list(self.degrees)}, {self.size} and {world}."
            )
        self._place = rank % self.size
        self._groups: dict[int, Any] = {}
        self._between: dict[tuple[int, int], Any] = {}
        for degree in self.degrees:
            blocks = [range(first, first + degree) for first in range(0, world, degree)]
            self._groups[degree] = _own(blocks, rank)
        for number, less in enumerate(self.degrees):
            for more in {*self.degrees[number + 1 :], self.size} - {less}:
                beside = [
                    range(first + place, first + more, less)
                    for first in range(0, world, more)
                    for place in range(less)
                ]
                self._between[less, more] = _own(beside, rank)

    def of(self, degree: int) -> dist.ProcessGroup:
        """Ranks that share a part of this degree with this one.

        Raises:
            InputError: If there is no such degree.
        """
        if degree not in self._groups:
            raise InputError(f"expected one of the degrees {list(self.degrees)}, found {degree}.")
        found: dist.ProcessGroup = self._groups[degree]
        return found

    def replicas(self, degree: int) -> dist.ProcessGroup | None:
        """Ranks with the same slice of a part of this degree; None: no other."""
        self.of(degree)
        return self._between.get((degree, self.size))

    def between(self, one: int, other: int) -> dist.ProcessGroup:
        """Ranks that exchange sequences where the degree changes."""
        found: dist.ProcessGroup = self._between[min(one, other), max(one, other)]
        return found

    def rows(self, whole: torch.Tensor, degree: int) -> torch.Tensor:
        """This rank's sequences of a micro-batch for a part of this degree.

        Raises:
            InputError: If replicas do not divide the sequences.
        """
        self.of(degree)
        replicas = self.size // degree
        if len(whole) % replicas:
            raise InputError(f"expected sequences that {replicas} replicas divide, found {len(whole)}.")
        return whole.chunk(replicas)[self._place // degree]


def _own(blocks: Sequence[range], rank: int) -> Any:
    """Create all groups; return this rank's."""
    made = [dist.new_group(list(each)) for each in blocks]
    return next(group for each, group in zip(blocks, made, strict=True) if rank in each)


@dataclass(frozen=True, eq=False)
class _Change:
    """Change of degree between parts."""

    blocks: RegroupedBlocks  # Where it is noted
    number: int  # Which change it is
    group: dist.ProcessGroup  # The ranks whose sequences come together
    source: int  # Degree of the parts before
    target: int  # Degree of the parts behind

    def moved(self, x: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """Exchange sequences from one degree's layout to another's."""
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        if target < source:
            if len(x) % ranks:
                raise InputError(
                    f"expected sequences that {ranks} groups of {target} ranks divide, found {len(x)}."
                )
            return x.chunk(ranks)[rank].clone()
        made = x.new_empty((len(x) * ranks, *x.shape[1:]))
        self.blocks.gathered_bytes[self.number] = made.nbytes
        try:
            all_gather_single(made, x.contiguous(), group=self.group)
        except RuntimeError as error:
            raise lost_rank(error, "sum activations") from error
        return made


class _Regrouped(torch.autograd.Function):
    """Sequences in another layout; gradients are averaged over its sequences."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: _Change) -> torch.Tensor:
        ctx.change = change
        change.blocks.note(regrouped_before("F", change.blocks.rows[change.number + 1].order.first))
        return change.moved(x, change.source, change.target)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        change = ctx.change
        row = change.blocks.rows[change.number].order
        change.blocks.note(regrouped_before("B", row.first + len(row.blocks) - 1))
        moved = change.moved(gradients[0], change.target, change.source)
        return moved * change.target / change.source, None


class RegroupedBlocks(nn.Sequential):
    """Blocks of several degrees run in two halves; state keys are those of ``nn.Sequential``.

    It takes this rank's sequences in the layout of the first part, and gives those of the last
    (:meth:`DegreeGroups.rows`). Call :meth:`average_gradients` behind the backward pass.

    Args:
        blocks: The blocks; parts of degree d have the group ``groups.of(d)``.
        policy: The policy.
        groups: The groups.
        recompute: Computations are dropped and done again; otherwise all they need is kept.

    Raises:
        InputError: If the policy sums again, blocks are no rows of parts of these groups, or parts of several degrees
            share a parameter.
    """

    def __init__(
        self, blocks: nn.Module, policy: TwoHalves, groups: DegreeGroups, *, recompute: bool = True
    ) -> None:
        parts = [part for block in parts_of(blocks) for part in block]
        degree_of: dict[int, int] = {}
        for number, part in enumerate(parts):
            if part.ranks not in groups.degrees or part.group is not groups.of(part.ranks):
                raise InputError(
                    f"expected parts of the groups of {list(groups.degrees)} ranks that `groups` has, found another of "
                    f"{part.ranks} in part {number}: build it with `group=groups.of(degree)`."
                )
            for parameter in part.parameters():
                if degree_of.setdefault(id(parameter), part.ranks) != part.ranks:
                    raise InputError(
                        f"expected parts of one degree where they share a parameter, found {part.ranks} and "
                        f"{degree_of[id(parameter)]} in part {number}."
                    )
        super().__init__(*blocks.children())
        # What was computed, awaited, started and moved in the last forward pass and the backward pass after
        # it, by the names of the simulation
        self.launched: list[str] = []
        self.groups = groups
        self.degrees = tuple(part.ranks for part in parts)  # Degree of each part
        self.gathered_bytes: dict[int, int] = {}  # Bytes that a change of degrees has given, by changes
        again = 1.0 if recompute else 0.0
        units = [HalvedBlock(forward=1.0, gradients=1.0, recompute=again)] * len(parts)
        changes = sum(one != other for one, other in zip(self.degrees, self.degrees[1:], strict=False))
        self._order = RegroupedHalves.of(units, self.degrees, [(0.0, 0.0)] * changes)
        # Neighbours of one degree, as they run
        self.rows = [
            HalvedBlocks(
                nn.Sequential(*parts[row.first : row.first + len(row.blocks)]),
                policy,
                recompute=recompute,
                first=row.first,
            )
            for row in self._order.rows
        ]  # a list, so that parts are no children twice

    @property
    def order(self) -> RegroupedHalves:
        """Pass order of the policy for these blocks."""
        return self._order

    def note(self, name: str) -> None:
        """Record a launched pass."""
        self.launched.append(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both halves through all blocks."""
        self.launched = []
        regrouped: Any = _Regrouped.apply
        for number, row in enumerate(self.rows):
            if number:
                source, target = self.rows[number - 1].parts[0].ranks, row.parts[0].ranks
                group = self.groups.between(source, target)
                x = regrouped(x, _Change(self, number - 1, group, source, target))
            row.launched = self.launched
            x = row.go_on(x)
        return x

    def average_gradients(self) -> None:
        """Average gradients over the ranks with the same slice; collective over the ranks."""
        for parts, degree in ((row.parts, row.parts[0].ranks) for row in self.rows):
            group = self.groups.replicas(degree)
            if group is None:
                continue
            try:
                for gradients in _alike(parts):
                    flat = torch.cat([each.reshape(-1) for each in gradients])
                    dist.all_reduce(flat.div_(self.groups.size // degree), group=group)
                    pieces = torch.split(flat, [each.numel() for each in gradients])
                    for each, piece in zip(gradients, pieces, strict=True):
                        each.copy_(piece.view_as(each))
            except RuntimeError as error:
                raise lost_rank(error, "sum activations") from error

    def workload(self, network: tuple[float, float]) -> RegroupedHalves:
        """Passes with the median times of this rank, for simulation.

        Args:
            network: Bytes per second and seconds per message of sums and changes of degrees.
        """
        rate, latency = network
        timed = [block for row in self.rows for block in row.workload(network).blocks]
        changes = []
        for number, (one, other) in enumerate(zip(self.rows, self.rows[1:], strict=False)):
            seconds = self.gathered_bytes.get(number, 0) / rate + latency
            up = other.parts[0].ranks > one.parts[0].ranks
            changes.append((seconds, 0.0) if up else (0.0, seconds))
        return self._order.timed(timed, changes)


def _alike(parts: Sequence[SummedPart]) -> list[list[torch.Tensor]]:
    """Gradients of parts that can be reduced together."""
    found: dict[Any, dict[int, torch.Tensor]] = defaultdict(dict)
    for part in parts:
        for parameter in part.parameters():
            if parameter.grad is not None:
                kind = (parameter.grad.dtype, parameter.grad.device)
                found[kind][id(parameter)] = parameter.grad
    return [list(each.values()) for each in found.values()]


@checked
def tensor_parallel(
    blocks: nn.Module, policy: str, *, groups: DegreeGroups | None = None, **settings: Any
) -> nn.Sequential:
    """Tensor-parallel blocks executed by a policy, in place of the sequential blocks.

    Args:
        blocks: An ``nn.Sequential`` of blocks: each a ``SummedPart``, or a row of them, such as ``MegatronBlock``.
        policy: ``oases``: two half micro-batches hide each other's sums, nothing is summed again. ``lynx``: what
            ``limit_bytes`` leaves no memory for is computed again beside sums.
        groups: The groups of parts of several degrees, under ``oases``; None: all parts have one degree.
        settings: Options of the policy; ``recompute=False`` of ``oases`` keeps all activations; ``in_flight``,
            ``passes`` and ``block`` of ``lynx`` are those of its blocks.

    Returns:
        The same blocks, with the same keys of their state.

    Raises:
        InputError: If there is no such policy, or it cannot run these blocks.

    Examples:
        >>> import torch
        >>> from coppice.training.torch import MegatronBlock
        >>> blocks = nn.Sequential(MegatronBlock(8, 2), MegatronBlock(8, 2))
        >>> halved = tensor_parallel(blocks, "oases")
        >>> halved(torch.zeros(2, 3, 8)).shape, halved.launched[:3]
        (torch.Size([2, 3, 8]), ['F0 of 1', 'before sum of F0 of 1', 'sum of F0 of 1'])
    """
    if policy == TwoHalves.name:
        recompute = settings.pop("recompute", True)
        found = TwoHalves.of(**settings)
        if groups is not None:
            return RegroupedBlocks(blocks, found, groups, recompute=bool(recompute))
        return HalvedBlocks(blocks, found, recompute=bool(recompute))
    if policy == WindowedRecompute.name:
        if groups is not None:
            raise InputError(
                f"expected parts of one degree under {policy!r}, found `groups`: leave it out, or use 'oases'."
            )
        own = {name: settings.pop(name) for name in ("in_flight", "passes", "block") if name in settings}
        return RecomputedBlocks(blocks, WindowedRecompute.of(**settings), **own)
    known = f"{TwoHalves.name}, {WindowedRecompute.name}"
    raise InputError(f"expected a policy that runs blocks of tensor parallelism ({known}), found {policy!r}.")
