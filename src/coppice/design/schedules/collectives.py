"""Convert deliveries to schedules of all-gather, reduce-scatter and all-reduce.

A reduce-scatter is the all-gather of the transposed graph, backwards: whoever received a piece sends what it has added
up of it to where it came from. An all-reduce is a reduce-scatter and then an all-gather of the same shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.design.graph import Graph, translated
from coppice.design.recipes.recipe import Recipe
from coppice.design.schedules.breadth_first import (
    MAX_RUNS,
    Deliveries,
    ScheduleFacts,
    breadth_first_deliveries,
    loads_of,
)
from coppice.design.schedules.expanded import expanded_deliveries
from coppice.errors import InputError
from coppice.rows import ranges
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True)
class Designed:
    """A stepwise schedule with its figures."""

    schedule: Schedule  # The schedule
    graph: Graph  # The network that it was made for
    # Load of the busiest link in each step, in shards per link of capacity 1; counted
    step_loads: tuple[Fraction, ...]
    least_loads: tuple[Fraction, ...]  # What breadth-first broadcast attains with enough pieces
    pieces: int  # Pieces of every shard
    # An all-gather in it follows from the expansions of a recipe, since that is faster
    expanded: bool = False

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.step_loads)

    @property
    def bandwidth_time(self) -> Fraction:
        """T_B in units of M over the bandwidth of a node, with a barrier after each step."""
        return sum(self.step_loads, Fraction(0)) * self.graph.degree / self.graph.num_nodes

    @property
    def loss(self) -> Fraction:
        """Relative loss by finitely many sub-chunks; 0 where exact."""
        least = sum(self.least_loads, Fraction(0))
        return sum(self.step_loads, Fraction(0)) / least - 1 if least else Fraction(0)

    def inv_rate(self, gb_per_s: Fraction) -> Fraction:
        """Time per unit of the collective's shard in 1 / (GB/s), for links of capacity 1 of this rate."""
        shards = self.schedule.collective.shards(self.graph.num_nodes)
        return sum(self.step_loads, Fraction(0)) * shards / self.graph.num_nodes / gb_per_s


def breadth_first_schedule(
    graph: Graph,
    topology: Topology,  # What `graph.to_topology()` returned; rank r is node r
    collective: Collective = Collective.ALL_GATHER,
    *,
    # What the graph was built from: where the schedule that follows from its expansions is faster, that is
    # taken, for reduce-scatters too if links are full-duplex
    recipe: Recipe | None = None,
    # Pieces of every shard; None as :func:`~coppice.design.schedules.breadth_first.breadth_first_deliveries`
    # chooses
    pieces: int | None = None,
    max_runs: int = MAX_RUNS,
) -> Designed:
    """Breadth-first broadcast of a graph as a schedule on its topology.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> ring = cayley_graph("ring of 4", [4], [[1], [-1]])
        >>> made = breadth_first_schedule(ring, ring.to_topology())
        >>> made.steps, made.schedule.num_transfers, str(made.bandwidth_time)
        (2, 24, '3/4')
    """
    phases: list[tuple[Deliveries, ScheduleFacts]] = []
    if collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        phases.append(breadth_first_deliveries(graph.transposed(), pieces=pieces, max_runs=max_runs))
    if collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE):
        phases.append(breadth_first_deliveries(graph, pieces=pieces, max_runs=max_runs))
    made = [deliveries for deliveries, _ in phases]
    loads = [loads_of(deliveries) for deliveries in made]
    least = [facts.step_loads for _, facts in phases]
    expanded = None if recipe is None or pieces is not None else _expanded(recipe, max_runs)
    replaced = False
    if expanded is not None:
        followed = loads_of(expanded)
        for number in range(len(made)):
            forward = number == 1 or collective is Collective.ALL_GATHER
            if (forward or graph.bidirectional) and sum(followed) < sum(loads[number]):
                made[number], loads[number], least[number] = expanded, followed, followed
                replaced = True
    if collective is not Collective.ALL_GATHER and made:
        loads[0], least[0] = loads[0][::-1], least[0][::-1]
    return Designed(
        schedule=schedule_of(topology, collective, made),
        graph=graph,
        step_loads=tuple(load for phase in loads for load in phase),
        least_loads=tuple(load for phase in least for load in phase),
        pieces=max(deliveries.pieces for deliveries in made),
        expanded=replaced,
    )


def _expanded(recipe: Recipe, max_runs: int) -> Deliveries | None:
    """The schedule that follows from the expansions, where it may be another one and is not too large."""
    facts = recipe.facts()
    if facts.exact:
        return None
    try:
        return expanded_deliveries(recipe, max_runs=max_runs)
    except InputError:
        return None


