"""Fit rules to measurements: the fastest choice per shape and size that beats the default significantly.

At each size, choices compete that are faster than the default with a corrected p-value of 1 percent at most, whose
interval lies above 1 and whose gain is 3 percent at least. Neighbouring sizes share a choice where that costs less than
2 percent a change, found exactly by dynamic programming over the sizes; a size whose gain is not sure keeps the
default, also between sizes with a rule. Ranges meet at the geometric mean of neighbouring sizes and reach half a step
beyond the measured ones; nothing is said of sizes further away unless that is asked for.

MPICH's variables choose one algorithm for all sizes. There a choice counts that is sure at one size at least, and at
every measured size loses less than 2 percent, nowhere beyond noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from coppice.errors import InputError
from coppice.tuning.records import CallShape, LibraryChoice, TimedRun
from coppice.tuning.statistics import ChoiceVerdict, compare, holm

NO_END = 2**64 - 1
"""Last size of a range without an end."""

ONE_CHOICE = ("mpich",)
"""Libraries whose variables choose an algorithm for all sizes at once."""

_CHANGE = math.log(1.02)
_NO_LOSS = 0.98


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceFit:
    """Fit of one choice at one size."""

    choice: LibraryChoice  # The choice
    verdict: ChoiceVerdict  # How it compares with the default
    p_value: float  # Probability of such a gain by chance, corrected for the number of choices at this size
    sure: bool  # It may stand in a rule


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeFit:
    """Fits of one shape at one size."""

    size_bytes: int  # M
    default_us: float  # Median time of the default
    candidates: tuple[ChoiceFit, ...]  # Choices that ran right, the fastest first
    taken: ChoiceFit | None  # What the rule for this size says, None keeps the default
    # Least time that the bandwidths of the network allow, None where that is not known
    bound_us: float | None
    refused: tuple[tuple[LibraryChoice, str], ...]  # Choices that did not run, with the reason

    @property
    def time_us(self) -> float:
        """Median time with the rule."""
        return self.default_us if self.taken is None else self.default_us / self.taken.verdict.gain

    def reached(self, time_us: float) -> float | None:
        """Bound over a time, None where the bound is unknown."""
        return None if self.bound_us is None or not self.bound_us else self.bound_us / time_us


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeRule:
    """A choice for a range of sizes."""

    shape: CallShape  # Collective, nodes and ranks
    first_bytes: int  # Least M, included
    last_bytes: int  # Largest M, included
    choice: LibraryChoice | None  # What to run, None is the default
    # Default's time / time of the choice, the geometric mean over the measured sizes; 1 for the default
    gain: float = 1.0
    low: float = 1.0  # Least lower end of their intervals
    high: float = 1.0  # Largest upper end
    noise: float = 0.0  # Largest half width of their intervals
    # Least share of the bound that the choice reaches, None where the bound is not known
    reached: float | None = None
    sizes: tuple[int, ...] = ()  # Measured sizes in the range


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Result of fitting measurements."""

    library: str  # The library
    version: str  # Its version
    sizes: Mapping[CallShape, tuple[SizeFit, ...]]  # What is known of each shape, sizes ascending
    # The rules, ranges without a rule of their own left to the default by a rule that says so
    rules: tuple[SizeRule, ...]

    def record(self) -> dict[str, Any]:
        """The fit as JSON values."""
        return {
            "library": self.library,
            "library_version": self.version,
            "version": self.version,
            "sizes": [
                {
                    **shape.record(),
                    "size_bytes": size.size_bytes,
                    "default_us": size.default_us,
                    "bound_us": size.bound_us,
                    "taken": None if size.taken is None else str(size.taken.choice),
                    "candidates": [
                        {
                            "choice": str(each.choice),
                            "gain": each.verdict.gain,
                            "low": each.verdict.low,
                            "high": each.verdict.high,
                            "p_value": each.p_value,
                            "sure": each.sure,
                            "repeats": each.verdict.repeats,
                            "outliers": each.verdict.outliers,
                        }
                        for each in size.candidates
                    ],
                    "refused": [{"choice": str(choice), "reason": reason} for choice, reason in size.refused],
                }
                for shape, sizes in self.sizes.items()
                for size in sizes
            ],
            "rules": [
                {
                    **rule.shape.record(),
                    "first_bytes": rule.first_bytes,
                    "last_bytes": rule.last_bytes,
                    "choice": None if rule.choice is None else str(rule.choice),
                    "gain": rule.gain,
                    "low": rule.low,
                    "high": rule.high,
                    "share_of_optimum": rule.reached,
                    "bound_share": rule.reached,
                }
                for rule in self.rules
            ],
        }


