"""Self-contained HTML page of an iteration, and of a job: breakdown, critical path, bounds, sources of numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coppice.iteration.page.timeline import SCRIPT, colour_of, timeline_canvas, timeline_rows
from coppice.iteration.step.simulated import SimulatedStep
from coppice.iteration.tasks import TaskTimes
from coppice.iteration.trace import device_number
from coppice.report.svg import Markup, drawing, element, escape, facts, fitted, html_page
from coppice.text import seconds_text
from coppice.version import __version__

_WIDTH, _LEFT, _RIGHT, _LINE = 1100.0, 300.0, 230.0, 24.0

Bar = tuple[str, float, str]
"""What a bar is of, its length, and the words beside it."""


def bars_picture(bars: Sequence[Bar], whole: float, *, name: str, label: str) -> Markup:
    """Draw a bar for each part; the total is a full bar.

    Args:
        whole: Length of a full bar, above 0.
        label: What it shows, for those who cannot see it.

    Examples:
        >>> bars_picture([("layers", 3.0, "3 s")], 4.0, name="parts", label="parts").count("<rect")
        2
    """
    room = _WIDTH - _LEFT - _RIGHT
    rows = []
    for at, (words, value, beside) in enumerate(bars):
        y = 4 + at * _LINE
        width = room * min(1.0, max(0.0, value / whole))
        rows.append(
            element(
                "g",
                element("title", escape(f"{words}: {beside}")),
                element("text", escape(fitted(words, _LEFT - 20, 11)), x=_LEFT - 10, y=y + 13, class_="end"),
                element("rect", x=_LEFT, y=y + 2, width=room, height=_LINE - 8, rx=2, class_="track"),
                element(
                    "rect", x=_LEFT, y=y + 2, width=max(0.5, width), height=_LINE - 8, rx=2, class_="bar2"
                ),
                element("text", escape(beside), x=_WIDTH - _RIGHT + 10, y=y + 13),
            )
        )
    return drawing(_WIDTH, 8 + len(bars) * _LINE, *rows, name=name, label=label)


def stacked_picture(
    rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], whole: float, *, name: str, label: str
) -> Markup:
    """Draw a stacked bar for each device.

    Args:
        rows: Name of each row, and for each part what it is, how long, and the variable of its colour.
        whole: Length of a full row, above 0.
    """
    room = _WIDTH - 140 - _RIGHT
    drawn = []
    for at, (words, parts) in enumerate(rows):
        y = 4 + at * 18
        x = 140.0
        drawn.append(element("text", escape(words), x=130, y=y + 12, class_="end small"))
        drawn.append(element("rect", x=x, y=y + 1, width=room, height=14, class_="track"))
        for what, value, colour in parts:
            width = room * value / whole
            title = element("title", escape(f"{words}: {what} {value / whole:.1%}"))
            drawn.append(
                element("rect", title, x=x, y=y + 1, width=width, height=14, style=f"fill:var({colour})")
            )
            x += width
        idle = max(0.0, 1 - sum(value for _, value, _ in parts) / whole)
        drawn.append(
            element("text", escape(f"waits {idle:.1%}"), x=_WIDTH - _RIGHT + 10, y=y + 12, class_="small")
        )
    return drawing(_WIDTH, 8 + len(rows) * 18, *drawn, name=name, label=label)


_MOST_DEVICES = 32
_BUTTONS = """button.act{font:inherit;font-size:13px;color:var(--ink);background:var(--card);
border:1px solid var(--line);border-radius:6px;padding:3px 10px;margin-right:6px}
.sources th,.sources td{text-align:left;vertical-align:top}"""
_PASSES = ("forward", "backward", "input gradient", "weight gradient", "recompute", "head", "optimizer")


@dataclass(frozen=True, eq=False, kw_only=True)
class IterationReport:
    """Content of a page."""

    title: str  # The job
    facts: Sequence[tuple[str, str]]  # Names and values for the head of the page
    seconds: float  # The iteration
    parts: Mapping[str, float]  # Where its time goes, in seconds
    # What it waits for beside computation, in seconds, by collective, group and link
    exposed: Mapping[str, float]
    bounds: Mapping[str, float]  # What no order can beat, in seconds, by what limits it
    memory: Mapping[str, float]  # What a GPU keeps, in bytes
    memory_bytes: float  # Memory of a GPU
    times: TaskTimes  # When tasks run
    begin: float = 0.0  # When the iteration that is shown first begins, in seconds
    # For each number of the page the model behind it, and the command that prints it
    sources: Sequence[tuple[str, str, str]] = ()


def iteration_html(report: IterationReport) -> str:
    """Render the page as HTML that is well-formed XML."""
    rows = timeline_rows(report.times)
    some = ""
    if rows.devices < rows.of_devices:
        some = f" {rows.devices} of {rows.of_devices} devices are shown, evenly chosen."
    body = [
        element("style", Markup(_BUTTONS)),
        element("h1", escape(report.title)),
        facts(list(report.facts)),
        element("h2", escape("Where the time goes")),
        element(
            "p",
            escape("Parts of the iteration on the device that computes most; a full bar is the iteration."),
        ),
        element("figure", _shares(report.parts, report.seconds, "parts", "parts of the iteration")),
        *_devices(report),
        element("h2", escape("Exposed communication")),
        *_exposed(report),
        element("h2", escape("Timeline")),
        element(
            "p",
            escape(
                "A row is a stream of a device, a bar a task. The line under bars is the critical path: a task of it "
                f"begins when the one before it ends.{some}"
            ),
        ),
        timeline_canvas(report.times, rows, begin=report.begin),
        element("h2", escape("Memory of a GPU")),
        element("figure", _memory(report)),
        element("h2", escape("Lower bounds")),
        element(
            "p",
            escape("No order of the same tasks on the same devices takes less than the longest of these."),
        ),
        element("figure", _shares(report.bounds, report.seconds, "bounds", "lower bounds")),
        *_sources(report),
        element("footer", escape(f"Made by coppice {__version__}.")),
    ]
    return html_page(report.title, body, element("script", Markup(SCRIPT)))


def _shares(seconds: Mapping[str, float], whole: float, name: str, label: str) -> Markup:
    """Bars of times with their shares."""
    bars = [
        (words, value, f"{seconds_text(value)}, {value / whole:.1%}")
        for words, value in seconds.items()
        if value > 0
    ]
    return bars_picture(bars, whole, name=name, label=label)


def _memory(report: IterationReport) -> Markup:
    """Bars of memory by part; a full bar is the GPU's memory, or the total if larger."""
    total = sum(report.memory.values())
    bars = [(words, value, f"{value / 1e9:.3g} GB") for words, value in report.memory.items()]
    bars.append(("all", total, f"{total / 1e9:.3g} of {report.memory_bytes / 1e9:.3g} GB"))
    return bars_picture(
        bars, max(report.memory_bytes, total), name="memory", label="memory of a GPU by parts"
    )


