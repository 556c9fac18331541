"""Simulate concurrent collectives of several groups on one cluster, each with its own start time.

Tensor, pipeline, data and expert groups are schedules on parts of one cluster. Their messages run together: they share
links and engines and nothing else. What a group loses by that is its *slowdown*: its time beside the others over its
time alone. Simultaneous messages are served in the order in which the jobs are given.

Join the messages of several jobs into one table on the union of their topologies. The topologies on which the groups of
a job were planned are parts of one cluster. Nodes are the same where they have the same name. Plans for parts of a
cluster (``topology.subset``) keep its names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.files.jobs_file import decode_jobs
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.forest import Forest
from coppice.schedule.messages import Messages, Routes, messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.engine import run
from coppice.simulation.models import Model, Sharing, model_of
from coppice.simulation.simulator import fastest
from coppice.simulation.timeline import Timeline
from coppice.simulation.utilisation import link_time_us, passages
from coppice.text import parse_size
from coppice.topology.model import Link, Node, Topology
from coppice.topology.sources import resolve

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import SimulatedJobJson, SimulatedJobsJson


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Joined(Brief):
    """Messages of several jobs in one table."""

    messages: Messages  # All of them, job after job
    first: NDArray[np.int64]  # First message of each job, and the number of all (int64)

    def of_job(self, number: int) -> slice:
        """Messages of one job."""
        return slice(int(self.first[number]), int(self.first[number + 1]))


def joined(
    parts: Sequence[Messages], *, start_us: Sequence[float], topology: Topology | None = None
) -> Joined:
    """Join the messages of several jobs, each with its own start time.

    Args:
        topology: The cluster; None is what the topologies of the parts add up to.
    """
    if any(part.overhead_us is not None for part in parts):
        raise InputError(
            "expected messages that cost what the model says, found overheads of their own: join first."
        )
    if any(part.alike is not None for part in parts):
        raise InputError("expected all messages of a job, found some that stand for others: give them all.")
    topologies = [part.topology for part in parts]
    cluster = union(topologies if topology is None else [topology, *topologies])
    first = offsets(np.array([part.count for part in parts], dtype=np.int64))
    gates = np.cumsum([0, *(len(part.chained) for part in parts)])
    routes = np.cumsum([0, *(len(part.routes.num_links) for part in parts)])
    shift = {"route": routes, "send_gate": gates, "receive_gate": gates, "after": first}
    columns: dict[str, Any] = {
        each.name: _column(parts, each.name, shift.get(each.name))
        for each in fields(Messages)
        if each.name
        not in ("topology", "routes", "after_start", "due_us", "overhead_us", "sent_share", "job", "alike")
    }
    messages = Messages(
        topology=cluster,
        routes=_all_routes(parts, cluster),
        after_start=_after_start(parts),
        job=np.repeat(np.arange(len(parts), dtype=np.int32), [part.count for part in parts]),
        due_us=np.concatenate(
            [
                (part.due_us if len(part.due_us) else np.zeros(part.count)) + start
                for part, start in zip(parts, start_us, strict=True)
            ]
        ),
        **columns,
    )
    return Joined(messages, first)


def _column(parts: Sequence[Messages], name: str, shift: NDArray[np.int64] | None) -> NDArray[Any]:
    """A column of all jobs; what counts gates, routes or messages of a job counts those of all, and -1 stays.

    A column that some jobs leave empty is zero for them.
    """
    own = [getattr(part, name) for part in parts]
    longest = max(own, key=len)
    if name not in ("after", "chained") and len(longest):
        own = [c if len(c) else np.zeros(p.count, longest.dtype) for c, p in zip(own, parts, strict=True)]
    if shift is not None:
        own = [np.where(c >= 0, c + c.dtype.type(by), c) for c, by in zip(own, shift.tolist(), strict=False)]
    return np.concatenate(own)


def _all_routes(parts: Sequence[Messages], cluster: Topology) -> Routes:
    nodes, links = [], []
    for part in parts:
        node, link = _places(part.topology, cluster)
        nodes.append(node[part.routes.nodes])
        links.append(link[part.routes.links])
    return Routes(
        node_start=_starts([part.routes.node_start for part in parts]),
        nodes=np.concatenate(nodes),
        link_start=_starts([part.routes.link_start for part in parts]),
        links=np.concatenate(links),
    )


def _places(topology: Topology, cluster: Topology) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Node and link of the cluster for each node and link of a part."""
    if topology is cluster:
        return np.arange(topology.num_nodes, dtype=np.int32), np.arange(topology.num_links, dtype=np.int32)
    node = np.array([cluster.node_index[name] for name in topology.node_ids], dtype=np.int32)
    ends = zip(node[topology.src].tolist(), node[topology.dst].tolist(), strict=True)
    return node, np.array([cluster.link_index[pair] for pair in ends], dtype=np.int32)


