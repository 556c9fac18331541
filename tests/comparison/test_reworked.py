"""Schedules improved by ruin and recreate: verified, repeatable, never below the least time, as fast as predicted."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.comparison.sizes.channel_costs import ChannelCosts
from coppice.comparison.sizes.matched import Matcher
from coppice.comparison.sizes.path_costs import PathCosts
from coppice.comparison.sizes.reworked import Rework, ReworkStart, fastest_rework
from coppice.planners.synthesis.tacos import chunk_routes_of
from coppice.schedule.schedule import Op
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset
from reference.strategies import topologies

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")


def _start(collective: str, name: str = "dgx-a100", **more: Any) -> tuple[Problem, ReworkStart, Matcher]:
    """What TACOS's matching finds, in the first protocol of the default model."""
    root = 0 if collective in ("broadcast", "reduce") else None
    problem = Problem(preset(name, **more), collective, root=root)
    matcher = Matcher(problem, model_of(None), 2**15)
    found = matcher.fastest(2**18, np.inf)[0]
    return problem, ReworkStart(body=matcher.schedule(found), profile=found.profile, in_order=True), matcher


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_reworked_is_right_faster_and_takes_no_less_than_the_least_time(collective: str) -> None:
    problem, start, matcher = _start(collective, boxes=1 if collective == "all_to_all" else 2)
    model = model_of(None)
    found, again = (Rework.of(start, 2**18, model, matcher.routes) for _ in range(2))
    assert found is not None
    assert again is not None
    found.improve(looks=0, enough_us=0.0)
    before_us = found.time_us
    for each in (found, again):
        each.improve(looks=2**20, enough_us=0.0)
    assert found.time_us < before_us or collective == "all_to_all"
    least_us = LeastTimes(problem, model).at(2**18).time_us
    for body, other in zip(found.schedules(), again.schedules(), strict=True):
        assert verify_schedule(body).ok
        assert body.num_transfers == other.num_transfers
        assert fastest(body, 2**18, model=model, pieces=1).time_us >= least_us * (1 - 1e-9)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_what_is_held_back_takes_what_was_found(collective: str) -> None:
    _, start, matcher = _start(collective, "torus", dims=(3, 4))
    found = Rework.of(start, 2**18, model_of(None), matcher.routes)
    assert found is not None
    found.improve(looks=2**20, enough_us=0.0)
    took_us = [fastest(body, 2**18, model=model_of(None), pieces=1).time_us for body in found.schedules()]
    assert min(took_us) <= found.time_us * 1.01


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_phases_that_are_improved_together_are_right_and_never_slower_than_one_after_the_other(
    data: st.DataObject,
) -> None:
    topology = data.draw(topologies(most=8))
    model, size = model_of(data.draw(st.sampled_from(["nccl-2.30", "mpi-tcp"]))), 2**16
    matcher = Matcher(Problem(topology, "all_reduce"), model, 2**12)
    matched = next(iter(matcher.fastest(size, np.inf)), None)
    assume(matched is not None)
    start = ReworkStart(body=matcher.schedule(matched), profile=matched.profile, in_order=True)
    found = Rework.of(start, size, model, matcher.routes)
    assert found is not None
    found.improve(looks=2**14, enough_us=0.0)
    apart_us = found.time_us
    found.improve_together(looks=2**15, enough_us=0.0)
    assert found.time_us <= apart_us
    least_us = LeastTimes(Problem(topology, "all_reduce"), model).at(size).time_us
    assert found.time_us >= least_us * (1 - 1e-9)
    for body in found.schedules():
        assert verify_schedule(body, relay_gpus=True).ok
        assert fastest(body, size, model=model, pieces=1).time_us >= least_us * (1 - 1e-9)


def test_an_all_reduce_gains_where_its_phases_overlap() -> None:
    _, start, matcher = _start("all_reduce", "dgx-1v")
    apart, together = (Rework.of(start, 2**18, model_of(None), matcher.routes) for _ in range(2))
    assert apart is not None
    assert together is not None
    apart.improve(looks=2**22, enough_us=0.0)
    together.improve(looks=2**21, enough_us=0.0)
    together.improve_together(looks=2**21, enough_us=0.0)
    assert together.time_us < apart.time_us
    assert sum(next(iter(together.schedules())).op == Op.REDUCE) == sum(start.body.op == Op.REDUCE)


def test_a_time_that_is_enough_ends_the_search() -> None:
    _, start, matcher = _start("broadcast", boxes=2)
    found = Rework.of(start, 2**18, model_of(None), matcher.routes)
    assert found is not None
    found.improve(looks=2**20, enough_us=1e9)
    first_us = found.time_us
    found.improve(looks=0, enough_us=0.0)
    assert found.time_us == first_us


def test_the_better_of_two_starts_is_taken_further() -> None:
    problem, good, matcher = _start("broadcast", boxes=1)
    chain = plan_for(problem, [2**18], algorithm="chain").preferred.taken
    bad = ReworkStart(body=chain.made.body, profile=good.profile)
    found = fastest_rework([bad, good], 2**18, model_of(None), matcher.routes, looks=2**18, enough_us=0.0)
    assert found is not None
    assert found[0] == 1


def test_rows_that_bring_a_chunk_twice_to_a_rank_are_left_alone() -> None:
    problem, start, _ = _start("all_reduce", "star", gpus=4)
    doubling = plan_for(problem, [2**18], algorithm="recursive-doubling").preferred.taken.made.body
    assert Rework.of(ReworkStart(body=doubling, profile=start.profile), 2**18, model_of(None), None) is None


