"""Channels and NICs: the rule of the runtimes, paths that are kept, and what is lost where they cannot be."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.nics import Exits, NicRoutes, Nics, exits_of, kept_share, to_nics
from coppice.program.dialects.thread_blocks.to_schedule import to_schedule
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset


def cluster(hosts: int, gpus: int, nics: int, rates: tuple[int, ...]) -> Topology:
    """Every NIC of a GPU on a plane of its own, the rate of plane p being ``rates[p]``."""
    nodes = [Node(id=f"plane{plane}", kind=NodeKind.SWITCH) for plane in range(nics)]
    links = []
    for host in range(hosts):
        name = f"h{host}"
        nodes.append(Node(id=f"{name}/switch", kind=NodeKind.SWITCH, host=name))
        for gpu in range(gpus):
            nodes.append(Node(id=f"{name}/gpu{gpu}", host=name))
            links.append(Link(src=f"{name}/gpu{gpu}", dst=f"{name}/switch", gb_per_s=Fraction(300)))
            for plane in range(nics):
                nic = f"{name}/nic{gpu * nics + plane}"
                nodes.append(Node(id=nic, kind=NodeKind.NIC, host=name))
                for one, other in ((f"{name}/gpu{gpu}", nic), (nic, f"plane{plane}")):
                    links.append(Link(src=one, dst=other, gb_per_s=Fraction(rates[plane])))
    return Topology.of("planes", nodes, links)


def forest_of(topology: Topology, collective: Collective = Collective.ALL_GATHER) -> Forest:
    made = plan(Problem(topology=topology, collective=collective), ring=False).plan.forest
    assert made is not None
    return made


def names(topology: Topology) -> list[list[str]]:
    nics = Nics(topology)
    return [[topology.node_ids[nic] for nic in nics.of(rank)] for rank in range(topology.num_ranks)]


def test_every_gpu_with_nics_to_itself_takes_them_in_turn() -> None:
    assert names(cluster(2, 2, 2, (50, 25)))[:2] == [["h0/nic0", "h0/nic1"], ["h0/nic2", "h0/nic3"]]
    assert names(preset("dgx-a100", boxes=2))[13] == ["box1/nic5"]


def test_gpus_that_share_nics_share_them_out() -> None:
    """4 NICs as near to one GPU as to the other: each has two, the second begins at bit-reversed 1 = 2."""
    nodes = [Node(id="switch", kind=NodeKind.SWITCH, host="h"), Node(id="out", kind=NodeKind.SWITCH)]
    links = [Link(src=f"g{gpu}", dst="switch", gb_per_s=Fraction(1)) for gpu in range(2)]
    nodes += [Node(id=f"g{gpu}", host="h") for gpu in range(2)]
    for nic in range(4):
        nodes.append(Node(id=f"n{nic}", kind=NodeKind.NIC, host="h"))
        links.append(Link(src="switch", dst=f"n{nic}", gb_per_s=Fraction(1)))
        links.append(Link(src=f"n{nic}", dst="out", gb_per_s=Fraction(1)))
    assert names(Topology.of("shared", nodes, links)) == [["n0", "n1"], ["n2", "n3"]]
    assert names(preset("dgx-a100-pcie", boxes=2))[:2] == [["box0/nic0"], ["box0/nic1"]]


def test_links_to_planes_are_ports() -> None:
    nodes = [Node(id=f"plane{plane}", kind=NodeKind.SWITCH) for plane in range(3)]
    nodes += [Node(id=f"g{gpu}", host=f"h{gpu}") for gpu in range(2)]
    links = [
        Link(src=f"g{gpu}", dst=f"plane{plane}", gb_per_s=Fraction(1))
        for gpu in range(2)
        for plane in range(3)
    ]
    assert names(Topology.of("direct", nodes, links)) == [["plane0", "plane1", "plane2"]] * 2
    assert names(preset("star", gpus=2)) == [[], []]


@pytest.mark.parametrize("nics", [2, 3])
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE])
def test_paths_are_kept(nics: int, collective: Collective) -> None:
    topology = cluster(3, 2, nics, (50, 25, 25))
    forest = forest_of(topology, collective)
    schedule = lower(forest)
    program = lower_to_program(forest, channels=12, by_nic=True)
    assert verify_program(program).ok
    assert kept_share(program, schedule) == 1
    # The way back takes the NICs that the channels pick, and reaches the rate of the plan.
    again = to_schedule(program, topology)
    assert verify_schedule(again).ok
    assert verify_schedule(again).inv_rate == verify_schedule(schedule).inv_rate


def test_without_a_word_on_nics_channels_fall_as_they_may() -> None:
    topology = cluster(3, 2, 3, (50, 25, 25))
    schedule = lower(forest_of(topology))
    program = lower_to_program(schedule, channels=12)
    kept, rate = kept_share(program, schedule), verify_schedule(to_schedule(program, topology)).inv_rate
    planned = verify_schedule(schedule).inv_rate
    assert kept is not None
    assert rate is not None
    assert planned is not None
    assert kept < 1
    assert rate > planned


def test_instances_and_peers_keep_nics() -> None:
    topology = cluster(3, 2, 2, (50, 25))
    forest = forest_of(topology)
    for options in ({"instances": 3}, {"max_peers": 2}, {"instances": 2, "max_peers": 2}):
        program = lower_to_program(forest, channels=32, by_nic=True, **options)
        assert verify_program(program).ok
        assert kept_share(program, lower(forest)) == 1


def test_copies_keep_nics_where_a_plan_uses_one_of_two() -> None:
    """All paths leave by NIC 0: the channels of a second instance are 2, 4 .. and never odd."""
    topology = cluster(4, 1, 2, (50, 1))
    forest = plan(Problem(topology=topology, collective=Collective.ALL_GATHER), trees=1, ring=False).plan.body
    assert isinstance(forest, Forest)
    for options in ({"instances": 2}, {"max_peers": 1}, {"instances": 2, "max_peers": 1}):
        program = lower_to_program(forest, channels=32, by_nic=True, **options)
        assert set(program.block_channel.tolist()) > {0}
        assert not (program.block_channel % 2).any()
        assert kept_share(program, lower(forest)) == 1


def test_nothing_is_asked_where_there_is_no_choice() -> None:
    forest = forest_of(preset("dgx-a100", boxes=2))
    schedule = lower(forest)
    assert exits_of(schedule, Nics(schedule.topology)) is None
    assert kept_share(lower_to_program(forest), schedule) is None
    one, two = lower_to_program(forest), lower_to_program(forest, by_nic=True)
    assert np.array_equal(one.block_channel, two.block_channel)
    assert NicRoutes(preset("dgx-a100", boxes=2)).path(0, 8, 3) is None


def test_runs_go_where_most_of_their_transfers_go() -> None:
    run = np.array([0, 0, 0, 1, 1, 2])
    exits = Exits(np.array([1, 1, 0, -1, 0, -1]), np.array([2, 2, 2, 1, 2, 1]))
    color = np.array([0, 0, 0, 1, 1, 3])
    assert to_nics(run, color, exits, 4).tolist() == [1, 1, 0, 0, 0, 3]  # type: ignore[union-attr]
    assert to_nics(run, color, exits, 1) is None
