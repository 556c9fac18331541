"""TACOS (MICRO 2024): match chunks greedily to links as these become free, over many random attempts.

Routes from rank to rank, and how long a chunk occupies each of their links. TACOS knows direct links only. Here a path
through switches and NICs is a route as well, and every link that it takes is a port that serves one chunk at a time:
all routes out of a GPU share its port of the switch, all routes into it another one, and the uplinks of a leaf are
shared by whoever crosses them. A link is held for its own latency and the chunk's bytes at its own rate, so the fast
port in front of a slow one is free again early (cut-through); a chunk has come after the latencies of all links and its
bytes at the slowest rate.

TACOS: match chunks greedily to links as these become free, over many random attempts. Won, Elavazhagan, Srinivasan,
Gupta and Krishna, "TACOS: Topology-Aware Collective Algorithm Synthesizer for Distributed Machine Learning", MICRO
2024. The search itself is native (cpp/tacos/tacos.h); what is right where there are switches, the paper leaves open.

A broadcast and an all-gather are matched as they are; a reduce and a reduce-scatter are those on the network with every
link turned round, backwards in time; an all-reduce is a reduce-scatter and then an all-gather. An all-to-all is
matched where every two ranks have a route: TACOS brings chunks only to ranks that want them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, lcm
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.planners.synthesis.timed import TimedTransfers, joined, reversed_in_time, timed_schedule
from coppice.rows import offsets
from coppice.schedule.schedule import Op, hops_of
from coppice.text import plural, short_size, size_of, time_text
from coppice.topology.model import Topology
from coppice.topology.routing import Router

MOST_ROUTES = 2**20
WAYS = 4
"""Equally good paths between two ranks that are routes of their own."""
MANY_RANKS = 128
"""From more ranks than that on, one path between two ranks has to do."""
SUM_LIMIT = 2**61


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ChunkRoutes(Brief):
    """Routes between ranks with the transfer time of a chunk."""

    src: NDArray[np.int32]  # Rank that each leaves (int32)
    dst: NDArray[np.int32]  # Rank that each enters (int32)
    duration: NDArray[np.int64]  # From the start to the arrival of a chunk (int64, in units of `unit`)
    port_start: NDArray[np.int64]  # Ports of route k are `port[port_start[k] : port_start[k + 1]]` (int64)
    port: NDArray[np.int32]  # Links that it takes (int32)
    hold: NDArray[np.int64]  # How long a chunk holds each of them (int64)
    num_ports: int  # Number of links
    path_nodes: NDArray[np.int32]  # Its nodes: those of route k begin at `port_start[k] + k` (int32)
    # Microseconds of a unit of time for a chunk of the given size; without one, seconds per (GB of chunk)
    unit: Fraction
    exact: bool  # Times are exact, and not rounded up to a grid

    @property
    def path_start(self) -> NDArray[np.int64]:
        """First node position of each route."""
        return self.port_start + np.arange(len(self.port_start))

    def turned(self) -> ChunkRoutes:
        """Reverse routes on the transposed network; paths stay as they are."""
        return ChunkRoutes(
            src=self.dst,
            dst=self.src,
            duration=self.duration,
            port_start=self.port_start,
            port=self.port,
            hold=self.hold,
            num_ports=self.num_ports,
            path_nodes=self.path_nodes,
            unit=self.unit,
            exact=self.exact,
        )


def chunk_routes_of(topology: Topology, chunk_bytes: int | None, transfers: int) -> ChunkRoutes:
    """Routes of a topology.

    Args:
        chunk_bytes: Size of a chunk; None is the limit of large ones, where latency does not count.
        transfers: How many transfers may follow one another, at most; their times add up to less than 2^61.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> star = chunk_routes_of(preset("star", gpus=3, gb_per_s=25), None, 100)
        >>> star.src.tolist(), star.duration.tolist(), str(star.unit)
        ([0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1], '1/25')
    """
    src, dst = _pairs(topology)
    ways = WAYS if topology.num_ranks <= MANY_RANKS and (topology.rank < 0).any() else 1
    if len(src) > MOST_ROUTES:
        raise InputError(
            f"tacos matches up to {MOST_ROUTES:,} routes between ranks, found {len(src):,}: use fewer ranks."
        )
    way = np.tile(np.arange(ways), len(src))
    start, nodes = Router(topology).paths(np.repeat(src, ways), np.repeat(dst, ways), way)
    start, nodes = _distinct(start, nodes)
    hops = hops_of(topology, start, nodes)
    port_start = offsets(np.diff(start) - 1)
    duration, hold, unit, exact = _times(topology, hops.link, port_start, chunk_bytes, transfers)
    return ChunkRoutes(
        src=topology.rank[nodes[start[:-1]]],
        dst=topology.rank[nodes[start[1:] - 1]],
        duration=duration,
        port_start=port_start,
        port=hops.link.astype(np.int32),
        hold=hold,
        num_ports=topology.num_links,
        path_nodes=nodes,
        unit=unit,
        exact=exact,
    )


def _pairs(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks that a link joins, or a path through nodes without a rank; by receiver."""
    rank = topology.rank
    reached: dict[int, set[int]] = {}  # node without a rank: ranks that lead to it

    into: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        into[b].append(a)

    def sources(node: int) -> set[int]:
        """Ranks from which only nodes without a rank lie in between."""
        if node in reached:
            return reached[node]
        seen, queue, found = {node}, [node], set[int]()
        while queue:
            for before in into[queue.pop()]:
                if rank[before] >= 0:
                    found.add(int(rank[before]))
                elif before not in seen:
                    seen.add(before)
                    queue.append(before)
        reached[node] = found
        return found

    pairs = []
    for receiver, node in enumerate(topology.rank_nodes.tolist()):
        ends: set[int] = set()
        for before in into[node]:
            ends |= {int(rank[before])} if rank[before] >= 0 else sources(before)
        pairs += [(sender, receiver) for sender in sorted(ends - {receiver})]
    columns = np.array(sorted(pairs, key=lambda pair: (pair[1], pair[0])), dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _distinct(
    start: NDArray[np.int64], nodes: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Each path once, by sender and receiver."""
    paths = {tuple(nodes[a:b].tolist()) for a, b in zip(start[:-1].tolist(), start[1:].tolist(), strict=True)}
    listed = sorted(paths, key=lambda path: (path[0], path[-1], path))
    return (
        offsets(np.array([len(path) for path in listed], dtype=np.int64)),
        np.array([node for path in listed for node in path], dtype=np.int32),
    )


def _times(
    topology: Topology,
    link: NDArray[np.int64],
    port_start: NDArray[np.int64],
    chunk_bytes: int | None,
    transfers: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Fraction, bool]:
    """Duration of each route and hold of each of its ports in whole units, the unit, and whether they are exact."""
    rates = [Fraction(c, topology.denominator) for c in topology.capacity.tolist()]
    if chunk_bytes is None:
        latency = [Fraction(0)] * len(rates)
        serving = [1 / rate for rate in rates]
    else:
        latency = [Fraction(str(us)) for us in topology.latency_us.tolist()]
        serving = [chunk_bytes / (1000 * rate) for rate in rates]
    longest = max((a + b for a, b in zip(latency, serving, strict=True)), default=Fraction(1))
    hops = int(np.diff(port_start).max(initial=1))
    most_units = SUM_LIMIT // (max(transfers, 1) * hops)
    common = lcm(*(each.denominator for each in (*latency, *serving)))
    exact = longest * common <= most_units
    unit = Fraction(1, common) if exact else longest / min(most_units // 2, 2**40)
    own = np.array([ceil((a + b) / unit) for a, b in zip(latency, serving, strict=True)], dtype=np.int64)
    wait = np.array([ceil(each / unit) for each in latency], dtype=np.int64)
    hold = own[link]
    serve = hold - wait[link]
    first = port_start[:-1]
    duration = np.add.reduceat(wait[link], first) + np.maximum.reduceat(serve, first) if len(link) else hold
    shared = int(np.gcd.reduce(np.concatenate([duration, hold, wait[wait > 0]]))) if len(link) else 1
    return duration // shared, hold // shared, unit * shared, exact


RULES = {"random": 0, "rarest": 1, "local": 2}
MOST_TRANSFERS = 2**24
USUAL_CHUNKS = 12
USUAL_TRANSFERS = 2**14


class TacosOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of TACOS."""

    # Chunks of each block; None: 12, and fewer down to 1 where that makes more than 2^14 transfers; as many
    # as there are ranks, and at least 12, of a broadcast and a reduce; one of an all-to-all
    chunks: int | None = None
    # Size of a chunk, such as 1M, where latency counts; None: the limit of large chunks
    chunk_size: str | int | None = None
    seeds: int = 20  # Attempts with different random numbers, of which the best is kept
    # How a chunk is drawn (see cpp/tacos/tacos.h); `auto` takes them in turn, attempt by attempt
    rule: Literal["auto", "random", "rarest", "local"] = "auto"
    # Threads that share the attempts; None: one for each core. The result does not depend on it.
    threads: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Demand:
    """Chunks to move."""

    slot: NDArray[np.int64]  # Slot of each chunk (int64)
    source: NDArray[np.int32]  # Rank that has it (int32)
    target: NDArray[np.int32]  # Rank that wants it, or -1: all of the group of its source (int32)
    # Group of each rank (int32); empty: all are one
    group: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))


