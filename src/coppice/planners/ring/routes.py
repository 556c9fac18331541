"""Cheapest routes between ranks through switches, NICs and relays only: the hops that make up a ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RouteTable:
    """Routes from some nodes to others that pass through given relays and through nothing else.

    The links that can take part are sorted out once; :meth:`costs` is then called with many price vectors.

    Args:
        src: Node that each link leaves.
        dst: Node that each link enters.
        num_nodes: Number of nodes.
        sources: Nodes that send (rows of the cost matrix).
        sinks: Nodes that receive (columns of the cost matrix).
        relays: Nodes that may forward; must not contain a source or a sink.
    """

    def __init__(
        self,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        num_nodes: int,
        *,
        sources: NDArray[np.int32],
        sinks: NDArray[np.int32],
        relays: NDArray[np.int32],
    ) -> None:
        source_at, sink_at, relay_at = (np.full(num_nodes, -1, dtype=np.int32) for _ in range(3))
        source_at[sources] = np.arange(len(sources))
        sink_at[sinks] = np.arange(len(sinks))
        relay_at[relays] = np.arange(len(relays))
        self._shape = (len(sources), len(sinks))
        self._num_relays = len(relays)
        self._direct = np.flatnonzero((source_at[src] >= 0) & (sink_at[dst] >= 0))
        self._first = np.flatnonzero((source_at[src] >= 0) & (relay_at[dst] >= 0))
        middle = np.flatnonzero((relay_at[src] >= 0) & (relay_at[dst] >= 0))
        last = np.flatnonzero((relay_at[src] >= 0) & (sink_at[dst] >= 0))
        self._middle = middle[np.argsort(relay_at[dst[middle]], kind="stable")]
        self._last = last[np.argsort(sink_at[dst[last]], kind="stable")]
        self._direct_ends = (source_at[src[self._direct]], sink_at[dst[self._direct]])
        self._first_ends = (source_at[src[self._first]], relay_at[dst[self._first]])
        self._middle_tail = relay_at[src[self._middle]]
        self._last_tail = relay_at[src[self._last]]
        # Links into one relay (one sink) are neighbours: the slice that begins at starts[i] enters heads[i].
        self._middle_heads, self._middle_starts = np.unique(relay_at[dst[self._middle]], return_index=True)
        self._last_heads, self._last_starts = np.unique(sink_at[dst[self._last]], return_index=True)
        self._direct_link = {
            (int(s), int(t)): int(e) for s, t, e in zip(*self._direct_ends, self._direct, strict=True)
        }
        self._first_link = {
            (int(s), int(r)): int(e) for s, r, e in zip(*self._first_ends, self._first, strict=True)
        }
        self._into_relay = self._slices(self._middle_heads, self._middle_starts, len(self._middle))
        self._into_sink = self._slices(self._last_heads, self._last_starts, len(self._last))
        self._prices = np.zeros(len(src))
        self._reach = np.zeros((0, 0))

    @staticmethod
    def _slices(heads: NDArray[np.int32], starts: NDArray[np.intp], total: int) -> dict[int, tuple[int, int]]:
        ends = [*starts.tolist(), total][1:]
        return {
            head: (start, end) for head, start, end in zip(heads.tolist(), starts.tolist(), ends, strict=True)
        }

    def costs(self, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Price of the cheapest route from each source to each sink, infinite where there is none."""
        reach = np.full((self._shape[0], self._num_relays), np.inf)
        np.minimum.at(reach, self._first_ends, prices[self._first])
        middle = prices[self._middle]
        while len(middle):
            through = np.minimum.reduceat(reach[:, self._middle_tail] + middle, self._middle_starts, axis=1)
            known = reach[:, self._middle_heads]
            if not (through < known).any():
                break
            reach[:, self._middle_heads] = np.minimum(known, through)
        cost = np.full(self._shape, np.inf)
        np.minimum.at(cost, self._direct_ends, prices[self._direct])
        if len(self._last):
            through = np.minimum.reduceat(
                reach[:, self._last_tail] + prices[self._last], self._last_starts, axis=1
            )
            cost[:, self._last_heads] = np.minimum(cost[:, self._last_heads], through)
        self._prices, self._reach = prices, reach
        return cost

    def route(self, source: int, sink: int) -> list[int]:
        """Links of the cheapest route from a source row to a sink column, under the last prices given.

        The route must exist (finite cost), and no two links may join the same two nodes.
        """
        prices, reach = self._prices, self._reach[source]
        direct = self._direct_link.get((source, sink))
        slot = self._into_sink.get(sink)
        if slot is not None:
            start, end = slot
            row = start + int(np.argmin(reach[self._last_tail[start:end]] + prices[self._last[start:end]]))
            relay, link = int(self._last_tail[row]), int(self._last[row])
        if direct is not None and (slot is None or prices[direct] <= reach[relay] + prices[link]):
            return [direct]
        links = [link]
        while True:
            first = self._first_link.get((source, relay))
            if first is not None and prices[first] <= reach[relay]:
                links.append(first)
                return links[::-1]
            start, end = self._into_relay[relay]
            row = start + int(
                np.argmin(reach[self._middle_tail[start:end]] + prices[self._middle[start:end]])
            )
            links.append(int(self._middle[row]))
            relay = int(self._middle_tail[row])
