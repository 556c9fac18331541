"""NIC of a rank's channel: the runtimes' rule, and channels that preserve a plan's paths.

No file names a NIC. RCCL, and the NCCL that msccl-executor-nccl is made of, give each connection to another host the
NIC that its channel number picks among the nearest of the GPU: of n NICs that are nearest to g GPUs, the GPU at place
i of these has s = ceil(n / g), and channel c of it takes NIC (m(i) + c mod s) mod n, where m(i) is i with its bits in
reverse order if n is a power of two, else i. (PXN can replace it by the NIC of the GPU with the peer's number.)

Where a topology has no NICs, the links of a GPU to switches outside its host count as such.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.program.buffer_layout import in_sub_chunks
from coppice.program.dialects.thread_blocks.program import Program
from coppice.schedule.schedule import Schedule
from coppice.topology.model import NodeKind, Topology

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Exits:
    """NIC requirements of the transfers' paths."""

    # Channel modulo `share` whose NIC the path leaves by; -1 where no channel leads to it, or none is needed
    turn: _Ints
    share: _Ints  # NICs that the sender's channels take in turn, 1 or more

    def where(self, mask: NDArray[np.bool_]) -> Exits:
        """Rows of a mask."""
        return Exits(self.turn[mask], self.share[mask])


@dataclass(frozen=True, eq=False)
class Nics:
    """The NICs of the ranks of a topology.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-a100", boxes=2)
        >>> [box.node_ids[nic] for nic in Nics(box).of(3)]
        ['box0/nic3']
    """

    topology: Topology

    def of(self, rank: int) -> tuple[int, ...]:
        """NICs of a rank in the order of channels 0, 1, 2 .."""
        return self._taken[rank]

    @cached_property
    def _taken(self) -> tuple[tuple[int, ...], ...]:
        nearest = [self._nearest(node) for node in self.topology.rank_nodes.tolist()]
        sharing: dict[int, list[int]] = {}
        for rank, nics in enumerate(nearest):
            for nic in nics:
                sharing.setdefault(nic, []).append(rank)
        found: list[tuple[int, ...]] = []
        for rank, nics in enumerate(nearest):
            if not nics:
                found.append(())
                continue
            own = self.topology.kind[nics[0]] == NodeKind.NIC
            near = sharing[nics[0]] if own else [rank]  # a link to a switch outside is a port of its own
            number = len(nics)
            place = near.index(rank)
            start = _mirrored(place, number) if number & (number - 1) == 0 else place
            share = -(-number // len(near))
            found.append(tuple(nics[(start + turn) % number] for turn in range(share)))
        return tuple(found)

    def after(self, node: int) -> list[int]:
        """Successors of a node, ascending."""
        return self._next[node]

    @cached_property
    def _next(self) -> list[list[int]]:
        topology = self.topology
        after: list[list[int]] = [[] for _ in range(topology.num_nodes)]
        for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
            after[src].append(dst)
        return [sorted(each) for each in after]

    def _nearest(self, gpu: int) -> list[int]:
        """NICs of its host with the fewest hops from a GPU, not through other GPUs; else switches outside its host."""
        topology = self.topology
        host, kind = topology.host, topology.kind
        seen, front = {gpu}, [gpu]
        while front:
            found = sorted(node for node in front if kind[node] == NodeKind.NIC)
            if found:
                return found
            front = sorted(
                {
                    after
                    for node in front
                    for after in self._next[node]
                    if after not in seen and host[after] == host[gpu] and kind[after] != NodeKind.GPU
                }
            )
            seen.update(front)
        return sorted(
            {
                after
                for after in self._next[gpu]
                if kind[after] == NodeKind.SWITCH and host[gpu] >= 0 and host[after] != host[gpu]
            }
        )


class NicRoutes:
    """Paths between ranks through the NIC of a channel.

    Args:
        topology: Where the ranks are.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._nics = Nics(topology)
        self._known: dict[tuple[int, int, int], tuple[int, ...] | None] = {}

    def path(self, src: int, dst: int, channel: int) -> tuple[int, ...] | None:
        """Shortest path through the channel's NIC, not through other GPUs.

        Returns:
            Its nodes; None where the receiver is on the same host, the sender's channels all lead to one NIC, or
            nothing leads there from it.
        """
        mine = self._nics.of(src)
        gpus, host = self._topology.rank_nodes, self._topology.host
        first, last = int(gpus[src]), int(gpus[dst])
        if len(mine) < 2 or host[first] == host[last]:
            return None
        key = (src, dst, channel % len(mine))
        if key not in self._known:
            nic = mine[key[2]]
            to_nic = self._fewest(first, nic, without=())
            onwards = self._fewest(nic, last, without=to_nic[:-1])
            self._known[key] = (*to_nic, *onwards[1:]) if to_nic and onwards else None
        return self._known[key]

    def _fewest(self, start: int, goal: int, *, without: Collection[int]) -> tuple[int, ...]:
        """The path with the fewest hops through switches and NICs; empty where there is none."""
        kind = self._topology.kind
        before = {start: start, **dict.fromkeys(without, -1)}
        front = [start]
        while front and goal not in before:
            reached = []
            for node in front:
                for after in self._nics.after(node):
                    if after not in before and (after == goal or kind[after] != NodeKind.GPU):
                        before[after] = node
                        reached.append(after)
            front = reached
        if goal not in before:
            return ()
        path = [goal]
        while path[-1] != start:
            path.append(before[path[-1]])
        return tuple(reversed(path))


def _mirrored(number: int, below: int) -> int:
    """A number with its bits in reverse order, of as many bits as numbers below the power of two ``below`` have."""
    bits = below.bit_length() - 1
    return int(f"{number % below:0{bits}b}"[::-1], 2) if bits else 0


def exits_of(schedule: Schedule, nics: Nics) -> Exits | None:
    """NIC requirement of each path; None where no rank has a choice.

    Returns:
        One row for each of the schedule's paths, and a last one, which asks for nothing.
    """
    if max((len(nics.of(rank)) for rank in range(schedule.topology.num_ranks)), default=0) < 2:
        return None
    rank_of = schedule.topology.rank
    turn, share = [], []
    bounds = schedule.path_start.tolist()
    nodes = schedule.path_nodes.tolist()
    for first, last in pairwise(bounds):
        mine = nics.of(int(rank_of[nodes[first]]))
        passed = [node for node in nodes[first + 1 : last] if node in mine]
        turn.append(mine.index(passed[0]) if passed else -1)
        share.append(max(len(mine), 1))
    return Exits(np.array([*turn, -1], dtype=np.int64), np.array([*share, 1], dtype=np.int64))


def to_nics(run: _Ints, color: _Ints, exits: Exits, channels: int) -> _Ints | None:
    """Channels whose NICs match the paths of all transfers.

    The transfers of a run stay together on a channel of the NIC that most of them take; those that leave by another
    NIC take a channel next to it.

    Args:
        color: Its channel so far, the same for all of a run.

    Returns:
        The channels, or None where there are fewer channels than NICs.
    """
    widest = int(exits.share.max(initial=1))
    if channels < widest:
        return None
    room = channels // widest
    asks = (exits.turn >= 0) & (exits.share > 1)
    runs = int(run.max(initial=0)) + 1
    votes = np.bincount(run[asks] * widest + exits.turn[asks], minlength=runs * widest).reshape(runs, widest)
    asked = votes.any(axis=1)
    wish = np.where(asked, votes.argmax(axis=1), -1)
    chosen = np.zeros(runs, dtype=np.int64)
    chosen[run] = color
    for turn in range(widest):  # runs of a NIC take turns over its channels
        mine = np.flatnonzero(wish == turn)
        chosen[mine] = np.arange(len(mine)) % room * widest + turn
    found = chosen[run]
    return np.where(asks, found - found % exits.share + np.where(asks, exits.turn, 0), found)


def kept_share(program: Program, schedule: Schedule) -> Fraction | None:
    """Share of the plan's NIC traffic that the program sends through the same NICs.

    Returns:
        1 where every NIC carries what the plan says; None where no path of the plan leaves by a NIC of a choice.
    """
    topology = schedule.topology
    nics = Nics(topology)
    exits = exits_of(schedule, nics)
    if exits is None:
        return None
    units = in_sub_chunks(schedule)
    asks = (exits.turn >= 0) & (exits.share > 1)
    rows = np.flatnonzero(asks[schedule.path])
    if not len(rows):
        return None
    widest = int(exits.share.max())
    planned = np.zeros((topology.num_ranks, widest), dtype=np.int64)
    np.add.at(
        planned, (schedule.src[rows], exits.turn[schedule.path[rows]]), units.of_chunk[schedule.chunk[rows]]
    )
    pairs = set(zip(schedule.src[rows].tolist(), schedule.dst[rows].tolist(), strict=True))
    sent = np.zeros_like(planned)
    steps = np.flatnonzero(program.sends)
    block = program.step_block[steps]
    src, dst, channel = program.block_rank[block], program.block_send[block], program.block_channel[block]
    share = np.array([max(len(nics.of(rank)), 1) for rank in range(topology.num_ranks)])
    leaves = np.array(
        [pair in pairs for pair in zip(src.tolist(), dst.tolist(), strict=True)], dtype=np.bool_
    )
    np.add.at(sent, (src[leaves], channel[leaves] % share[src[leaves]]), program.count[steps[leaves]])
    whole = Fraction(program.num_chunks, units.num_chunks)
    same = sum(
        min(Fraction(one) * whole, Fraction(other))
        for one, other in zip(planned.reshape(-1).tolist(), sent.reshape(-1).tolist(), strict=True)
    )
    return Fraction(same) / (int(planned.sum()) * whole)
