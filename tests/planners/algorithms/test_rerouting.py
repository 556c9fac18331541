"""R2CCL's and OptCC's all-reduces around a box that lost bandwidth: exact loads, never below the optimum, and costs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.hierarchies import rerouting
from coppice.planners.algorithms.parts.slow_box import degraded_boxes
from coppice.planners.planning import plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes, scale_nodes, set_link_rate
from coppice.topology.presets import preset
from planners.algorithms.crossbar import check_cost, made, verified, with_ranks_shuffled

NAMES = ("r2ccl", "optcc")


def rate_of(name: str, topology: Topology, **given: int) -> Fraction:
    """Exact time of the busiest link per byte of M."""
    report = verified(made(name, Collective.ALL_REDUCE, topology, **given))
    assert report.inv_rate is not None
    assert not report.redundant
    return report.inv_rate


def stated(name: str, boxes: int, lost: Fraction) -> Fraction:
    """Steady state, as the module says, in M over the rate of a healthy box."""
    if name == "r2ccl":
        return 2 * Fraction(boxes - 1, boxes) + lost / (1 - lost)
    return max(1 / (1 - lost), Fraction(2 * boxes - 3, boxes - 1))


@pytest.mark.parametrize("lost", [Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(7, 10)], ids=str)
@pytest.mark.parametrize("gpus", [2, 3, 4, 7, 12])
def test_one_slow_gpu_among_many(gpus: int, lost: Fraction) -> None:
    """On a crossbar every GPU is a box: both are as fast as stated, and never slower than the ring."""
    topology = set_link_rate(
        preset("star", gpus=gpus, gb_per_s=10), f"gpu{gpus // 2}", "switch", 10 * (1 - lost)
    )
    ring = rate_of("ring", topology)
    assert ring == Fraction(2 * (gpus - 1), gpus) / (1 - lost) / 10
    for name in NAMES:
        # Of two, each is as slow as the other to its partner, and the rate that is left is that of a healthy pair.
        found = rate_of(name, topology, slow=gpus // 2 + 1)
        assert found == stated(name, gpus, lost) / 10, name
        assert bound(Problem(topology, "all_reduce")).inv_rate <= found <= ring
        assert gpus == 2 or found == rate_of(name, topology)  # found by itself
        assert gpus == 2 or found < ring


def test_half_of_the_rate_costs_little() -> None:
    """A GPU with half of its rate costs OptCC 1/(P - 1) of the healthy ring's time, and the ring all of it again."""
    gpus = 64
    slow = set_link_rate(preset("star", gpus=gpus, gb_per_s=1), "gpu9", "switch", "50%")
    healthy = Fraction(2 * (gpus - 1), gpus)
    assert rate_of("optcc", slow) / healthy - 1 == Fraction(1, gpus - 1)
    assert rate_of("ring", slow) == 2 * healthy


def lost_nic(name: str, boxes: int) -> Topology:
    nodes = {"nics": "node"} if name == "dgx-h100" else {}
    return remove_nodes(preset(name, boxes=boxes, **nodes), ["box1/nic3"])


def slow_nic(name: str, boxes: int) -> Topology:
    nodes = {"nics": "node"} if name == "dgx-h100" else {}
    return scale_nodes(preset(name, boxes=boxes, **nodes), {"box1/nic3": "30%"})


@pytest.mark.parametrize("fault", [lost_nic, slow_nic])
@pytest.mark.parametrize("boxes", [2, 3, 4])
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
def test_never_faster_than_the_optimum(machine: str, boxes: int, fault: object) -> None:
    assert callable(fault)
    topology = fault(machine, boxes)
    optimum = bound(Problem(topology, "all_reduce")).inv_rate
    ring = rate_of("nccl-ring", topology)
    for name in NAMES:
        assert optimum <= rate_of(name, topology) < ring
    if fault is slow_nic:
        assert rate_of("optcc", topology) < rate_of("two-level", topology)
    else:  # no partner of equal number is reached
        with pytest.raises(InputError, match="two-level does not fit"):
            rate_of("two-level", topology)


@pytest.mark.parametrize("boxes", [2, 3, 4])
def test_lost_nic_where_boxes_are_fast_inside(boxes: int) -> None:
    """On DGX A100 links between boxes are the busiest: rates are the stated ones, and better than balanced rings'."""
    for topology in (lost_nic("dgx-a100", boxes), with_ranks_shuffled(lost_nic("dgx-a100", boxes), seed=5)):
        balanced = 2 * Fraction(boxes - 1, boxes) / Fraction(7, 8) / 200
        if boxes > 2:
            for name in NAMES:
                found = rate_of(name, topology)
                assert found == stated(name, boxes, Fraction(1, 8)) / 200
                assert found < balanced


