"""Traces hold to the Trace Event Format, show every message once, and are the same every time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.messages import messages_of
from coppice.simulation.engine import run
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.models import Model, Sharing
from coppice.simulation.timeline import (
    MessageHops,
    Reason,
    Timeline,
    critical_lines,
    critical_segments,
    time_by_reason,
)
from coppice.simulation.trace import MAX_TRACKS, trace_events, write_trace
from coppice.simulation.utilisation import busiest_links, check_conservation, link_utilisation, passages
from coppice.topology import fat_tree, preset, star
from simulation.cases import ring_on, shift_on
from support.alpha_beta import simulate

# Field names and types of the Trace Event Format, by phase.
REQUIRED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {
        "name": str,
        "cat": str,
        "ts": (int, float),
        "dur": (int, float),
        "pid": int,
        "tid": int,
        "args": dict,
    },
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": (int, float), "pid": int, "tid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int},
    "f": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int, "bp": str},
}


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_REDUCE)
    return simulate(plan_forest(problem), 2**24, pieces=4)


def slices(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["cat"] != "critical"]


def test_events_have_the_documented_fields(timeline: Timeline) -> None:
    events = list(trace_events(timeline))
    assert {event["ph"] for event in events} == set(REQUIRED)
    for event in events:
        fields = REQUIRED[event["ph"]]
        assert set(event) == {"ph", *fields}
        for name, kind in fields.items():
            assert isinstance(event[name], kind), (event["ph"], name)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_every_message_is_there_once_with_its_times(timeline: Timeline) -> None:
    shown = slices(list(trace_events(timeline)))
    assert sorted(e["args"]["message"] for e in shown) == list(range(timeline.messages.count))
    names = timeline.messages.topology.node_ids
    for event in shown:
        message = event["args"]["message"]
        assert event["ts"] == pytest.approx(timeline.start_us[message], abs=6e-4)
        assert event["ts"] + event["dur"] == pytest.approx(timeline.finish_us[message], abs=6e-4)
        assert event["args"]["bytes"] == timeline.messages.num_bytes[message]
        path = event["args"]["path"].split(" -> ")
        assert path[0] == names[timeline.messages.src[message]]
        assert event["name"] == f"to {path[-1]}"
        assert event["cat"] == ("reduce" if timeline.messages.added_bytes[message] else "copy")


def test_threads_never_overlap_and_carry_their_gpu(timeline: Timeline) -> None:
    events = list(trace_events(timeline))
    thread_name = {
        e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    process_name = {
        e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"
    }
    topology = timeline.messages.topology
    until: dict[int, float] = {}
    for event in slices(events):
        assert event["ts"] >= until.get(event["tid"], 0)
        until[event["tid"]] = event["ts"] + event["dur"] - 1e-9
        node = int(timeline.messages.src[event["args"]["message"]])
        assert thread_name[event["tid"]].split(" (")[0] == topology.node_ids[node]
        assert process_name[event["pid"]] == topology.hosts[topology.host[node]]


def test_arrows_join_what_waits_on_the_critical_path(timeline: Timeline) -> None:
    events = list(trace_events(timeline))
    stages = [e for e in events if e.get("cat") == "critical" and e["ph"] == "X"]
    assert stages[0]["ts"] == 0
    for before, after in pairwise(stages):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-9)
    assert stages[-1]["ts"] + stages[-1]["dur"] == pytest.approx(timeline.time_us, abs=6e-4)
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert set(begins) == set(ends) == set(range(1, len(stages)))
    on_thread: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in slices(events):
        on_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    for number, begin in begins.items():
        for event, stage in ((begin, stages[number - 1]), (ends[number], stages[number])):
            enclosing = [
                other["args"]["message"]
                for other in on_thread[event["pid"], event["tid"]]
                if other["ts"] - 1e-3 <= event["ts"] <= other["ts"] + other["dur"] + 1e-3
            ]
            assert stage["args"]["message"] in enclosing
        assert begin["ts"] <= ends[number]["ts"]


def test_counters_are_shares_of_the_busiest_links(timeline: Timeline) -> None:
    counts = [e for e in trace_events(timeline) if e["ph"] == "C"]
    assert len({e["name"] for e in counts}) == 10
    assert all(-1e-6 <= e["args"]["percent"] <= 100.001 for e in counts)
    topology, link = timeline.messages.topology, timeline.busiest_link
    name = f"{topology.node_ids[topology.src[link]]} -> {topology.node_ids[topology.dst[link]]}"
    own = [e["args"]["percent"] for e in counts if e["name"] == name][:-1]
    assert sum(own) / len(own) == pytest.approx(100 * timeline.utilisation(link), rel=1e-3)


def test_files_are_json_and_the_same_every_time(timeline: Timeline, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert write_trace(timeline, first) == write_trace(timeline, second) == timeline.messages.count
    assert first.read_bytes() == second.read_bytes()
    document = json.loads(first.read_text())
    assert document["traceEvents"] == list(trace_events(timeline))
    assert document["otherData"]["messages_shown"] == timeline.messages.count


def test_large_traces_are_thinned_and_say_so(timeline: Timeline, tmp_path: Path) -> None:
    critical = {stage.message for stage in timeline.critical_path()}
    most = len(critical) + 5
    assert write_trace(timeline, tmp_path / "t.json", most=most) == most
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["otherData"]["messages"] == timeline.messages.count
    assert document["otherData"]["messages_shown"] == most
    assert critical <= {e["args"]["message"] for e in slices(document["traceEvents"])}
    write_trace(timeline, tmp_path / "t.json", most=1)
    assert len(slices(json.loads((tmp_path / "t.json").read_text())["traceEvents"])) == 1


def test_jobs_are_named() -> None:
    pair = star(2)
    found = simulate_together(
        [
            Job(name="one", body=shift_on(pair, 1), size_bytes=2000),
            Job(name="two", body=ring_on(pair), size_bytes=8),
        ]
    )
    jobs = [(result.job.name, int(first)) for result, first in zip(found.results, found.first, strict=False)]
    shown = slices(list(trace_events(found.timeline, jobs=jobs)))
    assert [e["args"]["job"] for e in sorted(shown, key=lambda e: e["args"]["message"])] == ["one"] * 2 + [
        "two"
    ] * 4


def test_passages_are_needed() -> None:
    body = shift_on(star(2), 1)
    bare = run(messages_of(body, 8), model=Model(), collective=body.collective, size_bytes=8, keep_hops=False)
    with pytest.raises(InputError, match="were not kept"):
        list(trace_events(bare))


def test_alike_messages_are_folded_where_threads_were_too_many(timeline: Timeline, tmp_path: Path) -> None:
    """Nothing is lost: events hold all messages and bytes, begin with the first and end with the last of them."""
    whole, folded = slices(list(trace_events(timeline))), slices(list(trace_events(timeline, tracks=100)))
    assert all("messages" not in event["args"] for event in whole)
    assert len(folded) < len(whole) / 2
    assert len({event["tid"] for event in folded}) < 300 < len({event["tid"] for event in whole})
    assert sum(event["args"].get("messages", 1) for event in folded) == timeline.messages.count
    for figure in ("bytes", "transfers"):
        assert sum(event["args"][figure] for event in folded) == sum(event["args"][figure] for event in whole)
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for event in folded:
        span = (event["ts"], event["ts"] + event["dur"])
        spans.setdefault((event["args"]["path"], event["cat"]), []).append(span)
    for event in whole:
        at = event["ts"]
        own = [
            begin
            for begin, end in spans[event["args"]["path"], event["cat"]]
            if begin - 1e-3 <= at and at + event["dur"] <= end + 1e-3
        ]
        assert own
    for ends in spans.values():
        assert all(one[1] <= two[0] + 1e-3 for one, two in pairwise(sorted(ends)))
    assert write_trace(timeline, tmp_path / "t.json", tracks=100) == timeline.messages.count
    document = json.loads((tmp_path / "t.json").read_text())
    assert (document["otherData"]["messages_shown"], document["otherData"]["events"]) == (
        timeline.messages.count,
        len(folded),
    )


@pytest.mark.parametrize("tracks", [100, 4096])
def test_folded_or_not_threads_do_not_overlap_and_arrows_hold(timeline: Timeline, tracks: int) -> None:
    events = list(trace_events(timeline, tracks=tracks))
    until: dict[int, float] = {}
    on_thread: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in slices(events):
        assert event["ts"] >= until.get(event["tid"], 0)
        until[event["tid"]] = event["ts"] + event["dur"] - 1e-9
        on_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    arrows = [e for e in events if e["ph"] in "sf"]
    assert len(arrows) == 2 * (len(timeline.critical_path()) - 1)
    for event in arrows:
        assert any(
            other["ts"] - 1e-3 <= event["ts"] <= other["ts"] + other["dur"] + 1e-3
            for other in on_thread[event["pid"], event["tid"]]
        )


def test_threads_are_of_a_gpu_and_a_link(timeline: Timeline) -> None:
    events = list(trace_events(timeline, tracks=100))
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in slices(events):
        sender, link = event["args"]["path"].split(" -> ")[:2]
        assert names[event["tid"]].startswith(f"{sender} ({link}")


def test_a_trace_of_many_messages_is_small(tmp_path: Path) -> None:
    """Two A100 boxes at 1 MiB: messages overlap nearly all, each of them had a thread of its own."""
    body = plan_forest(Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE))
    found = simulate(body, 2**20, pieces=24)
    assert write_trace(found, tmp_path / "t.json") == found.messages.count > 20_000
    document = json.loads((tmp_path / "t.json").read_text())
    assert len({(e["pid"], e["tid"]) for e in document["traceEvents"]}) < MAX_TRACKS
    assert (tmp_path / "t.json").stat().st_size < 2**23


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
