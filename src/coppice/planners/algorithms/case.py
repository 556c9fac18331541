"""The case that an algorithm is asked to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.topology.model import Topology

__all__ = ["Case", "Value"]

Value = int | str


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """A collective among P positions; most algorithms look at nothing else.

    Algorithms number the participants by *position*, 0 .. P - 1. Which rank sits at a position is decided outside
    (``order``), so that any algorithm can run in rank order or in an order that suits the topology.

    Attributes:
        topology: Where it will run; only algorithms that suit themselves to a topology look at it.
        collective: What to do.
        root: Position of the root of a rooted collective, otherwise -1.
        parameters: Value of every parameter that the algorithm declares.
        order: ``order[p]`` is the rank at position p; None is rank order.
    """

    topology: Topology
    collective: Collective
    root: int = -1
    parameters: Mapping[str, Value] = field(default_factory=dict)
    order: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of positions, P."""
        return self.topology.num_ranks

    @property
    def positions(self) -> NDArray[np.int64]:
        """All positions: 0 .. P - 1."""
        return np.arange(self.size)

    def number(self, name: str) -> int:
        """Value of a parameter that is a number."""
        return int(self.parameters[name])

    def from_root(self, relative: int | NDArray[np.integer]) -> NDArray[np.int64]:
        """Positions that lie ``relative`` places after the root, cyclically.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> case = Case(topology=preset("ring", gpus=5), collective=Collective.BROADCAST, root=3)
            >>> case.from_root(np.arange(5)).tolist()
            [3, 4, 0, 1, 2]
        """
        return (np.asarray(relative, dtype=np.int64) + max(self.root, 0)) % self.size
