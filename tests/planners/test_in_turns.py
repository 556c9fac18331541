"""An all-to-all hop by hop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.bounds.problem import Problem
from coppice.planners.in_turns import hop_by_hop
from coppice.planners.planning import plan
from coppice.schedule.messages import messages_of
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology import preset


def test_blocks_go_hop_by_hop_in_few_messages() -> None:
    flow = plan(Problem(preset("dgx-h100", boxes=4), "all_to_all")).plan.schedule
    assert flow is not None
    found = hop_by_hop(flow)
    assert found is not None
    assert verify_schedule(found, relay_gpus=True).ok
    sender = found.chunk_slot[found.chunk] // 32
    assert (found.src[found.step == 0] == sender[found.step == 0]).all()
    assert (found.src[found.step > 0] != sender[found.step > 0]).all()
    assert messages_of(found, 2**20).count < messages_of(flow, 2**20).count / 2


def test_only_an_all_to_all_without_steps() -> None:
    flow = plan(Problem(preset("ring", gpus=4), "all_to_all")).plan.schedule
    assert flow is not None
    found = hop_by_hop(flow)
    assert found is not None
    assert hop_by_hop(found) is None
    rows = np.flatnonzero(flow.src == flow.src[0])[:2]
    twice = replace(flow, chunk=flow.chunk.copy())
    twice.chunk[rows] = twice.chunk[rows[0]]
    assert hop_by_hop(twice) is None
    ring = plan(Problem(preset("ring", gpus=4), "all_gather"), algorithm="ring").plan.schedule
    assert ring is not None
    assert hop_by_hop(ring) is None
