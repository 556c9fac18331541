"""The latency bound: against every route and every order of messages on tiny networks, and in closed form."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from coppice.bounds import Problem
from coppice.bounds.latency import latency_bound
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.simulation.models import Model
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.strategies import CONNECTED_FAMILIES, disconnected, seeded
from support.alpha_beta import simulate


def with_latencies(topology: Topology, seed: int) -> Topology:
    """Latencies in eighths of a microsecond, so that sums in floating point are exact."""
    rng = random.Random(seed)
    links = [replace(link, latency_us=rng.randint(0, 16) / 8) for link in topology.links()]
    return Topology.of(topology.name, topology.nodes(), links)


def posed(topology: Topology, collective: Collective, root: int = 0) -> Problem:
    return Problem(topology=topology, collective=collective, root=root if collective.rooted else None)


def every_route(topology: Topology, start: int, end: int) -> list[tuple[int, ...]]:
    """All simple paths."""
    found: list[tuple[int, ...]] = []
    todo: list[tuple[int, ...]] = [(start,)]
    hops = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    while todo:
        path = todo.pop()
        if path[-1] == end:
            found.append(path)
            continue
        todo += [(*path, v) for u, v in hops if u == path[-1] and v not in path]
    return found


def route_time(topology: Topology, route: tuple[int, ...], overhead: float, *, relay_gpus: bool) -> float:
    senders = 1 if relay_gpus else sum(topology.rank[v] >= 0 for v in route[:-1])
    hops = itertools.pairwise(route)
    return senders * overhead + sum(float(topology.latency_us[topology.link_index[hop]]) for hop in hops)


def needs(collective: Collective, root: int, sender: int, receiver: int) -> bool:
    """The receiver needs something that the sender has."""
    if collective in (Collective.BROADCAST, Collective.SCATTER):
        return sender == root
    return receiver == root if collective.rooted else True


@pytest.mark.parametrize("relay_gpus", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_slowest_of_the_fastest_routes(seed: int, relay_gpus: bool) -> None:
    topology = with_latencies(seeded(seed, CONNECTED_FAMILIES, 6), seed)
    nodes, overhead = topology.rank_nodes.tolist(), random.Random(seed).randint(0, 12) / 4
    times = {
        (u, v): min(
            route_time(topology, route, overhead, relay_gpus=relay_gpus)
            for route in every_route(topology, nodes[u], nodes[v])
        )
        for u, v in itertools.permutations(range(len(nodes)), 2)
    }
    for collective in Collective:
        root = seed % len(nodes)
        found = latency_bound(posed(topology, collective, root), overhead_us=overhead, relay_gpus=relay_gpus)
        assert found.time_us == max(time for pair, time in times.items() if needs(collective, root, *pair)), (
            collective
        )
        assert found.pair is not None
        assert needs(collective, root, *found.pair)
        assert found.time_us == times[found.pair]
        assert (found.route[0], found.route[-1]) == (nodes[found.pair[0]], nodes[found.pair[1]])
        assert route_time(topology, found.route, overhead, relay_gpus=relay_gpus) == found.time_us
        assert f"rank {found.pair[1]} needs what rank {found.pair[0]} has" in found.why


def test_blocks_of_no_size_are_not_waited_for() -> None:
    nodes = [Node(id=name) for name in "abc"]
    links = [Link(src=a, dst=b, gb_per_s=Fraction(1), latency_us=1.0) for a, b in ("ab", "bc")]
    chain = Topology.of("chain", nodes, links)
    gather = Problem(topology=chain, collective=Collective.ALL_GATHER, weights=(0, 1, 0))
    assert latency_bound(gather, overhead_us=1.0).time_us == 2
    scatter = replace(gather, collective=Collective.REDUCE_SCATTER, weights=(0, 0, 1))
    assert latency_bound(scatter, overhead_us=1.0).pair == (0, 2)
    demands = ((5, 1, 0), (0, 0, 0), (0, 0, 0))
    swap = Problem(topology=chain, collective=Collective.ALL_TO_ALL, demands=demands)
    assert latency_bound(swap, overhead_us=1.0).pair == (0, 1)


def fastest_spread(ranks: int, engines: int, hop: float, horizon: int) -> float:
    """Rounds until all know, when in every round every informed rank informs as many as it has engines."""
    informed, time = 1, 0.0
    for _ in range(horizon):
        if informed >= ranks:
            return time
        informed, time = informed + engines * informed, time + hop
    return float("inf")


@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 9, 16, 17])
def test_engines_bound_what_spreads(ranks: int, engines: int) -> None:
    star = resolve("star", options={"gpus": str(ranks)})
    hop = 1.5 + 2 * float(star.latency_us[0])
    expected = fastest_spread(ranks, engines, hop, 20)
    for collective in Collective:
        one_way = collective in (Collective.REDUCE, Collective.GATHER)
        found = latency_bound(posed(star, collective), overhead_us=1.5, send_engines=engines)
        assert found.time_us == pytest.approx(hop if one_way else expected)
        other_way = collective in (Collective.BROADCAST, Collective.SCATTER)
        found = latency_bound(posed(star, collective), overhead_us=1.5, receive_engines=engines)
        assert found.time_us == pytest.approx(hop if other_way else expected)


def best_single_port_broadcast(ranks: int, time_of: dict[tuple[int, int], int], deadline: int) -> int:
    """Least time in which messages one at a time per sender inform all, by complete search over small integers."""
    best = deadline

    def search(ready: dict[int, int]) -> None:
        # ready[r]: when the send engine of informed rank r is free; the next message starts at the earliest.
        nonlocal best
        if len(ready) == ranks:
            return
        for u, v in itertools.product(ready, range(ranks)):
            if v not in ready and (end := ready[u] + time_of[u, v]) < best:
                after = ready | {u: end, v: end}
                if len(after) == ranks:
                    best = min(best, max(after.values()))
                else:
                    search(after)

    search({0: 0})
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_broadcast_by_one_engine_is_faster(seed: int) -> None:
    rng = random.Random(seed)
    ranks = rng.randint(3, 5)
    nodes = [*(Node(id=f"g{i}") for i in range(ranks)), Node(id="s", kind=NodeKind.SWITCH)]
    latency = [rng.randint(0, 3) for _ in range(ranks)]
    links = [
        Link(src=f"g{i}", dst="s", gb_per_s=Fraction(1), latency_us=float(latency[i])) for i in range(ranks)
    ]
    star = Topology.of("star", nodes, links)
    time_of = {(u, v): 1 + latency[u] + latency[v] for u, v in itertools.permutations(range(ranks), 2)}
    found = latency_bound(posed(star, Collective.BROADCAST), overhead_us=1.0, send_engines=1)
    assert found.time_us <= best_single_port_broadcast(ranks, time_of, 100)


def test_engines_prove_nothing_where_switches_copy_or_add() -> None:
    star = resolve("star", options={"gpus": "9"})
    switch = star.rank < 0
    for collective, able, engines in (
        (Collective.BROADCAST, "multicast", "send_engines"),
        (Collective.REDUCE, "aggregate", "receive_engines"),
    ):
        helped = replace(star, **{able: switch})
        plain = latency_bound(posed(star, collective), overhead_us=1.0, **{engines: 1})
        assert plain.time_us == 4 * latency_bound(posed(star, collective), overhead_us=1.0).time_us
        found = latency_bound(posed(helped, collective), overhead_us=1.0, **{engines: 1})
        assert found.pair is not None


def slow_links(topology: Topology) -> Topology:
    """Latencies between 0 and 2 us."""
    return with_latencies(topology, topology.num_links)


NETWORKS = {
    "star": lambda: slow_links(resolve("star", options={"gpus": "6"})),
    "boxes": lambda: slow_links(resolve("dgx-a100", boxes=2)),
    "torus": lambda: slow_links(resolve("torus", options={"dims": "3x3"})),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("engines", [0, 1])
@pytest.mark.spread(2)
def test_no_algorithm_is_faster(network: str, engines: int) -> None:
    topology = NETWORKS[network]()
    model = Model(overhead_us=0.75, send_engines=engines, receive_engines=engines)
    simulated = 0
    for (name, collective), entry in algorithms().items():
        for relay_gpus in (False, True):
            problem = posed(topology, collective, 1)
            case = case_of(entry, problem)
            if entry.refusal(case) is not None:
                continue
            try:
                body = make(entry, case, relay_gpus=relay_gpus)
            except UnreachableError:
                continue
            least = latency_bound(
                problem,
                overhead_us=0.75,
                relay_gpus=relay_gpus,
                send_engines=engines,
                receive_engines=engines,
            )
            for size in (0, 4096):
                time = simulate(body, size, model=model).time_us
                assert time >= least.time_us - 1e-9, (name, collective, relay_gpus, size)
            simulated += 1
    assert simulated > 20


@pytest.mark.parametrize(("name", "engines"), [("linear", 0), ("binomial", 1)])
def test_on_a_star_it_is_reached(name: str, engines: int) -> None:
    star = resolve("star", options={"gpus": "8"})
    problem = posed(star, Collective.BROADCAST)
    entry = algorithms()[name, Collective.BROADCAST]
    body = make(entry, case_of(entry, problem))
    model = Model(overhead_us=1.25, send_engines=engines, receive_engines=engines)
    least = latency_bound(problem, overhead_us=1.25, send_engines=engines, receive_engines=engines)
    assert simulate(body, 0, model=model).time_us == pytest.approx(least.time_us)


def test_refusals() -> None:
    apart = seeded(3, (disconnected,))
    with pytest.raises(UnreachableError, match="found no route from"):
        latency_bound(posed(apart, Collective.BARRIER), overhead_us=1.0)
    star = resolve("star", options={"gpus": "4"})
    with pytest.raises(InputError, match="overhead"):
        latency_bound(posed(star, Collective.BARRIER), overhead_us=-1.0)
    with pytest.raises(InputError, match="engines"):
        latency_bound(posed(star, Collective.BARRIER), overhead_us=1.0, send_engines=-1)
    alone = Topology.of("alone", [Node(id="g")], [])
    found = latency_bound(posed(alone, Collective.ALL_REDUCE), overhead_us=1.0, send_engines=1)
    assert (found.time_us, found.pair, found.why) == (0, None, "nothing has to move")


def test_symmetric_clusters_are_searched_from_one_rank_of_each_orbit() -> None:
    cluster = resolve("dgx-h100", boxes=16)
    everyone = latency_bound(posed(cluster, Collective.ALL_GATHER), overhead_us=1.0)
    single = [
        latency_bound(posed(cluster, Collective.BROADCAST, root), overhead_us=1.0).time_us
        for root in range(0, 128, 5)
    ]
    assert everyone.time_us == max(single)
