"""Why learning rates of stages lose: what trials forecast, what a stage truly ends with, what the training ends with.

Usage: python benchmarks/lr_trials.py --results FILE [--steps 1000] [--seeds 3] [--known] TASK ...

A training follows the original schedule up to a quarter, a half and three quarters of its steps. There the published
method tries ten rates; each is then really kept for a stage, after which the original schedule goes on to the end. So
each rate has three losses: the one that its trial promises, the one at the end of its stage, and the last one. Then
trainings whose every stage has the rate that truly is best at its end, of eight: trials of a stage's whole length, with
no forecast. And trainings of half to all of the steps by one annealed stage and by a tuned cosine schedule: what those
that end at a low rate reach, they only reach at their ends. FILE keeps all as JSON lines; with --known nothing is
trained. `lr_compare.py --trials FILE` puts the tables into its page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import Action, Method, SearchPhase, Settings
from coppice.training.learning_rates.comparison import compare_methods
from coppice.training.learning_rates.methods import stages_of, train
from coppice.training.learning_rates.tasks import TASKS, LearningTask
from tables import Table

SHARES = (0.25, 0.5, 0.75)
ORACLE_RATES = 8
LENGTHS = (0.5, 0.6, 0.7, 0.8)


class _Training:
    """A model with its optimizer and the numbers that its batches are drawn with."""

    def __init__(self, task: LearningTask, seed: int) -> None:
        self.task, self.module = task, task.seeded(seed)
        self.optimizer = task.optimizer(self.module.parameters(), task.rates[0])
        self.numbers = torch.Generator().manual_seed(seed)

    def copy(self) -> _Training:
        """The same training, from here on by itself."""
        made = object.__new__(_Training)
        made.task, made.module = self.task, deepcopy(self.module)
        made.optimizer = self.task.optimizer(made.module.parameters(), self.task.rates[0])
        made.optimizer.load_state_dict(deepcopy(self.optimizer.state_dict()))
        made.numbers = torch.Generator()
        made.numbers.set_state(self.numbers.get_state())
        return made

    def steps(self, count: int, rate: Callable[[int], float]) -> list[float]:
        """Train for some steps at the rates of their numbers; return the losses."""
        losses = []
        for number in range(count):
            for group in self.optimizer.param_groups:
                group["lr"] = rate(number)
            loss = self.task.loss(self.module, self.task.next_batch(self.numbers))
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    @torch.no_grad()
    def loss(self) -> float:
        """Validation loss."""
        self.module.eval()
        found = float(self.task.loss(self.module, self.task.held_out("validation")))
        self.module.train()
        return found


def _constant(rate: float, _: int) -> float:
    return rate


def _later(rate: Callable[[int], float], begun: int, number: int) -> float:
    return rate(begun + number)


def tried(base: _Training, stage: int, seed: int) -> tuple[list[tuple[float, float]], float]:
    """Rates that the published method tries before a stage with what it forecasts, and the one that it takes."""
    control = Controller(
        Settings(
            lr_range=base.task.lr_range,
            tau=stage,
            tau_max=stage,
            validation=True,
            method=Method.PUBLISHED,
            seed=seed,
        )
    )
    control.state.validating = True
    now = base.copy()
    while control.phase is SearchPhase.SEARCH:
        count, begun = control.steps_to_event, control.state.done
        losses = now.steps(count, partial(_later, control.lr_at, begun))
        decision = control.observe(losses, now.loss() if control.validation_due(count) else None)
        if decision.action is Action.RESTORE:
            fresh = base.copy()
            fresh.numbers = now.numbers  # data goes on, as it does there
            now = fresh
    assert control.state.chosen is not None
    return [(trial.lr, trial.forecast) for trial in control.state.trials], control.state.chosen


def looked_at(name: str, steps: int, rate: float, share: float, seed: int) -> dict[str, Any]:
    """Losses of the rates that are tried after a share of the original schedule."""
    task, stage, at = TASKS[name], stages_of(steps)[1], round(share * steps)
    training = _Training(task, seed)

    def schedule(begin: int, number: int) -> float:
        return rate * task.schedule((begin + number) / steps)

    training.steps(at, partial(schedule, 0))
    trials, chosen = tried(training, stage, seed)
    rows = []
    for lr, forecast in trials:
        kept = training.copy()
        kept.steps(stage, partial(_constant, lr))
        after = kept.loss()
        kept.steps(steps - at - stage, partial(schedule, at + stage))
        rows.append((lr, forecast, after, kept.loss()))
    return {"chosen": chosen, "original": rate * task.schedule(share), "rows": rows}


def by_oracle(name: str, steps: int, seed: int) -> dict[str, Any]:
    """A training whose stages have the rate that is best at their end."""
    task, longest = TASKS[name], stages_of(steps)[1]
    rates = np.geomspace(*task.lr_range, ORACLE_RATES)
    training, done, path = _Training(task, seed), 0, []
    while done < steps:
        stage = min(longest, steps - done)
        ends = []
        for lr in map(float, rates):
            kept = training.copy()
            kept.steps(stage, partial(_constant, lr))
            loss = kept.loss()
            ends.append((loss if np.isfinite(loss) else np.inf, lr, kept))
        loss, lr, training = min(ends, key=lambda each: each[0])
        done += stage
        path.append((done, lr, loss))
    return {"path": path}


def shortened(name: str, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Last losses of shorter trainings by their lengths."""
    task = TASKS[name]
    return {
        method: [
            train(task, method, rate=rate, seed=seed, steps=round(share * steps)).end for share in LENGTHS
        ]
        for method in ("autolrs", "cosine")
    }


