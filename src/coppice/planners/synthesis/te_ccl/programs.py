"""Programs of TE-CCL in epochs: integral chunks that ranks copy, or fractional flows aggregated by source.

An epoch is the time of a piece on the fastest link, or on the slowest one: coarser, but fewer. Latency takes
``ceil(alpha / epoch)`` epochs more, none where it is below a tenth of an epoch; a link that takes ``w`` epochs for a
piece begins one in any ``w`` epochs (TE-CCL, section 4).

Mixed-integer program of TE-CCL: integral chunks that ranks copy, in epochs. ``sent[p, l, k]``: piece p starts on route
l in epoch k. ``held[p, v, k]``: rank v has it when epoch k begins; it grows by what arrives, and at most to one. Every
demand holds in the end; each earns a reward for every epoch for which it is satisfied. A round of the A* method ends
with demands open: then each earns by how near its piece has come, counting what is still on the way (TE-CCL, sections 4
and 5).

Linear program of TE-CCL without copying: fractional flows in epochs, aggregated by source. ``sent[s, l, k]``: how much
of source s starts on route l in epoch k. ``held[s, v, k]``: how much of it rank v has when epoch k begins. What a link
carries in an epoch it has delivered at its end, so that, unlike a whole piece, a fraction waits for no more than an
epoch and the latency. In the end every rank holds what is meant for it; among the flows that do so the shortest and
earliest are taken, so that none is useless. The flow of a source falls apart into walks in time, each of which carries
a share of a block (TE-CCL, section 4.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from coppice.planners.synthesis.mip.greedy import LinkUse, distances
from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution
from coppice.planners.synthesis.mip.routes import Route
from coppice.planners.synthesis.timed import Piece, TimedSend
from coppice.topology.model import Topology

_NEGLIGIBLE = Fraction(1, 10)


@dataclass(frozen=True, eq=False, kw_only=True)
class Clock:
    """Epochs of one network; make one with :meth:`of`."""

    routes: tuple[Route, ...]  # The ways between ranks
    epoch: Fraction  # Length of an epoch, in the time that a piece takes at 1 GB/s
    epoch_us: float  # The same in microseconds
    delay: tuple[int, ...]  # Epochs of latency of each route
    transit: tuple[int, ...]  # Epochs from the start of a piece on each route until it may be sent on
    per_epoch: dict[int, Fraction]  # Pieces that each link carries in an epoch, by link
    use: tuple[dict[int, LinkUse], ...]  # What a piece on each route takes of its links

    @classmethod
    def of(
        cls,
        topology: Topology,
        routes: Sequence[Route],
        *,
        chunk_bytes: int,
        fastest: bool,
        multiplier: int = 1,
    ) -> Clock:
        """Epochs of ``topology``.

        Args:
            fastest: An epoch is the time of a piece on the fastest route, instead of the slowest.

        Examples:
            >>> from coppice.planners.synthesis.mip.routes import routes_of
            >>> from coppice.topology.presets import preset
            >>> pair = preset("ndv2", boxes=2)
            >>> clock = Clock.of(pair, routes_of(pair), chunk_bytes=1_000_000, fastest=True)
            >>> clock.epoch_us, sorted(set(clock.transit))
            (20.0, [1, 2, 4])
        """
        rates = [route.gb_per_s for route in routes] or [Fraction(1)]
        epoch = multiplier / (max(rates) if fastest else min(rates))
        epoch_us = float(epoch) * chunk_bytes / 1000
        late = [Fraction(route.latency_us) / Fraction(epoch_us) for route in routes]
        delay = tuple(ceil(each) if each > _NEGLIGIBLE else 0 for each in late)
        per_epoch = {e: topology.gb_per_s(e) * epoch for route in routes for e in route.links}
        return cls(
            routes=tuple(routes),
            epoch=epoch,
            epoch_us=epoch_us,
            delay=delay,
            transit=tuple(
                wait + ceil(1 / (route.gb_per_s * epoch)) for wait, route in zip(delay, routes, strict=True)
            ),
            per_epoch=per_epoch,
            use=tuple(
                {
                    e: LinkUse(slots=max(1, floor(per_epoch[e])), period=max(1, ceil(1 / per_epoch[e])))
                    for e in route.links
                }
                for route in routes
            ),
        )


_HALF = 0.5


def program_size(pieces: Sequence[Piece], clock: Clock, epochs: int) -> int:
    """Approximate number of integer variables with so many epochs."""
    return len(pieces) * len(clock.routes) * epochs


class CopyProgram:
    """Program of integral chunks in ``epochs`` epochs from a state.

    Args:
        pieces: What has to be where.
        ranks: Number of ranks.
        clock: The epochs.
        epochs: How many there are.
        before: Sends of earlier rounds, whose starts are before ``first``.
        first: The epoch with which this program begins.
        final: All demands have to hold in the end; otherwise this is a round.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        ranks: int,
        clock: Clock,
        epochs: int,
        *,
        before: Sequence[TimedSend] = (),
        first: int = 0,
        final: bool = True,
    ) -> None:
        self.program = MixedProgram()
        self._pieces, self._ranks, self._clock = pieces, ranks, clock
        self._epochs, self._first, self._final = epochs, first, final
        self._dist = distances(ranks, clock.routes, clock.transit)
        self._before = before
        self._sent: dict[tuple[int, int, int], int] = {}
        self._held: dict[tuple[int, int, int], int] = {}
        self._into: dict[int, list[int]] = defaultdict(list)
        self._route_number = {(route.src, route.dst): number for number, route in enumerate(clock.routes)}
        for number, route in enumerate(clock.routes):
            self._into[route.dst].append(number)
        arrival: NDArray[np.float64] = np.full((len(pieces), ranks), np.inf)
        for p, piece in enumerate(pieces):
            arrival[p, piece.source] = 0
        for send in before:
            arrival[send.piece, send.route.dst] = send.end - first
        self._arrival = np.maximum(arrival, 0)
        for p in range(len(pieces)):
            self._add_piece(p)
        self._add_capacity()
        if not final:
            self._add_nearness()

    def _add_piece(self, p: int) -> None:
        """Its sends, where it is held, and what it has to reach."""
        piece, clock, program, epochs = self._pieces[p], self._clock, self.program, self._epochs
        have = np.flatnonzero(np.isfinite(self._arrival[p])).tolist()
        soonest = np.min([self._arrival[p, h] + self._dist[h] for h in have], axis=0)
        targets = sorted(piece.targets)
        useful = self._dist[:, targets].min(axis=1) if targets else np.full(self._ranks, np.inf)
        for number, route in enumerate(clock.routes):
            if route.dst in have:
                continue
            last = epochs - (clock.transit[number] + useful[route.dst] if self._final else 1)
            for k in range(int(min(soonest[route.src], epochs)), int(last) + 1):
                self._sent[p, number, k] = program.column(upper=1.0, whole=True)
        for v in range(self._ranks):
            self._add_holding(p, v, soonest)

    def _add_holding(self, p: int, v: int, soonest: NDArray[np.float64]) -> None:
        program, epochs, clock = self.program, self._epochs, self._clock
        known = self._arrival[p, v]
        target = v in self._pieces[p].targets
        if np.isfinite(known):
            for number, route in enumerate(clock.routes):  # it is there from then on
                if route.src == v:
                    for k in range(min(int(known), epochs)):
                        column = self._sent.get((p, number, k))
                        if column is not None:
                            program.row({column: 1.0}, most=0.0)
            return
        before: int | None = None
        end = epochs + (0 if self._final else max(clock.transit))
        # Where it cannot come in time, a target still has a last column, which then nothing fills.
        for k in range(int(min(soonest[v], end)), end + 1):
            last = k == end
            reward = -1.0 if target and k <= epochs else 0.0
            least = 1.0 if target and last and self._final else 0.0
            held = program.column(cost=reward, lower=least, upper=1.0)
            self._held[p, v, k] = held
            terms = {held: 1.0}
            if before is not None:
                terms[before] = -1.0
            for number in self._into[v]:
                column = self._sent.get((p, number, k - clock.transit[number]))
                if column is not None:
                    terms[column] = -1.0
            program.row(terms, least=0.0, most=0.0)
            before = held
        for number, route in enumerate(clock.routes):
            if route.src == v:
                for k in range(epochs):
                    column = self._sent.get((p, number, k))
                    if column is not None:
                        at = self._held.get((p, v, k))
                        program.row({column: 1.0, **({} if at is None else {at: -1.0})}, most=0.0)

    def _add_capacity(self) -> None:
        """No link begins more than it can, in any window of epochs."""
        by_link: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for (_, number, k), column in self._sent.items():
            for e in self._clock.use[number]:
                by_link[e][k].append(column)
        taken: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for send in self._before:
            for e in send.route.links:
                taken[e][round(send.start) - self._first] += 1
        use = {e: each for uses in self._clock.use for e, each in uses.items()}
        for e in sorted(by_link):
            window, slots = int(use[e].period), use[e].slots
            for k in range(self._epochs):
                columns = [c for j in range(k - window + 1, k + 1) for c in by_link[e].get(j, ())]
                room = slots - sum(taken[e].get(j, 0) for j in range(k - window + 1, k + 1))
                if len(columns) > room:
                    self.program.row(dict.fromkeys(columns, 1.0), most=float(room))

    def _add_nearness(self) -> None:
        """What open demands earn at the end of a round."""
        program = self.program
        end = self._epochs + max(self._clock.transit)
        scale = 1.0 + float(self._dist[self._dist < np.inf].max(initial=1.0))
        for p, piece in enumerate(self._pieces):
            have = np.flatnonzero(np.isfinite(self._arrival[p])).tolist()
            near = self._dist[have].min(axis=0)
            for target in sorted(piece.targets - set(have)):
                chosen = {}
                for v in range(self._ranks):
                    held = self._held.get((p, v, end))
                    gain = float(near[target] - self._dist[v, target])
                    if held is not None and gain > 0:
                        column = program.column(cost=-gain * scale, upper=1.0)
                        program.row({column: 1.0, held: -1.0}, most=0.0)
                        chosen[column] = 1.0
                program.row(chosen, most=1.0)

    def start_of(self, sends: Sequence[TimedSend]) -> Mapping[int, float] | None:
        """Initial integer values for known sends; None where one has no column."""
        values = dict.fromkeys(self._sent.values(), 0.0)
        for send in sends:
            number = self._route_number[send.route.src, send.route.dst]
            column = self._sent.get((send.piece, number, round(send.start) - self._first))
            if column is None:
                return None
            values[column] = 1.0
        return values

    def sends(self, found: MixedSolution) -> list[TimedSend]:
        """Sends of a solution."""
        if found.values is None:
            return []
        clock = self._clock
        return [
            TimedSend(
                piece=p,
                route=clock.routes[number],
                start=float(self._first + k),
                end=float(self._first + k + clock.transit[number]),
            )
            for (p, number, k), column in self._sent.items()
            if found.values[column] > _HALF
        ]


