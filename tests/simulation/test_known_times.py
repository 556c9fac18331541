"""Known times: what is remembered is what a simulation finds, and none is made twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coppice.planners.planning import plan
from coppice.schedule.lower import lower
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from reference.strategies import CONNECTED_FAMILIES, seeded_problem


@pytest.mark.parametrize("seed", range(12))
def test_what_is_remembered_is_what_is_simulated(seed: int) -> None:
    """With times to undercut and to give up at, in whatever order they are asked for."""
    problem, model = seeded_problem(seed, CONNECTED_FAMILIES, 12), model_of(None)
    body = lower(plan(problem, ring=False).plan.body)
    times = KnownTimes(model)
    for size in (2**18, 2**24):
        whole = fastest(body, size, model=model, keep_hops=False)
        for share in (1.0, 0.9, math.inf, 1.1, 0.5):
            limits = {"below_us": whole.time_us * share, "give_up_us": whole.time_us * share}
            alone = fastest(body, size, model=model, keep_hops=False, **limits)
            found = times.fastest(body, size, **limits)
            assert (found.time_us, found.pieces, found.protocol) == (
                alone.time_us,
                alone.pieces,
                alone.protocol,
            )
        made = len(times)
        assert times.fastest(replace(body), size).time_us == whole.time_us
        assert len(times) == made


def test_other_bodies_are_simulated() -> None:
    """Rows that carry out something else have times of their own."""
    body = lower(plan("torus", "all_gather").plan.body)
    times, size = KnownTimes(model_of(None)), 2**20
    first = times.fastest(body, size).time_us
    slower = replace(body.topology, latency_us=body.topology.latency_us + 5)
    assert times.fastest(replace(body, topology=slower), size).time_us > first
    reversed_rows = replace(body, chunk=body.chunk[::-1].copy())
    made = len(times)
    times.fastest(reversed_rows, size)
    assert len(times) > made
