"""Chunks matched with links as these fall free, at what messages cost under a model.

TACOS matches chunks greedily with links over time (:mod:`coppice.planners.synthesis.tacos`), and takes the latency of a
link for a time in which it is busy. In a time model it is not: a message holds each link for its bytes, the channels
and the workers of its ranks for theirs, and has arrived when its latencies and costs have passed as well. Matched at
these times a schedule takes what the matching says, so that numbers of chunks and protocols are compared without a
simulation, and middle sizes, at which latencies and bytes count alike, have a schedule that fills links from the first
arrival to the last.

A rank of a schedule sends what it can as soon as it can, which need not be what its link was matched with next. So rows
are tried as they are, and held back until their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coppice import _core
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.sizes.channel_costs import ChannelCosts
from coppice.errors import InputError, UnreachableError
from coppice.planners.ordering import held_back_early
from coppice.planners.synthesis.tacos import (
    RULES,
    ChunkRoutes,
    Demand,
    check_reachable,
    chunk_routes_of,
    demand_of,
    timed_transfers,
)
from coppice.planners.synthesis.timed import TimedTransfers, joined, reversed_in_time, timed_schedule
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import TransportProfile, transport_profiles
from coppice.simulation.models import Model, Sharing

MOST_RANKS = 128
MOST_ROWS = 2**15
"""Transfers of a schedule that is matched."""
MOST_ROWS_OF_RANK = 2**9
"""The same for each of its ranks: programs of more do not fit the thread blocks of GPU runtimes."""
_COMPARED = 2**9
"""Words of sets that are compared for a transfer in the time that it takes beside."""
LEAST_CHUNK_BYTES = 64
ATTEMPTS = 9
"""Attempts at the best number of chunks, which take the rules in turn."""
_IN_VAIN = 2
"""Doublings in a row of the number of chunks that gain nothing, after which there are no more of them."""
_BETWEEN = (3, 5, 6, 7)
"""Quarters of the best number of chunks that are tried as well."""
_MOST_MADE = 2
"""Matchings that become schedules, those of least time."""
_CLOSE = 1.02
"""More attempts are made with protocols whose matchings take up to so many times the least time of all."""
_NEARBY = 1.05
"""What takes so many times the least time of all matchings may be less late as a schedule."""
_MOST_TIME = 2.0**61
"""Units of time of the longest message."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Matched:
    """What was matched for a size."""

    time_us: float  # From the start of the collective to the last arrival, as matched
    chunks: int  # Of each block
    profile: TransportProfile
    unit_us: float  # Of the times of the transfers
    demand: Demand
    transfers: TimedTransfers


