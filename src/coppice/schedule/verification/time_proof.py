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

Several nodes need data of an all-to-all together: all of them have the label T, and what others with label 0 hold for
any of them counts.

**All ranks at once.** What a rank receives comes last from the way out of some rank, which is of use once that rank can
have anything: at once where it has a share that counts, or else after the distance from the nearest that has. So ranks
take apart into a way in and a way out, and all that they receive together is bounded by moving cuts of the turned
network, in which the ways in supply one node, from which all ways out begin. No copies are made between these: switches
must not copy. An all-reduce is a broadcast of each rank's data, every element of which all results depend on, and a
reduction to each rank: its joint cuts name that rank.

**All boxes at once.** The same for boxes as a whole, of a broadcast, a reduction or an all-reduce: messages between
boxes are bounded by when they can begin, and by what boxes can receive
(:mod:`coppice.schedule.verification.crossing_proof`).

**Whole bytes.** Shares that a size does not divide into are rounded, up or down. What counts is the largest message
whose exact shares are not above those rounded down.

**Growth.** A rank that has something begins as many messages at a time as it has workers, each of which is occupied for
a part of the time that a message takes; so the number of ranks that can have something by a time is bounded by adding
up those that any of them can have told. The same turned round in time bounds of how many ranks one can have heard.

**Prices.** A witness of a bound on the rate gives links prices, and says what a byte of the message pays at least. Link
e = (x, y) is of use between the distance of x from the nearest rank and T less the distance from y to the nearest one.
Without a witness each byte of an all-reduce is sent by ranks 2 (n - 1) times, and one of an all-to-all as often as
ranks lie on the way that has the fewest of them. For disjoint sets of an all-reduce, one rank of each is enough: the
distances are those from, and to, the nearest of these representatives.

**Crossings.** Messages between the boxes of an all-reduce are counted by what they can bring when they begin (there as
well).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np

from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.bounds.result import CutFamily, LinkLengths
from coppice.bounds.sizes.arrival import MovingCut
from coppice.bounds.sizes.least import TimeBound
from coppice.bounds.sizes.timed import TimedNetwork
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.schedule.verification.crossing_proof import check_crossings, joint_of_boxes, needed_by_boxes
from coppice.schedule.verification.proof import link_prices
from coppice.text import shortened


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
    if bound.cut is not None and bound.sinks:
        proved = bound.cut.time_ns
        if bound.turned:
            network = network.reversed()
        plain = network
        if bound.joint:
            network = _joint(problem, network, _sources(bound))
        elif bound.boxed:
            network = joint_of_boxes(problem, network, _source_node(bound))
        _check_cut(problem, network, bound, bound.cut, plain)
    elif bound.priced is not None:
        proved = (bound.time_us - start) * 1000
        chosen = bound.priced.representatives
        _check_prices(problem, network, bound.size_bytes, bound.priced.witness, chosen, proved)
    elif bound.crossings is not None:
        proved = (bound.time_us - start) * 1000
        crossed = bound.crossings
        check_crossings(
            problem,
            network,
            _rounded_down(problem, bound.size_bytes),
            proved,
            ports=crossed.ports,
            sources=crossed.sources,
            sinks=crossed.sinks,
        )
    elif bound.growth is not None and bound.time_us:
        proved = (bound.time_us - start) * 1000
        _check_growth(bound, bound.growth, proved)
    else:
        proved = Fraction(0)
    if bound.time_us > (proved / 1000 + start if proved else 0):
        raise CheckError(
            f"a time of {float(bound.time_us):g} us is claimed for {bound.size_bytes} bytes, and the certificate is of "
            f"{float(proved / 1000):g} us after a start of {float(start):g} us."
        )


def _sources(bound: TimeBound) -> list[int]:
    """The ranks whose data all ranks of a joint cut need, or which need those of all."""
    problem = bound.problem
    ranks, given = range(problem.topology.num_ranks), [*bound.sources]
    if not given or len({*given}) < len(given) or not {*given} <= {*ranks}:
        raise CheckError("a joint cut must name the ranks whose data it counts, each once.")
    if problem.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return given
    if problem.collective not in (Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE):
        raise CheckError(f"the ranks of {problem.collective} do not all need the same.")
    if len(given) > 1 or (problem.root is not None and given != [problem.root]):
        raise CheckError(f"a joint cut of {problem.collective} must name the one rank whose data it counts.")
    return given


def _source_node(bound: TimeBound) -> int:
    """The node of the one rank whose data a cut for all boxes counts."""
    sources = _sources(bound)
    if len(sources) > 1:
        raise CheckError("a cut for all boxes must name the one rank whose data it counts.")
    return int(bound.problem.topology.rank_nodes[sources[0]])


