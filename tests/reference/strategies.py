"""Random topologies, small enough to enumerate every cut, for hypothesis and for fast seeded loops.

Each family draws integers through ``choose(low, high)``, so that one description serves both: hypothesis
shrinks what it draws, a seeded ``random.Random`` makes thousands of graphs a second. Ranks are a random order
of the terminals, so that a rank taken for a node id shows.

    symmetric     both directions of a link alike, connected balanced      sums of directed cycles: in = out
    at every node, nothing else symmetric, strongly connected generous      balanced, and some links into
    switches are wider still: in >= out at every switch unbalanced    any rates in any direction on top of one
    directed cycle slow_uplinks  terminals hang on switches, with less rate up than down: a copying (or
    adding) switch would help boxes         hosts with a switch and parallel NICs, each NIC on a plane of its
    own or a shared one disconnected  some terminal cannot reach some other
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.topology.model import Link, Node, NodeKind, Topology

Choose = Callable[[int, int], int]
Rates = dict[tuple[int, int], Fraction]

MAX_NODES = 12


def _rate(choose: Choose) -> Fraction:
    return Fraction(choose(1, 12), (1, 1, 1, 2, 3)[choose(0, 4)])


def uneven(topology: Topology, seed: int) -> Topology:
    """The same links with rates that lie up to 13 powers of ten apart, and that have up to nine digits."""
    draw = random.Random(f"uneven {seed}")
    digits = draw.choice((3, 6, 9))

    def rate() -> Fraction:
        if draw.random() < 0.5:
            return Fraction(max(1, int(10 ** draw.uniform(0, digits + 4))), 10**digits)
        return draw.randint(1, 10) + Fraction(draw.randint(0, 3), 10**digits)

    return Topology.of(
        f"uneven {topology.name}",
        topology.nodes(),
        [replace(link, gb_per_s=rate()) for link in topology.links()],
    )


def _shuffled(choose: Choose, items: Sequence[int]) -> list[int]:
    rest = list(items)
    return [rest.pop(choose(0, len(rest) - 1)) for _ in items]


def _add(rates: Rates, a: int, b: int, rate: Fraction) -> None:
    if a != b:
        rates[a, b] = rates.get((a, b), Fraction(0)) + rate


def _add_cycle(rates: Rates, nodes: Sequence[int], rate: Fraction) -> None:
    for position, a in enumerate(nodes):
        _add(rates, a, nodes[(position + 1) % len(nodes)], rate)


def _nodes(choose: Choose, most: int) -> tuple[int, list[int]]:
    """Number of nodes, and the terminals among them in rank order: two of them at least."""
    count = choose(2, most)
    terminals = choose(2, count)
    return count, _shuffled(choose, range(count))[:terminals]


def _topology(name: str, choose: Choose, count: int, terminals: Sequence[int], rates: Rates) -> Topology:
    nodes = []
    for v in range(count):
        if v in terminals:
            nodes.append(Node(id=f"g{v}", kind=NodeKind.GPU, rank=terminals.index(v)))
        else:  # relays are GPUs without a rank
            kind = (NodeKind.SWITCH, NodeKind.SWITCH, NodeKind.NIC, NodeKind.GPU)[choose(0, 3)]
            nodes.append(Node(id=f"{kind.name.lower()[0]}{v}" + "r" * (kind == NodeKind.GPU), kind=kind))
    links = (
        Link(src=nodes[a].id, dst=nodes[b].id, gb_per_s=rate, duplex=False) for (a, b), rate in rates.items()
    )
    return Topology.of(name, nodes, links)


def symmetric(choose: Choose, most: int = MAX_NODES) -> Topology:
    """A random tree and further links, both directions alike."""
    count, terminals = _nodes(choose, most)
    rates: Rates = {}
    pairs = [(choose(0, v - 1), v) for v in range(1, count)]
    pairs += [(choose(0, count - 1), choose(0, count - 1)) for _ in range(choose(0, 2 * count))]
    for a, b in pairs:
        rate = _rate(choose)
        _add(rates, a, b, rate)
        _add(rates, b, a, rate)
    return _topology("symmetric", choose, count, terminals, rates)


def balanced(choose: Choose, most: int = MAX_NODES) -> Topology:
    """One cycle through all nodes, and cycles through some."""
    count, terminals = _nodes(choose, most)
    rates: Rates = {}
    _add_cycle(rates, _shuffled(choose, range(count)), _rate(choose))
    for _ in range(choose(0, count)):
        _add_cycle(rates, _shuffled(choose, range(count))[: choose(2, count)], _rate(choose))
    return _topology("balanced", choose, count, terminals, rates)


def generous(choose: Choose, most: int = MAX_NODES) -> Topology:
    """Balanced, with links from terminals to anywhere made wider: no switch ever sends more than it gets."""
    count, terminals = _nodes(choose, most)
    rates: Rates = {}
    _add_cycle(rates, _shuffled(choose, range(count)), _rate(choose))
    for _ in range(choose(0, count)):
        _add_cycle(rates, _shuffled(choose, range(count))[: choose(2, count)], _rate(choose))
    for _ in range(choose(1, count)):
        _add(rates, terminals[choose(0, len(terminals) - 1)], choose(0, count - 1), _rate(choose))
    return _topology("generous", choose, count, terminals, rates)


def unbalanced(choose: Choose, most: int = MAX_NODES) -> Topology:
    """Any directed links on top of one cycle through all nodes."""
    count, terminals = _nodes(choose, most)
    rates: Rates = {}
    _add_cycle(rates, _shuffled(choose, range(count)), _rate(choose))
    for _ in range(choose(1, 3 * count)):
        _add(rates, choose(0, count - 1), choose(0, count - 1), _rate(choose))
    return _topology("unbalanced", choose, count, terminals, rates)


def slow_uplinks(choose: Choose, most: int = MAX_NODES) -> Topology:
    """A tree of switches; each terminal hangs on one or two, slower up than down (or all of it reversed)."""
    switches = choose(1, max(1, most // 3))
    count = choose(switches + 2, max(switches + 2, most))
    usual = _rate(choose)
    rates: Rates = {}
    for w in range(1, switches):
        other, rate = choose(0, w - 1), usual * choose(1, 8)
        _add(rates, w, other, rate)
        _add(rates, other, w, rate)
    for v in range(switches, count):
        for _ in range(choose(1, 2)):
            w, rate = choose(0, switches - 1), _rate(choose) if choose(0, 4) == 0 else usual
            _add(rates, v, w, rate)
            _add(rates, w, v, rate * choose(1, 5))
    if choose(0, 1):
        rates = {(b, a): rate for (a, b), rate in rates.items()}
    return _topology("slow uplinks", choose, count, _shuffled(choose, range(switches, count)), rates)


def boxes(choose: Choose, most: int = MAX_NODES) -> Topology:
    """Hosts of one or two GPUs on a host switch, a NIC for each, one or two planes, some NICs uneven."""
    planes = choose(1, 2)
    per_host = choose(1, 2)
    hosts = max(2, min(3, (most - planes) // (2 * per_host + 1)))
    local, network = _rate(choose) * 4, _rate(choose)
    rates: Rates = {}
    terminals = []
    count = planes
    for _ in range(hosts):
        switch, count = count, count + 1
        for index in range(per_host):
            gpu, nic, count = count, count + 1, count + 2
            terminals.append(gpu)
            rate = _rate(choose) if choose(0, 5) == 0 else network
            hops = ((gpu, switch, local), (gpu, nic, local), (nic, index % planes, rate))
            for a, b, capacity in hops:
                _add(rates, a, b, capacity)
                _add(rates, b, a, capacity)
    return _topology("boxes", choose, count, _shuffled(choose, terminals), rates)


def disconnected(choose: Choose, most: int = MAX_NODES) -> Topology:
    """Two balanced parts with a terminal in each, joined in one direction at most."""
    count = choose(2, most)
    parts = _shuffled(choose, range(count))
    first = choose(1, count - 1)
    rates: Rates = {}
    for part in (parts[:first], parts[first:]):
        _add_cycle(rates, part, _rate(choose))
    if choose(0, 1):
        _add(rates, parts[choose(0, first - 1)], parts[choose(first, count - 1)], _rate(choose))
    terminals = _shuffled(choose, [parts[0], parts[-1]])
    return _topology("disconnected", choose, count, terminals, rates)


BALANCED_FAMILIES = (symmetric, balanced, generous, boxes)
UNBALANCED_FAMILIES = (unbalanced, slow_uplinks)
CONNECTED_FAMILIES = (*BALANCED_FAMILIES, *UNBALANCED_FAMILIES)
FAMILIES = (*CONNECTED_FAMILIES, disconnected)

# Those with one phase; all-reduce has two and a bound of its own.
TREE_COLLECTIVES = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST, Collective.REDUCE)


def problem_on(choose: Choose, topology: Topology) -> Problem:
    """A collective with one phase: any root, and now and then unequal shares, some of them zero."""
    collective = TREE_COLLECTIVES[choose(0, len(TREE_COLLECTIVES) - 1)]
    ranks = topology.num_ranks
    if collective.rooted:
        return Problem(topology=topology, collective=collective, root=choose(0, ranks - 1))
    weights = tuple(choose(0, 4) for _ in range(ranks)) if choose(0, 2) == 0 else ()
    return Problem(topology=topology, collective=collective, weights=weights if any(weights) else None)


@st.composite
def topologies(
    draw: st.DrawFn, families: Sequence[Callable[..., Topology]] = CONNECTED_FAMILIES, most: int = MAX_NODES
) -> Topology:
    """A topology of one of the families."""
    family = draw(st.sampled_from(families))
    return family(lambda low, high: draw(st.integers(low, high)), most)


@st.composite
def problems(
    draw: st.DrawFn, families: Sequence[Callable[..., Topology]] = CONNECTED_FAMILIES, most: int = MAX_NODES
) -> Problem:
    """A collective with one phase on a topology of one of the families."""
    topology = draw(topologies(families, most))
    return problem_on(lambda low, high: draw(st.integers(low, high)), topology)


def seeded(
    seed: int, families: Sequence[Callable[..., Topology]] = CONNECTED_FAMILIES, most: int = MAX_NODES
) -> Topology:
    """The topology with number ``seed``; families take turns."""
    topology = families[seed % len(families)](random.Random(seed).randint, most)
    return Topology.of(f"{topology.name} #{seed}", topology.nodes(), topology.links())


def seeded_problem(
    seed: int, families: Sequence[Callable[..., Topology]] = CONNECTED_FAMILIES, most: int = MAX_NODES
) -> Problem:
    """The problem with number ``seed``, on the topology with that number."""
    return problem_on(random.Random(f"problem {seed}").randint, seeded(seed, families, most))
