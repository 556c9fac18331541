"""AutoLRS on long runs, with the stages of the paper, against schedules whose peak rate is tuned.

    python benchmarks/autolrs_long.py --results FOLDER [--only digits] [--methods baselines] [--seeds 0 1] [--write]

Every method trains from the same five seeds, which decide weights, batches and (digits) the split. A baseline's peak
rate is tuned over four rates (text: five) with another seed, by validation loss; these trainings are not counted as
its steps. AutoLRS has its defaults (stages of 1,000 to 8,000 steps, ten trials of a tenth of a stage), a range of
three decades, and keeps as many steps as the baselines make (equal exploitation); its trials take as many again, so
baselines of twice the length stand beside it too (equal total). `FOLDER` keeps every outcome as it is made; a run that
was interrupted goes on from there. `--write` rewrites its part of benchmarks/autolrs.md and the pictures in
docs/images.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from autolrs_baselines import SCHEDULES
from autolrs_long_tables import LongOutcome, Runs, draw, final_table, rates_note, steps_table
from autolrs_stacks import TASKS, Feed, Stack, StackOptimizer, Task, evaluate
from coppice.training.autolrs.report import write_report
from coppice.training.torch import AutoLRS
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100
FREE = "schedule-free"
BASELINES = ("constant", "cosine", "one-cycle", FREE)
LOOKS = 50
"""Validations of a training, evenly over its kept steps."""

OURS = "AutoLRS, annealed"
HISTORY = (
    "The annealed method came about after the stages had lost on digits and text; constant stages whose trials are "
    "annealed, with a decay at the end, were tried on two or three seeds first and lost as well. It went to the "
    "transformer unchanged. Only one-cycle and schedule-free training warm up. Schedule-free was tuned over more rates "
    "once its best one was the largest."
)
"""What a reader has to know of how the settings came about."""

AUTO: dict[str, str] = {OURS: "annealed", "AutoLRS, staged": "robust", "AutoLRS, as published": "published"}
"""Methods by name; the data goes back with a trial, but not in the published method."""


@dataclass(frozen=True, kw_only=True)
class LongJob:
    """One training: method, peak rate (0 where it finds its own), seed and kept steps."""

    task: str
    method: str
    rate: float
    seed: int
    steps: int

    @property
    def key(self) -> str:
        """What decides the outcome."""
        return f"{self.task}|{self.method}|{self.rate:g}|{self.seed}|{self.steps}"


class Results:
    """Outcomes, kept in a file as they are made, and the logs of searches beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "long.jsonl"
        self.known: dict[str, LongOutcome] = {}
        names = [field.name for field in fields(LongOutcome)]
        folder.mkdir(parents=True, exist_ok=True)
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            key, *values = json.loads(line)
            self.known[key] = LongOutcome(**dict(zip(names, values, strict=True)))

    def add(self, job: LongJob, outcome: LongOutcome) -> None:
        """Keep an outcome."""
        self.known[job.key] = outcome
        values = [getattr(outcome, field.name) for field in fields(outcome)]
        with self.file.open("a") as out:
            out.write(json.dumps([job.key, *values]) + "\n")
        print(f"{job.key}: test loss {outcome.loss:.4f}, {outcome.seconds:.0f} s", flush=True)

    def log(self, task: str, method: str, seed: int) -> Path:
        """Where AutoLRS writes its log."""
        return self.folder / f"{task}-{method.replace(' ', '-')}-{seed}.jsonl"


