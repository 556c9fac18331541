"""Every policy of overlap on a common set of models, networks and sizes, simulated.

python benchmarks/policies_simulated.py --quick      # one model on two networks, seconds
python benchmarks/policies_simulated.py --write      # all of policies_simulated.md and its picture, about six minutes
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Sequence
from math import log
from pathlib import Path

from rich.console import Console

from policies_grid import GRADIENTS, MODELS, NETWORKS, WORKERS, Case, measure, optimum_gaps
from policies_headlines import headline_table
from policies_jobs import job_tables
from tables import Table, number, replace_generated

PAGE = Path(__file__).with_name("policies_simulated.md")
PICTURE = PAGE.with_name("policies_simulated.png")
SAME = 0.01
"""Times that differ by less are called alike."""

IDEAS = (
    ("overlap with the backward pass", "wfbp", "serial"),
    ("buckets of the size that suits", "ddp*", "ddp"),
    ("merging where waiting costs less", "mg-wfbp", "wfbp"),
    ("no barrier and priority, nothing cut", "priority", "wfbp"),
    ("cutting beside priority", "priority*", "priority"),
    ("merging and cutting beside priority", "pace*", "priority*"),
    ("halves of the sum in both passes", "dear*", "mg-wfbp"),
    ("gradients of weights out of order", "ooo*", "priority*"),
    ("factors instead of matrices", "poseidon", "wfbp"),
)
"""What a policy adds: its name, a policy with it, one without."""

BINS = (0.0, 0.25, 0.5, 1.0, 2.0, 8.0, float("inf"))


def share(value: float) -> str:
    """A time over another one, two decimals; three digits where it is large."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def percent(value: float) -> str:
    """With one decimal; nothing has no sign."""
    return f"{round(value, 3) + 0.0:.1%}"


def both(case: Case, name: str) -> str:
    """Time of a policy over that of DDP, with defaults and tuned where that differs."""
    base = case.plain["ddp"]
    plain, tuned = share(case.plain[name] / base), share(case.tuned[name] / base)
    return plain if plain == tuned else f"{plain} / {tuned}"


def model_table(model: str, cases: Sequence[Case]) -> Table:
    """Times of all policies for a model, relative to DDP's."""
    device, samples = MODELS[model]
    names = list(cases[0].plain)
    table = Table(
        title=f"{model} on {device}, {samples} samples a worker",
        header=("Gb/s", "workers", "ratio", "DDP", "bound", *names, "best"),
    )
    for case in cases:
        base = case.plain["ddp"]
        name, seconds = best_of(case)
        table.rows.append(
            (
                f"{case.gb_per_s:g}",
                f"{case.workers:,}",
                number(case.ratio),
                number(base, unit="s"),
                share(case.bound / base),
                *(both(case, each) for each in names),
                f"{name} {share(seconds / base)}",
            )
        )
    return table


def best_of(case: Case) -> tuple[str, float]:
    """The fastest policy; of those alike within a thousandth the first, defaults before tuned ones."""
    every = {**case.plain, **{f"{name}*": each for name, each in case.tuned.items()}}
    least = min(every.values())
    name = next(name for name, seconds in every.items() if seconds <= least * 1.001)
    return name, least


def regime_table(cases: Sequence[Case]) -> Table:
    """Mean times of tuned policies by the ratio of communication to computation."""
    used = [
        (low, high)
        for low, high in itertools.pairwise(BINS)
        if any(low <= each.ratio < high for each in cases)
    ]
    table = Table(
        title="By the ratio of communication to computation",
        header=("policy", *(f"{low:g} to {high:g}" for low, high in used), "fastest within 1%"),
        notes=[
            (
                "Geometric means of the time of tuned policies over that of DDP with its defaults; the last "
                "column counts "
                f"the settings, of {len(cases)}, in which a policy is within 1% of the fastest."
            )
        ],
    )
    for name in cases[0].tuned:
        means = []
        for low, high in used:
            found = [log(each.tuned[name] / each.plain["ddp"]) for each in cases if low <= each.ratio < high]
            means.append(share(2.718281828459045 ** (sum(found) / len(found))))
        wins = sum(each.tuned[name] <= best_of(each)[1] * (1 + SAME) for each in cases)
        table.rows.append((f"{name}*", *means, str(wins)))
    table.rows.insert(
        0,
        (
            "settings",
            *(str(sum(low <= each.ratio < high for each in cases)) for low, high in used),
            str(len(cases)),
        ),
    )
    return table


