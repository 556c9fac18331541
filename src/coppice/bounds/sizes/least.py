"""The least time of a collective at each size, with the certificate that proves it.

Every collective that gives a rank bytes of its own from others (an all-gather, a broadcast, a gather, an all-to-all),
or takes them from it (the same turned round), is bounded by the time in which that rank alone could have them
(:mod:`coppice.bounds.sizes.arrival`). Where all ranks need the same, they need it at once: what all of them receive is
sent by ranks. An all-reduce makes every rank depend on M bytes of every other, so it is a broadcast of each rank's data
and a reduction to each rank, and pays for disjoint sets (:mod:`coppice.bounds.sizes.priced`), as an all-to-all pays for
lengths of links. What ranks of a box have for others leaves it as if all of these were one sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from coppice.bounds.all_reduce import bottleneck_parts
from coppice.bounds.optimum import bound_of
from coppice.bounds.partition import partition_bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, CutFamily, LinkLengths
from coppice.bounds.sizes.arrival import MovingCut, Sink
from coppice.bounds.sizes.between import between_boxes
from coppice.bounds.sizes.classes import refine
from coppice.bounds.sizes.crossings import Crossings, crossings
from coppice.bounds.sizes.growth import growth
from coppice.bounds.sizes.priced import Paid, PricedLinks, paid_by, priced_links
from coppice.bounds.sizes.timed import MessageCosts, TimedNetwork, nearest
from coppice.collectives import Collective
from coppice.topology.model import Topology

MOST_PAIRS = 64
"""Pairs of ranks of an all-reduce that are looked at."""

MOST_SINKS = 64
"""Ranks that are looked at, where no two are alike: those whose links are narrowest for what they need."""

MOST_ROOTS = 8
"""Ranks of an all-reduce whose data, or at which the sum, are looked at as those of a broadcast, or a reduction."""

MOST_BOXES = 8
"""Boxes that are looked at, where no two are alike."""

TO_ALL = (Collective.ALL_GATHER, Collective.BROADCAST, Collective.REDUCE_SCATTER, Collective.REDUCE)
"""Collectives that give the same to all ranks, or take it from all of them."""

FROM_ONE = (Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE)
"""Collectives that bring something of one rank to all, or of all to one."""

TURNED = (Collective.REDUCE_SCATTER, Collective.REDUCE, Collective.SCATTER)
"""Collectives that are bounded with every link turned round: what one rank gives the others."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TimeBound:
    """The least time of a collective at one size, with what proves it."""

    problem: Problem
    costs: MessageCosts
    size_bytes: int
    time_us: Fraction  # No schedule is faster; the start included
    cut: MovingCut | None = None  # The proof, from the first byte that leaves
    turned: bool = False  # The cut is one of the network in which every link leads the other way
    joint: bool = False  # And of that whose ways out of ranks begin at one node: all ranks at once
    boxed: bool = False  # Or of that whose ways out of boxes do: all boxes at once
    sources: tuple[
        int, ...
    ] = ()  # Ranks whose data are then looked at: all ranks receive them, or sums for them
    sinks: tuple[int, ...] = ()  # Nodes that need what crosses the cut; more than one of an all-to-all alone
    priced: PricedLinks | None = None  # Or this
    crossings: Crossings | None = None  # Or this
    # Or the number of ranks that can have something of one rank (`spread`), or of which one can (`gathered`)
    growth: str | None = None


class _Need(NamedTuple):
    turned: bool
    sink: Sink
    joint: bool = False
    boxed: bool = False
    sources: tuple[int, ...] = ()
    sinks: tuple[int, ...] = ()  # What the sink stands for, if it is no node of the network

    def limits(self, bound: TimeBound) -> bool:
        """Whether it is what sets a least time, under these costs or others."""
        own = (self.turned, self.joint, self.boxed, self.sources, self.sinks or (self.sink.node,))
        return own == (bound.turned, bound.joint, bound.boxed, bound.sources, bound.sinks)


