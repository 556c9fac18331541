"""Small schedules, written row by row, for the simulator's tests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Link, Node, NodeKind, Topology

Row = tuple[int, int, int, Op, tuple[int, ...], int]
"""Sending rank, receiving rank, chunk, operation, path (empty: default route), step."""


def network(gpus: int, switches: int, links: Sequence[tuple[int, int, float, float]]) -> Topology:
    """Nodes 0 .. gpus - 1 are ranks, switches follow; links (from, to, GB/s, latency in us) are one-way."""
    nodes = [Node(id=f"gpu{i}") for i in range(gpus)]
    nodes += [Node(id=f"switch{i}", kind=NodeKind.SWITCH) for i in range(switches)]
    described = (
        Link(src=nodes[a].id, dst=nodes[b].id, gb_per_s=Fraction(rate), latency_us=latency, duplex=False)
        for a, b, rate, latency in links
    )
    return Topology.of("test", nodes, described)


def line(rates: Sequence[float], latencies: Sequence[float]) -> Topology:
    """Two GPUs with switches in a line between them."""
    inner = len(rates) - 1
    nodes = [0, *range(2, 2 + inner), 1]
    hops = zip(nodes[:-1], nodes[1:], rates, latencies, strict=True)
    return network(2, inner, list(hops))


def rows(
    topology: Topology,
    table: Sequence[Row],
    *,
    shares: Sequence[int] = (1,),
    after: Sequence[tuple[int, int]] = (),
    collective: Collective = Collective.BROADCAST,
) -> Schedule:
    """A schedule of one slot in chunks of the given shares; ``after`` holds (row, earlier row)."""
    paths = list(dict.fromkeys(row[4] for row in table if row[4]))
    number = {path: i for i, path in enumerate(paths)} | {(): -1}
    waits: list[list[int]] = [[] for _ in table]
    for row, earlier in after:
        waits[row].append(earlier)

    def column(values: Sequence[int], kind: type = np.int32) -> np.ndarray:
        return np.array(values, dtype=kind)

    return Schedule(
        topology=topology,
        collective=collective,
        root=0 if collective.rooted else -1,
        slot_weight=np.ones(1, dtype=np.int64),
        chunk_slot=np.zeros(len(shares), dtype=np.int32),
        chunk_share=column(shares, np.int64),
        src=column([row[0] for row in table]),
        dst=column([row[1] for row in table]),
        chunk=column([row[2] for row in table]),
        op=column([row[3] for row in table], np.int8),
        path=column([number[row[4]] for row in table]),
        step=column([row[5] for row in table]),
        after_start=np.cumsum([0, *map(len, waits)]).astype(np.int64),
        after=column([earlier for row in waits for earlier in row]),
        path_start=np.cumsum([0, *map(len, paths)]).astype(np.int64),
        path_nodes=column([node for path in paths for node in path]),
    )
