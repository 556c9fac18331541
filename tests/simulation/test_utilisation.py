"""Use of links over time, and the conservation check that finds what breaks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.messages import messages_of
from coppice.simulation.model import Model, Sharing
from coppice.simulation.simulator import run
from coppice.simulation.timeline import MessageHops, Timeline
from coppice.simulation.utilisation import busiest_links, check_conservation, link_utilisation, passages
from coppice.topology import fat_tree, preset, star
from simulation.cases import ring_on, shift_on
from support.ideal import simulate

FREE = Model(overhead_us=0)


def fair_timeline(size: int = 2**22) -> Timeline:
    body = ring_on(fat_tree(leaves=4, gpus_per_leaf=2, spines=2, oversubscription=2, gb_per_s=8))
    model = Model(sharing=Sharing.FAIR)
    return run(
        messages_of(body, size, pieces=2),
        model=model,
        collective=body.collective,
        size_bytes=size,
        keep_rates=True,
    )


def fifo_timeline() -> Timeline:
    problem = Problem(topology=preset("mi250", boxes=2), collective=Collective.ALL_GATHER)
    return simulate(plan_forest(problem), 2**24, pieces=3)


def test_one_message_by_hand() -> None:
    """1,000 bytes at 1 GB/s from 3 us on: in use for 1 us of 8 bins of half a microsecond."""
    body = shift_on(star(2), 1)
    messages = replace(messages_of(body, 2000), due_us=np.array([3.0, 3.0]))
    timeline = run(messages, model=FREE, collective=body.collective, size_bytes=2000)
    shares = link_utilisation(passages(timeline), 0, until_us=4.0, bins=8)
    assert shares.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert link_utilisation(passages(timeline), 0, from_us=3.75, until_us=4.75, bins=2).tolist() == [0.5, 0]
    assert link_utilisation(passages(timeline), 0, until_us=0, bins=2).tolist() == [0, 0]


@pytest.mark.parametrize("timeline", [fifo_timeline(), fair_timeline()], ids=list(Sharing))
def test_shares_add_up_to_what_links_carried(timeline: Timeline) -> None:
    check_conservation(timeline)
    found = passages(timeline)
    for link in range(timeline.topology.num_links):
        shares = link_utilisation(found, link, until_us=timeline.time_us, bins=16)
        assert shares.min() >= -1e-9
        assert shares.max() <= 1 + 1e-6
        assert shares.mean() == pytest.approx(timeline.utilisation(link), abs=1e-6)
    use = [timeline.utilisation(link) for link in busiest_links(timeline, 1000)]
    assert use == sorted(use, reverse=True)
    assert use[0] == max(timeline.utilisation(link) for link in range(timeline.topology.num_links))


def moved(timeline: Timeline, hop: int, by_us: float) -> Timeline:
    """The timeline with one passage shifted."""
    assert timeline.hops is not None
    begin = timeline.hops.begin_us.copy()
    begin[hop] += by_us
    return replace(
        timeline, hops=MessageHops(start=timeline.hops.start, begin_us=begin, behind=timeline.hops.behind)
    )


def test_what_breaks_conservation_is_found() -> None:
    timeline = fifo_timeline()
    found = passages(timeline)
    # Two messages that follow each other on a link without a gap: the second one comes too early.
    close = np.flatnonzero(
        (found.link[1:] == found.link[:-1]) & (found.begin_us[1:] <= found.end_us[:-1] + 1e-9)
    )
    link, message = int(found.link[close[0] + 1]), int(found.message[close[0] + 1])
    routes, hops = timeline.messages.routes, timeline.hops
    assert hops is not None
    route = int(timeline.messages.route[message])
    links = routes.links[routes.link_start[route] : routes.link_start[route + 1]].tolist()
    hop = int(hops.start[message]) + links.index(link)
    with pytest.raises(CheckError):
        check_conservation(moved(timeline, hop, -0.05))
    with pytest.raises(CheckError, match="between its start and arrival"):
        check_conservation(moved(timeline, len(hops.begin_us) - 1, 1e9))
    lost = timeline.link_bytes.copy()
    lost[link] -= 100
    with pytest.raises(CheckError, match="bytes over"):
        check_conservation(replace(timeline, link_bytes=lost))


def test_rates_above_a_link_are_found() -> None:
    timeline = fair_timeline()
    rates = timeline.rates
    assert rates is not None
    fast = replace(rates, gb_per_s=rates.gb_per_s * 1.01)
    with pytest.raises(CheckError, match="at most the rate of"):
        check_conservation(replace(timeline, rates=fast))
    slow = replace(rates, gb_per_s=rates.gb_per_s * 0.99)
    with pytest.raises(CheckError, match="bytes over"):
        check_conservation(replace(timeline, rates=slow))


def test_what_was_not_kept_is_said() -> None:
    body = shift_on(star(2), 1)
    bare = run(messages_of(body, 8), model=FREE, collective=body.collective, size_bytes=8, keep_hops=False)
    with pytest.raises(InputError, match="keep_hops"):
        passages(bare)
    fair = run(
        messages_of(body, 8), model=Model(sharing=Sharing.FAIR), collective=body.collective, size_bytes=8
    )
    with pytest.raises(InputError, match="keep_rates"):
        passages(fair)
