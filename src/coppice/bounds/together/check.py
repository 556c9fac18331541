"""Check a bound on concurrent collectives from the topology and the demands alone."""

from __future__ import annotations

from fractions import Fraction

from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import TogetherBound
from coppice.errors import CheckError
from coppice.topology.model import NodeKind, Topology


def check_together(found: TogetherBound) -> None:
    """Recount the bytes that must cross each cut and the capacity of the links that can carry them."""
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
    serving = [_Serving(found.topology, found.demands[number]) for number in found.counted]
    for link, (src, dst) in enumerate(
        zip(found.topology.src.tolist(), found.topology.dst.tolist(), strict=True)
    ):
        here, there = (dst, src) if found.entering else (src, dst)
        if here not in place or place.get(there) == place[here]:
            continue
        if any(each.serves(src, dst) for each in serving):
            crossing += int(found.topology.capacity[link])
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
    if total != found.seconds * rate * 10**9:
        _fail(f"{float(found.seconds):g} seconds", f"{float(total / rate / 10**9):g}")


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
