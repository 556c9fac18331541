"""Latency bound under a time model: least time as the size goes to 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.bounds.latency import LatencyBound, latency_bound
from coppice.bounds.problem import Problem
from coppice.simulation.channels import TransportProfile, num_boxes, transport_profiles
from coppice.simulation.models import Model, protocol_text


def least_latency(problem: Problem, model: Model, *, relay_gpus: bool = False) -> LatencyBound:
    """Latency bound of a problem under a model, with the best of its protocols.

    A protocol's latency of a message includes those of its links, so a route of n messages costs at least the latencies
    of all its links, and at least n times the protocol's least latency; data that change their box cost at least the
    latency of a message between boxes. On top come the launch, the protocol's start, and the workers at either end of
    one message where a message costs no more than these.

    Args:
        relay_gpus: As :func:`coppice.bounds.latency.latency_bound`.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_GATHER)
        >>> least_latency(problem, model_of("nccl-2.30")).time_us
        9.3
    """
    profiles = transport_profiles(model, problem.topology)
    return min(
        (_with_transport(problem, model, profile, relay_gpus=relay_gpus) for profile in profiles),
        key=lambda each: each.time_us,
    )


def _with_transport(
    problem: Problem, model: Model, profile: TransportProfile, *, relay_gpus: bool
) -> LatencyBound:
    """The bound with one protocol."""
    found = profile.protocol
    handled = model.send_us + model.receive_us
    plain = latency_bound(
        problem,
        overhead_us=model.overhead_us + handled if found is None else 0.0,
        relay_gpus=relay_gpus,
        send_engines=model.send_engines,
        receive_engines=model.receive_engines,
    )
    if found is None or not _sends(problem):
        return replace(plain, time_us=plain.time_us + model.launch_us) if model.launch_us else plain
    start = model.launch_us + found.start_us
    name = protocol_text(profile.name or "")
    crosses = num_boxes(problem.topology) > 1
    message = max(found.network_us if crosses else found.box_us, handled)
    if plain.time_us >= message:
        return replace(
            plain, time_us=start + plain.time_us, why=f"{name} starts in {start:g} us; {plain.why}"
        )
    where = "between boxes" if crosses else "in a box"
    why = f"{name} starts in {start:g} us, and a message {where} takes {message:g} us"
    return LatencyBound(time_us=round(start + message, 9), why=why)


def _sends(problem: Problem) -> bool:
    """Whether data move at all."""
    weights = problem.weights
    return problem.topology.num_ranks > 1 and (weights is None or bool(np.any(weights)))
