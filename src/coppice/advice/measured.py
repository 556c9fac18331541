"""What logs and results of benchmarks measured: the default of the library, and choices that were forced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coppice.advice.rows import MOST_NOISE, WORTH, AdviceRow, settled
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.records import Log, LoggedMeasurement
from coppice.tuning.fit import Fit, fit_runs
from coppice.tuning.logged import ALGORITHM_NAMES, PROTOCOL_NAMES, runs_of_logs, select_by_log
from coppice.tuning.statistics import ChoiceVerdict

Reckoned = Mapping[tuple[Collective, int], float]
"""Time in microseconds that the library's own model reckons with, by collective and size."""


def fit_of(logs: Sequence[Log], library: str) -> Fit | None:
    """Rules for what was measured with and without a forced choice; None where nothing was forced."""
    try:
        runs, _ = runs_of_logs(logs, library=library)
    except InputError:  # nothing was measured both ways
        return None
    return fit_runs(runs)


def measured_rows(
    logs: Sequence[Log], fit: Fit | None, reckoned: Reckoned, *, nodes: int, ranks: int
) -> list[AdviceRow]:
    """A row for each collective, shape and size whose default was measured.

    Args:
        fit: What is sure of forced choices (:func:`fit_of`).
        reckoned: What the library's own model reckons with, for the communicator of the cluster.
        nodes: Boxes of that communicator, of which also measurements are that do not say theirs.
        ranks: Its ranks.
    """
    grouped: dict[tuple[Collective, int, int, int], list[LoggedMeasurement]] = {}
    for log in logs:
        for row in log.measurements:
            if not row.forced and row.of_kernels and row.in_place is not True:
                whose = (nodes, ranks) if row.ranks is None else (row.nodes or 1, row.ranks)
                key = (row.collective, *whose, row.size_bytes)
                grouped.setdefault(key, []).append(row)
    sure = {}
    for shape, sizes in () if fit is None else fit.sizes.items():
        for size in sizes:
            sure[shape.collective, shape.nodes, shape.ranks, size.size_bytes] = size
    found = []
    for key, rows in sorted(grouped.items()):
        times = sorted(row.time_us for row in rows)
        today = times[(len(times) - 1) // 2]
        tails = [row.iterations.p99_us for row in rows if row.iterations is not None]
        better = sure.get(key)
        taken = None if better is None else better.taken
        picked = next((_name(row) for row in rows if row.algorithm), "default")
        why = "nothing else was measured: force choices by `coppice tune sweep` to see whether one is faster"
        best, best_us = picked, today
        if taken is not None and better is not None:
            choice = taken.choice
            words = (choice.algorithm, choice.protocol)
            best = "/".join(
                part
                for part in (ALGORITHM_NAMES.get(words[0], words[0]), PROTOCOL_NAMES.get(words[1], words[1]))
                if part
            )
            best_us = today / taken.verdict.gain
            why = f"measured {taken.verdict.low:.2f} to {taken.verdict.high:.2f} times as fast, which is no chance"
        elif better is not None:
            why = "no choice that was forced is surely faster"
        own = reckoned.get((key[0], key[3])) if key[2] == ranks else None
        if own and taken is None and today > own * SLOW:  # as :func:`slow_rows` has it
            why = f"takes {today / own:.2g} times what NCCL reckons with on this cluster: see what is found of the host"
        found.append(
            settled(
                AdviceRow(
                    group="all",
                    collective=key[0],
                    nodes=key[1],
                    ranks=key[2],
                    size_bytes=key[3],
                    picked=picked,
                    best=best,
                    picked_us=today,
                    best_us=best_us,
                    model=f"measured in {', '.join(dict.fromkeys(row.file for row in rows))}",
                    why=why,
                    change="tuner table" if taken is not None else "",
                    p99_us=max(tails, default=None),
                    reckoned_us=own,
                )
            )
        )
    return found


def slow_rows(rows: Sequence[AdviceRow]) -> list[AdviceRow]:
    """Measured picks that take much more than the library reckons with, and for which no choice is faster."""
    return [
        row
        for row in rows
        if row.reckoned_us and row.picked_us and row.picked_us > SLOW * row.reckoned_us and not row.change
    ]


SLOW = 1.5
"""What takes so many times the time that a library reckons with is worth a look at the host."""


def logged_rows(
    logs: Sequence[Log], collectives: Sequence[Collective], sizes: Sequence[int]
) -> list[AdviceRow]:
    """Rows of the picks by the cost model that a log prints, which is that of the version and machine that ran."""
    found = []
    for log in logs:
        if sum(bool(each.cells) for each in log.communicators) != 1:
            continue
        (communicator,) = (each for each in log.communicators if each.cells)
        if communicator.ranks is None:
            continue
        for collective in collectives:
            if not any(cell.collective is collective and cell.gb_per_s for cell in communicator.cells):
                continue
            for size in sizes:
                pick = select_by_log(log, collective, size)
                timed = sorted(
                    (cell for cell in pick.cells if cell.time_us is not None), key=lambda cell: cell.model_us
                )
                rival = timed[1] if len(timed) > 1 else None
                found.append(
                    AdviceRow(
                        group="all",
                        collective=collective,
                        nodes=communicator.nodes or 1,
                        ranks=communicator.ranks,
                        size_bytes=size,
                        picked=pick.algorithm,
                        best=pick.algorithm,
                        picked_us=timed[0].time_us,
                        best_us=timed[0].time_us,
                        model=f"cost model printed in {log.file}",
                        why="the library picks the least of all times that it reckons with",
                        rival="" if rival is None else f"{rival.algorithm}/{rival.protocol}",
                        rival_us=None if rival is None else rival.time_us,
                        latency_us=timed[0].latency_us,
                    )
                )
    return found


def _name(row: LoggedMeasurement) -> str:
    algorithm, protocol = row.algorithm or "", row.protocol or ""
    names = (ALGORITHM_NAMES.get(algorithm, algorithm), PROTOCOL_NAMES.get(protocol, protocol))
    return "/".join(name for name in names if name)


def is_sure(verdict: ChoiceVerdict) -> bool:
    """Whether the gain of the best of many choices is worth a change, whatever of it is chance, and known well."""
    return verdict.low >= 1 + WORTH and verdict.noise <= MOST_NOISE * verdict.gain


def swept_rows(fit: Fit | None) -> list[AdviceRow]:
    """A row for each collective, shape and size of a sweep; gains that are known within a fifth are advised."""
    found = []
    for shape, sizes in () if fit is None else fit.sizes.items():
        for size in sizes:
            taken = size.taken
            best, why = "default", "no choice is surely faster"
            if taken is not None:
                span = f"{taken.verdict.low:.2f} to {taken.verdict.high:.2f} times as fast"
                best = str(taken.choice) if is_sure(taken.verdict) else "default"
                why = f"{taken.choice} measured {span}"
                if taken.verdict.noise > MOST_NOISE * taken.verdict.gain:
                    why += ": too noisy, measure again"
                elif best == "default":
                    why += f": not surely {WORTH:.0%} faster"
            gained = best != "default"
            found.append(
                settled(
                    AdviceRow(
                        group="all",
                        collective=shape.collective,
                        nodes=shape.nodes,
                        ranks=shape.ranks,
                        size_bytes=size.size_bytes,
                        picked="default",
                        best=best,
                        picked_us=size.default_us,
                        best_us=size.time_us if gained else size.default_us,
                        model="measured by coppice tune sweep",
                        why=why,
                        change="rules" if gained else "",
                    )
                )
            )
    return found
