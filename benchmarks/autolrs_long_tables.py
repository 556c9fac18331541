"""Tables and the picture of the long AutoLRS runs, from outcomes that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import mean, median, stdev

from coppice.training.autolrs.log import read_search
from tables import Table

__all__ = ["LongOutcome", "Runs", "draw", "final_table", "rates_note", "reach", "steps_table"]


@dataclass(frozen=True, kw_only=True)
class LongOutcome:
    """What a training came to.

    Attributes:
        loss: Test loss.
        wrong: Share of wrong answers on the test set.
        total: Steps made, trials included.
        curve: Kept steps, all steps and the validation loss, on the way.
        seconds: Processor time.
    """

    loss: float
    wrong: float
    total: int
    curve: list[tuple[int, int, float]]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A method on a task: one outcome per seed.

    Attributes:
        method: Its name.
        rate: Tuned peak rate; None where it is found.
        steps: Steps that are kept.
        outcomes: In the order of the seeds.
    """

    method: str
    rate: float | None
    steps: int
    outcomes: list[LongOutcome]

    @property
    def end(self) -> float:
        """Median of the last validation losses."""
        return median(outcome.curve[-1][2] for outcome in self.outcomes)


def final_table(name: str, steps: int, runs: Sequence[Runs], ours: str) -> Table:
    """Where every method ends; ``ours`` is compared with each, seed by seed."""
    table = Table(
        title=f"{name}: {steps:,} steps kept",
        header=("method", "peak rate", "steps made", "test loss", "test error", f"{ours} is better in"),
    )
    own = next(run for run in runs if run.method == ours)
    for run in runs:
        losses, wrong = [o.loss for o in run.outcomes], [100 * o.wrong for o in run.outcomes]
        wins = sum(mine.loss < other.loss for mine, other in zip(own.outcomes, run.outcomes, strict=True))
        table.rows.append(
            (
                run.method,
                "found" if run.rate is None else f"{run.rate:g}, tuned",
                f"{max(outcome.total for outcome in run.outcomes):,}",
                f"{median(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})",
                f"{median(wrong):.2f}% ({min(wrong):.2f} to {max(wrong):.2f})",
                "-" if run is own else f"{wins} of {len(losses)}",
            )
        )
    equal = [run for run in runs if run.rate is not None and run.steps == steps]
    doubled = [run for run in runs if run.rate is not None and run.steps > steps]
    table.notes.append(_against(own, equal, "equal exploitation"))
    if doubled:
        table.notes.append(_against(own, doubled, "equal total"))
    return table


def _against(own: Runs, others: Sequence[Runs], meaning: str) -> str:
    """Mean differences to the others, beside the noise of the seeds."""
    found: dict[str, list[str]] = {"better than": [], "within the noise of": [], "worse than": []}
    mine = [outcome.loss for outcome in own.outcomes]
    for other in others:
        theirs = [outcome.loss for outcome in other.outcomes]
        gap = mean(theirs) - mean(mine)
        noise = max(stdev(mine), stdev(theirs))
        word = "within the noise of" if abs(gap) <= noise else "better than" if gap > 0 else "worse than"
        found[word].append(f"{other.method} ({-gap:+.4f})")
    parts = [f"{word} {', '.join(names)}" for word, names in found.items() if names]
    return (
        f"At {meaning}, {own.method} is {'; '.join(parts)}: differences of the mean test loss, beside the larger of "
        "the two standard deviations over the seeds."
    )


def reach(outcome: LongOutcome, goal: float) -> tuple[int, int] | None:
    """Kept steps and all steps when the validation loss first is at most ``goal``."""
    return next(((kept, total) for kept, total, loss in outcome.curve if loss <= goal), None)


def steps_table(name: str, steps: int, runs: Sequence[Runs]) -> Table:
    """Steps until given losses, medians over the seeds."""
    goals = {
        run.method: run.end
        for run in runs
        if run.rate is not None and run.steps == steps and isfinite(run.end)
    }
    easy = max(goals, key=goals.__getitem__)
    hard = min(goals, key=goals.__getitem__)
    table = Table(
        title=f"{name}: steps to a given validation loss",
        header=(
            "method",
            f"to {goals[easy]:.4f}: kept",
            "with trials",
            f"to {goals[hard]:.4f}: kept",
            "with trials",
            "seeds that reach them",
        ),
    )
    for run in runs:
        if run.steps != steps:
            continue
        cells: list[str] = []
        counts = []
        for goal in (goals[easy], goals[hard]):
            found = [place for outcome in run.outcomes if (place := reach(outcome, goal)) is not None]
            counts.append(f"{len(found)}")
            most = len(found) > len(run.outcomes) / 2
            cells += [f"{median(place[way] for place in found):,.0f}" if most else "-" for way in (0, 1)]
        table.rows.append((run.method, *cells, f"{counts[0]} and {counts[1]} of {len(run.outcomes)}"))
    table.notes.append(
        f"The losses are those that {easy} and {hard} end with (medians). A dash: fewer than half of the seeds."
    )
    return table


def rates_note(method: str, logs: Sequence[Path]) -> str:
    """The rates that a method found, medians over the seeds."""
    searches = [read_search(log) for log in logs]
    stages = zip(*([event for event in search.kept if event.stage >= 0] for search in searches), strict=False)
    words = [f"{median(event.lr for event in events):.2g} for {events[0].steps:,}" for events in stages]
    return f"{method}: {', '.join(words)} steps."


def draw(path: Path, tasks: Mapping[str, Sequence[Runs]], steps: Callable[[str], int]) -> None:
    """Validation losses over kept steps, medians over the seeds; a panel per task, one legend."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, MaxNLocator

    colours = ("#8c8c8c", "#2a9d8f", "#7b5ea7", "#e9a03b", "#1f5fa8", "#d1495b", "#8a5a44")
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    handles: dict[str, Line2D] = {}
    for panel, (name, runs) in zip(axes, tasks.items(), strict=True):
        shown = [run for run in runs if run.steps == steps(name)]
        ends, starts = [], []
        for number, run in enumerate(shown):
            points = list(zip(*(outcome.curve for outcome in run.outcomes), strict=False))
            losses = [median(point[2] for point in parts) for parts in points]
            ours = run.rate is None
            (line,) = panel.plot(
                [parts[0][0] for parts in points],
                losses,
                color=colours[number % len(colours)],
                linewidth=2.2 if number == _first(shown) else 1.3,
                linestyle="-" if not ours or number == _first(shown) else "--",
                label=run.method,
            )
            handles.setdefault(run.method, line)
            ends.append(min(losses))
            starts.append(losses[len(losses) // 10])
        low, high = min(ends), median(starts)
        panel.set_ylim(low - 0.06 * (high - low), high + 0.1 * (high - low))
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("kept step", fontsize=9)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.yaxis.set_major_locator(MaxNLocator(5))
        panel.tick_params(labelsize=8)
        panel.grid(visible=True, color="0.93")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    axes[0].set_ylabel("validation loss, nats", fontsize=9)
    figure.legend(
        handles=list(handles.values()), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=120)


def _first(runs: Sequence[Runs]) -> int:
    """The first of ours."""
    return next((number for number, run in enumerate(runs) if run.rate is None), -1)
