"""Compare two runs of the same collectives: which are slower by more than their noise.

A call is a collective of one size in one group. The logarithm of its new median time over the old one is noise where
nothing changed. The noise is measured: by how far repeated runs lie apart where a side has several files, else by how
far changes of neighbours lie apart (one size and the next); the times of single
iterations add what their median is uncertain by. It has heavy tails (Student's t with eight degrees of freedom), and
probabilities are corrected for the number of calls (Holm 1979). All sizes of a group together show smaller changes;
what one run as a whole differs from the next is part of their noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from coppice.collectives import Collective
from coppice.diagnosis.recorded.records import RunRecords
from coppice.display import Brief
from coppice.errors import CheckError, InputError
from coppice.logs.records import Log
from coppice.text import plural, short_size

CHANCE = 0.01
"""Probability of one false alarm in a comparison of equal runs."""

LEAST_NOISE = 0.005
"""Relative noise of a median at least: clocks and tables know times no better."""

UNKNOWN_NOISE = 0.05
"""Relative noise where nothing tells."""

RUN_SHIFT = 0.01
"""What one run as a whole differs from the next, where no run is repeated."""

LEAST_PAIRS = 3
"""Neighbours that tell the noise."""

_FREEDOM = 8

_Call = tuple[Collective, int | None, int | None, int, bool | None, str | None]


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    """A collective of one size, or of all sizes of a group, in two runs."""

    collective: Collective
    ranks: int | None
    nodes: int | None
    size_bytes: int | None  # None: all sizes together
    in_place: bool | None
    old_us: float | None  # Median; None for all sizes together
    new_us: float | None
    ratio: float  # New time over old time
    noise: float  # Relative, of the ratio
    p_value: float  # Probability of such a change by noise, corrected for the number of calls
    old_algorithm: str | None
    new_algorithm: str | None

    @property
    def slower(self) -> bool:
        """It is slower by more than its noise."""
        return self.ratio > 1 and self.p_value < CHANCE

    @property
    def faster(self) -> bool:
        """It is faster by more than its noise."""
        return self.ratio < 1 and self.p_value < CHANCE

    @property
    def words(self) -> str:
        """The call as text."""
        size = "all sizes" if self.size_bytes is None else short_size(self.size_bytes)
        where = {None: "", True: ", one buffer", False: ", two buffers"}[self.in_place]
        ranks = "" if self.ranks is None else f" of {plural(self.ranks, 'rank')}"
        return f"{self.collective}{ranks}, {size}{where}"

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "collective": str(self.collective),
            "ranks": self.ranks,
            "node_count": self.nodes,
            "size_bytes": self.size_bytes,
            "in_place": self.in_place,
            "old_us": self.old_us,
            "new_us": self.new_us,
            "time_ratio": self.ratio,
            "noise_share": self.noise,
            "p_value": self.p_value,
            "verdict": "slower" if self.slower else "faster" if self.faster else "noise",
            "old_algorithm": self.old_algorithm,
            "new_algorithm": self.new_algorithm,
        }


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ComparedRuns(Brief):
    """Two runs, call by call."""

    calls: tuple[ComparedCall, ...]
    whole: tuple[ComparedCall, ...]  # All sizes of each group together
    noise: float  # Relative, of one median
    noise_from: str  # What tells it
    only_old: int  # Calls that only the old run has
    only_new: int
    changes: tuple[str, ...]  # What else differs: versions, plug-ins, variables
    wrong: int  # Wrong values in the new run that the old one did not have

    def __repr__(self) -> str:
        return f"<{len(self.calls)} calls compared: {len(self.regressions)} slower>"

    @property
    def regressions(self) -> tuple[ComparedCall, ...]:
        """What is slower, the worst first."""
        found = [each for each in (*self.calls, *self.whole) if each.slower]
        return tuple(sorted(found, key=lambda each: -each.ratio))

    def require_ok(self) -> None:
        """Refuse a run that is slower, or wrong.

        Raises:
            CheckError: With the worst call.
        """
        if self.wrong:
            raise CheckError(
                f"expected right values, found {plural(self.wrong, 'wrong one')} more than before: do not upgrade."
            )
        if self.regressions:
            worst = self.regressions[0]
            changed = f"; what changed: {'; '.join(self.changes[:3])}" if self.changes else ""
            more = f" (and {plural(len(self.regressions) - 1, 'other')})" if self.regressions[1:] else ""
            raise CheckError(
                f"expected times within their noise, found {worst.words} at {worst.ratio:.4g} times its old time{more}"
                f"{changed}: look at what changed there."
            )

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "ok": not self.regressions and not self.wrong,
            "compared_calls": [each.record() for each in self.calls],
            "compared_groups": [each.record() for each in self.whole],
            "noise_share": self.noise,
            "noise_from": self.noise_from,
            "only_old_count": self.only_old,
            "only_new_count": self.only_new,
            "changed_settings": list(self.changes),
            "wrong": self.wrong,
        }


@dataclass(frozen=True)
class _Timed:
    """A call in one run."""

    runs: tuple[float, ...]  # Median of each file
    error: float  # Relative standard error of the median by single times, 0 where they are not told
    algorithm: str | None

    @property
    def median(self) -> float:
        return statistics.median(self.runs)


def compare_runs(old: RunRecords, new: RunRecords) -> ComparedRuns:
    """Compare two runs.

    Args:
        old: The run to compare with; several files of it are repetitions.
        new: The run that is to be no slower.

    Raises:
        InputError: If they have no call in common.
    """
    before, after = _timed(old.logs), _timed(new.logs)
    both = [key for key in before if key in after]
    if not both:
        raise InputError(
            f"expected collectives of equal sizes and groups in both runs, found {len(before)} and {len(after)} with "
            "none in common: measure the same sizes."
        )
    change = {key: math.log(after[key].median / before[key].median) for key in both}
    noise, source, repeated = _noise(both, change, before, after)
    errors = {
        key: math.sqrt(
            noise**2 * (1 / len(before[key].runs) + 1 / len(after[key].runs))
            + before[key].error ** 2
            + after[key].error ** 2
        )
        for key in both
    }
    chances = _holm([2 * student_tail(abs(change[key]) / errors[key]) for key in both])
    calls = [
        _compared(key, math.exp(change[key]), errors[key], chance, before[key], after[key])
        for key, chance in zip(both, chances, strict=True)
    ]
    versions = [{log.version for log in run.logs if log.version} for run in (old, new)]
    return ComparedRuns(
        calls=tuple(calls),
        whole=tuple(_whole(both, change, errors, repeated=repeated)),
        noise=noise,
        noise_from=source,
        only_old=len(before) - len(both),
        only_new=len(after) - len(both),
        changes=tuple(_changes(old.logs, new.logs, *versions)),
        wrong=max(0, _wrong(new.logs) - _wrong(old.logs)),
    )


def _timed(logs: Sequence[Log]) -> dict[_Call, _Timed]:
    """Times of all calls by file."""
    rows: dict[_Call, dict[str, list[float]]] = {}
    single: dict[_Call, list[float]] = {}
    algorithms: dict[_Call, set[str | None]] = {}
    for log in logs:
        for each in log.measurements:
            if each.time_us <= 0:
                continue
            key = (each.collective, each.ranks, each.nodes, each.size_bytes, each.in_place, each.type)
            rows.setdefault(key, {}).setdefault(each.file, []).append(each.time_us)
            algorithms.setdefault(key, set()).add(each.algorithm)
            if each.iterations is not None:
                single.setdefault(key, []).extend(each.iterations.times_us[each.iterations.skipped :])
    found = {}
    for key, by_file in rows.items():
        times = single.get(key) or [time for some in by_file.values() for time in some]
        names = algorithms[key]
        found[key] = _Timed(
            tuple(statistics.median(some) for some in by_file.values()),
            _median_error(times) if len(times) >= 4 else 0.0,
            names.pop() if len(names) == 1 else None,
        )
    return found


def _median_error(times: Sequence[float]) -> float:
    """Relative standard error of a median."""
    median = statistics.median(times)
    spread = 1.4826 * statistics.median(abs(time - median) for time in times)
    return 1.2533 * spread / math.sqrt(len(times)) / median


def _noise(
    both: Sequence[_Call],
    change: Mapping[_Call, float],
    before: Mapping[_Call, _Timed],
    after: Mapping[_Call, _Timed],
) -> tuple[float, str, bool]:
    """Relative noise of the median of one run, what tells it, and whether runs are repeated."""
    deviations, freedom = 0.0, 0
    for key in both:
        for side in (before[key], after[key]):
            logs = [math.log(time) for time in side.runs]
            mean = statistics.fmean(logs)
            deviations += sum((each - mean) ** 2 for each in logs)
            freedom += len(logs) - 1
    if freedom >= LEAST_PAIRS:
        return max(LEAST_NOISE, math.sqrt(deviations / freedom)), "repeated runs", True
    pairs = [abs(change[one] - change[other]) for one, other in _neighbours(both)]
    if len(pairs) >= LEAST_PAIRS:
        # A change is the difference of two medians, and a pair that of two changes
        return max(LEAST_NOISE, 1.4826 * statistics.median(pairs) / 2), "neighbouring calls", False
    return UNKNOWN_NOISE, "nothing: assumed", False


def _neighbours(both: Sequence[_Call]) -> list[tuple[_Call, _Call]]:
    """Calls that are of one size and the next: both buffers of a size are measured at once, and fare alike."""
    rows: dict[Any, list[_Call]] = {}
    for key in sorted(both, key=lambda each: each[3]):
        rows.setdefault((*key[:3], *key[4:]), []).append(key)
    return [pair for row in rows.values() for pair in pairwise(row)]


def student_tail(t: float) -> float:
    """Probability that Student's t with eight degrees of freedom is above a value (Abramowitz and Stegun 26.7.4).

    Examples:
        >>> round(student_tail(1.8595), 4), round(student_tail(2.8965), 4)
        (0.05, 0.01)
    """
    angle = math.atan(t / math.sqrt(_FREEDOM))
    cos = math.cos(angle) ** 2
    total, term = 1.0, 1.0
    for k in range(2, _FREEDOM, 2):
        term *= (k - 1) / k * cos
        total += term
    return max(0.0, (1 - math.sin(angle) * total) / 2)


def _holm(chances: Sequence[float]) -> list[float]:
    """Probabilities corrected for their number."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    found = [1.0] * len(chances)
    most = 0.0
    for rank, place in enumerate(order):
        most = max(most, min(1.0, chances[place] * (len(chances) - rank)))
        found[place] = most
    return found


