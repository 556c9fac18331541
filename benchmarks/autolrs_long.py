"""AutoLRS on long runs, with the stages of the paper, against schedules whose peak rate is tuned.

python benchmarks/autolrs_long.py [--only digits] [--results FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autolrs_baselines import SCHEDULES
from autolrs_stacks import TASKS, Feed, Stack, StackOptimizer, Task, evaluate
from coppice.training.torch import AutoLRS

SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100
FREE = "schedule-free"
BASELINES = ("constant", "cosine", "one-cycle", FREE)
LOOKS = 50
"""Validations of a training, evenly over its kept steps."""

AUTO: dict[str, dict[str, Any]] = {
    "AutoLRS": {},
    "AutoLRS, as published": {"method": "published"},
    "AutoLRS, data back": {"data": True},
    "annealed, data on": {"method": "annealed"},
    "AutoLRS, annealed": {"method": "annealed", "data": True},
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training: method, peak rate (0 where it finds its own), seed and kept steps."""

    task: str
    method: str
    rate: float
    seed: int
    steps: int

    @property
    def key(self) -> str:
        return f"{self.task}|{self.method}|{self.rate:g}|{self.seed}|{self.steps}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training came to: test loss and error, and (kept step, all steps, validation loss) on the way."""

    loss: float
    wrong: float
    total: int
    curve: list[tuple[int, int, float]]
    seconds: float


class Results:
    """Outcomes, kept in a file as they are made."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "long.jsonl"
        self.known: dict[str, Outcome] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                key, *fields = json.loads(line)
                self.known[key] = Outcome(**dict(zip(Outcome.__dataclass_fields__, fields, strict=True)))

    def add(self, job: Job, outcome: Outcome) -> None:
        self.known[job.key] = outcome
        fields = [getattr(outcome, name) for name in Outcome.__dataclass_fields__]
        with self.file.open("a") as out:
            out.write(json.dumps([job.key, *fields]) + "\n")


def run_stack(task: Task, jobs: Sequence[Job]) -> list[Outcome]:
    """Baselines of equal length, all at once; schedule-free ones apart from the others."""
    begun = time.process_time()
    torch.set_num_threads(1)
    seeds, steps, free = [job.seed for job in jobs], jobs[0].steps, jobs[0].method == FREE
    stack, feed = Stack(task, seeds), Feed(task, seeds)
    optimizer = StackOptimizer(stack, free=free, warmup=task.steps // 20)
    peaks = torch.tensor([job.rate for job in jobs])
    shapes = [(lambda _: 1.0) if free else SCHEDULES[job.method] for job in jobs]
    shown = Stack(task, seeds)
    curves: list[list[tuple[int, int, float]]] = [[] for _ in jobs]
    for step in range(steps):
        stack.losses(*feed.next()).sum().backward()
        optimizer.step(peaks * torch.tensor([shape(step / steps) for shape in shapes]))
        if (step + 1) % (task.steps // LOOKS) == 0:
            shown.rows.data = optimizer.evaluated()
            for curve, (loss, _) in zip(
                curves, evaluate(shown, seeds, "validation", quick=True), strict=True
            ):
                curve.append((step + 1, step + 1, loss))
    shown.rows.data = optimizer.evaluated()
    seconds = (time.process_time() - begun) / len(jobs)
    return [
        Outcome(loss=loss, wrong=wrong, total=steps, curve=curve, seconds=seconds)
        for curve, (loss, wrong) in zip(curves, evaluate(shown, seeds, "test"), strict=True)
    ]


def run_auto(task: Task, job: Job, log: Path) -> Outcome:
    """AutoLRS, as users run it."""
    begun = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model, feed = Stack(task, [job.seed]), Feed(task, [job.seed])
    rate = task.lr_range[0]
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=task.decay)
        if task.adaptive
        else torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=task.decay)
    )

    def validate() -> float:
        return evaluate(model, [job.seed], "validation", quick=True)[0][0]

    tuner = AutoLRS(
        model,
        optimizer,
        val_fn=validate,
        lr_range=task.lr_range,
        kept_steps=job.steps,
        seed=job.seed,
        log=log,
        progress=False,
        **({**AUTO[job.method], "data": feed} if "data" in AUTO[job.method] else AUTO[job.method]),
    )
    curve: list[tuple[int, int, float]] = []
    every = task.steps // LOOKS
    while not tuner.finished:
        loss = model.losses(*feed.next()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        before = tuner.phase
        if before != "search" and (tuner.kept_steps + 1) % every == 0:
            curve.append((tuner.kept_steps + 1, tuner.total_steps + 1, validate()))
        tuner.step(loss.detach())
    ((loss_, wrong),) = evaluate(model, [job.seed], "test")
    return Outcome(
        loss=loss_, wrong=wrong, total=tuner.total_steps, curve=curve, seconds=time.process_time() - begun
    )


def grid_of(task: Task, method: str) -> tuple[float, ...]:
    """Rates to tune over; schedule-free SGD has no momentum that multiplies its rate by ten."""
    return tuple(10 * rate for rate in task.grid) if method == FREE and not task.adaptive else task.grid


def best_rate(results: Results, task: Task, method: str) -> float:
    """The rate of least validation loss at the end of the tuning run."""
    grid = grid_of(task, method)
    jobs = [Job(task=task.name, method=method, rate=r, seed=TUNING_SEED, steps=task.steps) for r in grid]
    ends = {job.rate: results.known[job.key].curve[-1][2] for job in jobs}
    return min(grid, key=lambda rate: ends[rate] if ends[rate] == ends[rate] else float("inf"))


def baselines(results: Results, task: Task) -> None:
    """Tune, then train from every seed."""
    tuning = [
        Job(task=task.name, method=method, rate=rate, seed=TUNING_SEED, steps=task.steps)
        for method in BASELINES
        for rate in grid_of(task, method)
    ]
    _make(results, task, tuning)
    for length in (1, 2):
        methods = [
            m for m in BASELINES if length == 1 or m == "cosine" or (m == FREE and task.steps < 20_000)
        ]
        final = [
            Job(
                task=task.name,
                method=m,
                rate=best_rate(results, task, m),
                seed=seed,
                steps=length * task.steps,
            )
            for m in methods
            for seed in SEEDS
        ]
        _make(results, task, final)


def _make(results: Results, task: Task, jobs: Sequence[Job]) -> None:
    missing = [job for job in jobs if job.key not in results.known]
    for free in (False, True):
        part = [job for job in missing if (job.method == FREE) is free]
        if part:
            for job, outcome in zip(part, run_stack(task, part), strict=True):
                results.add(job, outcome)
                print(job.key, f"{outcome.loss:.4f}", f"{outcome.seconds:.1f} s", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=sorted(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=["baselines", *AUTO])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    results = Results(args.results)
    for name in args.only:
        task = TASKS[name]
        if "baselines" in args.methods:
            baselines(results, task)
        for method in AUTO:
            for seed in args.seeds if method in args.methods else ():
                job = Job(task=name, method=method, rate=0.0, seed=seed, steps=task.steps)
                if job.key not in results.known:
                    log = args.results / f"{name}-{method.replace(' ', '-')}-{seed}.jsonl"
                    results.add(job, run_auto(task, job, log))
                    print(
                        job.key,
                        f"{results.known[job.key].loss:.4f}",
                        results.known[job.key].total,
                        f"{results.known[job.key].seconds:.1f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
