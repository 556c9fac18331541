"""All-to-alls over rails: verified, with as few sends as there can be, and near the least time where others are not."""

from __future__ import annotations

import pytest

from coppice.bounds.problem import Problem
from coppice.bounds.sizes.priced import sends
from coppice.planners.exchanges_over_rails import WAYS, Way, exchanged_on_rails
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset

RAILS = Problem(preset("dgx-h100", boxes=4), "all_to_all")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "boxes"), [("dgx-h100", 4), ("dgx-h100", 3), ("dgx-a100", 3)])
def test_they_bring_every_block(way: Way, name: str, boxes: int) -> None:
    found = exchanged_on_rails(Problem(preset(name, boxes=boxes), "all_to_all"), way)
    assert found is not None
    verify_schedule(found).require_ok()


def test_blocks_are_sent_as_rarely_as_can_be() -> None:
    """But for those that one member of a box carries for all."""
    least = int(sends(RAILS) * RAILS.topology.num_ranks)
    counts = {way: exchanged_on_rails(RAILS, way).num_transfers for way in WAYS}
    assert counts["rail first"] == counts["both ways"] == least < counts["straight"]


def test_few_messages_carry_them() -> None:
    """A rank sends to 3 other boxes and 7 other members once each; all that it sends in a step goes together."""
    found = exchanged_on_rails(RAILS, "rail first")
    assert found is not None
    messages = set(zip(found.step.tolist(), found.src.tolist(), found.dst.tolist(), strict=True))
    assert len(messages) == 32 * (3 + 7)


@pytest.mark.parametrize(("size", "way"), [(2**10, "both ways"), (2**16, "rail first"), (2**18, "both ways")])
def test_they_take_next_to_the_least_time(size: int, way: Way) -> None:
    found = exchanged_on_rails(RAILS, way)
    assert found is not None
    time_us = fastest(found, size, model=model_of(None)).time_us
    assert 1 - 1e-7 <= time_us / LeastTimes(RAILS, model_of(None)).at(size).time_us < 1.03


def test_there_are_none_without_rails_for_all() -> None:
    dead = remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"])
    for topology in (dead, preset("dgx-h100"), preset("ring", gpus=4)):
        assert all(exchanged_on_rails(Problem(topology, "all_to_all"), way) is None for way in WAYS)
    two = Problem(preset("dgx-h100", boxes=2), "all_to_all")
    assert exchanged_on_rails(two, "straight") is None
    assert exchanged_on_rails(Problem(two.topology, "all_gather"), "rail first") is None
