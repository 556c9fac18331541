"""No simulated time is below the bytes over the optimum of its class, whatever is assumed of machines."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds import Problem, bound
from coppice.bounds.attainable import in_network_bound
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.planning import plan
from coppice.schedule.plan import Plan
from coppice.simulation.model import Model
from coppice.simulation.models import named_models
from coppice.simulation.simulated import simulate_sizes
from simulation.strategies import models
from support.random_clusters import clusters

ROUNDING = 1 + Fraction(1, 10**9)
"""Simulated times are sums of thousands of floating-point numbers."""
PLANS: tuple[tuple[Collective, str | None, bool], ...] = (
    (Collective.ALL_REDUCE, None, False),
    (Collective.ALL_REDUCE, None, True),
    (Collective.ALL_REDUCE, "ring", False),
    (Collective.ALL_REDUCE, "recursive-doubling", False),
    (Collective.ALL_REDUCE, "hierarchical", False),
    (Collective.ALL_REDUCE, "nccl-tree", False),
    (Collective.ALL_GATHER, None, False),
    (Collective.ALL_GATHER, None, True),
    (Collective.ALL_GATHER, "pat", False),
    (Collective.REDUCE_SCATTER, "direct", False),
    (Collective.BROADCAST, None, False),
    (Collective.BROADCAST, "binomial", False),
    (Collective.REDUCE, "nccl-ring", False),
    (Collective.GATHER, None, False),
    (Collective.SCATTER, None, False),
    (Collective.ALL_TO_ALL, None, False),
    (Collective.ALL_TO_ALL, "direct", False),
)


def least_us(problem: Problem, size: int, model: Model, *, in_network: bool) -> Fraction:
    """The time of the bytes alone where whole blocks are dealt as evenly as whole bytes allow."""
    inv_rate = in_network_bound(problem).inv_rate if in_network else bound(problem).inv_rate
    slowest = Fraction(int(problem.topology.capacity.min()), problem.topology.denominator)
    return inv_rate / problem.shards * size / 1000 - Fraction(model.burst_bytes) / slowest / 1000


def check(made: Plan, problem: Problem, size: int, model: Model, *, in_network: bool, **options: Any) -> None:
    least = least_us(problem, size, model, in_network=in_network)
    (row,) = simulate_sizes(made, [size], model=model, **options)
    times = [row.timeline.time_us]
    if row.hashed is not None:
        times += [*row.hashed.times_us.tolist(), row.hashed.multipath_us]
    for time_us in times:
        assert Fraction(time_us) * ROUNDING >= least, (model, time_us, float(least))
    record = row.record(3)
    assert record["share_of_optimum"] <= 1 + 1e-9
    for link in record["links"]:
        assert link["utilisation"] <= 1 + 1e-9


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, str | None, bool]:
    topology = draw(clusters())
    collective, algorithm, helped = draw(st.sampled_from(PLANS))
    ranks, demands = topology.num_ranks, None
    if collective is Collective.ALL_TO_ALL and draw(st.booleans()):
        few = st.integers(0, 3)
        demands = [[draw(few) if src != dst else 0 for dst in range(ranks)] for src in range(ranks)]
        demands[0][1] = 1
    root = draw(st.integers(0, ranks - 1)) if collective.rooted else None
    return Problem(topology, collective, root=root, demands=demands), algorithm, helped


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_clusters(data: st.DataObject) -> None:
    problem, algorithm, in_network = data.draw(problems())
    relay = algorithm is not None
    try:
        made = plan(problem, algorithm=algorithm, in_network=in_network, relay_gpus=relay, ring=False).plan
    except (InputError, UnreachableError):
        return  # an algorithm that does not serve these ranks
    model = data.draw(st.one_of(st.sampled_from([each.model for each in named_models().values()]), models()))
    channels = data.draw(st.sampled_from((None, 1, 4)))
    if channels is not None and model.protocols and not model.copy_gb_per_s and not model.store_and_forward:
        model = replace(model, channels=channels, channel_gb_per_s=20.0)
    pieces = data.draw(st.sampled_from((None, 1, 3)))
    # Blocks end at whole bytes: a size that all of them divide tells that from too fast.
    size = data.draw(st.integers(1, 2**10)) * 2**20
    options: dict[str, Any] = {}
    how = data.draw(st.sampled_from(("plain", "seeds", "multipath")))
    if how == "multipath":
        options = {"multipath": True}
    elif how == "seeds":
        options = {"seeds": 3}
    with suppress(InputError):  # models and routes that do not go together
        check(made, problem, size, model, in_network=in_network, pieces=pieces, **options)
