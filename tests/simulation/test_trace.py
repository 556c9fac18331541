"""Traces hold to the Trace Event Format, show every message once, and are the same every time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.messages import messages_of
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.model import Model
from coppice.simulation.simulator import run
from coppice.simulation.timeline import Timeline
from coppice.simulation.trace import MAX_TRACKS, trace_events, write_trace
from coppice.topology import preset, star
from simulation.cases import ring_on, shift_on
from support.ideal import simulate

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
