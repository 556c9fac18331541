"""The rate that a plan comes to in messages of unbounded size, exactly."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np

from coppice.schedule.forest import Forest
from coppice.schedule.loads import grouped_sums
from coppice.schedule.lower import size_and_weight
from coppice.schedule.messages import messages_of_routed, routed_body
from coppice.schedule.plan import Plan
from coppice.simulation.engine import NS_PER_US, run
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import too_many_messages

_EXACT = 2**50
"""Whole numbers below are exact in floating point, divided by a thousand and multiplied again too."""


def steady_inv_rate(plan: Plan, *, model: Model | None = None) -> Fraction | None:
    """Time per shard (ns per byte) in messages of unbounded size, exactly: what bytes alone take.

    A plan without steps is cut into ever more pieces, until its busiest link is busy all the time. A schedule with
    steps is not cut: what waits for another step leaves links idle whatever the size. It is simulated without
    latencies and costs, in a size of which every message takes a whole number of nanoseconds on every link, since sums
    and maxima of such are exact in floating point.

    Args:
        model: Says whether a rank waits for all of a step before it begins the next one; None is the default.

    Returns:
        The time; None where no such size has fewer than 2^50 bytes.

    Examples:
        In a hypercube of 8 links of a binomial tree are busy in one of its four phases each:

        >>> from coppice.planners.planning import plan
        >>> made = plan("hypercube", "broadcast", algorithm="binomial").plan
        >>> str(made.inv_rate), str(steady_inv_rate(made))
        ('1', '4')
    """
    chosen, body = model_of(model), plan.body
    if isinstance(body, Forest) or not body.num_transfers or int(body.step.min()) < 0:
        return plan.inv_rate
    topology = body.topology
    weights, shares = body.slot_weight, grouped_sums(body.chunk_slot, body.chunk_share, len(body.slot_weight))
    whole = (
        size_and_weight(body, 0)[1] * lcm(*filter(None, shares)) * lcm(*np.unique(topology.capacity).tolist())
    )
    if not whole:  # no slot has any bytes
        return plan.inv_rate
    if whole * max(1, len(weights)) >= _EXACT or topology.denominator >= _EXACT:
        return None
    # Rates in whole numbers: a byte takes as many times longer as the denominator says.
    plain = replace(topology, denominator=1, latency_us=np.zeros_like(topology.latency_us))
    free = Model(name=chosen.name, overhead_us=0.0, buffered=chosen.buffered)
    bind = chosen.steps_bind or too_many_messages(body)
    messages = messages_of_routed(
        routed_body(replace(body, topology=plain)), whole, pieces=1, steps_bind=bind
    )
    found = run(messages, model=free, collective=body.collective, size_bytes=whole, keep_hops=False)
    nanoseconds = round(found.time_us * NS_PER_US)
    if nanoseconds >= _EXACT:
        return None
    return Fraction(nanoseconds * topology.denominator, whole) * plan.problem.shards