def schedule_of(topology: Topology, collective: Collective, phases: list[Deliveries]) -> Schedule:
    """Schedule of one or two phases.

    Args:
        topology: Rank r is node r; it must have all links that the phases use.
        collective: All-gather, with the deliveries on the graph; reduce-scatter, with those on the transposed
            graph; all-reduce, with first the latter and then the former.
    """
    reducing = collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
    if not (reducing or collective is Collective.ALL_GATHER) or len(phases) != 1 + (
        collective is Collective.ALL_REDUCE
    ):
        raise InputError(
            f"expected all_gather, reduce_scatter or all_reduce with a phase for each half, found {collective}."
        )
    pieces = int(np.lcm.reduce([phase.pieces for phase in phases]))
    cuts = _cuts(phases, pieces)
    parts, begun = [], 0
    for number, phase in enumerate(phases):
        backwards = reducing and number == 0
        parts.append(_rows(topology, phase, cuts, pieces, begun, backwards=backwards))
        begun += phase.steps
    src, dst, chunk, path, step = (
        parts[0][column] if len(parts) == 1 else np.concatenate([part[column] for part in parts])
        for column in range(5)
    )
    op = np.full(len(src), Op.COPY, dtype=np.int8)
    if reducing:
        op[: len(parts[0][0])] = Op.REDUCE
    ranks = topology.num_ranks
    return Schedule(
        topology=topology,
        collective=collective,
        root=-1,
        slot_weight=np.ones(ranks, dtype=np.int64),
        chunk_slot=np.repeat(np.arange(ranks, dtype=np.int32), len(cuts) - 1),
        chunk_share=np.tile(np.diff(cuts), ranks),
        src=src,
        dst=dst,
        chunk=chunk,
        op=op,
        path=path,
        step=step,
        after_start=np.zeros(len(src) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.arange(0, 2 * topology.num_links + 1, 2, dtype=np.int64),
        path_nodes=np.stack([topology.src, topology.dst], axis=1).ravel().astype(np.int32),
    )


def _cuts(phases: list[Deliveries], pieces: int) -> NDArray[np.int64]:
    """Where shards are cut into chunks: wherever a run begins or ends."""
    places = [np.array([0, pieces], dtype=np.int64)]
    for phase in phases:
        scale = pieces // phase.pieces
        ends = phase.first.astype(np.int64) + phase.count
        places.extend([np.unique(phase.first).astype(np.int64) * scale, np.unique(ends) * scale])
    return np.unique(np.concatenate(places))


def _rows(
    topology: Topology,
    phase: Deliveries,
    cuts: NDArray[np.int64],
    pieces: int,
    begun: int,
    *,
    backwards: bool,
) -> tuple[NDArray[np.int32], ...]:
    """(src, dst, chunk, path, step) of all transfers of a phase, images included, by step."""
    graph, scale, chunks = phase.graph, pieces // phase.pieces, len(cuts) - 1
    low = np.searchsorted(cuts, phase.first.astype(np.int64) * scale)
    high = np.searchsorted(cuts, (phase.first.astype(np.int64) + phase.count) * scale)
    run = np.repeat(np.arange(len(low)), high - low)
    piece = ranges(low, high - low)
    if backwards:
        run, piece = run[::-1], piece[::-1]
    if phase.symmetric and graph.orders:
        images = np.ascontiguousarray(translated(graph).T)  # images[v, x]
    else:
        images = np.arange(graph.num_nodes, dtype=np.int32)[:, None]
    sender, receiver = (phase.dst, phase.src) if backwards else (phase.src, phase.dst)
    step = phase.steps - 1 - phase.step if backwards else phase.step
    link, link_of_run = _links(topology, images, sender, receiver)
    slot = images[phase.root[run]]
    return (
        images[sender[run]].ravel(),
        images[receiver[run]].ravel(),
        (slot * np.int32(chunks) + piece[:, None].astype(np.int32)).ravel(),
        link[link_of_run[run]].ravel(),
        np.repeat((step[run] + begun).astype(np.int32), images.shape[1]),
    )


def _links(
    topology: Topology, images: NDArray[np.int32], src: NDArray[np.int32], dst: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.integer]]:
    """Link of the topology for each distinct pair of nodes and each image, and the pair of each run."""
    nodes, at = topology.num_nodes, topology.rank_nodes
    pair, place = np.unique(src.astype(np.int64) * len(images) + dst, return_inverse=True)
    tail, head = at[images[pair // len(images)]], at[images[pair % len(images)]]
    wanted = tail.astype(np.int64) * nodes + head
    key = topology.src.astype(np.int64) * nodes + topology.dst  # ascending: links are sorted
    link = np.minimum(np.searchsorted(key, wanted), max(0, len(key) - 1))
    if wanted.size and not bool((key[link] == wanted).all()):
        raise InputError(
            f"expected a topology with every link of the graph, found {topology.name} without some."
        )
    return link.astype(np.int32), place.ravel()