def outcomes(
    names: Sequence[str],
    *,
    steps: int,
    seeds: int,
    file: Path,
    runs: Path,
    known: bool = False,
    kinds: Sequence[str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Experiments by `TASK|KIND|SEED|STEPS`, made where FILE has not got them."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = {record["key"]: record for record in map(json.loads, lines)}
    torch.set_num_threads(1)
    for name in names:
        original, cosine = compare_methods(name, ["cosine"], steps=steps, seeds=1, results=runs).methods
        assert original.rate is not None
        assert cosine.rate is not None
        makers: dict[str, Callable[[int], dict[str, Any]]] = {
            **{
                f"trials {share:g}": partial(looked_at, name, steps, original.rate, share) for share in SHARES
            },
            "oracle": partial(by_oracle, name, steps),
            "shorter": partial(shortened, name, steps, cosine.rate),
        }
        for kind, make in makers.items():
            for seed in range(seeds if kinds is None or kind in kinds or kind.split()[0] in kinds else 0):
                key = f"{name}|{kind}|{seed}|{steps}"
                if key in found or known:
                    continue
                found[key] = {"key": key, **make(seed)}
                with file.open("a") as out:
                    out.write(json.dumps(found[key]) + "\n")
    return found


def table(name: str, found: dict[str, dict[str, Any]], steps: int) -> Table | None:
    """What trials promise and what rates are worth, medians over the seeds that there are."""
    made = Table(
        title=f"{name}: rates tried along the original schedule",
        header=(
            *(
                "after",
                "seeds",
                "original's rate",
                "taken",
                "best at the end of the stage",
                "best at the end",
            ),
            *("order: forecast and stage", "order: stage and end"),
            *("end of the stage: taken", "best", "last loss: taken", "best of the stage", "best"),
        ),
    )
    for share in SHARES:
        rows = []
        for run in _of(name, f"trials {share:g}", found, steps):
            tries = [
                tuple(x if x is not None and np.isfinite(x) else 1e9 for x in row) for row in run["rows"]
            ]
            own = next(row for row in tries if row[0] == run["chosen"])
            stage, last = (min(tries, key=itemgetter(by)) for by in (2, 3))
            orders = [
                float(spearmanr([r[a] for r in tries], [r[b] for r in tries])[0]) for a, b in ((1, 2), (2, 3))
            ]
            rows.append(
                (
                    run["original"],
                    own[0],
                    stage[0],
                    last[0],
                    *orders,
                    own[2],
                    stage[2],
                    own[3],
                    stage[3],
                    last[3],
                )
            )
        if not rows:
            continue
        middle = [median(column) for column in zip(*rows, strict=True)]
        made.rows.append(
            (
                f"{share:.0%}",
                str(len(rows)),
                *(f"{each:.2g}" for each in middle[:4]),
                *(f"{each:+.2f}" for each in middle[4:6]),
                *(f"{each:.3f}" for each in middle[6:]),
            )
        )
    return made if made.rows else None


def _of(name: str, kind: str, found: dict[str, dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """Outcomes of one kind, of all seeds that there are."""
    return [
        each for key, each in found.items() if key.startswith(f"{name}|{kind}|") and key.endswith(f"|{steps}")
    ]


def oracle_losses(name: str, found: dict[str, dict[str, Any]], steps: int) -> list[float]:
    """Last losses of trainings whose stages have the rates that truly are best at their ends."""
    return [each["path"][-1][2] for each in _of(name, "oracle", found, steps)]


def oracle_rates(name: str, found: dict[str, dict[str, Any]], steps: int) -> list[float]:
    """Rates of these stages in the second half of the training, of all seeds."""
    paths = [each["path"] for each in _of(name, "oracle", found, steps)]
    return [rate for path in paths for done, rate, _ in path if done > steps / 2]


def shorter_losses(name: str, found: dict[str, dict[str, Any]], steps: int) -> dict[str, list[list[float]]]:
    """Last losses of shorter trainings by method: those of all seeds for each of ``LENGTHS``."""
    runs = _of(name, "shorter", found, steps)
    return {
        method: [[run[method][place] for run in runs] for place in range(len(LENGTHS))]
        for method in ("autolrs", "cosine")
        if runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=["pictures", "translation"])
    parser.add_argument("--results", type=Path, required=True, help="JSON lines of these experiments")
    parser.add_argument("--runs", type=Path, required=True, help="JSON lines of `coppice train lr-compare`")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--known", action="store_true", help="train nothing")
    parser.add_argument(
        "--kinds", nargs="*", help="of trials (or trials 0.75), oracle and shorter; by default all"
    )
    given = parser.parse_args()
    found = outcomes(
        given.tasks,
        steps=given.steps,
        seeds=given.seeds,
        file=given.results,
        runs=given.runs,
        known=given.known,
        kinds=given.kinds,
    )
    for name in given.tasks:
        made = table(name, found, given.steps)
        if made is not None:
            sys.stdout.write(made.text())
        sys.stdout.write(f"{name}: stages by the true best: {oracle_losses(name, found, given.steps)}\n")


if __name__ == "__main__":
    main()
