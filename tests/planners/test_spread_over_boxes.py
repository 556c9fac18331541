"""Broadcasts and reductions over boxes: verified on drawn networks of boxes, and shaped as theory says."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.planners.ordering import turned_round
from coppice.planners.over_boxes import rails
from coppice.planners.spread_over_boxes import SpreadShape, boxes_of, spread_over_boxes
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset

DEAD = remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"])
CLUSTERS = [
    DEAD,
    preset("dgx-a100", boxes=3),
    preset("mi250", boxes=2),
    preset("fat-tree", leaves=3, gpus_per_leaf=2),
]


def drawn_shape(rng: random.Random) -> SpreadShape:
    """Chunks of one kind or of both, alike or not."""
    passed, direct = rng.choice([(0, 2), (3, 0), (5, 1), (2, 4)])
    return SpreadShape(
        passed=passed,
        direct=direct,
        direct_share=rng.choice([0.01, 0.3, 0.9]),
        taper=rng.choice([1, 2, 16]),
        own_rail=rng.choice([0.25, 1.0]),
        home_last=rng.random() < 0.5,
    )


@pytest.mark.parametrize("topology", CLUSTERS, ids=lambda topology: topology.name)
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_they_perform_their_collectives(topology: Topology, collective: str) -> None:
    rng = random.Random(f"{topology.name} {collective}")
    for root in (0, topology.num_ranks - 1):
        for _ in range(6):
            found = spread_over_boxes(Problem(topology, collective, root=root), drawn_shape(rng))
            assert found is not None
            assert verify_schedule(found).ok
            assert found.num_transfers == found.num_chunks * (topology.num_ranks - 1)


@pytest.mark.parametrize("seed", range(8))
def test_they_perform_their_collectives_on_any_number_of_boxes(seed: int) -> None:
    rng = random.Random(f"boxes {seed}")
    topology = preset(rng.choice(["dgx-a100", "dgx-h100"]), boxes=rng.randint(2, 6))
    problem = Problem(topology, rng.choice(["broadcast", "reduce"]), root=rng.randrange(topology.num_ranks))
    for apart in (False, True):
        found = spread_over_boxes(problem, drawn_shape(rng), apart=apart)
        if apart:  # GPUs on unlike rails do not reach each other
            assert found is None
        else:
            assert found is not None
            assert verify_schedule(found).ok


def test_no_box_sends_a_chunk_more_often_than_it_must() -> None:
    """But for the last chunks the root's box sends each of them once, and each other box two thirds of them."""
    topology = preset("dgx-a100", boxes=4)
    shape = SpreadShape(passed=9, direct=3, direct_share=0.25)
    found = spread_over_boxes(Problem(topology, "broadcast", root=3), shape)
    assert found is not None
    host = topology.host[topology.rank_nodes]
    early = found.chunk < found.num_chunks * 3 // 4
    crosses = host[found.src] != host[found.dst]
    chunks = 9 * 8
    sent = [int((crosses & early & (host[found.src] == box)).sum()) for box in range(4)]
    assert sent == [chunks, *[chunks * 2 // 3] * 3]
    assert int((crosses & ~early & (host[found.src] > 0)).sum()) == 0


def test_boxes_pass_on_to_different_boxes() -> None:
    """What boxes send on a rail at a time, each its next chunk, goes to different boxes, as seven others are odd."""
    topology = preset("dgx-h100", boxes=8)
    found = spread_over_boxes(Problem(topology, "broadcast", root=0), SpreadShape(passed=14))
    assert found is not None
    host = topology.host[topology.rank_nodes]
    passes = (host[found.src] != host[found.dst]) & (host[found.src] > 0) & (found.src % 8 == 0)
    to = {box: host[found.dst[passes & (host[found.src] == box)]].tolist() for box in range(1, 8)}
    # Box b has its chunk b turns after the first, and sends one in each turn from then on, but in every seventh.
    slots = {box: [box + each + each // 6 for each in range(len(sent))] for box, sent in to.items()}
    at = {box: dict(zip(slots[box], sent, strict=True)) for box, sent in to.items()}
    for slot in range(7, 14):
        receivers = [at[box][slot] for box in at if slot in at[box]]
        assert len(receivers) == len(set(receivers)) == 6


@pytest.mark.parametrize("seed", range(4))
def test_a_reduction_turned_round_is_the_broadcast_in_its_order(seed: int) -> None:
    topology = preset("dgx-a100", boxes=4)
    shape = replace(drawn_shape(random.Random(f"mirror {seed}")), home_last=False)
    made = [
        spread_over_boxes(Problem(topology, collective, root=5), shape)
        for collective in ("broadcast", "reduce")
    ]
    assert made[0] is not None
    assert made[1] is not None
    copied, back = made[0], turned_round(made[1])
    assert copied.src.tolist() == back.src.tolist()
    assert copied.dst.tolist() == back.dst.tolist()
    assert copied.chunk.tolist() == back.chunk.tolist()
    assert copied.chunk_share.tolist() == back.chunk_share.tolist()


def test_members_of_the_roots_box_serve_it_last() -> None:
    """What they send there waits for the last chunk that they have of the root, and nothing else waits."""
    topology = preset("dgx-h100", boxes=3)
    problem = Problem(topology, "broadcast", root=2)
    found = spread_over_boxes(problem, SpreadShape(passed=4, direct=1, direct_share=0.2, home_last=True))
    assert found is not None
    receipts = {}
    for row in np.flatnonzero(found.src == 2).tolist():
        receipts[int(found.dst[row])] = row
    for row in range(found.num_transfers):
        waits = found.after[found.after_start[row] : found.after_start[row + 1]].tolist()
        last = receipts.get(int(found.src[row]))
        inside = 0 <= found.dst[row] < 8 and found.src[row] < 8 and found.src[row] != 2
        expected = [last] if inside and last is not None and found.chunk[last] != found.chunk[row] else []
        assert waits == expected
    turned = spread_over_boxes(Problem(topology, "reduce", root=2), SpreadShape(passed=4, home_last=True))
    assert turned is not None
    assert not len(turned.after)


@pytest.mark.parametrize("taper", [1, 4])
def test_chunks_shrink_towards_the_end_as_far_as_is_asked(taper: int) -> None:
    shares = SpreadShape(passed=40, direct=2, direct_share=0.125, taper=taper).shares(7)
    assert shares[:40].sum() == pytest.approx(0.875)
    assert shares[40:].sum() == pytest.approx(0.125)
    assert shares[0] / shares[39] == pytest.approx(taper)
    assert (np.diff(shares[:40]) <= 1e-12).all()
    assert (shares[:39] / shares[1:40] <= 8 / 7 + 1e-9).all()


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_ranks_may_be_boxes_of_their_own(collective: str) -> None:
    """At one switch the root sends each chunk once, and whoever has it passes it on to all others."""
    problem = Problem(preset("star", gpus=5), collective, root=2)
    found = spread_over_boxes(problem, SpreadShape(passed=8), apart=True)
    assert found is not None
    assert verify_schedule(found).ok
    ends = found.src if collective == "broadcast" else found.dst
    assert found.num_chunks == 8
    assert np.bincount(ends, minlength=5).tolist() == [6, 6, 8, 6, 6]
    two = Problem(preset("star", gpus=2), collective, root=0)
    assert spread_over_boxes(two, SpreadShape(passed=1), apart=True) is None


def test_there_are_none_without_boxes() -> None:
    ring = preset("ring", gpus=6)
    assert rails(ring) is None
    for apart in (False, True):  # ranks of a ring do not all reach each other
        assert (
            spread_over_boxes(Problem(ring, "broadcast", root=0), SpreadShape(passed=2), apart=apart) is None
        )
    assert boxes_of(Problem(DEAD, "all_gather"), apart=False) is None
