"""Several jobs at once: shared links slow each other down by what is exactly shared, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.alike import alike
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import plan
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.simulation.jobs import Job, Together, joined, simulate_together, union
from coppice.simulation.models import Model
from coppice.simulation.put_signal import PutSignalCosts, simulate_put_signal
from coppice.simulation.utilisation import check_conservation
from coppice.topology import Topology, fat_tree, preset, remove_links, set_link_rate, star, subset
from coppice.topology.model import Link, Node
from coppice.topology.symmetry import find_symmetry
from simulation.cases import ring_on, shift_on
from support.alpha_beta import simulate
from support.put_signal_cases import COLLECTIVES, forest

FREE = Model(overhead_us=0)


def together(*jobs: Job, model: Model = FREE, topology: Topology | None = None) -> Together:
    found = simulate_together(jobs, model=model, topology=topology)
    check_conservation(found.timeline)
    return found


def test_groups_on_their_own_links_do_not_meet() -> None:
    """A tensor group in each of two boxes: each takes what it takes alone."""
    cluster = preset("dgx-h100", boxes=2)
    groups = [subset(cluster, range(8 * box, 8 * box + 8)) for box in range(2)]
    jobs = [Job(name=f"tp{i}", body=ring_on(group), size_bytes=2**24) for i, group in enumerate(groups)]
    found = together(*jobs, topology=cluster)
    for job, result in zip(jobs, found.results, strict=True):
        assert result.slowdown == 1
        assert result.shared is None
        assert result.time_us == simulate(job.body, job.size_bytes, model=FREE).time_us
    assert found.topology is cluster


def test_two_flows_on_one_link_share_it() -> None:
    """Blocks of 1 MB and 3 MB over the same link of 1 GB/s: first come, first served; the second takes both."""
    pair = star(2)
    jobs = [
        Job(name=name, body=shift_on(pair, 1), size_bytes=2 * size)
        for name, size in (("small", 10**6), ("large", 3 * 10**6))
    ]
    found = together(*jobs)
    small, large = found.results
    assert (small.time_us, large.time_us) == (1000.0, 4000.0)
    assert large.slowdown == pytest.approx(4 / 3)
    assert large.shared is not None
    assert (large.shared.src, large.shared.dst) == ("gpu0", "switch")
    assert large.shared.own_us == 3000.0
    assert large.shared.others_us == {"small": 1000.0}


def test_starts_decide_who_meets() -> None:
    pair = star(2)
    first = Job(name="first", body=shift_on(pair, 1), size_bytes=2 * 10**6)
    for start, expected in ((0.0, 2000.0), (400.0, 1600.0), (1000.0, 1000.0), (5000.0, 1000.0)):
        later = Job(name="later", body=shift_on(pair, 1), size_bytes=2 * 10**6, start_us=start)
        found = together(first, later)
        assert [result.time_us for result in found.results] == [1000.0, expected]
        shared = found.results[1].shared
        assert (shared is None) == (start >= 1000)
        if shared is not None:
            assert shared.others_us == {"first": 1000.0 - start}
        assert found.time_us == start + expected


def test_a_box_inside_and_a_rail_across() -> None:
    """Tensor groups in the boxes and data groups across them meet in the GPUs' engines only."""
    cluster = preset("dgx-h100", boxes=2)
    across = subset(cluster, [0, 8])
    jobs = [
        Job(name="tp", body=ring_on(subset(cluster, range(8))), size_bytes=2**26),
        Job(name="dp", body=ring_on(across), size_bytes=2**24),
    ]
    found = together(*jobs)
    assert [result.slowdown for result in found.results] == [1, 1]
    engines = Model(overhead_us=0, send_engines=1, receive_engines=1)
    limited = together(*jobs, model=engines)
    assert limited.results[0].slowdown == 1  # first of simultaneous messages
    assert limited.results[1].slowdown > 1
    assert limited.results[1].shared is None
    # What a job takes alone is what it takes by itself on its own part.
    for job, result in zip(jobs, limited.results, strict=True):
        assert result.alone_us == simulate(job.body, job.size_bytes, model=engines).time_us


