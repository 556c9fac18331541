"""`coppice train lr-compare`: learning-rate schedules compared by small trainings."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.output import Stages, print_json, print_lines
from coppice.options.shared import JsonOption
from coppice.text import columns, plural
from coppice.verbs.lr_comparing import LrComparisonCall, compared_tasks

if TYPE_CHECKING:
    from coppice.training.learning_rates.comparison import ComparedTask


@with_options("options as_json")
def lr_compare(options: LrComparisonCall, *, as_json: JsonOption = False) -> None:
    """Compare learning-rate schedules, optimizers that need none and AutoLRS by small trainings of this machine.

    Three trainings stand for those of the AutoLRS paper: a residual net, a transformer and a masked language model, on
    data that is made or that Python ships. `original` is the schedule of the paper each was taken from, scaled; peak
    rates of schedules are tuned over four rates. The goal is the validation loss that it ends with.

    \b
    Examples:
      coppice train lr-compare --results runs.jsonl
      coppice train lr-compare translation --method cosine,autolrs --set steps=500 --set seeds=3
    """  # noqa: D301 (\b is for the help formatter)
    with Stages() as stages:
        found = compared_tasks(options, stages.begin)
    if as_json:
        print_json("train-lr-compare", {"tasks": [_record(each) for each in found]})
        return
    print_lines([line for each in found for line in _lines(each)])


def _record(found: ComparedTask) -> dict[str, Any]:
    return {
        "task": found.task,
        "kept_step_count": found.steps,
        "seed_count": len(found.methods[0].runs),
        "goal_loss": found.goal,
        "methods": [
            {
                "method": each.method,
                "peak_lr": each.rate,
                "kept_steps_to_goal": each.steps_to(found.goal, trials=False),
                "made_steps_to_goal": each.steps_to(found.goal, trials=True),
                "kept_speedup": found.speedup(each),
                "made_speedup": found.speedup(each, trials=True),
                "reached_seed_count": each.reached(found.goal),
                "test_losses": [run.test_loss for run in each.runs],
            }
            for each in found.methods
        ],
        "left_out": list(found.left_out),
    }


def _lines(found: ComparedTask) -> list[str]:
    """A table of one task."""
    seeds = len(found.methods[0].runs)
    rows = [("method", "peak rate", "kept steps", "speed-up", "with trials", "reached", "test loss")]
    for each in found.methods:
        kept = each.steps_to(found.goal, trials=False)
        rows.append(
            (
                each.method,
                "found" if each.rate is None else f"{each.rate:g}",
                "-" if kept is None else f"{kept:,.0f}",
                _times(found.speedup(each)),
                _times(found.speedup(each, trials=True)),
                f"{each.reached(found.goal)} of {seeds}",
                f"{median(run.test_loss for run in each.runs):.3f}",
            )
        )
    title = (
        f"{found.task}: steps to a validation loss of {found.goal:.3f}, of {plural(seeds, 'training')} that keep "
        f"{found.steps:,} each"
    )
    return [
        title,
        *(f"  {line}" for line in columns(rows, "lrrrrrr")),
        *(f"  left out: {each}" for each in found.left_out),
    ]


def _times(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}x"
