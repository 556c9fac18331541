"""The cut of an all-to-all proves its bound by itself, or is not given."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.bounds import bound
from coppice.bounds.all_to_all.distances import proving_cut
from coppice.bounds.describe import describe_cut
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.schedule.verification.verify import cut_inv_rate
from coppice.topology import resolve


@pytest.mark.parametrize(
    ("preset", "boxes", "words"),
    [
        ("dgx-a100", 2, "8 NICs of 25 GB/s: 64 shards over 200 GB/s"),
        ("mi250", 2, "16 links of 16 GB/s to network: 256 shards over 256 GB/s"),
        ("dgx-1v", 1, "2 links of 50 GB/s and 2 links of 25 GB/s: 16 shards over 150 GB/s"),
    ],
)
def test_one_bottleneck_is_found_and_proves_the_bound(preset: str, boxes: int | None, words: str) -> None:
    problem = Problem(topology=resolve(preset, boxes=boxes), collective=Collective.ALL_TO_ALL)
    found = bound(problem)
    assert cut_inv_rate(problem, found.cut) == found.inv_rate
    assert words in describe_cut(found)


def test_no_cut_is_invented() -> None:
    """On a hypercube each link has the same length, and no single bisection is at fault."""
    problem = Problem(topology=resolve("hypercube"), collective=Collective.ALL_TO_ALL)
    found = bound(problem)
    assert found.cut == () or cut_inv_rate(problem, found.cut) == found.inv_rate
    lengths = [1] * problem.topology.num_links
    assert proving_cut(problem, lengths, Fraction(1, 10**6)) == ()


def test_demands_are_counted() -> None:
    topology = resolve("ring", options={"gpus": "4"})
    demands = tuple(tuple(int((i, j) == (0, 2)) for j in range(4)) for i in range(4))
    found = bound(Problem(topology=topology, collective=Collective.ALL_TO_ALL, demands=demands))
    assert found.inv_rate == Fraction(1, 2)
    assert cut_inv_rate(found.problem, found.cut) == Fraction(1, 2)