def _after_start(parts: Sequence[Messages]) -> NDArray[np.int64]:
    """Where the further dependencies of each message begin; empty where no job has any."""
    if not any(len(part.after_start) for part in parts):
        return np.zeros(0, dtype=np.int64)
    return _starts(
        [
            part.after_start if len(part.after_start) else np.zeros(part.count + 1, dtype=np.int64)
            for part in parts
        ]
    )


def _starts(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """First rows of segments in columns that are put one after the other."""
    return offsets(np.concatenate([np.diff(column) for column in columns]))


def union(topologies: Sequence[Topology]) -> Topology:
    """Union of the nodes and links of ``topologies``; one of them where it contains all others.

    Ranks of the result count all GPUs in order of their nodes, unless it is one of the given.

    Args:
        topologies: Parts of one cluster, one or more.

    Examples:
        >>> from coppice.topology.operations import subset
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-a100")
        >>> union([subset(box, [0, 1, 2]), subset(box, [2, 3])]).num_ranks
        4
    """
    nodes: dict[str, Node] = {}
    links: dict[tuple[str, str], Link] = {}
    members: list[set[str]] = []
    for topology in topologies:
        _join_nodes(topology, nodes)
        own = {(link.src, link.dst): link for link in topology.links()}
        members.append(set(topology.node_ids))
        _join_links(topology, own, links)
    _check_links(topologies, members, links)
    ranked = {topology.node_ids[v] for topology in topologies for v in topology.rank_nodes.tolist()}
    for topology in topologies:
        counts = (topology.num_nodes, topology.num_links, topology.num_ranks)
        if counts == (len(nodes), len(links), len(ranked)):
            return topology
    names = " + ".join(dict.fromkeys(topology.name for topology in topologies))
    return Topology.of(names, list(nodes.values()), links.values(), source=topologies[0].source)


def _join_nodes(topology: Topology, nodes: dict[str, Node]) -> None:
    for node in topology.nodes():
        node = replace(node, rank=None)
        if nodes.setdefault(node.id, node) != node:
            raise InputError(
                f"expected parts of one cluster, found that the node {node.id} of {topology.name} differs from the "
                "one of that name in another part: plan all on the same cluster."
            )


def _join_links(
    topology: Topology, own: dict[tuple[str, str], Link], links: dict[tuple[str, str], Link]
) -> None:
    for ends, link in own.items():
        known = links.setdefault(ends, link)
        if known != link:
            raise InputError(
                f"expected parts of one cluster, found {link.src} -> {link.dst} with {link.gb_per_s} GB/s and "
                f"{link.latency_us} us on {topology.name}, with {known.gb_per_s} GB/s and {known.latency_us} us on "
                "another part: plan all on the same cluster."
            )


def _check_links(
    topologies: Sequence[Topology], members: list[set[str]], links: dict[tuple[str, str], Link]
) -> None:
    """Refuse where a part has both ends of a link and not the link."""
    for topology, nodes in zip(topologies, members, strict=True):
        inside = sum(src in nodes and dst in nodes for src, dst in links)
        if inside == topology.num_links:
            continue
        names = topology.node_ids
        own = {(names[a], names[b]) for a, b in topology.link_index}
        src, dst = next(ends for ends in links if ends not in own and nodes.issuperset(ends))
        raise InputError(
            f"expected parts of one cluster, found that {topology.name} lacks the link {src} -> {dst} of another "
            "part: plan all on the same cluster."
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A collective of one group."""

    name: str  # What it is called in reports
    # What is carried out, on the whole cluster or a part of it that keeps the names of its nodes
    body: Schedule | Forest
    size_bytes: int  # M in bytes
    start_us: float = 0.0  # When it starts
    pieces: int = 1  # Every chunk is cut into so many pieces


@dataclass(frozen=True, kw_only=True)
class SharedLink:
    """Link shared with other jobs that is busy the longest while the job runs."""

    src: str  # Name of the node that it leaves
    dst: str  # Name of the node that it enters
    own_us: float  # Time that the job itself uses it
    others_us: dict[str, float]  # Time that each other job uses it meanwhile, by name, the longest first


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """Simulated times of one job."""

    job: Job  # The job
    time_us: float  # From its start until it was done, beside the others
    alone_us: float  # The same, alone on the cluster
    # The link that slows it, or None where it shares no link with others while it runs
    shared: SharedLink | None

    @property
    def slowdown(self) -> float:
        """Time with the other jobs over time alone, 1 where nothing takes time."""
        return self.time_us / self.alone_us if self.alone_us else 1.0

    def record(self) -> SimulatedJobJson:
        """The result as JSON values, without messages."""
        job, shared = self.job, self.shared
        return {
            "name": job.name,
            "collective": job.body.collective.value,
            "size_bytes": job.size_bytes,
            "start_us": job.start_us,
            "pieces": job.pieces,
            "time_us": self.time_us,
            "alone_us": self.alone_us,
            "slowdown": self.slowdown,
            "shared_link": None
            if shared is None
            else {"link": [shared.src, shared.dst], "own_us": shared.own_us, "others_us": shared.others_us},
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Together(Brief):
    """Result of several concurrent jobs."""

    topology: Topology  # The cluster
    results: tuple[JobResult, ...]  # What became of each job, in the given order
    timeline: Timeline  # All messages; those of job j are `first[j] .. first[j + 1] - 1`.
    first: NDArray[np.int64]  # First message of each job, and the number of all (int64)

    @property
    def time_us(self) -> float:
        """Completion time of the last job."""
        return self.timeline.time_us

    def record(self) -> SimulatedJobsJson:
        """The result as JSON values, without messages."""
        return {
            "topology": self.topology.name,
            "ranks": self.topology.num_ranks,
            "time_us": self.time_us,
            "jobs": [result.record() for result in self.results],
        }


def simulate_together(
    jobs: Sequence[Job], *, model: Model | None = None, topology: Topology | None = None
) -> Together:
    """Simulate several jobs concurrently, and each alone.

    Args:
        jobs: One or more, with different names.
        model: What messages cost; None is the default.
        topology: The cluster; None is what the jobs' topologies add up to (see :mod:`coppice.simulation.jobs`).

    Examples:
        Two all-gathers on the same four GPUs take twice as long as one:

        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.algorithms.catalogue import case_of, find, make
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
        >>> entry = find("ring", Collective.ALL_GATHER)
        >>> ring = make(entry, case_of(entry, problem))
        >>> jobs = [Job(name=name, body=ring, size_bytes=4_000_000) for name in ("a", "b")]
        >>> together = simulate_together(jobs, model=Model(overhead_us=0))
        >>> [round(result.slowdown, 2) for result in together.results]
        [1.67, 2.0]
    """
    model = model_of(model)
    _check(jobs)
    parts = [
        messages_of(
            job.body, job.size_bytes, pieces=job.pieces, steps_bind=model.steps_bind, packed=model.packed
        )
        for job in jobs
    ]
    alone = [
        _run(part, job.body.collective, job.size_bytes, model, keep=False)
        for job, part in zip(jobs, parts, strict=True)
    ]
    all_of = joined(parts, start_us=[job.start_us for job in jobs], topology=topology)
    timeline = _run(all_of.messages, jobs[0].body.collective, sum(job.size_bytes for job in jobs), model)
    ends = [_end(timeline, all_of, number, job) for number, job in enumerate(jobs)]
    shared = _shared_links(timeline, all_of, jobs, ends)
    results = [
        JobResult(job=job, time_us=end - job.start_us, alone_us=own.time_us, shared=link)
        for job, end, own, link in zip(jobs, ends, alone, shared, strict=True)
    ]
    return Together(
        topology=all_of.messages.topology, results=tuple(results), timeline=timeline, first=all_of.first
    )


def _check(jobs: Sequence[Job]) -> None:
    if not jobs:
        raise InputError("expected one job or more to simulate together, found none.")
    names: set[str] = set()
    for job in jobs:
        if job.name in names:
            raise InputError(f"expected jobs with different names, found {job.name!r} twice: rename one.")
        names.add(job.name)
        if not (isfinite(job.start_us) and job.start_us >= 0):
            raise InputError(f"expected job {job.name} to start at 0 us or later, found {job.start_us}.")


def _run(
    messages: Messages, collective: Collective, size_bytes: int, model: Model, *, keep: bool = True
) -> Timeline:
    """All messages with one protocol of the model, the fastest."""
    return min(
        (
            run(
                messages,
                model=model,
                collective=collective,
                size_bytes=size_bytes,
                profile=profile,
                keep_hops=keep,
                keep_rates=keep and model.sharing is Sharing.FAIR,
            )
            for profile in transport_profiles(model, messages.topology)
        ),
        key=lambda timeline: timeline.time_us,
    )


def _end(timeline: Timeline, all_of: Joined, number: int, job: Job) -> float:
    return float(timeline.finish_us[all_of.of_job(number)].max(initial=job.start_us))


def _shared_links(
    timeline: Timeline, all_of: Joined, jobs: Sequence[Job], ends: Sequence[float]
) -> list[SharedLink | None]:
    """For each job, the busiest of the links that others use while it runs."""
    owner = np.repeat(np.arange(len(jobs)), np.diff(all_of.first))
    topology = timeline.messages.topology
    passed = passages(timeline)
    found: list[SharedLink | None] = []
    for number, (job, end) in enumerate(zip(jobs, ends, strict=True)):
        used = link_time_us(passed, owner, len(jobs), topology.num_links, from_us=job.start_us, until_us=end)
        own = used[number]
        others = used.sum(axis=0) - own
        total = np.where((own > 0) & (others > 0), own + others, 0.0)
        if not total.any():
            found.append(None)
            continue
        link = int(np.argmax(total))
        by_name = {
            other.name: float(used[k, link]) for k, other in enumerate(jobs) if k != number and used[k, link]
        }
        found.append(
            SharedLink(
                src=topology.node_ids[topology.src[link]],
                dst=topology.node_ids[topology.dst[link]],
                own_us=float(own[link]),
                others_us=dict(sorted(by_name.items(), key=lambda item: (-item[1], item[0]))),
            )
        )
    return found


def read_jobs(path: Path, *, model: Model, pieces: int | None) -> tuple[list[Job], Topology | None]:
    """Read a jobs file: its jobs with their plans, and its cluster.

    Args:
        path: The file; plans and a topology file are found from where it lies.
        model: For the number of pieces that is the best.
        pieces: Pieces of jobs that name no number; None is the best for each alone.
    """
    document = decode_jobs(path)
    jobs = []
    for place, row in enumerate(document.jobs):
        plan = read_plan(path.parent / row.plan)
        size = row.size if isinstance(row.size, int) else parse_size(row.size, option=f"$.jobs[{place}].size")
        count = row.pieces if row.pieces is not None else pieces
        if count is None:
            count = fastest(plan.body, size, model=model, keep_hops=False).pieces
        jobs.append(Job(name=row.name, body=plan.body, size_bytes=size, start_us=row.start_us, pieces=count))
    return jobs, None if document.topology is None else _topology(document.topology, path)


def _topology(spec: str, path: Path) -> Topology:
    """The cluster: a file beside the jobs, or what a command line takes."""
    beside = path.parent / spec
    return resolve(str(beside) if beside.is_file() else spec)
