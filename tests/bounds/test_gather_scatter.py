"""Bounds of gather, scatter and barrier: against every cut, and on networks whose answer is plain."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.bounds import Problem, bound
from coppice.bounds.attainable import in_network_bound
from coppice.bounds.describe import crossing, describe_cut
from coppice.bounds.figures import bound_figures
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.schedule.verification.verify import cut_inv_rate
from coppice.topology import resolve
from coppice.topology.model import Link, Node, Topology
from reference.network import Network, describe, network_of
from reference.strategies import disconnected, seeded

ONE_RECEIVER = [Collective.GATHER, Collective.SCATTER]


def largest_ratio(topology: Topology, root: int, *, gathers: bool) -> Fraction:
    """The most that ranks on the far side of any cut need, over what leads to (gather) or from the root."""
    network = network_of(topology)
    if not gathers:
        network = network.transposed()
    home = network.terminals[root]
    worst = Fraction(0)
    for mask in range(1, 2**network.num_nodes):
        away = {v for v in range(network.num_nodes) if mask >> v & 1}
        shards = sum(v in away for v in network.terminals)
        if home not in away and shards:
            worst = max(worst, shards / network.leaving(away))
    return worst


def has_path(network: Network, start: int, end: int) -> bool:
    """Some way leads along links with capacity."""
    reached = {start}
    for _ in range(network.num_nodes):
        reached |= {v for (u, v), rate in network.capacity.items() if u in reached and rate}
    return end in reached


@pytest.mark.parametrize("collective", ONE_RECEIVER, ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_no_cut_says_more_and_the_named_one_says_as_much(seed: int, collective: Collective) -> None:
    topology = seeded(seed, most=8)
    for root in (0, topology.num_ranks - 1):
        problem = Problem(topology=topology, collective=collective, root=root)
        found = bound(problem)
        expected = largest_ratio(topology, root, gathers=collective is Collective.GATHER)
        assert found.inv_rate == found.attainable == expected, describe(problem)
        assert cut_inv_rate(problem, found.cut) == expected, describe(problem)
        shards = crossing(found).shards
        assert shards is not None
        assert Fraction(shards) / crossing(found).gb_per_s == expected
        assert "shard" in describe_cut(found)


def test_the_root_s_own_block_stays() -> None:
    star = resolve("star", options={"gpus": "5"})
    rate = star.gb_per_s(0)
    for collective in ONE_RECEIVER:
        found = bound(Problem(topology=star, collective=collective, root=3))
        assert found.inv_rate == 4 / rate
        assert found.algbw_gb_per_s == 5 * rate / 4
        assert found.busbw_gb_per_s == rate
    into_root = bound(Problem(topology=star, collective=Collective.GATHER, root=3))
    assert describe_cut(into_root).startswith("GPU 3 receives through 1 link")


def test_gather_and_scatter_see_the_direction_of_links() -> None:
    nodes = [Node(id="a"), Node(id="b")]
    links = [
        Link(src="a", dst="b", gb_per_s=Fraction(2), duplex=False),
        Link(src="b", dst="a", gb_per_s=Fraction(5), duplex=False),
    ]
    pair = Topology.of("pair", nodes, links)
    assert bound(Problem(topology=pair, collective=Collective.GATHER, root=0)).inv_rate == Fraction(1, 5)
    assert bound(Problem(topology=pair, collective=Collective.SCATTER, root=0)).inv_rate == Fraction(1, 2)


def test_a_barrier_takes_no_bandwidth() -> None:
    problem = Problem(topology=resolve("star", options={"gpus": "4"}), collective=Collective.BARRIER)
    found = bound(problem)
    assert (found.inv_rate, found.cut, found.algbw_gb_per_s) == (0, (), 0)
    assert cut_inv_rate(problem, range(2)) == 0
    assert describe_cut(found) == "none: there is nothing to send"
    assert bound_figures(problem).inv_rate == 0


@pytest.mark.parametrize("seed", range(10))
def test_ranks_that_cannot_reach_each_other_are_named(seed: int) -> None:
    apart = seeded(seed, (disconnected,))
    rank = apart.rank_nodes.tolist()
    for root in range(2):
        problem = Problem(topology=apart, collective=Collective.GATHER, root=root)
        if has_path(network_of(apart), rank[1 - root], rank[root]):
            assert bound(problem).inv_rate > 0
        else:
            with pytest.raises(UnreachableError, match="no route between"):
                bound(problem)
    with pytest.raises(UnreachableError, match="no route between"):
        bound(Problem(topology=apart, collective=Collective.BARRIER))


@pytest.mark.parametrize("collective", [*ONE_RECEIVER, Collective.BARRIER], ids=str)
def test_problems_without_meaning_are_refused(collective: Collective) -> None:
    star = resolve("star", options={"gpus": "4"})
    wrong_root = 4 if collective.rooted else 0
    right_root = 0 if collective.rooted else None
    with pytest.raises(InputError, match="root"):
        bound(Problem(topology=star, collective=collective, root=wrong_root))
    with pytest.raises(InputError, match="weights"):
        bound(Problem(topology=star, collective=collective, root=right_root, weights=(1, 1, 1, 1)))
    with pytest.raises(InputError, match="sends nothing twice"):
        in_network_bound(Problem(topology=star, collective=collective, root=right_root))
