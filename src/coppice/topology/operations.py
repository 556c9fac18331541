"""Derive a topology from another: subset, degrade, remove, scale, round, merge, relabel.

Each returns a new topology; names, hosts and the order of what remains are kept. Nodes are named by their id, and a GPU
also as ``rank3``; of a name that a topology does not have it is said what may have been meant.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.topology.model import Node, NodeKind, Topology, common_denominator, exact_rate, scaled

PRESET_NIC = "nic"
"""NICs of presets are called so, with their number in the box: ``box1/nic0``."""

_KIND_OF_WORD = {
    **dict.fromkeys(
        (PRESET_NIC, "mlx", "mlx5_", "hca", "ib", "eth", "ens", "hfi", "rdma", "bnxt_re"), NodeKind.NIC
    ),
    **dict.fromkeys(("gpu", "rank", "die", "cuda"), NodeKind.GPU),
    **dict.fromkeys(("nvswitch", "switch", "rail", "leaf", "spine", "core", "pcie", "cpu"), NodeKind.SWITCH),
}
_LEAST_LIKENESS = 0.6
_MOST_NODES = 4096


class _NodeName(NamedTuple):
    """A name in parts: ``box1/nic0`` is nic number 0 of box1."""

    host: str
    word: str
    number: int | None

    @classmethod
    def of(cls, name: str) -> _NodeName:
        host, _, last = name[:200].rpartition("/")
        digits = re.search(r"[0-9]{0,9}$", last, re.ASCII)
        number = "" if digits is None else digits[0]
        return cls(host, last.removesuffix(number).lower(), int(number) if number else None)


def node_hint(topology: Topology, name: str) -> str:
    """End of an error message about an unknown node: suggest the most similar name of the same kind and box.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> node_hint(preset("dgx-a100", boxes=2), "box1/nic9")
        "did you mean 'box1/nic7'?"
        >>> node_hint(preset("dgx-h100", boxes=2), "box1/nic0")
        'its NICs are no nodes (presets may have `nics=node`): change links of its GPUs.'
    """
    wanted = _NodeName.of(name)
    names = topology.node_ids[:_MOST_NODES]
    kinds = [NodeKind(kind) for kind in topology.kind[:_MOST_NODES].tolist()]
    parts = [_NodeName.of(each) for each in names]
    by_word = dict(zip((part.word for part in parts), kinds, strict=True))
    kind = by_word.get(wanted.word, _KIND_OF_WORD.get(wanted.word))
    if kind is NodeKind.NIC and kind not in kinds:
        return "its NICs are no nodes (presets may have `nics=node`): change links of its GPUs."
    same = [v for v in range(len(names)) if kind is None or kinds[v] is kind]
    if not same:
        return "`coppice topology show` lists the nodes."
    best = min(same, key=lambda v: _distance(wanted, parts[v]))
    if kind is None and _likeness(wanted.word, parts[best].word) < _LEAST_LIKENESS:
        return "`coppice topology show` lists the nodes."
    return f"did you mean {names[best]!r}?"


def _distance(wanted: _NodeName, found: _NodeName) -> tuple[float, float, int]:
    """Words that differ count first, then boxes, then numbers."""
    numbers = (wanted.number, found.number)
    apart = 0 if numbers[0] == numbers[1] else 1 + abs((wanted.number or 0) - (found.number or 0))
    return 1 - _likeness(wanted.word, found.word), 1 - _likeness(wanted.host, found.host), apart


def _likeness(a: str, b: str) -> float:
    return 1.0 if a == b else SequenceMatcher(None, a, b).ratio()


Rate = int | float | str | Fraction

_FORMER_NIC = re.compile("(^|/)mlx5_([0-9]{1,4})$")
"""Presets of DGX A100 once called their NICs so; commands that do still find them."""

MOST_DIGITS = 9
"""Decimals of GB/s that rates are rounded to at most."""


def find_node(topology: Topology, name: str) -> int:
    """Id of the node called ``name``, or of the GPU of rank r for the name ``rank<r>``.

    Raises:
        InputError: If there is none.
    """
    node = topology.node_index.get(name)
    if node is not None:
        return node
    number = name.removeprefix("rank")
    if number != name and number.isdecimal() and len(number) < 8 and int(number) < topology.num_ranks:
        return int(topology.rank_nodes[int(number)])
    former = topology.node_index.get(_FORMER_NIC.sub(rf"\1{PRESET_NIC}\2", name))
    if former is not None:
        return former
    if number != name and number.isdecimal():
        raise InputError(
            f"expected a rank of {topology.name}, rank0 .. rank{topology.num_ranks - 1}, found {name[:40]!r}."
        )
    raise InputError(f"{topology.name} has no node {name[:80]!r}: {node_hint(topology, name)}")


def subset(topology: Topology, ranks: Sequence[int], *, relays: bool = False) -> Topology:
    """Restrict the topology to ``ranks``, renumbered in the given order.

    Args:
        topology: Whole topology.
        ranks: Old ranks; position i becomes rank i.
        relays: GPUs that do not take part stay and may forward; otherwise they leave with their links.

    Raises:
        InputError: If the list is empty, repeats a rank or names one that does not exist.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> half = subset(preset("dgx-a100"), [0, 2, 4, 6])
        >>> half.num_ranks, half.num_links
        (4, 8)
    """
    wanted = list(ranks)
    if not wanted:
        raise InputError(f"expected at least one rank of 0 .. {topology.num_ranks - 1}, found none.")
    for r in wanted:
        if not 0 <= r < topology.num_ranks:
            raise InputError(
                f"{topology.name} has ranks 0 .. {topology.num_ranks - 1}, found {r}: leave it out."
            )
    if len(set(wanted)) != len(wanted):
        repeated = next(r for r in wanted if wanted.count(r) > 1)
        raise InputError(f"expected each rank once, found {repeated} twice: remove one.")
    rank = np.full(topology.num_nodes, -1, dtype=np.int32)
    rank[topology.rank_nodes[wanted]] = np.arange(len(wanted), dtype=np.int32)
    kept = replace(topology, rank=rank)
    if relays:
        return kept
    return _restricted(kept, nodes=(rank >= 0) | (topology.kind != NodeKind.GPU))


def remove_nodes(topology: Topology, names: Iterable[str]) -> Topology:
    """Remove nodes and their links; the remaining ranks are renumbered.

    Raises:
        InputError: If a node does not exist, or no rank remains.
    """
    keep = np.ones(topology.num_nodes, dtype=np.bool_)
    keep[[find_node(topology, name) for name in names]] = False
    remaining = [v for v in topology.rank_nodes.tolist() if keep[v]]
    if not remaining:
        raise InputError(f"removing these nodes leaves no rank of {topology.name}: keep at least one GPU.")
    rank = np.full(topology.num_nodes, -1, dtype=np.int32)
    rank[remaining] = np.arange(len(remaining), dtype=np.int32)
    return _restricted(replace(topology, rank=rank), nodes=keep)


def without_dead_ends(topology: Topology) -> Topology:
    """Remove switches, NICs and relays that connect nothing: no traffic can pass through them.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> left = remove_nodes(preset("dgx-a100-pcie"), ["gpu0", "gpu1"])  # both GPUs of a PCIe switch
        >>> left.num_nodes, without_dead_ends(left).num_nodes
        (13, 12)
    """
    keep = np.ones(topology.num_nodes, dtype=np.bool_)
    while True:
        links = keep[topology.src] & keep[topology.dst]
        neighbours: list[set[int]] = [set() for _ in range(topology.num_nodes)]
        for a, b in zip(topology.src[links].tolist(), topology.dst[links].tolist(), strict=True):
            neighbours[a].add(b)
            neighbours[b].add(a)
        dead = [v for v in np.flatnonzero(keep & (topology.rank < 0)).tolist() if len(neighbours[v]) < 2]
        if not dead:
            return topology if keep.all() else _restricted(topology, nodes=keep)
        keep[dead] = False


def remove_links(topology: Topology, ends: Iterable[tuple[str, str]], *, one_way: bool = False) -> Topology:
    """Remove the links between pairs of nodes, in both directions unless ``one_way``.

    Raises:
        InputError: If there is no such link.
    """
    keep = np.ones(topology.num_links, dtype=np.bool_)
    for src, dst in ends:
        keep[_links_between(topology, src, dst, one_way=one_way)] = False
    return _restricted(topology, links=keep)


def slower_both_ways(topology: Topology) -> Topology:
    """The topology with each link at the rate of the slower direction; links that lead one way only are gone.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> torn = remove_links(preset("ring", gpus=4), [("gpu0", "gpu1")], one_way=True)
        >>> torn.num_links, slower_both_ways(torn).num_links
        (7, 6)
    """
    index = topology.link_index
    rates = _rates(topology)
    back = (index.get((b, a)) for a, b in index)
    none = Fraction(0)
    return _with_rates(
        topology, [min(rates[e], none if other is None else rates[other]) for e, other in enumerate(back)]
    )


def set_link_rate(
    topology: Topology, src: str, dst: str, gb_per_s: Rate, *, one_way: bool = False
) -> Topology:
    """Set the rate of the link from ``src`` to ``dst``, and back unless ``one_way``.

    Args:
        topology: Topology to change.
        src: Node that the link leaves.
        dst: Node that it enters.
        gb_per_s: New rate in GB/s, or a percentage of the old one as text (``"50%"``); 0 removes the link.
        one_way: Change only this direction.

    Raises:
        InputError: If there is no such link, or the rate is not one.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> slow = set_link_rate(preset("dgx-a100"), "gpu0", "nvswitch", "50%")
        >>> sorted(set(slow.capacity.tolist()))
        [150, 300]
    """
    chosen = _links_between(topology, src, dst, one_way=one_way)
    if str(gb_per_s).strip().endswith("%"):
        return _scaled_links(topology, chosen, _factor(gb_per_s, where=f"{src} -> {dst}"))
    rates = _rates(topology)
    for e in chosen.tolist():
        rates[e] = exact_rate(gb_per_s, where=f"{src} -> {dst}")
    return _with_rates(topology, rates)


def scale_nodes(topology: Topology, rates: Mapping[str, Rate]) -> Topology:
    """Scale all links of some nodes, to model a GPU, NIC or switch that lost part of its rate.

    Args:
        topology: Topology to change.
        rates: Factor for each node: a number (``0.5``, ``"1/2"``) or a percentage (``"50%"``).

    Raises:
        InputError: If a node does not exist, or a factor is no number of 0 or more.
    """
    for name, factor in rates.items():
        v = find_node(topology, name)
        chosen = np.flatnonzero((topology.src == v) | (topology.dst == v))
        topology = _scaled_links(topology, chosen, _factor(factor, where=f"node {name}"))
    return topology


def scale(topology: Topology, factor: Rate) -> Topology:
    """Multiply every rate by a positive ``factor``.

    Raises:
        InputError: If the factor is not positive, or the rates do not fit any more.
    """
    exact = exact_rate(factor, where="scale")
    if exact == 0:
        raise InputError("expected a factor > 0 to scale all rates by, found 0.")
    return _with_rates(topology, [rate * exact for rate in _rates(topology)])


def round_rates(topology: Topology, digits: int) -> Topology:
    """Round rates to some decimals of GB/s (half to even).

    Raises:
        InputError: If a rate would vanish, or more than 9 decimals are asked for.
    """
    if digits > MOST_DIGITS:
        raise InputError(f"expected at most {MOST_DIGITS} decimals, found {digits}: keep fewer digits.")
    rates = _rates(topology)
    rounded = {rate: round(rate, digits) for rate in set(rates)}
    for rate, value in rounded.items():
        if value == 0:
            small = f"{float(rate):.3g}"
            raise InputError(
                f"rounding to {digits} decimals makes a rate of {small} GB/s vanish: keep more digits."
            )
    return _with_rates(topology, [rounded[rate] for rate in rates])


def merge_nodes(topology: Topology, names: Sequence[str], *, into: str) -> Topology:
    """Merge several switches or NICs into one; links that become parallel add up.

    Args:
        topology: Topology to change.
        names: Nodes of one kind, none of them a GPU.
        into: Name of the merged node; it copies or adds in hardware only if all of them do.

    Raises:
        InputError: If a node does not exist or is a GPU, kinds differ, or the name is taken.
    """
    group = [find_node(topology, name) for name in names]
    if (
        not group
        or len({int(topology.kind[v]) for v in group}) != 1
        or topology.kind[group[0]] == NodeKind.GPU
    ):
        raise InputError(
            f"expected switches, or NICs, to merge into {into!r}, found {', '.join(names) or 'none'}."
        )
    members = set(group)
    nodes: list[Node] = []
    for v, node in enumerate(topology.nodes()):
        if v not in members:
            nodes.append(node)
        elif v == min(members):
            hosts = {int(topology.host[u]) for u in members}
            nodes.append(
                replace(
                    node,
                    id=into,
                    host=node.host if len(hosts) == 1 else None,
                    multicast=bool(topology.multicast[group].all()),
                    aggregate=bool(topology.aggregate[group].all()),
                )
            )
    old = {topology.node_ids[v] for v in members}
    links = [
        replace(link, src=into if link.src in old else link.src, dst=into if link.dst in old else link.dst)
        for link in topology.links()
    ]
    return Topology.of(topology.name, nodes, links, source=topology.source)


def relabel(topology: Topology, names: Mapping[str, str]) -> Topology:
    """Rename some nodes.

    Raises:
        InputError: If a node does not exist, or names would repeat.
    """
    new = list(topology.node_ids)
    for old, name in names.items():
        new[find_node(topology, old)] = name
    if len(set(new)) != len(new):
        repeated = next(name for name in new if new.count(name) > 1)
        raise InputError(f"relabelling would give the name {repeated!r} to two nodes: choose another.")
    return replace(topology, node_ids=tuple(new))


def _links_between(topology: Topology, src: str, dst: str, *, one_way: bool) -> NDArray[np.int64]:
    a, b = find_node(topology, src), find_node(topology, dst)
    pairs = [(a, b)] if one_way else [(a, b), (b, a)]
    found = [topology.link_index[pair] for pair in pairs if pair in topology.link_index]
    if not found:
        near = topology.dst[topology.src == a].tolist()
        names = ", ".join(topology.node_ids[v] for v in near[:6]) or "nothing"
        raise InputError(f"{topology.name} has no link {src} -> {dst}: {src} is linked to {names}.")
    return np.array(found, dtype=np.int64)


def _factor(factor: Rate, *, where: str) -> Fraction:
    """A factor from a number, or from a percentage as text."""
    text = str(factor).strip()
    if text.endswith("%"):
        return exact_rate(text.removesuffix("%").strip(), where=where) / 100
    return exact_rate(factor, where=where)


def _scaled_links(topology: Topology, links: NDArray[np.int64], factor: Fraction) -> Topology:
    rates = _rates(topology)
    for e in links.tolist():
        rates[e] *= factor
    return _with_rates(topology, rates)


def _rates(topology: Topology) -> list[Fraction]:
    seen = {c: Fraction(c, topology.denominator) for c in np.unique(topology.capacity).tolist()}
    return [seen[c] for c in topology.capacity.tolist()]


def _with_rates(topology: Topology, rates: list[Fraction]) -> Topology:
    """Other rates, link by link; links of rate 0 disappear."""
    denominator = common_denominator(set(rates))
    changed = replace(topology, capacity=scaled(rates, denominator), denominator=denominator)
    return _restricted(changed, links=changed.capacity > 0)


def _restricted(
    topology: Topology, *, nodes: NDArray[np.bool_] | None = None, links: NDArray[np.bool_] | None = None
) -> Topology:
    """Only these nodes and links, with the capacities in lowest terms."""
    keep = np.ones(topology.num_links, dtype=np.bool_) if links is None else links
    src, dst = topology.src, topology.dst
    if nodes is not None:
        keep = keep & nodes[src] & nodes[dst]
        new_id = np.cumsum(nodes, dtype=np.int32) - np.int32(1)
        src, dst = new_id[src], new_id[dst]
    capacity = topology.capacity[keep]
    divisor = int(np.gcd.reduce(np.append(capacity, topology.denominator)))
    kept = replace(
        topology,
        src=src[keep],
        dst=dst[keep],
        capacity=capacity // divisor,
        denominator=topology.denominator // divisor,
        latency_us=topology.latency_us[keep],
    )
    if nodes is None:
        return kept
    used = sorted({int(h) for h in topology.host[nodes] if h >= 0})
    host = np.full(len(topology.hosts) + 1, -1, dtype=np.int32)  # the last entry maps -1 to itself
    host[used] = np.arange(len(used), dtype=np.int32)
    return replace(
        kept,
        node_ids=tuple(name for name, keeps in zip(topology.node_ids, nodes.tolist(), strict=True) if keeps),
        kind=topology.kind[nodes],
        host=host[topology.host[nodes]],
        hosts=tuple(topology.hosts[h] for h in used),
        rank=topology.rank[nodes],
        multicast=topology.multicast[nodes],
        aggregate=topology.aggregate[nodes],
        arch=tuple(itertools.compress(topology.arch, nodes.tolist())),
        cpu=tuple(itertools.compress(topology.cpu, nodes.tolist())),
        slot=tuple(itertools.compress(topology.slot, nodes.tolist())),
    )