def regimes(cases: Sequence[Case]) -> list[str]:
    """A sentence for every idea: where it gains more than 1%, most where, and where it loses."""
    found = []
    for idea, with_it, without in IDEAS:
        gains = [(each.seconds(without) / each.seconds(with_it) - 1, each) for each in cases]
        won = [(gain, each) for gain, each in gains if gain > SAME]
        lost = [(gain, each) for gain, each in gains if gain < -SAME]
        text = f"* *{idea[0].upper()}{idea[1:]}* (`{with_it}` over `{without}`)"
        if not won:
            found.append(f"{text}: nowhere more than 1%{_losses(lost)}.")
            continue
        most, at = max(won, key=lambda pair: pair[0])
        workers = sorted({each.workers for _, each in won})
        among = f"with {' and '.join(f'{each:,}' for each in workers)} workers" if len(workers) < 3 else ""
        models = sorted({each.model for _, each in won}, key=list(MODELS).index)
        of = f" of {', '.join(models)}" if len(models) < len({each.model for each in cases}) else ""
        where = " ".join(part for part in (among, "at ratios of", _span([each for _, each in won])) if part)
        found.append(
            f"{text}: more than 1% in {len(won)} of {len(cases)} settings{of}, {where}; most {most:.0%} at "
            f"{at.where} "
            f"(ratio {number(at.ratio)}, largest layer {at.largest:.0%} of the gradients){_losses(lost)}."
        )
    return found


def _losses(lost: Sequence[tuple[float, Case]]) -> str:
    if not lost:
        return ""
    most, at = min(lost, key=lambda pair: pair[0])
    return f"; it loses more than 1% in {len(lost)}, most {-most:.0%} at {at.where}"


def _span(cases: Sequence[Case]) -> str:
    low, high = (each(case.ratio for case in cases) for each in (min, max))
    return f"{number(low)} to {number(high)}" if low < high else number(low)


def gap_table(count: int) -> Table:
    """Policies beside the exact optimum of small workloads."""
    table = Table(
        title=f"Beside the exact optimum of {count} random workloads of 2 to 6 layers",
        header=("policy", "optimum", "mean gap", "largest", "least", "mean gap, two parts", "largest gap"),
        notes=[
            (
                "Gap: time over that of the best grouping and order of messages of whole layers (found by "
                "search over all of "
                "them, `coppice.iteration.optimum`), minus one; the last two columns let the optimum cut "
                "each layer in two "
                "equal parts (up to five layers). Below 0: the policy cuts finer, splits sums in halves "
                "(dear) or backward "
                "passes in two (ooo). Optimum: of policies with a barrier that with one. Parameter servers "
                "(p3, tictac) move "
                "gradients and parameters apart, so that their gap is that of the model as well."
            )
        ],
    )
    for gap in optimum_gaps(count):
        plain = gap.name.removesuffix("*")
        if gap.name != plain and GRADIENTS[plain].tune is GRADIENTS["serial"].tune:
            continue  # there is nothing to tune
        table.rows.append(
            (
                gap.name,
                "barrier" if gap.barrier else "free",
                percent(sum(gap.whole) / count),
                percent(max(gap.whole)),
                percent(min(gap.whole)),
                percent(sum(gap.parts) / count),
                percent(max(gap.parts)),
            )
        )
    return table


