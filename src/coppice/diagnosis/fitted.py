"""Slow parts of small networks: every explanation with the factors and the noise under which it is likeliest.

Half of the flows of a cluster of two hosts pass a slow host. The median of all flows is no measure of healthy ones
then, nor is their spread the noise. So for each explanation the flows are first freed of the slowdown that it predicts;
what is left has a location and a scale in each class, found by expectation maximisation for Student's t (Lange, Little
and Taylor, Robust statistical modeling using the t distribution, J. Am. Stat. Assoc. 84, 1989).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FREEDOM = 8.0
"""Degrees of freedom of the noise: medians of a few measurements have heavier tails than a normal distribution."""

LEAST_SPREAD = 1e-2
"""Scale of the noise at least: flows in both directions, and those of one processor, change each other's rates by so
much, and rates are known no better."""

SHARES = np.geomspace(0.02, 0.98, 160)
"""Shares of its rate that a slow part may keep: so near to each other that what lies between is no second part."""

FIRST = 4
"""Parts that are the first of two."""

SECOND = 24
"""Parts that may be the second of two."""

POOLED = 4.0
"""Flows as of which the scale of all classes counts in each."""

COARSE = 5
"""One in so many shares is tried of parts that are unlikely."""

NEAR = 6
"""Shares around the likeliest one alone that are tried of the second of two parts."""

_STEPS = 8


@dataclass(frozen=True, eq=False)
class Entries:
    """Which parts each flow passes, over all rounds: sorted by part."""

    part: NDArray[np.int64]
    flow: NDArray[np.int64]
    # Row among the hops of all rounds, or -1 where the flow starts or ends at the part
    hop: NDArray[np.int64]

    def of(self, some: NDArray[np.bool_]) -> Entries:
        """Some of the entries."""
        return Entries(self.part[some], self.flow[some], self.hop[some])


@dataclass(frozen=True, eq=False)
class FittedParts:
    """Logarithms of the likelihood of rates, by what is slow."""

    healthy: float
    single: NDArray[np.float64]  # Of each part, over all shares that it may keep
    share: NDArray[np.float64]  # Likeliest share of each part
    doubles: tuple[tuple[float, int, int, float, float], ...]  # Of pairs: likelihood, parts, shares


def log_noise(residual: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithm of the density of the noise at a scale, up to a constant and the scale."""
    return -0.5 * (FREEDOM + 1) * np.log1p((residual / spread) ** 2 / FREEDOM)


def fitted(
    y: NDArray[np.float64],
    classes: NDArray[np.int64],
    known: NDArray[np.bool_],
    entries: Entries,
    left: Callable[[float], NDArray[np.float64]],
    parts: int,
    unseen: Sequence[int] = (),
    uneven: Sequence[int] = (),
) -> FittedParts:
    """Judge none, one and two slow parts.

    Args:
        y: Logarithm of each rate over the expected one.
        classes: Class of each flow: flows of one are slowed by software alike.
        known: Whether a flow was measured.
        entries: What the flows pass.
        left: Logarithm of what each hop leaves of a flow where its link keeps a share.
        parts: Number of parts.
        unseen: Parts that all flows of a class pass: they are no explanation, for software slows a class alike.
        uneven: Parts whose processes may be what is slow: the flows of each class then keep a share of their own, as
            buffers hide from slow flows that a process stands still for a moment.
    """
    groups = [np.flatnonzero((classes == each) & known) for each in np.unique(classes[known])]
    healthy = float(_likelihood(y[None, :], groups)[0])
    tables = np.stack([left(each) for each in SHARES.tolist()])
    start = np.searchsorted(entries.part, np.arange(parts + 1))

    def slowed(part: int, some: NDArray[np.int64]) -> NDArray[np.float64]:
        """What a part leaves of all flows, a row for each of some shares."""
        mean = np.zeros((len(some), len(y)))
        mine = slice(start[part], start[part + 1])
        mean[:, entries.flow[mine]] = tables[some[:, None], entries.hop[mine]]
        return mean

    told = np.diff(start) > 0
    told[list(unseen)] = False
    every, few = np.arange(len(SHARES)), np.arange(0, len(SHARES), COARSE)
    single = np.full(parts, healthy)
    for part in np.flatnonzero(told).tolist():
        single[part] = _mean(_likelihood(y - slowed(part, few), groups)[None, :], len(few))[0]
    share = np.ones(parts)
    order = np.argsort(-single, kind="stable")
    likely = [part for part in order.tolist() if told[part]][:SECOND]
    best, top = {}, {}
    for part in likely:
        found = _likelihood(y - slowed(part, every), groups)
        best[part], top[part] = int(np.argmax(found)), float(found.max())
        single[part], share[part] = _mean(found[None, :], len(every))[0], SHARES[best[part]]
    likely.sort(key=lambda part: -single[part])
    doubles = []
    windows = {
        part: np.clip(np.arange(at - NEAR, at + NEAR + 1), 0, len(SHARES) - 1) for part, at in best.items()
    }
    for first in likely[:FIRST]:
        others = [part for part in likely if part != first]
        if not others:
            break
        own = slowed(first, np.array([best[first]]))
        both = np.stack([np.minimum(slowed(part, windows[part]), own) for part in others])
        found = _likelihood((y - both).reshape(-1, len(y)), groups).reshape(len(others), -1)
        # The share of the first is the one that is likeliest alone, and costs what it costs there
        again = _mean(found, len(SHARES)) + single[first] - top[first]
        doubles += [
            (
                float(again[place]),
                first,
                second,
                float(share[first]),
                float(SHARES[windows[second][np.argmax(found[place])]]),
            )
            for place, second in enumerate(others)
        ]
    for part in set(uneven).intersection(likely):
        mine = slice(start[part], start[part + 1])
        passing = _Passing(y, groups, entries.flow[mine], entries.hop[mine], classes, tables)
        more, lowest = passing.uneven(best[part])
        single[part] = np.logaddexp(single[part], more) - np.log(2)
        if more > single[part]:
            share[part] = lowest
    return FittedParts(healthy, single, share, tuple(doubles))


