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

    @property
    def shards(self) -> int:
        """Number of shards in M (see :class:`~coppice.collectives.Collective`)."""
        return self.collective.shards(self.topology.num_ranks, self.weights)
