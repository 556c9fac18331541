"""The record of training steps: what is read from it is what a clock that is known says, by every kind of policy."""

from __future__ import annotations

import itertools
import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from coppice.errors import InputError
from coppice.training.torch.core.measure import (
    BACKWARD,
    BOUNDARY,
    COMMUNICATION,
    COMPUTE,
    FORWARD,
    GRADIENT,
    READ,
    SENT,
    WAITED,
    DeviceClock,
    StepEvent,
    StepItem,
    StepRecord,
    alike_steps,
    items_of,
    median_seconds,
    median_step,
    merged_steps,
    slowest_totals,
    total_seconds,
    whats,
)
from coppice.training.torch.data_parallel.recorder import tensor_times


class Clock(DeviceClock):
    """A clock that shows what it was set to."""

    at = 0.0

    def now(self) -> float:
        return self.at


def step(
    record: StepRecord, clock: Clock, at: float, events: list[tuple[float, str, tuple[int, ...]]]
) -> None:
    """A step from a time to the last of its events."""
    clock.at = at
    record.begin()
    for when, kind, places in events:
        clock.at = when
        record.mark(kind, *places)
    record.end()


def test_times_of_tensors_are_those_between_reads_and_between_gradients() -> None:
    clock = Clock()
    record = StepRecord(clock)
    # The first begins with the model; the last ends with the forward pass; those read at one time go to the last.
    events = [
        (12.0, READ, (1, 0)),
        (13.0, READ, (1, 2)),  # 1 is known already
        (17.0, BOUNDARY, ()),
        (18.0, GRADIENT, (2,)),
        (20.5, GRADIENT, (0,)),
        (21.0, GRADIENT, (1,)),
    ]
    step(record, clock, 10.0, events)
    assert tensor_times(record, 4) == ([1.0, 2.0, 4.0, 0.0], [2.5, 0.5, 1.0, 0.0])
    assert whats(record.last, GRADIENT) == [2, 0, 1]
    # Three units between iterations count for the first one that is read.
    step(record, clock, 24.0, [(when + 14, kind, places) for when, kind, places in events])
    assert tensor_times(record, 4) == ([1.0, 5.0, 4.0, 0.0], [2.5, 0.5, 1.0, 0.0])


def test_steps_that_are_not_whole_do_not_count() -> None:
    clock = Clock()
    record = StepRecord(clock)
    step(record, clock, 0.0, [(1.0, READ, (0,)), (2.0, GRADIENT, (0,))])  # no forward pass ended
    step(record, clock, 0.0, [(1.0, READ, (0,)), (2.0, BOUNDARY, ())])  # no gradient came
    step(record, clock, 0.0, [(2.0, BOUNDARY, ()), (3.0, GRADIENT, (0,))])  # nothing was read
    assert tensor_times(record, 1) == ([0.0], [0.0])
    clock.at = 5.0
    record.begin()
    record.mark(READ, 0)
    record.begin()  # the forward pass before it was of no training
    record.end(counts=False)
    assert len(record.steps) == 3
    assert whats(record.last, READ) == []


@pytest.mark.parametrize("seed", range(8))
def test_computation_and_exchanges_fill_a_step_without_gaps(seed: int) -> None:
    chance = random.Random(seed)
    clock = Clock()
    record = StepRecord(clock)
    clock.at = begin = chance.randrange(9)
    record.begin()
    on_network = []
    for number in range(chance.randrange(1, 7)):
        clock.at += chance.randrange(5)
        record.mark(SENT, number)
        on_network.append(chance.randrange(9))
        clock.at += chance.randrange(5)
        with record.timed(WAITED, number):
            record.add(StepEvent(COMMUNICATION, number, 0.0, on_network[-1]))
            clock.at += chance.randrange(5)
    clock.at += chance.randrange(5)
    record.end()
    items = items_of(record.steps[0])
    waited = sum(each.seconds for each in record.steps[0] if each.kind == WAITED)
    assert sum(each.seconds for each in items if each.kind == COMPUTE) == clock.at - begin - waited
    assert [each.seconds for each in items if each.kind == SENT] == on_network
    assert {first.kind == COMPUTE for first in items[::2]} == {True}
    assert {other.kind == COMPUTE for other in items[1::2]} == {False}


def test_steps_of_other_events_than_the_last_are_left_out_of_medians() -> None:
    clock = Clock()
    record = StepRecord(clock)
    for seconds, what in ((9.0, "other"), (1.0, "a"), (5.0, "a"), (3.0, "a")):
        clock.at = 0.0
        record.begin()
        clock.at = seconds
        record.mark(SENT, what)
        record.end()
    assert len(alike_steps(record)) == 3
    assert median_step(alike_steps(record))[0] == StepItem(COMPUTE, None, 3.0)


def test_ranks_with_other_exchanges_are_refused_and_gradients_may_come_in_another_order() -> None:
    def of(*places: int, exchange: str = "a") -> list[list[StepItem]]:
        return [[StepItem(SENT, exchange, 1.0), *(StepItem(GRADIENT, place) for place in places)]]

    merged = merged_steps([of(0, 1), of(1, 0)])
    assert [each.what for each in merged] == ["a", 0, 1]
    with pytest.raises(InputError, match="found others on rank 1"):
        merged_steps([of(0, 1), of(0, 1, exchange="b")])
    with pytest.raises(InputError, match="found others on rank 2"):
        merged_steps([of(0, 1), of(0, 1), of(0)])


def test_the_slowest_rank_of_each_step_counts() -> None:
    chance = random.Random(2)
    everyone = [[{name: chance.random() for name in "ab"} for _ in range(3)] for _ in range(4)]
    for name, seconds in slowest_totals(everyone).items():
        slowest = [max(everyone[rank][turn][name] for rank in range(4)) for turn in range(3)]
        assert seconds == sorted(slowest)[1]
    pieces = [
        StepEvent(COMPUTE, "a", 0.0, 2.0),
        StepEvent(FORWARD, "a", 0.0, 9.0),
        StepEvent(COMPUTE, "a", 3.0, 4.0),
    ]
    assert total_seconds(pieces) == {"a": 3.0}


def test_the_last_steps_are_kept_and_medians_are_by_kind() -> None:
    clock = Clock()
    record = StepRecord(clock, kept=2)
    for number, kind in itertools.product(range(4), (FORWARD, BACKWARD)):
        record.next()
        with record.timed(kind, "a"):
            clock.at += number + (kind == BACKWARD) / 2
    assert len(record.steps) == 2
    # What is under way counts: the last forward pass that is kept, and two backward passes.
    assert median_seconds(record.all_events(), FORWARD) == {"a": 3.0}
    assert median_seconds(record.all_events(), BACKWARD) == {"a": 3.0}
