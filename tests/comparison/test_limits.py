"""Nothing that a comparison prints is faster than the bound of its class, on random clusters and by every model."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds import Problem, bound
from coppice.bounds.attainable import in_network_bound
from coppice.collectives import Collective
from coppice.comparison import compare
from coppice.comparison.ranges import LibraryPick, pick_lines
from coppice.simulation.models import named_models
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from support.random_clusters import clusters

ROUNDING = 1 + Fraction(1, 10**9)
"""Simulated times are sums of thousands of floating-point numbers."""
ALGORITHMS = {
    Collective.ALL_REDUCE: [
        "forest",
        "ring",
        "recursive-doubling",
        "hierarchical",
        "nccl-ring",
        "nccl-tree",
        "nvls",
    ],
    Collective.ALL_GATHER: ["forest", "ring", "direct", "nccl-ring", "pat"],
    Collective.BROADCAST: ["forest", "binomial", "nccl-ring"],
}


@given(
    clusters(),
    st.sampled_from(list(ALGORITHMS)),
    st.integers(1, 2**30),
    st.sampled_from(sorted(named_models())),
)
@settings(max_examples=15, deadline=None)
def test_random_clusters(topology: Topology, collective: Collective, size: int, model: str) -> None:
    problem = Problem(topology, collective, root=0 if collective.rooted else None)
    systems = ("nvls", "sharp", "switchml") if collective is Collective.ALL_REDUCE else ()
    found = compare(
        problem,
        sizes=[size],
        algorithms=ALGORITHMS[collective],
        model=model,
        relay_gpus=True,
        systems=systems,
        jobs=1,
    )
    rates = [(found, bound(problem).inv_rate)]
    if found.helped is not None:
        rates.append((found.helped, in_network_bound(problem).inv_rate))
    for rows, inv_rate in rates:
        least = inv_rate / problem.shards * size / 1000
        assert any(row.refusal is None for row in rows.measurements)
        for row in rows.measurements:
            assert row.refusal is not None or Fraction(row.time_us) * ROUNDING >= least, row.algorithm
    for row in () if found.modelled is None else found.modelled.times:
        assert found.modelled is not None
        assert Fraction(row.time_us) * ROUNDING >= found.modelled.bounds[row.system] * size / 1000, row.system


def test_nvls_is_measured_by_others_of_its_class() -> None:
    found = compare(
        preset("dgx-h100"), Collective.ALL_REDUCE, sizes=[2**30], algorithms=["forest", "nvls"], jobs=1
    )
    (pick,) = found.picks
    assert (pick.name, pick.algorithm, pick.in_network) == ("NVLS/Simple", "nvls", True)
    assert found.helped is not None
    best = found.helped.best(2**30)
    assert best is not None
    assert pick.ratio == found.helped.times["nvls"][2**30].time_us / best.time_us
    assert pick.record()["in_network"] is True


def test_classes_are_told_apart_in_words() -> None:
    rows = (
        LibraryPick(size_bytes=2**10, name="Tree/LL", algorithm="nccl-tree", ratio=1.5),
        LibraryPick(size_bytes=2**20, name="NVLS/Simple", algorithm="nvls", ratio=1.0, in_network=True),
        LibraryPick(size_bytes=2**30, name="NVLS/Simple", algorithm="nvls", ratio=2.0, in_network=True),
    )
    assert pick_lines(rows) == [
        "1K Tree/LL: 1.5 times the best time",
        "1M..1G NVLS/Simple: 1 to 2 times the best time of those whose switches copy and add",
    ]


def test_picks_need_a_generation() -> None:
    found = compare(preset("star", gpus=4), Collective.ALL_GATHER, sizes=[1024], algorithms=["ring"], jobs=1)
    assert found.picks == ()
