"""Sends of an instance as a schedule, forwards, run backwards as a reduction, and both in a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coppice.bounds.problem import Problem
from coppice.display import Brief
from coppice.planners.synthesis.sccl.commodities import slot_weights
from coppice.planners.synthesis.sccl.encoding import ChunkSend
from coppice.planners.synthesis.sccl.routes import StepRoutes
from coppice.rows import offsets
from coppice.schedule.schedule import Op, Schedule


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SendPhase(Brief):
    """Sends that follow each other in steps."""

    sends: tuple[ChunkSend, ...]  # What is sent, in the order of the steps
    routes: StepRoutes  # The routes that they take
    steps: int  # Number of steps
    # The sends are those of the dual on the network with its links turned round, and are run backwards
    reduces: bool


def schedule_of(problem: Problem, phases: list[SendPhase], chunks: int) -> Schedule:
    """The schedule of phases that follow each other.

    Args:
        phases: One, or a reduce-scatter and an all-gather.
        chunks: Chunks of a block of weight 1.
    """
    weights = slot_weights(problem)
    cut = np.maximum(weights, 1) * chunks
    first = offsets(cut)
    rows: list[tuple[int, int, int, int, int, tuple[int, ...]]] = []
    offset = 0
    for phase in phases:
        for send in phase.sends:
            ends = phase.routes.src[send.route], phase.routes.dst[send.route]
            path = phase.routes.path[send.route]
            step = offset + (phase.steps - send.step if phase.reduces else send.step - 1)
            if phase.reduces:
                ends, path = ends[::-1], path[::-1]
            chunk = int(first[send.slot]) + send.chunk
            op = Op.REDUCE if phase.reduces else Op.COPY
            rows.append((step, *ends, chunk, int(op), path))
        offset += phase.steps
    rows.sort()
    paths = sorted({row[5] for row in rows})
    place = {path: i for i, path in enumerate(paths)}
    columns = np.array([row[:5] for row in rows], dtype=np.int64).reshape(-1, 5)
    return Schedule(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=weights,
        chunk_slot=np.repeat(np.arange(len(weights), dtype=np.int32), cut),
        chunk_share=np.ones(int(first[-1]), dtype=np.int64),
        src=columns[:, 1].astype(np.int32),
        dst=columns[:, 2].astype(np.int32),
        chunk=columns[:, 3].astype(np.int32),
        op=columns[:, 4].astype(np.int8),
        path=np.array([place[row[5]] for row in rows], dtype=np.int32),
        step=columns[:, 0].astype(np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=offsets(np.array([len(path) for path in paths], dtype=np.int64)),
        path_nodes=np.array([node for path in paths for node in path], dtype=np.int32),
    )
