"""In-network aggregation in a comparison: closed-form times, and the split with an optimal host plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from coppice.arguments import checked
from coppice.bounds.attainable import in_network_bound
from coppice.bounds.problem import Problem, problem_of
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.innetwork.clusters import ClusterSystem, cluster_system
from coppice.innetwork.places import with_adding
from coppice.innetwork.systems.registry import named_system
from coppice.innetwork.systems.splitting import BestSplit, best_split
from coppice.planners.planning import plan
from coppice.schedule.loads import body_loads
from coppice.simulation.models import Model

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import ClusterSplitJson
    from coppice.outputs.shapes.timing import ModelledSystemsJson, PlacedSystemJson


@dataclass(frozen=True, kw_only=True)
class ModelledTime:
    """Closed-form time of one system at one size."""

    system: str  # Name of the system, with the switches that it was given
    size_bytes: int  # Size M
    time_us: float  # Time in microseconds

    @property
    def algbw_gb_per_s(self) -> float:
        """Tensor bytes over time."""
        return self.size_bytes / self.time_us / 1000 if self.time_us else 0.0


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelledSystems:
    """Times of the systems that fit the cluster."""

    placed: Mapping[str, ClusterSystem]  # Where each system lies, by name
    # No schedule of trees takes less time for each byte, in 1 / (GB/s), with the switches that the system of
    # that name may use
    bounds: Mapping[str, Fraction]
    times: tuple[ModelledTime, ...]  # Systems in the order that they were asked for, sizes ascending
    refused: Mapping[str, str] = field(default_factory=dict)  # Why the cluster cannot hold others

    def __repr__(self) -> str:
        reached = [
            f"{name} {float(1 / each.inv_rate):.6g} of {float(1 / self.bounds[name]):.6g} GB/s"
            for name, each in self.placed.items()
        ]
        missing = f"not {', '.join(self.refused)}" if self.refused else ""
        return f"ModelledSystems({'; '.join(filter(None, (', '.join(reached), missing)))})"

    def fastest_first(self, size_bytes: int) -> list[ModelledTime]:
        """Systems at a size by time."""
        rows = [row for row in self.times if row.size_bytes == size_bytes]
        return sorted(rows, key=lambda row: float(f"{row.time_us:.9g}"))

    def record(self) -> ModelledSystemsJson:
        """The times as JSON values."""
        placed: dict[str, PlacedSystemJson] = {
            name: {
                "where": found.where,
                "load_algbw_gb_per_s": float(1 / found.inv_rate),
                "algbw_gb_per_s": float(1 / found.inv_rate),
                "load_algbw_exact_gb_per_s": str(1 / found.inv_rate),
                "algbw_exact": str(1 / found.inv_rate),
                "optimum_algbw_gb_per_s": float(1 / self.bounds[name]),
                "bound_algbw_gb_per_s": float(1 / self.bounds[name]),
                "optimum_algbw_exact_gb_per_s": str(1 / self.bounds[name]),
                "bound_algbw_exact": str(1 / self.bounds[name]),
                "tiers": max((tree.tiers for tree in found.trees), default=0),
            }
            for name, found in self.placed.items()
        }
        return {
            "placed_systems": placed,
            "systems": placed,
            "times": [
                {
                    "system": row.system,
                    "size_bytes": row.size_bytes,
                    "time_us": row.time_us,
                    "reached_algbw_gb_per_s": row.algbw_gb_per_s,
                    "algbw_gb_per_s": row.algbw_gb_per_s,
                }
                for row in self.times
            ],
            "refusals": dict(self.refused),
        }


def modelled_systems(
    problem: Problem, systems: Iterable[str], *, sizes: Sequence[int], model: Model
) -> ModelledSystems:
    """Place systems on the cluster of a problem, and time them.

    Args:
        systems: Names of :data:`coppice.innetwork.systems.SYSTEMS`; ``switchml@spine*`` lets the switches add that
            the pattern names, whatever the topology says of them.
        sizes: Sizes M in bytes, 1 or more.
        model: What messages cost at their ends, as for the algorithms beside them.

    Examples:
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("dgx-h100"), Collective.ALL_REDUCE)
        >>> found = modelled_systems(problem, ["nvls", "sharp"], sizes=[2**30], model=model_of("alpha-beta"))
        >>> found.placed["nvls"].where, [row.system for row in found.times], list(found.refused)
        ('inside the box', ['nvls'], ['sharp'])
    """
    if problem.collective is not Collective.ALL_REDUCE:
        raise InputError(
            f"expected an all_reduce with systems that add in the network, found {problem.collective}."
        )
    placed: dict[str, ClusterSystem] = {}
    bounds: dict[str, Fraction] = {}
    refused: dict[str, str] = {}
    proved: dict[str, Fraction] = {}
    for asked in systems:
        word, _, pattern = (part.strip() for part in asked.partition("@"))
        name = named_system(word)
        topology = with_adding(problem.topology, pattern) if pattern else problem.topology
        label = f"{name}@{pattern}" if pattern else name
        try:
            found = cluster_system(name, topology)
        except InputError as error:
            refused[label] = str(error)
            continue
        if pattern not in proved:
            proved[pattern] = in_network_bound(replace(problem, topology=topology)).inv_rate
        placed[label], bounds[label] = found, proved[pattern] / problem.shards
    times = [
        ModelledTime(system=name, size_bytes=size, time_us=found.time_us(size, model))
        for name, found in placed.items()
        for size in sizes
    ]
    return ModelledSystems(placed=placed, bounds=bounds, times=tuple(times), refused=refused)


@dataclass(frozen=True, kw_only=True)
class ClusterSplit:
    """Optimal split on a cluster."""

    system: str  # What adds in the network
    algorithm: str  # What hosts do with the rest
    best: BestSplit  # The share, the times, the links that limit it
    bound: Fraction  # No schedule of trees takes less time for each byte, with the switches that add

    @property
    def words(self) -> str:
        """The split in one sentence."""
        rate, most = float(1 / self.best.inv_rate), float(1 / self.bound)
        return f"{self.system} with {self.algorithm}: {rate:.6g} GB/s of {most:.6g}; {self.best.words}"

    def record(self) -> ClusterSplitJson:
        """The split as JSON values."""
        return {
            "system": self.system,
            "algorithm": self.algorithm,
            "optimum_algbw_gb_per_s": float(1 / self.bound),
            "bound_gb_per_s": float(1 / self.bound),
            **self.best.record(),
        }


@checked
def split_on_cluster(problem: Any, system: str, *, algorithm: str = "forest") -> ClusterSplit:
    """Optimal in-network share of a large all-reduce on a cluster.

    Loads of links add up: those of the system's trees, of its phases inside boxes, and of the hosts' plan, all at once.

    Args:
        problem: An all-reduce, what has one, or a topology (also by name).
        system: Name of a system that the cluster can hold.
        algorithm: What hosts do, ``forest`` for the optimal plan.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = split_on_cluster(preset("dgx-h100"), "nvls")
        >>> str(found.best.share), str(1 / found.best.inv_rate), str(1 / found.bound)
        ('1', '400', '450')
    """
    asked = problem_of(problem, None if isinstance(problem, Problem) else Collective.ALL_REDUCE)
    if asked.collective is not Collective.ALL_REDUCE:
        raise InputError(f"expected an all_reduce to split, found {asked.collective}.")
    placed = cluster_system(system, asked.topology)
    result = plan(asked, algorithm=None if algorithm == "forest" else algorithm)
    loads = body_loads(result.plan.body, asked)
    topology = asked.topology
    names = [topology.link_name(link) for link in range(topology.num_links)]
    return ClusterSplit(
        system=placed.system,
        algorithm=algorithm,
        best=best_split(
            {
                name: each / topology.gb_per_s(link)
                for link, (name, each) in enumerate(zip(names, placed.load, strict=True))
            },
            {name: loads.time_per_shard(link) / asked.shards for link, name in enumerate(names)},
        ),
        bound=in_network_bound(asked).inv_rate / asked.shards,
    )
