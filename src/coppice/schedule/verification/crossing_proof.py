"""Check a bound on time from messages between boxes, with distances, rates and exact arithmetic.

Nothing here knows how a bound was found.

**One rank's data.** What a box receives of it comes last with a message from a rank of another box, which has it after
its distance, leaves the box by links of that box, and is a different one for each byte and box, as switches do not
copy. So all that the other boxes need is bounded by a moving cut of the turned network in which ways out of boxes begin
at one node: behind that, for every rank, copies of the links of its box that lead out, but to no rank of the box.

**Data of all boxes.** Each box has a rank whose data are looked at, its source, and one that has to receive something
of them, its sink. A message that leaves a box takes one of its *exits*: a link out of it, or, where ranks send less
than their links take, the link through which one of its ranks sends anything. It enters an exit (x, y) after the
distance of x from what it brings, and so early that from y the sink of another box can be reached by T. Switches do not
copy, so it crosses for one box. It brings something of one box alone, its sender's, or of others as well, which has
come to x before. A box that no message of the second kind reaches needs k - 1 of the first kind: counted 1 / (k - 1)
and 1, they come to k for each byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.problem import Problem
from coppice.bounds.sizes.timed import TimedNetwork
from coppice.collectives import Collective
from coppice.errors import CheckError

_FOR_ONE = (Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE)


def check_crossings(
    problem: Problem,
    network: TimedNetwork,
    size_bytes: Fraction,
    time_ns: Fraction,
    *,
    ports: bool,
    sources: Sequence[int],
    sinks: Sequence[int],
) -> None:
    """Check that messages between boxes cannot be fewer or sooner.

    Args:
        network: What messages cost.
        size_bytes: The message, with shares in whole bytes.
        ports: Exits are the links through which ranks send anything.
        sources: Nodes of the ranks whose data are looked at, one of each box.
        sinks: Nodes of the ranks that have to receive something of them, likewise.

    Raises:
        CheckError: If the certificate does not prove the time.
    """
    box = _boxes(problem, network)
    _check_ends(problem, box, sources=sources, sinks=sinks)
    if network.burst_bytes:
        raise CheckError("links that let bursts through are not counted by crossings.")
    tails, heads = network.tail.tolist(), network.head.tolist()
    latencies = network.latency.tolist()
    links = list(zip(tails, heads, latencies, strict=True))
    on = _nearest_of_two_boxes([(b, a, units) for a, b, units in links], {node: box[node] for node in sinks})
    count = len(sources)
    due, first = count * size_bytes, Fraction(1, count - 1)
    came = _nearest_of_two_boxes(links, {node: box[node] for node in sources})
    time, paid, open_rate = time_ns * network.units, Fraction(0), False
    ranked = len(problem.topology.rank)
    for (a, b, units), capacity in zip(links, network.capacity.tolist(), strict=True):
        is_exit = a < ranked <= b if ports else box[a] >= 0 and box[b] != box[a]
        later = [far for other, far in on.get(b, {}).items() if other != box[a]]
        if not is_exit or not later or a not in came:
            continue
        ends = time - units - min(later)
        others = [far for other, far in came[a].items() if other != box[a]]
        windows = [(first, ends - min(came[a].values()))]
        if others:
            windows.append((1 - first, ends - min(others)))
        for share, width in windows:
            if width > 0 and share:
                paid += share * capacity * width * network.scale / network.units
                open_rate = True
    if paid > due or (paid == due and not open_rate and time):
        raise CheckError(
            f"{float(due):g} bytes have to cross between boxes, and {float(paid):g} can in "
            f"{float(time_ns / 1000):g} us: this proves nothing."
        )


def _check_ends(
    problem: Problem,
    box: Sequence[int],
    *,
    sources: Sequence[int],
    sinks: Sequence[int],
) -> None:
    collective, ranks = problem.collective, problem.topology.rank_nodes.tolist()
    if collective is not Collective.ALL_REDUCE:
        raise CheckError(f"crossings for all boxes are those of an all-reduce, found {collective}.")
    wanted = sorted({box[node] for node in ranks})
    for chosen in (sources, sinks):
        if not {*chosen} <= {*ranks} or sorted(box[node] for node in chosen) != wanted:
            raise CheckError("each box needs one rank that stands for it, found others.")
    _check_boxes(wanted)


def _check_boxes(boxes: Sequence[int]) -> None:
    if min(boxes) < 0 or len(boxes) < 2:
        raise CheckError("crossings need two boxes or more, and all ranks in one of them.")


def joint_of_boxes(problem: Problem, network: TimedNetwork, source: int) -> TimedNetwork:
    """The turned network in which all ways out of boxes begin at one node, the last; copies of all come before it.

    Args:
        source: Node of the rank whose data all boxes need, or which needs those of all.

    Raises:
        CheckError: If there are no boxes, or ranks need different things.
    """
    if problem.collective not in _FOR_ONE:
        raise CheckError(f"crossings are not counted this way for {problem.collective}.")
    box, ranks = _boxes(problem, network), {*problem.topology.rank_nodes.tolist()}
    _check_boxes(sorted({box[node] for node in ranks}))
    columns = (network.tail, network.head, network.capacity, network.latency)
    links = list(zip(*(each.tolist() for each in columns), strict=True))
    ways = _nearest_of_two_boxes([(a, b, units) for a, b, _, units in links], {source: 0})
    rows, start = list(links), 2 * network.num_nodes
    for a, b, capacity, units in links:
        if box[a] < 0 or (b in ranks and box[b] == box[a]):
            continue
        rows.append(
            (a + network.num_nodes, b if box[b] != box[a] else b + network.num_nodes, capacity, units)
        )
    for rank in sorted(ranks & ways.keys()):
        out = sum(capacity for a, _, capacity, _ in links if a == rank)
        rows += [(start, rank + network.num_nodes, out, ways[rank][0])] if out else []
    tail, head, capacities, latency = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return replace(
        network,
        num_nodes=start + 1,
        tail=head.astype(np.int32),
        head=tail.astype(np.int32),
        capacity=capacities,
        latency=latency,
    )


def needed_by_boxes(problem: Problem, network: TimedNetwork, early: Sequence[int], source: int) -> int:
    """Boxes other than that of the source of which a rank is among some nodes."""
    box, ranks = _boxes(problem, network), {*problem.topology.rank_nodes.tolist()}
    return len({box[node] for node in early if node in ranks} - {box[source]})


def _boxes(problem: Problem, network: TimedNetwork) -> list[int]:
    """Box of each node of the network, -1 for none; ways out of ranks come behind the nodes of the topology."""
    host = problem.topology.host.tolist()
    ranks = problem.topology.rank_nodes.tolist()
    holds = {host[node] for node in ranks}
    known = [each if each in holds else -1 for each in host]
    behind = network.num_nodes - len(known)
    if behind not in (0, len(ranks)):
        raise CheckError("crossings are counted in the network of the problem, found another one.")
    return known + [known[node] for node in ranks[:behind]]


def _nearest_of_two_boxes(
    links: Sequence[tuple[int, int, int]], starts: dict[int, int]
) -> dict[int, dict[int, int]]:
    """Least lengths to each node from starts of two kinds, the nearest ones (Bellman and Ford)."""
    found = {node: {kind: 0} for node, kind in starts.items()}
    changed = True
    while changed:
        changed = False
        for a, b, units in links:
            for kind, so_far in found.get(a, {}).items():
                there = found.setdefault(b, {})
                length = so_far + units
                if kind in there:
                    better = length < there[kind]
                else:
                    better = len(there) < 2 or (length, kind) < max(
                        (far, each) for each, far in there.items()
                    )
                if better:
                    there[kind] = length
                    if len(there) > 2:
                        del there[max(there, key=lambda each: (there[each], each))]
                    changed = True
    return found
