"""Move the trees of a forest off lost or slow links, in the native core where numbers fit into 64 bits.

The readable reference is :class:`coppice.planners.forest.rehanging.Rehanging`, which gives the same trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.display import Brief
from coppice.planners.forest.damage import Damaged, damaged_by
from coppice.planners.forest.rehanging import Rehanging
from coppice.schedule.forest import Forest
from coppice.schedule.loads import exact_total
from coppice.schedule.walk import native_columns

_LARGEST = 2**62


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MovedForest(Brief):
    """A forest after an attempt, with what links carry and how many trees are not as they were."""

    forest: Forest
    load: Sequence[int]  # Units of weight on every link, at the scale of the attempt
    scale: int  # Units that one of the given forest's became
    rehung: int  # Trees in which a rank has another parent, without parts that were split off
    rerouted: int  # Trees in which every rank has its old parent, some over other switches
    split: int  # Parts of trees that were split off


class MovableForest:
    """A forest on the network as it is now, with what the faults broke."""

    def __init__(self, forest: Forest) -> None:
        """Find out what links carry and which rows are broken.

        Args:
            forest: Trees without templates on the network as it is now, as :func:`~.damage.placed` gives them.
        """
        self.forest = forest
        columns = native_columns(forest)
        counts = np.diff(forest.tree_start)
        heaviest = int(forest.tree_weight.max(initial=0)) * int(counts.max(initial=0)) * forest.num_trees
        self._native = None
        if columns is not None and heaviest < _LARGEST and exact_total(forest.tree_weight) < _LARGEST:
            self._native = _core.DamagedForest(columns)
            self.load: list[int] = self._native.load.tolist()
            self.broken: NDArray[np.int64] = self._native.broken
        else:
            damaged = self._damaged()
            self.load, self.broken = damaged.load, damaged.broken

    def _damaged(self) -> Damaged:
        """The same for the reference."""
        topology = self.forest.topology
        return damaged_by(self.forest, topology, np.arange(topology.num_nodes, dtype=np.int32))[0]

    def moved(
        self, scale: int, limit: Sequence[int], *, low: bool = True, tallest: int | None = None
    ) -> MovedForest | None:
        """Everything moved within limits; None where not all found a place. Arguments are those of the reference."""
        if (
            self._native is None
            or max(limit, default=0) >= _LARGEST
            or scale * max(self.load, default=0) >= _LARGEST
        ):
            return self._moved_by_reference(scale, limit, low=low, tallest=tallest)
        found = self._native.moved(
            scale, np.array(limit, dtype=np.int64), low=low, tallest=-1 if tallest is None else tallest
        )
        if found is None:
            return None
        columns: dict[str, Any] = found[0]
        _, load, rehung, rerouted, split = found
        return MovedForest(
            forest=replace(self.forest, **columns),
            load=load.tolist(),
            scale=scale,
            rehung=rehung,
            rerouted=rerouted,
            split=split,
        )

    def _moved_by_reference(
        self, scale: int, limit: Sequence[int], *, low: bool, tallest: int | None
    ) -> MovedForest | None:
        attempt = Rehanging(self._damaged(), scale=scale, limit=limit, low=low, tallest=tallest)
        if not attempt.run():
            return None
        return MovedForest(
            forest=attempt.forest(),
            load=attempt.load(),
            scale=scale,
            rehung=len(attempt.trees),
            rerouted=len(attempt.rerouted - attempt.trees.keys()),
            split=len(attempt.split),
        )
