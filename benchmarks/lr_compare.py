"""Learning rates found while training beside schedules: what `coppice train lr-compare` made of three small trainings.

Usage: python benchmarks/lr_compare.py --results FILE [--trials FILE] [--steps 2000] [--seeds 5] [--known] [--write]

Trains what FILE (JSON lines, as `coppice train lr-compare --results` writes it) has not got yet; with --known nothing
is trained, and methods that are not complete there are named. --trials takes in what lr_trials.py found of why stages
lose. --write writes lr_compare.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from coppice.options.names import LR_METHODS, LR_TASKS
from coppice.text import plural
from coppice.training.learning_rates.comparison import ComparedTask, MethodRuns, compare_methods
from coppice.training.learning_rates.methods import AUTOLRS, stages_of
from lr_trials import LENGTHS, ORACLE_RATES, oracle_losses, oracle_rates, shorter_losses
from lr_trials import table as trials_table
from tables import Table

PAGE = Path(__file__).with_suffix(".md")
QUARTERS = (0.25, 0.5, 0.75, 1.0)
GAINS = {"pictures": ("ResNet-50", 1.22), "translation": ("Transformer", 1.43), "masked": ("BERT", 1.5)}
"""Training that each stands for, and how many times fewer kept steps AutoLRS took there (ICLR'21, abstract)."""


class _NotKnown(Exception):  # noqa: N818
    """A training would have to be made."""


def _stop(what: str) -> None:
    raise _NotKnown(what)


def compared(task: str, given: argparse.Namespace) -> tuple[ComparedTask | None, list[str]]:
    """A task by all methods that there are, and those that are not."""
    begin = _stop if given.known else (lambda what: sys.stderr.write(f"{what}\n"))
    known, unknown = [], []
    for method in LR_METHODS:
        try:
            compare_methods(
                task, [method], steps=given.steps, seeds=given.seeds, results=given.results, begin=begin
            )
            known.append(method)
        except _NotKnown:
            unknown.append(method)
    if "original" not in known:
        return None, unknown
    found = compare_methods(task, known, steps=given.steps, seeds=given.seeds, results=given.results)
    return found, [*unknown, *found.left_out]


def loss_after(runs: MethodRuns, share: float, steps: int) -> float:
    """Median validation loss after a share of the kept steps."""
    return median(
        next(loss for kept, loss in zip(run.kept, run.losses, strict=True) if kept >= share * steps - 1e-9)
        for run in runs.runs
    )


def table(found: ComparedTask, missing: list[str]) -> Table:
    """Steps to the goal, and losses on the way."""
    rows = []
    for each in found.methods:
        kept = each.steps_to(found.goal, trials=False)
        speedups = [found.speedup(each, trials=trials) for trials in (False, True)]
        rows.append(
            (
                each.method,
                "found" if each.rate is None else f"{each.rate:g}",
                "-" if kept is None else f"{kept:,.0f}",
                *("-" if times is None else f"{times:.2f}x" for times in speedups),
                f"{each.reached(found.goal)} of {len(each.runs)}",
                *(f"{loss_after(each, share, found.steps):.3f}" for share in QUARTERS),
                f"{median(run.test_loss for run in each.runs):.3f}",
            )
        )
    stands, gain = GAINS[found.task]
    made = Table(
        title=f"{found.task}: {found.steps:,} steps kept, {len(found.methods[0].runs)} seeds, to a validation loss of "
        f"{found.goal:.3f}",
        header=(
            *("method", "peak rate", "kept steps", "speed-up", "with trials", "reached"),
            *(f"loss at {share:.0%}" for share in QUARTERS),
            "test loss",
        ),
        rows=rows,
        notes=[f"Stands for {stands}, on which {gain} times was published.", *verdicts(found)],
    )
    if missing:
        made.notes.append(f"Not run here: {', '.join(missing)}.")
    return made


def verdicts(found: ComparedTask) -> list[str]:
    """What each method of AutoLRS comes to beside the original schedule, and where it falls behind."""
    original, notes = found.methods[0], []
    for each in found.methods:
        if each.method not in AUTOLRS:
            continue
        speedup = found.speedup(each)
        behind = [
            loss_after(each, share, found.steps) - loss_after(original, share, found.steps)
            for share in QUARTERS
        ]
        words = ", ".join(
            f"{each_behind:+.3f} after {share:.0%}"
            for share, each_behind in zip(QUARTERS, behind, strict=True)
        )
        outcome = "does not get there" if speedup is None else f"takes {1 / speedup:.2f} times the steps"
        notes.append(f"{each.method} {outcome}; its loss beside the original's: {words}.")
    return notes


def shorter_table(tables: list[ComparedTask], found: dict[str, dict[str, Any]]) -> Table | None:
    """Trainings of fewer steps beside the goal."""
    made = Table(
        title="Shorter trainings",
        header=(
            *("training", "goal", "method"),
            *(f"{share:.0%} of the steps" for share in LENGTHS),
            "shortest that gets there",
            "speed-up",
        ),
    )
    for task in tables:
        steps = task.methods[0].steps_to(task.goal, trials=False)
        for method, losses in shorter_losses(task.task, found, task.steps).items():
            middles = [median(each) for each in losses]
            there = next(
                (share for share, loss in zip(LENGTHS, middles, strict=True) if loss <= task.goal), None
            )
            made.rows.append(
                (
                    task.task,
                    f"{task.goal:.3f}",
                    f"{method} ({plural(len(losses[0]), 'seed')})",
                    *(f"{each:.3f}" for each in middles),
                    "none" if there is None else f"{there * task.steps:,.0f}",
                    "-" if there is None or steps is None else f"{steps / (there * task.steps):.2f}x",
                )
            )
    return made if made.rows else None


def reasons(tables: list[ComparedTask], found: dict[str, dict[str, Any]]) -> str:
    """What lr_trials.py found, in tables and words."""
    parts = [
        (
            "## Why stages lose\n\nAlong the original schedule, after a quarter, a half and three quarters, the "
            "published method tried ten rates. Each was then really kept for a stage, behind which the original "
            "schedule went on to the end: so a rate has the loss that its trial promises, the one at the end of its "
            "stage, and the last one. Orders are Spearman's: +1 where two losses order the rates alike.\n"
        )
    ]
    for task in tables:
        made = trials_table(task.task, found, task.steps)
        if made is not None:
            made.notes += [_order_in_words(made), *_in_words(task, found)]
            parts.append(made.markdown())
    made = shorter_table(tables, found)
    if made is not None:
        made.notes.append(
            "A training that ends at a rate of zero reaches only at its end what it reaches. One annealed stage and "
            "a tuned cosine schedule were so given fewer steps; the speed-up is the original's steps to the goal "
            "over the shortest length whose median gets there."
        )
        parts.append(made.markdown())
    return "\n".join(parts)


def _order_in_words(made: Table) -> str:
    """What the orders of a table say."""
    forecasts, ends = ([float(row[column]) for row in made.rows] for column in (6, 7))
    return (
        f"Forecasts order rates as the ends of their stages do ({min(forecasts):+.2f} and more); the ends of stages "
        f"order them as the last losses do by {' and '.join(f'{each:+.2f}' for each in ends)}: a rate that is best "
        "for its stage need not be for the training."
    )


def _in_words(task: ComparedTask, found: dict[str, dict[str, Any]]) -> list[str]:
    ends = oracle_losses(task.task, found, task.steps)
    if not ends:
        return []
    published = next((each for each in task.methods if each.method == "autolrs-published"), None)
    beside = "" if published is None else f", {median(run.end for run in published.runs):.3f} by forecasts"
    rates = oracle_rates(task.task, found, task.steps)
    return [
        (
            f"Stages that have the rate which truly is best at their end, of {ORACLE_RATES}, end with "
            f"{median(ends):.3f} ({plural(len(ends), 'seed')}{beside}, {task.goal:.3f} by the original schedule); "
            f"their median rate in the second half is {median(rates):.2g}."
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", required=True, help="JSON lines of trainings")
    parser.add_argument("--trials", type=Path, help="JSON lines of lr_trials.py")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--known", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="write lr_compare.md")
    given = parser.parse_args()
    tables, none, compared_tasks = [], [], []
    for task in LR_TASKS:
        found, missing = compared(task, given)
        if found is None:
            none.append(task)
        else:
            tables.append(table(found, missing))
            compared_tasks.append(found)
    first, longest = stages_of(given.steps)
    asked = f"--set steps={given.steps} --set seeds={given.seeds} --results FILE"
    own = f"--steps {given.steps} --seeds {given.seeds} --results FILE{' --known' if given.known else ''} --write"
    if given.trials is not None:
        own = f"{own} --trials TRIALS"
    head = (
        f"# Learning rates found while training\n\n`coppice train lr-compare {asked}`, then "
        f"`python benchmarks/lr_compare.py {own}`"
        f"{'' if given.trials is None else '; TRIALS is what `python benchmarks/lr_trials.py` wrote'}.\n\n"
        "Every method trains from the same seeds. `original` is the schedule of the paper that a training stands for, "
        "scaled; all are timed to the median validation loss that it ends with. Peak rates are tuned over four rates "
        "with a seed of their own, which does not count. A speed-up is kept steps of the original over those of a "
        "method, as AutoLRS is published (trials left out), and with its trials. Stages of AutoLRS have the published "
        "share of the "
        f"training where that is 50 steps or more: here {first} to {longest} steps, with trials of a tenth of a stage, "
        f"{first // 10} steps and more; the published ones had 100 and more. Losses are in nats, medians over the "
        "seeds.\n\n"
    )
    text = head + "\n".join(each.markdown() for each in tables)
    if given.trials is not None:
        lines = map(json.loads, given.trials.read_text().splitlines())
        text += "\n" + reasons(compared_tasks, {each["key"]: each for each in lines})
    if none:
        text += f"\nNot run here: {', '.join(none)}.\n"
    sys.stdout.write(text)
    if given.write:
        PAGE.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
