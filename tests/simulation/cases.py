"""Schedules with known figures for the tests of the simulation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.schedule.schedule import Schedule
from coppice.topology import Topology


def ring_on(
    topology: Topology,
    collective: Collective = Collective.ALL_REDUCE,
    parameters: Mapping[str, int] | None = None,
) -> Schedule:
    """The ring in rank order, on default routes."""
    entry = find("ring", collective)
    made = make(entry, case_of(entry, Problem(topology=topology, collective=collective), parameters))
    assert isinstance(made, Schedule)
    return made


def shift_on(topology: Topology, by: int) -> Schedule:
    """One step: every rank sends its block to the rank ``by`` places after it. Part of an all-gather, no whole one."""
    ranks = topology.num_ranks
    every = np.arange(ranks, dtype=np.int32)
    return Schedule(
        topology=topology,
        collective=Collective.ALL_GATHER,
        root=-1,
        slot_weight=np.ones(ranks, dtype=np.int64),
        chunk_slot=every,
        chunk_share=np.ones(ranks, dtype=np.int64),
        src=every,
        dst=((every + by) % ranks).astype(np.int32),
        chunk=every,
        op=np.zeros(ranks, dtype=np.int8),
        path=np.full(ranks, -1, dtype=np.int32),
        step=np.zeros(ranks, dtype=np.int32),
        after_start=np.zeros(ranks + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.zeros(1, dtype=np.int64),
        path_nodes=np.zeros(0, dtype=np.int32),
    )