def run_stack(task: Task, jobs: Sequence[LongJob]) -> list[LongOutcome]:
    """Baselines of equal length, all at once; schedule-free ones apart from the others."""
    begun = time.process_time()
    seeds, steps, free = [job.seed for job in jobs], jobs[0].steps, jobs[0].method == FREE
    stack, shown, feed = Stack(task, seeds), Stack(task, seeds), Feed(task, seeds)
    optimizer = StackOptimizer(stack, free=free, warmup=task.steps // 20)
    peaks = torch.tensor([job.rate for job in jobs])
    shapes = [SCHEDULES["constant" if free else job.method] for job in jobs]
    curves: list[list[tuple[int, int, float]]] = [[] for _ in jobs]
    for step in range(steps):
        torch.autograd.backward(stack.losses(*feed.next()).sum())
        optimizer.step(peaks * torch.tensor([shape(step / steps) for shape in shapes]))
        if (step + 1) % (task.steps // LOOKS) == 0:
            shown.rows.data = optimizer.evaluated()
            losses = evaluate(shown, seeds, "validation", quick=True)
            for curve, (loss, _) in zip(curves, losses, strict=True):
                curve.append((step + 1, step + 1, loss))
    shown.rows.data = optimizer.evaluated()
    seconds = (time.process_time() - begun) / len(jobs)
    return [
        LongOutcome(loss=loss, wrong=wrong, total=steps, curve=curve, seconds=seconds)
        for curve, (loss, wrong) in zip(curves, evaluate(shown, seeds, "test"), strict=True)
    ]


def run_auto(task: Task, job: LongJob, log: Path) -> LongOutcome:
    """AutoLRS, as users run it."""
    begun = time.process_time()
    torch.manual_seed(job.seed)
    model, feed = Stack(task, [job.seed]), Feed(task, [job.seed])
    optimizer: Any = (
        torch.optim.AdamW(model.parameters(), lr=task.grid[0], weight_decay=task.decay)
        if task.adaptive
        else torch.optim.SGD(model.parameters(), lr=task.grid[0], momentum=0.9, weight_decay=task.decay)
    )

    def validate() -> float:
        return evaluate(model, [job.seed], "validation", quick=True)[0][0]

    method = AUTO[job.method]
    tuner = AutoLRS(
        model,
        optimizer,
        val_fn=validate,
        lr_range=task.lr_range,
        kept_steps=job.steps,
        method=method,
        data=None if method == "published" else feed,
        seed=job.seed,
        log=log,
        progress=False,
    )
    curve: list[tuple[int, int, float]] = []
    while not tuner.finished:
        loss = model.losses(*feed.next()).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if tuner.phase == "exploit" and (tuner.kept_steps + 1) % (task.steps // LOOKS) == 0:
            curve = [place for place in curve if place[0] <= tuner.kept_steps]  # a stage may have begun again
            curve.append((tuner.kept_steps + 1, tuner.total_steps + 1, validate()))
        tuner.step(loss)
    ((end, wrong),) = evaluate(model, [job.seed], "test")
    seconds = time.process_time() - begun
    return LongOutcome(loss=end, wrong=wrong, total=tuner.total_steps, curve=curve, seconds=seconds)


def grid_of(task: Task, method: str) -> tuple[float, ...]:
    """Rates to tune over; schedule-free wants larger ones, and its SGD has no momentum that multiplies its rate."""
    if method != FREE:
        return task.grid
    return (*task.grid[1:], 0.1) if task.adaptive else tuple(10 * rate for rate in task.grid)


def best_rate(results: Results, task: Task, method: str) -> float:
    """The rate of least validation loss at the end of the tuning run; one that ends as NaN is not it."""
    ends = {}
    for rate in grid_of(task, method):
        job = LongJob(task=task.name, method=method, rate=rate, seed=TUNING_SEED, steps=task.steps)
        end = results.known[job.key].curve[-1][2]
        ends[rate] = end if end == end else float("inf")
    return min(ends, key=ends.__getitem__)


def doubled(task: Task) -> tuple[str, ...]:
    """Baselines that are trained for twice the steps as well."""
    return ("cosine", FREE) if task.steps < 20_000 else ("cosine",)


def train_baselines(results: Results, task: Task) -> None:
    """Tune, then train from every seed."""
    tuning = [
        LongJob(task=task.name, method=method, rate=rate, seed=TUNING_SEED, steps=task.steps)
        for method in BASELINES
        for rate in grid_of(task, method)
    ]
    _make(results, task, tuning)
    for length, methods in ((1, BASELINES), (2, doubled(task))):
        for method in methods:
            _make(results, task, _jobs(results, task, method, length))


def _jobs(results: Results, task: Task, method: str, length: int = 1) -> list[LongJob]:
    """A method from every seed."""
    rate = 0.0 if method in AUTO else best_rate(results, task, method)
    steps = length * task.steps
    return [LongJob(task=task.name, method=method, rate=rate, seed=seed, steps=steps) for seed in SEEDS]


def _make(results: Results, task: Task, jobs: Sequence[LongJob]) -> None:
    """What is not known yet, in stacks of one length."""
    missing = [job for job in jobs if job.key not in results.known]
    for free in (False, True):
        part = [job for job in missing if (job.method == FREE) is free]
        for job, outcome in zip(part, run_stack(task, part) if part else (), strict=True):
            results.add(job, outcome)


def known_runs(results: Results, task: Task) -> list[Runs]:
    """All methods whose five seeds are known."""
    runs = []
    wanted = [*((m, 1) for m in (*BASELINES, *AUTO)), *((m, 2) for m in doubled(task))]
    for method, length in wanted:
        jobs = _jobs(results, task, method, length)
        if all(job.key in results.known for job in jobs):
            rate = None if method in AUTO else jobs[0].rate
            outcomes = [results.known[job.key] for job in jobs]
            runs.append(Runs(method=method, rate=rate, steps=jobs[0].steps, outcomes=outcomes))
    return runs


def tables_of(results: Results, task: Task, runs: Sequence[Runs]) -> list[Table]:
    """Where the methods end, and how soon they reach given losses."""
    final = final_table(task.name, task.steps, runs, OURS)
    logs = {run.method: [results.log(task.name, run.method, seed) for seed in SEEDS] for run in runs}
    notes = [rates_note(name, logs[name]) for name in AUTO if name in logs and logs[name][0].exists()]
    if notes:
        final.notes.append("Rates found (medians): " + " ".join(notes))
    return [final, steps_table(task.name, task.steps, runs)]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = ["baselines", *AUTO]
    parser.add_argument(
        "--results", type=Path, required=True, metavar="FOLDER", help="where outcomes are kept"
    )
    parser.add_argument("--only", nargs="*", choices=sorted(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="*", choices=everything, default=everything)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS), help="seeds of AutoLRS")
    parser.add_argument("--write", action="store_true", help="rewrite its part of the page and the pictures")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(wanted.results)
    for task in (TASKS[name] for name in wanted.only):
        if "baselines" in wanted.methods:
            train_baselines(results, task)
        for method in (name for name in AUTO if name in wanted.methods):
            for seed in wanted.seeds:
                job = LongJob(task=task.name, method=method, rate=0.0, seed=seed, steps=task.steps)
                if job.key not in results.known:
                    results.add(job, run_auto(task, job, results.log(task.name, method, seed)))
    if set(everything) <= set(wanted.methods) or wanted.write:
        _tell(results, wanted.only, write=wanted.write)


def _tell(results: Results, names: Sequence[str], *, write: bool) -> None:
    runs = {name: known_runs(results, TASKS[name]) for name in names}
    tables = [table for name in names for table in tables_of(results, TASKS[name], runs[name])]
    for table in tables:
        table.show(Console())
    if not write:
        return
    images = HERE.parent / "docs" / "images"
    draw(images / "autolrs-long.png", runs, lambda name: TASKS[name].steps)
    for method, kind in ((OURS, "annealed"), ("AutoLRS, staged", "staged")):
        write_report(results.log("text", method, 0), images / f"autolrs-{kind}.png")
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    head = [
        f"`python benchmarks/autolrs_long.py --results FOLDER --write` on {machine}, one thread per training.",
        "",
        " ".join((__doc__ or "").split("\n\n")[2].split()),
        "Losses are in nats; medians over five seeds, in brackets the smallest and the largest.",
        "",
        HISTORY,
        "",
        "![Validation losses of all methods over kept steps](../docs/images/autolrs-long.png)",
        "",
    ]
    body = "\n".join(head) + "\n" + "\n".join(table.markdown() for table in tables)
    replace_generated(HERE / "autolrs.md", "autolrs_long.py", body)


if __name__ == "__main__":
    main()
