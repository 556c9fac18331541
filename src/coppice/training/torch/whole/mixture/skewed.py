"""Uneven all-to-all by planned schedules: ``PlannedExchange``.

Tokens are not dealt evenly, and a direct exchange takes one path for each pair of ranks. What every rank sends to
every other is a matrix of demands, for which the planner of all-to-all finds routes that no schedule beats, through
other ranks as well. Ranks tell each other how much they send, rank 0 plans once for each shape of traffic, and all
carry the routes out with sends and receives of torch.

A block is cut over its routes, and each part in pieces: piece k makes its h-th hop in round k + 2 h, and a round
begins when the one before the last is over, so that two are under way and a rank passes on what it has.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from coppice.arguments import checked
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.schedule.schedule import Schedule
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.training.torch.core.agree import broadcast_from_first
from coppice.training.torch.whole.mixture.exchanges import all_to_all

_LEVELS = 16
"""Traffic is planned by its sizes in so many parts of the greatest, rounded up."""
_PLANS = 64
"""Plans that are kept; the one that was used longest ago goes first."""


class RoutedPart(NamedTuple):
    """Part of a block with its route."""

    ranks: tuple[int, ...]  # Ranks that it goes through, sender and receiver with them
    begin: int  # Where it begins, in parts of the block
    end: int  # Where it ends
    whole: int  # Parts of the block


def quantised(rows: Sequence[Sequence[int]], levels: int = _LEVELS) -> tuple[tuple[int, ...], ...]:
    """Sizes as fractions of the largest, rounded up; the diagonal is 0.

    Examples:
        >>> quantised([[5, 100], [1, 0]], levels=4)
        ((0, 4), (1, 0))
    """
    most = max((size for i, row in enumerate(rows) for j, size in enumerate(row) if i != j), default=0)
    return tuple(
        tuple(0 if i == j or not size else -(-levels * size // most) for j, size in enumerate(row))
        for i, row in enumerate(rows)
    )


@checked
def planned_routes(topology: Topology, demands: Any) -> tuple[RoutedPart, ...]:
    """Routes of a verified plan for a demand matrix, by sender, receiver and offset in the block.

    Args:
        topology: The network; a rank of it for each row.
        demands: Relative size from each rank to each.

    Examples:
        Between opposite ranks of a ring both ways are used:

        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4, gb_per_s=1)
        >>> [part.ranks for part in planned_routes(ring, [[0, 0, 1, 0], [0] * 4, [0] * 4, [0] * 4])]
        [(0, 1, 2), (0, 3, 2)]
    """
    found = plan(Problem(topology, Collective.ALL_TO_ALL, demands=demands), ring=False).plan.body
    assert isinstance(found, Schedule)  # as an all-to-all is
    size = topology.num_ranks
    hops: dict[int, list[int]] = {}
    for source, target, chunk in zip(
        found.src.tolist(), found.dst.tolist(), found.chunk.tolist(), strict=True
    ):
        hops.setdefault(chunk, [source]).append(target)
    slots: list[int] = found.chunk_slot.tolist()
    shares: list[int] = found.chunk_share.tolist()
    whole: dict[int, int] = {}
    for slot, share in zip(slots, shares, strict=True):
        whole[slot] = whole.get(slot, 0) + share
    parts, begun = [], dict.fromkeys(whole, 0)
    for chunk, (slot, share) in enumerate(zip(slots, shares, strict=True)):
        begin = begun[slot]
        begun[slot] += share
        if chunk in hops and slot // size != slot % size:
            parts.append(RoutedPart(tuple(hops[chunk]), begin, begin + share, whole[slot]))
    return tuple(parts)


class _RoutedHop(NamedTuple):
    """Transfer of a part's chunk from one rank to the next: rows [begin, end) of a block."""

    source: int
    target: int
    block: tuple[int, int]
    begin: int
    end: int


@dataclass
class _PlannedWork:
    """Rounds executed when waited for."""

    rounds: Sequence[Sequence[_RoutedHop]]
    rank: int
    ranks: Sequence[int]
    group: Any
    blocks: dict[tuple[int, int], torch.Tensor]
    """Blocks that this rank sends, receives or passes on, by sender and receiver."""
    started: int = 0
    """Messages that this rank sent."""

    def wait(self) -> None:
        """Execute all rounds."""
        under_way: list[list[Any]] = []
        for hops in self.rounds:
            if len(under_way) > 1:
                for work in under_way.pop(0):
                    work.wait()
            operations = []
            for hop in hops:
                if self.rank not in (hop.source, hop.target):
                    continue
                sends = hop.source == self.rank
                peer = self.ranks[hop.target if sends else hop.source]
                part = self.blocks[hop.block][hop.begin : hop.end]
                operations.append(dist.P2POp(dist.isend if sends else dist.irecv, part, peer, self.group))
                self.started += sends
            under_way.append(list(dist.batch_isend_irecv(operations)) if operations else [])
        for works in under_way:
            for work in works:
                work.wait()


