"""Least times by linear programs over a network expanded over steps of time; slow, and unlike what they check."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np


@dataclass(frozen=True)
class StepLink:
    """A link that takes `rate` bytes in a step, which are at its head `latency` steps later."""

    tail: int
    head: int
    rate: int
    latency: int


def feasible(
    nodes: int,
    links: Sequence[StepLink],
    needs: Mapping[int, Mapping[int, int]],
    steps: int,
    *,
    plain: Collection[int] = (),
) -> bool:
    """Whether each sink can have, within so many steps, what others hold.

    For every sink and source there is a flow over time; bytes of one source are sent once over a link for all sinks,
    so a link carries the largest of their flows, and the sum of that over the sources. Nobody sends bytes of a source
    before it can have some.

    Args:
        needs: For each sink, bytes of each source.
        plain: Nodes that do not copy: no more bytes of a source have left one, at any time, than have come.
    """
    if not steps:
        return not any(size for held in needs.values() for size in held.values())
    program = highspy.Highs()
    program.silent()
    inf = highspy.kHighsInf
    columns = 0

    def column(upper: float) -> int:
        nonlocal columns
        program.addVar(0.0, upper)
        columns += 1
        return columns - 1

    def row(lower: float, upper: float, terms: Sequence[tuple[int, float]]) -> None:
        program.addRow(
            lower,
            upper,
            len(terms),
            np.array([each for each, _ in terms], dtype=np.int32),
            np.array([value for _, value in terms]),
        )

    sources = sorted({source for held in needs.values() for source, size in held.items() if size})
    begin = {source: distances(nodes, links, source) for source in sources}
    sent = {
        (source, e, t): column(link.rate)
        for source in sources
        for e, link in enumerate(links)
        for t in range(begin[source][link.tail], steps - link.latency)
    }
    for e, link in enumerate(links):
        for t in range(steps - link.latency):
            row(
                -inf,
                link.rate,
                [(sent[source, e, t], 1.0) for source in sources if (source, e, t) in sent],
            )
    for v in plain:
        for source in sources:
            for until in range(steps):
                gone = [
                    (sent[source, e, t], 1.0)
                    for s, e, t in sent
                    if s == source and links[e].tail == v and t <= until
                ]
                come = [
                    (sent[source, e, t], -1.0)
                    for s, e, t in sent
                    if s == source and links[e].head == v and t + links[e].latency <= until
                ]
                row(-inf, 0.0, gone + come)
    for sink, held in needs.items():
        for source, size in held.items():
            if not size or source == sink:
                continue
            flow = {(e, t): column(inf) for (each, e, t) in sent if each == source}
            kept = {(v, t): column(inf) for v in range(nodes) for t in range(steps - 1)}
            for (e, t), each in flow.items():
                row(0.0, inf, [(sent[source, e, t], 1.0), (each, -1.0)])
            for v in range(nodes):
                for t in range(steps):
                    terms = [
                        (flow[e, t], -1.0)
                        for e, link in enumerate(links)
                        if link.tail == v and (e, t) in flow
                    ]
                    terms += [
                        (flow[e, t - link.latency], 1.0)
                        for e, link in enumerate(links)
                        if link.head == v and (e, t - link.latency) in flow
                    ]
                    if t:
                        terms.append((kept[v, t - 1], 1.0))
                    if t < steps - 1:
                        terms.append((kept[v, t], -1.0))
                    given = -float(size) if v == source and t == 0 else 0.0
                    taken = float(size) if v == sink and t == steps - 1 else 0.0
                    row(given + taken, given + taken, terms)
    program.run()
    return bool(program.getModelStatus() == highspy.HighsModelStatus.kOptimal)


def distances(nodes: int, links: Sequence[StepLink], source: int) -> list[int]:
    """Steps until each node can have something of a source; beyond all steps where it never can."""
    found = [0 if v == source else 10**9 for v in range(nodes)]
    for _ in range(nodes):
        for link in links:
            found[link.head] = min(found[link.head], found[link.tail] + link.latency)
    return found


def least_steps(
    nodes: int,
    links: Sequence[StepLink],
    needs: Mapping[int, Mapping[int, int]],
    *,
    plain: Collection[int] = (),
    most: int = 200,
) -> int:
    """The least number of steps."""
    low = 0
    high = 1
    while not feasible(nodes, links, needs, high, plain=plain):
        low, high = high, 2 * high
        assert high <= most, "no schedule within the steps"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(nodes, links, needs, middle, plain=plain) else (middle, high)
    return high if low or not feasible(nodes, links, needs, 0, plain=plain) else 0
