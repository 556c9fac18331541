"""The longest chains of messages in rounds that are matchings.

Where every position sends at most one and receives at most one message in a round, nothing waits for an engine, and a
message starts when the earlier rounds of its two ends are complete. The time is then the longest chain of messages in
which each shares an end with the next. With b bytes in each, a chain of m messages, r of which were waited for by
their receivers who add, takes ``m (alpha + b beta) + r b gamma``: a sender goes on before its receiver has added.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import groupby
from operator import itemgetter

from coppice.planners.algorithms.cost import Chain

__all__ = ["longest_chains"]

# Sums (messages, reductions) of which none is at least as large as another in both.
Front = dict[int, int]


def longest_chains(
    messages: Iterable[tuple[int, int, int, bool]], size: int, share: Fraction
) -> tuple[Chain, ...]:
    """The chains that can be the longest.

    Args:
        messages: (round, sender, receiver, receiver adds) of every message, round by round.
        size: Number of positions.
        share: Bytes of every message, as a share of M.

    Examples:
        Two messages on, then one back:

        >>> line = [(0, 0, 1, True), (1, 1, 2, True), (2, 2, 1, False)]
        >>> [(chain.messages, chain.reduced) for chain in longest_chains(line, 3, Fraction(1))]
        [(3, Fraction(2, 1))]
    """
    fronts: list[Front] = [{0: 0}] * size
    for _, matching in groupby(messages, key=itemgetter(0)):
        done: dict[int, Front] = {}
        for _, src, dst, adds in matching:
            ready = _larger(fronts[src], fronts[dst])
            sent = {count + 1: reduced for count, reduced in ready.items()}
            received = {count: reduced + 1 for count, reduced in sent.items()} if adds else sent
            for end, front in ((src, sent), (dst, received)):
                done[end] = _larger(done[end], front) if end in done else front
        for end, front in done.items():
            fronts[end] = front
    last: Front = {}
    for front in fronts:
        last = _larger(last, front)
    return tuple(
        Chain(messages=count, sent=count * share, reduced=reduced * share)
        for count, reduced in sorted(last.items())
        if count
    )


def _larger(one: Front, other: Front) -> Front:
    """The largest sums of both."""
    if one is other:
        return one
    kept: Front = {}
    most = -1
    for messages in sorted({*one, *other}, reverse=True):
        reduced = max(one.get(messages, -1), other.get(messages, -1))
        if reduced > most:
            kept[messages] = most = reduced
    return kept
