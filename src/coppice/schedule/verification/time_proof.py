"""Check the certificate of a bound on time, with distances, rates and exact arithmetic.

Nothing here knows how a bound was found.

**Moving cuts.** Every node v has a label p(v) between 0 and T; the node that needs the data has T. Before p(v) the node
is on its side, from then on on the side of those that have the data at time 0, which have label 0. A byte of theirs
enters some link e = (x, y) from p(x) on and comes out of it before p(y), so all of them need

    bytes of the nodes with label 0  <=  sum over e of b(e) max(0, p(y) - p(x) - a(e))

in a schedule of time T. A schedule of less time is one of any time up to T as well. So bytes that exceed the right side
at T are impossible in T and less; and bytes that equal it are impossible in less than T if the right side is less in a
little less time, when the labels that are counted from the end move with it: if the links that are open longer with
more time have a higher rate than those that are open less long.

**Prices.** A witness of a bound on the rate gives links prices, and says what a byte of the message pays at least. Link
e = (x, y) is of use between the distance of x from the nearest rank and T less the distance from y to the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.bounds.result import CutFamily, LinkLengths
from coppice.bounds.sizes.arrival import MovingCut
from coppice.bounds.sizes.least import TimeBound
from coppice.bounds.sizes.timed import TimedNetwork
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.schedule.verification.proof import link_prices


def check_time_bound(bound: TimeBound) -> None:
    """Check a bound on time by its certificate.

    Raises:
        CheckError: If the certificate does not prove the time; it says which inequality fails.

    Examples:
        >>> from coppice.bounds.sizes.least import TimeBounds
        >>> from coppice.bounds.sizes.timed import MessageCosts
        >>> from coppice.topology.presets import preset
        >>> ring = Problem(preset("ring", gpus=4, gb_per_s=10), "all_gather")
        >>> check_time_bound(TimeBounds(ring, MessageCosts(message_us=1)).least(1000))
    """
    problem = bound.problem
    check_problem(problem)
    network = TimedNetwork.of(problem.topology, bound.costs)
    start = Fraction(str(bound.costs.start_us))
    if bound.cut is not None and bound.sink is not None:
        proved = bound.cut.time_ns
        if bound.turned:
            network = network.reversed()
        _check_cut(problem, network, bound.size_bytes, bound.cut, bound.sink, turned=bound.turned)
    elif bound.priced is not None:
        proved = (bound.time_us - start) * 1000
        _check_prices(problem, network, bound.size_bytes, bound.priced.witness, proved)
    else:
        proved = Fraction(0)
    if bound.time_us > (proved / 1000 + start if proved else 0):
        raise CheckError(
            f"a time of {float(bound.time_us):g} us is claimed for {bound.size_bytes} bytes, and the certificate is of "
            f"{float(proved / 1000):g} us after a start of {float(start):g} us."
        )


def _check_cut(
    problem: Problem, network: TimedNetwork, size_bytes: int, cut: MovingCut, sink: int, *, turned: bool
) -> None:
    time = cut.time_ns * network.units
    label = [
        time - offset if from_end else Fraction(offset)
        for offset, from_end in zip(cut.offset.tolist(), cut.from_end.tolist(), strict=True)
    ]
    names = problem.topology.node_ids
    if len(label) != network.num_nodes or min(label) < 0 or max(label) > time or label[sink] != time:
        raise CheckError(
            f"labels must be of all {network.num_nodes} nodes, between 0 and the time, which {names[sink]} has."
        )
    early = [v for v, each in enumerate(label) if not each]
    held = _held(problem, size_bytes, sink, early, turned=turned)
    moves = [
        each > 0 and (from_end or each == time)
        for each, from_end in zip(label, cut.from_end.tolist(), strict=True)
    ]
    room, rising = Fraction(0), 0
    scale, burst = network.scale / network.units, network.burst_bytes
    for tail, head, capacity, latency in zip(
        network.tail.tolist(),
        network.head.tolist(),
        network.capacity.tolist(),
        network.latency.tolist(),
        strict=True,
    ):
        width = label[head] - label[tail] - latency
        if width > 0:
            room += capacity * scale * width + burst
        if width > 0 or (width == 0 and moves[tail]):  # the latter opens with less time
            rising += capacity * (moves[head] - moves[tail])
    if held < room or (held == room and held and rising <= 0) or (not held and not early):
        raise CheckError(
            f"{float(held):g} bytes must reach {names[sink]}, and the links of the cut let through {float(room):g} "
            f"in {float(cut.time_ns / 1000):g} us: this proves nothing."
        )


def _held(problem: Problem, size_bytes: int, sink: int, early: list[int], *, turned: bool) -> Fraction:
    """Bytes that nodes with label 0 have for the sink alone (turned round: the sink for them)."""
    nodes = problem.topology.rank_nodes.tolist()
    rank = {node: i for i, node in enumerate(nodes)}
    if sink not in rank:
        raise CheckError(f"{problem.topology.node_ids[sink]} has no rank, so it needs nothing.")
    early = [node for node in early if node in rank and node != sink]
    collective, part = problem.collective, size_bytes / problem.shards
    root = None if problem.root is None else nodes[problem.root]
    directions = {
        Collective.REDUCE_SCATTER: (True,),
        Collective.REDUCE: (True,),
        Collective.SCATTER: (True,),
        Collective.ALL_TO_ALL: (False, True),
    }
    if turned not in directions.get(collective, (False,)):
        raise CheckError(f"this cut leads the wrong way for {collective}.")
    if collective in (Collective.ALL_REDUCE, Collective.BARRIER):
        return Fraction(size_bytes) if early else Fraction(0)  # of one of them: others may be added to it
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        return Fraction(size_bytes) if root in early else Fraction(0)
    if collective in (Collective.GATHER, Collective.SCATTER):
        return part * len(early) if sink == root else Fraction(0)
    if collective is Collective.ALL_TO_ALL and problem.demands is not None:
        at = rank[sink]
        sizes = [problem.demands[at][rank[u]] if turned else problem.demands[rank[u]][at] for u in early]
        return part * sum(sizes)
    weights = problem.weights or (1,) * len(nodes)
    return part * sum(weights[rank[node]] for node in early)


def _check_prices(
    problem: Problem,
    network: TimedNetwork,
    size_bytes: int,
    witness: CutFamily | LinkLengths,
    time_ns: Fraction,
) -> None:
    price, work = link_prices(problem, witness)
    ranks = problem.topology.rank_nodes.tolist()
    into = _distances(network.tail.tolist(), network.head.tolist(), network.latency.tolist(), ranks)
    out = _distances(network.head.tolist(), network.tail.tolist(), network.latency.tolist(), ranks)
    time, paid, open_rate = time_ns * network.units, Fraction(0), 0
    for e, each in enumerate(price):
        width = time - into[int(network.tail[e])] - int(network.latency[e]) - out[int(network.head[e])]
        if each and width > 0:
            rate = each * int(network.capacity[e])
            paid += rate * width * network.scale / network.units + each * network.burst_bytes
            open_rate += rate
    due = work * size_bytes
    if paid > due or (paid == due and not open_rate and time):
        raise CheckError(
            f"{size_bytes} bytes pay {float(due):g}, and the links take {float(paid):g} in "
            f"{float(time_ns / 1000):g} us: this proves nothing."
        )


def _distances(tail: list[int], head: list[int], length: list[int], sources: list[int]) -> Mapping[int, int]:
    """Least length from a source to each node (Bellman and Ford)."""
    found = dict.fromkeys(sources, 0)
    links = list(zip(tail, head, length, strict=True))
    changed = True
    while changed:
        changed = False
        for a, b, more in links:
            if a in found and found[a] + more < found.get(b, found[a] + more + 1):
                found[b] = found[a] + more
                changed = True
    return found
