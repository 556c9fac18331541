"""The critical path in words: which transfer waited for what, from the first moment to the last."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.simulation.timeline import Reason, Stage, Timeline

_ABOUT = {
    Reason.NONE: "starts at once",
    Reason.DEPENDENCY: "waited for what came before it",
    Reason.ENGINE: "waited for an engine",
    Reason.LINK: "queued for a link",
    Reason.ROUTE: "waited for its route",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PathSegment:
    """Stages of the critical path that follow each other for the same reason, on the same link."""

    first: Stage  # The first of them
    last: Stage  # The last of them
    count: int  # How many they are
    before: Stage | None  # The stage before, which the first of them waited for, or None


def critical_segments(timeline: Timeline) -> list[PathSegment]:
    """The critical path, with what queues on one link drawn together."""
    segments: list[PathSegment] = []
    before: Stage | None = None
    for stage in timeline.critical_path():
        open_one = segments[-1] if segments else None
        if (
            open_one is not None
            and stage.reason in (Reason.LINK, Reason.ROUTE)
            and (stage.reason, stage.link) == (open_one.last.reason, open_one.last.link)
            and (stage.link >= 0 or _ends(timeline, stage) == _ends(timeline, open_one.last))
        ):
            count = open_one.count + 1
            segments[-1] = PathSegment(first=open_one.first, last=stage, count=count, before=open_one.before)
        else:
            segments.append(PathSegment(first=stage, last=stage, count=1, before=before))
        before = stage
    return segments


def time_by_reason(timeline: Timeline) -> dict[str, float]:
    """Microseconds of the critical path by why its stages did not begin earlier; ``start`` is before the first one."""
    spent: dict[str, float] = {}
    path = timeline.critical_path()
    if path and path[0].begin_us:
        spent["start"] = path[0].begin_us
    for stage in path:
        name = stage.reason.name.lower()
        spent[name] = spent.get(name, 0.0) + stage.end_us - stage.begin_us
    return spent


def critical_lines(timeline: Timeline, most: int = 12) -> list[str]:
    """The critical path as lines of text; the middle of a long one is left out.

    Args:
        most: Stretches that are told at most.
    """
    segments = critical_segments(timeline)
    if len(segments) <= most:
        return [_line(timeline, segment) for segment in segments]
    head, tail = segments[: (most + 1) // 2], segments[len(segments) - most // 2 :]
    hidden = segments[len(head) : len(segments) - len(tail)]
    spent = hidden[-1].last.end_us - hidden[0].first.begin_us
    between = f"{'':>22}  ... {sum(each.count for each in hidden)} further messages, {spent:.2f} us ..."
    return [*(_line(timeline, each) for each in head), between, *(_line(timeline, each) for each in tail)]


def _line(timeline: Timeline, segment: PathSegment) -> str:
    first, last = segment.first, segment.last
    span = f"{first.begin_us:>9.2f} .. {last.end_us:>9.2f}"
    if segment.count > 1:
        where = (
            f"on {timeline.topology.link_name(first.link)}"
            if first.link >= 0
            else f"from {_ends(timeline, first)}"
        )
        return f"{span}  {segment.count} messages one after the other {where}"
    bytes_ = int(timeline.num_bytes[first.message])
    words = f"{_ends(timeline, first)}, {bytes_:,} bytes: {_ABOUT[first.reason]}"
    if first.reason is Reason.LINK:
        words = words.removesuffix("a link") + timeline.topology.link_name(first.link)
    if segment.before is not None and first.reason is not Reason.NONE:
        words += f" ({_ends(timeline, segment.before)})"
    return f"{span}  {words}"


def ends_of(timeline: Timeline, message: int) -> tuple[int, int]:
    """Nodes that send and receive a message."""
    routes, route = timeline.messages.routes, int(timeline.messages.route[message])
    start, end = routes.node_start[route], routes.node_start[route + 1]
    return int(routes.nodes[start]), int(routes.nodes[end - 1])


def _ends(timeline: Timeline, stage: Stage) -> str:
    names = timeline.topology.node_ids
    src, dst = ends_of(timeline, stage.message)
    return f"{names[src]} -> {names[dst]}"