def fit_runs(
    runs: Sequence[TimedRun],  # The measurements (see :func:`coppice.tuning.records.read_runs`)
    *,
    # Least time of a shape and size, where known
    bounds_us: Mapping[tuple[CallShape, int], float] | None = None,
    # Probability with which a choice that makes no difference may get a rule, at each size
    alpha: float = 0.01,
    least_gain: float = 0.03,  # Least relative gain of a rule
    # The first rule reaches down to 0 bytes and the last has no end, although nobody measured there
    extend: bool = False,
    seed: int = 0,
) -> Fit:
    """Fit rules to the measurements of one library."""
    if not runs:
        raise InputError("expected measurements, found none: `coppice tune sweep` makes some.")
    if not 0 < alpha < 1 or not 0 <= least_gain < 10:
        raise InputError(
            f"expected a probability between 0 and 1 and a gain of 0 or more, found {alpha:g} and {least_gain:g}."
        )
    grouped: dict[CallShape, dict[int, list[TimedRun]]] = {}
    for run in runs:
        grouped.setdefault(run.shape, {}).setdefault(run.size_bytes, []).append(run)
    sizes: dict[CallShape, tuple[SizeFit, ...]] = {}
    rules: list[SizeRule] = []
    for shape in sorted(grouped):
        found = [
            _size_fit(
                members, (bounds_us or {}).get((shape, size)), alpha=alpha, least_gain=least_gain, seed=seed
            )
            for size, members in sorted(grouped[shape].items())
        ]
        known = [each for each in found if each.default_us]
        one = runs[0].library in ONE_CHOICE
        sizes[shape] = _with_one_choice(known, alpha=alpha) if one else _settled(known)
        rules += _rules(shape, sizes[shape], extend=extend)
    return Fit(library=runs[0].library, version=runs[0].version, sizes=sizes, rules=tuple(rules))


def _size_fit(
    runs: Sequence[TimedRun], bound_us: float | None, *, alpha: float, least_gain: float, seed: int
) -> SizeFit:
    """All choices at one size; which of them is taken is settled later."""
    good = [run for run in runs if not run.refusal and not run.wrong]
    refused = [(run.choice, run.refusal or f"{run.wrong} wrong results") for run in runs if run not in good]
    verdicts = [compare(run.default_us, run.time_us, paired=run.paired, seed=seed) for run in good]
    corrected = holm([verdict.p_faster for verdict in verdicts])
    candidates = [
        ChoiceFit(
            choice=run.choice,
            verdict=verdict,
            p_value=p_value,
            sure=p_value <= alpha and verdict.low > 1 and verdict.gain >= 1 + least_gain,
        )
        for run, verdict, p_value in zip(good, verdicts, corrected, strict=True)
    ]
    candidates.sort(key=lambda each: (-each.verdict.gain, each.choice))
    defaults = sorted(time for run in good for time in run.default_us)
    middle = len(defaults) // 2
    return SizeFit(
        size_bytes=runs[0].size_bytes,
        default_us=(defaults[middle] + defaults[-middle - 1]) / 2 if defaults else 0.0,
        candidates=tuple(candidates),
        taken=None,
        bound_us=bound_us,
        refused=tuple(refused),
    )


def _settled(sizes: Sequence[SizeFit]) -> tuple[SizeFit, ...]:
    """The sizes with what is taken: least total log time, where every change of choice costs a little."""
    options = [{c.choice: c for c in size.candidates if c.sure} for size in sizes]
    best: dict[LibraryChoice | None, float] = {}
    origins: list[dict[LibraryChoice | None, LibraryChoice | None]] = []
    for at, offered in enumerate(options):
        costs = {choice: -math.log(each.verdict.gain) for choice, each in offered.items()}
        reached: dict[LibraryChoice | None, float] = {}
        came: dict[LibraryChoice | None, LibraryChoice | None] = {}
        for choice, cost in [(None, 0.0), *costs.items()]:
            came[choice], before = _cheapest(best, choice) if at else (None, 0.0)
            reached[choice] = before + cost
        best = reached
        origins.append(came)
    found: list[SizeFit] = []
    choice = min(best, key=lambda each: best[each], default=None)
    for size, offered, came in zip(reversed(sizes), reversed(options), reversed(origins), strict=True):
        taken = None if choice is None else offered[choice]
        found.append(replace(size, taken=taken))
        choice = came[choice]
    return tuple(reversed(found))


