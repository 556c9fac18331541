"""Execution traces of ranks, whatever their format, replayed as tasks with collectives and messages matched.

Nodes run when what they wait for is done, those of one stream one after the other: threads of the host, the device,
each group. A receipt comes after its send (same ends and tag, the n-th with the n-th). Messages that are ready leave
together and share what their ends send and take. A collective begins when all ranks whose traces are there have come to
it (the n-th of a group with the n-th), and takes what it took the rank that waited least in it: measured times of
collectives hold the waiting for peers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coppice.errors import InputError
from coppice.iteration.machine import Cluster
from coppice.iteration.tasks import TaskGraphBuilder, TaskTimes, lower_bound_seconds, run_tasks
from coppice.iteration.totals import CollectiveTotal, collective_totals


class TraceWork(StrEnum):
    """Kind of work of a node."""

    COMPUTE = "compute"
    HOST = "host"
    COLLECTIVE = "collective"
    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, kw_only=True)
class TraceNode:
    """Node of a trace."""

    id: int  # Its number in its file
    name: str  # Its name
    work: TraceWork  # What it does
    after: tuple[int, ...] = ()  # Numbers of the nodes that it waits for
    seconds: float = 0.0  # How long it took; 0: the trace does not say
    stream: str = "compute"  # Where it runs, such as `thread 1`
    collective: str = ""  # The collective
    size_bytes: int = 0  # Bytes of a collective, or of a message
    group: str = ""  # Name of its group
    ranks: int = 0  # Ranks of the group; 0: the trace does not say
    peer: int = -1  # The other rank of a message; -1: none
    tag: int = 0  # Tag of a message


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """Trace of one rank."""

    file: str  # Name of its file
    kind: str  # `Chakra` or `PyTorch`
    rank: int  # The rank
    nodes: Sequence[TraceNode]  # Nodes in the order of the file

    def collectives(self) -> list[CollectiveTotal]:
        """Collectives and messages by kind and group, the most bytes first."""
        return collective_totals(self.collective_rows())

    def collective_rows(self) -> list[tuple[str, str, int, int]]:
        """Kind, group, ranks of the group, and bytes of each collective and message."""
        return [
            (each.collective or each.work.value, each.group, each.ranks, each.size_bytes)
            for each in self.nodes
            if each.work in (TraceWork.COLLECTIVE, TraceWork.SEND, TraceWork.RECEIVE)
        ]


_SCALED = {
    TraceWork.COMPUTE: "compute",
    TraceWork.HOST: "host",
    TraceWork.COLLECTIVE: "communication",
    TraceWork.SEND: "communication",
    TraceWork.RECEIVE: "communication",
}
_Key = tuple[int, int]
"""Trace and number of a node."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReplayedTraces:
    """Result of a replay."""

    times: TaskTimes  # When nodes run
    lower_bound_seconds: float  # What no order of the same nodes on these streams can beat
    timeless: int  # Collectives and sends for which neither traces nor a cluster give a time
    met: int  # Messages whose send and receipt are both there
    alone: int  # Messages with only one of them

    @property
    def seconds(self) -> float:
        """Time from the first node to the last."""
        return self.times.seconds


def replay_traces(
    traces: Sequence[ExecutionTrace],
    *,
    # What messages and collectives take for which the traces have no time; None: nothing
    cluster: Cluster | None = None,
    scale: Mapping[str, float] | None = None,  # Factors by kind: `compute`, `communication`, `host`
) -> ReplayedTraces:
    """Simulate traces together."""
    _require_distinct(traces)
    factors = dict.fromkeys(("compute", "communication", "host"), 1.0) | dict(scale or {})
    several = len(traces) > 1
    graph = TaskGraphBuilder()
    number: dict[_Key, int] = {}
    meetings, least = _meetings(traces)
    sends, met, alone = _messages(traces)
    waits: dict[_Key, list[int]] = {}
    timeless = 0
    for place, trace in enumerate(traces):
        prefix = f"rank {trace.rank} " if several else ""
        for each in trace.nodes:
            key = (place, each.id)
            seconds = least.get(key, each.seconds) or _estimated(each, trace.rank, cluster, len(traces))
            timeless += not seconds and each.size_bytes > 0 and each.work is not TraceWork.RECEIVE
            loads = {}
            if each.work is TraceWork.SEND:
                loads = {f"out of rank {trace.rank}": 1.0, f"into rank {each.peer}": 1.0}
            elif each.work is TraceWork.RECEIVE:
                seconds = seconds if cluster is None and key not in sends else 0.0
            stream = graph.stream(prefix + each.stream) if each.stream else -1
            number[key] = graph.add(
                each.name or each.work.value,
                each.collective or each.work.value,
                stream,
                seconds * factors[_SCALED[each.work]],
                loads=loads,
            )
    for place, trace in enumerate(traces):
        for each in trace.nodes:
            key = (place, each.id)
            # Converters leave out nodes that others still name; these do not bind.
            waits[key] = [other for other in each.after if (place, other) in number]
            after = [number[place, other] for other in waits[key]]
            if key in sends:
                after.append(number[sends[key]])
            graph.await_tasks(number[key], after)
    for members in meetings:
        before = [number[place, other] for place, one in members for other in waits[place, one]]
        meeting = graph.barrier("all ranks are here", before)
        for key in members:
            graph.await_tasks(number[key], [meeting])
    built = graph.build()
    return ReplayedTraces(
        times=run_tasks(built),
        lower_bound_seconds=lower_bound_seconds(built),
        timeless=timeless,
        met=met,
        alone=alone,
    )


