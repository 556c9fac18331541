"""Where a job is placed: as well as any placement of a small cluster, and better than as numbered on larger ones."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

import coppice
from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import least_time
from coppice.errors import InputError, UnreachableError
from coppice.planners.together.placing import placed_demands, search_placement
from coppice.topology import Link, Node, NodeKind, Topology, preset, subset

GB = Fraction(10**9)


def uneven() -> Topology:
    """Boxes of two, two and one GPUs, whose NICs have 1, 2 and 5 GB/s."""
    nodes = [Node(id="network", kind=NodeKind.SWITCH)]
    links = []
    for box, rate in enumerate((1, 2, 5)):
        host = f"box{box}"
        for place in range(2 if box < 2 else 1):
            gpu, nic = f"{host}/gpu{place}", f"{host}/nic{place}"
            nodes += [Node(id=gpu, host=host), Node(id=nic, kind=NodeKind.NIC, host=host)]
            links += [
                Link(src=gpu, dst=nic, gb_per_s=Fraction(rate)),
                Link(src=nic, dst="network", gb_per_s=Fraction(rate)),
            ]
    links += [Link(src=f"box{k}/gpu0", dst=f"box{k}/gpu1", gb_per_s=Fraction(10)) for k in range(2)]
    return Topology.of("uneven", nodes, links)


def pairs(*groups: tuple[int, ...], name: str = "tp", size: Fraction = GB) -> GroupDemand:
    return GroupDemand(name, "all_reduce", np.array(groups), [size] * len(groups))


@pytest.mark.parametrize(
    "demands",
    [
        [pairs((0, 1), (2, 3)), pairs((0, 2), (1, 3), name="dp", size=4 * GB)],
        [GroupDemand("pp", "send", np.array([[0, 1, 2, 3]]), [GB])],
    ],
    ids=("data groups", "stages"),
)
def test_no_placement_of_a_small_cluster_is_better(demands: list[GroupDemand]) -> None:
    cluster = uneven()
    every = [
        least_time(cluster, placed_demands(demands, order)).seconds for order in permutations(range(5), 4)
    ]
    found = search_placement(cluster, demands, 4)
    assert found.seconds == min(every)
    assert found.seconds == least_time(cluster, placed_demands(demands, found.order)).seconds
    assert found == search_placement(cluster, demands, 4)


def test_a_job_on_what_is_free_of_a_cluster() -> None:
    """Four GPUs of the first box and two of the last are taken: groups of eight get whole boxes as far as they can."""
    free = subset(preset("dgx-a100", boxes=3), [*range(4, 16), *range(18, 24)])
    found = coppice.plan_groups(free, groups="tp=8,dp=2", order="topology")
    assert found.gap < 0.01
    numbered = [
        pairs(tuple(range(8)), tuple(range(8, 16))),
        pairs(*((k, k + 8) for k in range(8)), name="dp"),
    ]
    assert float(found.bound.seconds) < 0.5 * float(least_time(free, numbered).seconds)
    taken = [rank for each in found.groups if each.demand.name == "tp" for rank in each.ranks]
    assert len(set(taken)) == 16


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(InputError, match="expected 16 GPUs for the job, found 8"):
        coppice.plan_groups("dgx-a100", groups="tp=8,dp=2", order="topology")
    with pytest.raises(InputError, match="expected `groups` with `order=topology`"):
        coppice.plan_groups("dgx-a100", job="gpt-7.5b", order="topology")
    alone = Topology.of("alone", [Node(id=name) for name in "ab"], [])
    with pytest.raises(UnreachableError, match="whose groups reach each other"):
        search_placement(alone, [pairs((0, 1))], 2)