@dataclass(frozen=True, eq=False, kw_only=True)
class BestAttempt:
    """Best attempt of one direction."""

    transfers: TimedTransfers
    time: int
    attempt: int


def synthesize_tacos(request: Request) -> Synthesis:
    """Best of many greedy matchings.

    Args:
        request: The problem with :class:`TacosOptions`.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("torus", dims=(4, 4)), Collective.ALL_GATHER)
        >>> found = synthesize_tacos(Request(problem=problem, options=TacosOptions(chunks=1)))
        >>> found.details["makespan_algbw_gb_per_s"]
        4.0
    """
    problem, options = request.problem, request.options
    check_problem(problem)
    _check(problem, options)
    demand = demand_of(problem, options.chunks)
    ranks, collective = problem.topology.num_ranks, problem.collective
    chunk_bytes = None if options.chunk_size is None else size_of(options.chunk_size)
    deliveries = int(np.where(demand.target < 0, ranks - 1, 1).sum())
    if deliveries > MOST_TRANSFERS:
        raise InputError(
            f"tacos makes up to {MOST_TRANSFERS:,} transfers, found {deliveries:,}: use fewer `chunks`."
        )
    routes = chunk_routes_of(problem.topology, chunk_bytes, (len(demand.slot) + 1) * (ranks + 1))
    check_reachable(problem, routes)
    search = Attempts(request, demand, deliveries)
    parts: list[BestAttempt] = []
    if collective.reduces:
        found = search.best(routes.turned())
        if found is not None:
            parts.append(
                BestAttempt(
                    transfers=reversed_in_time(found.transfers), time=found.time, attempt=found.attempt
                )
            )
    if not collective.reduces or (collective is Collective.ALL_REDUCE and parts):
        found = search.best(routes)
        if found is not None:
            parts.append(found)
    if len(parts) < (2 if collective is Collective.ALL_REDUCE else 1):
        if search.interrupted:
            raise KeyboardInterrupt
        return Synthesis(status=Status.UNKNOWN, words=(("attempts", "none was done in time"),))
    transfers = parts[0].transfers if len(parts) == 1 else joined(parts[0].transfers, parts[1].transfers)
    schedule = timed_schedule(
        problem,
        transfers,
        chunk_slot=demand.slot,
        path_start=routes.path_start,
        path_nodes=routes.path_nodes,
    )
    time = sum(part.time for part in parts) * routes.unit
    return Synthesis(
        status=Status.SAT,
        body=schedule,
        parameters={
            "chunks": int(np.count_nonzero(demand.slot == 0)),
            "chunk_size": chunk_bytes,
            "seed": request.seed,
            "attempts": " ".join(str(part.attempt) for part in parts),
            "rule": options.rule,
        },
        interrupted=search.interrupted,
        details=_details(problem, len(demand.slot), chunk_bytes, time, routes, search.done),
        words=_words(problem, len(demand.slot), chunk_bytes, time, search.done, parts, options.rule),
    )


