"""Summarise a topology: its nodes, groups of links, rate of each GPU, and what looks wrong."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.text import shortened
from coppice.topology.model import NodeKind, Topology

_SHOWN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkGroup:
    """Links of one rate between nodes with similar names."""

    src: str  # Name of the nodes that the links leave, without host and number
    dst: str  # Name of the nodes that they enter
    gb_per_s: Fraction  # Rate of each
    count: int  # Number of links; a pair of opposite ones counts once if `duplex`
    duplex: bool  # Each link has an equal one the other way


@dataclass(frozen=True, kw_only=True, slots=True)
class Imbalance:
    """A switch or NIC that can send more than it can receive; GB/s."""

    node: str
    into: Fraction
    out: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Result of :func:`summarize`."""

    name: str  # Name of the topology
    source: str  # Where its figures come from
    sha256: str  # Hash of everything that decides a plan
    ranks: int  # Number of GPUs that take part
    relays: int  # Number of other GPUs
    nodes: dict[str, int]  # Number of nodes by kind
    hosts: dict[int, int]  # Number of hosts by number of their ranks
    links: int  # Directed links
    groups: tuple[LinkGroup, ...]  # Links grouped by ends and rate, the fastest first
    gpus: dict[tuple[Fraction, Fraction], int]  # Number of ranks by (rate in, rate out)
    denominator: int  # Common denominator of the rates
    imbalances: tuple[Imbalance, ...]  # Switches and NICs with out > in
    warnings: tuple[str, ...]  # One sentence each


def summarize(topology: Topology) -> Summary:
    """Summarise ``topology``.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = summarize(preset("dgx-a100"))
        >>> box.nodes, box.groups[0].count, box.gpus
        ({'gpu': 8, 'switch': 1}, 8, {(Fraction(300, 1), Fraction(300, 1)): 8})
    """
    into, out = (
        [Fraction(units, topology.denominator) for units in total.tolist()]
        for total in (topology.capacity_in, topology.capacity_out)
    )
    gpus = Counter((into[v], out[v]) for v in topology.rank_nodes.tolist())
    kinds = Counter(topology.kind.tolist())
    ranked = topology.host[topology.rank_nodes]
    per_host = Counter(Counter(ranked[ranked >= 0].tolist()).values())
    imbalances = tuple(
        Imbalance(node=topology.node_ids[v], into=into[v], out=out[v])
        for v in np.flatnonzero(topology.rank < 0).tolist()
        if out[v] > into[v]
    )
    return Summary(
        name=topology.name,
        source=topology.source,
        sha256=topology.sha256,
        ranks=topology.num_ranks,
        relays=kinds[NodeKind.GPU] - topology.num_ranks,
        nodes={kind.name.lower(): kinds[kind] for kind in NodeKind if kinds[kind]},
        hosts=dict(sorted(per_host.items())),
        links=topology.num_links,
        groups=_groups(topology),
        gpus=dict(sorted(gpus.items())),
        denominator=topology.denominator,
        imbalances=imbalances,
        warnings=tuple(_warnings(topology, into, out, imbalances)),
    )


def _groups(topology: Topology) -> tuple[LinkGroup, ...]:
    stems = [_stem(name) for name in topology.node_ids]
    columns = (topology.src, topology.dst, topology.capacity)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    back = {(a, b): capacity for a, b, capacity in rows}
    counts: Counter[tuple[str, str, int, bool]] = Counter()
    for a, b, capacity in rows:
        duplex = back.get((b, a)) == capacity
        if not duplex:
            counts[stems[a], stems[b], capacity, False] += 1
        elif a < b:
            counts[stems[a], stems[b], capacity, True] += 1
    order = sorted(counts, key=lambda key: (-key[2], key[0], key[1], not key[3]))
    return tuple(
        LinkGroup(
            src=src,
            dst=dst,
            gb_per_s=Fraction(capacity, topology.denominator),
            count=counts[src, dst, capacity, duplex],
            duplex=duplex,
        )
        for src, dst, capacity, duplex in order
    )


def _stem(name: str) -> str:
    """``box0/mlx5_3`` without host and number (``mlx5``), ``pcie-0000:05:00`` without address (``pcie``)."""
    last = re.sub(r"#[0-9]+$", "", name.rpartition("/")[2])
    ports = re.match(r"(rdmap|roce[a-z]*|en[ops]|ib[ops])[0-9]+[a-z][0-9]", last)
    if ports:
        return ports[1]
    if ":" in last:
        return re.split(r"[-_.]?[0-9]", last, maxsplit=1)[0] or last
    return last.rstrip("0123456789").rstrip("_-.#") or last


def _warnings(
    topology: Topology, into: list[Fraction], out: list[Fraction], imbalances: tuple[Imbalance, ...]
) -> list[str]:
    ids, found = topology.node_ids, []
    ranks = topology.rank_nodes.tolist()
    for rates, verb in ((into, "receive"), (out, "send")):
        dead = [ids[v] for v in ranks if not rates[v]]
        if dead and topology.num_ranks > 1:
            found.append(f"{shortened(dead, _SHOWN)} cannot {verb} anything: no link.")
    both_ways = _reached(topology, ranks[0]) & _reached(topology.transposed(), ranks[0])
    apart = [ids[v] for v in ranks if not both_ways[v]]
    if apart:
        found.append(
            f"{ids[ranks[0]]} cannot exchange data with {shortened(apart, _SHOWN)}: no collective is possible."
        )
    idle = [ids[v] for v in np.flatnonzero(topology.rank < 0).tolist() if not into[v] or not out[v]]
    if idle:
        found.append(
            f"{shortened(idle, _SHOWN)} forwards nothing: links lead in only one direction, or there are none."
        )
    if imbalances:
        names = shortened([imbalance.node for imbalance in imbalances], _SHOWN)
        more = "it receives" if len(imbalances) == 1 else "they receive"
        found.append(f"{names} can send more than {more}: the cut bound may be out of reach.")
    return found


def _reached(topology: Topology, start: int) -> NDArray[np.bool_]:
    """Nodes that data from ``start`` can reach."""
    reached = np.zeros(topology.num_nodes, dtype=np.bool_)
    reached[start] = True
    first = np.searchsorted(topology.src, np.arange(topology.num_nodes + 1))
    queue = [start]
    while queue:
        v = queue.pop()
        near = topology.dst[first[v] : first[v + 1]]
        fresh = near[~reached[near]]
        reached[fresh] = True
        queue.extend(fresh.tolist())
    return reached