def _require_distinct(traces: Sequence[ExecutionTrace]) -> None:
    """Refuse two traces of one rank."""
    seen: dict[int, str] = {}
    for each in traces:
        if each.rank in seen:
            raise InputError(
                f"expected traces of different ranks, found rank {each.rank} in {seen[each.rank]} and {each.file}: "
                "name one of them."
            )
        seen[each.rank] = each.file


def _meetings(traces: Sequence[ExecutionTrace]) -> tuple[list[list[_Key]], dict[_Key, float]]:
    """Matched collectives, each with the shortest time of any rank."""
    if len(traces) < 2:
        return [], {}
    groups: dict[str, dict[int, list[TraceNode]]] = defaultdict(lambda: defaultdict(list))
    for place, trace in enumerate(traces):
        for each in trace.nodes:
            if each.work is TraceWork.COLLECTIVE:
                groups[each.group][place].append(each)
    meetings, least = [], {}
    for group, members in groups.items():
        counts = {place: len(found) for place, found in members.items()}
        if len(set(counts.values())) > 1:
            few, many = min(counts, key=lambda one: counts[one]), max(counts, key=lambda one: counts[one])
            raise InputError(
                f"expected as many collectives of group {group or '(unnamed)'} in each trace, found {counts[few]} in "
                f"{traces[few].file} and {counts[many]} in {traces[many].file}: trace the same steps of all ranks."
            )
        for turn in zip(*members.values(), strict=True):
            keys = [(place, each.id) for place, each in zip(members, turn, strict=True)]
            meetings.append(keys)
            shortest = min(each.seconds for each in turn)
            least.update(dict.fromkeys(keys, shortest))
    return meetings, least


def _messages(traces: Sequence[ExecutionTrace]) -> tuple[dict[_Key, _Key], int, int]:
    """Send of each receive; number of matched and of unmatched messages."""
    sent: dict[tuple[int, int, int, int], _Key] = {}
    there = {trace.rank for trace in traces}
    count: dict[tuple[int, int, int], int] = defaultdict(int)
    for place, trace in enumerate(traces):
        for each in trace.nodes:
            if each.work is TraceWork.SEND:
                ends = (trace.rank, each.peer, each.tag)
                sent[(*ends, count[ends])] = (place, each.id)
                count[ends] += 1
    found: dict[_Key, _Key] = {}
    taken: dict[tuple[int, int, int], int] = defaultdict(int)
    alone = 0
    for place, trace in enumerate(traces):
        for each in trace.nodes:
            if each.work is not TraceWork.RECEIVE:
                continue
            ends = (each.peer, trace.rank, each.tag)
            key = (*ends, taken[ends])
            taken[ends] += 1
            if key in sent:
                found[place, each.id] = sent[key]
            elif each.peer in there and len(traces) > 1:
                raise InputError(
                    f"expected a send from rank {each.peer} with tag {each.tag} for node {each.id} of {trace.file}, "
                    "found none: name traces of one job."
                )
            else:
                alone += 1
    return found, len(found), alone + len(sent) - len(found)


def _estimated(each: TraceNode, rank: int, cluster: Cluster | None, traces: int) -> float:
    """Time of a message or collective on a cluster."""
    if cluster is None or not each.size_bytes:
        return 0.0
    if each.work is TraceWork.COLLECTIVE:
        ranks = each.ranks or traces
        rounds = 2 if each.collective == "all_reduce" else 1
        return cluster.ring_seconds(each.size_bytes, ranks, 1, rounds=rounds)
    if each.work is TraceWork.SEND and each.peer >= 0:
        crosses = rank // cluster.device.box != each.peer // cluster.device.box
        return cluster.send_seconds(each.size_bytes, cluster.device.box if crosses else 1)
    return 0.0