@dataclass(frozen=True, eq=False)
class _Passing:
    """The flows that pass a part, which slows those of one class more than the others."""

    y: NDArray[np.float64]
    groups: Sequence[NDArray[np.int64]]
    flow: NDArray[np.int64]
    hop: NDArray[np.int64]
    classes: NDArray[np.int64]
    tables: NDArray[np.float64]

    def uneven(self, even: int) -> tuple[float, float]:
        """Logarithm of the likelihood over all shares of one class and of the rest, and the likeliest lower share.

        Args:
            even: Place of the likeliest share of all classes alike, where the search begins.
        """
        found, lowest = -np.inf, 1.0
        own = np.unique(self.classes[self.flow])
        # Of two classes, the one and the rest are the same two
        for each in own[: len(own) - 1 if len(own) <= 2 else len(own)].tolist():
            apart = self.classes[self.flow] == each
            every, at = np.arange(len(SHARES)), [even, even]
            for turn in (0, 1, 0, 1):
                pair = [np.full(len(every), place) for place in at]
                pair[turn] = every
                at[turn] = int(np.argmax(self._likelihood(apart, *pair)))
            near = [np.arange(max(0, place - NEAR), min(len(SHARES), place + NEAR + 1)) for place in at]
            one, rest = (axis.ravel() for axis in np.meshgrid(*near, indexing="ij"))
            value = float(_mean(self._likelihood(apart, one, rest)[None, :], len(SHARES) ** 2)[0])
            if value > found:
                found, lowest = value, float(SHARES[min(at)])
        return found, lowest

    def _likelihood(
        self, apart: NDArray[np.bool_], one: NDArray[np.int64], rest: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Of pairs of places of shares: of the class that is apart, and of the rest."""
        mean = np.zeros((len(one), len(self.y)))
        row = np.where(apart, one[:, None], rest[:, None])
        mean[:, self.flow] = self.tables[row, self.hop]
        return _likelihood(self.y - mean, self.groups)


def _mean(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Logarithm of the mean over so many shares of exponentials of each row; shares that it lacks add nothing."""
    top = values.max(axis=1)
    found: NDArray[np.float64] = top + np.log(np.exp(values - top[:, None]).sum(axis=1) / count)
    return found


def _likelihood(z: NDArray[np.float64], groups: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Logarithm of the density of each row at the location and scale of each group that make it likeliest."""
    rows = [z[:, each] for each in groups]
    place = [np.median(each, axis=1, keepdims=True) for each in rows]
    spread = [
        np.maximum(1.4826 * np.median(np.abs(each - at), axis=1, keepdims=True), LEAST_SPREAD)
        for each, at in zip(rows, place, strict=True)
    ]
    count = sum(len(each) for each in groups)
    for _ in range(_STEPS):
        squares = []
        for number, each in enumerate(rows):
            residual = each - place[number]
            weight = (FREEDOM + 1) / (FREEDOM + (residual / spread[number]) ** 2)
            place[number] = (weight * each).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
            squares.append((weight * (each - place[number]) ** 2).sum(axis=1, keepdims=True))
        pooled = np.sum(squares, axis=0) / count
        spread = [
            np.sqrt(np.maximum((own + POOLED * pooled) / (each.shape[1] + POOLED), LEAST_SPREAD**2))
            for own, each in zip(squares, rows, strict=True)
        ]
    total = np.zeros(len(z))
    for each, at, scale in zip(rows, place, spread, strict=True):
        total += (log_noise(each - at, scale) - np.log(scale)).sum(axis=1)
    return total
