"""Check a bound on time from messages between boxes, with distances, rates and exact arithmetic.

Nothing here knows how a bound was found.

Each box has a rank whose data are looked at, its source, and one that has to receive something of them, its sink. A
message that leaves a box takes one of its *exits*: a link out of it, or, where ranks send less than their links take,
the link through which one of its ranks sends anything. It enters an exit (x, y) after the distance of x from what it
brings, and so early that from y the sink of another box can be reached by T. Switches do not copy, so it crosses for
one box.

**One rank's data.** Each byte crosses into each other box: k - 1 times.

**Data of all boxes.** A message brings something of one box alone, its sender's, or of others as well, which has come
to x before. A box that no message of the second kind reaches needs k - 1 of the first kind: counted 1 / (k - 1) and 1,
they come to k for each byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

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
    root: int | None,
    ports: bool,
    turned: bool,
    sources: Sequence[int],
    sinks: Sequence[int],
) -> None:
    """Check that messages between boxes cannot be fewer or sooner.

    Args:
        network: What messages cost, turned round where the bound is one of the turned network.
        size_bytes: The message, with shares in whole bytes.
        root: Node of the one rank whose data are looked at, or None.
        ports: Exits are the links through which ranks send anything.
        sources: Nodes of the ranks whose data are looked at, one of each box.
        sinks: Nodes of the ranks that have to receive something of them, likewise.

    Raises:
        CheckError: If the certificate does not prove the time.
    """
    box = _boxes(problem, network)
    _check_ends(problem, box, root=root, turned=turned, sources=sources, sinks=sinks)
    if network.burst_bytes:
        raise CheckError("links that let bursts through are not counted by crossings.")
    tails, heads = network.tail.tolist(), network.head.tolist()
    latencies = network.latency.tolist()
    links = list(zip(tails, heads, latencies, strict=True))
    on = _nearest_of_two_boxes([(b, a, units) for a, b, units in links], {node: box[node] for node in sinks})
    if root is None:
        count = len(sources)
        due, first = count * size_bytes, Fraction(1, count - 1)
        came = _nearest_of_two_boxes(links, {node: box[node] for node in sources})
    else:
        due, first = (len(sources) - 1) * size_bytes, Fraction(1)
        came = _nearest_of_two_boxes(links, {root: -2})
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
        if root is None and others:
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
    root: int | None,
    turned: bool,
    sources: Sequence[int],
    sinks: Sequence[int],
) -> None:
    collective, ranks = problem.collective, problem.topology.rank_nodes.tolist()
    if collective not in _FOR_ONE or turned is not (collective is Collective.REDUCE):
        raise CheckError(f"crossings are not counted this way for {collective}.")
    if root is None and collective is not Collective.ALL_REDUCE:
        raise CheckError(f"crossings for all boxes are those of an all-reduce, found {collective}.")
    if root is not None and root not in ranks:
        raise CheckError("crossings count the data of a rank, found another node.")
    if problem.root is not None and root != ranks[problem.root]:
        raise CheckError(f"crossings of {collective} must count the root's data.")
    wanted = sorted({box[node] for node in ranks})
    for chosen in (sources, sinks):
        if not {*chosen} <= {*ranks} or sorted(box[node] for node in chosen) != wanted:
            raise CheckError("each box needs one rank that stands for it, found others.")
    if wanted[0] < 0 or len(wanted) < 2:
        raise CheckError("crossings need two boxes or more, and all ranks in one of them.")


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
