"""SyCCL: dimensions, groups solved once, mixes of sketches, and how it ends."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.syccl.dimensions import (
    Dimension,
    GroupSolver,
    coordinate_systems,
    group_network,
)
from coppice.planners.synthesis.syccl.sketches import SycclOptions, synthesize_syccl
from coppice.planners.synthesis.synthesizing import Request, Status, SynthesizedResult, synthesize
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def asked(topology: Topology, collective: str = "all_gather", **more: object) -> Request:
    return Request(problem=Problem(topology, collective), options=SycclOptions(), **more)


def is_right(found: SynthesizedResult) -> None:
    assert found.status is Status.SAT
    assert found.planned is not None
    assert found.planned.report.ok
    size = 2**18
    took = fastest(found.plan.schedule, size, model=model_of(None), keep_hops=False).time_us
    assert took >= float(found.bound.inv_rate) * size / found.problem.shards / 1000


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "topology",
    [
        preset("complete", gpus=1),
        preset("path", gpus=2),
        preset("ring", gpus=3),
        preset("star", gpus=5, gb_per_s=25),
        preset("random-balanced", gpus=6, switches=0),
        preset("dgx-a100", boxes=3),
        preset("mi250"),
        preset("fat-tree", leaves=3, gpus_per_leaf=2, spines=2),
        preset("torus", dims=(3, 2)),
    ],
    ids=lambda topology: topology.name,
)
def test_every_schedule_verifies_and_is_no_faster_than_the_bound(topology: Topology, collective: str) -> None:
    is_right(synthesize(topology, collective, method="syccl"))


@pytest.mark.parametrize(
    ("topology", "collective"),
    [
        (preset("dgx-a100", boxes=2), "all_gather"),
        (preset("dgx-h100", boxes=2), "all_reduce"),
        (preset("torus", dims=(4, 4)), "reduce_scatter"),
        (preset("torus", dims=(3, 3, 3)), "all_gather"),
        (preset("torus", dims=(3, 5)), "all_gather"),
    ],
)
def test_the_mix_of_sketches_reaches_the_optimum(topology: Topology, collective: str) -> None:
    found = synthesize(topology, collective, method="syccl")
    is_right(found)
    assert found.gap == 0


def test_one_order_of_dimensions_alone_does_not_balance_a_torus() -> None:
    found = synthesize(preset("torus", dims=(4, 4)), "all_gather", method="syccl")
    assert [each["share"] for each in found.synthesis.details["sketches"]] == ["1/2", "1/2"]


def test_the_best_sketch_alone_has_fewer_chunks_and_no_more_rate() -> None:
    boxes = preset("dgx-a100", boxes=2)
    mixed, alone = (
        synthesize(boxes, "all_gather", method="syccl", options={"mix": mix}) for mix in (True, False)
    )
    is_right(alone)
    assert [each["stages"] for each in alone.synthesis.details["sketches"]] == [["rail", "box"]]
    assert alone.synthesis.details["chunks"] < mixed.synthesis.details["chunks"]
    # Two of 16 blocks cross the network for every GPU, and 14 come over the switch of its box: 14/300.
    assert alone.planned is not None
    assert alone.planned.algbw_gb_per_s == Fraction(300 * 16, 14)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_boxes_of_any_shape(data: st.DataObject) -> None:
    boxes, gpus = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 4))
    inside = data.draw(st.sampled_from(["switch", "ring", "mixed"]))
    nodes = [Node(id="network", kind=NodeKind.SWITCH)]
    links = []
    for b in range(boxes):
        switched = inside == "switch" or (inside == "mixed" and b % 2 == 0)
        if switched:
            nodes.append(Node(id=f"s{b}", kind=NodeKind.SWITCH, host=f"box{b}"))
        rate = Fraction(data.draw(st.integers(1, 9)) if inside == "mixed" else 7)
        for g in range(gpus):
            nodes.append(Node(id=f"g{b}.{g}", host=f"box{b}"))
            links.append(Link(src=f"g{b}.{g}", dst="network", gb_per_s=Fraction(2)))
            if switched:
                links.append(Link(src=f"g{b}.{g}", dst=f"s{b}", gb_per_s=rate))
            elif g:
                links.append(Link(src=f"g{b}.{g - 1}", dst=f"g{b}.{g}", gb_per_s=rate))
    topology = Topology.of("boxes", nodes, links)
    is_right(synthesize(topology, data.draw(st.sampled_from(COLLECTIVES)), method="syccl"))


def test_coordinates_and_groups() -> None:
    topology = preset("dgx-h100", boxes=4)
    (box, rail), *_ = coordinate_systems(topology)
    assert box.members.tolist() == np.arange(32).reshape(4, 8).tolist()
    assert rail.members.tolist() == np.arange(32).reshape(4, 8).T.tolist()
    for dimension in (box, rail):
        places = np.arange(dimension.size)
        for members in dimension.members:
            assert len(set(dimension.group[members].tolist())) == 1
            assert np.array_equal(dimension.place[members], places)
    inside = group_network(topology, box.members[1])
    assert [topology.node_ids[v] for v in inside.nodes[8:]] == ["box1/nvswitch"]
    assert group_network(topology, box.members[2]).key == inside.key
    across = group_network(topology, rail.members[3])
    assert across.topology.num_ranks == 4
    assert across.key != inside.key


def test_groups_of_a_kind_are_solved_once_and_other_kinds_apart() -> None:
    topology = preset("dgx-h100", boxes=4)
    solver = GroupSolver(topology, None)
    for dimension in next(coordinate_systems(topology)):
        solver.solve(dimension)
    assert solver.solved == 2
    slower = topology.capacity.copy()
    slower[topology.link_index[topology.node_index["box1/gpu0"], topology.node_index["box1/nvswitch"]]] //= 2
    weak = replace(topology, capacity=slower)
    solver = GroupSolver(weak, None)
    for dimension in next(coordinate_systems(weak)):
        solver.solve(dimension)
    assert solver.solved == 3


def test_the_load_of_a_dimension_is_that_of_its_trees() -> None:
    topology = preset("star", gpus=4, gb_per_s=5)
    (dimension,) = [Dimension.along("all", np.arange(4)[:, None], 0)]
    solved = GroupSolver(topology, None).solve(dimension)
    # Every rank sends, or has others send, and receives three blocks through its port.
    assert set((solved.load / solved.scale).tolist()) == {3.0}


def test_many_boxes() -> None:
    found = synthesize(preset("dgx-h100", boxes=8), "all_gather", method="syccl")
    is_right(found)
    assert found.gap == 0
    assert found.synthesis.details["group_problems"] <= 4


@pytest.mark.slow
def test_five_hundred_and_twelve_ranks() -> None:
    found = synthesize(preset("dgx-a100", boxes=64), "all_reduce", method="syccl")
    assert found.planned is not None
    assert found.gap == 0


def test_the_same_bytes_each_time() -> None:
    first, second = (synthesize_syccl(asked(preset("mi250", boxes=2))).body for _ in range(2))
    assert isinstance(first, Schedule)
    assert isinstance(second, Schedule)
    for column in ("src", "dst", "chunk", "path", "chunk_share"):
        assert np.array_equal(getattr(first, column), getattr(second, column))


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(InputError, match="found none in the 9 ranks"):
        synthesize(preset("mesh", dims=(3, 3)), "all_gather", method="syccl", options={"group": 8})
    with pytest.raises(InputError, match="`trees`"):
        synthesize(preset("ring", gpus=4), "all_gather", method="syccl", options={"trees": 0})
    with pytest.raises(InputError, match="different `weights`"):
        synthesize(preset("ring", gpus=3), "all_gather", method="syccl", weights=[1, 1, 2])
    apart = Topology.of("apart", [Node(id="a"), Node(id="b")], [])
    with pytest.raises(UnreachableError):
        synthesize_syccl(asked(apart))


def test_late_and_interrupted_searches_keep_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = preset("dgx-a100", boxes=2)
    late = synthesize_syccl(asked(boxes, deadline=time.monotonic() - 1))
    assert late.status is Status.SAT
    assert late.details["sketches_tried"] == 2
    plain, calls = GroupSolver.solve, []

    def interrupted(solver: GroupSolver, dimension: Dimension) -> object:
        calls.append(dimension.name)
        if len(calls) == after:
            raise KeyboardInterrupt
        return plain(solver, dimension)

    monkeypatch.setattr(GroupSolver, "solve", interrupted)
    after = 3
    found = synthesize_syccl(asked(boxes))
    assert found.interrupted
    assert found.body is not None
    calls.clear()
    after = 1
    with pytest.raises(KeyboardInterrupt):
        synthesize_syccl(Request(problem=Problem(boxes, Collective.ALL_GATHER), options=SycclOptions()))
