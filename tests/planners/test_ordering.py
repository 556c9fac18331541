"""Orders of transfers: the same transfers, what has most to follow first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.planners.choice import from_catalogue
from coppice.planners.ordering import (
    by_longest_way,
    held_back,
    held_back_early,
    longest_ways,
    pipelined,
    reordered,
    turned_round,
    without_steps,
)
from coppice.planners.planning import plan
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Op, Schedule, in_pieces, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset


def rows_of(name: str, collective: str, **more: object) -> Schedule:
    problem = Problem(
        preset(name, **more), collective, root=0 if collective in ("broadcast", "reduce") else None
    )
    body = plan(problem, ring=False).plan.forest
    assert body is not None
    return lower(body)


CASES = [
    ("dgx-1v", "all_gather", {}),
    ("dgx-1v", "all_reduce", {}),
    ("torus", "reduce_scatter", {"dims": (3, 3)}),
    ("dgx-a100", "all_reduce", {"boxes": 2}),
    ("mi250", "broadcast", {}),
    ("ring", "reduce", {"gpus": 5}),
]


@pytest.mark.parametrize(("name", "collective", "more"), CASES)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_any_order_by_longest_ways_does_the_same(
    name: str, collective: str, more: dict[str, object], data: st.DataObject
) -> None:
    rows = rows_of(name, collective, **more)
    lengths = st.floats(0.01, 100, allow_nan=False)
    duration = np.array(data.draw(st.lists(lengths, min_size=8, max_size=8)))
    ways = longest_ways(rows, duration[np.arange(rows.num_transfers) * 7 % 8])
    pieces = data.draw(st.integers(1, 3))
    found = by_longest_way(rows, ways, pieces, pieces_first=data.draw(st.booleans()))
    assert found.num_transfers == pieces * rows.num_transfers
    assert found.num_chunks == pieces * rows.num_chunks
    assert verify_schedule(found).ok
    assert verify_schedule(found).inv_rate == verify_schedule(rows).inv_rate


@pytest.mark.parametrize(("name", "collective", "more"), CASES)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_rows_wait_for_the_last_receipt_by_each_link_a_little_before_they_are_due(
    name: str, collective: str, more: dict[str, object], data: st.DataObject
) -> None:
    rows = rows_of(name, collective, **more)
    # Times at which rows can be carried out: some after the row before them.
    steps = np.array(data.draw(st.lists(st.integers(0, 4), min_size=8, max_size=8)))
    due = np.cumsum(steps[np.arange(rows.num_transfers) * 5 % 8]).astype(float)
    done = due + 1.0 + np.arange(rows.num_transfers) % 3
    early = data.draw(st.sampled_from([0.0, 0.5, 2.0]))
    found = held_back(rows, due, done, links=1, early_us=early)
    order = np.argsort(due, kind="stable")
    due, done = due[order], done[order]
    by_link = found.path_nodes[found.path_start[found.path + 1] - 2]
    for row in range(found.num_transfers):
        own = found.after[found.after_start[row] : found.after_start[row + 1]]
        last: dict[int, float] = {}
        for other in np.flatnonzero((found.dst == found.src[row]) & (done <= due[row] - early)):
            last[by_link[other]] = max(last.get(by_link[other], 0.0), done[other])
        for other in own:
            assert found.dst[other] == found.src[row]
            assert done[other] == last[by_link[other]]
        # What is sent on it waits for anyhow, and nothing waits for what comes later in the order.
        waited = {by_link[other] for other in own}
        for link in set(last) - waited:
            latest = (found.dst == found.src[row]) & (by_link == link) & (done == last[link])
            same = found.chunk == found.chunk[row]
            assert any(same[other] or other >= row for other in np.flatnonzero(latest))


def test_the_earlier_rows_may_be_the_less_they_wait() -> None:
    rows = rows_of("dgx-a100", "all_gather", boxes=2)
    due = np.arange(rows.num_transfers, dtype=float)
    found = list(held_back_early(rows, due, due + 100.0))
    assert all(verify_schedule(each).ok for each in found)
    waiting = [int((np.diff(each.after_start) > 0).sum()) for each in found]
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[0] > waiting[-1] > 0


STEPPED = [
    ("dgx-a100", {"boxes": 2}, "all_reduce", "two-level", {"inside": "at-once", "between": "whole"}),
    ("star", {"gpus": 8}, "all_reduce", "recursive-doubling", {}),
    ("star", {"gpus": 6}, "reduce_scatter", "butterfly", {}),
    ("star", {"gpus": 5}, "broadcast", "binomial", {}),
]


@pytest.mark.parametrize(("name", "more", "collective", "algorithm", "parameters"), STEPPED)
@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_pipelines_do_the_same_with_any_lag(
    name: str,
    more: dict[str, object],
    collective: str,
    algorithm: str,
    parameters: dict[str, str],
    lag: int,
    pieces: int,
) -> None:
    problem = Problem(preset(name, **more), collective, root=0 if collective == "broadcast" else None)
    rows = routed(from_catalogue(problem, algorithm, parameters).body)
    found = pipelined(rows, pieces, lag)
    assert verify_schedule(found).ok
    assert found.num_transfers == pieces * rows.num_transfers
    steps = int(rows.step.max()) + 1
    assert sorted(set(found.step.tolist())) == list(range(pieces * steps))
    turns = sorted((piece + lag * step, step, piece) for piece in range(pieces) for step in range(steps))
    for number, (_, step, piece) in enumerate(turns):
        own = found.step == number
        assert (found.chunk[own] % pieces == piece).all()
        assert sorted(found.dst[own].tolist()) == sorted(rows.dst[rows.step == step].tolist())
    # Ranks wait for receipts of earlier steps only, whenever rows are due, and cut further each piece for its own.
    due = np.arange(found.num_transfers) * 7.0 % 40 + 10 * found.step
    bound = held_back(found, due, due + 9.0)
    waiting = np.repeat(np.arange(bound.num_transfers), np.diff(bound.after_start))
    assert (bound.step[bound.after] < bound.step[waiting]).all()
    assert (bound.dst[bound.after] == bound.src[waiting]).all()
    assert len(waiting) or pieces == 1
    assert verify_schedule(bound).ok
    halves = in_pieces(bound, 2)
    assert len(halves.after) == 2 * len(bound.after)
    assert verify_schedule(halves).ok
    waiting = np.repeat(np.arange(halves.num_transfers), np.diff(halves.after_start))
    assert (halves.chunk[halves.after] % 2 == halves.chunk[waiting] % 2).all()
    assert (halves.dst[halves.after] == halves.src[waiting]).all()


def test_rows_with_steps_wait_for_the_last_receipt_of_earlier_steps() -> None:
    problem = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    body = from_catalogue(problem, "two-level", {"inside": "at-once", "between": "whole"}).body
    rows = pipelined(routed(body), 3, 2)
    due = np.arange(rows.num_transfers) * 13.0 % 101 + rows.step
    done = due + 3.0 + np.arange(rows.num_transfers) * 0.01
    found = held_back(rows, due, done)
    order = np.lexsort((due, rows.step))
    due, done = due[order], done[order]
    for row in range(found.num_transfers):
        before = (found.dst == found.src[row]) & (found.step < found.step[row]) & (done <= due[row])
        before = np.flatnonzero(before)
        last = before[np.argmax(done[before])] if len(before) else -1
        wanted = [last] if len(before) and found.chunk[last] != found.chunk[row] else []
        assert found.after[found.after_start[row] : found.after_start[row + 1]].tolist() == wanted


def test_an_order_that_is_none_fails() -> None:
    """What goes before it is there is found: orders are judged, and not believed."""
    rows = rows_of("dgx-1v", "all_gather")
    assert not verify_schedule(reordered(rows, np.arange(rows.num_transfers)[::-1])).ok


@pytest.mark.parametrize(("name", "collective", "more"), CASES)
def test_longest_ways_are_those_of_all_paths(name: str, collective: str, more: dict[str, object]) -> None:
    rows = rows_of(name, collective, **more)
    duration = 1.0 + np.arange(rows.num_transfers) % 5
    ways = longest_ways(rows, duration)
    columns = list(zip(rows.chunk.tolist(), rows.src.tolist(), rows.dst.tolist(), strict=True))
    for row, (chunk, src, dst) in enumerate(columns):
        later = range(row + 1, len(columns))
        follow = max((ways[j] for j in later if columns[j][:2] == (chunk, dst)), default=0.0)
        overwrite = max(
            (ways[j] for j in later if (columns[j][0], columns[j][2]) == (chunk, src)), default=0.0
        )
        assert ways[row] == pytest.approx(max(duration[row] + follow, overwrite), abs=1e-4)


def test_turned_round_twice_is_what_it_was() -> None:
    rows = rows_of("dgx-a100", "all_gather", boxes=2)
    back = turned_round(rows)
    assert (back.op == Op.REDUCE).all()
    again = turned_round(back)
    for name in ("src", "dst", "chunk", "op", "path", "path_start", "path_nodes"):
        assert np.array_equal(getattr(again, name), getattr(rows, name)), name
    assert again.topology.capacity.tolist() == rows.topology.capacity.tolist()
    scattered = replace(back, collective=rows.collective.__class__.REDUCE_SCATTER)
    assert verify_schedule(scattered).ok


def test_exchanges_of_what_both_change_need_their_steps() -> None:
    problem = Problem(preset("star", gpus=4), "all_reduce")
    doubling, ring = (from_catalogue(problem, name).body for name in ("recursive-doubling", "ring"))
    assert isinstance(doubling, Schedule)
    assert isinstance(ring, Schedule)
    assert verify_schedule(doubling).ok
    assert not verify_schedule(without_steps(routed(doubling))).ok
    assert verify_schedule(without_steps(routed(ring))).ok