def _with_one_choice(sizes: Sequence[SizeFit], *, alpha: float) -> tuple[SizeFit, ...]:
    """The sizes with one choice for all of them: sure at one size at least, and nowhere slower than the default."""
    scores: dict[LibraryChoice, float] = {}
    offered = [{c.choice: c for c in size.candidates} for size in sizes]
    for choice in set.intersection(*(set(each) for each in offered)) if offered else ():
        own = [each[choice] for each in offered]
        slower = holm([each.verdict.p_slower for each in own])
        harmless = all(each.verdict.gain >= _NO_LOSS for each in own) and min(slower) > alpha
        if harmless and any(each.sure for each in own):
            scores[choice] = sum(math.log(each.verdict.gain) for each in own)
    best = max(sorted(scores), key=lambda each: scores[each], default=None)
    return tuple(
        replace(size, taken=None if best is None else known[best])
        for size, known in zip(sizes, offered, strict=True)
    )


def _cheapest(
    best: Mapping[LibraryChoice | None, float], choice: LibraryChoice | None
) -> tuple[LibraryChoice | None, float]:
    """From which choice of the size before one comes at least cost; from the default and to it is free."""

    def cost(origin: LibraryChoice | None) -> float:
        return best[origin] + (0.0 if choice is None or origin in (None, choice) else _CHANGE)

    origin = min(best, key=cost)
    return origin, cost(origin)


def _rules(shape: CallShape, sizes: Sequence[SizeFit], *, extend: bool) -> list[SizeRule]:
    """Ranges of equal choices."""
    found: list[SizeRule] = []
    start = 0
    for end, size in enumerate(sizes):
        following = sizes[end + 1] if end + 1 < len(sizes) else None
        choice = size.taken.choice if size.taken else None
        if following is not None and (following.taken.choice if following.taken else None) == choice:
            continue
        members = sizes[start : end + 1]
        first = _edge(sizes, start) + 1 if start else _before(sizes, extend=extend)
        last = _edge(sizes, end + 1) if following is not None else _after(sizes, extend=extend)
        found.append(_rule(shape, first, last, choice, members))
        start = end + 1
    return found


def _edge(sizes: Sequence[SizeFit], at: int) -> int:
    """Last size of the range that ends before the size at ``at``."""
    return isqrt(sizes[at - 1].size_bytes * sizes[at].size_bytes)


def _before(sizes: Sequence[SizeFit], *, extend: bool) -> int:
    if extend or not sizes[0].size_bytes:
        return 0
    first = sizes[0].size_bytes
    return (
        first
        if len(sizes) == 1 or not sizes[1].size_bytes
        else isqrt(first * first * first // sizes[1].size_bytes)
    )


def _after(sizes: Sequence[SizeFit], *, extend: bool) -> int:
    if extend:
        return NO_END
    last = sizes[-1].size_bytes
    if len(sizes) == 1 or not sizes[-2].size_bytes:
        return last
    return min(NO_END, isqrt(last * last * last // sizes[-2].size_bytes))


def _rule(
    shape: CallShape, first: int, last: int, choice: LibraryChoice | None, members: Sequence[SizeFit]
) -> SizeRule:
    sizes = tuple(each.size_bytes for each in members)
    shares = [share for each in members if (share := each.reached(each.time_us)) is not None]
    reached = min(shares, default=None)
    verdicts = [each.taken.verdict for each in members if each.taken is not None]
    if choice is None or not verdicts:
        return SizeRule(
            shape=shape, first_bytes=first, last_bytes=last, choice=None, reached=reached, sizes=sizes
        )
    return SizeRule(
        shape=shape,
        first_bytes=first,
        last_bytes=last,
        choice=choice,
        gain=math.exp(sum(math.log(each.gain) for each in verdicts) / len(verdicts)),
        low=min(each.low for each in verdicts),
        high=max(each.high for each in verdicts),
        noise=max(each.noise for each in verdicts),
        reached=reached,
        sizes=sizes,
    )
