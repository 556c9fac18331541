"""How `coppice simulate` prints what it found: fields, tables, busiest links, jobs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from coppice.comparison.table import aligned, number
from coppice.schedule.plan import Plan
from coppice.simulation.critical import time_by_reason
from coppice.simulation.jobs import JobResult, Together
from coppice.simulation.model import Model
from coppice.simulation.simulated import Scenario, Simulated, rate_figures
from coppice.simulation.timeline import Timeline
from coppice.simulation.utilisation import busiest_links
from coppice.text import bar, percent_text, plural, short_size, size_text

__all__ = ["busiest_lines", "job_lines", "model_text", "scenario_fields", "single_fields", "table_lines"]

_REASONS = {
    "none": "messages that start at once",
    "dependency": "waiting for data",
    "engine": "waiting for engines",
    "link": "queues at links",
    "route": "queues on routes",
}


def model_text(model: Model) -> str:
    """What is assumed, in words."""
    parts = [f"{model.overhead_us:g} us per message beyond its links", f"{model.sharing} links"]
    if model.store_and_forward:
        parts.append("store-and-forward switches")
    if model.send_engines or model.receive_engines:
        parts.append(
            f"{model.send_engines or 'any'} send and {model.receive_engines or 'any'} receive engines"
        )
    if model.reduce_gb_per_s is not None:
        parts.append(f"adding at {model.reduce_gb_per_s:g} GB/s")
    return ", ".join(parts)


def scenario_fields(plan: Plan, scenario: Scenario) -> list[tuple[str, str]]:
    """The lines about what is assumed."""
    fields = [("plan", plan.planner or "unknown planner"), ("model", model_text(scenario.model))]
    wire = scenario.wire
    if wire is not None:
        words = []
        if wire.protocol is not None:
            words.append(
                f"{percent_text(Fraction(wire.protocol.data_bytes, wire.protocol.wire_bytes))} of the wire is data"
            )
            words.append(
                f"{wire.protocol.box_us:g} us per message in a box, {wire.protocol.network_us:g} us between boxes, "
                f"{wire.protocol.start_us:g} us to start"
            )
        if wire.gpu_gb_per_s is not None:
            words.append(f"channels of a GPU carry {float(wire.gpu_gb_per_s):g} GB/s")
        fields.append(("achievable", ", ".join(words)))
    return fields


def single_fields(row: Simulated, scenario: Scenario) -> list[tuple[str, str]]:
    """The lines about one size."""
    timeline, outcome = row.timeline, row.outcome
    fields = scenario_fields(row.plan, scenario)
    chosen = " (the best)" if scenario.pieces is None else ""
    messages = plural(timeline.messages.count, "message")
    fields += [
        ("size", f"{size_text(outcome.size_bytes)} ({outcome.size_bytes:,} bytes)"),
        ("cut into", f"{plural(outcome.pieces, 'piece')} per chunk{chosen}, {messages}"),
        ("nominal" if outcome.achievable else "time", _rate_text(row, timeline)),
    ]
    if outcome.achievable is not None:
        fields.append(("achievable", _rate_text(row, outcome.achievable)))
    if row.hashed is not None:
        hashed = row.hashed
        count = plural(len(hashed.times_us), "seed")
        median, p99 = number(hashed.median_us), number(hashed.p99_us)
        fields.append(("hashed routes", f"median {median} us, 99th percentile {p99} us of {count}"))
        fields.append(("ideal multipath", f"{number(hashed.multipath_us)} us"))
    spent = time_by_reason(timeline)
    if timeline.time_us:
        parts = sorted(spent.items(), key=lambda item: -item[1])
        words = [f"{percent_text(_share(us, timeline.time_us))} {_REASONS[name]}" for name, us in parts if us]
        fields.append(("time goes to", ", ".join(words)))
    return fields


def table_lines(rows: Sequence[Simulated]) -> list[str]:
    """One line for each size, in the style of nccl-tests."""
    achievable = rows[0].outcome.achievable is not None
    hashed = rows[0].hashed is not None
    heads = [("size", "(B)"), ("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("of optimum", "")]
    if achievable:
        heads += [("achievable", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)")]
    if hashed:
        heads += [("median", "(us)"), ("p99", "(us)"), ("multipath", "(us)")]
    heads += [("pieces", ""), ("busiest link", "")]
    lines = []
    for row in rows:
        timeline = row.timeline
        cells = [
            str(row.outcome.size_bytes),
            *_figures(timeline),
            percent_text(_share(row.least_us, timeline.time_us)),
        ]
        if row.outcome.achievable is not None:
            cells += _figures(row.outcome.achievable)
        if row.hashed is not None:
            cells += [number(us) for us in (row.hashed.median_us, row.hashed.p99_us, row.hashed.multipath_us)]
        link = timeline.busiest_link
        busy = (
            f"{percent_text(_share(timeline.utilisation(link), 1))} {timeline.topology.link_name(link)}"
            if link >= 0
            else "none"
        )
        lines.append([*cells, str(row.outcome.pieces), busy])
    return aligned(heads, lines)


def busiest_lines(timeline: Timeline, count: int) -> list[str]:
    """One line for each of the busiest links: a bar, its use, its rate and name."""
    topology = timeline.topology
    lines = []
    for link in busiest_links(timeline, count):
        share = timeline.utilisation(link)
        used, rate = percent_text(_share(share, 1)), float(topology.gb_per_s(link))
        lines.append(
            f"  {bar(share, width=24)} {used:>8}  {rate:>8.6g} GB/s  {timeline.topology.link_name(link)}"
        )
    return lines or ["  none: nothing moves"]


def job_lines(found: Together) -> list[str]:
    """One line for each job."""
    heads = [
        ("job", ""),
        ("collective", ""),
        ("size", "(B)"),
        ("start", "(us)"),
        ("time", "(us)"),
        ("alone", "(us)"),
        ("slowdown", ""),
        ("shared link", ""),
    ]
    rows = [
        [
            result.job.name,
            result.job.body.collective.value,
            short_size(result.job.size_bytes),
            number(result.job.start_us),
            number(result.time_us),
            number(result.alone_us),
            f"{result.slowdown:.2f}",
            _shared_text(result),
        ]
        for result in found.results
    ]
    return aligned(heads, rows)


def _shared_text(result: JobResult) -> str:
    shared = result.shared
    if shared is None:
        return "none" if result.slowdown <= 1 else "none: it waits for engines"
    others = ", ".join(f"{name} {number(us)} us" for name, us in list(shared.others_us.items())[:3])
    more = len(shared.others_us) - 3
    rest = f" and {more} more" if more > 0 else ""
    return f"{shared.src} -> {shared.dst}: own {number(shared.own_us)} us, {others}{rest}"


def _figures(timeline: Timeline) -> list[str]:
    return [number(value) for value in rate_figures(timeline).values()]


def _rate_text(row: Simulated, timeline: Timeline) -> str:
    share = percent_text(_share(row.least_us, timeline.time_us))
    goal = "the optimum" if row.plan.bound is not None else "the plan's own rate"
    return (
        f"{number(timeline.time_us)} us: algbw {number(timeline.algbw_gb_per_s)} GB/s, "
        f"busbw {number(timeline.busbw_gb_per_s)} GB/s, {share} of {goal}"
    )


def _share(part: float, whole: float) -> Fraction:
    """A share for :func:`percent_text`; rounding never makes it a whole."""
    return Fraction(part) / Fraction(whole) if whole else Fraction(0)
