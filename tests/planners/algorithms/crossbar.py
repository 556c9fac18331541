"""What the tests of NCCL's and the research algorithms share: cases on a crossbar, timed by the simulator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.schedule.forest import Forest
from coppice.schedule.loads import chunk_sizes
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.forest import verify_forest
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model
from coppice.topology.model import NodeKind, Topology
from coppice.topology.presets import preset
from support.alpha_beta import simulate

RANKS = (*range(1, 18), 24, 32, 64)
# (overhead in microseconds, rate at which a GPU adds in GB/s) beside ports of 1 GB/s
MODELS = ((1.0, None), (0.25, 2.0), (64.0, 0.125))


def made(
    name: str, collective: Collective, topology: Topology, root: int = 0, **given: int | str
) -> Schedule | Forest:
    """What an algorithm makes of a topology, with a route for every transfer."""
    chosen = root if collective.rooted else None
    entry = find(name, collective)
    return make(entry, case_of(entry, Problem(topology=topology, collective=collective, root=chosen), given))


def verified(body: Schedule | Forest, root: int = 0) -> Report:
    """The report of a body that must hold."""
    if isinstance(body, Schedule):
        report = verify_schedule(body)
    else:
        report = verify_forest(body, root=root if body.collective.rooted else None)
    assert report.ok, report.failures
    return report


def check_cost(name: str, collective: Collective, ranks: int, root: int = 0, **given: int | str) -> Schedule:
    """The verified schedule on a crossbar, whose steps, bytes and simulated time are those that the cost states."""
    topology = preset("star", gpus=ranks)
    entry = find(name, collective)
    chosen = root if collective.rooted else None
    case = case_of(entry, Problem(topology=topology, collective=collective, root=chosen), given)
    schedule = make(entry, case)
    assert isinstance(schedule, Schedule)
    verified(schedule)
    assert entry.cost is not None
    cost = entry.cost(case)
    assert np.unique(schedule.step).tolist() == list(range(cost.steps))
    sizes, _ = chunk_sizes(schedule)
    sent: Counter[int] = Counter()
    for src, chunk in zip(schedule.src.tolist(), schedule.chunk.tolist(), strict=True):
        sent[src] += sizes[chunk]
    whole = sum(sizes)
    assert cost.sent == (Fraction(max(sent.values(), default=0), whole) if whole else 0)
    if ranks == 1:
        assert cost.chains == ()
    size = 1000 * whole if whole else 0
    for overhead, rate in MODELS:
        model = Model(overhead_us=overhead, send_engines=1, receive_engines=1, reduce_gb_per_s=rate)
        stated = cost.time_us(
            size,
            alpha_us=Fraction(overhead),
            gb_per_s=Fraction(1),
            reduce_gb_per_s=None if rate is None else Fraction(rate),
        )
        found = simulate(schedule, size, model=model).time_us
        assert abs(found - float(stated)) <= 1e-9 * max(1.0, float(stated)), (overhead, rate, found, stated)
    return schedule


def with_ranks_shuffled(topology: Topology, seed: int) -> Topology:
    """The same machines, numbered in another order."""
    shuffle = np.random.default_rng(seed).permutation(topology.num_ranks)
    rank = topology.rank.copy()
    rank[rank >= 0] = shuffle[rank[rank >= 0]]
    return replace(topology, rank=rank)


def with_able_switches(topology: Topology, *, of_boxes: bool = False) -> Topology:
    """The same network whose switches outside the boxes, or all of them, copy and add."""
    switch = (topology.kind == NodeKind.SWITCH) & ((topology.host < 0) | of_boxes)
    return replace(topology, multicast=topology.multicast | switch, aggregate=topology.aggregate | switch)
