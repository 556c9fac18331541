"""Describe the bottleneck cut of a bound in text.

A cut is told from its smaller side. The links that cross it are grouped by the kinds of their ends and their
rate; where each link of a group ends at a NIC of its own, the group is called by its NICs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.result import Bound, CutFamily
from coppice.collectives import Collective
from coppice.text import plural, rate_text, shortened
from coppice.topology.model import NodeKind, Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.nouns import AlternativesJson

_MAX_GROUPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossingLinks:
    """Links across a cut with the same kinds of ends and the same rate."""

    src_kind: NodeKind  # Kind of the sending ends
    dst_kind: NodeKind  # Kind of the receiving ends
    gb_per_s: Fraction  # Rate of each link
    links: tuple[int, ...]  # Link ids, ascending


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """Links and capacity across a cut."""

    sending_ranks: tuple[int, ...]  # Ranks on the side that the data leaves, ascending
    receiving_ranks: tuple[int, ...]  # Ranks on the other side, ascending
    gb_per_s: Fraction  # Capacity of all links from the sending to the receiving side
    # Least amount of data that has to cross, in shards; None where no such count proves the rate
    shards: int | None
    groups: tuple[CrossingLinks, ...]  # The links, widest group first


def crossing(bound: Bound) -> Crossing:
    """Count the links and capacity across the cut of ``bound``.

    ``shards`` follows from the collective: every share whose source (all-gather, broadcast), destination
    (reduce-scatter, reduce) or both (all-to-all, gather, scatter) lie on the right sides has to cross at least
    once. An all-reduce has to carry one full sum across.
    """
    topology = bound.problem.topology
    sending = np.zeros(topology.num_nodes, dtype=np.bool_)
    sending[list(bound.cut)] = True
    rank_sends = sending[topology.rank_nodes]
    senders = tuple(np.flatnonzero(rank_sends).tolist())
    receivers = tuple(np.flatnonzero(~rank_sends).tolist())
    links = np.flatnonzero(sending[topology.src] & ~sending[topology.dst])
    return Crossing(
        sending_ranks=senders,
        receiving_ranks=receivers,
        gb_per_s=Fraction(int(topology.capacity[links].sum()), topology.denominator),
        shards=_shards_across(bound, senders, receivers),
        groups=_groups(topology, links),
    )


def describe_cut(bound: Bound) -> str:
    """Describe the bottleneck of ``bound`` in one sentence.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.topology.model import Link, Node
        >>> gpus = [Node(id=f"gpu{i}") for i in range(3)]
        >>> wires = [Link(src="gpu0", dst="gpu1", gb_per_s=Fraction(25)),
        ...          Link(src="gpu1", dst="gpu2", gb_per_s=Fraction(50)),
        ...          Link(src="gpu2", dst="gpu0", gb_per_s=Fraction(25))]
        >>> problem = Problem(topology=Topology.of("triangle", gpus, wires), collective=Collective.ALL_GATHER)
        >>> print(describe_cut(Bound(problem=problem, inv_rate=Fraction(2, 50), cut=(1, 2))))
        GPU 0 receives through 2 links of 25 GB/s: 2 shards over 50 GB/s
        >>> print(describe_cut(Bound(problem=problem, inv_rate=Fraction(1, 75), cut=(1,))))
        GPU 1 sends through 1 link of 50 GB/s and 1 link of 25 GB/s: 1 shard over 75 GB/s
    """
    if not bound.inv_rate:
        return "none: there is nothing to send"
    if not bound.cut:
        return f"no single cut: several limit it together{_around(bound)}"
    topology = bound.problem.topology
    found = crossing(bound)
    tell_senders = _tells_senders(topology, found)
    told = found.sending_ranks if tell_senders else found.receiving_ranks
    side = describe_ranks(topology, told) if told else _name_switches(topology, bound.cut)
    verb = _verb(senders=tell_senders, one=len(told) == 1, reduces=bound.problem.collective.reduces)
    if found.groups:
        through = f"{side} {verb} through {_join([_describe_group(topology, g) for g in found.groups])}"
    else:
        through = f"{side} {verb} through no link at all"
    return f"{through}{_proof(bound, found)}"


def describe_ranks(topology: Topology, ranks: Sequence[int]) -> str:
    """Name a set of ranks: whole boxes where possible, otherwise ranges.

    Examples:
        >>> from coppice.topology.model import Node
        >>> boxes = Topology.of("boxes", [Node(id=f"g{i}", host=f"box {i // 4}") for i in range(12)], [])
        >>> describe_ranks(boxes, [4, 5, 6, 7]), describe_ranks(boxes, [0, 1, 4]), describe_ranks(boxes, [5])
        ('4 GPUs of box 1', 'GPUs 0-1, 4', 'GPU 5 of box 1')
        >>> describe_ranks(boxes, [0, 1, 2, 3, 8, 9, 10, 11])
        '8 GPUs of box 0 and box 2'
    """
    hosts = topology.host[topology.rank_nodes]
    size = Counter(hosts.tolist())
    chosen = Counter(hosts[list(ranks)].tolist())
    named = len(topology.hosts) > 1 and -1 not in chosen
    if len(ranks) == 1:
        return f"GPU {ranks[0]}" + (f" of {_host_name(topology, next(iter(chosen)))}" if named else "")
    if len(ranks) == topology.num_ranks:
        return f"all {len(ranks)} GPUs"
    if named and all(size[host] == count for host, count in chosen.items()):
        names = [_host_name(topology, host) for host in sorted(chosen)]
        if len(names) > 3:
            return f"{len(ranks)} GPUs of {len(names)} boxes ({names[0]}, {names[1]}, .. {names[-1]})"
        return f"{len(ranks)} GPUs of {_join(names)}"
    text = f"GPUs {_ranges(ranks)}"
    return f"{text} of {_host_name(topology, next(iter(chosen)))}" if named and len(chosen) == 1 else text


def _around(bound: Bound) -> str:
    """Whom the cuts cut off that prove a combined all-reduce together, the heaviest first."""
    if not isinstance(bound.proof, CutFamily) or not bound.proof.cuts:
        return ""
    topology = bound.problem.topology
    weights: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for cut in bound.proof.cuts:
        ranks = topology.rank[list(cut.nodes)]
        weights[tuple(sorted(ranks[ranks >= 0].tolist()))] += cut.broadcast + cut.reduce
    heaviest = sorted(weights, key=lambda ranks: (-weights[ranks], ranks))
    alone = sorted(ranks[0] for ranks in weights if len(ranks) == 1)
    names = []
    if alone:
        side = describe_ranks(topology, alone)
        names.append(f"each of the {side.removeprefix('all ')}" if len(alone) > 1 else side)
    names += [describe_ranks(topology, ranks) for ranks in heaviest if len(ranks) > 1]
    return f", around {shortened(names, _MAX_GROUPS)}{_narrowest(topology, bound.proof)}"


def _narrowest(topology: Topology, proof: CutFamily) -> str:
    """Which side lets least through, where one of equally many ranks lets less through than others do."""
    found: dict[tuple[int, ...], tuple[int, NDArray[np.intp]]] = {}
    for cut in proof.cuts:
        inside = np.zeros(topology.num_nodes, dtype=np.bool_)
        inside[list(cut.nodes)] = True
        ranks = tuple(np.flatnonzero(inside[topology.rank_nodes]).tolist())
        for out in (True, False):
            links = np.flatnonzero((inside[topology.src] == out) & (inside[topology.dst] != out))
            width = int(topology.capacity[links].sum())
            if ranks not in found or width < found[ranks][0]:
                found[ranks] = width, links
    for count in sorted({len(ranks) for ranks in found}):
        sides = {ranks: found[ranks] for ranks in found if len(ranks) == count}
        least, most = min(width for width, _ in sides.values()), max(width for width, _ in sides.values())
        narrow = [ranks for ranks, (width, _) in sides.items() if width == least]
        if least < most:
            links = sides[narrow[0]][1]
            through = _join([_describe_group(topology, group) for group in _groups(topology, links)])
            more = f" and {len(narrow) - 1} more" if len(narrow) > 1 else ""
            return f"; the narrowest is {describe_ranks(topology, narrow[0])}{more}, with {through}"
    return ""


def _tells_senders(topology: Topology, found: Crossing) -> bool:
    """Whether to tell the cut from its sending side: that is the one with fewer ranks.

    Of equal sides it is the one with more ends of links: links at a fabric switch are told from the boxes.
    """
    senders, receivers = len(found.sending_ranks), len(found.receiving_ranks)
    if senders != receivers:
        return 0 < senders < receivers or not receivers
    links = [link for group in found.groups for link in group.links]
    sides = [np.unique(ends[links]) for ends in (topology.src, topology.dst)]
    counts = [(len(ends), np.count_nonzero(topology.kind[ends] != NodeKind.SWITCH)) for ends in sides]
    return counts[0] >= counts[1]


def _proof(bound: Bound, found: Crossing) -> str:
    """What crosses the cut over which rate, where that alone proves the bound; otherwise its rate."""
    total = f"{rate_text(found.gb_per_s)} GB/s"
    if found.gb_per_s and found.shards is not None and found.shards / found.gb_per_s == bound.inv_rate:
        return f": {plural(found.shards, 'shard')} over {total}"
    if found.gb_per_s and bound.problem.collective is Collective.ALL_REDUCE:
        ranks = bound.problem.topology.num_ranks
        for side in (found.sending_ranks, found.receiving_ranks):
            if Fraction(2 * len(side), ranks) / found.gb_per_s == bound.inv_rate:
                return f": {len(side)}/{ranks} of the data over {total} in each of two phases"
    return f" ({total} in all)"


def _verb(*, senders: bool, one: bool, reduces: bool) -> str:
    """What a side does with its data, or with its contributions to sums."""
    if reduces:
        word = "send" if senders else "receive"
        return f"{word}s contributions" if one else f"{word} contributions"
    if senders:
        return "sends" if one else "leave"
    return "receives" if one else "receive"


def _shards_across(bound: Bound, senders: tuple[int, ...], receivers: tuple[int, ...]) -> int | None:
    """Shards that have to cross, by the meaning of the collective; None where the ranks say nothing."""
    problem = bound.problem
    weights = problem.weights or (1,) * problem.topology.num_ranks
    match problem.collective:
        case Collective.ALL_GATHER:
            return sum(weights[r] for r in senders) if receivers else None
        case Collective.REDUCE_SCATTER:
            return sum(weights[r] for r in receivers) if senders else None
        case Collective.ALL_TO_ALL:
            if problem.demands is None:
                return len(senders) * len(receivers)
            return sum(problem.demands[i][j] for i in senders for j in receivers)
        case Collective.BROADCAST | Collective.REDUCE | Collective.ALL_REDUCE:
            return 1 if senders and receivers else None
        case Collective.GATHER:
            return len(senders) if problem.root in receivers else None
        case Collective.SCATTER:
            return len(receivers) if problem.root in senders else None
        case Collective.BARRIER:
            return None


def _groups(topology: Topology, links: NDArray[np.intp]) -> tuple[CrossingLinks, ...]:
    """Links by kinds of ends and rate, the largest total rate first."""
    by_kind: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for link in links.tolist():
        kinds = (int(topology.kind[topology.src[link]]), int(topology.kind[topology.dst[link]]))
        by_kind[(*kinds, int(topology.capacity[link]))].append(link)
    groups = [
        CrossingLinks(
            src_kind=NodeKind(src_kind),
            dst_kind=NodeKind(dst_kind),
            gb_per_s=Fraction(capacity, topology.denominator),
            links=tuple(members),
        )
        for (src_kind, dst_kind, capacity), members in by_kind.items()
    ]
    return tuple(sorted(groups, key=lambda g: (-len(g.links) * g.gb_per_s, g.links)))


def _describe_group(topology: Topology, group: CrossingLinks) -> str:
    """``8 NICs of 25 GB/s``, ``2 links of 50 GB/s``, ``1 link of 300 GB/s to a switch``."""
    count = len(group.links)
    rate = f"of {rate_text(group.gb_per_s)} GB/s"
    links = list(group.links)
    for kind, ends in ((group.src_kind, topology.src[links]), (group.dst_kind, topology.dst[links])):
        if kind == NodeKind.NIC and len(set(ends.tolist())) == count:
            return f"{plural(count, 'NIC')} {rate}"
    text = f"{plural(count, 'link')} {rate}"
    for kind, ends, word in (
        (group.dst_kind, topology.dst[links], "to"),
        (group.src_kind, topology.src[links], "from"),
    ):
        if kind != NodeKind.GPU:
            nodes = sorted(set(ends.tolist()))
            noun = "NIC" if kind == NodeKind.NIC else "switch"
            name = topology.node_ids[nodes[0]] if len(nodes) == 1 else plural(len(nodes), noun)
            return f"{text} {word} {name}"
    return text


def _name_switches(topology: Topology, cut: Sequence[int]) -> str:
    """Name the side of a cut that holds no rank."""
    inside = set(cut)
    ranks = set(topology.rank_nodes.tolist())
    side = inside if not inside & ranks else set(range(topology.num_nodes)) - inside
    return topology.node_ids[min(side)] if len(side) == 1 else f"{len(side)} nodes without ranks"


def _host_name(topology: Topology, host: int) -> str:
    """Name of a box, marked as one where the name does not say so."""
    name = topology.hosts[host]
    return f"box {name}" if name.isdigit() else name


def _ranges(ranks: Sequence[int]) -> str:
    """Numbers as ranges, cut short after eight of them."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    if len(texts) > 8:
        return f"{', '.join(texts[:7])}, .. {texts[-1]} ({len(ranks)} in all)"
    return ", ".join(texts)


def _join(parts: Sequence[str]) -> str:
    """``a, b and c``, cut short after a few."""
    shown = list(parts[:_MAX_GROUPS])
    if len(parts) > _MAX_GROUPS:
        shown.append(f"{len(parts) - _MAX_GROUPS} other kinds of link")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def alternatives_record(found: Bound) -> AlternativesJson:
    """The cut of a bound, and further rates on the way to it, as JSON values."""
    attainable = None if found.attainable is None else str(found.attainable)
    others = {name: str(rate) for name, rate in found.alternatives.items()}
    return {
        "cut": [found.problem.topology.node_ids[node] for node in found.cut],
        "cut_in_words": describe_cut(found),
        "attainable_ns_per_byte": attainable,
        "attainable_inv_rate": attainable,
        "alternatives_ns_per_byte": others,
        "alternatives": others,
    }
