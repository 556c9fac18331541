"""An all-to-all in turns, and hop by hop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.planners.in_turns import blocks_in_turns, hop_by_hop
from coppice.planners.planning import plan
from coppice.schedule.messages import messages_of
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
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


def test_blocks_in_turns_fill_rails() -> None:
    problem = Problem(preset("dgx-h100", boxes=8), "all_to_all")
    flow = plan(problem).plan.schedule
    assert flow is not None
    found = blocks_in_turns(flow)
    assert found is not None
    assert verify_schedule(found, relay_gpus=True).ok
    least_us = float(bound_of(problem).inv_rate) * 2**30 / 64 / 1000
    assert fastest(found, 2**30, model=model_of("ideal"), most=1).time_us == pytest.approx(least_us, rel=1e-6)
    assert fastest(flow, 2**30, model=model_of("ideal"), most=1).time_us > 1.3 * least_us


def test_only_an_all_to_all_without_steps() -> None:
    flow = plan(Problem(preset("ring", gpus=4), "all_to_all")).plan.schedule
    assert flow is not None
    found = hop_by_hop(flow)
    assert found is not None
    assert hop_by_hop(found) is None
    assert blocks_in_turns(found) is None
    rows = np.flatnonzero(flow.src == flow.src[0])[:2]
    twice = replace(flow, chunk=flow.chunk.copy())
    twice.chunk[rows] = twice.chunk[rows[0]]
    assert hop_by_hop(twice) is None
    ring = plan(Problem(preset("ring", gpus=4), "all_gather"), algorithm="ring").plan.schedule
    assert ring is not None
    assert hop_by_hop(ring) is None
    assert blocks_in_turns(ring) is None
