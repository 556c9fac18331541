"""A library's pick as it runs: one pick, one estimate and one simulated time wherever they are told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coppice.advice.nccl import NcclState
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison import compare
from coppice.comparison.library import LibraryRuns, parents_of, simulate_picks
from coppice.errors import InputError, UnreachableError
from coppice.planners.planning import plan
from coppice.selection import select
from coppice.simulation.models import model_of
from coppice.topology.composition.compose import Host, compose, default_ports, repeated
from coppice.topology.composition.fabric import SwitchFabric
from coppice.topology.load import load
from coppice.topology.operations import subset
from coppice.topology.presets import preset
from support.pages import coppice
from support.shared_data import SHARED

SIZES = (2**12, 2**20, 2**26)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.BROADCAST])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-1v"])
@pytest.mark.spread(2)
def test_every_command_tells_one_pick(name: str, collective: Collective) -> None:
    topology = preset(name, boxes=2)
    problem = Problem(topology, collective, root=0 if collective.rooted else None)
    compared = compare(problem, sizes=SIZES, algorithms=["nccl-ring"], jobs=1).picks
    advised = NcclState(topology=topology).picks(collective, SIZES)
    simulated = simulate_picks(problem, "nccl", SIZES, model=model_of())
    for size, pick, row in zip(SIZES, compared, simulated, strict=True):
        selected = select("nccl", collective, size, topology=topology)
        assert selected.cell is not None
        assert row.picked is not None
        assert pick.name == selected.algorithm == row.picked.algorithm
        assert pick.channels == selected.channels == row.picked.channels
        assert pick.predicted_us == selected.cell.time_us == advised[size][0].time_us
        assert pick.predicted_by == row.picked.model_name == selected.model_name
        assert selected.algorithm == f"{advised[size][0].algorithm}/{advised[size][0].protocol}"
        assert row.timeline.protocol == selected.cell.protocol.lower()
        if pick.algorithm == "nccl-ring":
            assert pick.time_us == row.time_us


@pytest.mark.parametrize("ranks", [range(4), range(0, 16, 8), range(0, 16, 4)])
def test_groups_of_a_job_are_advised_on_by_the_same_picks(ranks: range) -> None:
    topology = preset("dgx-h100", boxes=2)
    own = subset(topology, list(ranks))
    advised = NcclState(topology=topology).of(list(ranks)).picks(Collective.ALL_REDUCE, SIZES)
    for size in SIZES:
        selected = select("nccl", "all_reduce", size, topology=own)
        assert advised[size][0] == selected.cell


def test_rings_and_trees_are_those_of_the_search() -> None:
    problem = Problem(preset("dgx-h100", boxes=4), "all_reduce")
    runs = LibraryRuns(problem, model_of())
    for size, name in ((2**12, "nccl-tree"), (2**30, "nccl-ring")):
        selected = select("nccl", "all_reduce", size, topology=problem.topology)
        run = runs.of(selected)
        assert run.plan.planner == name
        assert selected.found is not None
        made = selected.found.connections
        schedule = run.plan.schedule
        assert schedule is not None
        sent = set(zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True))
        if name == "nccl-ring":
            known = {
                pair for ring in made.rings for pair in zip(ring, np.roll(ring, -1).tolist(), strict=True)
            }
        else:
            edges = {(rank, up) for rank, up in enumerate(parents_of(made.trees[0])) if rank != up}
            known = edges | {(up, rank) for rank, up in edges}
        assert sent == known


def test_given_orders_are_a_plan_like_any_other() -> None:
    problem = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    run = LibraryRuns(problem, model_of()).of(select("nccl", "all_reduce", 2**26, topology=problem.topology))
    parameters = {name: str(value) for name, value in run.plan.parameters.items() if name != "relay_gpus"}
    made = plan(problem, algorithm=run.plan.planner, parameters=parameters, relay_gpus=True)
    assert made.report.ok
    assert made.plan.inv_rate == run.plan.inv_rate


def test_a_channel_leaves_by_the_nic_of_the_search() -> None:
    """Both GPUs of a PCIe switch send a ring's data by one NIC, through the GPU where the topology has no switch."""
    problem = Problem(preset("dgx-a100", boxes=2), "all_gather")
    ring = "0,7,6,5,4,3,2,1@0,8,15,14,13,12,11,10,9@8"
    with pytest.raises(UnreachableError, match="through other GPUs"):
        plan(problem, algorithm="nccl-ring", parameters={"rings": ring})
    schedule = plan(problem, algorithm="nccl-ring", parameters={"rings": ring}, relay_gpus=True).plan.schedule
    assert schedule is not None
    row = int(np.flatnonzero((schedule.src == 1) & (schedule.dst == 8))[0])
    path = int(schedule.path[row])
    names = [
        problem.topology.node_ids[node]
        for node in schedule.path_nodes[schedule.path_start[path] : schedule.path_start[path + 1]].tolist()
    ]
    assert names[:4] == ["box0/gpu1", "box0/nvswitch", "box0/gpu0", "box0/nic0"]
    assert names[-1] == "box1/gpu0"