def demand_of(problem: Problem, chunks: int | None) -> Demand:
    """Chunks to move (for reductions: in reverse).

    Args:
        chunks: Chunks of each block; None as in :class:`TacosOptions`.
    """
    ranks, collective = problem.topology.num_ranks, problem.collective
    whole = collective in (Collective.BROADCAST, Collective.REDUCE)
    each = _usual_chunks(problem) if chunks is None else chunks
    if whole:
        slot = np.zeros(each, dtype=np.int64)
        source = np.full(each, problem.root, dtype=np.int32)
    elif collective is Collective.ALL_TO_ALL:
        slot = np.repeat(np.arange(ranks * ranks, dtype=np.int64), each)
        source = (slot // ranks).astype(np.int32)
        return Demand(slot=slot, source=source, target=(slot % ranks).astype(np.int32))
    else:
        slot = np.repeat(np.arange(ranks, dtype=np.int64), each)
        source = slot.astype(np.int32)
    return Demand(slot=slot, source=source, target=np.full(len(slot), -1, dtype=np.int32))


def _usual_chunks(problem: Problem) -> int:
    """Chunks of each block where nobody says how many."""
    ranks = problem.topology.num_ranks
    if problem.collective is Collective.ALL_TO_ALL:
        return 1
    if problem.collective in (Collective.BROADCAST, Collective.REDUCE):
        return max(USUAL_CHUNKS, ranks)
    return max(1, min(USUAL_CHUNKS, USUAL_TRANSFERS // max(1, ranks * (ranks - 1))))


class Attempts:
    """Run attempts until done, out of time, or interrupted."""

    def __init__(self, request: Request, demand: Demand, deliveries: int) -> None:
        from coppice import _core

        self._match: Callable[..., Any] = _core.match_chunks
        self._request = request
        self._demand = demand
        self._ranks = request.problem.topology.num_ranks
        self._deliveries = deliveries
        self.done = 0
        self.interrupted = False

    def best(self, routes: ChunkRoutes) -> BestAttempt | None:
        """Best matching; None where none finishes in time."""
        request, options = self._request, self._request.options
        rules = [RULES[options.rule]] if options.rule != "auto" else [0, 1, 2]
        threads = _cores() if options.threads is None else options.threads
        # Small ones at once; of large ones some at a time, so that the best one is there on Ctrl-C.
        together = options.seeds if self._deliveries * options.seeds < 2**18 else threads
        best: BestAttempt | None = None
        limit = 2**62
        for first in range(0, options.seeds, together):
            left = request.seconds_left
            if left == 0.0 and best is not None:
                break
            count = min(together, options.seeds - first)
            try:
                time, attempt, start, route, chunk = self._match(
                    self._ranks,
                    routes.num_ports,
                    routes.src,
                    routes.dst,
                    routes.duration,
                    routes.port_start,
                    routes.port,
                    routes.hold,
                    self._demand.source,
                    self._demand.target,
                    self._demand.group,
                    np.array(rules, dtype=np.uint8),
                    request.seed,
                    first,
                    count,
                    threads,
                    limit,
                    -1.0 if left is None else left,
                )
            except KeyboardInterrupt:
                self.interrupted = True
                break
            if time >= 0 and (best is None or time < best.time):
                best = BestAttempt(
                    transfers=timed_transfers(routes, start, route, chunk), time=time, attempt=attempt
                )
                limit = time
            self.done += count
            request.report(f"{plural(self.done, 'attempt')} of {options.seeds} done")
        return best


def timed_transfers(routes: ChunkRoutes, start: Any, route: Any, chunk: Any) -> TimedTransfers:
    """What an attempt did."""
    return TimedTransfers(
        start=start,
        end=start + routes.duration[route],
        chunk=chunk.astype(np.int64),
        src=routes.src[route].astype(np.int64),
        dst=routes.dst[route].astype(np.int64),
        path=route.astype(np.int64),
        op=np.full(len(start), Op.COPY, dtype=np.int8),
    )


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(problem: Problem, options: TacosOptions) -> None:
    """Refuse what cannot be done."""
    for name in ("chunks", "seeds", "threads"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= 2**20:
            raise InputError(f"expected `{name}` to be a number of 1 or more, found {value}: give one.")
    sizes = problem.weights if problem.demands is None else [b for row in problem.demands for b in row]
    if sizes is not None and len(set(sizes)) > 1:
        given = "weights" if problem.demands is None else "demands"
        raise InputError(
            f"tacos moves chunks of one size, found different `{given}`: leave them out, or plan by forest or flow."
        )


def check_reachable(problem: Problem, routes: ChunkRoutes) -> None:
    """Refuse ranks that nothing leads to."""
    topology, ranks = problem.topology, problem.topology.num_ranks
    names = [topology.node_ids[v] for v in topology.rank_nodes.tolist()]
    joined_to = np.zeros((ranks, ranks), dtype=np.bool_)
    joined_to[routes.src, routes.dst] = True
    np.fill_diagonal(joined_to, val=True)
    if problem.collective is Collective.ALL_TO_ALL:
        apart = np.argwhere(~joined_to)
        if len(apart):
            a, b = apart[0].tolist()
            raise UnreachableError(
                f"tacos brings chunks only to ranks that want them, and no link or path of switches leads from "
                f"{names[a]} to {names[b]}: plan this all_to_all with `algorithm=flow`."
            )
        return
    rooted = problem.root is not None
    origin = 0 if problem.root is None else problem.root
    reduces = problem.collective.reduces
    ways = []
    if not rooted or not reduces:
        ways.append((joined_to, "from", "to"))
    if not rooted or reduces:
        ways.append((joined_to.T, "to", "from"))
    for matrix, one, other in ways:
        seen, queue = {origin}, [origin]
        while queue:
            fresh = [v for v in np.flatnonzero(matrix[queue.pop()]).tolist() if v not in seen]
            seen.update(fresh)
            queue += fresh
        if len(seen) < ranks:
            lost = next(v for v in range(ranks) if v not in seen)
            raise UnreachableError(
                f"expected a way {one} {names[origin]} {other} every rank, found none {other} {names[lost]}: "
                "add links, or choose ranks that are connected."
            )


def _total(problem: Problem, chunks: int) -> int:
    """Chunks that M holds."""
    return chunks // problem.topology.num_ranks if problem.collective is Collective.ALL_TO_ALL else chunks


def _details(
    problem: Problem, chunks: int, chunk_bytes: int | None, time: Fraction, routes: ChunkRoutes, done: int
) -> dict[str, Any]:
    """The figures of the search."""
    total = _total(problem, chunks)
    details: dict[str, Any] = {"attempts_done": done, "times_exact": routes.exact}
    if chunk_bytes is None:
        details["makespan_algbw_gb_per_s"] = float(total / time) if time else None
    else:
        details["chunk_size_bytes"] = chunk_bytes
        details["size_bytes"] = total * chunk_bytes
        details["makespan_us"] = float(time)
        details["makespan_algbw_gb_per_s"] = float(total * chunk_bytes / time / 1000) if time else None
    return details


def _words(
    problem: Problem,
    chunks: int,
    chunk_bytes: int | None,
    time: Fraction,
    done: int,
    parts: list[BestAttempt],
    rule: str,
) -> tuple[tuple[str, str], ...]:
    total = _total(problem, chunks)
    rules = [list(RULES)[part.attempt % 3] if rule == "auto" else rule for part in parts]
    found = [f"{each.attempt} ({name})" for each, name in zip(parts, rules, strict=True)]
    won = " and ".join(dict.fromkeys(found))
    words = [("attempts", f"{done} done, the best is {won}")]
    if not time:
        return tuple(words)
    if chunk_bytes is None:
        rate = float(total / time)
        words.append(
            ("chunk by chunk", f"{rate:.6g} GB/s algbw where each chunk is passed on when it is there")
        )
    else:
        size = total * chunk_bytes
        rate = float(size / time / 1000)
        named = short_size(size)
        words.append(("chunk by chunk", f"{time_text(float(time))} for {named}, {rate:.6g} GB/s algbw"))
    return tuple(words)


METHOD = SynthesisMethod(
    name="tacos",
    about="greedy matching of links and chunks on the time-expanded network (Won et al., MICRO 2024)",
    collectives=(
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.ALL_REDUCE,
        Collective.BROADCAST,
        Collective.REDUCE,
        Collective.ALL_TO_ALL,
    ),
    options=TacosOptions,
    run=synthesize_tacos,
)