def test_our_plan_is_the_optimum_there() -> None:
    topology = lost_nic("dgx-a100", 3)
    found = plan(Problem(topology, "all_reduce"), ring=False).plan.body
    planned = verified(found).inv_rate
    assert planned == bound(Problem(topology, "all_reduce")).inv_rate
    assert planned < min(rate_of(name, topology) for name in NAMES)


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "fat-tree", "star"])
@pytest.mark.parametrize("name", NAMES)
def test_without_a_slow_box_they_are_plain(name: str, machine: str) -> None:
    topology = preset(machine, **({"boxes": 3} if machine.startswith("dgx") else {}))
    ours = made(name, Collective.ALL_REDUCE, topology)
    alone = {"group": 1} if machine == "star" else {}
    plain = made("two-level", Collective.ALL_REDUCE, topology, inside="at-once", **alone)
    assert isinstance(ours, Schedule)
    assert isinstance(plain, Schedule)
    for column in ("step", "src", "dst", "chunk", "op"):
        assert (getattr(ours, column) == getattr(plain, column)).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13])
def test_cost_on_a_crossbar(ranks: int) -> None:
    for slow in {1, (ranks + 1) // 2, ranks}:
        schedule = check_cost("optcc", Collective.ALL_REDUCE, ranks, slow=slow)
        assert len(np.unique(schedule.step)) == 4 * ranks - 6
        for lost in (1, 25, 60):
            schedule = check_cost("r2ccl", Collective.ALL_REDUCE, ranks, slow=slow, lost=lost)
            assert len(np.unique(schedule.step)) == 4 * ranks - 4


def test_the_slow_box_sends_and_receives_once() -> None:
    schedule = made("optcc", Collective.ALL_REDUCE, lost_nic("dgx-h100", 4))
    assert isinstance(schedule, Schedule)
    host = schedule.topology.host[schedule.topology.rank_nodes]
    src, dst, share = host[schedule.src], host[schedule.dst], schedule.chunk_share[schedule.chunk]
    whole = int(schedule.chunk_share.sum())
    assert int(share[(src == 1) & (dst != 1)].sum()) == int(share[(src != 1) & (dst == 1)].sum()) == whole
    others = {int(share[(src == box) & (dst != box)].sum()) for box in (0, 2, 3)}
    assert others == {whole * 5 // 3}


def test_gpus_share_the_nic_that_is_left() -> None:
    """The GPU without a NIC moves nothing between boxes; the other members have all of theirs."""
    case = AlgorithmCase(
        topology=lost_nic("dgx-h100", 3), collective=Collective.ALL_REDUCE, parameters={"slow": 0}
    )
    found = degraded_boxes(case, "optcc")
    assert (found.slow, found.group, found.lost) == (1, 8, Fraction(1, 8))
    assert found.left[3] == 0
    assert all(rate == found.full[0] for rail, rate in enumerate(found.left) if rail != 3)


@pytest.mark.parametrize("name", NAMES)
def test_refusals(name: str) -> None:
    star = preset("star", gpus=5)
    two = scale_nodes(star, {"gpu1": "50%", "gpu3": "70%"})
    with pytest.raises(InputError, match="one at most is slower than the others, found 2 of 5"):
        made(name, Collective.ALL_REDUCE, two)
    verified(made(name, Collective.ALL_REDUCE, two, slow=2))
    with pytest.raises(InputError, match="one of 5 boxes, found slow=6"):
        made(name, Collective.ALL_REDUCE, star, slow=6)
    with pytest.raises(InputError, match="less than 100 percent"):
        made("r2ccl", Collective.ALL_REDUCE, star, slow=1, lost=100)


def test_a_sum_that_stays_on_the_wrong_rail_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the step from the slow box's rail to the owner's, sums are incomplete."""
    topology = lost_nic("dgx-h100", 3)
    monkeypatch.setattr(rerouting._Pieces, "moved", property(lambda self: self.home < 0))
    for name in NAMES:
        body = made(name, Collective.ALL_REDUCE, topology)
        assert isinstance(body, Schedule)
        assert not verify_schedule(body).ok
