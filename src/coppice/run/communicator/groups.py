"""Groups of some ranks of an engine: who can make them, and the topology that they are planned on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from coppice.run.engines.engine import Engine
from coppice.topology.model import Topology
from coppice.topology.operations import subset

__all__ = ["GroupingEngine", "topology_of"]


@runtime_checkable
class GroupingEngine(Engine, Protocol):
    """An engine that can make groups of some of its ranks."""

    def subset(self, ranks: Sequence[int]) -> Engine:
        """This rank's engine in the group of ``ranks``, in that order; every rank of the engine calls this.

        Ranks of different groups make their groups at the same time, each with its own list.

        Raises:
            InputError: If this rank is not among them.
        """


def topology_of(topology: Topology, ranks: Sequence[int]) -> Topology:
    """The topology that a group is planned on: its ranks in the given order, without the other GPUs.

    Other GPUs stay, to pass on what is not theirs, only where the group's ranks do not reach each other without them.

    Raises:
        InputError: If the list is empty, repeats a rank or names one that does not exist.

    Examples:
        Opposite GPUs of a ring reach each other through the others only:

        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> topology_of(ring, [0, 1]).num_nodes, topology_of(ring, [0, 2]).num_nodes
        (2, 4)
    """
    alone = subset(topology, ranks)
    return alone if _joined(alone) else subset(topology, ranks, relays=True)


def _joined(topology: Topology) -> bool:
    """Every rank reaches every other one."""
    for forward in (True, False):
        source, target = (topology.src, topology.dst) if forward else (topology.dst, topology.src)
        reached = np.zeros(topology.num_nodes, dtype=np.bool_)
        reached[topology.rank_nodes[0]] = True
        known = 0
        while known < int(reached.sum()):
            known = int(reached.sum())
            reached[target[reached[source]]] = True
        if not reached[topology.rank_nodes].all():
            return False
    return True
