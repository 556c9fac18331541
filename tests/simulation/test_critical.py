"""The critical path in words."""

from __future__ import annotations

import pytest

from coppice.simulation.critical import critical_lines, critical_segments, time_by_reason
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.model import Model
from coppice.simulation.timeline import Reason
from coppice.topology import preset, star
from simulation.cases import ring_on, shift_on
from support.ideal import simulate


def test_a_ring_waits_for_data_at_every_step() -> None:
    timeline = simulate(ring_on(star(3)), 3000, model=Model(overhead_us=1))
    lines = critical_lines(timeline)
    assert len(lines) == 4
    assert lines[0].split("  ")[-1].endswith("1,000 bytes: starts at once")
    assert "waited for what came before it (" in lines[1]
    assert time_by_reason(timeline) == {"none": 2.0, "dependency": 6.0}


def test_queues_on_a_link_are_one_stretch() -> None:
    pair = star(2)
    jobs = [Job(name=f"j{i}", body=shift_on(pair, 1), size_bytes=2000) for i in range(5)]
    timeline = simulate_together(jobs, model=Model(overhead_us=0)).timeline
    first, rest = critical_segments(timeline)
    assert (first.count, rest.count) == (1, 4)
    assert rest.first.reason is Reason.LINK
    lines = critical_lines(timeline)
    assert lines[1].endswith("4 messages one after the other on gpu0 -> switch")
    assert time_by_reason(timeline) == {"none": 1.0, "link": 4.0}


def test_engines_are_named() -> None:
    timeline = simulate(ring_on(star(2), parameters=None), 2000, model=Model(overhead_us=0))
    assert "engine" not in time_by_reason(timeline)
    pair = star(2)
    jobs = [Job(name=f"j{i}", body=shift_on(pair, 1), size_bytes=2000) for i in range(2)]
    limited = simulate_together(jobs, model=Model(overhead_us=0, send_engines=1)).timeline
    assert "waited for an engine (gpu0 -> gpu1)" in critical_lines(limited)[1]


@pytest.mark.parametrize("most", [2, 5, 12, 1000])
def test_long_paths_lose_their_middle(most: int) -> None:
    timeline = simulate(ring_on(preset("dgx-h100")), 2**20)
    full = critical_lines(timeline, 1000)
    lines = critical_lines(timeline, most)
    if most >= len(full):
        assert lines == full
        return
    assert len(lines) == most + 1
    assert "further messages" in lines[(most + 1) // 2]
    assert [line for line in lines if "further messages" not in line] == [
        *full[: (most + 1) // 2],
        *full[len(full) - most // 2 :],
    ]


def test_nothing_has_no_path() -> None:
    timeline = simulate(ring_on(star(1)), 1000)
    assert critical_lines(timeline) == []
    assert time_by_reason(timeline) == {}
