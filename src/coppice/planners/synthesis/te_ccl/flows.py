"""Linear program of TE-CCL without copying: fractional flows in epochs, aggregated by source.

``sent[s, l, k]``: how much of source s starts on route l in epoch k. ``held[s, v, k]``: how much of it rank v has when
epoch k begins. What a link carries in an epoch it has delivered at its end, so that, unlike a whole piece, a fraction
waits for no more than an epoch and the latency. In the end every rank holds what is meant for it; among the flows that
do so the shortest and earliest are taken, so that none is useless. The flow of a source falls apart into walks in
time, each of which carries a share of a block (TE-CCL, section 4.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.planners.synthesis.mip.greedy import distances
from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution
from coppice.planners.synthesis.mip.timed import Piece, TimedSend
from coppice.planners.synthesis.te_ccl.clock import Clock

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
