"""Probing networks that are known: the model explains the measurements, and slow links are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.run.engines.numpy import NumpyEngine, run_ranks
from coppice.run.engines.put_signal.device import Put
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.probe.network import (
    expected_rate,
    judge_links,
    locality_groups,
    measured_topology,
    with_measured_rates,
)
from coppice.run.probe.probe import (
    Experiment,
    RateMeasurement,
    engine_rate,
    group_experiments,
    rank_experiments,
    run_experiments,
)
from coppice.run.probe.put_signal_costs import check_arrivals
from coppice.topology import scale_nodes, set_link_rate
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from coppice.topology.routing import Router
from support.emulated_groups import on_emulated_device


def rate_on(
    topology: Topology, *, noise: float = 0.0, routes_of: Topology | None = None
) -> Callable[[Experiment], float]:
    """Routes do not avoid a link because it became slow: ``routes_of`` is the network as it was meant."""
    router = Router(routes_of or topology, relay_gpus=True)
    random = np.random.default_rng(3)
    return lambda experiment: expected_rate(topology, experiment, router) * (1 - noise * random.random())


def cut_of_ranks(topology: Topology) -> set[int]:
    found = bound(Problem(topology=topology, collective=Collective.ALL_GATHER))
    return {int(topology.rank[node]) for node in found.cut if topology.rank[node] >= 0}


def algbw(topology: Topology) -> Fraction:
    return bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).algbw_gb_per_s


def two_boxes(**options: object) -> Topology:
    return preset("dgx-a100", boxes=2, fabric="switch", nics="link", **options)


SLOW_PORT = scale_nodes(preset("dgx-a100", boxes=2, fabric="switch"), {"box1/nic3": "50%"})


@pytest.mark.parametrize(
    ("name", "topology", "groups"),
    [
        ("one switch", preset("star", gpus=6, gb_per_s=20), 1),
        ("two boxes", two_boxes(), 2),
        ("a slow network port", SLOW_PORT, 2),
        ("three boxes", preset("dgx-h100", boxes=3, fabric="switch", nics="link"), 3),
        ("two ranks", preset("ring", gpus=2, gb_per_s=10), 1),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.04])
def test_the_model_has_the_bottleneck_of_the_network(
    name: str, topology: Topology, groups: int, noise: float
) -> None:
    measurements, found = run_experiments(topology.num_ranks, rate_on(topology, noise=noise), locality_groups)
    assert len(found) == groups
    model = measured_topology(measurements, found)
    assert model.num_ranks == topology.num_ranks
    true, measured = cut_of_ranks(topology), cut_of_ranks(model)
    if name not in ("one switch", "two ranks"):  # there every single rank is a bottleneck
        everyone = set(range(topology.num_ranks))
        assert measured in (true, everyone - true)
    assert 0.9 <= algbw(model) / algbw(topology) <= 1.02


def test_flows_that_meet_at_a_port_are_not_all_that_is_known_of_it() -> None:
    topology = two_boxes()
    rate = rate_on(topology)

    def with_losses(experiment: Experiment) -> float:
        meet = experiment.kind in ("out-of-group", "into-group")
        return rate(experiment) * (0.6 if meet else 1)

    assert algbw(measured_topology(*run_experiments(16, with_losses, locality_groups))) == algbw(topology)


def test_a_shared_port_is_told_from_ports_of_their_own() -> None:
    shared = two_boxes()
    own = measured_topology(*run_experiments(16, rate_on(shared), locality_groups))
    assert not any(own.node_ids[a].endswith("switch") and own.node_ids[b] == "network" for a, b in ends(own))
    narrow = Topology.of("one port per box", *narrow_boxes())
    one = measured_topology(*run_experiments(6, rate_on(narrow), locality_groups))
    uplinks = [(one.node_ids[a], one.node_ids[b]) for a, b in ends(one) if one.node_ids[b] == "network"]
    assert uplinks == [("group0/switch", "network"), ("group1/switch", "network")]
    assert algbw(one) == algbw(narrow)


def ends(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))


def narrow_boxes():  # type: ignore[no-untyped-def]
    from coppice.topology.model import Link, Node, NodeKind

    nodes = [Node(id=f"g{i}") for i in range(6)]
    nodes += [Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(2)] + [
        Node(id="net", kind=NodeKind.SWITCH)
    ]
    links = [Link(src=f"g{i}", dst=f"s{i // 3}", gb_per_s=Fraction(100)) for i in range(6)]
    links += [Link(src=f"s{i}", dst="net", gb_per_s=Fraction(10)) for i in range(2)]
    return nodes, links


def test_localities_need_a_jump() -> None:
    random = np.random.default_rng(1)
    assert locality_groups(10 + random.random((5, 5))) == [[0, 1, 2, 3, 4]]
    rates = np.full((4, 4), 1.0)
    rates[:2, :2] = rates[2:, 2:] = 4.0
    assert locality_groups(rates) == [[0, 1], [2, 3]]
    rates[0, 1] = 1.0  # slow one way is far
    assert locality_groups(rates) == [[0], [1], [2, 3]]
    assert locality_groups(np.zeros((1, 1))) == [[0]]


def test_every_rank_and_group_is_tried_against_the_rest() -> None:
    groups = [[0, 1], [2, 3], [4]]
    kinds = [each.kind for each in rank_experiments(groups)]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "out": 4,
        "in": 4,
        "out-of-group": 5,
        "into-group": 5,
    }
    speed = np.full((5, 5), 10.0)
    speed[2] = 5.0
    found = group_experiments(groups, speed)
    assert [each.kind for each in found] == ["group-out", "group-in"] * 3 + ["all"] * 2
    out_of_second = dict(zip(found[2].flows, found[2].sizes, strict=True))
    assert out_of_second == {(2, 0): 50, (3, 1): 100, (2, 4): 50}
    for each in found:
        ends = {rank for flow in each.flows for rank in flow}
        assert ends == set(range(5))
    for each in found[-2:]:
        assert {src for src, _ in each.flows} == {dst for _, dst in each.flows} == set(range(5))
    straight, turned = (each.flows for each in group_experiments([[0, 1], [2, 3]], speed)[-2:])
    assert set(straight) == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert not {(b, a) for a, b in turned} & set(turned)


@pytest.mark.parametrize(("src", "dst", "one_way"), [("gpu2", "gpu3", True), ("gpu2", "gpu3", False)])
def test_a_slow_link_of_a_ring_is_named(src: str, dst: str, one_way: bool) -> None:
    ring = preset("ring", gpus=6, gb_per_s=25)
    broken = set_link_rate(ring, src, dst, 10, one_way=one_way)
    measurements, _ = run_experiments(6, rate_on(broken, noise=0.03, routes_of=ring), locality_groups)
    findings = judge_links(ring, measurements)
    below = {(each.src, each.dst) for each in findings if each.below}
    assert below == ({(src, dst)} if one_way else {(src, dst), (dst, src)})
    assert all(each.tested for each in findings)
    mended = with_measured_rates(ring, findings)
    assert algbw(mended) == pytest.approx(float(algbw(broken)), rel=0.05)


def test_a_slow_network_port_is_named() -> None:
    good = preset("dgx-a100", boxes=2, fabric="switch")
    measurements, _ = run_experiments(16, rate_on(SLOW_PORT), locality_groups)
    below = {(each.src, each.dst) for each in judge_links(good, measurements) if each.below}
    assert below
    assert all("box1/nic3" in pair for pair in below)
    measurements, _ = run_experiments(16, rate_on(good), locality_groups)
    assert not [each for each in judge_links(good, measurements) if each.below]


def test_a_link_that_limits_nothing_is_not_judged() -> None:
    box = preset("star", gpus=3, gb_per_s=10)
    one = RateMeasurement(experiment=Experiment(kind="out", flows=((0, 1), (0, 2))), gb_per_s=5.0)
    findings = {(each.src, each.dst): each for each in judge_links(box, [one])}
    assert findings["gpu0", "switch"].tested
    assert not findings["gpu0", "switch"].below
    assert not findings["switch", "gpu1"].tested
    assert not findings["switch", "gpu1"].below


def test_engines_measure_the_same_on_all_ranks() -> None:
    def work(engine: NumpyEngine) -> list[float]:
        rate = engine_rate(engine, rounds=1, timeout_s=300)
        return [
            rate(Experiment(kind="pair", flows=((0, 2),))),
            rate(Experiment(kind="in", flows=((0, 1), (2, 1)))),
        ]

    results = run_ranks(3, work)
    assert results[0] == results[1] == results[2]
    assert all(each > 0 for each in results[0])  # type: ignore[union-attr]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_data_are_there_when_the_wait_is_over(ranks: int) -> None:
    found = on_emulated_device(lambda engine: check_arrivals(engine, rounds=3, num_bytes=4096), ranks=ranks)
    assert found == [3 * (ranks - 1) * ranks] * ranks


@pytest.mark.parametrize(("rank", "late", "missing"), [(0, 2, 4096), (1, 5, 1), (1, 0, 100)])
def test_data_that_come_late_are_found_on_every_rank(rank: int, late: int, missing: int) -> None:
    """One put of one rank signals before its last bytes are there."""

    def look(engine: PutSignalEngine) -> Any:
        if engine.rank == rank:
            whole, count = engine.device.transfer, -1  # its warm-up comes first

            def transfer(communicator: int, stream: int, puts: Sequence[Put]) -> None:
                nonlocal count
                if puts[0].num_bytes:
                    count += 1
                cut = missing if count == late and puts[0].num_bytes else 0
                whole(communicator, stream, [replace(put, num_bytes=put.num_bytes - cut) for put in puts])

            engine.device.transfer = transfer  # type: ignore[method-assign]
        try:
            return check_arrivals(engine, rounds=6, num_bytes=4096)
        except CheckError as error:
            return str(error)

    for told in on_emulated_device(look, ranks=2):
        assert f"found {missing} of 4096 bytes still old at rank {1 - rank}, from rank {rank}" in told, told
        assert "1 put of 12" in told
