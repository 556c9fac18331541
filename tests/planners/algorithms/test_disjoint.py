"""ACCL on two layers of switches: exchanges of servers use links of their own, however the servers are numbered."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from coppice.bounds import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.parts.disjoint import disjoint_order
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from coppice.topology.routing import Router


def two_layers(switches: int, servers: int, gpus: int, seed: int | None) -> Topology:
    """``switches`` in each layer, all joined across, ``servers`` on each; ``seed`` shuffles who hangs where."""
    places = [(layer, at) for layer in ("upper", "lower") for at in range(switches) for _ in range(servers)]
    if seed is not None:
        random.Random(seed).shuffle(places)
    nodes = [
        Node(id=f"{layer}{at}", kind=NodeKind.SWITCH)
        for layer in ("upper", "lower")
        for at in range(switches)
    ]
    links = [
        Link(src=f"upper{a}", dst=f"lower{b}", gb_per_s=25 * gpus)
        for a in range(switches)
        for b in range(switches)
    ]
    for server, (layer, at) in enumerate(places):
        nodes.append(Node(id=f"{server}.pcie", kind=NodeKind.SWITCH, host=f"server{server}"))
        for gpu in range(gpus):
            nodes.append(Node(id=f"{server}.{gpu}", host=f"server{server}"))
            links.append(Link(src=f"{server}.{gpu}", dst=f"{server}.pcie", gb_per_s=100))
        links.append(Link(src=f"{server}.pcie", dst=f"{layer}{at}", gb_per_s=25 * gpus))
    return Topology.of("two layers", nodes, links)


def schedule_of(topology: Topology, **parameters: int | str) -> Schedule:
    entry = find("accl", Collective.ALL_REDUCE)
    problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
    case = case_of(entry, problem, parameters)
    assert entry.refusal(case) is None
    found = entry.build(case)
    assert isinstance(found, Schedule)
    return found


def most_on_a_link(topology: Topology, schedule: Schedule) -> int:
    """Exchanges of servers that share a link between switches in one step, the most of all steps."""
    worst = 0
    for step in range(int(schedule.step.max()) + 1):
        pairs = {
            (int(topology.host[topology.rank_nodes[a]]), int(topology.host[topology.rank_nodes[b]]))
            for a, b in zip(
                schedule.src[schedule.step == step], schedule.dst[schedule.step == step], strict=True
            )
        }
        servers = sorted((a, b) for a, b in pairs if a != b)
        used: dict[tuple[str, str], int] = {}
        of_host = {int(topology.host[node]): node for node in topology.rank_nodes}
        router = Router(topology)
        for a, b in servers:
            path = [topology.node_ids[v] for v in router.node_path(int(of_host[a]), int(of_host[b]))]
            between = [v for v in path if v.startswith(("upper", "lower"))]
            for link in pairwise(between):
                used[link] = used.get(link, 0) + 1
        worst = max(worst, *used.values(), 0) if used else worst
    return worst


@pytest.mark.parametrize(("switches", "servers", "gpus"), [(2, 2, 2), (4, 2, 1), (4, 4, 2), (2, 1, 4)])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_exchanges_share_no_link(switches: int, servers: int, gpus: int, seed: int | None) -> None:
    topology = two_layers(switches, servers, gpus, seed)
    assert most_on_a_link(topology, schedule_of(topology, group=gpus if gpus == 1 else 0)) == 1


def test_as_numbered_they_share_links() -> None:
    topology = two_layers(4, 4, 1, None)
    assert most_on_a_link(topology, schedule_of(topology, group=1, mapping="natural")) > 1


def test_numbers_are_a_permutation_and_stay_where_nothing_is_gained() -> None:
    topology = two_layers(4, 4, 1, 7)
    groups = tuple((rank,) for rank in range(32))
    assert sorted(disjoint_order(topology, groups)) == list(range(32))
    star = preset("star", gpus=8)
    assert disjoint_order(star, tuple((rank,) for rank in range(8))) == tuple(range(8))


@pytest.mark.parametrize("boxes", [3, 5, 6])
def test_any_number_of_boxes(boxes: int) -> None:
    schedule = schedule_of(preset("dgx-a100", boxes=boxes))
    assert int(np.max(schedule.step)) + 1 == 2 * 7 + 2 * (boxes - 1).bit_length()