def _decoded(
    costs: ChannelCosts,
    source: NDArray[np.int32],
    size: NDArray[np.int32],
    channel: NDArray[np.int32],
    chunk: NDArray[np.int32],
) -> list[tuple[int, int]]:
    """When each transfer goes and arrives, in its order: the readable reference of the core without a search.

    A term of a sum waits for those that its sender has been given, as a copy waits for what it sends.
    """
    ranks = int(costs.src.max()) + 1
    has = dict.fromkeys(itertools.product(range(len(source)), range(ranks)), 0)
    busy: dict[int, list[tuple[int, int]]] = {}
    found = []
    for k, c in zip(channel.tolist(), chunk.tolist(), strict=True):
        ports = range(costs.port_start[k], costs.port_start[k + 1])
        held = [
            (int(costs.port[i]), int(costs.offset[size[c], i]), int(costs.hold[size[c], i])) for i in ports
        ]
        start = has[c, int(costs.src[k])]
        moved = True
        while moved:
            moved = False
            for port, offset, hold in held:
                for begin, end in sorted(busy.get(port, [])):
                    if begin < start + offset + hold and start + offset < end:
                        start, moved = end - offset, True
        for port, offset, hold in held:
            busy.setdefault(port, []).append((start + offset, start + offset + hold))
        found.append((start, start + int(costs.duration[size[c], k])))
        has[c, int(costs.dst[k])] = max(has[c, int(costs.dst[k])], found[-1][1])
    return found


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_core_places_transfers_as_its_reference_does(seed: int, summed: bool) -> None:
    random = np.random.default_rng(seed)
    topology = preset("dgx-a100", boxes=2)
    routes, model = chunk_routes_of(topology, None, 2**10), model_of("mpi-tcp" if seed % 3 == 0 else None)
    profile = transport_profiles(model, topology)[0]
    costs = ChannelCosts.of(
        topology,
        routes.path_start,
        routes.path_nodes,
        random.integers(1, 2**16, 2),
        size_bytes=2**20,
        profile=profile,
        model=model,
    )
    costs = costs.backwards() if seed % 2 else costs
    ranks, chunks = topology.num_ranks, 6
    source = random.integers(0, ranks, chunks).astype(np.int32)
    size = random.integers(0, 2, chunks).astype(np.int32)
    channel: list[int] = []
    chunk: list[int] = []
    holders = [[int(rank)] for rank in source]
    while len(channel) < chunks * (ranks - 1):
        c = int(random.integers(chunks))
        fits = np.flatnonzero(np.isin(costs.src, holders[c]) & ~np.isin(costs.dst, holders[c]))
        if len(fits):
            k = int(random.choice(fits))
            channel.append(k)
            chunk.append(c)
            holders[c].append(int(costs.dst[k]))
    if summed:  # along the same trees, the other way and from the last row to the first
        pairs = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(costs.src, costs.dst, strict=True))}
        back = [pairs[int(costs.dst[k]), int(costs.src[k])] for k in reversed(channel)]
        channel, chunk = back + channel, chunk[::-1] + chunk
    adds = (np.arange(len(channel)) < len(channel) // 2).astype(np.uint8) if summed else np.zeros(0, np.uint8)
    order = np.array(channel, dtype=np.int32), np.array(chunk, dtype=np.int32)
    expected = _decoded(costs, source, size, *order)
    time, start, arrive, *_ = _core.recreate(
        ranks,
        costs.num_ports,
        costs.src,
        costs.dst,
        costs.port_start,
        costs.port,
        costs.duration.ravel(),
        costs.offset.ravel(),
        costs.hold.ravel(),
        source,
        np.full(chunks, -1, dtype=np.int32),
        size,
        np.zeros(len(channel), dtype=np.int64),
        *order,
        adds,
        summed,
        0,
        0,
        0,
    )
    assert sorted(zip(start.tolist(), arrive.tolist(), strict=True)) == sorted(expected)
    assert time == max(end for _, end in expected)


@pytest.mark.parametrize("name", ["nccl-2.30", "mpi-tcp", "ideal"])
def test_a_channel_takes_what_a_message_takes_alone(name: str) -> None:
    topology, model = preset("dgx-a100", boxes=2), model_of(name)
    routes, sizes = chunk_routes_of(topology, None, 2**10), np.array([1, 5000, 2**20])
    for profile in transport_profiles(model, topology):
        costs = ChannelCosts.of(
            topology,
            routes.path_start,
            routes.path_nodes,
            sizes,
            size_bytes=2**20,
            profile=profile,
            model=model,
        )
        path = PathCosts.of(topology, routes.path_start, routes.path_nodes, profile, model)
        for size, lasts in zip(sizes, costs.duration * costs.unit_us, strict=True):
            alone = path.on_path_us(np.arange(len(lasts)), np.full(len(lasts), size))
            assert np.all(lasts >= alone * (1 - 1e-6))
            if model.copying_gb_per_s(2**20) is None:
                assert np.allclose(lasts, alone, rtol=1e-6)
        back = costs.backwards()
        assert np.all(back.offset + back.hold <= costs.duration.max())
        assert np.abs(back.backwards().offset - costs.offset).max() <= 1  # of 2^32 units
