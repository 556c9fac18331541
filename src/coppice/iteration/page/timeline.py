"""Zoomable timeline of an iteration as a canvas.

Tasks are an attribute of the canvas; a script draws those of the window that is chosen, marks the critical path, and
says what is under the pointer. Large jobs show the streams of some of their devices, evenly chosen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coppice.iteration.tasks import TaskTimes
from coppice.iteration.trace import device_number
from coppice.report.svg import Markup, element, escape, join

MOST_TASKS = 40_000
"""Tasks of a page: about two megabytes."""
MOST_ROWS = 96
_ROW = 15
_TICKS = 10**7

_COLOURS = {
    "forward": "--s0",
    "backward": "--s2",
    "input gradient": "--s5",
    "weight gradient": "--s4",
    "recompute": "--s7",
    "head": "--s5",
    "optimizer": "--s7",
}
_OTHERS = ("--s3", "--s1", "--s6", "--load3", "--load4")


@dataclass(frozen=True, kw_only=True)
class TimelineRows:
    """Streams of a timeline."""

    streams: Sequence[int]  # Their numbers, device by device
    devices: int  # Devices that are shown
    of_devices: int  # All devices


def timeline_rows(times: TaskTimes) -> TimelineRows:
    """Select streams: of all devices, or of some evenly spaced ones."""
    graph = times.graph
    count = np.bincount(graph.stream[graph.stream >= 0], minlength=len(graph.streams))
    of_device: dict[int, list[int]] = defaultdict(list)
    for stream, name in enumerate(graph.streams):
        if count[stream]:
            of_device[device_number(name)].append(stream)
    devices = sorted(of_device)
    tasks = sum(int(count[each].sum()) for each in of_device.values())
    rows = sum(map(len, of_device.values()))
    share = min(1.0, MOST_TASKS / max(tasks, 1), MOST_ROWS / max(rows, 1))
    room = max(1, int(len(devices) * share))
    chosen = devices
    if room < len(devices):
        places = np.unique(np.linspace(0, len(devices) - 1, room).round().astype(int))
        chosen = [devices[place] for place in places.tolist()]
    streams = [stream for device in chosen for stream in of_device[device]]
    return TimelineRows(streams=streams, devices=len(chosen), of_devices=len(devices))


def colour_of(kind: str, others: Sequence[str] = ()) -> str:
    """CSS variable of a task kind's colour.

    Args:
        others: Kinds that are no passes, in order.
    """
    if kind in _COLOURS:
        return _COLOURS[kind]
    place = list(others).index(kind) if kind in others else 0
    return _OTHERS[place % len(_OTHERS)]


def timeline_canvas(times: TaskTimes, rows: TimelineRows, *, begin: float = 0.0) -> Markup:
    """Canvas of the timeline with its buttons.

    Args:
        begin: What is seen first, in seconds, until the end.
    """
    graph = times.graph
    end = times.seconds or 1.0
    tick = end / _TICKS
    critical = _critical(times)
    kinds = [kind for kind in graph.kind_names if kind != "barrier"]
    others = [kind for kind in kinds if kind not in _COLOURS]
    data = []
    for stream in rows.streams:
        tasks = np.flatnonzero(graph.stream == stream)
        tasks = tasks[np.argsort(times.start[tasks], kind="stable")]
        start = np.rint(times.start[tasks] / tick).astype(np.int64)
        length = np.rint((times.finish[tasks] - times.start[tasks]) / tick).astype(np.int64)
        data.append(
            {
                "name": graph.streams[stream],
                "start": start.tolist(),
                "length": length.tolist(),
                "kind": graph.kinds[tasks].tolist(),
                "critical": [int(task in critical) for task in tasks.tolist()],
                "task": [graph.names[task] for task in tasks.tolist()],
            }
        )
    record = {
        "rows": data,
        "kinds": list(graph.kind_names),
        "colours": [colour_of(kind, others) for kind in graph.kind_names],
        "ticks": _TICKS,
        "tick": tick,
        "begin": begin / tick,
        "line": _ROW,
    }
    used = {kind for row in data for kind in row["kind"]}
    key = [
        element(
            "span",
            element(
                "svg",
                element(
                    "rect",
                    x=3,
                    y=1.5,
                    width=20,
                    height=11,
                    rx=2,
                    style=f"fill:var({colour_of(kind, others)})",
                ),
                width=26,
                height=14,
                viewBox="0 0 26 14",
                aria_hidden="true",
            ),
            escape(kind),
        )
        for number, kind in enumerate(graph.kind_names)
        if number in used
    ]
    buttons = [
        element("button", escape(words), type="button", data_act=act, class_="act")
        for act, words in (
            ("whole", "whole"),
            ("in", "zoom in"),
            ("out", "zoom out"),
            ("left", "←"),
            ("right", "→"),
        )
    ]
    return join(
        [
            element("div", *key, class_="key"),
            element("p", *buttons, class_="screen"),
            element(
                "canvas",
                Markup(""),
                id="timeline",
                width=1140,
                height=len(data) * _ROW + 24,
                style="width:100%;cursor:crosshair;touch-action:pan-y",
                role="img",
                aria_label="What each stream runs over time",
                data_tasks=json.dumps(record, separators=(",", ":")),
            ),
            element(
                "p",
                escape("Drag over a span to look at it; a double click shows the whole."),
                id="told",
                class_="quiet",
            ),
        ],
        "\n",
    )


def _critical(times: TaskTimes) -> set[int]:
    """Tasks of the critical path: each started when its predecessor ended."""
    found: set[int] = set()
    if not len(times.graph):
        return found
    task = int(times.finish.argmax())
    while task >= 0 and task not in found:
        found.add(task)
        task = int(times.cause[task])
    return found


SCRIPT = """
(function () {
  var canvas = document.getElementById("timeline");
  if (!canvas) { return; }
  var told = document.getElementById("told"), hint = told.textContent;
  var data = JSON.parse(canvas.dataset.tasks), rows = data.rows, line = data.line, left = 120;
  var from = data.begin, to = data.ticks, held = null;
  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function time(ticks) {
    var s = ticks * data.tick;
    if (!s) { return "0"; }
    function short(value) { return String(Number(value.toPrecision(5))); }
    if (s >= 1) { return short(s) + " s"; }
    return s >= 1e-3 ? short(s * 1e3) + " ms" : short(s * 1e6) + " us";
  }
  function first(row, at) {
    var low = 0, high = row.start.length;
    while (high > low) {
      var middle = (low + high) >> 1;
      if (row.start[middle] + row.length[middle] >= at) { high = middle; } else { low = middle + 1; }
    }
    return low;
  }
  function draw() {
    var ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 1140, height = rows.length * line + 24;
    canvas.style.height = height + "px";
    canvas.width = width * ratio; canvas.height = height * ratio;
    var c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    var scale = (width - left) / (to - from), inks = data.colours.map(colour);
    var ink = colour("--ink"), quiet = colour("--quiet"), grid = colour("--line"), path = colour("--cut");
    c.fillStyle = colour("--card"); c.fillRect(left, 20, width - left, rows.length * line);
    c.font = "10px system-ui, sans-serif"; c.textBaseline = "middle";
    var step = Math.pow(10, Math.floor(Math.log10((to - from) * data.tick))) / data.tick;
    [0.1, 0.2, 0.5].some(function (part) {
      if ((to - from) / (step * part) > 9) { return false; }
      step = step * part; return true;
    });
    c.strokeStyle = grid; c.fillStyle = quiet; c.textAlign = "left";
    for (var tick = Math.ceil(from / step) * step; to >= tick; tick += step) {
      var x = left + (tick - from) * scale;
      c.beginPath(); c.moveTo(x, 16); c.lineTo(x, height); c.stroke();
      if (width - 60 > x) { c.fillText(time(tick), x + 2, 9); }
    }
    rows.forEach(function (row, number) {
      var y = 20 + number * line, count = row.start.length;
      c.fillStyle = ink; c.textAlign = "right"; c.fillText(row.name, left - 6, y + line / 2);
      var seen = -1;
      for (var at = first(row, from); count > at; at += 1) {
        if (row.start[at] > to) { break; }
        var a = Math.max(left, left + (row.start[at] - from) * scale);
        var b = Math.min(width, left + (row.start[at] + row.length[at] - from) * scale);
        if (seen > b) { continue; }
        c.fillStyle = inks[row.kind[at]];
        c.fillRect(a, y + 1, Math.max(0.4, b - a - (b - a > 3 ? 0.6 : 0)), line - 2);
        if (row.critical[at]) { c.fillStyle = path; c.fillRect(a, y + line - 3, Math.max(0.6, b - a), 2); }
        if (b - a > 7 * row.task[at].length) {
          c.fillStyle = colour("--page"); c.textAlign = "center"; c.fillText(row.task[at], (a + b) / 2, y + line / 2);
        }
        seen = b - a > 0.4 ? -1 : a + 0.2;
      }
    });
    if (held) {
      c.fillStyle = colour("--cut-fill");
      c.fillRect(Math.min(held.x, held.to), 16, Math.abs(held.to - held.x), height);
    }
    canvas.dataset.drawn = [from, to].join(" ");
  }
  function look(a, b) {
    var span = Math.min(data.ticks, Math.max(20, b - a));
    from = Math.max(0, Math.min(a, data.ticks - span)); to = from + span; draw();
  }
  function place(event) {
    var box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top, width: box.width };
  }
  function ticks(x, width) { return from + (Math.max(left, x) - left) * (to - from) / (width - left); }
  canvas.addEventListener("pointerdown", function (event) {
    var at = place(event);
    held = { x: Math.max(left, at.x), to: Math.max(left, at.x) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", function (event) {
    var at = place(event);
    if (held) { held.to = Math.max(left, at.x); draw(); return; }
    var row = rows[Math.floor((at.y - 20) / line)], when = ticks(at.x, at.width);
    told.textContent = hint;
    if (!row) { return; }
    var found = first(row, when);
    if (found >= row.start.length) { return; }
    if (row.start[found] > when) { return; }
    told.textContent = row.name + ": " + row.task[found] + " (" + data.kinds[row.kind[found]] + "), " +
      time(row.start[found]) + " to " + time(row.start[found] + row.length[found]) + ", " + time(row.length[found]) +
      (row.critical[found] ? ", on the critical path" : "");
  });
  canvas.addEventListener("pointerup", function (event) {
    if (!held) { return; }
    var at = place(event);
    var a = ticks(Math.min(held.x, held.to), at.width), b = ticks(Math.max(held.x, held.to), at.width);
    var wide = Math.abs(held.to - held.x) > 4;
    held = null;
    if (wide) { look(a, b); } else { draw(); }
  });
  canvas.addEventListener("dblclick", function () { look(0, data.ticks); });
  var acts = {
    whole: function () { look(0, data.ticks); },
    "in": function () { var span = (to - from) / 4; look(from + span, to - span); },
    out: function () { var span = (to - from) / 2; look(from - span, to + span); },
    left: function () { var span = (to - from) / 2; look(from - span, to - span); },
    right: function () { var span = (to - from) / 2; look(from + span, to + span); }
  };
  Array.from(document.querySelectorAll("button.act")).forEach(function (button) {
    button.addEventListener("click", acts[button.dataset.act]);
  });
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
"""
"""Draws the canvas; the text holds neither ``<`` nor ``&``, so that pages stay well-formed XML."""
