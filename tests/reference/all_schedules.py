"""Every schedule of a collective on a network of a few ranks, one by one, for the simulator to time.

A schedule of a collective that copies is an order of sends, each of a chunk from a rank that has it to one that lacks
it, along some path through switches; one that adds is such an order backwards. A schedule of an all-reduce is a row of
steps, each a set of sends of what ranks held before it, that brings every rank the sum. All of them are enumerated but
those in which something is sent that its receiver has. Numbers grow fast: three ranks, or four with one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology

Path = tuple[int, ...]

TURNED = {Collective.REDUCE: Collective.BROADCAST, Collective.REDUCE_SCATTER: Collective.ALL_GATHER}


class Send(NamedTuple):
    chunk: int
    path: Path  # Nodes, of which the first and the last are ranks
    step: int = -1
    op: Op = Op.COPY


def paths_of(topology: Topology) -> dict[tuple[int, int], list[Path]]:
    """All paths between two ranks that pass through switches alone, by their ranks."""
    after: dict[int, list[int]] = {}
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        after.setdefault(a, []).append(b)
    rank = topology.rank.tolist()
    found: dict[tuple[int, int], list[Path]] = {}

    def grow(path: Path) -> None:
        for node in after.get(path[-1], ()):
            if node in path:
                continue
            if rank[node] >= 0:
                found.setdefault((rank[path[0]], rank[node]), []).append((*path, node))
            else:
                grow((*path, node))

    for node in topology.rank_nodes.tolist():
        grow((node,))
    return found


def every_schedule(problem: Problem, *, chunks: int = 1) -> Iterator[Schedule]:
    """All schedules of a problem in which each slot is cut into so many equal chunks."""
    collective = problem.collective
    if collective in TURNED:
        turned = Problem(problem.topology.transposed(), TURNED[collective], root=problem.root)
        for sends in copying(turned, chunks):
            backwards = [Send(chunk, path[::-1], -1, Op.REDUCE) for chunk, path, *_ in reversed(sends)]
            yield made(problem, chunks, backwards)
    elif collective is Collective.ALL_REDUCE:
        for sends in adding_everywhere(problem.topology):
            yield made(problem, chunks, sends)
    else:
        for sends in copying(problem, chunks):
            yield made(problem, chunks, sends)


def copying(problem: Problem, chunks: int) -> Iterator[list[Send]]:
    """Orders of sends of a collective that copies, up to those that differ in the order of unrelated sends only."""
    ranks = range(problem.topology.num_ranks)
    paths = paths_of(problem.topology)
    match problem.collective:
        case Collective.BROADCAST:
            ends = [({problem.root or 0}, {*ranks})]
        case Collective.ALL_GATHER:
            ends = [({r}, {*ranks}) for r in ranks]
        case Collective.ALL_TO_ALL:
            ends = [({a}, {b}) for a in ranks for b in ranks]
        case _:
            raise AssertionError(problem.collective)
    ends = [each for each in ends for _ in range(chunks)]
    wanted = [need for _, need in ends]

    def grow(held: list[set[int]], sends: list[Send]) -> Iterator[list[Send]]:
        if all(need <= has for need, has in zip(wanted, held, strict=True)):
            yield sends
            return
        for chunk, has in enumerate(held):
            if wanted[chunk] <= has:
                continue
            for (src, dst), ways in paths.items():
                if src not in has or dst in has:
                    continue
                for path in ways:
                    after = Send(chunk, path)
                    if sends and after < sends[-1] and unrelated(after, sends[-1]):
                        continue
                    held[chunk] = has | {dst}
                    yield from grow(held, [*sends, after])
                    held[chunk] = has

    yield from grow([set(has) for has, _ in ends], [])


def unrelated(one: Send, other: Send) -> bool:
    """Whether two sends have no node in common, so that their order makes no difference."""
    return not {*one.path} & {*other.path}


def adding_everywhere(topology: Topology) -> Iterator[list[Send]]:
    """Steps of an all-reduce of one chunk, on the first path between each two ranks."""
    ranks = topology.num_ranks
    whole = (1 << ranks) - 1
    pairs = {pair: ways[0] for pair, ways in paths_of(topology).items()}

    def outcomes(known: tuple[int, ...], sent: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
        """What ranks know afterwards; None where something is counted twice, or sent in vain."""
        after = list(known)
        for rank in range(ranks):
            come = [known[a] for a, b in sent if b == rank]
            if len(come) == 1 and come[0] != known[rank] and come[0] & known[rank] == known[rank]:
                after[rank] = come[0]  # a copy of more than it has
            else:
                for each in come:
                    if each & after[rank]:
                        return None
                    after[rank] |= each
        return tuple(after)

    def grow(known: tuple[int, ...], sends: list[Send], step: int) -> Iterator[list[Send]]:
        if all(each == whole for each in known):
            yield sends
            return
        if step == 2 * (ranks - 1):
            return
        for count in range(1, len(pairs) + 1):
            for sent in combinations(pairs, count):
                after = outcomes(known, sent)
                if after is None:
                    continue
                more = [
                    Send(0, pairs[a, b], step, Op.REDUCE if not known[a] & known[b] else Op.COPY)
                    for a, b in sent
                ]
                yield from grow(after, [*sends, *more], step + 1)

    yield from grow(tuple(1 << r for r in range(ranks)), [], 0)


def made(problem: Problem, chunks: int, sends: Sequence[Send]) -> Schedule:
    """The schedule of some sends; all chunks of an all-reduce go the same way, one after the other."""
    topology, collective = problem.topology, problem.collective
    ranks = topology.num_ranks
    rank = topology.rank.tolist()
    slots = {
        Collective.BROADCAST: 1,
        Collective.REDUCE: 1,
        Collective.ALL_TO_ALL: ranks * ranks,
    }.get(collective, ranks)
    if collective is Collective.ALL_REDUCE:
        every = product(range(1 + max(s.step for s in sends)), range(slots * chunks)) if sends else ()
        sends = [s._replace(chunk=c) for step, c in every for s in sends if s.step == step]
    paths = list(dict.fromkeys(s.path for s in sends))
    return Schedule(
        topology=topology,
        collective=collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=np.ones(slots, dtype=np.int64),
        chunk_slot=np.repeat(np.arange(slots, dtype=np.int32), chunks),
        chunk_share=np.ones(slots * chunks, dtype=np.int64),
        src=np.array([rank[s.path[0]] for s in sends], dtype=np.int32),
        dst=np.array([rank[s.path[-1]] for s in sends], dtype=np.int32),
        chunk=np.array([s.chunk for s in sends], dtype=np.int32),
        op=np.array([s.op for s in sends], dtype=np.int8),
        path=np.array([paths.index(s.path) for s in sends], dtype=np.int32),
        step=np.array([s.step for s in sends], dtype=np.int32),
        after_start=np.zeros(len(sends) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.cumsum([0, *map(len, paths)], dtype=np.int64),
        path_nodes=np.array([node for path in paths for node in path], dtype=np.int32),
    )