@pytest.mark.skipif(not SHARED.exists(), reason="the shared folder of machine files is absent")
def test_a_channel_leaves_over_the_switch_of_pcie() -> None:
    box = load(SHARED / "topologies" / "azure_ndv4-topo.xml", gpu="a100", nic_gb_per_s=25)
    hosts = repeated(Host(name="box", topology=box, ports=default_ports(box)), 2)
    topology = compose(hosts, SwitchFabric(), name="two")
    problem = Problem(topology, "all_gather")
    run = LibraryRuns(problem, model_of()).of(select("nccl", "all_gather", 2**26, topology=topology))
    schedule = run.plan.schedule
    assert schedule is not None
    assert (schedule.path >= 0).any()
    ranks = set(topology.rank_nodes.tolist())
    for first, last in zip(schedule.path_start[:-1].tolist(), schedule.path_start[1:].tolist(), strict=True):
        assert not ranks & set(schedule.path_nodes[first + 1 : last - 1].tolist())


@pytest.mark.parametrize(
    ("algorithm", "name", "text", "words"),
    [
        ("nccl-ring", "rings", "0,1,2", "rings over all 4 ranks, found 0,1,2"),
        ("nccl-ring", "rings", "0,1,2,4", "ranks below 4"),
        ("nccl-ring", "rings", "0,1,x,3", "ranks below 4"),
        ("nccl-tree", "trees", "1,0,0,0", "a parent of each of 4 ranks"),
        ("nccl-tree", "trees", "0,0,2,2", "one root that is its own"),
        ("nccl-tree", "trees", "0,0,0", "a parent of each of 4 ranks"),
    ],
)
def test_orders_that_are_none(algorithm: str, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(preset("star", gpus=4), "all_reduce", algorithm=algorithm, parameters={name: text})


def test_the_command() -> None:
    done = coppice(
        "simulate", "dgx-a100", "--boxes", "2", "--algorithm", "library", "--size", "64M", "--json"
    )
    told = json.loads(done.stdout)
    asked = coppice("select", "dgx-a100", "--boxes", "2", "--library", "nccl", "--size", "64M", "--json")
    selected = json.loads(asked.stdout)
    pick = told["library_pick"]
    assert pick["predicted_us"] == selected["time_us"]
    assert pick["predicted_by"] == selected["predicted_by"]
    assert (pick["channels"], pick["channels_filled"]) == (selected["channels"], selected["channels_filled"])
    assert told["protocol"] == selected["protocol"].lower()
    assert told["time_us"] < pick["predicted_us"]


def test_libraries_with_tables() -> None:
    (row,) = simulate_picks(
        Problem(preset("star", gpus=8), "all_reduce"), "open-mpi", [2**16], model=model_of("mpi-tcp")
    )
    assert row.picked is not None
    assert row.plan.planner == row.picked.ours
    assert row.picked.pick_record()["predicted_us"] is None
