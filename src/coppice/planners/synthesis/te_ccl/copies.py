"""Mixed-integer program of TE-CCL: integral chunks that ranks copy, in epochs.

``sent[p, l, k]``: piece p starts on route l in epoch k. ``held[p, v, k]``: rank v has it when epoch k begins; it grows
by what arrives, and at most to one. Every demand holds in the end; each earns a reward for every epoch for which it is
satisfied. A round of the A* method ends with demands open: then each earns by how near its piece has come, counting
what is still on the way (TE-CCL, sections 4 and 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coppice.planners.synthesis.mip.greedy import distances
from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution
from coppice.planners.synthesis.mip.timed import Piece, TimedSend
from coppice.planners.synthesis.te_ccl.clock import Clock

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
