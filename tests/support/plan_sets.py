"""Sets of plans that tests share: named algorithms, which change at 1K, 2K and so on."""

from __future__ import annotations

from itertools import pairwise

import coppice
from coppice.schedule.files.set_file import PlanRange, PlanSet
from coppice.topology.model import Topology
from coppice.topology.presets import preset

STAR = preset("star", gpus=4)


def ranges_of(
    *algorithms: str, collective: str = "all_reduce", topology: Topology = STAR
) -> tuple[PlanRange, ...]:
    """A range for each algorithm."""
    made = {each: coppice.plan(topology, collective, algorithm=each).plan for each in algorithms}
    starts = [0, *(1024 * number for number in range(1, len(algorithms))), None]
    return tuple(
        PlanRange(
            first_bytes=start or 0, last_bytes=None if end is None else end - 1, plan=made[name], sizes=()
        )
        for name, (start, end) in zip(algorithms, pairwise(starts), strict=True)
    )


def made_set(*algorithms: str, collective: str = "all_reduce") -> PlanSet:
    """A set of them, under the ideal model."""
    return PlanSet(
        ranges=ranges_of(*algorithms, collective=collective),
        least_gain=0.03,
        model={"format": "coppice-model", "version": 1, "name": "made up"},
    )