def _exposed(report: IterationReport) -> list[Markup]:
    """Exposed communication by collective."""
    if not any(report.exposed.values()):
        return [element("p", escape("The critical path is all computation: nothing is exposed."))]
    words = (
        "Time of the critical path that is no computation, by collective, group of ranks, and limiting link."
    )
    return [
        element("p", escape(words)),
        element("figure", _shares(report.exposed, report.seconds, "exposed", "exposed communication")),
    ]


def _devices(report: IterationReport) -> list[Markup]:
    """Compute and idle time of each device."""
    times, graph = report.times, report.times.graph
    kinds = [number for number, kind in enumerate(graph.kind_names) if kind in _PASSES]
    computes = np.isin(graph.kinds, kinds) & (graph.stream >= 0)
    if not computes.any():
        return []
    sums: dict[int, dict[str, float]] = defaultdict(dict)
    alone = times.finish - times.start
    for stream in np.unique(graph.stream[computes]).tolist():
        device = device_number(graph.streams[stream])
        for number in kinds:
            own = computes & (graph.stream == stream) & (graph.kinds == number)
            if own.any():
                kind = graph.kind_names[number]
                sums[device][kind] = sums[device].get(kind, 0.0) + float(alone[own].sum())
    devices = sorted(sums)
    if len(devices) > _MOST_DEVICES:
        places = np.unique(np.linspace(0, len(devices) - 1, _MOST_DEVICES).round().astype(int))
        devices = [devices[place] for place in places.tolist()]
    rows = [
        (
            f"device {device}" if device >= 0 else "device",
            [(kind, value, colour_of(kind)) for kind, value in sums[device].items()],
        )
        for device in devices
    ]
    picture = stacked_picture(
        rows, times.seconds or 1.0, name="devices", label="what devices compute, and how long they wait"
    )
    return [
        element(
            "p",
            escape(
                "Each device of the pipeline: its passes, and how long it waits; colours as in the timeline."
            ),
        ),
        element("figure", picture),
    ]


