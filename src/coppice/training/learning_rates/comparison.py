"""Comparison of methods by the steps that they take to one validation loss, over several seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

from coppice.errors import InputError
from coppice.training.learning_rates.methods import LearningRun, missing_package, rates_of, train
from coppice.training.learning_rates.tasks import TASKS, LearningTask

TUNING_SEED = 100
"""Seed that peak rates are tuned with; it is none of those that are compared."""


@dataclass(frozen=True, kw_only=True)
class MethodRuns:
    """A method on a task: a run for each seed."""

    method: str
    rate: float | None  # Tuned peak rate; None where the method finds its own
    runs: tuple[LearningRun, ...]

    def steps_to(self, goal: float, *, trials: bool) -> float | None:
        """Median steps until the validation loss is at most a goal; None where half of the seeds or more miss it."""
        found = [place[trials] for run in self.runs if (place := run.reach(goal)) is not None]
        return median(found) if 2 * len(found) > len(self.runs) else None

    def reached(self, goal: float) -> int:
        """Number of seeds that reach a goal."""
        return sum(run.reach(goal) is not None for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class ComparedTask:
    """All methods on one task; the goal is the validation loss that the original schedule ends with (median)."""

    task: str
    steps: int  # Kept by each training
    methods: tuple[MethodRuns, ...]  # The original schedule first
    left_out: tuple[str, ...]  # Methods whose packages are not installed, with what installs them

    @property
    def goal(self) -> float:
        """Validation loss in nats that all are timed to."""
        return median(run.end for run in self.methods[0].runs)

    def speedup(self, method: MethodRuns, *, trials: bool = False) -> float | None:
        """Steps of the original schedule to the goal over those of a method; None where either has none."""
        own, other = (
            self.methods[0].steps_to(self.goal, trials=False),
            method.steps_to(self.goal, trials=trials),
        )
        return None if own is None or other is None else own / other


class _KeptRuns:
    """Runs by what decides them, kept in a file as they are made."""

    def __init__(self, file: str | PathLike[str] | None) -> None:
        self.file = None if file is None else Path(file)
        self.runs: dict[str, LearningRun] = {}
        if self.file is None or not self.file.exists():
            return
        for number, line in enumerate(self.file.read_text().splitlines(), 1):
            try:
                record = json.loads(line)
                key = record.pop("key")
                lists: dict[str, Any] = {name: tuple(record.pop(name)) for name in ("kept", "made", "losses")}
                self.runs[key] = LearningRun(**lists, **record)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(
                    f"{self.file}:{number}: expected a run that lr-compare wrote, found {line[:40]!r}: name another "
                    "file, or take the line out."
                ) from None

    def add(self, key: str, run: LearningRun) -> None:
        self.runs[key] = run
        if self.file is not None:
            with self.file.open("a") as out:
                out.write(json.dumps({"key": key, **asdict(run)}) + "\n")


def compare_methods(
    task: str,
    methods: Sequence[str],
    *,
    steps: int = 2000,
    seeds: int = 5,
    results: str | PathLike[str] | None = None,
    begin: Callable[[str], Any] = lambda _: None,
) -> ComparedTask:
    """Train a task by each method from the same seeds.

    Peak rates of schedules are tuned over four rates with a seed of their own, by the last validation loss; these
    trainings do not count as steps of the method.

    Args:
        task: One of ``LR_TASKS``.
        methods: Among ``LR_METHODS``; the original schedule is always trained, since it gives the goal.
        steps: Steps that each training keeps.
        seeds: Trainings of each method.
        results: JSON lines to which runs are appended as they are made; those that are in it are not made again.
        begin: Is told what is trained next.

    Raises:
        InputError: If there is no such task or method, or the file is none of runs.
    """
    known = _KeptRuns(results)
    own = TASKS[task]
    wanted = ["original", *(method for method in methods if method != "original")]
    compared, left_out = [], []
    for method in wanted:
        package = missing_package(method)
        if package is not None:
            left_out.append(f"{method} (pip install {package})")
            continue
        rate = _best_rate(known, own, method, steps, begin)
        runs = tuple(_run(known, own, method, rate or 0.0, seed, steps, begin) for seed in range(seeds))
        compared.append(MethodRuns(method=method, rate=rate, runs=runs))
    return ComparedTask(task=task, steps=steps, methods=tuple(compared), left_out=tuple(left_out))


def _best_rate(
    known: _KeptRuns, task: LearningTask, method: str, steps: int, begin: Callable[[str], Any]
) -> float | None:
    rates = rates_of(task, method)
    ends = {rate: _run(known, task, method, rate, TUNING_SEED, steps, begin).end for rate in rates}
    return min(ends, key=ends.__getitem__) if ends else None


def _run(
    known: _KeptRuns,
    task: LearningTask,
    method: str,
    rate: float,
    seed: int,
    steps: int,
    begin: Callable[[str], Any],
) -> LearningRun:
    key = f"{task.name}|{method}|{rate:g}|{seed}|{steps}"
    if key not in known.runs:
        what = f"rate {rate:g}" if seed == TUNING_SEED else f"seed {seed}"
        begin(f"{task.name}, {method}, {what}")
        known.add(key, train(task, method, rate=rate, seed=seed, steps=steps))
    return known.runs[key]
