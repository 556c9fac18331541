"""What a communicator is set up with: equal on all ranks, and handed on to its groups."""

from __future__ import annotations

import os
from dataclasses import dataclass

from coppice.run.communicator.agreement import Value
from coppice.topology.model import Topology

__all__ = ["AUTO", "GroupSettings"]

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
