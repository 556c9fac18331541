"""A problem: a collective on a topology, with everything that changes its optimum."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.topology.model import Topology

__all__ = ["Problem"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A collective on a topology, with everything that changes its optimum.

    Attributes:
        topology: The network; its ranks take part. GPUs without a rank are relays (they forward, own nothing).
        collective: What to do.
        root: Root rank of broadcast and reduce, otherwise None.
        weights: Relative shard size of each rank (all_gather and reduce_scatter), or None for equal ones.
        demands: For all_to_all, ``demands[i][j]`` = relative size from rank i to rank j, or None for uniform.
    """

    topology: Topology
    collective: Collective
    root: int | None = None
    weights: tuple[int, ...] | None = None
    demands: tuple[tuple[int, ...], ...] | None = None

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.topology.presets import preset
        >>> Problem(topology=preset("ring", gpus=4), collective=Collective.BROADCAST, root=0)
        Problem(broadcast from rank 0, Topology('ring of 4', 4 ranks, 4 nodes, 8 links))
        """
        words = str(self.collective)
        if self.root is not None:
            to_root = self.collective in (Collective.REDUCE, Collective.GATHER)
            words += f" {'to' if to_root else 'from'} rank {self.root}"
        sizes = {"weights": self.weights, "demands": self.demands}
        given = "".join(f", with {name}" for name, value in sizes.items() if value is not None)
        return f"Problem({words}{given}, {self.topology!r})"

    @property
    def shards(self) -> int:
        """Number of shards in M (see :class:`~coppice.collectives.Collective`)."""
        return self.collective.shards(self.topology.num_ranks, self.weights)

    def record(self) -> dict[str, str | int | None]:
        """What names the problem, as JSON values."""
        return {
            "collective": self.collective.value,
            "topology": self.topology.name,
            "topology_sha256": self.topology.sha256,
            "ranks": self.topology.num_ranks,
            "root": self.root,
        }