def test_messages_keep_their_jobs_and_relays_count_as_gpus() -> None:
    cluster = fat_tree(leaves=2, gpus_per_leaf=2, spines=2)
    relays = subset(cluster, [0, 2], relays=True)
    jobs = [
        Job(name="some", body=ring_on(relays), size_bytes=4000, pieces=2),
        Job(name="all", body=ring_on(cluster), size_bytes=8000),
        Job(name="last", body=ring_on(subset(cluster, [1, 3])), size_bytes=600),
    ]
    model = Model(send_engines=1, receive_engines=1)
    found = together(*jobs, model=model)
    assert found.topology.num_ranks == 4
    counts = np.diff(found.first).tolist()
    alone = [simulate(job.body, job.size_bytes, pieces=job.pieces).messages for job in jobs]
    assert counts == [each.count for each in alone]
    messages = found.timeline.messages
    names = messages.topology.node_ids
    for number, (job, own) in enumerate(zip(jobs, alone, strict=True)):
        rows = slice(int(found.first[number]), int(found.first[number + 1]))
        assert messages.num_bytes[rows].tolist() == own.num_bytes.tolist()
        theirs = [job.body.topology.node_ids[v] for v in own.dst.tolist()]
        assert [names[v] for v in messages.dst[rows].tolist()] == theirs


def test_a_forest_beside_a_ring() -> None:
    cluster = preset("dgx-a100", boxes=2, fabric="switch")
    problem = Problem(topology=cluster, collective=Collective.ALL_REDUCE)
    jobs = [
        Job(name="forest", body=plan_forest(problem), size_bytes=2**26),
        Job(name="ring", body=ring_on(cluster), size_bytes=2**26),
    ]
    found = together(*jobs)
    for result in found.results:
        assert result.slowdown > 1
        assert result.shared is not None
    assert found.time_us <= sum(result.alone_us for result in found.results) * (1 + 1e-9)


def test_bad_jobs_are_refused() -> None:
    body = shift_on(star(2), 1)
    with pytest.raises(InputError, match="found none"):
        simulate_together([])
    with pytest.raises(InputError, match="'a' twice"):
        simulate_together([Job(name="a", body=body, size_bytes=1)] * 2)
    for start in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="job a to start at 0 us or later"):
            simulate_together([Job(name="a", body=body, size_bytes=1, start_us=start)])


def test_messages_that_stand_for_others_do_not_meet_a_job() -> None:
    ring = preset("ring", gpus=4)
    some = replace(simulate(ring_on(ring), 400).messages, alike=alike(ring, find_symmetry(ring)))
    with pytest.raises(InputError, match="found some that stand for others"):
        joined([some], start_us=[0.0])


def test_parts_make_the_whole() -> None:
    whole = preset("dgx-h100", boxes=2)
    parts = [subset(whole, range(8)), subset(whole, [8, 9, 10, 11, 12, 13, 14, 15])]
    both = union(parts)
    assert both.num_ranks == 16
    assert sorted(both.node_ids) == sorted(whole.node_ids)
    links = {(link.src, link.dst): link.gb_per_s for link in whole.links()}
    assert {(link.src, link.dst): link.gb_per_s for link in both.links()} == links
    assert sorted(both.hosts) == sorted(whole.hosts)


def test_a_topology_that_holds_all_others_stays_itself() -> None:
    whole = preset("dgx-h100", boxes=2)
    part = subset(whole, [3, 11])
    assert union([part, whole]) is whole
    assert union([part]) is part
    relays = subset(whole, [3, 11], relays=True)
    assert union([relays, whole]).num_nodes == whole.num_nodes


def test_parts_of_different_clusters_are_refused() -> None:
    box = preset("dgx-a100")
    with pytest.raises(InputError, match=r"gpu0 -> nvswitch with 150 GB/s .* with 300 GB/s"):
        union([box, set_link_rate(box, "gpu0", "nvswitch", Fraction(150))])
    with pytest.raises(InputError, match="lacks the link gpu0 -> nvswitch"):
        union([box, remove_links(box, [("gpu0", "nvswitch")])])
    with pytest.raises(InputError, match=r"node gpu0 of dgx-a100 differs"):
        union([box, replace(box, multicast=~box.multicast)])


