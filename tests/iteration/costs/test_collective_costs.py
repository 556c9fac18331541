"""What collectives of a job cost: never less than the bound of all groups, and one truth with other commands."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds import Problem
from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import least_time
from coppice.collectives import Collective
from coppice.comparison.library import simulate_picks
from coppice.comparison.sweep import compare
from coppice.errors import InputError
from coppice.iteration.costs import simulated
from coppice.iteration.costs.calibrated import CalibratedCosts, costs_of
from coppice.iteration.costs.chosen import Pick, body_of, known_algorithms
from coppice.iteration.costs.group import COLLECTIVES, CollectiveCosts, RankGroup
from coppice.iteration.costs.simulated import (
    SimulatedCosts,
    box_of_all,
    costs_named,
    simulated_together,
    standing,
    with_collectives,
)
from coppice.iteration.costs.traffic import axis_groups, degree_demands, job_demands
from coppice.iteration.estimate import estimate
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import Cluster, cluster_of
from coppice.iteration.models import MODELS
from coppice.selection import select
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.models import DEFAULT_MODEL
from coppice.simulation.simulator import fastest
from coppice.topology.model import Link, Topology
from coppice.topology.operations import set_link_rate, subset
from coppice.topology.presets import preset

H100 = preset("dgx-h100", boxes=4)
A100 = preset("dgx-a100", boxes=4)
GPT = MODELS["gpt-7.5b"]
LAYOUTS = [
    Layout(tensor=8, data=4, global_batch=32, sequence_parallel=True),
    Layout(tensor=4, pipeline=4, data=2, global_batch=32, recompute=Recompute.FULL),
    Layout(tensor=8, pipeline=2, data=2, chunks=2, global_batch=32, shard=Shard.ZERO1),
    Layout(tensor=2, data=16, global_batch=64, shard=Shard.ZERO3),
    Layout(tensor=2, pipeline=4, data=2, context=2, global_batch=32),
]


def least(
    topology: Topology, collective: str, size_bytes: int, group: RankGroup, *, adds: bool = False
) -> float:
    members = np.array(group.members(topology.num_ranks), dtype=np.int64)
    one = GroupDemand("all", collective, members, [Fraction(size_bytes)] * len(members))
    return float(least_time(topology, [one], in_network=adds).seconds)


@pytest.mark.parametrize("name", ["forest", "ring", "nccl"])
@pytest.mark.parametrize(
    "group",
    [
        RankGroup(8, 1),
        RankGroup(4, 8),
        RankGroup(8, 4),
        pytest.param(RankGroup(32, 1), marks=pytest.mark.slow),
        RankGroup(2, 16),
    ],
)
@pytest.mark.spread(5)
def test_nothing_takes_less_than_all_groups_must(name: str, group: RankGroup) -> None:
    for topology in (H100, A100):
        costs = costs_named(name, topology)
        assert costs is not None
        for collective in COLLECTIVES:
            if collective == "send" and group.ranks * group.stride != topology.num_ranks:
                continue
            for size in (2**16, 2**24):
                found = costs.cost(collective, size, group)
                # NVLS and its tree add in switches.
                adds = name == "nccl" and topology is H100 and collective == "all_reduce"
                assert found.seconds >= least(topology, collective, size, group, adds=adds)
                assert found.link in found.loads
                assert all(0 < load <= 1 for load in found.loads.values())


def test_the_optimum_is_close_to_the_bound_and_below_rings() -> None:
    size = 2**30
    for topology in (H100, A100):
        for group in (RankGroup(8, 1), RankGroup(4, 8), RankGroup(8, 4)):
            forest, ring = (
                costs_named(name, topology).cost("all_reduce", size, group).seconds  # type: ignore[union-attr]
                for name in ("forest", "ring")
            )
            assert forest <= 1.02 * least(topology, "all_reduce", size, group)
            assert forest < 1.01 * ring


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calibrated_costs_are_what_estimates_print(layout: Layout) -> None:
    cluster = cluster_of(A100)
    named = replace(cluster, costs=CalibratedCosts(cluster))
    layout = replace(layout, sequence_parallel=False)
    assert estimate(GPT, layout, named) == estimate(GPT, layout, cluster)
    assert with_collectives(cluster, A100, "calibrated") == cluster


def test_sums_of_sequence_parallelism_are_scatters_and_gathers() -> None:
    cluster = with_collectives(cluster_of(H100), H100, "nccl")
    costs = costs_of(cluster)
    group = RankGroup(8, 1)
    parts = [costs.cost(name, 2**25, group).seconds for name in ("reduce_scatter", "all_gather")]
    assert cluster.sum_seconds(2**25, 8, split=True) == sum(parts)
    # NVLS adds in the switch, which rings for the parts do not.
    assert cluster.sum_seconds(2**25, 8, split=False) < sum(parts)
    assert cluster.calibrated.sum_seconds(2**25, 8, split=True) == cluster.calibrated.ring_seconds(
        2**25, 8, 1
    )


def test_calibrated_costs_are_rings() -> None:
    cluster = cluster_of(A100)
    costs = costs_of(cluster)
    group = RankGroup(8, 4)
    for gradients, share in ((False, 0.0), (True, cluster.gradient_share)):
        for name, rounds in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
            found = costs.cost(name, 1e9, group, gradients=gradients)
            assert found.seconds == cluster.ring_seconds(1e9, 8, 4, rounds=rounds, share=share)
            assert found.link == "NIC"
    assert costs.cost("send", 1e6, RankGroup(2, 8)).seconds == cluster.send_seconds(1e6, 8)
    assert costs.cost("send", 1e6, RankGroup(2, 4)).link == "NVLink"
    assert costs.cost("all_to_all", 1e6, RankGroup(8, 1)).seconds == cluster.exchange_seconds(1e6, 8, 1)
    assert costs.cost("all_reduce", 1e6, RankGroup(1, 1)).seconds == 0
    assert costs_of(replace(cluster, costs=costs)) is costs


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER])
@pytest.mark.parametrize("size", [2**16, 2**22])
@pytest.mark.parametrize("members", [range(8), range(0, 16, 8), range(16)])
def test_costs_of_nccl_are_those_of_select_and_compare(
    collective: Collective, size: int, members: range
) -> None:
    cluster = preset("dgx-a100", boxes=2)
    costs = costs_named("nccl", cluster)
    assert costs is not None
    group = RankGroup(len(members), members.step)
    own = subset(cluster, list(members))
    picked = select("nccl", collective, size, topology=own)
    assert picked.ours is not None
    rows = compare(Problem(own, collective), sizes=[size], algorithms=[picked.ours], in_network=False)
    (pick,) = rows.picks
    assert pick.name == picked.algorithm
    found = costs.cost(collective.value, size, group)
    assert 1e6 * found.seconds == pytest.approx(pick.time_us, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "boxes", "group"),
    [
        ("dgx-1v", 1, RankGroup(8, 1)),  # rings over direct NVLinks
        ("dgx-1v", 2, RankGroup(16, 1)),
        ("dgx-h100", 2, RankGroup(16, 1)),  # NVLS and trees of it
        ("dgx-h100", 2, RankGroup(4, 4)),
        ("dgx-b200", 2, RankGroup(2, 8)),
    ],
)
@pytest.mark.spread(3)
def test_costs_of_nccl_are_its_picks_on_its_own_rings(name: str, boxes: int, group: RankGroup) -> None:
    """One group by itself, whose neighbours run at the same time but share no link with it."""
    cluster = preset(name, boxes=boxes)
    costs = costs_named("nccl", cluster)
    assert costs is not None
    own = subset(cluster, group.members(cluster.num_ranks)[0])
    for collective in ("all_reduce", "reduce_scatter", "all_to_all"):
        sizes = [2**12, 2**25]
        for row in simulate_picks(Problem(own, collective), "nccl", sizes, model=DEFAULT_MODEL):
            found = costs.cost(collective, row.size_bytes, group)
            assert 1e6 * found.seconds == pytest.approx(row.time_us, rel=1e-9)


def test_groups_that_share_nics_take_as_long_as_simulated_together() -> None:
    topology = preset("dgx-h100", boxes=2)
    size, ring = 2**24, Pick("ring")
    groups = [[0, 1, 8, 9], [2, 3, 10, 11]]
    narrow = _one_nic(topology)
    bodies = [body_of(narrow, ranks, Collective.ALL_GATHER, ring) for ranks in groups]
    found = simulated_together(bodies, narrow, size, DEFAULT_MODEL)
    jobs = [Job(name=str(k), body=body, size_bytes=size) for k, body in enumerate(bodies)]
    together = simulate_together(jobs, topology=narrow)
    assert 1e6 * found.seconds == pytest.approx(together.time_us, rel=1e-9)
    alone = fastest(bodies[0], size, model=DEFAULT_MODEL, keep_hops=False).time_us
    assert 1e6 * found.seconds > 1.5 * alone


def _one_nic(topology: Topology) -> Topology:
    """Two boxes whose GPUs reach the other box through one NIC."""
    nodes = [node for node in topology.nodes() if not node.id.startswith("rail")]
    links = [link for link in topology.links() if "rail" not in link.src and "rail" not in link.dst]
    switches = [node for node in nodes if node.id.endswith("nvswitch")]
    for a, b in ((switches[0], switches[1]), (switches[1], switches[0])):
        links.append(Link(src=a.id, dst=b.id, gb_per_s=Fraction(50)))
    return Topology.of("two boxes by one cable", nodes, links)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize(
    "group", [RankGroup(4, 1), RankGroup(8, 1), RankGroup(2, 8), RankGroup(4, 4), RankGroup(4, 8)]
)
def test_a_part_of_the_cluster_stands_for_all(name: str, group: RankGroup) -> None:
    topology = preset(name, boxes=4)
    part = standing(topology, group)
    assert part.topology.num_ranks <= 8 * group.ranks
    # Where GPUs have to pass on, routes are hashed, and hashes are others on another cluster: these have none.
    for pick in (Pick("nccl-ring"), Pick("forest")):
        every = [body_of(topology, ranks, Collective.ALL_REDUCE, pick) for ranks in group.members(32)]
        some = [body_of(part.topology, ranks, Collective.ALL_REDUCE, pick) for ranks in part.groups]
        whole = simulated_together(every, topology, 2**22, DEFAULT_MODEL)
        found = simulated_together(some, part.topology, 2**22, DEFAULT_MODEL)
        assert found.seconds == pytest.approx(whole.seconds, rel=1e-6)


def test_boxes_that_differ_or_share_links_stand_for_themselves() -> None:
    slower = set_link_rate(H100, "box1/gpu0", "rail0", 25)
    assert (
        box_of_all(H100),
        box_of_all(slower),
        box_of_all(preset("fat-tree", leaves=2, gpus_per_leaf=4)),
    ) == (8, 0, 0)
    assert standing(slower, RankGroup(8, 1)).topology is slower
    costs, plain = (costs_named("ring", each) for each in (slower, H100))
    assert isinstance(costs, SimulatedCosts)
    assert isinstance(plain, SimulatedCosts)
    group = RankGroup(4, 8)
    assert (
        costs.cost("all_reduce", 2**26, group).seconds > 1.9 * plain.cost("all_reduce", 2**26, group).seconds
    )
    large = set_link_rate(preset("dgx-h100", boxes=128), "box1/gpu0", "rail0", 25)
    with pytest.raises(InputError, match="up to 512 ranks"):
        standing(large, RankGroup(1024, 1))


@pytest.mark.parametrize(("name", "error"), [("ring", 0.03), ("forest", 0.05), ("nccl-ring", 0.03)])
@pytest.mark.spread(2)
def test_between_powers_of_two_times_are_close(name: str, error: float) -> None:
    topology = preset("dgx-a100", boxes=2)
    costs = costs_named(name, topology)
    assert isinstance(costs, SimulatedCosts)
    for low in (2**16, 2**26):
        for share in (1.25, 1.5):
            size = int(low * share)
            exact = costs._at("all_reduce", size, RankGroup(16, 1)).seconds
            assert costs.cost("all_reduce", size, RankGroup(16, 1)).seconds == pytest.approx(exact, rel=error)


@pytest.mark.parametrize(("name", "error"), [("ring", 1e-3), ("forest", 0.15)])
@pytest.mark.spread(2)
def test_large_groups_go_on_from_smaller_ones(
    name: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = preset("dgx-h100", boxes=8)
    group = RankGroup(64, 1)
    direct = costs_named(name, topology)
    assert direct is not None
    expected = direct.cost("all_gather", 2**28, group).seconds
    monkeypatch.setattr(simulated, "MOST_RANKS", 32)
    extended = costs_named(name, topology)
    assert extended is not None
    found = extended.cost("all_gather", 2**28, group).seconds
    assert found == pytest.approx(expected, rel=error)
    assert found >= least(topology, "all_gather", 2**28, group)


def test_sends_cross_boxes_where_some_do() -> None:
    costs = costs_named("nccl", H100)
    assert costs is not None
    size = 2**24
    assert costs.cost("send", size, RankGroup(2, 8)).link == "NIC"
    # Of stages of four ranks the second of a box sends to the next box, from four GPUs.
    assert costs.cost("send", size, RankGroup(8, 4)).link == "NIC"
    box = costs_named("nccl", preset("dgx-h100"))
    assert box is not None
    assert box.cost("send", size, RankGroup(2, 4)).link == "NVLink"


def test_a_thousand_gpus_are_answered() -> None:
    topology = preset("dgx-h100", boxes=128)
    cluster = cluster_of(topology)
    layout = Layout(tensor=8, pipeline=8, data=16, global_batch=512, sequence_parallel=True)
    model = MODELS["gpt-175b"]
    found = {
        name: estimate(model, layout, with_collectives(cluster, topology, name))
        for name in ("calibrated", "nccl")
    }
    assert found["nccl"].compute == found["calibrated"].compute
    assert found["nccl"].tensor != found["calibrated"].tensor


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["ring", "forest"])
def test_no_iteration_sends_in_less_than_the_bound_of_the_job(layout: Layout, name: str) -> None:
    demands = job_demands(GPT, layout)
    found = estimate(GPT, layout, with_collectives(cluster_of(A100), A100, name))
    bound = float(least_time(A100, demands).seconds)
    assert 0 < bound <= found.tensor + found.sends + found.gradients + found.exchange


def test_bytes_of_a_job() -> None:
    layout = LAYOUTS[1]
    by_name = {each.name: each for each in job_demands(GPT, layout)}
    tokens = layout.micro_batch * GPT.seq
    activations = 2 * tokens * GPT.hidden
    assert by_name["tp"].size_bytes[0] == 6 * GPT.layers // 4 * layout.micro_batches * activations
    assert by_name["pp forward"].size_bytes[0] == layout.micro_batches * activations / 4
    assert by_name["pp backward"].groups[0].tolist() == by_name["pp forward"].groups[0].tolist()[::-1]
    stages = by_name["dp"].size_bytes
    # The ends hold the words as well: two of four stages of two groups of a rank each.
    assert stages[0] == stages[-1] > stages[len(stages) // 2]
    moe = MODELS.get("mixtral-8x7b")
    assert moe is None or moe.experts
    split = {each.name for each in job_demands(GPT, LAYOUTS[3])}
    assert split == {"tp", "dp gradients", "dp parameters"}


def test_groups_of_degrees() -> None:
    assert axis_groups(tensor=2, context=2, data=2)["dp"] == RankGroup(2, 4)
    found = degree_demands({"tp": 8, "pp": 2, "dp": 2}, "all_gather", 100, 32)
    assert [(each.name, each.collective, each.groups.shape) for each in found] == [
        ("tp", "all_gather", (4, 8)),
        ("dp", "all_gather", (16, 2)),
        ("pp", "send", (16, 2)),
    ]
    for wrong in ({"tp": 8}, {"tp": 8, "dp": 4, "ep": 3}, {"tp": 8, "chunks": 2}):
        with pytest.raises(InputError, match="expected degrees"):
            degree_demands(wrong, "all_gather", 100, 32)


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'forest'"):
        costs_named("forets", H100)
    assert "2d-torus" in known_algorithms()
    both: list[CollectiveCosts] = [
        CalibratedCosts(cluster_of(A100)),
        SimulatedCosts(A100, lambda *_: Pick("ring")),
    ]
    for costs in both:
        with pytest.raises(InputError, match="expected one of all_reduce"):
            costs.cost("broadcast", 1, RankGroup(2, 1))
    with pytest.raises(InputError, match="divide the ranks"):
        RankGroup(3, 1).members(8)
    with pytest.raises(InputError, match="`stride` of a group of 1 or more"):
        RankGroup(3, 0)
    assert isinstance(cluster_of(A100), Cluster)
