"""Gantt chart of a simulated plan: a row per link, a bar per message, and the critical path.

Links that carry equally much, such as those of ranks that are alike, share a row with their count: the moments in it
are those of one of them.

Links serve one message at a time, so the bars of a row never overlap. Where a row has more messages than can be told
apart, the height of an area shows how much of each moment the link is in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np
from numpy.typing import NDArray

from coppice.report.svg import Markup, drawing, element, escape, fitted, join, number
from coppice.simulation.timeline import PathSegment, Reason, Timeline, critical_segments, ends_of
from coppice.text import plural, rate_text, shortened, time_text
from coppice.topology.model import Topology

WIDTH = 1100.0
LEFT, RIGHT = 210.0, 14.0
LINE = 20.0
MOST_ROWS = 32
MOST_BARS = 1800
"""Bars of a picture: about 300 KB with their words."""

MOST_LOOKS = 50_000_000
"""Links times messages up to which links are told apart by what they carry when."""

_COLUMN = 3.0
"""Width of the columns in which the use of a link of many messages is counted."""

_WHY = {
    Reason.NONE: "started at once",
    Reason.DEPENDENCY: "waited for what it depends on",
    Reason.ENGINE: "waited for an engine",
    Reason.LINK: "queued for a link",
    Reason.ROUTE: "waited for its route",
}


@dataclass(frozen=True, kw_only=True)
class TimelinePicture:
    """A Gantt chart."""

    svg: Markup  # The picture
    rows: int  # Links that it shows, those that share a row included
    folded: bool  # Some rows stand for several links, which carry equally much
    used: int  # Links that carry anything
    areas: bool  # Some links have too many messages for bars: areas show how much they are in use


def timeline_picture(timeline: Timeline) -> TimelinePicture:
    """Draw the busiest links of each class over time, and the critical path.

    Args:
        timeline: A simulation with links that serve one message at a time, passages kept.
    """
    links, used = _rows(timeline)
    shown = sum(map(len, links))
    end = timeline.time_us or 1.0
    scale = (WIDTH - LEFT - RIGHT) / end
    bottom = 24 + (len(links) + 1) * LINE + 6
    parts = [_axis(end, scale, bottom), _critical(timeline, scale)]
    each = max(MOST_BARS // max(len(links), 1), 40)
    together = False
    for at, alike in enumerate(links):
        row, merged = _row(timeline, alike, 24 + (at + 1) * LINE + 6, scale, each)
        together = together or merged
        parts.append(row)
    svg = drawing(
        WIDTH, bottom + 8, join(parts), name="timeline", label="What links do over time in the simulated plan"
    )
    return TimelinePicture(svg=svg, rows=shown, folded=shown > len(links), used=used, areas=together)


def _rows(timeline: Timeline) -> tuple[list[list[int]], int]:
    """Links of each row to show, class by class (ends, rate), and how many links are used.

    Of each class the busiest, as many as there is room for; classes in the order of their busiest link.
    """
    topology, busy = timeline.topology, timeline.link_busy_us
    used = np.flatnonzero(timeline.link_bytes > 0)
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    classes: dict[tuple[int, int, int], list[list[int]]] = defaultdict(list)
    looks = len(used) * timeline.messages.count <= MOST_LOOKS
    for link in used[np.argsort(-busy[used].round(6), kind="stable")].tolist():
        kinds = (int(topology.kind[topology.src[link]]), int(topology.kind[topology.dst[link]]))
        sort = (*kinds, int(topology.capacity[link]))
        row = rows[(*sort, *(_carried(timeline, link) if looks else (link,)))]
        if not row:
            classes[sort].append(row)
        row.append(link)
    room = max(MOST_ROWS // max(len(classes), 1), 1)
    shown = {key: members[:room] for key, members in classes.items()}
    spare = MOST_ROWS - sum(map(len, shown.values()))
    for key, members in classes.items():
        extra = members[len(shown[key]) : len(shown[key]) + max(spare, 0)]
        shown[key] = shown[key] + extra
        spare -= len(extra)
    return [row for members in shown.values() for row in members][:MOST_ROWS], len(used)


def _carried(timeline: Timeline, link: int) -> tuple[int, ...]:
    """Messages of a link, those that are added, and their bytes."""
    messages, _, _ = timeline.passages(link)
    adds = timeline.messages.added_bytes[messages] > 0
    sizes = timeline.num_bytes[messages]
    return len(messages), int(adds.sum()), int(sizes.sum()), int(sizes[adds].sum())


def _axis(end: float, scale: float, bottom: float) -> Markup:
    """Lines at round times."""
    step = 10.0 ** floor(log10(end))
    step = next((step * part for part in (0.1, 0.2, 0.5, 1.0) if end / (step * part) <= 8), step)
    parts = []
    for tick in range(int(end / step) + 1):
        x = LEFT + tick * step * scale
        parts.append(element("line", x1=x, y1=18, x2=x, y2=bottom, class_="grid"))
        if x < WIDTH - 30:
            label = "0" if tick == 0 else time_text(tick * step)
            parts.append(element("text", escape(label), x=x, y=12, class_="middle small quiet"))
    return join(parts)


def _critical(timeline: Timeline, scale: float) -> Markup:
    """What the whole time consists of, as a row of its own; segments too short to be seen are drawn with the next."""
    names = timeline.topology.node_ids
    bars = []
    waiting: list[PathSegment] = []
    segments = critical_segments(timeline)
    for at, segment in enumerate(segments):
        waiting.append(segment)
        begin, end = waiting[0].first.begin_us, segment.last.end_us
        if (end - begin) * scale < _COLUMN and at + 1 < len(segments):
            continue
        src, dst = ends_of(timeline, waiting[0].first.message)
        words = f"critical path, {time_text(begin)} to {time_text(end)}: {names[src]} → {names[dst]}"
        others = sum(each.count for each in waiting) - 1
        if others:
            words += f" and {plural(others, 'further message')}"
        words += f", {_WHY[waiting[0].first.reason]}"
        bars.append(_bar(LEFT + begin * scale, 25, (end - begin) * scale, "critical", words))
        waiting = []
    label = element("text", escape("critical path"), x=LEFT - 10, y=37, class_="end strong")
    return join([label, *bars])


def _row(timeline: Timeline, alike: Sequence[int], y: float, scale: float, most: int) -> tuple[Markup, bool]:
    """What each of some links carries: a bar for each message, or how much it is in use where they are many."""
    topology, link = timeline.topology, alike[0]
    src, dst = topology.node_ids[topology.src[link]], topology.node_ids[topology.dst[link]]
    name = f"{src} → {dst}"
    count = f" ×{len(alike)}" if len(alike) > 1 else ""
    messages, begin, end = timeline.passages(link)
    adds = timeline.messages.added_bytes[messages] > 0
    title = (
        f"{name}, {rate_text(topology.gb_per_s(link))} GB/s, {plural(len(messages), 'message')}, "
        f"in use {100 * timeline.utilisation(link):.3g}% of the time"
    )
    if count:
        title += f"; {len(alike)} links alike: {shortened([topology.link_name(each) for each in alike], 16)}"
    words = element("title", escape(title))
    label = element(
        "text",
        escape(f"{_short(topology, link, LEFT - 14 - 6 * len(count))}{count}"),
        x=LEFT - 10,
        y=y + 12,
        class_="end small",
    )
    if len(messages) > most:
        areas = _areas(begin, end, adds, y, timeline.time_us)
        return element("g", words, label, *areas), True
    bars = []
    columns = (messages, begin, end, adds)
    for message, start, stop, is_added in zip(*(column.tolist() for column in columns), strict=True):
        span = f"{time_text(start)} to {time_text(stop)}"
        about = f"{int(timeline.num_bytes[message]):,} bytes on {name}, {span}"
        x, width = LEFT + start * scale, (stop - start) * scale
        bars.append(_bar(x, y + 1, width, "add" if is_added else "send", about))
    return join([element("g", words, label), *bars]), False


def _areas(
    begin: NDArray[np.float64], end: NDArray[np.float64], adds: NDArray[np.bool_], y: float, time_us: float
) -> list[Markup]:
    """Use of a link over time as areas on top of each other, what is added below what is copied."""
    columns = int((WIDTH - LEFT - RIGHT) / _COLUMN)
    edges = np.linspace(0.0, time_us, columns + 1)
    below = np.zeros(columns)
    areas = []
    for kind, colour in ((adds, "add"), (~adds, "send")):
        if not kind.any():
            continue
        # Passages never overlap: between their ends the time in use grows by the time that passes, or not at all.
        moments = np.stack([begin[kind], end[kind]], axis=1).reshape(-1)
        used = np.repeat(np.cumsum(end[kind] - begin[kind]), 2)
        used[0::2] -= end[kind] - begin[kind]
        share = np.diff(np.interp(edges, moments, used, left=0.0)) / np.diff(edges)
        height = (np.clip(share, 0.0, 1.0) * (LINE - 5)).round(1)
        path = _steps(below, height, y + LINE - 4)
        if path:
            areas.append(element("path", d=path, class_=colour))
        below = below + height
    return areas


def _steps(below: NDArray[np.float64], height: NDArray[np.float64], ground: float) -> str:
    """Rectangles of neighbouring columns of one height as a path."""
    parts = []
    first = 0
    columns = list(zip(below.tolist(), height.tolist(), strict=True))
    for at in range(1, len(columns) + 1):
        if at < len(columns) and columns[at] == columns[first]:
            continue
        base, tall = columns[first]
        if tall > 0:
            x, width = LEFT + first * _COLUMN, (at - first) * _COLUMN
            parts.append(
                f"M{number(x)} {number(ground - base)}v{number(-tall)}h{number(width)}v{number(tall)}z"
            )
        first = at
    return "".join(parts)


def _bar(x: float, y: float, width: float, colour: str, words: str) -> Markup:
    """A bar, a hair shorter than it lasts so that neighbours are told apart."""
    drawn = max(width - (0.6 if width > 2.5 else 0.0), 0.5)
    return element(
        "rect", element("title", escape(words)), x=x, y=y, width=drawn, height=LINE - 5, class_=colour
    )


def _short(topology: Topology, link: int, room: float) -> str:
    """Name of a link that fits the margin: the box once where both ends are in it."""
    src, dst = topology.node_ids[topology.src[link]], topology.node_ids[topology.dst[link]]
    box, slash, end = dst.partition("/")
    if slash and src.startswith(f"{box}/"):
        dst = end
    return fitted(f"{src} → {dst}", room, 9)
