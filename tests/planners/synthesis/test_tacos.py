"""TACOS: the native matching against its reference, published times, every collective, and how it ends."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice import _core
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.synthesizing import Request, Status, synthesize
from coppice.planners.synthesis.tacos import TacosOptions, chunk_routes_of, synthesize_tacos
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference import tacos as reference

GIB = Fraction(2**30, 10**9)
"""A GiB/s, which is what the published program calls a GB/s, in GB/s."""


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[reference.Channel]]:
    ranks = draw(st.integers(1, 5))
    ports = draw(st.integers(1, 8))
    channels = []
    for _ in range(draw(st.integers(0, 10)) if ranks > 1 else 0):
        src = draw(st.integers(0, ranks - 1))
        dst = (src + draw(st.integers(1, ranks - 1))) % ranks
        duration = draw(st.integers(1, 6))
        held = draw(st.lists(st.integers(0, ports - 1), min_size=1, max_size=2, unique=True))
        on = tuple((port, draw(st.integers(1, duration))) for port in held)
        channels.append(reference.Channel(src, dst, duration, on))
    return ranks, channels


def native(
    ranks: int,
    channels: list[reference.Channel],
    chunks: list[tuple[int, int]],
    rule: int,
    group: list[int] | None = None,
    **more: int,
) -> tuple:
    counts = [len(each.ports) for each in channels]
    entries = [entry for each in channels for entry in each.ports]
    arguments = {"seed": 0, "first": 0, "count": 1, "threads": 1, "limit": 2**62} | more
    return _core.match_chunks(
        ranks,
        1 + max((port for port, _ in entries), default=0),
        np.array([each.src for each in channels], dtype=np.int32),
        np.array([each.dst for each in channels], dtype=np.int32),
        np.array([each.duration for each in channels], dtype=np.int64),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        np.array([port for port, _ in entries], dtype=np.int32),
        np.array([hold for _, hold in entries], dtype=np.int64),
        np.array([source for source, _ in chunks], dtype=np.int32),
        np.array([target for _, target in chunks], dtype=np.int32),
        np.array(group or [], dtype=np.int32),
        np.array([rule], dtype=np.uint8),
        *arguments.values(),
        -1.0,
    )


@settings(max_examples=100, deadline=None)
@given(networks(), st.data(), st.sampled_from(["random", "rarest", "local"]), st.integers(0, 2**32))
def test_the_native_matching_draws_as_its_reference(
    network: tuple[int, list[reference.Channel]], data: st.DataObject, rule: str, seed: int
) -> None:
    ranks, channels = network
    ends = st.tuples(st.integers(0, ranks - 1), st.integers(-1, ranks - 1))
    chunks = data.draw(st.lists(ends, min_size=1, max_size=6))
    group = data.draw(st.one_of(st.just([]), st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks)))
    own = reference.mixed(reference.mixed(seed))
    time_taken, transfers = reference.match(ranks, channels, chunks, rule, own, group)
    found = native(ranks, channels, chunks, ["random", "rarest", "local"].index(rule), group, seed=seed)
    assert found[0] == time_taken
    if time_taken >= 0:
        assert list(zip(*(column.tolist() for column in found[2:]), strict=True)) == transfers


def on_grid(kind: str, dims: tuple[int, ...], rates: tuple[int, ...], latency_us: float) -> Topology:
    found = preset(kind, dims=dims, gb_per_s=tuple(rate * GIB for rate in rates))
    return replace(found, latency_us=np.full(found.num_links, latency_us))


@pytest.mark.parametrize(
    ("kind", "dims", "rates", "latency_us", "chunks", "mib", "published_us"),
    [
        ("torus", (3, 3, 3), (50, 50, 50), 0.5, 1, 1024, 3706.20),
        ("torus", (3, 4, 5), (50, 50, 50), 0.5, 2, 2048, 6676.67),
        ("torus", (4, 2, 3), (50, 50, 50), 0.5, 3, 3072, 11673.67),
        ("mesh", (5, 5), (50, 50), 0.5, 1, 1024, 9606.0),
        ("mesh", (5, 5), (75, 50), 0.5, 1, 1024, 8005.0),
        ("mesh", (5, 8), (35, 80), 1.0, 2, 1024, 8595.43),
        ("mesh", (3, 3, 3), (50, 50, 50), 0.5, 1, 1024, 6671.17),
        ("mesh", (3, 4, 5), (50, 50, 50), 0.5, 2, 2048, 13353.33),
        ("mesh", (4, 2, 3), (50, 50, 50), 0.5, 3, 3072, 19178.17),
        ("mesh", (10, 10), (100, 100), 1.0, 2, 1024, 5049.0),
        ("mesh", (12, 7), (100, 100), 1.0, 3, 4096, 19966.27),
        ("mesh", (10, 7), (73, 16), 1.5, 3, 4096, 44612.47),
    ],
)
def test_published_times_are_reached(
    kind: str,
    dims: tuple[int, ...],
    rates: tuple[int, ...],
    latency_us: float,
    chunks: int,
    mib: int,
    published_us: float,
) -> None:
    topology = on_grid(kind, dims, rates, latency_us)
    size = mib * 2**20 // (topology.num_ranks * chunks)
    options = TacosOptions(chunks=chunks, chunk_size=size, seeds=20)
    found = synthesize_tacos(Request(problem=Problem(topology, Collective.ALL_GATHER), options=options))
    assert found.details["makespan_us"] <= published_us * 1.01
    assert found.details["times_exact"]


SMALL = {
    "one": preset("complete", gpus=1),
    "two": preset("path", gpus=2),
    "three": preset("ring", gpus=3),
    "five": preset("star", gpus=5, gb_per_s=25),
    "boxes": preset("dgx-a100", boxes=2),
    "leaf-spine": preset("fat-tree", leaves=2, gpus_per_leaf=3, spines=2),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"])
def test_every_collective_verifies_and_is_no_faster_than_the_bound(name: str, collective: str) -> None:
    found = synthesize(SMALL[name], collective, method="tacos", options={"chunks": 2, "seeds": 3})
    assert found.status is Status.SAT
    if found.problem.topology.num_ranks == 1:
        return
    assert found.planned is not None
    assert found.planned.report.ok
    assert found.gap is not None
    assert found.gap >= 0
    # What the search says of its times is never better than the rate of its links.
    assert found.synthesis.details["makespan_algbw_gb_per_s"] <= float(found.planned.algbw_gb_per_s) * (
        1 + 1e-9
    )
    size = 2**18
    took = fastest(found.plan.schedule, size, model=model_of(None), keep_hops=False).time_us
    assert took >= float(found.bound.inv_rate) * size / found.problem.shards / 1000


def test_all_to_all_needs_a_way_between_every_two_ranks() -> None:
    found = synthesize(SMALL["leaf-spine"], "all_to_all", method="tacos", options={"seeds": 3})
    assert found.planned is not None
    assert found.planned.report.ok
    with pytest.raises(UnreachableError, match="no link or path of switches"):
        synthesize(preset("ring", gpus=5), "all_to_all", method="tacos")


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce"])
def test_ranks_that_nothing_joins_are_named(collective: str) -> None:
    apart = Topology.of(
        "apart", [Node(id="a"), Node(id="b")], [Link(src="a", dst="b", gb_per_s=Fraction(1), duplex=False)]
    )
    problem = Problem(apart, collective, root=0 if collective == "reduce" else None)
    with pytest.raises(UnreachableError, match="found none"):
        synthesize_tacos(Request(problem=problem, options=TacosOptions()))


def test_the_same_seed_gives_the_same_schedule_on_any_number_of_threads() -> None:
    problem = Problem(preset("mi250"), Collective.ALL_GATHER)
    made = [
        synthesize_tacos(
            Request(problem=problem, options=TacosOptions(chunks=2, seeds=6, threads=threads), seed=5)
        ).body
        for threads in (1, 3, 1)
    ]
    for other in made[1:]:
        assert isinstance(other, Schedule)
        assert isinstance(made[0], Schedule)
        for column in ("src", "dst", "chunk", "path"):
            assert np.array_equal(getattr(other, column), getattr(made[0], column))


def test_no_time_gives_no_schedule_and_ctrl_c_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(preset("torus", dims=(8, 8)), Collective.ALL_GATHER)
    options = TacosOptions(chunks=4, seeds=50, threads=1)
    late = synthesize_tacos(Request(problem=problem, options=options, deadline=time.monotonic() - 1))
    assert late.status is Status.UNKNOWN
    assert late.body is None
    plain, calls = _core.match_chunks, []

    def interrupted(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(_core, "match_chunks", interrupted)
    found = synthesize_tacos(Request(problem=problem, options=options))
    assert found.interrupted
    assert found.body is not None
    assert found.details["attempts_done"] == 2
    calls[:] = [(), ()]
    with pytest.raises(KeyboardInterrupt):
        synthesize_tacos(Request(problem=problem, options=options))


def test_what_cannot_be_served_is_refused() -> None:
    ring = preset("ring", gpus=4)
    with pytest.raises(InputError, match="chunks of one size"):
        synthesize(ring, "all_gather", method="tacos", weights=[1, 2, 1, 1])
    with pytest.raises(InputError, match="`seeds`"):
        synthesize(ring, "all_gather", method="tacos", options={"seeds": 0})
    with pytest.raises(InputError, match="`colour`"):
        synthesize(ring, "all_gather", method="tacos", options={"colour": 1})


def test_a_fast_port_in_front_of_a_slow_one_is_free_early() -> None:
    nodes = [Node(id="a"), Node(id="b")]
    nodes.append(Node(id="s", kind=NodeKind.SWITCH))
    links = [Link(src="a", dst="s", gb_per_s=Fraction(100)), Link(src="s", dst="b", gb_per_s=Fraction(25))]
    found = chunk_routes_of(Topology.of("t", nodes, links), None, 100)
    first = found.src.tolist().index(0)
    assert found.duration[first] == 4
    assert found.hold[2 * first : 2 * first + 2].tolist() == [1, 4]
