"""Simulated collective costs: concurrent groups on shared links, at a few sizes, interpolated between them.

A time is simulated at the powers of two around a size, and in between it is interpolated: exact where it is a line in
the size; pipelines, and a change of the protocol or algorithm in between, cost up to 5%. Groups of more
than 128 ranks over boxes that are all alike are simulated with 16, 32 and 64 ranks; their time goes on as
a + b (1 - 1 / boxes) + c boxes, of trees with log2(boxes) instead, with numbers of 0 or more that fit best: exact for
rings.

Groups fall into sets that share links. Of sets that are alike, message by message and link by link, one is simulated.
Where boxes hang on switches that are not linked among themselves, every link belongs to one box. Groups that share no
box then share no link, and if boxes are alike, what happens in one set of boxes that groups join happens in all of them
at the same time: that part of the cluster stands for all of it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.costs.chosen import (
    Chooser,
    Pick,
    body_of,
    forest_pick,
    known_algorithms,
    named_pick,
    nccl_pick,
    send_body,
    suited,
)
from coppice.iteration.costs.group import COLLECTIVES, CollectiveCost, CollectiveCosts, RankGroup
from coppice.iteration.machine import Cluster
from coppice.schedule.forest import Forest
from coppice.schedule.messages import Messages, messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.engine import run
from coppice.simulation.jobs import joined
from coppice.simulation.models import DEFAULT_MODEL, Model
from coppice.simulation.simulator import fastest
from coppice.simulation.timeline import Timeline
from coppice.text import suggestion
from coppice.topology.model import NodeKind, Topology
from coppice.topology.operations import remove_nodes, subset

_MOST_UNLIKE = 512


@dataclass(frozen=True, eq=False)
class Standing:
    """Concurrent groups on the representative part of a cluster."""

    topology: Topology  # The part
    groups: list[list[int]]  # Ranks of each group on it
    boxes: int = 0  # Boxes of the part; 0 where it is the whole cluster, whose boxes differ or share links
    box: int = 0  # Ranks of a box; 0 likewise


def box_of_all(topology: Topology) -> int:
    """Ranks per box, if boxes are equal and own all links; otherwise 0.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_of_all(preset("dgx-a100", boxes=4)), box_of_all(preset("fat-tree", leaves=2, gpus_per_leaf=4))
        (8, 0)
    """
    hosts = topology.host[topology.rank_nodes]
    if (hosts < 0).any() or ((topology.host[topology.src] < 0) & (topology.host[topology.dst] < 0)).any():
        return 0
    names, counts = np.unique(hosts, return_counts=True)
    box = int(counts[0])
    if (counts != box).any() or (hosts.reshape(-1, box) != hosts[::box, None]).any():
        return 0
    place = _places(topology)
    columns = (place[topology.src], place[topology.dst], topology.capacity, topology.latency_us)
    owner = np.maximum(topology.host[topology.src], topology.host[topology.dst])
    joined = (topology.host[topology.src] >= 0) & (topology.host[topology.dst] >= 0)
    if (joined & (topology.host[topology.src] != topology.host[topology.dst])).any():
        return 0
    first: bytes | None = None
    for host in names.tolist():
        own = np.flatnonzero(owner == host)
        rows = np.stack([column[own].astype(np.float64) for column in columns], axis=1)
        key = rows[np.lexsort(rows.T[::-1])].tobytes() + topology.kind[topology.host == host].tobytes()
        if first is not None and key != first:
            return 0
        first = key
    return box


def _places(topology: Topology) -> NDArray[np.int64]:
    """Index of each node in its box; switches outside boxes are numbered after all of these."""
    place = np.arange(topology.num_nodes, dtype=np.int64) + topology.num_nodes
    for host in np.unique(topology.host[topology.host >= 0]).tolist():
        own = np.flatnonzero(topology.host == host)
        place[own] = np.arange(len(own))
    return place


def standing(topology: Topology, group: RankGroup, *, most_ranks: int | None = None) -> Standing:
    """Choose the representative part: the boxes of the first group; the whole cluster where boxes differ.

    Args:
        most_ranks: Take shorter groups of up to so many ranks, if boxes are alike.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = standing(preset("dgx-h100", boxes=16), RankGroup(2, 8))
        >>> found.topology.num_ranks, len(found.groups), found.groups[0]
        (16, 8, [0, 8])
    """
    total = topology.num_ranks
    every = group.members(total)
    box = box_of_all(topology)
    span = group.ranks * group.stride
    regular = box and (
        box % span == 0 or (span % box == 0 and (box % group.stride == 0 or group.stride % box == 0))
    )
    if not regular:
        if group.ranks > _MOST_UNLIKE:
            raise InputError(
                f"expected groups of up to {_MOST_UNLIKE} ranks on a cluster whose boxes are not alike, found "
                f"{group.ranks}: take calibrated collectives."
            )
        return Standing(topology, every)
    ranks = group.ranks if most_ranks is None else min(group.ranks, most_ranks)
    # The first box, and those that its groups reach.
    chosen = sorted({rank // box for each in every if each[0] < box for rank in each[:ranks]})
    kept = [rank for number in chosen for rank in range(number * box, (number + 1) * box)]
    place = {rank: position for position, rank in enumerate(kept)}
    groups = [
        [place[rank] for rank in each[:ranks]]
        for each in every
        if all(rank in place for rank in each[:ranks])
    ]
    if len(chosen) * box == total:
        return Standing(topology, groups, total // box, box)
    hosts = set(topology.host[topology.rank_nodes[kept]].tolist())
    gone = (topology.host >= 0) & ~np.isin(topology.host, sorted(hosts))
    part = remove_nodes(topology, [topology.node_ids[node] for node in np.flatnonzero(gone).tolist()])
    return Standing(part, groups, len(chosen), box)


MOST_MESSAGES = 2**18
"""Chunks are cut into as many pieces at most as keep a simulation to so many messages."""

_KINDS = ("NVLink", "NIC", "fabric")


def simulated_together(
    bodies: Sequence[Schedule | Forest], topology: Topology, size_bytes: int, model: Model
) -> CollectiveCost:
    """Simulate a collective in several groups that start together.

    Args:
        bodies: What each group carries out, on the cluster or parts of it that keep the names of its nodes.
    """
    plain = [
        messages_of(body, size_bytes, steps_bind=model.steps_bind, packed=model.packed) for body in bodies
    ]
    found = CollectiveCost(0.0)
    for numbers in _distinct_sets(plain, topology):
        timeline = _set_of_groups([bodies[n] for n in numbers], topology, size_bytes, model)
        # What a model adds to a topology, such as channels of GPUs, comes after its links.
        on = plain[numbers[0]].topology if len(numbers) == 1 else topology
        found = max(found, _cost(timeline, on), key=lambda each: each.seconds)
    return found


def link_kinds(topology: Topology) -> NDArray[np.int64]:
    """Kind of each link: 0 inside a box, 1 at a box or a NIC, 2 between switches.

    Where nodes belong to no box, links of GPUs are those of NICs.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> np.bincount(link_kinds(preset("dgx-a100", boxes=2))).tolist()
        [32, 64]
    """
    ends = topology.src, topology.dst
    hosts = [topology.host[end] for end in ends]
    nic = (topology.kind[ends[0]] == NodeKind.NIC) | (topology.kind[ends[1]] == NodeKind.NIC)
    gpu = (topology.kind[ends[0]] == NodeKind.GPU) | (topology.kind[ends[1]] == NodeKind.GPU)
    outside = (hosts[0] < 0) & (hosts[1] < 0)
    within = (hosts[0] == hosts[1]) & ~outside & ~nic
    found: NDArray[np.int64] = np.where(within, 0, np.where(outside & ~nic & ~gpu, 2, 1))
    return found


def _cost(timeline: Timeline, topology: Topology) -> CollectiveCost:
    """Time of a simulation, with the links that are busy longest."""
    if not timeline.time_us:
        return CollectiveCost(0.0)
    kinds = link_kinds(topology)
    share = timeline.link_busy_us[: topology.num_links] / timeline.time_us
    loads = {
        name: min(1.0, float(share[kinds == number].max()))
        for number, name in enumerate(_KINDS)
        if (share[kinds == number] > 0).any()
    }
    link = max(loads, key=lambda name: loads[name], default="")
    return CollectiveCost(timeline.time_us / 1e6, link, loads)


def _set_of_groups(
    bodies: Sequence[Schedule | Forest], topology: Topology, size_bytes: int, model: Model
) -> Timeline:
    """Simulate groups that share links, segmented as is best for one group alone, with the fastest protocol for all."""
    count = messages_of(bodies[0], size_bytes, steps_bind=model.steps_bind, packed=model.packed).count * len(
        bodies
    )
    most = max(1, MOST_MESSAGES // max(1, count))
    alone = fastest(bodies[0], size_bytes, model=model, keep_hops=False, most=most)
    if len(bodies) == 1:
        return alone
    parts = [
        messages_of(body, size_bytes, pieces=alone.pieces, steps_bind=model.steps_bind, packed=model.packed)
        for body in bodies
    ]
    everything = joined(parts, start_us=[0.0] * len(parts), topology=topology).messages
    return min(
        (
            run(
                everything,
                model=model,
                collective=bodies[0].collective,
                size_bytes=size_bytes,
                profile=profile,
                pieces=alone.pieces,
                keep_hops=False,
            )
            for profile in transport_profiles(model, topology)
        ),
        key=lambda timeline: timeline.time_us,
    )


def _distinct_sets(parts: Sequence[Messages], topology: Topology) -> list[list[int]]:
    """Sizes of sets of groups that share links, without repetitions of equal sets."""
    links = [_links_in(part, topology) for part in parts]
    owner = np.full(topology.num_links, -1, dtype=np.int64)
    leader = list(range(len(parts)))

    def leading(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    for number, used in enumerate(links):
        every = np.unique(used)
        for other in np.unique(owner[every]).tolist():
            if other >= 0:
                first, second = sorted((leading(other), leading(number)))
                leader[second] = first
        owner[every] = number
    sets: dict[int, list[int]] = {}
    for number in range(len(parts)):
        sets.setdefault(leading(number), []).append(number)
    found: dict[bytes, list[int]] = {}
    for numbers in sets.values():
        key = _signature([parts[n] for n in numbers], [links[n] for n in numbers], topology)
        found.setdefault(key, numbers)
    return list(found.values())


def _links_in(part: Messages, topology: Topology) -> NDArray[np.int64]:
    """Links of the cluster on the routes of a group, in order."""
    own = part.topology
    if own is topology:
        return part.routes.links.astype(np.int64)
    node = np.array([topology.node_index[name] for name in own.node_ids], dtype=np.int64)
    pairs = node[own.src] * topology.num_nodes + node[own.dst]
    known = topology.src.astype(np.int64) * topology.num_nodes + topology.dst
    order = np.argsort(known)
    place = order[np.searchsorted(known[order], pairs)]
    found: NDArray[np.int64] = place[part.routes.links]
    return found


def _signature(parts: Sequence[Messages], links: Sequence[NDArray[np.int64]], topology: Topology) -> bytes:
    """Equivalence key: sets of groups with equal keys have equal simulations."""
    digest = hashlib.sha256()
    used = np.concatenate(links)
    _, first, number = np.unique(used, return_index=True, return_inverse=True)
    renamed = np.argsort(np.argsort(first))[number.reshape(-1)]
    for own in (renamed, topology.capacity[used], topology.latency_us[used]):
        digest.update(np.ascontiguousarray(own).tobytes())
    for part in parts:
        columns: tuple[NDArray[Any], ...] = (
            part.route,
            part.num_bytes,
            part.added_bytes,
            part.wave,
            part.send_gate,
            part.receive_gate,
            part.chained,
            part.after_start,
            part.after,
            part.routes.link_start,
        )
        for column in columns:
            digest.update(len(column).to_bytes(8, "little") + np.ascontiguousarray(column).tobytes())
    return digest.digest()


MOST_RANKS = 128
"""Ranks of a group that is simulated as a whole."""

_FEW_RANKS = 64
"""Most ranks from which the time of larger groups is extended."""

_LEAST_BYTES = 2**10
_LOGARITHMIC = ("forest", "nvls", "pat")
"""Algorithms beside those with trees in their names whose steps grow with the logarithm of the boxes."""


@dataclass(eq=False)
class SimulatedCosts:
    """Simulated costs of collectives on a cluster.

    Examples:
        >>> from coppice.iteration.costs.chosen import named_pick
        >>> from coppice.topology.presets import preset
        >>> costs = SimulatedCosts(preset("dgx-h100", boxes=2), named_pick("ring"))
        >>> found = costs.cost("all_reduce", 2**26, RankGroup(8, 1))
        >>> found.link, round(1e6 * found.seconds)
        ('NVLink', 317)
    """

    topology: Topology  # The cluster, whose ranks are those of the job
    choose: Chooser  # What carries out a collective
    model: Model = DEFAULT_MODEL  # What messages cost
    _costs: dict[tuple[str, int, RankGroup], CollectiveCost] = field(default_factory=dict)
    _parts: dict[tuple[RankGroup, int], Standing] = field(default_factory=dict)
    _wholes: dict[RankGroup, Topology] = field(default_factory=dict)
    _suited: dict[tuple[str, Pick, int, RankGroup], Pick] = field(default_factory=dict)
    _bodies: dict[tuple[str, Pick, RankGroup, int], list[Schedule | Forest]] = field(default_factory=dict)

    def cost(
        self, collective: str, size_bytes: float, group: RankGroup, *, gradients: bool = False
    ) -> CollectiveCost:
        """See :class:`coppice.iteration.costs.group.CollectiveCosts`; gradients are ordinary reductions."""
        del gradients
        if collective not in COLLECTIVES:
            raise InputError(f"expected one of {', '.join(COLLECTIVES)}, found {collective!r}.")
        if group.ranks == 1 or size_bytes <= 0:
            return CollectiveCost(0.0)
        if collective == "send":
            group = RankGroup(max(2, self.topology.num_ranks // group.stride), group.stride)
        size = max(size_bytes, _LEAST_BYTES)
        low = 2 ** math.floor(math.log2(size))
        below = self._at(collective, low, group)
        if size == low:
            return below
        above = self._at(collective, 2 * low, group)
        share = size / low - 1
        loads = {
            link: (1 - share) * below.loads.get(link, 0.0) + share * above.loads.get(link, 0.0)
            for link in {**below.loads, **above.loads}
        }
        seconds = (1 - share) * below.seconds + share * above.seconds
        return CollectiveCost(seconds, max(loads, key=lambda link: loads[link], default=""), loads)

    def _at(self, collective: str, size_bytes: int, group: RankGroup) -> CollectiveCost:
        """Simulation at a size, each done once."""
        key = collective, size_bytes, group
        if key not in self._costs:
            self._costs[key] = self._measured(collective, size_bytes, group)
        return self._costs[key]

    def _measured(self, collective: str, size_bytes: int, group: RankGroup) -> CollectiveCost:
        box = box_of_all(self.topology)
        inside = max(1, box // group.stride)
        if collective == "send" and box:  # what a rank between two does all do, or those at the end of a box
            ranks = 3 if group.stride >= box else 2 * inside
            return self._simulated(collective, size_bytes, group, min(ranks, group.ranks))
        if group.ranks <= MOST_RANKS or not box or group.ranks % inside or inside * 8 > _FEW_RANKS:
            return self._simulated(collective, size_bytes, group, group.ranks)
        counts = [_FEW_RANKS // 4, _FEW_RANKS // 2, _FEW_RANKS]
        found = [self._simulated(collective, size_bytes, group, ranks) for ranks in counts]
        boxes = [ranks / inside for ranks in counts]
        name = self.choose(self._whole(group), Collective.named(collective), size_bytes).name
        linear = name not in _LOGARITHMIC and "tree" not in name
        seconds = _extended(boxes, [each.seconds for each in found], group.ranks / inside, linear=linear)
        return CollectiveCost(seconds, found[-1].link, found[-1].loads)

    def _simulated(self, collective: str, size_bytes: int, group: RankGroup, ranks: int) -> CollectiveCost:
        """Simulation of groups with a given number of their ranks."""
        part = self._part(group, ranks)
        bodies, picked = self._bodies_of(collective, size_bytes, group, ranks)
        return simulated_together(bodies, part.topology, size_bytes, picked.limited(self.model))

    def _part(self, group: RankGroup, ranks: int) -> Standing:
        if (group, ranks) not in self._parts:
            self._parts[group, ranks] = standing(self.topology, group, most_ranks=ranks)
        return self._parts[group, ranks]

    def _whole(self, group: RankGroup) -> Topology:
        """The part of the cluster under the first group, with all its ranks."""
        if group not in self._wholes:
            first = group.members(self.topology.num_ranks)[0]
            self._wholes[group] = subset(self.topology, first)
        return self._wholes[group]

    def _bodies_of(
        self, collective: str, size_bytes: int, group: RankGroup, ranks: int
    ) -> tuple[list[Schedule | Forest], Pick]:
        """Schedule of each group, with its pick for the full group even where only some ranks are simulated."""
        part = self._part(group, ranks)
        if collective == "send":
            picked = Pick("linear")
            key = collective, picked, group, ranks
            if key not in self._bodies:
                pairs = [pair for each in part.groups for pair in itertools.pairwise(each)]
                self._bodies[key] = [send_body(part.topology, list(pair)) for pair in pairs]
            return self._bodies[key], picked
        what = Collective.named(collective)
        picked = self.choose(self._whole(group), what, size_bytes)
        asked = collective, picked, size_bytes, group
        if asked not in self._suited:
            self._suited[asked] = suited(part.topology, part.groups[0], what, picked, size_bytes, self.model)
        picked = self._suited[asked]
        key = collective, picked, group, ranks
        if key not in self._bodies:
            self._bodies[key] = [body_of(part.topology, each, what, picked) for each in part.groups]
        return self._bodies[key], picked


def _extended(boxes: Sequence[float], seconds: Sequence[float], wanted: float, *, linear: bool) -> float:
    """Extrapolate a time simulated on a few box counts to more boxes; never below that of the largest.

    Examples:
        >>> round(_extended([2, 4, 8], [2 * (1 - 1 / n) + 0.5 * n for n in (2, 4, 8)], 32, linear=True), 6)
        17.9375
    """

    def terms(count: float) -> list[float]:
        return [1.0, 1 - 1 / count, count if linear else math.log2(count)]

    table, target = np.array([terms(count) for count in boxes]), np.array(seconds)
    best: tuple[float, float] | None = None
    for size in range(1, 4):
        for chosen in itertools.combinations(range(3), size):
            factors, _, rank, _ = np.linalg.lstsq(table[:, chosen] / target[:, None], np.ones(len(boxes)))
            if rank < size or (factors < 0).any():
                continue
            missed = float(np.abs(table[:, chosen] @ factors / target - 1).max())
            if best is None or missed < best[0] - 1e-9:
                best = missed, float(np.array(terms(wanted))[list(chosen)] @ factors)
    return max(seconds[-1], 0.0 if best is None else best[1])


CALIBRATED = "calibrated"
_CHOSEN = {"nccl": nccl_pick, "forest": forest_pick}


def costs_named(name: str, topology: Topology, *, model: Model = DEFAULT_MODEL) -> CollectiveCosts | None:
    """Look up collective costs; None means a cluster's calibrated rings.

    Args:
        name: ``calibrated``, ``nccl`` (what NCCL would pick), ``forest`` (our optimum) or an algorithm.
        model: What messages cost where they are simulated.
    """
    if name == CALIBRATED:
        return None
    if name in _CHOSEN:
        return SimulatedCosts(topology, _CHOSEN[name], model=model)
    names = known_algorithms()
    if name not in names:
        hint = suggestion(name, [CALIBRATED, *_CHOSEN, *names])
        known = ", ".join((CALIBRATED, *_CHOSEN))
        raise InputError(f"expected collectives that are {known} or an algorithm, found {name!r}: {hint}")
    return SimulatedCosts(topology, named_pick(name), model=model)


def with_collectives(
    cluster: Cluster, topology: Topology, name: str, *, model: Model = DEFAULT_MODEL
) -> Cluster:
    """Cluster with the named collective costs.

    Args:
        name: As for :func:`costs_named`.
    """
    return replace(cluster, costs=costs_named(name, topology, model=model))
