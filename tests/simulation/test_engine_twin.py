"""The simulator against its plain twin, and what must hold in every timeline."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.schedule.messages import messages_of
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.simulation import Model, Sharing, Timeline
from coppice.simulation.simulator import run
from coppice.simulation.timeline import Reason
from reference.simulation import simulated
from simulation.strategies import models, schedules
from support.ideal import simulate

SIZES = st.sampled_from((0, 1, 999, 4000, 100_001))
NS = 1000.0


@settings(max_examples=150, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FIFO), st.integers(1, 4))
def test_turns_equal_the_twin_to_the_last_bit(
    schedule: Schedule, size: int, model: Model, pieces: int
) -> None:
    found = simulate(schedule, size, model=model, pieces=pieces)
    stepped = schedule.step.max(initial=-1) >= 0
    cut = in_pieces(schedule, pieces)
    expected = simulated(cut, size, model, pieces=1 if stepped and model.steps_bind else pieces)
    assert [message.bytes for message in expected] == found.num_bytes.tolist()
    assert [message.rows[0] for message in expected] == found.messages.first_row.tolist()
    assert [message.start / NS for message in expected] == found.start_us.tolist()
    assert [message.arrived / NS for message in expected] == found.arrived_us.tolist()
    assert [message.done / NS for message in expected] == found.finish_us.tolist()
    assert found.hops is not None
    assert [begin / NS for message in expected for begin in message.hops] == found.hops.begin_us.tolist()


@settings(max_examples=150, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FAIR))
def test_fair_shares_equal_the_twin(schedule: Schedule, size: int, model: Model) -> None:
    found, expected = simulate(schedule, size, model=model), simulated(schedule, size, model)
    assert found.start_us.tolist() == pytest.approx([message.start / NS for message in expected], abs=1e-6)
    assert found.finish_us.tolist() == pytest.approx([message.done / NS for message in expected], abs=1e-6)
    assert found.hops is not None
    assert found.hops.begin_us.tolist() == pytest.approx([m.hops[0] / NS for m in expected], abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FIFO))
def test_a_link_serves_one_message_at_a_time(schedule: Schedule, size: int, model: Model) -> None:
    """So it carries no more than its rate allows in any interval, and a burst on top of it."""
    found = simulate(schedule, size, model=model)
    carried = np.zeros(found.topology.num_links)
    for link in range(found.topology.num_links):
        message, begin, end = found.passages(link)
        assert (begin[1:] >= end[:-1] - 1e-8).all()
        carried[link] = found.num_bytes[message].sum()
        rate = float(found.topology.gb_per_s(link))
        alone = found.num_bytes[message] / rate / NS
        if model.burst_bytes:
            assert (end - begin <= alone + 1e-8).all()
            sums = np.concatenate([[0], np.cumsum(found.num_bytes[message])])
            through = sums[1:][None, :] - sums[:-1][:, None]  # [first, last]
            allowed = model.burst_bytes + rate * NS * (end[None, :] - begin[:, None])
            assert (np.triu(through - allowed) <= 1e-3).all()
        else:
            assert end - begin == pytest.approx(alone, abs=1e-8)
        assert (end <= found.arrived_us[message] - found.topology.latency_us[link] + 1e-8).all()
        assert (begin >= found.start_us[message]).all()
    assert carried.tolist() == found.link_bytes.tolist()


@settings(max_examples=200, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FAIR))
def test_fair_rates_keep_to_every_link_and_carry_every_byte(
    schedule: Schedule, size: int, model: Model
) -> None:
    messages = messages_of(schedule, size)
    found = run(messages, model=model, collective=schedule.collective, size_bytes=size, keep_rates=True)
    topology, rates = found.topology, found.rates
    assert rates is not None
    uses = np.zeros((messages.count, topology.num_links), dtype=bool)
    latency = np.zeros(messages.count)
    for message, route in enumerate(messages.route.tolist()):
        links = messages.routes.links[
            messages.routes.link_start[route] : messages.routes.link_start[route + 1]
        ]
        uses[message, links] = True
        latency[message] = topology.latency_us[links].sum()
    # Buffered, the overhead (with what any number of workers take) comes behind the links.
    handled = 0.0 if model.workers else model.send_us + model.receive_us
    end = found.arrived_us - latency - (model.overhead_us + handled if model.buffered else 0.0)
    moments = np.unique(np.concatenate([rates.since_us, end]))
    moved = np.zeros(messages.count)
    for begin, stop in pairwise(moments.tolist()):
        rate = np.zeros(messages.count)
        for message, since, value in zip(rates.message, rates.since_us, rates.gb_per_s, strict=True):
            if since <= begin and end[message] > begin + 1e-8:
                rate[message] = value
        assert (rate @ uses <= topology.capacity / topology.denominator * (1 + 1e-9)).all()
        moved += rate * (stop - begin) * NS
    assert moved == pytest.approx(messages.num_bytes, abs=1e-3)


@settings(max_examples=200, deadline=None)
@given(schedules(), SIZES, models())
def test_the_critical_path_is_the_whole_time(schedule: Schedule, size: int, model: Model) -> None:
    found = simulate(schedule, size, model=model)
    path = found.critical_path()
    assert bool(path) == bool(found.messages.count)
    if not path:
        return
    assert path[0].begin_us == 0
    assert path[0].reason is Reason.NONE
    assert path[-1].end_us == found.time_us
    for stage, following in pairwise(path):
        assert stage.end_us == following.begin_us
        assert stage.begin_us <= stage.end_us
        assert following.reason is not Reason.NONE
        assert (following.link >= 0) == (following.reason is Reason.LINK)
    # A dependency ends when the message before arrives or is done; an engine is freed just then as well.
    for stage, following in pairwise(path):
        if following.reason in (Reason.DEPENDENCY, Reason.ENGINE):
            ends = (found.arrived_us[stage.message], found.finish_us[stage.message])
            # Workers are free, and buffering senders go on, before a message has arrived.
            early = model.buffered or bool(model.workers)
            assert following.begin_us in ends or (early and following.begin_us <= max(ends))


@settings(max_examples=50, deadline=None)
@given(schedules(), SIZES, models())
def test_the_same_input_gives_the_same_columns(schedule: Schedule, size: int, model: Model) -> None:
    first, second = simulate(schedule, size, model=model), simulate(schedule, size, model=model)
    for name in ("start_us", "arrived_us", "finish_us", "cause", "reason", "link_busy_us", "link_bytes"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert columns_of(first) == columns_of(second)


def columns_of(timeline: Timeline) -> list[bytes]:
    assert timeline.hops is not None
    return [timeline.hops.begin_us.tobytes(), timeline.hops.behind.tobytes()]