ZERO = {
    "wave_us": 0.0,
    "signal_us": 0.0,
    "wait_us": 0.0,
    "proxy_us": 0.0,
    "request_us": 0.0,
    "told_us": 0.0,
    "launch_us": 0.0,
    "memory_gb_per_s": 1e12,
}
MB = 10**6


def pair_time_us(**costs: float) -> float:
    """All-gather of 2 MB in a box of 2 GPUs, 100 GB/s each way: a credit to begin with, then 10 us of bytes."""
    body = forest("star", Collective.ALL_GATHER, (("gpus", 2), ("gb_per_s", 100)))
    program = lower_put_signal(body, pieces=1)
    return simulate_put_signal(program, body, 2 * MB, costs=PutSignalCosts(**{**ZERO, **costs})).time_us


@pytest.mark.parametrize(
    ("costs", "wanted_us"),
    [
        ({}, 10),
        ({"wave_us": 3}, 16),  # the credit, and the put
        ({"wait_us": 1}, 12),
        ({"signal_us": 0.5}, 11),
        ({"proxy_us": 7, "told_us": 7}, 10),  # nobody is in another box
        ({"launch_us": 25}, 25),  # the own copy, beside the rest
        ({"memory_gb_per_s": 50}, 40),  # reads and writes 1 MB
    ],
)
def test_two_gpus_by_hand(costs: dict[str, float], wanted_us: float) -> None:
    assert pair_time_us(**costs) == pytest.approx(wanted_us)


def test_another_box_is_reached_by_the_proxy() -> None:
    """Two boxes of one GPU each: the credit and the put, each posted and told; waits are for the other's."""
    topology = Topology.of(
        "two boxes of one",
        [Node(id="a", host="x"), Node(id="b", host="y")],
        [Link(src=src, dst=dst, gb_per_s=Fraction(100)) for src, dst in (("a", "b"), ("b", "a"))],
    )
    body = plan(Problem(topology=topology, collective=Collective.ALL_GATHER)).plan.body
    program = lower_put_signal(body, pieces=1)

    def time_us(**costs: float) -> float:
        made = PutSignalCosts(**{**ZERO, **costs})
        return simulate_put_signal(program, body, 2 * MB, costs=made).time_us

    bytes_us = time_us()
    assert time_us(wave_us=100, signal_us=100) == bytes_us
    assert time_us(proxy_us=4) == pytest.approx(bytes_us + 8)
    assert time_us(request_us=4) == pytest.approx(bytes_us + 8)
    assert time_us(told_us=4) == pytest.approx(bytes_us + 8)


@pytest.mark.parametrize(
    ("collective", "communicators"), list(zip(COLLECTIVES, (1, 3, 2, 1, 1, 3), strict=True))
)
def test_no_program_is_faster_than_the_rate_of_its_plan(collective: Collective, communicators: int) -> None:
    topology = preset("dgx-a100", boxes=2)
    root = 0 if collective.rooted else None
    made = plan(Problem(topology=topology, collective=collective, root=root)).plan
    program = lower_put_signal(made.body, pieces=1, communicators=communicators)
    size = 64 * MB
    best_us = float(size / made.algbw_gb_per_s) / 1e3
    for costs in (
        PutSignalCosts.free(),
        PutSignalCosts(),
    ):  # an order that costs bring about may be the better one
        assert simulate_put_signal(program, made.body, size, costs=costs).time_us >= best_us * (1 - 1e-6)
    assert simulate_put_signal(program, made.body, 0).time_us > 0


def test_costs_and_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected wave_us of 0 or more, found -1"):
        PutSignalCosts(wave_us=-1)
    with pytest.raises(InputError, match=r"expected memory_gb_per_s above 0"):
        PutSignalCosts(memory_gb_per_s=0)
    body = forest("star", Collective.ALL_GATHER, (("gpus", 2), ("gb_per_s", 100)))
    program = lower_put_signal(body)
    with pytest.raises(InputError, match=r"expected a size of 0 bytes or more, found -1"):
        simulate_put_signal(program, body, -1)
    with pytest.raises(InputError, match=r"expected a program of 3 ranks, found one of 2"):
        simulate_put_signal(program, forest("ring", Collective.ALL_GATHER, (("gpus", 3),)), 1)