def _sources(report: IterationReport) -> list[Markup]:
    """Source of each number: a model and a command."""
    if not report.sources:
        return []
    head = element("tr", *(element("th", escape(each)) for each in ("number", "model", "command")))
    lines = [
        element(
            "tr",
            element("td", escape(what)),
            element("td", escape(model)),
            element("td", element("code", escape(command))),
        )
        for what, model, command in report.sources
    ]
    return [
        element("h2", escape("Where the numbers come from")),
        element("div", element("table", head, *lines, class_="sources"), class_="scroll"),
    ]


PART_NAMES = {
    "compute": "layers",
    "head": "head and loss",
    "tensor": "tensor-parallel collectives",
    "experts": "exchanges of experts",
    "context": "exchanges of context parallelism",
    "sends": "sends between stages",
    "bubble": "bubble",
    "gradients": "gradient all-reduces",
    "optimizer": "optimizer",
}
"""Parts of an iteration in words."""

_TIMES = "the simulated step: each device runs its passes in order, and messages share links max-min fairly"
_MEMORY = "states of Adam as in ZeRO (SC 2020), activations as in Korthikanti et al. (MLSys 2023)"


def report_of_step(
    title: str,
    found: SimulatedStep,
    *,
    memory: Mapping[str, float],  # What a GPU keeps, in bytes by part
    memory_bytes: float,
    device: str,
    facts: Sequence[tuple[str, str]] = (),  # Further names and values for the head of the page
    command: str = "",  # The command that prints the same numbers
    measured: bool = False,  # Times of passes come from measurements of the GPU, not from its data sheet
) -> IterationReport:
    """Content of the page of a simulated step."""
    bounds = found.bounds
    limits = {"longest chain of passes": bounds.path}
    if bounds.stream:
        limits[f"all that {bounds.stream} does"] = bounds.stream_seconds
    if bounds.link:
        limits[f"all that {bounds.link} carries"] = bounds.link_seconds
    beyond = found.seconds / bounds.seconds - 1 if bounds.seconds else 0.0
    head = [
        ("Iteration", f"{seconds_text(found.seconds)}, {found.mfu:.1%} of the peak (MFU)"),
        (
            "Best order",
            f"no order takes less than {seconds_text(bounds.seconds)}: this one takes {beyond:.2%} more",
        ),
        ("Order", f"{found.order}, overlap: {found.overlap}"),
        ("GPU", f"{device}, {sum(memory.values()) / 1e9:.3g} of {memory_bytes / 1e9:.3g} GB"),
        *facts,
    ]
    passes = f"peaks of the data sheet of {device}, and shares of them fitted as benchmarks/exam.md says"
    if measured:
        passes = f"what was measured on {device}"
    json_command = f"{command} --json" if command else ""
    return IterationReport(
        title=title,
        facts=head,
        seconds=found.seconds,
        parts={PART_NAMES.get(part, part): value for part, value in found.parts.items()},
        exposed=dict(sorted(found.exposed.items(), key=lambda item: -item[1])),
        bounds=limits,
        memory=memory,
        memory_bytes=memory_bytes,
        times=found.times,
        begin=max(0.0, found.times.seconds - found.seconds),
        sources=[
            ("iteration, parts", _TIMES, json_command),
            ("exposed communication", "the critical path of the simulated step, task by task", json_command),
            (
                "lower bounds",
                "path, busiest stream and busiest link of the same tasks in any order",
                json_command,
            ),
            ("memory", _MEMORY, json_command),
            ("times of passes", passes, ""),
        ],
    )