def draw(cases: Sequence[Case], workers: int) -> None:
    """Time over the bound, by the rate of the network, a panel for each model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = {
        "serial": ("serial", "0.6", ":"),
        "ddp": ("DDP", "black", "-"),
        "mg-wfbp": ("MG-WFBP", "tab:brown", "--"),
        "priority": ("priority, whole", "tab:orange", "--"),
        "priority*": ("priority, cut", "tab:orange", "-"),
        "bytescheduler*": ("ByteScheduler*", "tab:red", "-"),
        "pace*": ("PACE*", "tab:green", "-"),
        "dear*": ("DeAR*", "tab:blue", "-"),
        "ooo*": ("out of order*", "tab:purple", "-"),
        "poseidon": ("Poseidon", "tab:cyan", "--"),
    }
    figure, panels = plt.subplots(1, len(MODELS), figsize=(14, 4), sharey=True)
    for axes, model in zip(panels, MODELS, strict=True):
        own = [each for each in cases if each.model == model and each.workers == workers]
        for name, (label, colour, style) in shown.items():
            axes.plot(
                [each.gb_per_s for each in own],
                [each.seconds(name) / each.bound for each in own],
                label=label,
                color=colour,
                linestyle=style,
                linewidth=1.3,
                marker=".",
                markersize=4,
            )
        axes.axhline(1.0, color="black", linewidth=0.5)
        axes.set_xscale("log")
        axes.set_xticks(list(NETWORKS), [str(each) for each in NETWORKS], fontsize=7)
        axes.minorticks_off()
        axes.set_ylim(0.65, 1.95)
        axes.set_title(model, fontsize=10)
        axes.set_xlabel("Gb/s of a worker")
    panels[0].set_ylabel("time over the bound")
    panels[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(f"Policies of gradients, {workers} workers", fontsize=11)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    """Simulate all and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="VGG-19 with 8 workers on two networks only")
    parser.add_argument("--write", action="store_true", help="rewrite policies_simulated.md and its picture")
    options = parser.parse_args()
    console, began = Console(), time.process_time()
    grid = [("vgg-19", rate, 8) for rate in (10, 100)]
    if not options.quick:
        grid = [(model, rate, workers) for model in MODELS for rate in NETWORKS for workers in WORKERS]
    cases = [measure(*each) for each in grid]
    tables = [
        model_table(model, [each for each in cases if each.model == model])
        for model in dict.fromkeys(each.model for each in cases)
    ]
    for table in tables:
        table.show(console)
    regime, sentences = regime_table(cases), regimes(cases)
    regime.notes.append("\n".join(sentences))
    regime.show(console)
    gaps = gap_table(2 if options.quick else 200)
    gaps.show(console)
    if options.quick:
        return
    headlines = headline_table()
    headlines.show(console)
    jobs = job_tables()
    for table in jobs:
        table.show(console)
    if options.write:
        draw(cases, 64)
        spent = f"{time.process_time() - began:.0f} s of processor time"
        head = [
            (
                f"`python benchmarks/policies_simulated.py` on {platform.system()} {platform.machine()}: "
                f"{spent}.\n"
            ),
            "## Gradients\n",
            (
                "Times over those of DDP with its defaults (buckets of 25 MiB, the first of 1 MiB), with "
                "defaults / tuned where "
                "that differs. Ratio: of the time of a sum of all gradients to that of computation. Bound: "
                "what no policy can "
                "beat that sums all gradients once an iteration and does not split backward passes (`ooo` "
                "does, and Poseidon "
                "sends factors instead).\n"
            ),
            f"![Time over the bound by the rate of the network]({PICTURE.name})\n",
        ]
        sections = [
            *(table.markdown() for table in tables),
            "## When which policy wins\n",
            regime.markdown(),
            "## Optimum\n",
            gaps.markdown(),
            "## Published gains beside simulated ones\n",
            headlines.markdown(),
            "## Jobs\n",
            *(table.markdown() for table in jobs),
        ]
        replace_generated(PAGE, Path(__file__).name, "\n".join([*head, *sections]))


if __name__ == "__main__":
    main()