class LinkPrices:
    """What prices links for all schedules of a collective, whatever messages cost; found on first use."""

    def __init__(self, problem: Problem, *, helped: bool = False) -> None:
        self._problem = problem
        self._helped = helped

    @cached_property
    def rows(self) -> list[tuple[CutFamily | LinkLengths, Paid]]:
        """Each witness with the prices of links that follow from it."""
        return [(witness, paid_by(self._problem, witness)) for witness in self._witnesses()]

    def _witnesses(self) -> list[CutFamily | LinkLengths]:
        problem = self._problem
        if problem.collective is Collective.ALL_TO_ALL:
            found = bound_of(problem)
            return [found.proof if isinstance(found.proof, LinkLengths) else crossing(problem, found)]
        witnesses: list[CutFamily | LinkLengths] = []
        if (
            problem.collective is Collective.ALL_REDUCE
            and problem.topology.num_ranks > 1
            and not self._helped
        ):
            found = bound_of(problem)
            if isinstance(found.proof, CutFamily) and disjoint(found.proof):
                witnesses.append(found.proof)
            else:  # trees of two phases are not the only schedules: disjoint sets bind all
                phase = bound_of(problem.phases[1])
                parts = bottleneck_parts(problem.topology, phase.inv_rate)
                witnesses += [partition_bound(problem.topology, parts).proof] if len(parts) > 1 else []
            parts = [tuple(nodes) for nodes, _ in boxes(problem.topology)]
            if 1 < len(parts) < problem.topology.num_ranks:
                witnesses.append(partition_bound(problem.topology, parts).proof)
        return witnesses


