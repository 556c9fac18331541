"""Learning rates found while training beside schedules: what `coppice train lr-compare` made of three small trainings.

Usage: python benchmarks/lr_compare.py --results FILE [--steps 2000] [--seeds 5] [--known] [--write]

Trains what FILE (JSON lines, as `coppice train lr-compare --results` writes it) has not got yet; with --known nothing
is trained, and methods that are not complete there are named. --write writes lr_compare.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from coppice.options.names import LR_METHODS, LR_TASKS
from coppice.training.learning_rates.comparison import ComparedTask, MethodRuns, compare_methods
from coppice.training.learning_rates.methods import AUTOLRS, stages_of
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", required=True, help="JSON lines of trainings")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--known", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="write lr_compare.md")
    given = parser.parse_args()
    tables, none = [], []
    for task in LR_TASKS:
        found, missing = compared(task, given)
        if found is None:
            none.append(task)
        else:
            tables.append(table(found, missing))
    first, longest = stages_of(given.steps)
    asked = f"--set steps={given.steps} --set seeds={given.seeds} --results FILE"
    own = f"--steps {given.steps} --seeds {given.seeds} --results FILE{' --known' if given.known else ''} --write"
    head = (
        f"# Learning rates found while training\n\n`coppice train lr-compare {asked}`, then "
        f"`python benchmarks/lr_compare.py {own}`.\n\n"
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
    if none:
        text += f"\nNot run here: {', '.join(none)}.\n"
    sys.stdout.write(text)
    if given.write:
        PAGE.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