def _joint(problem: Problem, network: TimedNetwork, sources: list[int]) -> TimedNetwork:
    """The turned network in which all links out of ranks begin at one node, the last."""
    ranks = problem.topology.rank_nodes.tolist()
    tail, head, latency = (each.tolist() for each in (network.tail, network.head, network.latency))
    away = _distances(tail, head, latency, [ranks[source] for source in sources])
    opens = {node: away[node] for node in ranks}
    begins = [network.num_nodes if node in opens else node for node in tail]
    units = [opens.get(node, 0) + each for node, each in zip(tail, latency, strict=True)]
    return replace(
        network,
        num_nodes=network.num_nodes + 1,
        tail=network.head,
        head=np.array(begins, dtype=np.int32),
        latency=np.array(units, dtype=np.int64),
    )


def _check_cut(
    problem: Problem, network: TimedNetwork, bound: TimeBound, cut: MovingCut, plain: TimedNetwork
) -> None:
    """Check a cut of a network, which may be another one than the plain one of the problem."""
    time = cut.time_ns * network.units
    label = [
        time - offset if from_end else Fraction(offset)
        for offset, from_end in zip(cut.offset.tolist(), cut.from_end.tolist(), strict=True)
    ]
    names = problem.topology.node_ids
    if bound.joint or bound.boxed:
        kind = "ranks" if bound.joint else "boxes"
        fits, name = bound.sinks == (network.num_nodes - 1,), f"the ways out of all {kind}"
    else:
        fits = all(0 <= sink < len(names) for sink in bound.sinks)
        name = shortened([names[sink] for sink in bound.sinks], 4) if fits else "nodes without names"
    if not fits or len(label) != network.num_nodes:
        raise CheckError(f"labels must be of all {network.num_nodes} nodes, and lead to one that is there.")
    if min(label) < 0 or max(label) > time or any(label[sink] != time for sink in bound.sinks):
        raise CheckError(f"labels must lie between 0 and the time, which {name} must have.")
    early = [v for v, each in enumerate(label) if not each]
    if bound.joint:
        held = _held_in_all(problem, bound.size_bytes, early, _sources(bound), turned=bound.turned)
    elif bound.boxed:
        _check_direction(problem, turned=bound.turned)
        boxes = needed_by_boxes(problem, plain, early, _source_node(bound))
        held = boxes * _rounded_down(problem, bound.size_bytes)
    elif len({*bound.sinks}) == 1:
        held = _held(problem, bound.size_bytes, bound.sinks[0], early, turned=bound.turned)
    elif problem.collective is Collective.ALL_TO_ALL:
        held = sum(
            (_held(problem, bound.size_bytes, sink, early, turned=bound.turned) for sink in {*bound.sinks}),
            Fraction(0),
        )
    else:
        raise CheckError(f"of {problem.collective} one node needs what crosses a cut, found several.")
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
            f"{float(held):g} bytes must reach {name}, and the links of the cut let through {float(room):g} "
            f"in {float(cut.time_ns / 1000):g} us: this proves nothing."
        )


def _check_direction(problem: Problem, *, turned: bool) -> None:
    if problem.collective is not Collective.ALL_REDUCE and (
        turned is not (problem.collective in (Collective.REDUCE_SCATTER, Collective.REDUCE))
    ):
        raise CheckError(f"this cut leads the wrong way for {problem.collective}.")


def _held_in_all(
    problem: Problem, size_bytes: int, early: list[int], sources: list[int], *, turned: bool
) -> Fraction:
    """Bytes that the ranks of some nodes receive together (turned round: send)."""
    _check_direction(problem, turned=turned)
    nodes = problem.topology.rank_nodes.tolist()
    inside = [i for i, node in enumerate(nodes) if node in set(early)]
    whole = _rounded_down(problem, size_bytes)
    if problem.collective not in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return whole * sum(i not in sources for i in inside)
    weights = problem.weights or (1,) * len(nodes)
    total = sum(weights[i] for i in sources)
    return whole / problem.shards * sum(total - (weights[i] if i in sources else 0) for i in inside)


def _rounded_down(problem: Problem, size_bytes: int) -> Fraction:
    """The largest message no exact share of which is above that of this one in whole bytes."""
    ranks = range(problem.topology.num_ranks)
    if problem.demands is not None:
        shares = [problem.demands[i][j] for i in ranks for j in ranks if i != j]
    else:
        shares = list(problem.weights or [1])
    least = Fraction(size_bytes)
    for share in filter(None, shares):
        down = floor(share * Fraction(size_bytes) / problem.shards)
        least = min(least, down * Fraction(problem.shards) / share)
    return least


def _held(problem: Problem, size_bytes: int, sink: int, early: list[int], *, turned: bool) -> Fraction:
    """Bytes that nodes with label 0 have for the sink alone (turned round: the sink for them)."""
    nodes = problem.topology.rank_nodes.tolist()
    rank = {node: i for i, node in enumerate(nodes)}
    if sink not in rank:
        raise CheckError(f"{problem.topology.node_ids[sink]} has no rank, so it needs nothing.")
    early = [node for node in early if node in rank and node != sink]
    collective, part = problem.collective, _rounded_down(problem, size_bytes) / problem.shards
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