class TimeBounds:
    """Least times of a problem at any size, under given costs of messages.

    With `helped` they hold for schedules as well in which switches copy and add where they can.
    """

    def __init__(
        self,
        problem: Problem,
        costs: MessageCosts,
        *,
        helped: bool = False,
        prices: LinkPrices
        | None = None,  # Those of the problem, where they are wanted for other costs as well
    ) -> None:
        self.problem = problem
        self.costs = costs
        self._helped = helped
        self._prices = LinkPrices(problem, helped=helped) if prices is None else prices
        self._network = TimedNetwork.of(problem.topology, costs)

    def least(self, size_bytes: int, *, like: TimeBound | None = None) -> TimeBound:
        """The least time of a message of this size.

        Args:
            size_bytes: M in bytes.
            like: The least time under other costs: what sets it is looked at first, as the rest is then soon seen to
                take less.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> star = Problem(preset("star", gpus=4, gb_per_s=10), "all_gather")
            >>> bounds = TimeBounds(star, MessageCosts(message_us=2))
            >>> bounds.least(0).time_us, bounds.least(40_000).time_us
            (Fraction(2, 1), Fraction(5, 1))
        """
        problem, costs = self.problem, self.costs
        best = TimeBound(problem=problem, costs=costs, size_bytes=size_bytes, time_us=Fraction(0))
        least_ns = Fraction(0)
        if self._growth is not None:
            least_ns, direction = self._growth
            best = replace(best, growth=direction)
        whole = whole_shares(problem, size_bytes)
        for priced in self._priced:
            time_ns = priced.least_time(whole)
            if time_ns > least_ns:
                least_ns, best = time_ns, replace(best, priced=priced, growth=None)
        for crossed in self._crossings:
            time_ns = crossed.least_time(whole)
            if time_ns > least_ns:
                least_ns, best = time_ns, replace(best, crossings=crossed, priced=None, growth=None)
        part = whole / problem.shards if problem.shards else Fraction(0)
        needs = self._needs if like is None else sorted(self._needs, key=lambda each: not each.limits(like))
        for need in needs:
            found = need.sink.least_time(part, least_ns)
            if found is not None:
                least_ns = found.time_ns
                best = replace(
                    best,
                    cut=found.apart(need.sinks) if need.sinks else found,
                    turned=need.turned,
                    joint=need.joint,
                    boxed=need.boxed,
                    sources=need.sources,
                    sinks=need.sinks or (need.sink.node,),
                    priced=None,
                    crossings=None,
                    growth=None,
                )
        start = Fraction(str(costs.start_us)) if least_ns else Fraction(0)
        return replace(best, time_us=least_ns / 1000 + start)

    @cached_property
    def _growth(self) -> tuple[Fraction, str] | None:
        return None if self._helped else growth(self.problem, self.costs)

    @cached_property
    def _priced(self) -> list[PricedLinks]:
        """Bounds from prices: those of the bound on the rate, and sends where ranks send less than their links."""
        problem = self.problem
        found = [
            priced_links(problem, self._network, witness, paid=paid) for witness, paid in self._prices.rows
        ]
        limited = self.costs.gpu_gb_per_s is not None and not self._helped
        if limited and problem.collective in (Collective.ALL_REDUCE, Collective.ALL_TO_ALL):
            found.append(priced_links(problem, self._network, None))
        return found

    @cached_property
    def _crossings(self) -> list[Crossings]:
        """Bounds from messages between boxes, where all ranks are in some box."""
        if self.problem.collective is not Collective.ALL_REDUCE or not self._in_boxes:
            return []
        limited = self.costs.gpu_gb_per_s is not None
        found = [
            crossings(self._network, self._in_boxes, ports=ports) for ports in (False, True)[: 1 + limited]
        ]
        return [each for each in found if each is not None]

    @cached_property
    def _in_boxes(self) -> list[list[int]]:
        """Nodes of the ranks of each box, where messages between boxes count: two or more boxes with all ranks."""
        topology = self.problem.topology
        ranks = [members for _, members in boxes(topology)]
        is_counted = len(ranks) > 1 and sum(map(len, ranks)) == topology.num_ranks
        return ranks if is_counted and not self._helped else []

    @cached_property
    def _needs(self) -> list[_Need]:
        """What is looked at: a rank of each class, those that are likely to need most time first, and all at once."""
        made = [
            _Need(turned, sink)
            for turned, node, share in self._shares()
            if (sink := Sink.of(self._turned if turned else self._network, node, share)) is not None
        ]
        made.sort(key=lambda each: (each.sink.distance, -each.sink.room), reverse=True)
        if self.problem.collective is Collective.ALL_TO_ALL:
            made += self._between_boxes()
        if not self._helped:
            made += self._together()
            made += self._over_boxes()
        return made

    def _together(self) -> Iterator[_Need]:
        """All ranks at once, where they need the same, looking at the data of some."""
        nodes = self.problem.topology.rank_nodes.tolist()
        for turned, sources in self._looked_at(nodes):
            network = self._turned if turned else self._network
            ways = nearest(network.tail, network.head, network.latency, [nodes[i] for i in sources])
            network = network.joint({node: ways[node] for node in nodes}).reversed()
            sink = Sink.of(network, network.num_nodes - 1, self._received(sources))
            if sink is not None:
                yield _Need(turned, sink, joint=True, sources=sources)

    def _over_boxes(self) -> Iterator[_Need]:
        """All boxes at once, where they need the same of one rank."""
        nodes = self.problem.topology.rank_nodes.tolist()
        if self.problem.collective not in FROM_ONE or not self._in_boxes:
            return
        for turned, (source,) in self._looked_at(nodes):
            network = self._turned if turned else self._network
            boxed = between_boxes(network, self._in_boxes, nodes[source]).reversed()
            share = {members[-1]: 1 for members in self._in_boxes if nodes[source] not in members}
            sink = Sink.of(boxed, boxed.num_nodes - 1, share)
            if sink is not None:
                yield _Need(turned, sink, boxed=True, sources=(source,))

    def _looked_at(self, nodes: list[int]) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Ranks whose data all others receive, or (turned) which receive sums of all others."""
        problem, turned = self.problem, self.problem.collective in TURNED
        if problem.collective is Collective.ALL_REDUCE:
            for backwards in (False, True):
                for root in self._one_of_each(nodes, {}, turned=backwards)[:MOST_ROOTS]:
                    yield backwards, (nodes.index(root),)
        elif problem.collective in TO_ALL and problem.root is not None:
            yield turned, (problem.root,)
        elif problem.collective in TO_ALL:
            weights = problem.weights or [1] * len(nodes)
            held = {i for i, weight in enumerate(weights) if weight}
            inside = [{nodes.index(node) for node in members} for members in self._kinds_of_boxes()]
            for chosen in ({*range(len(nodes))}, *({*range(len(nodes))} - each for each in inside), *inside):
                if held & chosen:
                    yield turned, tuple(sorted(held & chosen))

    def _received(self, sources: tuple[int, ...]) -> dict[int, int]:
        """Parts of the message that each node receives, or sends, if all ranks are to have the data of some."""
        nodes = self.problem.topology.rank_nodes.tolist()
        whole = self.problem.weights or [1] * len(nodes)
        weights = dict.fromkeys(nodes, 0) | {nodes[i]: whole[i] for i in sources}
        total = sum(weights.values())
        return {node: total - weight for node, weight in weights.items()}

    def _kinds_of_boxes(self) -> list[list[int]]:
        """Nodes of the ranks of a box of each kind, of several."""
        topology, shares = self.problem.topology, self.problem.weights
        colour = np.full(self._network.num_nodes, -1, dtype=np.int64)
        if shares is not None:
            colour[topology.rank_nodes] = shares
        classes = refine(self._network, colour)
        kinds: dict[tuple[int, ...], list[int]] = {}
        for number, (_, members) in enumerate(boxes(topology)):
            alike = (number,) if self.problem.demands else tuple(sorted(classes[members].tolist()))
            kinds.setdefault(alike, members)
        return [each for each in kinds.values() if 1 < len(each) < topology.num_ranks][:MOST_BOXES]

    def _between_boxes(self) -> Iterator[_Need]:
        """What the ranks of a box have for all others, and these for them, for a box of each kind."""
        demands = self.problem.demands
        nodes = self.problem.topology.rank_nodes.tolist()
        for members in self._kinds_of_boxes():
            inside = [node in set(members) for node in nodes]
            for into in (True, False):
                sinks = [i for i, within in enumerate(inside) if within is into]
                share = {
                    node: len(sinks) if demands is None else sum(demands[i][j] for j in sinks)
                    for i, node in enumerate(nodes)
                    if inside[i] is not into
                }
                ends = tuple(nodes[j] for j in sinks)
                network = self._network.merged(ends)
                sink = Sink.of(network, network.num_nodes - 1, share)
                if sink is not None:
                    yield _Need(turned=False, sink=sink, sinks=ends)

    @cached_property
    def _turned(self) -> TimedNetwork:
        return self._network.reversed()

    def _shares(self) -> Iterator[tuple[bool, int, Mapping[int, int]]]:
        """Direction, sink, and what each node has for it in parts of the message."""
        problem = self.problem
        collective, nodes = problem.collective, problem.topology.rank_nodes.tolist()
        turned = collective in TURNED
        if collective in (Collective.GATHER, Collective.SCATTER):
            yield turned, nodes[problem.root or 0], dict.fromkeys(nodes, 1)
        elif collective in (Collective.BROADCAST, Collective.REDUCE):
            root = nodes[problem.root or 0]
            for sink in self._one_of_each(nodes, {root: 1}, turned=turned):
                if sink != root:
                    yield turned, sink, {root: 1}
        elif collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            weights = dict(zip(nodes, problem.weights or [1] * len(nodes), strict=True))
            for sink in self._one_of_each(nodes, weights, turned=turned):
                yield turned, sink, weights
        elif collective is Collective.ALL_TO_ALL:
            yield from self._exchanged(nodes)
        else:
            yield from self._pairs(nodes)

    def _exchanged(self, nodes: list[int]) -> Iterator[tuple[bool, int, Mapping[int, int]]]:
        demands = self.problem.demands
        for turned in (False, True):
            if demands is None:
                for sink in self._one_of_each(nodes, {}, turned=turned):
                    yield turned, sink, dict.fromkeys(nodes, 1)
            else:
                columns = dict(zip(nodes, demands if turned else zip(*demands, strict=True), strict=True))
                needed = {sink: sum(column) for sink, column in columns.items()}
                for sink in self._narrowest(nodes, needed, turned=turned):
                    yield turned, sink, dict(zip(nodes, columns[sink], strict=True))

    def _pairs(self, nodes: list[int]) -> Iterator[tuple[bool, int, Mapping[int, int]]]:
        """Pairs of ranks, of which the second depends on all bytes of the first: the farthest for each class."""
        empty = self.problem.collective is Collective.BARRIER
        found: list[tuple[int, int, int]] = []
        for sink in self._one_of_each(nodes, {}, turned=False):
            turned = self._turned
            ways = nearest(turned.tail, turned.head, turned.latency, [sink])
            colour = np.zeros(self._network.num_nodes, dtype=np.int64)
            colour[sink] = 1
            classes = refine(self._network, colour)
            _, first = np.unique(classes[nodes], return_index=True)
            found += [(ways[nodes[i]], sink, nodes[i]) for i in first.tolist() if nodes[i] != sink]
        found.sort(key=lambda each: -each[0])
        for _, sink, source in found[: 1 if empty else MOST_PAIRS]:
            yield False, sink, {source: 1}

    def _one_of_each(self, nodes: list[int], weights: Mapping[int, int], *, turned: bool) -> list[int]:
        """A rank of each class that the network and the shares do not tell apart."""
        colour = np.full(self._network.num_nodes, -1, dtype=np.int64)
        for node in nodes:
            colour[node] = weights.get(node, 0)
        classes = refine(self._turned if turned else self._network, colour)
        _, first = np.unique(classes[nodes], return_index=True)
        apart = [nodes[i] for i in sorted(first.tolist())]
        return self._narrowest(apart, dict.fromkeys(apart, 1), turned=turned)

    def _narrowest(self, nodes: list[int], needed: Mapping[int, int], *, turned: bool) -> list[int]:
        """Of more ranks than can be looked at those that would wait longest for their own links."""
        if len(nodes) <= MOST_SINKS:
            return nodes
        network = self._turned if turned else self._network
        room = np.bincount(network.head, weights=network.capacity, minlength=network.num_nodes)
        chosen = sorted(nodes, key=lambda node: -needed[node] / max(float(room[node]), 1.0))[:MOST_SINKS]
        return sorted(chosen)


def whole_shares(problem: Problem, size_bytes: int) -> Fraction:
    """Bytes of the message of which every share is no more than what it is in whole bytes, rounded up or down.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> star = preset("star", gpus=5)
        >>> [int(whole_shares(Problem(star, "all_gather"), size)) for size in (4, 5, 1024)]
        [0, 5, 1020]
        >>> int(whole_shares(Problem(star, "broadcast", root=0), 1024))
        1024
    """
    parts: Sequence[int] = (1,)
    if problem.demands is not None:
        parts = [each for i, row in enumerate(problem.demands) for j, each in enumerate(row) if i != j]
    elif problem.weights is not None:
        parts = problem.weights
    shards = problem.shards
    return min(
        (Fraction(size_bytes * each // shards) * shards / each for each in {*parts} if each and shards),
        default=Fraction(size_bytes),
    )


def boxes(topology: Topology) -> list[tuple[list[int], list[int]]]:
    """Nodes of each box that has ranks, and those of its ranks.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [(len(nodes), len(ranks)) for nodes, ranks in boxes(preset("dgx-h100", boxes=2))]
        [(9, 8), (9, 8)]
    """
    found = []
    for host in np.unique(topology.host[topology.rank_nodes]).tolist():
        if host >= 0:
            nodes = np.flatnonzero(topology.host == host)
            found.append((nodes.tolist(), nodes[topology.rank[nodes] >= 0].tolist()))
    return found


def crossing(problem: Problem, found: Bound) -> LinkLengths:
    """Lengths that count the links out of the bottleneck."""
    topology = problem.topology
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[list(found.cut)] = True
    length = inside[topology.src] & ~inside[topology.dst]
    return LinkLengths(inv_rate=found.inv_rate, length=tuple(length.astype(int).tolist()))


def disjoint(family: CutFamily) -> bool:
    """Whether no node is in two sets, so that the family binds every all-reduce."""
    if family.symmetry is not None and family.symmetry.order > 1:
        return False
    nodes = [node for cut in family.cuts for node in cut.nodes]
    return len(nodes) == len(set(nodes))
