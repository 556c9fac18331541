"""Two levels of one's own choice: steps, bytes on rails and in boxes, roots, and what the parts of others are."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.schedule.schedule import Op, Schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset
from planners.algorithms.crossbar import check_cost, made, verified

ALL = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
STEPS = {
    "direct": lambda size: size - 1,
    "ring": lambda size: size - 1,
    "circulant": lambda size: (size - 1).bit_length(),
}


@pytest.mark.parametrize("collective", ALL)
@pytest.mark.parametrize(("inside", "between"), list(product(STEPS, STEPS)))
def test_steps_of_both_levels(collective: Collective, inside: str, between: str) -> None:
    for group, groups in ((1, 5), (4, 1), (2, 3), (3, 2), (5, 3), (4, 4), (6, 7)):
        schedule = check_cost(
            "two-level", collective, group * groups, group=group, inside=inside, between=between
        )
        phases = 2 if collective is Collective.ALL_REDUCE else 1
        steps = STEPS[inside](group) + STEPS[between](groups)
        assert len(np.unique(schedule.step)) == phases * steps
        # A phase moves (g - 1) m blocks of every rank inside its group, and m - 1 between groups.
        between_groups = schedule.src // group != schedule.dst // group
        assert int(between_groups.sum()) == phases * group * groups * (groups - 1)
        assert (schedule.src % group == schedule.dst % group)[between_groups].all()


SHORT = ("at-once", "whole")


@pytest.mark.parametrize(
    ("inside", "between"), [*product(SHORT, SHORT), ("ring", "whole"), ("whole", "circulant")]
)
def test_a_level_of_an_all_reduce_in_one_step(inside: str, between: str) -> None:
    for group, groups in ((1, 5), (4, 1), (2, 3), (3, 2), (5, 3), (4, 4)):
        schedule = check_cost(
            "two-level", Collective.ALL_REDUCE, group * groups, group=group, inside=inside, between=between
        )
        steps = sum(
            (size > 1)
            if pattern == "whole"
            else 2 * (size > 1 if pattern == "at-once" else STEPS[pattern](size))
            for pattern, size in ((inside, group), (between, groups))
        )
        assert len(np.unique(schedule.step)) == steps
        across = schedule.src // group != schedule.dst // group
        assert (schedule.src % group == schedule.dst % group)[across].all()
        if inside == between == "whole":
            assert schedule.num_chunks == 1
            assert schedule.num_transfers == group * groups * (group - 1 + groups - 1)


def test_whole_buffers_take_fewest_hops_on_rails() -> None:
    """From any rank to any other on a rail-only network is a hop inside a box and one between boxes at least."""
    topology = preset("dgx-h100", boxes=4)
    hops = made("two-level", Collective.ALL_REDUCE, topology, inside="whole", between="whole")
    both = made("two-level", Collective.ALL_REDUCE, topology, inside="at-once", between="at-once")
    model = model_of(None)
    assert fastest(hops, 1024, model=model).time_us < 0.8 * fastest(both, 1024, model=model).time_us
    assert fastest(hops, 2**20, model=model).time_us > fastest(both, 2**20, model=model).time_us


def test_rings_are_those_of_the_torus() -> None:
    for collective in ALL:
        ours = check_cost("two-level", collective, 24, group=4, inside="ring", between="ring")
        torus = check_cost("2d-torus", collective, 24, columns=4)
        for column in ("step", "src", "dst", "chunk", "op"):
            assert (getattr(ours, column) == getattr(torus, column)).all()


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize(("inside", "tree"), list(product(STEPS, ["binomial", "chain"])))
def test_from_any_root_over_all_rails(collective: Collective, inside: str, tree: str) -> None:
    for group, groups, segments in ((1, 6, 2), (5, 1, 1), (2, 2, 3), (3, 5, 1), (4, 4, 2), (8, 3, 4)):
        topology = preset("star", gpus=group * groups)
        for root in {0, group * groups - 1, group * groups // 2}:
            body = made(
                "two-level",
                collective,
                topology,
                root,
                group=group,
                inside=inside,
                between=tree,
                segments=segments,
            )
            assert isinstance(body, Schedule)
            report = verified(body, root)
            assert not report.redundant
            assert body.num_transfers == group * segments * (group * groups - 1)  # every part comes once
            across = body.src // group != body.dst // group
            chunk, count = np.unique(body.chunk[across], return_counts=True)
            assert len(chunk) == (group * segments if groups > 1 else 0)
            assert (count == groups - 1).all()
            assert (body.src % group == body.dst % group)[across].all()
            high = groups - 1 if tree == "chain" else (groups - 1).bit_length()
            gathered = 0 if group == 1 else 1 if inside == "direct" else STEPS[inside](group)
            assert len(np.unique(body.step)) == (group > 1) + high + gathered + segments - 1
            assert (body.op == (Op.REDUCE if collective is Collective.REDUCE else Op.COPY)).all()


def test_every_nic_of_the_root_sends_its_share() -> None:
    """On boxes with a NIC for each GPU every rail carries M/8 for each other box, and the root alone would send all."""
    boxes = preset("dgx-h100", boxes=4)
    body = made("two-level", Collective.BROADCAST, boxes, 3)
    assert isinstance(body, Schedule)
    report = verified(body, 3)
    binomial = made("hierarchical", Collective.BROADCAST, boxes, 3)
    assert isinstance(binomial, Schedule)
    alone = verified(binomial, 3)
    assert report.inv_rate is not None
    assert alone.inv_rate is not None
    assert report.inv_rate < alone.inv_rate / 4
    assert report.inv_rate >= Fraction(2, 8 * 50)  # two children of a member, M/8 each, over 50 GB/s