def _compared(
    key: _Call, ratio: float, noise: float, chance: float, old: _Timed, new: _Timed
) -> ComparedCall:
    collective, ranks, nodes, size, in_place, _ = key
    return ComparedCall(
        collective=collective,
        ranks=ranks,
        nodes=nodes,
        size_bytes=size,
        in_place=in_place,
        old_us=old.median,
        new_us=new.median,
        ratio=ratio,
        noise=noise,
        p_value=chance,
        old_algorithm=old.algorithm,
        new_algorithm=new.algorithm,
    )


def _whole(
    both: Sequence[_Call], change: Mapping[_Call, float], errors: Mapping[_Call, float], *, repeated: bool
) -> list[ComparedCall]:
    """All sizes of each group together: the median change, which a few sizes do not move."""
    groups: dict[Any, list[_Call]] = {}
    for key in both:
        groups.setdefault(key[:3], []).append(key)
    groups = {shape: keys for shape, keys in groups.items() if len(keys) >= LEAST_PAIRS}
    rows = []
    for (collective, ranks, nodes), keys in groups.items():
        middle = statistics.median(change[key] for key in keys)
        own = 1.2533 * statistics.fmean(errors[key] for key in keys) / math.sqrt(len(keys))
        shift = statistics.fmean(errors[key] for key in keys) if repeated else math.sqrt(2) * RUN_SHIFT
        noise = math.hypot(own, shift)
        rows.append((collective, ranks, nodes, middle, noise, 2 * student_tail(abs(middle) / noise)))
    chances = _holm([each[5] for each in rows])
    return [
        ComparedCall(
            collective=collective,
            ranks=ranks,
            nodes=nodes,
            size_bytes=None,
            in_place=None,
            old_us=None,
            new_us=None,
            ratio=math.exp(middle),
            noise=noise,
            p_value=chance,
            old_algorithm=None,
            new_algorithm=None,
        )
        for (collective, ranks, nodes, middle, noise, _), chance in zip(rows, chances, strict=True)
    ]


def _changes(
    old: Sequence[Log], new: Sequence[Log], old_versions: set[str], new_versions: set[str]
) -> list[str]:
    """What else differs between the runs."""
    found = []
    if old_versions != new_versions and old_versions and new_versions:
        found.append(f"version {', '.join(sorted(old_versions))} -> {', '.join(sorted(new_versions))}")
    tuners = [sorted({log.tuner for log in logs if log.tuner is not None}) for logs in (old, new)]
    if tuners[0] != tuners[1]:
        words = [", ".join(each or "none" for each in some) or "not told" for some in tuners]
        found.append(f"tuner plug-in {words[0]} -> {words[1]}")
    settings = [{name: value for log in logs for name, value in log.settings.items()} for logs in (old, new)]
    for name in sorted({*settings[0], *settings[1]}):
        one, other = (some.get(name, "not set") for some in settings)
        if one != other and not name.endswith("_FILE"):
            found.append(f"{name} {one} -> {other}")
    return found


def _wrong(logs: Sequence[Log]) -> int:
    return sum(each.wrong or 0 for log in logs for each in log.measurements)
