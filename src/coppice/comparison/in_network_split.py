"""Split an all-reduce between the network and an optimal host plan that share the links."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from coppice.arguments import checked
from coppice.bounds.attainable import in_network_bound
from coppice.bounds.problem import Problem, problem_of
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.innetwork.clusters.modelled import cluster_system
from coppice.innetwork.systems.splitting import BestSplit, best_split
from coppice.planners.planning import plan
from coppice.schedule.loads import body_loads

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import ClusterSplitJson


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
