"""Deadlock freedom: the theorem, the search for cycles, and an executor that knows of neither."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.schedule.verification.transfers import find_deadlock, num_connections, verify_schedule
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from reference.fifo_run import fifo_run
from reference.payloads import expected
from schedule.builders import make_schedule, ring_forest

Row = tuple[int, int, int, int, tuple[int, ...] | None, int]
COPY, ADD = 0, 1


def complete(n: int) -> Topology:
    links = [Link(src=f"g{i}", dst=f"g{j}", gb_per_s=Fraction(1)) for i in range(n) for j in range(i)]
    return Topology.of(f"complete{n}", [Node(id=f"g{i}") for i in range(n)], links)


def broadcast(
    rows: Sequence[Row], *, chunks: int = 1, after: Sequence[Sequence[int]] | None = None
) -> Schedule:
    """Rows of a broadcast by rank 0 of three."""
    return make_schedule(
        complete(3), Collective.BROADCAST, rows, chunk_slot=[0] * chunks, root=0, after=after
    )


def stands_still(schedule: Schedule) -> bool:
    """Some run with one slot per connection does not come to an end."""
    return not all(fifo_run(schedule, slots=1, seed=seed)[0] for seed in range(3))


def test_a_row_that_waits_for_a_later_one_of_its_connection() -> None:
    rows: list[Row] = [(0, 0, 1, COPY, None, -1), (1, 0, 1, COPY, None, -1), (1, 1, 2, COPY, None, -1)]
    rows.append((0, 1, 2, COPY, None, -1))
    good = broadcast(rows, chunks=2, after=[(), (), (), (2,)])
    assert find_deadlock(good) is None
    assert verify_schedule(good).deadlock_free
    bad = broadcast(rows, chunks=2, after=[(2,), (), (), ()])
    told = find_deadlock(bad)
    assert told is not None
    assert "sending transfer 0 waits for receiving transfer 2 (its `after`)" in told
    assert "sending transfer 1 (it must be sent first)" in told
    assert "sending transfer 0 (the same connection, in row order)" in told
    report = verify_schedule(bad)
    assert told in report.failures
    assert report.deadlock_free is False
    assert stands_still(bad)
    assert not stands_still(good)


def test_two_messages_of_a_step_that_wait_for_a_part_of_each_other() -> None:
    """Rows 0 and 3 are one message, rows 1 and 2 another: either may follow the other, but not both."""
    rows: list[Row] = [
        (0, 0, 1, COPY, None, 0),
        (0, 0, 2, COPY, None, 0),
        (1, 0, 2, COPY, None, 0),
        (1, 0, 1, COPY, None, 0),
    ]
    one_way = broadcast(rows, chunks=2, after=[(), (0,), (), ()])
    assert find_deadlock(one_way) is None
    assert verify_schedule(one_way).ok
    assert not stands_still(one_way)
    both_ways = broadcast(rows, chunks=2, after=[(), (0,), (), (2,)])
    told = find_deadlock(both_ways)
    assert told is not None
    assert "sending transfer 0 waits for receiving transfer 1 (its `after`)" in told
    assert not verify_schedule(both_ways).ok
    assert stands_still(both_ways)


def test_steps_against_the_order_of_rows() -> None:
    rows: list[Row] = [(0, 0, 1, COPY, None, 1), (0, 1, 2, COPY, None, 0)]
    told = find_deadlock(broadcast(rows))
    assert told is not None
    assert "the end of step 0 at rank 1" in told
    assert stands_still(broadcast(rows))
    harmless: list[Row] = [(0, 0, 1, COPY, None, 1), (0, 0, 2, COPY, None, 0)]
    report = verify_schedule(broadcast(harmless))
    assert report.deadlock_free
    assert not report.ok  # rows come in the order of steps all the same
    assert not stands_still(broadcast(harmless))


def test_one_slot_may_be_too_few_where_two_are_enough() -> None:
    """Transfer 0 waits for what can only come once transfer 2 has left, for which the first slot must be free."""
    rows: list[Row] = [
        (0, 1, 2, COPY, None, -1),
        (0, 0, 1, COPY, None, -1),
        (1, 0, 1, COPY, None, -1),
        (1, 2, 0, COPY, None, -1),
    ]
    schedule = make_schedule(
        complete(3), Collective.ALL_REDUCE, rows, chunk_slot=[0, 0], after=[(3,), (), (), ()]
    )
    told = find_deadlock(schedule)
    assert told is not None
    assert "sending transfer 2 waits" in told or "for sending transfer 2" in told
    assert "(the only slot of their connection)" in told
    assert stands_still(schedule)
    assert fifo_run(schedule, slots=2, seed=0)[0]


def random_schedule(seed: int, *, broken: bool) -> Schedule:
    """Any rows that can be written down; a broken one may wait for anything."""
    rng = random.Random(seed)
    ranks, chunks, count = rng.randint(2, 4), rng.randint(1, 3), rng.randint(1, 9)
    steps = [-1] * count if rng.random() < 0.5 else sorted(rng.randint(0, 3) for _ in range(count))
    rows: list[Row] = []
    after: list[list[int]] = []
    for row in range(count):
        src, dst = rng.sample(range(ranks), 2)
        rows.append((rng.randrange(chunks), src, dst, rng.randint(0, 1), None, steps[row]))
        earlier = [other for other in range(row) if steps[row] < 0 or steps[other] < steps[row]]
        if broken:
            earlier = [other for other in range(count) if other != row]
        after.append([other for other in earlier if rng.random() < 0.15])
    schedule = make_schedule(
        complete(ranks), Collective.ALL_REDUCE, rows, chunk_slot=sorted([0] * chunks), after=after
    )
    if broken and rng.random() < 0.5:
        shuffled = steps[:]
        rng.shuffle(shuffled)
        schedule = replace(schedule, step=np.array(shuffled, dtype=np.int32))
    return schedule


@pytest.mark.parametrize("seed", range(150))
def test_well_formed_schedules_always_come_to_an_end(seed: int) -> None:
    schedule = random_schedule(seed, broken=False)
    assert find_deadlock(schedule) is None
    for slots in (1, 2):
        assert fifo_run(schedule, slots=slots, seed=seed)[0]


def test_a_cycle_is_found_exactly_where_runs_stand_still() -> None:
    standing = 0
    for seed in range(400):
        schedule = random_schedule(seed, broken=True)
        found = find_deadlock(schedule) is not None
        ended = [fifo_run(schedule, slots=1, seed=run)[0] for run in range(2)]
        assert ended == [not found] * 2, seed
        standing += found
        if not found:
            assert fifo_run(schedule, slots=3, seed=seed)[0]
    assert 100 < standing < 300


def catalogue() -> list[tuple[str, Schedule]]:
    """Schedules of all algorithms among few ranks, and of forests."""
    found = [
        (f"forest-{collective}", lower(ring_forest(4, collective)))
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
    ]
    for (name, collective), entry in algorithms().items():
        for ranks in (3, 4):
            root = ranks - 1 if collective.rooted else None
            case = case_of(
                entry, Problem(topology=preset("star", gpus=ranks), collective=collective, root=root)
            )
            if entry.refusal(case) is None:
                body = make(entry, case)
                if isinstance(body, Schedule):
                    found.append((f"{name}-{collective}-{ranks}", body))
    return found


def test_plans_end_right_in_whatever_order_connections_allow() -> None:
    schedules = catalogue()
    assert len(schedules) > 10
    for name, schedule in schedules:
        if schedule.num_transfers > 64:
            continue
        ended, buffers = fifo_run(replace(schedule, ordered=False), slots=1, seed=len(name))
        assert ended, name
        wanted = expected(replace(schedule, ordered=False))
        assert {place: buffers[place] for place in wanted} == wanted, name


def test_pieces_keep_a_schedule_free_of_deadlock() -> None:
    for _, schedule in catalogue()[3:]:
        assert find_deadlock(in_pieces(schedule, 3)) is None


def test_connections_are_counted() -> None:
    schedule = lower(ring_forest(4))
    pairs = set(zip(schedule.src.tolist(), schedule.dst.tolist(), schedule.path.tolist(), strict=True))
    assert num_connections(schedule) == len(pairs) == verify_schedule(schedule).checked["connections"]
    empty = make_schedule(complete(2), Collective.ALL_REDUCE, [], chunk_slot=[])
    assert num_connections(empty) == 0
