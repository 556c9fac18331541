"""Blink: packings against brute force and the exact bound, whole trees, three phases, the split between fabrics."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coppice
from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.blink import packings
from coppice.planners.synthesis.blink.packing import pcie_share
from coppice.planners.synthesis.blink.packings import (
    Packed,
    exact_packing,
    shortest_arborescence,
    weighted_packing,
)
from coppice.planners.synthesis.blink.routes import Fabric, routes_between
from coppice.schedule.files.plan_file import encode_plan
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import subset
from coppice.topology.presets import preset

quick = settings(max_examples=40, deadline=None)


def blink(topology: Any, collective: str, **options: Any) -> Any:
    root = options.pop("root", None)
    return coppice.synthesize(topology, collective, method="blink", root=root, options=options)


def random_graph(seed: int, nodes: int, *, duplex: bool) -> Topology:
    """A connected graph: a circle through all nodes and some chords."""
    choose = random.Random(seed)
    links = [(i, (i + 1) % nodes) for i in range(nodes)]
    links += [pair for pair in combinations(range(nodes), 2) if choose.random() < 0.5]
    return Topology.of(
        "random",
        [Node(id=str(i)) for i in range(nodes)],
        [
            Link(src=str(a), dst=str(b), gb_per_s=Fraction(choose.randint(1, 4)), duplex=duplex)
            for a, b in links
        ],
    )


def loads(packed: Packed) -> dict[int, Fraction]:
    """What every link carries, counted anew from the paths of the routes."""
    index = packed.routes.topology.link_index
    carried: dict[int, Fraction] = {}
    for tree, rate in enumerate(packed.rates):
        for route in packed.edges(tree):
            for path in (route.down, route.up):
                for hop in pairwise(path):
                    carried[index[hop]] = carried.get(index[hop], Fraction(0)) + rate
    return carried


@quick
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 5))
def test_the_shortest_arborescence_is_the_shortest_of_all(seed: int, nodes: int) -> None:
    choose = random.Random(seed)
    edges = [(a, b) for a in range(nodes) for b in range(nodes) if a != b and choose.random() < 0.7]
    lengths = [choose.randint(0, 9) for _ in edges]
    best = None
    into = [[e for e, (_, dst) in enumerate(edges) if dst == node] for node in range(1, nodes)]
    for chosen in product(*into):
        reached, growing = {0}, True
        while growing:
            new = {edges[e][1] for e in chosen if edges[e][0] in reached} - reached
            reached |= new
            growing = bool(new)
        if len(reached) == nodes:
            total = sum(lengths[e] for e in chosen)
            best = total if best is None else min(best, total)
    if best is None:
        with pytest.raises(UnreachableError):
            shortest_arborescence(nodes, 0, edges, lengths)
        return
    found = shortest_arborescence(nodes, 0, edges, lengths)
    assert sum(lengths[e] for e in found) == best
    assert sorted(edges[e][1] for e in found) == list(range(1, nodes))


@quick
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 6))
def test_the_exact_packing_of_broadcast_trees_attains_the_bound(seed: int, nodes: int) -> None:
    topology = random_graph(seed, nodes, duplex=False)
    packed = exact_packing(routes_between(topology, range(nodes), Collective.BROADCAST), 0)
    assert packed.rate == 1 / bound(Problem(topology, Collective.BROADCAST, root=0)).inv_rate


def partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    found = []
    for rest in partitions(items[1:]):
        found.append([[items[0]], *rest])
        found += [[*rest[:i], [items[0], *part], *rest[i + 1 :]] for i, part in enumerate(rest)]
    return found


@quick
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 6), root=st.integers(0, 5))
def test_mirrored_trees_from_one_root_attain_the_value_of_nash_williams(
    seed: int, nodes: int, root: int
) -> None:
    topology = random_graph(seed, nodes, duplex=True)
    packed = exact_packing(routes_between(topology, range(nodes), Collective.ALL_REDUCE), root % nodes)
    edges = {
        (a, b): topology.gb_per_s(e)
        for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        if a < b
    }
    least = min(
        sum(
            (
                rate
                for (a, b), rate in edges.items()
                if next(i for i, p in enumerate(parts) if a in p)
                != next(i for i, p in enumerate(parts) if b in p)
            ),
            Fraction(0),
        )
        / (len(parts) - 1)
        for parts in partitions(list(range(nodes)))
        if len(parts) > 1
    )
    assert packed.rate == packed.most == least


@settings(quick, max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(2, 6),
    collective=st.sampled_from([Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE]),
)
def test_weights_respect_capacities_and_come_near_the_optimum(
    seed: int, nodes: int, collective: Collective
) -> None:
    topology = random_graph(seed, nodes, duplex=True)
    routes = routes_between(topology, range(nodes), collective)
    packed = weighted_packing(routes, 0, epsilon=0.05, gap=0.01)
    best = exact_packing(routes, 0)
    assert 0.9 * best.rate <= packed.rate <= best.rate <= Fraction(packed.most) * (1 + Fraction(1, 10**9))
    if collective is Collective.ALL_REDUCE:
        for link, carried in loads(packed).items():
            assert carried <= topology.gb_per_s(link)


def test_dgx_1v_broadcasts_by_six_whole_trees() -> None:
    found = blink("dgx-1v", "broadcast")
    assert found.planned.algbw_gb_per_s == 150
    assert found.gap == 0
    assert found.plan.forest.num_trees == 6
    assert set(found.plan.forest.tree_weight.tolist()) == {1}
    assert found.synthesis.details["unit_gb_per_s"] == ["25"]
    assert found.synthesis.details["weighted_trees"][0] > 6


def test_dgx_1v_all_reduce() -> None:
    exact = blink("dgx-1v", "all_reduce", packing="exact")
    assert exact.planned.algbw_gb_per_s == Fraction(600, 7)
    assert len(set(exact.plan.forest.tree_root.tolist())) == 1
    assert exact.synthesis.details["packings"][0]["proved"]
    whole = blink("dgx-1v", "all_reduce")
    assert whole.planned.algbw_gb_per_s >= Fraction(95, 100) * Fraction(600, 7)
    assert whole.plan.forest.num_trees < exact.plan.forest.num_trees


@pytest.mark.parametrize("ranks", [[1, 4, 5, 6, 7], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3, 5, 6, 7], [2, 3, 7]])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_allocations_reach_the_bound_with_few_trees(ranks: list[int], collective: str) -> None:
    topology = subset(preset("dgx-1v"), ranks)
    try:
        bound(Problem(topology, Collective.named(collective), root=0))
    except UnreachableError:
        with pytest.raises(UnreachableError):
            blink(topology, collective)
        return
    assert blink(topology, collective).gap <= 0.05


def test_an_nvswitch_gets_trees_of_one_hop() -> None:
    reduced = blink("dgx-a100", "all_reduce")
    assert reduced.gap == 0
    assert sorted(reduced.plan.forest.tree_root.tolist()) == sorted([*range(8), *range(8)])
    assert reduced.planned.shape.max_height == 2
    spread = blink("dgx-a100", "broadcast", root=3)
    assert spread.gap == 0
    assert spread.plan.forest.num_trees == 7


def test_machines_work_in_three_phases() -> None:
    found = blink(preset("dgx-1v", boxes=2), "all_reduce")
    assert found.gap == 0
    assert found.synthesis.details["phases"] == 3
    forest = found.plan.forest
    host = forest.topology.host
    for tree in range(forest.num_trees):
        crossing = [(a, b) for a, b, _ in forest.edges(tree) if host[a] != host[b]]
        assert len(crossing) == 1, "one hop to or from each other machine"
    fragments = blink(subset(preset("dgx-1v", boxes=2), [0, 1, 2, 8, 10, 11, 12, 13]), "all_reduce")
    assert fragments.gap == 0


def test_three_machines_share_the_middle_phase_evenly() -> None:
    """Every machine is responsible for a third of each partition: 50 GB/s carry 4/3 of an eighth of the data."""
    found = blink(preset("dgx-h100", boxes=3), "all_reduce")
    assert found.planned.algbw_gb_per_s == Fraction(1800, 7)
    weights = found.plan.forest.tree_weight
    assert set(weights.tolist()) == {1}
    assert len(weights) == 2 * 3 * 8


def test_machines_whose_gpus_meet_on_other_rails() -> None:
    fragments = subset(preset("dgx-a100", boxes=2), [0, 3, 4, 9, 10])
    assert blink(fragments, "all_reduce").gap == 0


def test_both_fabrics_end_together() -> None:
    found = blink(preset("mi100", gpus=4), "all_reduce")
    assert found.gap == 0
    details = found.synthesis.details
    rates = [Fraction(each["gb_per_s"]) for each in details["packings"]]
    assert Fraction(details["switched_share"]) == rates[1] / sum(rates)
    alone = blink(preset("mi100", gpus=4), "all_reduce", switch_us=50, size="1K")
    assert alone.planned.algbw_gb_per_s == rates[0]


@given(
    size=st.integers(1, 10**9), pcie=st.integers(1, 50), nvlink=st.integers(1, 300), switch=st.integers(0, 50)
)
def test_the_split_makes_both_fabrics_end_at_once(size: int, pcie: int, nvlink: int, switch: int) -> None:
    share = pcie_share(size, Fraction(pcie), Fraction(nvlink), Fraction(switch))
    over_pcie = share * size / (pcie * 1000) + switch
    over_nvlink = (1 - share) * size / (nvlink * 1000)
    assert over_pcie == over_nvlink if share else over_nvlink <= switch


@pytest.mark.parametrize("gpus", [1, 2, 3, 5])
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
@pytest.mark.parametrize("packing", ["integer", "weights", "exact"])
def test_few_gpus(gpus: int, collective: str, packing: str) -> None:
    topology = preset("star", gpus=gpus) if gpus == 1 else preset("complete", gpus=gpus)
    found = blink(topology, collective, packing=packing)
    assert found.planned.report.ok
    assert found.gap <= (0 if packing == "exact" else 0.05)


def test_the_same_question_gets_the_same_bytes() -> None:
    topology = subset(preset("dgx-1v"), [0, 1, 2, 3, 4])
    assert len({encode_plan(blink(topology, "broadcast").plan) for _ in range(2)}) == 1


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UnreachableError, match="gpu1"):
        blink(subset(preset("dgx-1v"), [1, 4, 6]), "broadcast")
    with pytest.raises(UnreachableError, match="links"):
        blink("dgx-a100", "broadcast", links="direct")
    with pytest.raises(InputError, match="`size` beside `switch_us`"):
        blink("dgx-1v", "broadcast", switch_us=3)
    with pytest.raises(InputError, match="`tree_root`, found 8"):
        blink("dgx-1v", "all_reduce", tree_root=8)
    with pytest.raises(InputError, match="packing"):
        blink("dgx-1v", "all_reduce", packing="best")
    with pytest.raises(InputError, match="at most 256 ranks"):
        blink(preset("star", gpus=300), "broadcast")


def test_what_is_possible_is_an_exact_fraction() -> None:
    """On a cube of equal links 4/3 is reached, which rounding would put above what it calls the most."""
    pairs = [(a, a ^ bit) for a in range(8) for bit in (1, 2, 4) if a < a ^ bit]
    links = [Link(src=f"g{a}", dst=f"g{b}", gb_per_s=Fraction(1)) for a, b in pairs]
    cube = Topology.of("cube", [Node(id=f"g{i}") for i in range(8)], links)
    for topology in (cube, preset("dgx-1v"), preset("ring", gpus=5)):
        for packing in ("weights", "integer", "exact"):
            for collective in ("broadcast", "all_reduce"):
                for found in blink(topology, collective, packing=packing).synthesis.details["packings"]:
                    reached, most = Fraction(found["gb_per_s"]), Fraction(found["most_gb_per_s"])
                    assert reached <= most
                    assert found["proved"] == (reached == most)
    chosen = blink(cube, "broadcast").synthesis.details["packings"][0]
    assert Fraction(chosen["most_gb_per_s"]) == bound(Problem(cube, "broadcast", root=0)).algbw_gb_per_s == 3


def test_an_interrupted_search_keeps_its_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    shortest = packings.shortest_arborescence

    def interrupted(*arguments: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise KeyboardInterrupt
        return shortest(*arguments)

    monkeypatch.setattr(packings, "shortest_arborescence", interrupted)
    found = blink("dgx-1v", "broadcast")
    assert found.synthesis.interrupted
    assert found.planned.report.ok
    assert 0 < found.planned.algbw_gb_per_s <= 150


def test_switched_ways_avoid_direct_links() -> None:
    topology = preset("mi100", gpus=4)
    routes = routes_between(topology, range(4), Collective.ALL_REDUCE, Fabric.SWITCHED)
    assert len(routes.routes) == 12
    used = np.unique([e for route in routes.routes for e in route.links])
    assert not ((topology.rank[topology.src[used]] >= 0) & (topology.rank[topology.dst[used]] >= 0)).any()


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("seed", range(6))
def test_trees_from_all_ranks_reach_the_optimum(seed: int, collective: str) -> None:
    """Without switches, spanning trees reach the bound by cuts (Edmonds), whatever the weights are."""
    topology = random_graph(seed, 3 + seed % 4, duplex=bool(seed % 2))
    weights = [random.Random(seed).randint(0, 3) for _ in range(topology.num_ranks - 1)] + [2]
    found = coppice.synthesize(topology, collective, method="blink", weights=None if seed < 2 else weights)
    assert found.planned is not None
    assert found.planned.report.ok
    assert found.gap == 0


def test_all_gather_of_boxes_takes_every_fabric() -> None:
    for topology in (preset("dgx-1v"), preset("dgx-a100"), preset("mi100", gpus=4)):
        assert blink(topology, "all_gather").gap == 0
    direct = blink(preset("mi100", gpus=4), "all_gather", links="direct")
    assert direct.gap > 0.1


@pytest.mark.parametrize("collective", ["scatter", "gather", "all_to_all"])
def test_blocks_go_along_trees(collective: str) -> None:
    for seed in range(4):
        found = blink(random_graph(seed, 3 + seed, duplex=True), collective)
        assert found.planned is not None
        assert found.planned.report.ok
    one = blink(subset(preset("dgx-1v"), [0]), collective)
    assert one.planned is not None
    assert one.planned.report.ok


@pytest.mark.parametrize("collective", ["scatter", "gather"])
@pytest.mark.parametrize("root", [0, 5])
def test_a_root_uses_all_its_links(collective: str, root: int) -> None:
    assert blink("dgx-1v", collective, root=root).gap == 0


def test_trees_from_all_of_many_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="expected at most 64 ranks for trees from all of them, found 65"):
        blink(preset("star", gpus=65), "all_to_all")