def pruned(pieces: Sequence[Piece], sends: Sequence[TimedSend]) -> list[TimedSend]:
    """Drop sends that no target needs."""
    by_end = {(send.piece, send.route.dst): send for send in sorted(sends, key=lambda s: -s.end)}
    needed: set[tuple[int, int]] = set()
    for p, piece in enumerate(pieces):
        for target in sorted(piece.targets):
            v = target
            while v != piece.source and (p, v) not in needed:
                needed.add((p, v))
                v = by_end[p, v].route.src
    return [by_end[key] for key in sorted(needed)]


_GRID = 5040
_TINY = 1e-7


@dataclass(frozen=True, kw_only=True)
class _Hop:
    route: int
    epoch: int


class FlowProgram:
    """Program of fractional flows in ``epochs`` epochs.

    Args:
        pieces: What has to be where; each has one target.
        ranks: Number of ranks.
        clock: The epochs.
        epochs: How many there are.
    """

    def __init__(self, pieces: Sequence[Piece], ranks: int, clock: Clock, epochs: int) -> None:
        self.program = MixedProgram()
        self._pieces, self._ranks, self._clock, self._epochs = pieces, ranks, clock, epochs
        self._wait = [1 + delay for delay in clock.delay]
        self._dist = distances(ranks, clock.routes, self._wait)
        self._sent: dict[tuple[int, int, int], int] = {}
        self._held: dict[tuple[int, int, int], int] = {}
        self._demand: NDArray[np.float64] = np.zeros((ranks, ranks))
        for piece in pieces:
            for target in piece.targets:
                self._demand[piece.source, target] += 1.0
        for source in np.flatnonzero(self._demand.any(axis=1)).tolist():
            self._add_source(source)
        self._add_capacity()

    def _add_source(self, s: int) -> None:
        program, clock, epochs = self.program, self._clock, self._epochs
        wanted = np.flatnonzero(self._demand[s])
        rest = self._dist[:, wanted].min(axis=1)
        for number, route in enumerate(clock.routes):
            if route.dst == s:
                continue
            last = epochs - self._wait[number] - rest[route.dst]
            for k in range(int(min(self._dist[s, route.src], epochs)), int(min(last, epochs)) + 1):
                self._sent[s, number, k] = program.column(cost=1.0 + k / (8.0 * epochs))
        for v in range(self._ranks):
            for k in range(epochs + 1):
                fixed = None
                if k == 0:
                    fixed = float(self._demand[s].sum()) if v == s else 0.0
                elif k == epochs:
                    fixed = float(self._demand[s, v])
                self._held[s, v, k] = (
                    program.column() if fixed is None else program.column(lower=fixed, upper=fixed)
                )
        arrives: dict[tuple[int, int], list[int]] = defaultdict(list)
        leaves: dict[tuple[int, int], list[int]] = defaultdict(list)
        for (source, number, k), column in self._sent.items():
            if source == s:
                route = clock.routes[number]
                leaves[route.src, k].append(column)
                arrives[route.dst, k + self._wait[number]].append(column)
        for v in range(self._ranks):
            for k in range(epochs):
                out = leaves.get((v, k), [])
                terms = {self._held[s, v, k + 1]: 1.0, self._held[s, v, k]: -1.0}
                terms |= dict.fromkeys(out, 1.0)
                terms |= dict.fromkeys(arrives.get((v, k + 1), []), -1.0)
                program.row(terms, least=0.0, most=0.0)
                if out:
                    program.row({**dict.fromkeys(out, 1.0), self._held[s, v, k]: -1.0}, most=0.0)

    def _add_capacity(self) -> None:
        by_link: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        for (_, number, k), column in self._sent.items():
            for e in self._clock.routes[number].links:
                by_link[e, k][column] = 1.0
        for e, k in sorted(by_link):
            self.program.row(by_link[e, k], most=float(self._clock.per_epoch[e]))

    def walks(self, found: MixedSolution) -> tuple[list[Piece], list[TimedSend]]:
        """Decompose the flow into chunks with shares on timed walks."""
        if found.values is None:
            return [], []
        values = found.values
        into: dict[int, dict[tuple[int, int], list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        left: dict[tuple[int, int, int], float] = {}
        out: dict[tuple[int, int, int], float] = defaultdict(float)
        for (s, number, k), column in self._sent.items():
            if values[column] > _TINY:
                left[s, number, k] = float(values[column])
                out[s, self._clock.routes[number].src, k] += float(values[column])
                into[s][self._clock.routes[number].dst, k + self._wait[number]].append((number, k))
        # What is held over an epoch: what was there when it began, less what left in it.
        kept = {key: float(values[column]) - out[key] for key, column in self._held.items()}
        pieces: list[Piece] = []
        sends: list[TimedSend] = []
        for piece in self._pieces:
            (target,) = piece.targets
            open_, found_walks = 1.0, []
            while open_ > _TINY:
                walked = self._walk(piece.source, target, open_, left, kept, into[piece.source])
                if walked is None:  # what is left is a rounding error
                    break
                found_walks.append(walked)
                open_ -= walked[1]
            self._add_walks(piece, found_walks, pieces, sends)
        return pieces, sends

    def _walk(
        self,
        s: int,
        target: int,
        most: float,
        left: dict[tuple[int, int, int], float],
        kept: dict[tuple[int, int, int], float],
        into: dict[tuple[int, int], list[tuple[int, int]]],
    ) -> tuple[list[_Hop], float] | None:
        """One walk back in time from the target to the source, and how much it carries; taken off what is left."""
        v, k, amount = target, self._epochs, most
        taken: list[tuple[dict[tuple[int, int, int], float], tuple[int, int, int]]] = []
        hops: list[_Hop] = []
        while v != s:
            best, where = kept.get((s, v, k - 1), 0.0), None
            for number, epoch in into.get((v, k), ()):
                if left.get((s, number, epoch), 0.0) > best:
                    best, where = left[s, number, epoch], (number, epoch)
            if best <= _TINY:
                return None
            amount = min(amount, best)
            if where is None:
                k -= 1
                taken.append((kept, (s, v, k)))
            else:
                number, k = where
                taken.append((left, (s, number, k)))
                hops.append(_Hop(route=number, epoch=k))
                v = self._clock.routes[number].src
        for table, key in taken:
            table[key] -= amount
        return hops[::-1], amount

    def _add_walks(
        self,
        piece: Piece,
        walks: Sequence[tuple[list[_Hop], float]],
        pieces: list[Piece],
        sends: list[TimedSend],
    ) -> None:
        """The walks of one block as pieces, with shares in whole numbers."""
        together: dict[tuple[tuple[int, int], ...], float] = defaultdict(float)
        for hops, amount in walks:
            together[tuple((hop.route, hop.epoch) for hop in hops)] += amount
        shares = {way: round(amount * _GRID) for way, amount in together.items()}
        for way, share in sorted((way, share) for way, share in shares.items() if share):
            for number, k in way:
                route = self._clock.routes[number]
                end = k + self._wait[number]
                sends.append(TimedSend(piece=len(pieces), route=route, start=float(k), end=float(end)))
            pieces.append(
                Piece(
                    source=piece.source,
                    targets=piece.targets,
                    slot=piece.slot,
                    share=share,
                    number=piece.number,
                )
            )
