"""Choose the algorithm of a group's collective: from the catalogue, NCCL's pick, or the optimal plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.library import SEARCHED, LibraryWay, orders_of, variant_of
from coppice.comparison.measurement import (
    AlgorithmVariant,
    MeasurementJob,
    SimulatedTime,
    candidates,
    measure,
    packed,
)
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import Value
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.choice import FOREST, from_catalogue
from coppice.planners.forest.planner import planned_forest
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.selection import select
from coppice.selection.nccl.selecting import found_on
from coppice.simulation.models import Model
from coppice.topology.model import Topology
from coppice.topology.operations import subset


@dataclass(frozen=True)
class Pick:
    """An algorithm with its rank order and number of segments."""

    name: str  # The algorithm
    # Its parameters that are not left at their defaults
    parameters: Mapping[str, Value] = field(default_factory=dict)

    order: str = "auto"  # Order of ranks, one of :data:`coppice.planners.choice.ORDERS`
    relay_gpus: bool = False  # GPUs pass on what is not theirs
    others: bool = False  # GPUs that do not belong to the group do so as well
    way: LibraryWay | None = (
        None  # How a library's pick goes over the links; None: no library's, all that is fastest
    )

    def __hash__(self) -> int:
        words = tuple(sorted((key, str(value)) for key, value in self.parameters.items()))
        return hash((self.name, words, self.order, self.relay_gpus, self.others, self.way))

    def limited(self, model: Model) -> Model:
        """The model in the protocol and channels of the pick alone, where it has these."""
        return model if self.way is None else self.way.limited(model)

    def found_in(self, topology: Topology, members: Sequence[int]) -> dict[str, Value]:
        """Parameters for a group: with the rings or trees that the library's search finds for its ranks.

        Args:
            members: Ranks of the group.
        """
        channels = None if self.way is None else self.way.channels
        if channels is None or self.name not in SEARCHED:
            return dict(self.parameters)
        found = orders_of(self.name, found_on(subset(topology, members)), channels)
        return {**{key: value for key, value in self.parameters.items() if key != "group"}, **found}


Chooser = Callable[[Topology, Collective, int], Pick]
"""From the part of a cluster that a group has, a collective and M to what carries it out."""

_OTHERWISE = {Collective.ALL_TO_ALL: "linear"}
_RING = "ring"
TUNED_RANKS = 32
"""Ranks of a group on which orders and segments are tried."""
_NCCL_RING = "nccl-ring"
_ORDERS = ("rings", "trees")
"""Parameters that the library's search gives, for each group its own."""
_JOB = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


def known_algorithms() -> list[str]:
    """Names of algorithms for the collectives of a training job.

    Examples:
        >>> {"ring", "pairwise", "nccl-tree"} <= set(known_algorithms())
        True
    """
    return sorted({name for name, collective in algorithms() if collective in _JOB})


def named_pick(name: str) -> Chooser:
    """Pick a fixed algorithm; where it does not apply a ring, or direct sends for all-to-all."""

    def pick(_topology: Topology, collective: Collective, _size_bytes: int) -> Pick:
        return Pick(name if (name, collective) in algorithms() else _OTHERWISE.get(collective, _RING))

    return pick


def nccl_pick(topology: Topology, collective: Collective, size_bytes: int) -> Pick:
    """Predict NCCL's pick, as ``coppice select`` does; rings of its search where the catalogue has no such schedule."""
    found = select("nccl", collective, size_bytes, topology=topology)
    way = LibraryWay.of(found)
    ring = Pick(_NCCL_RING, way=replace(way, protocol=""))
    if found.ours is None:
        return ring
    picked = Pick(found.ours, dict(found.parameters), way=way)
    if picked.name.startswith(("nvls", "collnet")):  # switches add, if they can
        try:
            few = subset(topology, range(min(TUNED_RANKS, topology.num_ranks)))
            from_catalogue(Problem(few, collective), picked.name, picked.parameters)
        except InputError:
            return ring
    return picked


def forest_pick(_topology: Topology, _collective: Collective, _size_bytes: int) -> Pick:
    """Pick the optimal plan: a forest, or routes for all-to-all."""
    return Pick(FOREST)


def suited(
    topology: Topology,
    members: list[int],
    collective: Collective,
    picked: Pick,
    size_bytes: int,  # M in bytes
    model: Model,
) -> Pick:
    """Tune rank order and segments of a pick to a size, as ``coppice compare`` does.

    Of a library's pick the orders are those of its search. GPUs of the group pass on where there is no other way, and
    where they do not reach, other GPUs forward as with NCCL's PXN. Of large groups the first 32 ranks are tried.
    """
    refusal = ""
    members = members[:TUNED_RANKS]
    for others, relay_gpus in ((False, False), (False, True), (True, True)):
        problem = Problem(subset(topology, members, relays=others), collective)
        if picked.name == FOREST:
            if _joined(problem):
                return replace(picked, others=others)
            continue
        rows: list[SimulatedTime] = []
        for fixed in _variants(problem, topology, members, picked, relay_gpus=relay_gpus):
            job = MeasurementJob(
                problem=packed(problem), candidate=fixed, keys={size_bytes: ""}, model=picked.limited(model)
            )
            rows += measure(job)
        found = [row for row in rows if row.refusal is None]
        if found:
            best = min(found, key=lambda row: row.time_us)
            tuned = {key: value for key, value in best.parameters.items() if key not in _ORDERS}
            return Pick(picked.name, tuned, best.order, relay_gpus, others, picked.way)
        refusal = rows[0].refusal or ""
    raise InputError(
        f"expected an algorithm that {len(members)} ranks of {topology.name} can carry out: {refusal}"
    )


def _variants(
    problem: Problem, topology: Topology, members: Sequence[int], picked: Pick, *, relay_gpus: bool
) -> list[AlgorithmVariant]:
    """What is tried of a pick; of a library's its own rings and trees alone."""
    if picked.way is not None:
        found = variant_of(picked.name, picked.found_in(topology, members), problem.collective)
        return [replace(found, relay_gpus=relay_gpus)]
    return [
        replace(each, parameters={**each.parameters, **picked.parameters})
        for each in candidates(problem, [picked.name], relay_gpus=relay_gpus, in_network=True)
    ]


def _joined(problem: Problem) -> bool:
    """Whether a path joins every pair of ranks."""
    try:
        cut_bound(Network.of(replace(problem, collective=Collective.ALL_GATHER)))
    except UnreachableError:
        return False
    return True


def body_of(
    topology: Topology, members: list[int], collective: Collective, picked: Pick
) -> Schedule | Forest:
    """Schedule of a group on its part of a cluster."""
    problem = Problem(
        subset(topology, members, relays=picked.others), collective, root=0 if collective.rooted else None
    )
    if picked.name != FOREST:
        parameters = picked.found_in(topology, members)
        return from_catalogue(
            problem, picked.name, parameters, order=picked.order, relay_gpus=picked.relay_gpus
        ).body
    if collective is Collective.ALL_TO_ALL:
        from coppice.planners.flow import plan_all_to_all  # brings the linear programs

        return plan_all_to_all(problem)
    return planned_forest(problem).forest


def send_body(topology: Topology, pair: list[int]) -> Schedule | Forest:
    """Schedule of a send, relayed by other GPUs where there is no direct path."""
    try:
        return body_of(topology, pair, Collective.BROADCAST, Pick("linear"))
    except UnreachableError:
        picked = Pick("linear", relay_gpus=True, others=True)
        return body_of(topology, pair, Collective.BROADCAST, picked)
