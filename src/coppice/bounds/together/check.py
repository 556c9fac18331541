"""Check a bound on concurrent collectives from the topology and the demands alone."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np

from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import TogetherBound
from coppice.bounds.together.priced import PricedProof, priced_time
from coppice.errors import CheckError
from coppice.topology.model import NodeKind, Topology


def check_together(found: TogetherBound) -> None:
    """Recount the bytes that must cross each cut and the capacity of the links that can carry them."""
    if found.priced is not None:
        _check_priced(found, found.priced)
        return
    if not found.sets:
        if found.seconds:
            _fail("sets that prove a time", f"none for {found.seconds} seconds")
        return
    place: dict[int, int] = {}
    for number, nodes in enumerate(found.sets):
        for node in nodes:
            if node in place:
                _fail("sets without a node in common", f"{found.topology.node_ids[node]} in two")
            place[node] = number
    crossing = 0
    spared = Fraction(0)
    serving = [(_Serving(found.topology, found.demands[number]), number) for number in found.counted]
    for link, (src, dst) in enumerate(
        zip(found.topology.src.tolist(), found.topology.dst.tolist(), strict=True)
    ):
        here, there = (dst, src) if found.entering else (src, dst)
        if here not in place or place.get(there) == place[here]:
            continue
        ends = [found.until[number] for each, number in serving if each.serves(src, dst)]
        known = [each for each in ends if each is not None]
        if len(known) < len(ends):
            crossing += int(found.topology.capacity[link])
        else:
            spared += int(found.topology.capacity[link]) * max(known, default=Fraction(0))
    spared *= Fraction(10**9, found.topology.denominator)
    if spared != found.spared_bytes:
        _fail(f"links that carry {float(found.spared_bytes):g} bytes before the end", f"{float(spared):g}")
    rate = Fraction(crossing, found.topology.denominator)
    if rate != found.gb_per_s:
        _fail(f"links of {float(found.gb_per_s):g} GB/s across the sets", f"{float(rate):g}")
    total = Fraction(0)
    for number, amount in zip(found.counted, found.needed_bytes, strict=True):
        counted = _crossing_bytes(found, found.demands[number], place)
        if counted != amount:
            name = found.demands[number].name
            _fail(f"{float(amount):g} bytes of {name} across the sets", f"{float(counted):g}")
        total += counted
    if total - spared != found.seconds * rate * 10**9:
        _fail(f"{float(found.seconds):g} seconds", f"{float((total - spared) / rate / 10**9):g}")


def _check_priced(found: TogetherBound, proof: PricedProof) -> None:
    """Recount what prices prove; each group counts once, with what it exchanges and all links that can serve it."""
    topology = found.topology
    known: Counter[tuple[tuple[int, ...], str, Fraction]] = Counter()
    for demand in found.demands:
        for ranks, size in zip(demand.groups.tolist(), demand.size_bytes, strict=True):
            if demand.collective == "send":
                known.update((pair, "broadcast", size) for pair in pairwise(ranks))
            else:
                known[tuple(ranks), demand.collective, size] += 1
    for group in proof.groups:
        key = group.ranks, group.collective.value, group.size_bytes
        if not known[key]:
            _fail("groups that exchange what the demands say", f"another one of ranks {group.ranks}")
        known[key] -= 1
        missing = _links_of_use(topology, group.ranks) - set(group.links.tolist())
        if missing:
            _fail(f"all links that serve ranks {group.ranks}", f"{topology.link_name(min(missing))} left out")
    counted = priced_time(topology, proof)
    if counted.seconds != found.seconds or (found.for_schedules and not counted.for_schedules):
        _fail(f"{float(found.seconds):g} seconds", f"{float(counted.seconds):g}")


def _links_of_use(topology: Topology, ranks: tuple[int, ...]) -> set[int]:
    """Links among members, switches and NICs, without what leads only back; all where members need other GPUs."""
    members = {int(topology.rank_nodes[rank]) for rank in ranks}
    demand = GroupDemand("", "all_reduce", np.array([ranks]), [Fraction(1)])
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    if not _Serving(topology, demand).alone:
        return set(range(len(ends)))
    near: dict[int, set[int]] = {}
    kept = {node for node, kind in enumerate(topology.kind.tolist()) if kind != NodeKind.GPU} | members
    for src, dst in ends:
        if src in kept and dst in kept:
            near.setdefault(src, set()).add(dst)
            near.setdefault(dst, set()).add(src)
    todo = [node for node in near if node not in members and len(near[node]) < 2]
    while todo:
        node = todo.pop()
        for other in near.pop(node, set()):
            near[other].discard(node)
            if other not in members and len(near[other]) < 2:
                todo.append(other)
    return {link for link, (src, dst) in enumerate(ends) if dst in near.get(src, ())}


def _fail(expected: str, counted: str) -> None:
    raise CheckError(f"expected {expected}, counted {counted}: the proof of the bound is wrong.")


def _crossing_bytes(found: TogetherBound, demand: GroupDemand, place: dict[int, int]) -> Fraction:
    """Bytes that cross, block by block: each has one source or one owner."""
    nodes = found.topology.rank_nodes.tolist()
    total = Fraction(0)
    for ranks, size in zip(demand.groups.tolist(), demand.size_bytes, strict=True):
        parts = [place.get(nodes[rank], -1) for rank in ranks]
        sets = {part for part in parts if part >= 0}
        everywhere = sets | set(parts)
        if len(everywhere) < 2:
            continue
        block = size / len(ranks)
        if demand.collective == "all_reduce":
            # As a graph of transfers between parts: all sums meet somewhere, and come back.
            total += size * (len(sets) if -1 in everywhere else 2 * (len(sets) - 1))
        elif demand.collective in ("all_gather", "reduce_scatter"):
            for own in parts:
                if found.entering == (demand.collective == "all_gather"):
                    # Each other set has the block delivered, or gives its part of the sum away.
                    total += block * len(sets - {own})
                elif -1 in everywhere:
                    total += block * (own >= 0)
                else:
                    total += block * (len(sets) - 1)
        else:
            pairs = (
                [(a, b, block) for a in parts for b in parts]
                if demand.collective == "all_to_all"
                else [(parts[k], parts[k + 1], size) for k in range(len(parts) - 1)]
            )
            for src, dst, amount in pairs:
                if src != dst and (dst if found.entering else src) >= 0:
                    total += amount
    return total


class _Serving:
    """Which links can serve the groups of a demand.

    Args:
        topology: The network.
        demand: The demand.
    """

    def __init__(self, topology: Topology, demand: GroupDemand) -> None:
        self.kind = topology.kind.tolist()
        self.rank = topology.rank.tolist()
        self.out: dict[int, list[int]] = {}
        self.into: dict[int, list[int]] = {}
        for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
            self.out.setdefault(src, []).append(dst)
            self.into.setdefault(dst, []).append(src)
        self.mates: dict[int, set[int]] = {}
        nodes = topology.rank_nodes.tolist()
        for ranks in demand.groups.tolist():
            group = {nodes[rank] for rank in ranks}
            for node in group:
                self.mates[node] = group
        self.known: dict[tuple[int, bool], set[int]] = {}
        self.alone = all(self._joined({nodes[rank] for rank in ranks}) for ranks in demand.groups.tolist())

    def serves(self, src: int, dst: int) -> bool:
        """Whether a link can carry something for a group."""
        if not self.alone:
            return True
        for gpu, other, forward in ((src, dst, True), (dst, src, False)):
            if self.kind[gpu] == NodeKind.GPU:
                mates = self.mates.get(gpu, set()) - {gpu}
                if not mates & self._gpus_from(other, forward=forward):
                    return False
        return True

    def _gpus_from(self, node: int, *, forward: bool) -> set[int]:
        """GPUs at the end of ways through switches and NICs."""
        if self.kind[node] == NodeKind.GPU:
            return {node}
        key = node, forward
        if key not in self.known:
            links = self.out if forward else self.into
            found, seen, todo = set(), {node}, [node]
            while todo:
                for other in links.get(todo.pop(), ()):
                    if self.kind[other] == NodeKind.GPU:
                        found.add(other)
                    elif other not in seen:
                        seen.add(other)
                        todo.append(other)
            self.known[key] = found
        return self.known[key]

    def _joined(self, group: set[int]) -> bool:
        """Whether members reach each other through switches, NICs and members, there and back."""
        first = min(group)
        for forward in (True, False):
            links = self.out if forward else self.into
            seen, todo = {first}, [first]
            while todo:
                for other in links.get(todo.pop(), ()):
                    for gpu in (self._gpus_from(other, forward=forward) & group) - seen:
                        seen.add(gpu)
                        todo.append(gpu)
            if seen != group:
                return False
        return True
