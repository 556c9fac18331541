"""The bound on several groups: against all cuts, linear programs, plans that reach it; and its proof when injured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import highspy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coppice.bounds import Problem
from coppice.bounds.together.check import check_together
from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.describe import limit_words, shares_of, together_record
from coppice.bounds.together.least import TogetherBound, least_time
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.forest.planner import planned_forest
from coppice.schedule.loads import body_loads
from coppice.topology.model import NodeKind, Topology
from coppice.topology.operations import subset
from coppice.topology.presets import preset
from support.group_cases import cases

relaxed = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
GB = Fraction(10**9)


def demand(name: str, collective: str, groups: list[list[int]], size: Fraction = GB) -> GroupDemand:
    return GroupDemand(name, collective, np.array(groups, dtype=np.int64), [size] * len(groups))


def serving(topology: Topology, one: GroupDemand) -> set[tuple[int, int]]:
    """Links that lie on a way from member to member through nodes that are no GPUs; all, where these do not suffice."""
    gpu = topology.kind == NodeKind.GPU
    links = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    used: set[tuple[int, int]] = set()
    for ranks in one.groups.tolist():
        members = {int(topology.rank_nodes[rank]) for rank in ranks}
        edges: set[tuple[int, int]] = set()

        def onward(node: int, ways: list[tuple[int, int]]) -> set[int]:
            seen, todo = {node}, [node]
            while todo:
                here = todo.pop()
                if here != node and gpu[here]:
                    continue
                for src, dst in ways:
                    if src == here and dst not in seen:
                        seen.add(dst)
                        todo.append(dst)
            return seen

        back = [(dst, src) for src, dst in links]
        for src, dst in links:
            starts = {src} if gpu[src] else onward(src, back)
            ends = {dst} if gpu[dst] else onward(dst, links)
            good = True
            if gpu[src]:
                good &= src in members and bool((ends & members) - {src})
            if gpu[dst]:
                good &= dst in members and bool((starts & members) - {dst})
            if good:
                used.add((src, dst))
                if src in members:
                    edges |= {(src, end) for end in ends & members}
        for start in members:
            for way in (edges, {(b, a) for a, b in edges}):
                reached = {start}
                while more := {b for a, b in way if a in reached and b not in reached}:
                    reached |= more
                if reached != members:
                    return set(links)
    return used


def crossing(one: GroupDemand, inside: set[int], entering: bool) -> Fraction:
    """Bytes that have to enter (or leave) a set of ranks."""
    total = Fraction(0)
    for ranks, size in zip(one.groups.tolist(), one.size_bytes, strict=True):
        within = [rank for rank in ranks if rank in inside]
        if one.collective == "send":
            for a, b in itertools.pairwise(ranks):
                total += size * (
                    (a not in inside and b in inside) if entering else (a in inside and b not in inside)
                )
            continue
        if not 0 < len(within) < len(ranks):
            continue
        other = len(ranks) - len(within)
        if one.collective == "all_reduce":
            total += size
        elif one.collective == "all_to_all":
            total += size * len(within) * other / len(ranks)
        elif (one.collective == "all_gather") == entering:
            total += size * other / len(ranks)
        else:
            total += size * len(within) / len(ranks)
    return total


def worst_cut(topology: Topology, demands: list[GroupDemand]) -> Fraction:
    """The largest time that any set of nodes and any choice of the demands takes."""
    uses = [serving(topology, one) for one in demands]
    links = list(zip(topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True))
    worst = Fraction(0)
    for mask in range(1, 2**topology.num_nodes - 1):
        nodes = {node for node in range(topology.num_nodes) if mask >> node & 1}
        ranks = {int(topology.rank[node]) for node in nodes if topology.rank[node] >= 0}
        for entering in (True, False):
            for chosen in range(1, 2 ** len(demands)):
                picked = [k for k in range(len(demands)) if chosen >> k & 1]
                need = sum((crossing(demands[k], ranks, entering) for k in picked), Fraction(0))
                room = sum(
                    c
                    for a, b, c in links
                    if ((a not in nodes and b in nodes) if entering else (a in nodes and b not in nodes))
                    and any((a, b) in uses[k] for k in picked)
                )
                if need and room:
                    worst = max(worst, need * topology.denominator / room / 10**9)
    return worst


@relaxed
@given(case=cases())
def test_no_cut_of_a_small_network_says_more_and_the_proof_holds(
    case: tuple[Topology, list[GroupDemand]],
) -> None:
    topology, demands = case
    found = least_time(topology, demands)
    check_together(found)
    alone = least_time(topology, demands, in_network=True)
    check_together(alone)
    assert alone.seconds == worst_cut(topology, demands)
    assert found.seconds >= alone.seconds


def concurrent_flow(topology: Topology, demands: list[GroupDemand]) -> float:
    """The least time in which flows carry all blocks from rank to rank, by a linear program in floating point."""
    pairs: list[tuple[int, int, float, int]] = []
    for number, one in enumerate(demands):
        for ranks, size in zip(one.groups.tolist(), one.size_bytes, strict=True):
            if one.collective == "send":
                pairs += [(a, b, float(size), number) for a, b in itertools.pairwise(ranks)]
            else:
                block = float(size) / len(ranks)
                pairs += [(a, b, block, number) for a in ranks for b in ranks if a != b]
    uses = [serving(topology, one) for one in demands]
    links = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    solver = highspy.Highs()
    solver.silent()
    span = solver.addVariable(lb=0.0)
    load: list[list[object]] = [[] for _ in links]
    for a, b, amount, number in pairs:
        flow = {k: solver.addVariable(lb=0.0) for k, link in enumerate(links) if link in uses[number]}
        for k, variable in flow.items():
            load[k].append(variable)
        source, sink = int(topology.rank_nodes[a]), int(topology.rank_nodes[b])
        for node in range(topology.num_nodes):
            out = [flow[k] for k in flow if links[k][0] == node]
            into = [flow[k] for k in flow if links[k][1] == node]
            wanted = amount / 1e9 * ((node == source) - (node == sink))
            if out or into:
                solver.addConstr(sum(out, 0 * span) - sum(into, 0 * span) == wanted)
    for k, carried in enumerate(load):
        if carried:
            rate = float(topology.gb_per_s(k))
            solver.addConstr(sum(carried, 0 * span) - rate * span <= 0)
    solver.minimize(span)
    return float(solver.getObjectiveValue())


@settings(relaxed, max_examples=10)
@given(case=cases(("all_to_all", "send")))
def test_flows_take_no_less(case: tuple[Topology, list[GroupDemand]]) -> None:
    topology, demands = case
    if not demands:
        return
    assert float(least_time(topology, demands).seconds) <= concurrent_flow(topology, demands) * (1 + 1e-6)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize(("size", "stride"), [(2, 8), (4, 4), (8, 2)])
def test_flows_of_boxes_take_as_long(name: str, size: int, stride: int) -> None:
    topology = preset(name, boxes=2)
    groups = [
        [block + first + k * stride for k in range(size)]
        for block in range(0, 16, size * stride)
        for first in range(stride)
    ]
    one = [demand("ep", "all_to_all", groups)]
    assert float(least_time(topology, one).seconds) == pytest.approx(concurrent_flow(topology, one), rel=1e-6)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize(("size", "stride"), [(8, 1), (4, 8), (8, 4), (16, 1), (32, 1), (4, 1)])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
def test_forests_of_all_groups_reach_it(name: str, size: int, stride: int, collective: str) -> None:
    topology = preset(name, boxes=4)
    groups = [
        [block + first + k * stride for k in range(size)]
        for block in range(0, 32, size * stride)
        for first in range(stride)
    ]
    load = [Fraction(0)] * topology.num_links
    for ranks in groups:
        problem = Problem(subset(topology, ranks), Collective(collective))
        loads = body_loads(planned_forest(problem).forest, problem)
        own = problem.topology
        for link, units in enumerate(loads.load):
            ends = (own.node_ids[own.src[link]], own.node_ids[own.dst[link]])
            place = topology.link_index[topology.node_index[ends[0]], topology.node_index[ends[1]]]
            load[place] += Fraction(units) / loads.shard / problem.shards
    longest = max(amount / topology.gb_per_s(link) for link, amount in enumerate(load))
    assert least_time(topology, [demand("all", collective, groups)]).seconds == longest


def test_what_limits_changes_with_what_is_sent() -> None:
    topology = preset("dgx-h100", boxes=4)
    inside = [list(range(box * 8, box * 8 + 8)) for box in range(4)]
    across = [list(range(first, 32, 8)) for first in range(8)]
    times = []
    for share in (0, 1, 4, 16, 64):
        both = [demand("tp", "all_reduce", inside, share * GB), demand("dp", "all_reduce", across)]
        found = least_time(topology, both)
        times.append(found.seconds)
        names = {found.demands[number].name for number in found.counted}
        assert names == ({"dp"} if share <= 4 else {"tp"})
        assert ("in the box" in limit_words(found)) == ("tp" in names)
    # 3/4 of 1 GB twice over NICs of 50 GB/s; 7/8 of 64 GB twice over NVLink of 450 GB/s.
    assert (times[0], times[-1]) == (Fraction(3, 2) / 50, Fraction(64 * 7, 4) / 450)
    assert times == sorted(times)


def test_groups_that_share_a_way_are_added_up() -> None:
    topology = preset("dgx-h100", boxes=2)
    halves = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    across = [[rank, rank + 8] for rank in range(8)]
    one, other = demand("a", "all_to_all", halves), demand("b", "all_reduce", across)
    both = least_time(topology, [one, other])
    alone = [least_time(topology, [each]).seconds for each in (one, other)]
    assert both.seconds == sum(alone)
    assert sorted(shares_of(both)) == ["a", "b"]
    record = together_record(both)
    assert record["bytes"]
    assert record["least_seconds_exact"] == str(both.seconds)


def test_switches_that_add_halve_an_all_reduce() -> None:
    topology = preset("dgx-h100")
    one = [demand("tp", "all_reduce", [list(range(8))])]
    assert least_time(topology, one).seconds == Fraction(7, 4) / 450
    assert least_time(topology, one, in_network=True).seconds == Fraction(1, 450)


def test_one_rank_alone_takes_no_time() -> None:
    found = least_time(preset("star", gpus=4), [demand("tp", "all_reduce", [[0], [1]])])
    check_together(found)
    assert (found.seconds, limit_words(found)) == (0, "nothing has to move")


def injured(found: TogetherBound) -> list[TogetherBound]:
    """Bounds with one figure wrong."""
    others = replace(found, sets=found.sets[1:] or ((0,),))
    return [
        replace(found, seconds=found.seconds * 2),
        replace(found, gb_per_s=found.gb_per_s / 2),
        replace(found, needed_bytes=tuple(2 * each for each in found.needed_bytes)),
        replace(found, sets=(*found.sets, found.sets[0])),
        replace(found, sets=()),
        replace(others, seconds=found.seconds * Fraction(3, 2)),
    ]


def test_an_injured_proof_is_refused() -> None:
    topology = preset("dgx-a100", boxes=4)
    across = [list(range(first, 32, 8)) for first in range(8)]
    found = least_time(
        topology, [demand("dp", "all_reduce", across), demand("tp", "all_gather", [[0, 1], [8, 9]])]
    )
    check_together(found)
    for wrong in injured(found):
        with pytest.raises(CheckError):
            check_together(wrong)


def test_demands_without_a_meaning_are_refused() -> None:
    topology = preset("star", gpus=4)
    with pytest.raises(InputError, match="expected a to be one of"):
        least_time(topology, [demand("a", "broadcast", [[0, 1]])])
    with pytest.raises(InputError, match="each once at most"):
        least_time(topology, [demand("a", "all_gather", [[0, 1], [1, 2]])])
    with pytest.raises(InputError, match="each once at most"):
        least_time(topology, [demand("a", "all_gather", [[0, 9]])])
    with pytest.raises(InputError, match="a size of 0 or more"):
        least_time(topology, [demand("a", "all_gather", [[0, 1]], -GB)])
    with pytest.raises(InputError, match="at most 8 kinds"):
        least_time(topology, [demand(str(k), "all_gather", [[0, 1]]) for k in range(9)])
