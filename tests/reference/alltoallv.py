"""Way of every element of an all-to-all of unequal blocks, one element at a time: the slow reading of cpp/alltoallv."""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.rates import RankRates

Part = tuple[int, int, int, int, int, int]
"""Source, rank that it leaves the box by, rank that it enters the other by, target, offset and length."""


def slow_parts(
    rates: RankRates, counts: NDArray[np.int64], *, relays: bool, limit: tuple[int, int]
) -> set[Part]:
    """Parts of all blocks.

    Args:
        relays: Blocks pass other ranks.
        limit: Elements and rate of the busiest NIC or link.
    """
    del limit  # found anew
    ways: dict[tuple[int, int], list[tuple[int, int]]] = {}
    order, width = rates.order.tolist(), rates.width
    ranks, boxes = len(order), len(order) // width

    def count(p: int, q: int) -> int:
        return int(counts[order[p], order[q]])

    for p in range(ranks):
        for q in range(ranks):
            if p // width == q // width:
                ways[p, q] = [(p, q)] * count(p, q)
    if rates.crossing or boxes == 1:
        _crossing(rates, count, ways, relays=relays)
    else:
        _rails(rates, count, ways, relays=relays)
    found: set[Part] = set()
    for (p, q), elements in ways.items():
        at = 0
        for (out, into), group in groupby(elements):
            length = len(list(group))
            found.add((order[p], order[out], order[into], order[q], at, length))
            at += length
    return found


def _crossing(rates: RankRates, count, ways, *, relays: bool) -> None:  # type: ignore[no-untyped-def]
    width, ranks, boxes = rates.width, len(rates.order), rates.boxes
    if boxes == 1:
        return
    rows: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]  # what each sends, block by block
    columns: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for p in range(ranks):
        s, i = divmod(p, width)
        for d in range(1, boxes):
            for m in range(width):
                q = (s + d) % boxes * width + (i + m) % width
                rows[p] += [(p, q)] * count(p, q)
    for q in range(ranks):
        t, j = divmod(q, width)
        for d in range(boxes - 1, 0, -1):
            for m in range(width):
                p = (t + d) % boxes * width + (j - m) % width
                columns[q] += [(p, q)] * count(p, q)
    sent, got = [len(row) for row in rows], [len(column) for column in columns]
    far = rates.far.tolist()
    fastest = max(far)
    quotas = [max(sent[p], got[p]) for p in range(ranks)]
    if relays:
        quotas = [_limit(rates, count, sent, got) * far[p] // fastest for p in range(ranks)]
    out = {p: _carriers(p, sent, quotas, width) for p in range(ranks)}
    into = {q: _carriers(q, got, quotas, width) for q in range(ranks)}
    exits: dict[tuple[int, int], list[int]] = {}
    entries: dict[tuple[int, int], list[int]] = {}
    for p in range(ranks):
        for block, carrier in zip(rows[p], out[p], strict=True):
            exits.setdefault(block, []).append(carrier)
        for block, carrier in zip(columns[p], into[p], strict=True):
            entries.setdefault(block, []).append(carrier)
    for block, carriers in exits.items():
        ways[block] = list(zip(carriers, entries[block], strict=True))


def _carriers(p: int, row: list[int], quotas: list[int], width: int) -> list[int]:
    """Whose NIC carries each element of a row: the own one first, then others by what they have left."""
    members = range(p // width * width, (p // width + 1) * width)
    beyond = sum(max(0, row[m] - quotas[m]) for m in members)
    room = [max(0, quotas[m] - row[m]) for m in members]
    dealt: list[int] = []
    for place, member in enumerate(members):
        upto = beyond * sum(room[: place + 1]) // sum(room) if sum(room) else 0
        dealt += [member] * (upto - len(dealt))
    before = sum(max(0, row[m] - quotas[m]) for m in members if m < p)
    own = min(row[p], quotas[p])
    return [p] * own + dealt[before : before + row[p] - own]


def _limit(rates: RankRates, count, sent: list[int], got: list[int]) -> int:  # type: ignore[no-untyped-def]
    """As the native core finds it: the least limit, or where links inside boxes are no longer the limit."""
    width, ranks = rates.width, len(rates.order)
    far, near = rates.far.tolist(), rates.near.tolist()
    fastest = max(far)

    def quotas(limit: int) -> list[int]:
        return [limit * rate // fastest for rate in far]

    def fits(limit: int) -> bool:
        room = quotas(limit)
        return all(
            sum(room[s : s + width]) >= max(sum(sent[s : s + width]), sum(got[s : s + width]))
            for s in range(0, ranks, width)
        )

    least = 0
    while not fits(least):
        least += 1
    top = max(-(-max(sent[p], got[p]) * fastest // far[p]) for p in range(ranks))

    def worst(limit: int) -> tuple[Fraction, Fraction]:
        room = quotas(limit)
        outer = max(Fraction(min(max(sent[p], got[p]), room[p]), far[p]) for p in range(ranks))
        leaves, enters = [0] * ranks, [0] * ranks
        for p in range(ranks):
            box = range(p // width * width, (p // width + 1) * width)
            leaves[p] += sum(count(p, q) for q in box if q != p)
            enters[p] += sum(count(q, p) for q in box if q != p)
            for carrier in _carriers(p, sent, room, width):
                leaves[p] += carrier != p
                enters[carrier] += carrier != p
            for carrier in _carriers(p, got, room, width):
                leaves[carrier] += carrier != p
                enters[p] += carrier != p
        return outer, max(Fraction(max(leaves[p], enters[p]), near[p]) for p in range(ranks))

    low, high, close = least, top, (top - least) // 1024
    if worst(low)[1] > worst(low)[0]:
        while high - low > close + 1:
            middle = low + (high - low) // 2
            outer, inner = worst(middle)
            low, high = (middle, high) if inner > outer else (low, middle)
    else:
        high = low
    return low if max(worst(low)) <= max(worst(high)) else high


def _rails(rates: RankRates, count, ways, *, relays: bool) -> None:  # type: ignore[no-untyped-def]
    width, boxes, far = rates.width, rates.boxes, rates.far.tolist()
    for s in range(boxes):
        for t in range(boxes):
            if s == t:
                continue
            pairs = [(s * width + i, t * width + j) for i in range(width) for j in range(width)]
            if not relays:
                for p, q in pairs:
                    ways[p, q] = [(s * width + q % width, q)] * count(p, q)
                continue
            total = sum(count(p, q) for p, q in pairs)
            rate = [min(far[s * width + k], far[t * width + k]) for k in range(width)]
            turn = [(m + s + t) % width for m in range(width)]
            room, begin = [0] * width, 0
            for m, k in enumerate(turn):
                end = total * sum(rate[each] for each in turn[: m + 1]) // sum(rate)
                room[k], begin = end - begin, end
            for pair in pairs:
                ways[pair] = []

            def take(
                p: int, q: int, k: int, most: int, room: list[int] = room, s: int = s, t: int = t
            ) -> None:
                amount = max(0, min(most, count(p, q) - len(ways[p, q]), room[k]))
                ways[p, q] += [(s * width + k, t * width + k)] * amount
                room[k] -= amount

            for p, q in pairs:
                if p % width == q % width:
                    take(p, q, p % width, total)
            for p, q in pairs:
                if p % width != q % width:
                    take(p, q, p % width, count(p, q) // 2)
                    take(p, q, q % width, count(p, q) - count(p, q) // 2)
            for p, q in pairs:
                take(p, q, p % width, total)
                take(p, q, q % width, total)
            for p, q in pairs:
                for k in range(width):
                    take(p, q, k, total)