def _check_growth(bound: TimeBound, direction: str, time_ns: Fraction) -> None:
    """Count the ranks that can have something of one rank before a time (turned round: of which it can)."""
    costs, ranks = bound.costs, range(bound.problem.topology.num_ranks)
    outwards = direction == "spread"
    others = max(
        sum(
            one != other and _needs(bound.problem, *((one, other) if outwards else (other, one)))
            for other in ranks
        )
        for one in ranks
    )
    occupied = 1000 * Fraction(str(costs.send_us if outwards else costs.receive_us))
    message = 1000 * Fraction(str(costs.message_us))
    if costs.workers < 1 or message <= 0:
        raise CheckError("only messages that take time and occupy workers limit how many ranks can know.")
    known: dict[Fraction, int] = {}

    def before(time: Fraction) -> int:
        """Ranks that can have something before a time, as many as matter."""
        if time not in known:
            count, late = 1, time - message
            while late > 0 and count <= others:
                count += costs.workers * before(late)
                late -= occupied
                if not occupied:
                    count = others + 1
            known[time] = min(count, others + 1)
        return known[time]

    if before(time_ns) > others:
        raise CheckError(
            f"all of {others} other ranks can know before {float(time_ns / 1000):g} us: this proves nothing."
        )


def _needs(problem: Problem, source: int, rank: int) -> bool:
    """Whether a rank needs something of another."""
    match problem.collective:
        case Collective.BROADCAST | Collective.SCATTER:
            return source == problem.root
        case Collective.REDUCE | Collective.GATHER:
            return rank == problem.root
        case Collective.ALL_GATHER:
            return problem.weights is None or problem.weights[source] > 0
        case Collective.REDUCE_SCATTER:
            return problem.weights is None or problem.weights[rank] > 0
        case _:
            return problem.demands is None or problem.demands[source][rank] > 0


def _check_prices(
    problem: Problem,
    network: TimedNetwork,
    size_bytes: int,
    witness: CutFamily | LinkLengths | None,
    chosen: Sequence[int],
    time_ns: Fraction,
) -> None:
    ranked = set(problem.topology.rank_nodes.tolist())
    price = [int(node in ranked) for node in network.tail.tolist()]
    if witness is not None:
        price, work = link_prices(problem, witness)
    elif problem.collective is Collective.ALL_REDUCE:
        work = Fraction(2 * (problem.topology.num_ranks - 1))
    elif problem.collective is Collective.ALL_TO_ALL:
        sending = tuple((problem.topology.rank[problem.topology.src] >= 0).astype(int).tolist())
        _, work = link_prices(problem, LinkLengths(inv_rate=Fraction(0), length=sending))
    else:
        raise CheckError(f"sends are counted in an all-reduce and an all-to-all, found {problem.collective}.")
    chosen = _representatives(problem, witness, chosen)
    into = _distances(network.tail.tolist(), network.head.tolist(), network.latency.tolist(), chosen)
    out = _distances(network.head.tolist(), network.tail.tolist(), network.latency.tolist(), chosen)
    time, paid, open_rate = time_ns * network.units, Fraction(0), 0
    for e, each in enumerate(price):
        a, b = int(network.tail[e]), int(network.head[e])
        width = time - into.get(a, 0) - int(network.latency[e]) - out.get(b, 0)
        if each and width > 0:
            rate = each * int(network.capacity[e])
            paid += rate * width * network.scale / network.units + each * network.burst_bytes
            open_rate += rate
    due = work * _rounded_down(problem, size_bytes)
    if paid > due or (paid == due and not open_rate and time):
        raise CheckError(
            f"{size_bytes} bytes pay {float(due):g}, and the links take {float(paid):g} in "
            f"{float(time_ns / 1000):g} us: this proves nothing."
        )


def _representatives(
    problem: Problem, witness: CutFamily | LinkLengths | None, chosen: Sequence[int]
) -> list[int]:
    """The ranks from, and to, which distances count, all of them unless sets of an all-reduce have one each."""
    ranks = set(problem.topology.rank_nodes.tolist())
    if not ranks >= {*chosen}:
        raise CheckError("only ranks stand for sets, found other nodes.")
    sets = []
    if problem.collective is Collective.ALL_REDUCE and isinstance(witness, CutFamily):
        sets = [set(cut.nodes) for cut in witness.cuts]
    if sets and any(inside.isdisjoint(chosen) for inside in sets):
        raise CheckError("each set needs a rank that stands for it, found a set without one.")
    if not sets and ranks != {*chosen}:
        raise CheckError(
            "ranks stand for disjoint sets of an all-reduce only, found fewer ranks than there are."
        )
    return [*chosen]


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
