"""NCCL's rings and trees on crossbars and on boxes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.parts.cost import Chain
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from planners.algorithms.crossbar import RANKS, check_cost, made, verified, with_ranks_shuffled

RINGS = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.BROADCAST,
    Collective.REDUCE,
)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", RINGS)
def test_cost_of_one_ring(collective: Collective, ranks: int) -> None:
    check_cost("nccl-ring", collective, ranks, root=ranks - 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("segments", [2, 7])
def test_cost_of_a_segmented_chain(collective: Collective, ranks: int, segments: int) -> None:
    schedule = check_cost("nccl-ring", collective, ranks, root=ranks // 3, segments=segments)
    if ranks > 1:
        assert int(schedule.step.max()) + 1 == ranks - 2 + segments


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 9, 16])
@pytest.mark.parametrize("collective", RINGS[:3])
def test_cost_of_rings_both_ways(collective: Collective, ranks: int, channels: int) -> None:
    schedule = check_cost("nccl-ring", collective, ranks, channels=channels)
    if ranks > 2:
        forward = (schedule.dst - schedule.src) % ranks == 1
        assert Fraction(int(forward.sum()), schedule.num_transfers) == Fraction((channels + 1) // 2, channels)


def nic_loads(schedule: Schedule) -> list[int]:
    """Transfers over every link out of a box, in a default routing."""
    topology = schedule.topology
    found = routed(schedule)
    crossed: Counter[tuple[int, int]] = Counter()
    starts, nodes = found.path_start, found.path_nodes.tolist()
    for path in found.path.tolist():
        route = nodes[starts[path] : starts[path + 1]]
        for hop in pairwise(route):
            if topology.host[hop[0]] >= 0 and topology.host[hop[1]] < 0:
                crossed[hop] += 1
    out = [
        (a, b)
        for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        if topology.host[a] >= 0 and topology.host[b] < 0
    ]
    return [crossed[hop] for hop in out]


@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-a100"])
@pytest.mark.parametrize("boxes", [2, 3, 4])
@pytest.mark.parametrize("seed", [None, 5])
def test_rings_use_every_nic_alike(machine: str, boxes: int, seed: int | None) -> None:
    topology = preset(machine, boxes=boxes)
    if seed is not None:
        topology = with_ranks_shuffled(topology, seed)
    for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE):
        body = made("nccl-ring", collective, topology)
        assert isinstance(body, Schedule)
        verified(body)
        assert len(set(nic_loads(body))) == 1


def test_rings_reach_the_rate_of_all_rails_together() -> None:
    """(N - 1)/N of M leaves every box through 8 NICs of 50 GB/s: algbw 400 N / (N - 1) for an all-gather."""
    report = verified(made("nccl-ring", Collective.ALL_GATHER, preset("dgx-h100", boxes=4)))
    assert report.inv_rate is not None
    # Each of the 8 NICs of a box carries (N - 1)/8 of the N shards.
    assert report.inv_rate == Fraction(31, 8) / 50


def test_full_mesh_rings_take_different_cables() -> None:
    one = verified(made("nccl-ring", Collective.ALL_GATHER, preset("mi300x", boxes=2), channels=1))
    eight = verified(made("nccl-ring", Collective.ALL_GATHER, preset("mi300x", boxes=2)))
    assert one.inv_rate is not None
    assert eight.inv_rate is not None
    assert eight.inv_rate * 2 < one.inv_rate


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("root", [0, 11])
def test_chains_on_boxes(collective: Collective, root: int) -> None:
    topology = with_ranks_shuffled(preset("dgx-a100", boxes=2), seed=2)
    verified(made("nccl-ring", collective, topology, root, segments=3), root)


@pytest.mark.parametrize("ranks", RANKS)
def test_tree_without_boxes(ranks: int) -> None:
    schedule = made("nccl-tree", Collective.ALL_REDUCE, preset("star", gpus=ranks))
    assert isinstance(schedule, Schedule)
    verified(schedule)
    if ranks > 1:
        assert int(schedule.step.max()) + 1 <= 2 * (ranks - 1).bit_length()


@pytest.mark.parametrize(("group", "channels", "segments"), [(4, 1, 1), (4, 4, 2), (2, 3, 5), (12, 1, 1)])
def test_tree_of_chains(group: int, channels: int, segments: int) -> None:
    given = {"group": group, "channels": channels, "segments": segments}
    schedule = made("nccl-tree", Collective.ALL_REDUCE, preset("star", gpus=12), **given)
    assert isinstance(schedule, Schedule)
    verified(schedule)
    between = schedule.src // group != schedule.dst // group
    # Boxes meet at members of equal number, one for each channel.
    assert (schedule.src[between] % group == schedule.dst[between] % group).all()
    if group < 12:
        assert len(set((schedule.src[between] % group).tolist())) == min(channels, group)


def test_tree_uses_every_rail_and_every_vertex_the_same_chain_length() -> None:
    topology = preset("dgx-h100", boxes=4)
    schedule = made("nccl-tree", Collective.ALL_REDUCE, topology)
    assert isinstance(schedule, Schedule)
    verified(schedule)
    rails = np.array(nic_loads(schedule)).reshape(4, 8)
    assert (rails == rails[:, :1]).all()
    # 7 links down the chain and 2 down the tree of four boxes, and up again.
    assert int(schedule.step.max()) + 1 == 2 * (7 + 2)


def cost_of(topology: Topology, collective: Collective, **given: int) -> object:
    entry = find("nccl-ring", collective)
    root = 0 if collective.rooted else None
    assert entry.cost is not None
    return entry.cost(case_of(entry, Problem(topology=topology, collective=collective, root=root), given))


def test_cost_is_refused_where_it_is_not_known() -> None:
    with pytest.raises(InputError, match="uniform crossbar, found boxes"):
        cost_of(preset("dgx-h100", boxes=2), Collective.ALL_GATHER)
    with pytest.raises(InputError, match="expected one channel"):
        cost_of(preset("star", gpus=4), Collective.BROADCAST, channels=2)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_cost_of_pat(collective: Collective, ranks: int) -> None:
    schedule = check_cost("pat", collective, ranks)
    assert len(set(schedule.step.tolist())) == (ranks - 1).bit_length()
    assert schedule.num_transfers == ranks * (ranks - 1)


@pytest.mark.parametrize("ranks", [6, 8, 13, 16])
def test_each_step_has_one_distance_and_far_ones_carry_least(ranks: int) -> None:
    schedule = check_cost("pat", Collective.ALL_GATHER, ranks)
    blocks = Counter(schedule.step.tolist())
    far = [
        set(((schedule.dst - schedule.src) % ranks)[schedule.step == step].tolist())
        for step in sorted(blocks)
    ]
    steps = (ranks - 1).bit_length()
    assert far == [{1 << (steps - 1 - step)} for step in range(steps)]
    assert sorted(blocks.values()) == [blocks[step] for step in sorted(blocks)] or ranks % 2


@pytest.mark.parametrize("ranks", [5, 12])
def test_reduce_scatter_is_the_mirror(ranks: int) -> None:
    there = check_cost("pat", Collective.ALL_GATHER, ranks)
    back = check_cost("pat", Collective.REDUCE_SCATTER, ranks)
    last = int(there.step.max())
    rows = zip(there.step.tolist(), there.src.tolist(), there.dst.tolist(), there.chunk.tolist(), strict=True)
    mirrored = {(last - step, dst, src, chunk) for step, src, dst, chunk in rows}
    assert mirrored == set(
        zip(back.step.tolist(), back.src.tolist(), back.dst.tolist(), back.chunk.tolist(), strict=True)
    )


COLLECTIVES = (
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_GATHER,
    Collective.GATHER,
    Collective.SCATTER,
    Collective.BARRIER,
)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_cost_of_levels(collective: Collective, ranks: int) -> None:
    check_cost("hierarchical", collective, ranks, root=ranks - 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("group", [1, 2, 3, 6, 12])
def test_cost_of_every_group(collective: Collective, group: int) -> None:
    low, up = (group - 1).bit_length(), (12 // group - 1).bit_length()
    stated = {
        Collective.ALL_REDUCE: 2 * (low + up),
        Collective.ALL_GATHER: 2 * low + 12 // group - 1,
        Collective.BARRIER: 2 * low + up,
    }
    for root in (0, 7) if collective.rooted else (0,):
        schedule = check_cost("hierarchical", collective, 12, root, group=group)
        assert int(schedule.step.max()) + 1 == stated.get(collective, low + up)


@pytest.mark.parametrize("segments", [1, 2, 3, 6])
def test_tasks_overlap(segments: int) -> None:
    """While segment i is reduced in the groups, segment i - 3 is broadcast there, in the same steps."""
    low, up = 2, 3
    schedule = check_cost("hierarchical", Collective.ALL_REDUCE, 20, group=4, segments=segments)
    assert int(schedule.step.max()) + 1 == low * min(2 * segments, segments + 3) + up * (segments + 1)
    within = schedule.src // 4 == schedule.dst // 4
    adds = schedule.op == Op.REDUCE

    def steps(rows: np.ndarray, segment: int) -> set[int]:
        return set(schedule.step[rows & (schedule.chunk == segment)].tolist())

    for segment in range(segments):
        kinds = [within & adds, ~within & adds, ~within & ~adds, within & ~adds]
        first = [min(steps(kind, segment)) for kind in kinds]
        assert first == sorted(first)
        if segment >= 1:
            assert steps(~within & adds, segment) == steps(~within & ~adds, segment - 1)
        if segment >= 3:
            assert steps(within & adds, segment) == steps(within & ~adds, segment - 3)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("group", [1, 3, 5, 15])
def test_cost_of_segments(collective: Collective, group: int) -> None:
    """The leader of the root takes part in every step."""
    low, up, segments = (group - 1).bit_length(), (15 // group - 1).bit_length(), 4
    check_cost("hierarchical", collective, 15, root=8, group=group, segments=segments)
    entry = find("hierarchical", collective)
    root = 8 if collective.rooted else None
    problem = Problem(topology=preset("star", gpus=15), collective=collective, root=root)
    assert entry.cost is not None
    cost = entry.cost(case_of(entry, problem, {"group": group, "segments": segments}))
    steps = (segments + 3) * low + (segments + 1) * up
    if collective is not Collective.ALL_REDUCE:
        steps = segments * (low + up)
    reduced = Fraction(low + up) if collective.reduces else Fraction(0)
    assert cost.chains == (Chain(messages=steps, sent=Fraction(steps, segments), reduced=reduced),)
    assert cost.sent == (1 if collective is Collective.REDUCE else low + up)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("root", [0, 5, 11])
def test_segments_of_rooted_collectives(collective: Collective, root: int) -> None:
    verified(made("hierarchical", collective, preset("star", gpus=12), root, group=3, segments=4), root)


def test_only_leaders_leave_a_box() -> None:
    schedule = made("hierarchical", Collective.BROADCAST, preset("dgx-a100", boxes=3), 13)
    assert isinstance(schedule, Schedule)
    verified(schedule, 13)
    between = schedule.src // 8 != schedule.dst // 8
    assert set((schedule.src[between] % 8).tolist()) == {5}
    assert int(between.sum()) == 2


def test_a_reduction_and_a_broadcast_meet_no_rank_twice() -> None:
    """Of one level, in one step, in one direction."""
    schedule = made("hierarchical", Collective.ALL_REDUCE, preset("star", gpus=16), group=16, segments=5)
    assert isinstance(schedule, Schedule)
    for ends in (schedule.src, schedule.dst):
        _, count = np.unique(np.stack([schedule.step, ends]), axis=1, return_counts=True)
        assert count.max() == 1