class PlannedExchange:
    """Planned exchanges: ``schedule(policy="lina", topology=...)``, or ``DirectExchanges`` with it.

    Args:
        topology: The network: a name of a preset, a file or a topology, with a rank for each rank of the group.
        pieces: Pieces of what goes through other ranks.
        least_bytes: Exchanges of which no block has as many bytes go directly.

    Raises:
        InputError: If the topology has another number of ranks than a group.
    """

    def __init__(self, topology: Any, *, pieces: int = 4, least_bytes: int = 4096) -> None:
        self._topology = topology if isinstance(topology, Topology) else load(topology)
        self._pieces, self._least_bytes = pieces, least_bytes
        self._plans: OrderedDict[tuple[tuple[int, ...], ...], tuple[RoutedPart, ...]] = OrderedDict()
        self.routes: tuple[RoutedPart, ...] = ()  # What was planned last
        self.planned = 0  # How many plans were made

    def __call__(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        received: Sequence[int],
        sent: Sequence[int],
        group: Any,
    ) -> Any:
        """Start an exchange, executed when waited for."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        if size != self._topology.num_ranks:
            raise InputError(
                f"expected a topology of {size} ranks, as exchange tokens, found {self._topology.num_ranks}: give the "
                "network of these ranks."
            )
        own = torch.tensor(list(sent), device=given.device)
        rows = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(rows, own, group=group)
        matrix = torch.stack(rows).tolist()
        row_bytes = math.prod(given.shape[1:]) * given.element_size()
        most = max(matrix[i][j] for i in range(size) for j in range(size) if i != j)
        if most * row_bytes < max(1, self._least_bytes):
            return all_to_all(output, given, received, sent, group)
        parts = self._planned(quantised(matrix), group)
        blocks = {(rank, to): part for to, part in enumerate(torch.split(given, list(sent)))}
        came = torch.split(output, list(received))
        with torch.no_grad():
            came[rank].copy_(blocks[rank, rank])
        for source, part in enumerate(came):
            if source != rank:
                blocks[source, rank] = part
        rounds = _rounds(parts, matrix, self._pieces)
        for hop in (hop for hops in rounds for hop in hops):
            if rank in (hop.source, hop.target) and hop.block not in blocks:
                source, target = hop.block
                blocks[hop.block] = given.new_empty((matrix[source][target], *given.shape[1:]))
        return _PlannedWork(rounds, rank, dist.get_process_group_ranks(group), group, blocks)

    def _planned(self, demands: tuple[tuple[int, ...], ...], group: Any) -> tuple[RoutedPart, ...]:
        """Routes for a traffic matrix, planned by rank 0."""
        found = self._plans.get(demands)
        if found is None:
            told = broadcast_from_first(
                lambda: planned_routes(self._topology, demands),
                first=dist.get_process_group_ranks(group)[0],
                group=group,
            )
            found = tuple(RoutedPart(*part) for part in told)
            self.planned += 1
            self._plans[demands] = found
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(demands)
        self.routes = found
        return found


def _rounds(
    parts: Sequence[RoutedPart], matrix: Sequence[Sequence[int]], pieces: int
) -> list[list[_RoutedHop]]:
    """Transfers of each round, in one order on all ranks."""
    longest = max(len(part.ranks) for part in parts) - 1
    count = pieces if longest > 1 else 1
    rounds: list[list[_RoutedHop]] = [[] for _ in range(count + 2 * (longest - 1))]
    for part in parts:
        block = (part.ranks[0], part.ranks[-1])
        rows = matrix[block[0]][block[1]]
        first, last = (rows * edge // part.whole for edge in (part.begin, part.end))
        for piece in range(count):
            begin, end = (first + (last - first) * edge // count for edge in (piece, piece + 1))
            if begin == end:
                continue
            for hop in range(len(part.ranks) - 1):
                rounds[piece + 2 * hop].append(
                    _RoutedHop(part.ranks[hop], part.ranks[hop + 1], block, begin, end)
                )
    return rounds
