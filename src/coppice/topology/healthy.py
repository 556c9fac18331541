"""The network that a network with one fault was: what makes single nodes unlike all others of their kind is put back.

Clusters are built of few kinds of nodes: all leaf switches have as many links of the same rates to GPUs and to spines.
A slow or lost link makes its two ends unlike the others, a lost GPU or NIC all nodes that it was linked with. Such odd
nodes are compared with the kind that they resemble most, and what they lack is restored between two of them, or to a
new node that all of it fits. This is a guess that a planner may start from; nothing is proved by it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

from coppice.topology.model import Link, Node, NodeKind, Topology

MOST_ODD = 24
"""Nodes unlike their kind from which there is more than one fault."""

ALIKE = 4
"""Nodes that are alike are a kind of their own, and not odd, from this many on."""

_Seen = tuple[bool, NodeKind, Fraction]
"""A link as a node sees it: whether it leaves, the kind of node at its other end, and its rate."""


def without_fault(topology: Topology) -> Topology | None:
    """The network without the fault that its odd nodes show; None where none are odd, or no single fault explains it.

    Examples:
        >>> from coppice.topology.operations import set_link_rate
        >>> from coppice.topology.presets import preset
        >>> whole = preset("dgx-a100", boxes=8)
        >>> healthy = without_fault(set_link_rate(whole, "box0/gpu3", "box0/nvswitch", "50%"))
        >>> healthy.links() == whole.links(), without_fault(whole)
        (True, None)
    """
    nodes = topology.nodes()
    seen: list[Counter[_Seen]] = [Counter() for _ in nodes]
    for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        rate = topology.gb_per_s(e)
        seen[a][True, nodes[b].kind, rate] += 1
        seen[b][False, nodes[a].kind, rate] += 1
    views = [(node.kind, frozenset(each.items())) for node, each in zip(nodes, seen, strict=True)]
    common = [view for view, times in Counter(views).items() if times >= ALIKE]
    usual = set(common)
    odd = [v for v, view in enumerate(views) if view not in usual]
    if not 0 < len(odd) <= MOST_ODD:
        return None
    lacks: dict[int, Counter[_Seen]] = {}
    extra: dict[int, Counter[_Seen]] = {}
    alone: set[int] = set()
    for v in odd:
        kinds = [Counter(dict(view)) for kind, view in common if kind is nodes[v].kind]
        like = min(kinds, key=lambda kind: _unlike(kind, seen[v]), default=None)
        if like is None or 2 * _unlike(_without_rates(like), _without_rates(seen[v])) > like.total():
            alone.add(v)  # the only one of its kind, as a core switch may be: it may have had any link
        else:
            lacks[v], extra[v] = like - seen[v], seen[v] - like
    rates = {(a, b): topology.gb_per_s(e) for (a, b), e in topology.link_index.items()}
    if not lacks:
        return None
    restored = _restore_links(nodes, rates, lacks, extra, alone)
    if restored and not frozenset.intersection(*restored):
        return None  # links that have no node in common
    if not any(each.total() for each in (*lacks.values(), *extra.values())):
        return _built(topology, nodes, rates)
    if any(each.total() for each in extra.values()):
        return None
    new = _lost_node(nodes, rates, lacks, common, alone)
    return None if new is None else _built(topology, [*nodes, new], rates)


def _without_rates(seen: Counter[_Seen]) -> Counter[_Seen]:
    """The links that a node sees, as if all had one rate."""
    found: Counter[_Seen] = Counter()
    for (leaves, kind, _), times in seen.items():
        found[leaves, kind, Fraction(1)] += times
    return found


def _unlike(kind: Counter[_Seen], other: Counter[_Seen]) -> int:
    """How many links two nodes have that the other has not."""
    return ((kind - other) + (other - kind)).total()


def _restore_links(
    nodes: list[Node],
    rates: dict[tuple[int, int], Fraction],
    lacks: dict[int, Counter[_Seen]],
    extra: dict[int, Counter[_Seen]],
    alone: set[int],
) -> set[frozenset[int]]:
    """Give links between two odd nodes the rate that both of them lack, or one and the other is alone of its kind.

    Returns:
        Pairs of nodes whose links changed.
    """
    some = (*lacks, *alone)
    pairs = [(a, b) for a in some for b in some if a != b and (a in lacks or b in lacks)]
    links = Counter(end for ends in rates for end in ends)
    # Links that are there come first; the narrowest of several switches that are alone may have lost one.
    pairs.sort(key=lambda ends: (ends not in rates, sum(links[v] for v in ends if v in alone)))
    restored: set[frozenset[int]] = set()
    for a, b in pairs:
        ends = [(v, leaves, nodes[other].kind) for v, leaves, other in ((a, True, b), (b, False, a))]
        ends = [end for end in ends if end[0] in lacks]
        v, leaves, kind = ends[0]
        known = rates.get((a, b))
        for rate in [rate for out, there, rate in lacks[v] if (out, there) == (leaves, kind)]:
            if known is not None and not all(extra[v][out, there, known] > 0 for v, out, there in ends):
                continue
            if not all(lacks[v][out, there, rate] > 0 for v, out, there in ends):
                continue
            for v, out, there in ends:
                lacks[v] -= Counter({(out, there, rate): 1})
                if known is not None:
                    extra[v] -= Counter({(out, there, known): 1})
            rates[a, b] = rate
            restored.add(frozenset((a, b)))
            break
    return restored


def _lost_node(
    nodes: list[Node],
    rates: dict[tuple[int, int], Fraction],
    lacks: dict[int, Counter[_Seen]],
    common: list[tuple[NodeKind, frozenset[tuple[_Seen, int]]]],
    alone: set[int],
) -> Node | None:
    """A node to which all lacking links lead, with the links added; None where no kind of node has such links.

    Where its kind has more links, the others led to nodes that are alone of their kind, as of a few rail switches: to
    those that have least links now.
    """
    kinds = {kind for each in lacks.values() for (_, kind, _), times in each.items() if times}
    if len(kinds) != 1:
        return None
    [kind] = kinds
    new = len(nodes)
    seen: Counter[_Seen] = Counter()
    added: dict[tuple[int, int], Fraction] = {}
    for v, each in lacks.items():
        for (leaves, _, rate), times in each.items():
            ends = (v, new) if leaves else (new, v)
            if times != 1 or ends in added:
                return None
            added[ends] = rate
            seen[not leaves, nodes[v].kind, rate] += 1
    kinds_of = [
        Counter(dict(view)) for each, view in common if each is kind and not seen - Counter(dict(view))
    ]
    usual = min(kinds_of, key=lambda view: _unlike(view, seen), default=None)
    if usual is None:
        return None
    links = Counter(end for ends in rates for end in ends)
    narrow = sorted(alone, key=lambda v: (links[v], v))
    for (leaves, other, rate), times in (usual - seen).items():
        free = [
            v for v in narrow if nodes[v].kind is other and ((new, v) if leaves else (v, new)) not in added
        ]
        if len(free) < times:
            return None
        added.update({(new, v) if leaves else (v, new): rate for v in free[:times]})
    rates.update(added)
    like = next(node for node in nodes if node.kind is kind)
    hosts = [host for v in lacks if (host := nodes[v].host) is not None]
    rank = None
    if like.rank is not None:
        rank = sum(node.rank is not None for node in nodes)
    name = "lost"
    while any(node.id == name for node in nodes):
        name += "'"
    return replace(like, id=name, rank=rank, host=min(hosts, default=None))


def _built(topology: Topology, nodes: list[Node], rates: dict[tuple[int, int], Fraction]) -> Topology:
    known = topology.link_index
    latency: list[float] = topology.latency_us.tolist()
    usual = max(latency, default=0.0)
    links = [
        Link(
            src=nodes[a].id,
            dst=nodes[b].id,
            gb_per_s=rate,
            latency_us=latency[known[a, b]] if (a, b) in known else usual,
            duplex=False,
        )
        for (a, b), rate in sorted(rates.items())
    ]
    return Topology.of(topology.name, nodes, links)
