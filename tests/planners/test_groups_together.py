"""Plans of all groups at once: near the bound of all of them, and counted again on the whole network."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import coppice
from coppice.bounds.together.check import check_together
from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import least_time
from coppice.bounds.together.priorities import classes_of
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.planners.together.joint import JointPlan, least_times_of, plan_together
from coppice.planners.together.shares import Member, shares
from coppice.schedule.files.jobs_file import decode_jobs
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import routed
from coppice.schedule.verification.verify import verify_plan
from coppice.simulation.jobs import Job, simulate_together
from coppice.topology import preset, subset
from coppice.topology.model import Topology
from support.benchmark_scripts import load_benchmark
from support.group_cases import cases

JOBS = load_benchmark("joint_cases").JOBS


def carried(found: JointPlan) -> dict[tuple[str, str], Fraction]:
    """Bytes of each link by the names of its ends, counted from the transfers of all plans."""
    total: dict[tuple[str, str], Fraction] = {}
    for each in found.groups:
        body = each.plan.body
        rows = routed(lower(body) if isinstance(body, Forest) else body)
        weight = int(rows.slot_weight.sum())
        if each.demand.collective == "all_to_all":
            weight = len(each.ranks) ** 2 // len(each.ranks)
        shares_of_slot = np.bincount(rows.chunk_slot, weights=rows.chunk_share)
        names = each.plan.topology.node_ids
        for chunk, path in zip(rows.chunk.tolist(), rows.path.tolist(), strict=True):
            slot = int(rows.chunk_slot[chunk])
            part = Fraction(int(rows.chunk_share[chunk]), int(shares_of_slot[slot]))
            amount = each.size_bytes * int(rows.slot_weight[slot]) * part / weight
            nodes = rows.path_nodes[rows.path_start[path] : rows.path_start[path + 1]].tolist()
            for src, dst in pairwise(nodes):
                ends = names[src], names[dst]
                total[ends] = total.get(ends, Fraction(0)) + amount
    return total


@pytest.mark.parametrize(("name", "boxes", "groups", "job", "batch"), JOBS, ids=str)
@pytest.mark.spread(3)
def test_plans_of_a_job_are_near_the_bound_of_all_groups(
    name: str, boxes: int, groups: str, job: str, batch: int
) -> None:
    cluster = coppice.load(name, boxes=boxes) if boxes > 1 else coppice.load(name)
    found = coppice.plan_groups(cluster, groups=groups, job=job, global_batch=batch)
    check_together(found.bound)
    assert 0 <= found.gap < 0.05
    assert all(verify_plan(each.plan).ok for each in found.groups)
    assert {each.demand.name for each in found.groups} == {each.name for each in found.bound.demands}


def test_prices_prove_what_no_few_sets_of_nodes_do() -> None:
    """Around each GPU, box and narrowest cut of this mesh 47.8 ms are enough; prices of its links prove 53."""
    cluster = preset("mi250", boxes=2)
    found = coppice.plan_groups(cluster, groups="tp=2,pp=2,dp=8", job="gpt-7.5b", global_batch=32)
    assert found.gap < 0.001
    assert found.bound.priced is not None
    assert float(least_time(cluster, found.bound.demands).seconds) < 0.91 * float(found.seconds)
    alone = coppice.bound(cluster, "all_reduce", groups="tp=2,pp=2,dp=8", job="gpt-7.5b", global_batch=32)
    assert abs(float(alone.seconds / found.bound.seconds) - 1) < 1e-3
    check_together(alone)
    proof = found.bound.priced
    group = next(each for each in proof.groups if each.collective is Collective.ALL_REDUCE)
    others = tuple(each for each in proof.groups if each is not group)
    for changed, words in (
        (replace(group, links=group.links[1:]), "left out"),
        (replace(group, size_bytes=group.size_bytes * 2), "another one"),
        (replace(group, entered=group.entered[1:]), "seconds"),
        (replace(group, gets=((0, 1),)), "potentials at switches"),
    ):
        with pytest.raises(CheckError, match=words):
            check_together(replace(found.bound, priced=replace(proof, groups=(changed, *others))))
    with pytest.raises(CheckError, match="another one"):
        check_together(replace(found.bound, priced=replace(proof, groups=(group, *proof.groups))))


PRIORITIES = [
    ("dgx-a100", 2, "tp=8,dp=2", "tp,dp"),
    ("dgx-a100", 4, "tp=2,dp=4,pp=4", "tp,dp"),
    ("mi250", 2, "tp=4,dp=8", "dp"),
    ("dgx-1v", 2, "tp=4,dp=4", "tp"),
    ("dgx-h100", 4, "ep=8,dp=32", "ep"),
]


@pytest.mark.parametrize(("name", "boxes", "groups", "priority"), PRIORITIES, ids=str)
def test_who_goes_first_is_as_fast_as_alone_and_the_others_are_near_their_bound(
    name: str, boxes: int, groups: str, priority: str
) -> None:
    cluster = preset(name, boxes=boxes)
    found = coppice.plan_groups(cluster, groups=groups, priority=priority)
    assert len(found.bounds) == len(found.seconds_of_classes) > 1
    assert 0 <= found.gap < 0.005
    for each in found.bounds:
        check_together(each)
    alike = coppice.plan_groups(cluster, groups=groups)
    first = {each.demand.name for each in found.groups if each.place == 0}
    demands = [each for each in alike.bound.demands if each.name in first]
    assert float(found.seconds_of_classes[0]) <= float(least_time(cluster, demands).seconds) * 1.005
    assert found.seconds >= alike.bound.seconds
    carried_first = [each for each in found.groups if each.place == 0]
    assert max(each.seconds for each in carried_first) <= found.seconds_of_classes[0]


def test_classes_are_of_what_is_there() -> None:
    pairs = np.array([[0, 1]])
    named = [GroupDemand(name, "all_reduce", pairs, [Fraction(1)]) for name in ("tp", "dp")]
    with pytest.raises(InputError, match=r"of tp, dp, found 'pp'"):
        classes_of(named, "pp")
    with pytest.raises(InputError, match="found it again"):
        classes_of(named, "tp,tp")
    assert [len(own) for own in classes_of(named, "tp+dp")] == [2]
    with pytest.raises(InputError, match="`priority` with groups"):
        coppice.plan_groups("dgx-a100", priority="tp")
    bounds = coppice.bound("dgx-a100", "all_reduce", groups="tp=4,dp=2", priority="tp")
    assert [len(each.demands) for each in bounds] == [1, 2]


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(case=cases(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")))
def test_no_class_is_done_before_its_bound(case: tuple[Topology, list[GroupDemand]]) -> None:
    """As sets and as prices prove it, where classes before end as these plans have it."""
    topology, demands = case
    named = [replace(each, name=f"kind{number}") for number, each in enumerate(demands)]
    try:
        found = plan_together(topology, named, priority="kind0")
        proved = least_times_of(topology, named, priority="kind0")
    except UnreachableError:
        assume(False)
        raise
    for bound, seconds in zip(found.bounds, found.seconds_of_classes, strict=True):
        check_together(bound)
        assert seconds >= bound.seconds
    for bound in proved:
        check_together(bound)
    assert found.seconds_of_classes[0] >= proved[0].seconds


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(case=cases(("all_reduce", "all_gather", "reduce_scatter", "send")))
def test_links_carry_what_is_told_and_shares_lie_above_the_bound(
    case: tuple[Topology, list[GroupDemand]],
) -> None:
    """The linear program knows all cuts of each group, the bound some of all groups: it is never below the bound."""
    topology, demands = case
    try:
        found = plan_together(topology, demands)
    except UnreachableError:
        assume(False)
        raise
    assert found.gap >= 0
    total = carried(found)
    for link, seconds in enumerate(found.busy_seconds):
        src, dst = (topology.node_ids[node] for node in (topology.src[link], topology.dst[link]))
        rate = Fraction(int(topology.capacity[link]), topology.denominator) * 10**9
        assert seconds == total.get((src, dst), Fraction(0)) / rate
    members = []
    for demand in demands:
        for ranks, size in zip(demand.groups.tolist(), demand.size_bytes, strict=True):
            if demand.collective == "send":
                continue
            part = subset(topology, ranks)
            ids = [topology.node_index[name] for name in part.node_ids]
            links = {
                ends: link
                for link, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
            }
            own = [
                links[ids[src], ids[dst]]
                for src, dst in zip(part.src.tolist(), part.dst.tolist(), strict=True)
            ]
            members.append(
                Member(
                    part=part,
                    links=np.array(own),
                    collective=Collective(demand.collective),
                    size_bytes=size,
                )
            )
    collectives = [each for each in demands if each.collective != "send"]
    least = shares(topology, members, np.zeros((1, topology.num_links))).seconds[0]
    assert least >= float(least_time(topology, collectives).seconds) * (1 - 1e-6)


def test_groups_together_take_what_the_bound_says() -> None:
    """Pairs across boxes have the NICs, groups in boxes the switch: no time is lost where all run at once."""
    found = coppice.plan_groups(
        preset("dgx-a100", boxes=2), groups="tp=8,dp=2", job="gpt-175b", global_batch=16
    )
    jobs = [
        Job(name=f"{number}", body=each.plan.body, size_bytes=int(each.size_bytes), pieces=16)
        for number, each in enumerate(found.groups)
    ]
    together = simulate_together(jobs, model="ideal")
    assert max(each.time_us for each in together.results) < float(found.bound.seconds) * 1e6 * 1.01
    alone = [
        coppice.plan(subset(found.topology, each.ranks), each.demand.collective, ring=False).plan.body
        for each in found.groups
    ]
    apart = simulate_together(
        [
            Job(name=job.name, body=body, size_bytes=job.size_bytes, pieces=16)
            for job, body in zip(jobs, alone, strict=True)
        ],
        model="ideal",
    )
    assert max(each.time_us for each in apart.results) > float(found.bound.seconds) * 1e6 * 1.2


def test_what_cannot_be_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="groups or a job, found neither"):
        coppice.plan_groups("dgx-a100")
    with pytest.raises(InputError, match="product is the 8 GPUs"):
        coppice.plan_groups("dgx-a100", groups="tp=3")
    with pytest.raises(InputError, match="`global_batch` with `job`"):
        coppice.plan_groups("dgx-a100", groups="tp=8", global_batch=8)
    found = coppice.plan_groups("dgx-a100", groups="tp=4,dp=2")
    files = found.save(tmp_path / "plans")
    document = decode_jobs(files[0])
    assert [row.plan for row in document.jobs] == [file.name for file in files[1:]]
    assert len(document.jobs) == 2 + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "boxes", "groups", "job", "batch"), load_benchmark("joint_cases").LARGE, ids=str
)
def test_half_a_thousand_gpus(name: str, boxes: int, groups: str, job: str, batch: int) -> None:
    assert (
        coppice.plan_groups(preset(name, boxes=boxes), groups=groups, job=job, global_batch=batch).gap < 0.01
    )
