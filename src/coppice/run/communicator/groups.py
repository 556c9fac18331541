"""Groups of ranks: what a communicator is set up with, and the topology that a part of its ranks is planned on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coppice.run.communicator.agreement import Value
from coppice.topology.model import Topology
from coppice.topology.operations import subset

__all__ = ["AUTO", "GroupSettings", "topology_of"]

AUTO = "auto"
"""What the engine does by itself where its ranks share memory, forests elsewhere."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """The options of :class:`~coppice.run.communicator.communicator.Communicator`, which explains them."""

    algorithm: str
    pieces: int | str
    cache_dir: str | os.PathLike[str] | None
    timeout_s: float
    check_every_call: bool

    def record(self, topology: Topology) -> dict[str, Value]:
        """What all ranks must have in common. The timeout and the place of plans are each rank's own business."""
        from coppice.version import __version__

        return {
            "version": __version__,
            "topology": topology.sha256,
            "algorithm": self.algorithm,
            "pieces": self.pieces,
            "check_every_call": self.check_every_call,
        }

    def defect(self, topology: Topology, ranks: int) -> str:
        """What is wrong with them for a group of so many ranks, a sentence, or nothing.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> settings = GroupSettings(
            ...     algorithm=AUTO, pieces=0, cache_dir=None, timeout_s=300, check_every_call=False
            ... )
            >>> settings.defect(preset("ring", gpus=4), 4)
            'expected `auto` or 1 piece or more, found 0.'
        """
        if topology.num_ranks != ranks:
            return (
                f"expected a topology of {ranks} ranks, found {topology.num_ranks} in {topology.name}: start as "
                "many processes as it has GPUs."
            )
        if self.pieces != "auto" and not (isinstance(self.pieces, int) and self.pieces >= 1):
            return f"expected `auto` or 1 piece or more, found {self.pieces!r}."
        if not self.timeout_s > 0:
            return f"expected a timeout above 0 s, found {self.timeout_s}."
        return ""


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