class Matcher:
    """Matchings of a problem under a model.

    Args:
        budget: Transfers that are matched at most, for each size; they count more where there are very many chunks.
    """

    def __init__(self, problem: Problem, model: Model, budget: int) -> None:
        self.problem, self.model, self.budget = problem, model, budget
        self._asked: tuple[int, float] | None = None
        self._found: list[Matched] = []

    def schedules(self, size_bytes: int, *, below_us: float) -> Iterator[tuple[Matched, Schedule]]:
        """Schedules of the fastest matchings that take less than so long; none where there are none.

        Each comes as it is, and held back in several ways.

        Examples:
            >>> from coppice.simulation.models import model_of
            >>> from coppice.topology.presets import preset
            >>> matcher = Matcher(Problem(preset("ring", gpus=4), "all_gather"), model_of("ideal"), 2**12)
            >>> found = [found for found, _ in matcher.schedules(2**20, below_us=np.inf)]
            >>> sorted({(each.chunks, round(each.time_us, 2)) for each in found})
            [(2, 393.22), (4, 393.22)]
        """
        for found in self.fastest(size_bytes, below_us)[:_MOST_MADE]:
            yield found, self.schedule(found)
            for held in self.held_back(found):
                yield found, held

    def held_back(self, found: Matched) -> Iterator[Schedule]:
        """The transfers of a matching, each held back until its time, or a little before."""
        rows, transfers = self.schedule(found), found.transfers
        order = np.lexsort((transfers.end, transfers.start))
        due_us = np.asarray(transfers.start[order] * found.unit_us, dtype=np.float64)
        done_us = np.asarray(transfers.end[order] * found.unit_us, dtype=np.float64)
        return held_back_early(rows, due_us, done_us)

    def schedule(self, found: Matched) -> Schedule:
        """The transfers of a matching in the order of their starts."""
        routes = self.routes
        assert routes is not None
        return timed_schedule(
            self.problem,
            found.transfers,
            chunk_slot=found.demand.slot,
            path_start=routes.path_start,
            path_nodes=routes.path_nodes,
        )

    def fastest(self, size_bytes: int, below_us: float) -> list[Matched]:
        """The best matchings of each protocol and number of chunks, those of least time first."""
        if (size_bytes, below_us) != self._asked:
            self._asked, self._found = (size_bytes, below_us), self._matchings(size_bytes, below_us)
        return self._found

    def _matchings(self, size_bytes: int, below_us: float) -> list[Matched]:
        if self.routes is None:
            return []
        found: list[Matched] = []
        finalists: list[tuple[Matched, int]] = []  # of each protocol, and what is left of its budget
        profiles = transport_profiles(self.model, self.problem.topology)
        limit_us = below_us
        block = self._chunk_bytes(demand_of(self.problem, 1), size_bytes)
        for profile in profiles:
            left = self.budget // len(profiles)
            best: Matched | None = None
            in_vain, least, tried = 0, 1, set[int]()
            between: list[int] | None = None
            while True:
                if in_vain < _IN_VAIN:
                    chunks, least = in_full_lines(profile, block, least), 2 * least
                elif between is None:
                    between = (
                        [] if best is None else [max(1, best.chunks * quarters // 4) for quarters in _BETWEEN]
                    )
                    continue
                elif between:
                    chunks = in_full_lines(profile, block, between.pop())
                else:
                    break
                if chunks in tried:  # one line in each
                    in_vain = _IN_VAIN
                    continue
                tried.add(chunks)
                demand = demand_of(self.problem, chunks)
                rows = self._rows(demand)
                chunk_bytes = self._chunk_bytes(demand, size_bytes)
                if rows > self._most_rows or (chunks > 1 and chunk_bytes < LEAST_CHUNK_BYTES):
                    in_vain = _IN_VAIN
                    continue
                left -= self._scanned * self._work(demand)
                if left < 0:
                    break
                costs = self._costs(profile, size_bytes, chunk_bytes)
                made = self._matched(costs, demand, chunks, self._scanned, limit_us)
                if made is not None:
                    found.append(made)
                    limit_us = min(limit_us, made.time_us * _NEARBY)
                if made is not None and (best is None or made.time_us < best.time_us):
                    best, in_vain = made, 0 if between is None else _IN_VAIN
                elif best is not None:
                    in_vain += 1
            if best is not None:
                finalists.append((best, left))
        least_us = min((each.time_us for each in found), default=0.0)
        for best, left in finalists:
            attempts = min(ATTEMPTS, left // max(1, self._work(best.demand)))
            if attempts > self._scanned and best.time_us <= least_us * _CLOSE:
                costs = self._costs(best.profile, size_bytes, self._chunk_bytes(best.demand, size_bytes))
                again = self._matched(costs, best.demand, best.chunks, attempts, best.time_us)
                found += [] if again is None else [again]
        return _unlike(sorted(found, key=lambda each: each.time_us))

    def _matched(
        self, costs: _ChunkCosts, demand: Demand, chunks: int, attempts: int, below_us: float
    ) -> Matched | None:
        """The best of some attempts in both directions; None where none takes less than ``below_us``."""
        collective = self.problem.collective
        backwards = [True] if collective.reduces else []
        if not backwards or collective is Collective.ALL_REDUCE:
            backwards.append(False)
        limit = int(min((below_us - costs.start_us) / costs.unit_us, _MOST_TIME))
        done: TimedTransfers | None = None
        for turned in backwards:
            left = limit - (0 if done is None else done.time)
            if left <= 0:
                return None
            part = self._attempted(costs.routes.turned() if turned else costs.routes, demand, attempts, left)
            if part is None:
                return None
            part = reversed_in_time(part) if turned else part
            done = part if done is None else joined(done, part)
        assert done is not None
        return Matched(
            time_us=costs.start_us + done.time * costs.unit_us,
            unit_us=costs.unit_us,
            chunks=chunks,
            profile=costs.profile,
            demand=demand,
            transfers=done,
        )

    def _attempted(
        self, routes: ChunkRoutes, demand: Demand, attempts: int, limit: int
    ) -> TimedTransfers | None:
        time, _, start, route, chunk = _core.match_chunks(
            self.problem.topology.num_ranks,
            routes.num_ports,
            routes.src,
            routes.dst,
            routes.duration,
            routes.port_start,
            routes.port,
            routes.hold,
            demand.source,
            demand.target,
            demand.group,
            np.array([RULES[rule] for rule in self._rules], dtype=np.uint8),
            0,
            0,
            attempts,
            1,
            limit,
            -1.0,
        )
        return timed_transfers(routes, start, route, chunk) if time >= 0 else None

    @property
    def _rules(self) -> tuple[str, ...]:
        """Rules that attempts take in turn: chunks of one root are sent on late where they are not the rarest."""
        return ("rarest",) if self.problem.root is not None else ("rarest", "local", "random")

    @property
    def _scanned(self) -> int:
        """Attempts at each number of chunks to find the best one: by two rules, where there are others."""
        return min(2, len(self._rules))

    @property
    def _most_rows(self) -> int:
        return min(MOST_ROWS, MOST_ROWS_OF_RANK * self.problem.topology.num_ranks)

    def _rows(self, demand: Demand) -> int:
        """Transfers of a matching."""
        ranks, reduces = self.problem.topology.num_ranks, self.problem.collective is Collective.ALL_REDUCE
        rows = int(np.where(demand.target < 0, ranks - 1, demand.target != demand.source).sum())
        return 2 * rows if reduces else rows

    def _work(self, demand: Demand) -> int:
        """Transfers of a matching, each as often as the sets of chunks are large that are compared for it."""
        words, channels = len(demand.slot) // 64, self.problem.topology.num_ranks - 1
        return self._rows(demand) * (1 + words * channels // _COMPARED)

    def _chunk_bytes(self, demand: Demand, size_bytes: int) -> int:
        """Bytes of a chunk, the longest one."""
        each = self.problem.topology.num_ranks if self.problem.collective is Collective.ALL_TO_ALL else 1
        return -(-size_bytes * each // len(demand.slot))

    @cached_property
    def routes(self) -> ChunkRoutes | None:
        """Routes between ranks; None where they do not suffice, or what is matched would take another time."""
        problem = self.problem
        ranks = problem.topology.num_ranks
        if not 2 < ranks <= MOST_RANKS or self.model.sharing is not Sharing.FIFO:
            return None
        if problem.weights is not None or problem.demands is not None:
            return None
        try:
            routes = chunk_routes_of(problem.topology, None, ranks * ranks)
            check_reachable(problem, routes)
        except (InputError, UnreachableError):
            return None
        return routes

    def _costs(self, profile: TransportProfile, size_bytes: int, chunk_bytes: int) -> _ChunkCosts:
        """The routes with what a chunk takes on them, and for how long it holds each port."""
        routes = self.routes
        assert routes is not None
        found = ChannelCosts.of(
            self.problem.topology,
            routes.path_start,
            routes.path_nodes,
            np.array([chunk_bytes], dtype=np.int64),
            size_bytes=size_bytes,
            profile=profile,
            model=self.model,
        )
        priced = replace(
            routes,
            duration=found.duration[0],
            port_start=found.port_start,
            port=found.port,
            hold=found.hold[0],
            num_ports=found.num_ports,
        )
        return _ChunkCosts(routes=priced, profile=profile, start_us=found.start_us, unit_us=found.unit_us)


def in_full_lines(profile: TransportProfile, num_bytes: int, chunks: int) -> int:
    """About so many chunks of some bytes, of which all but the last fill lines of a protocol.

    Examples:
        >>> from coppice.simulation.channels import transport_profile
        >>> from coppice.topology.presets import preset
        >>> profile = transport_profile(preset("star", gpus=2), protocol_name="ll128")
        >>> in_full_lines(profile, 65_536, 128), in_full_lines(TransportProfile(), 65_536, 128)
        (137, 128)
    """
    if profile.protocol is None or chunks <= 1:
        return chunks
    line = profile.protocol.data_bytes
    return max(1, -(-num_bytes // (max(1, round(num_bytes / chunks / line)) * line)))


def _unlike(found: list[Matched]) -> list[Matched]:
    """The first of each protocol and number of chunks."""
    first = {(each.profile.name, each.chunks): each for each in reversed(found)}
    return [each for each in found if first[each.profile.name, each.chunks] is each]


@dataclass(frozen=True, eq=False, kw_only=True)
class _ChunkCosts:
    """Routes with times in units, before which a protocol has started."""

    routes: ChunkRoutes
    profile: TransportProfile
    start_us: float
    unit_us: float
