"""The exam of the model of training iterations: measured iterations, predicted and compared.

    python benchmarks/exam.py --folder DIR --write       # every table of exam.md, from the files of DIR
    python benchmarks/exam.py --rows FILE --json         # one file, nothing fitted: a .csv, or .jsonl of published runs
    python benchmarks/exam.py --folder DIR --fit         # the constants of devices.py, frameworks.py, machine.py
    python benchmarks/exam.py --folder DIR --halves      # fitted on half of the groups of runs, scored on the others
    python benchmarks/exam.py --folder DIR --left-out    # each group left out: errors, and what accuracy.py rests on;
                                                         # with --write into exam.md as well

Error of a row is predicted over measured time minus one; a row that cannot be predicted counts as 100%. Regret is that
of an owner who takes the configuration that is predicted to be fastest of those with the same model and number of GPUs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coppice.iteration.accuracy import FEWEST, LIKE
from coppice.iteration.layout import Layout
from exam_boxes import read
from exam_fit import fit, gpu_of, left_out, seconds_with
from exam_published import Run, errors_of, figures_of, read_rows, runs_of
from exam_rows import Predicted, Row, predict, run_of
from tables import Table, replace_generated

HERE = Path(__file__).parent
PAGE = HERE / "exam.md"

PAPERS = {
    "vtrain_multi": "6.6%",
    "vtrain_multi, stable": "4.6%",
    "selene": "2.5%",
    "megatron_sc21": "6.9%",
    "megatron_sc21, ZeRO-3": "17.3%",
    "nanotron_h100": "17.5%",
    "bridge_dense": "17.7%",
    "vtrain_single": "0.55%",
    "nccl_allreduce": "1.04%",
    "overlap_pairs": "10.1%",
}
"""Baselines: an analytical model with eight constants, on rows that it was not fitted to."""


def regret_percent(found: Sequence[Predicted]) -> float | None:
    """Mean over models and numbers of GPUs with several rows; None where there are none."""
    groups: dict[tuple[str, str], list[Predicted]] = {}
    for each in found:
        if "time_s" in each.row:
            groups.setdefault((each.row["model"], each.row["gpus"]), []).append(each)
    lost = [
        100
        * (
            min(group, key=lambda each: each.predicted or math.inf).measured / min(e.measured for e in group)
            - 1
        )
        for group in groups.values()
        if len(group) > 1
    ]
    return statistics.mean(lost) if lost else None


def figures(found: Sequence[Predicted], seconds: float) -> dict[str, Any]:
    """What is asked of a file."""
    errors = [each.error for each in found]
    sizes = [100 * abs(error) for error in errors]
    return {
        "rows": len(found),
        "mape_percent": statistics.mean(sizes),
        "median_percent": statistics.median(sizes),
        "max_percent": max(sizes),
        "bias_percent": 100 * statistics.mean(errors),
        "regret_percent": regret_percent(found),
        "refused": sum(bool(each.why) for each in found),
        "seconds": seconds,
    }


def stable(rows: Sequence[Row]) -> list[Row]:
    """Rows that no note calls unstable."""
    return [row for row in rows if "unstable" not in row["note"]]


def parts(name: str, rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """The lines of a file in the table."""
    if name == "megatron_sc21":
        yield name, [row for row in rows if row["shard"] != "zero3"]
        yield f"{name}, ZeRO-3", [row for row in rows if row["shard"] == "zero3"]
        return
    yield name, rows
    if name == "vtrain_multi":
        yield f"{name}, stable", stable(rows)


def table(folder: Path) -> tuple[Table, dict[str, list[Predicted]]]:
    """All files of a folder."""
    result = Table(
        title="Predicted against measured",
        header=(
            "rows",
            "number",
            "mean",
            "median",
            "largest",
            "bias",
            "regret",
            "refused",
            "baseline",
            "seconds",
        ),
    )
    everything: dict[str, list[Predicted]] = {}
    for path in sorted(folder.glob("*.csv")):
        if path.stem == "a100_layer_profile":
            continue
        for name, rows in parts(path.stem, read(path)):
            begin = time.perf_counter()
            found = predict(rows, folder)
            of = figures(found, time.perf_counter() - begin)
            everything[name] = found
            regret = of["regret_percent"]
            result.rows.append(
                (
                    name,
                    str(of["rows"]),
                    *(f"{of[f'{key}_percent']:.2f}%" for key in ("mape", "median", "max", "bias")),
                    "" if regret is None else f"{regret:.1f}%",
                    str(of["refused"]),
                    PAPERS.get(name, ""),
                    f"{of['seconds']:.1f}",
                )
            )
    return result, everything


PUBLISHED = "public_open.jsonl"
FITTED = ("vtrain_multi", "selene", "megatron_sc21", "nanotron_h100", "bridge_dense")
"""Files whose rows constants are fitted to besides published runs."""


def runs_to_fit(folder: Path) -> list[Run]:
    """The runs of a folder that constants are fitted to: those with a time, and no note that calls them unstable."""
    found = list(runs_of(read_rows(folder / PUBLISHED), folder)) if (folder / PUBLISHED).exists() else []
    for name in FITTED:
        found += [run_of(row) for row in stable(read(folder / f"{name}.csv"))]
    return [run for run in found if run.measured and not run.refused]


def halves(folder: Path, seed: int) -> Table:
    """Published runs predicted with constants that were fitted to the groups of the other half, by source."""
    runs = runs_to_fit(folder)
    draw, groups = random.Random(seed), sorted({(run.row["source"], run.row["group"]) for run in runs})
    draw.shuffle(groups)
    first = set(groups[::2])
    parts: list[list[Run]] = [[], []]
    for run in runs:
        parts[(run.row["source"], run.row["group"]) in first].append(run)
    errors: dict[str, list[float]] = {}
    for fitted, scored in (parts, parts[::-1]):
        constants, _ = fit(fitted, report=lambda words: print(words, flush=True))
        for run in scored:
            took = min(seconds_with(job, constants) for job in run.fitting)
            errors.setdefault(run.row["source"], []).append(took / (run.measured or 1.0) - 1)
    result = Table(
        title="Fitted on half of the groups, scored on the others",
        header=("runs", "number", "mean", "bias", "largest"),
    )
    for source, found in sorted(errors.items()):
        of = errors_of(found)
        row = [f"{of[key]:.1f}%" for key in ("mape_percent", "bias_percent", "max_percent")]
        result.rows.append((source, str(of["rows"]), *row))
    return result


def left_out_tables(folder: Path) -> list[Table]:
    """Runs whose group was left out of the fit: errors by source, and by kind what ranges and anchors rest on."""
    runs = runs_to_fit(folder)
    found = left_out(runs)
    sources: dict[str, list[float]] = {}
    kinds: dict[tuple[str, str], list[float]] = {}
    for run, error in zip(runs, found, strict=True):
        sources.setdefault(run.row["source"], []).append(math.expm1(error))
        for kind in kinds_of(run):
            kinds.setdefault(kind, []).append(-error)
    by_source = Table(
        title="Each group left out of the fit", header=("runs", "number", "mean", "bias", "largest")
    )
    for source, errors in sorted(sources.items()):
        of = errors_of(errors)
        row = [f"{of[key]:.1f}%" for key in ("mape_percent", "bias_percent", "max_percent")]
        by_source.rows.append((source, str(of["rows"]), *row))
    by_kind = Table(
        title="Measured over estimated, groups left out", header=("framework", "GPU", "runs", "10%", "90%")
    )
    for (framework, gpu), ratios in sorted(kinds.items()):
        if len(ratios) >= FEWEST:
            low, high = (math.exp(float(each)) for each in np.quantile(ratios, (0.1, 0.9)))
            by_kind.rows.append((framework, gpu, str(len(ratios)), f"{low:.3f}", f"{high:.3f}"))
    return [by_source, by_kind, _coverage_table(runs, found), _likeness_table(runs, found)]


def kinds_of(run: Run) -> tuple[tuple[str, str], ...]:
    """Framework and GPU of the runs that the range of a run rests on: the first kind of which there are enough."""
    framework, gpu = run.fitting[0].cluster.framework.name, gpu_of(run.fitting[0])
    return (framework, gpu), (framework, ""), ("", "")


def _coverage_table(runs: Sequence[Run], errors: Sequence[float]) -> Table:
    """How many runs are within their range where neither constants nor ranges know of their group."""
    groups = np.asarray([f"{run.row['source']} {run.row['group']}" for run in runs])
    ratios, kinds = -np.asarray(errors), [kinds_of(run) for run in runs]
    within = np.zeros(len(runs), dtype=np.bool_)
    for i, own in enumerate(kinds):
        others = [
            [ratios[j] for j, kind in enumerate(kinds) if wanted in kind and groups[j] != groups[i]]
            for wanted in own
        ]
        like = next((each for each in others if len(each) >= FEWEST), others[-1])
        low, high = np.quantile(like, (0.1, 0.9))
        within[i] = low <= ratios[i] <= high
    result = Table(title="Runs within their range of 80%", header=("framework", "runs", "within"))
    names = np.asarray([own[0][0] for own in kinds])
    for name in sorted(set(names)):
        result.rows.append((name, str((names == name).sum()), f"{100 * within[names == name].mean():.0f}%"))
    result.rows.append(("all", str(len(runs)), f"{100 * within.mean():.1f}%"))
    return result


def _likeness_table(runs: Sequence[Run], errors: Sequence[float]) -> Table:
    """How much of the square of errors pairs of runs have in common, by how many of four degrees are the same."""
    groups: dict[str, list[tuple[Layout, float]]] = {}
    for run, error in zip(runs, errors, strict=True):
        groups.setdefault(f"{run.row['source']} {run.row['group']}", []).append(
            (run.fitting[0].layout, error)
        )
    pairs: dict[str, list[tuple[float, float]]] = {}
    for group in groups.values():
        for (one, first), (other, second) in itertools.combinations(group, 2):
            same = sum(getattr(one, name) == getattr(other, name) for name in LIKE)
            pairs.setdefault(str(same), []).append((first, second))
            pairs.setdefault("any", []).append((first, second))
    result = Table(
        title="Two runs of a model", header=("degrees the same", "pairs", "in common", "80% are within")
    )
    for same, found in sorted(pairs.items()):
        first, second = np.asarray(found).T
        common = 2 * (first * second).mean() / (first**2 + second**2).mean()
        apart = float(np.quantile(np.abs(first - second), 0.8))
        result.rows.append((same, str(len(found)), f"{common:.2f}", f"{100 * math.expm1(apart):.1f}%"))
    return result


def published_table(runs: Sequence[Run]) -> Table:
    """Published runs by source."""
    found = figures_of(runs)
    result = Table(
        title="Published runs",
        header=("source", "runs", "mean", "median", "bias", "within 10%", "within 25%"),
    )
    for source, of in {**found["sources"], "all that are exact": found["exact"]}.items():
        keys = ("mape", "median", "bias", "within_10", "within_25")
        result.rows.append((source, str(of["rows"]), *(f"{of[f'{key}_percent']:.1f}%" for key in keys)))
    return result


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="folder with the files, and with the profile and tables")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="predict the rows of one file")
    parser.add_argument("--json", action="store_true", help="figures of --rows as JSON")
    parser.add_argument("--fit", action="store_true", help="fit the constants, and print them")
    parser.add_argument("--halves", action="store_true", help="fit on random parts, score the others")
    parser.add_argument(
        "--left-out", action="store_true", help="score each group with constants fitted without it"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the halves")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    if options.rows is not None and options.rows.suffix == ".jsonl":
        folder = options.folder or options.rows.resolve().parent
        runs = list(runs_of(read_rows(options.rows), folder))
        print(json.dumps(figures_of(runs), indent=None if options.json else 2))
        return
    if options.rows is not None:
        begin = time.perf_counter()
        found = predict(read(options.rows), options.folder or options.rows.resolve().parent)
        of = figures(found, time.perf_counter() - begin)
        if options.json:
            print(json.dumps(of))
            return
        for each in sorted(found, key=lambda each: -abs(each.error)):
            name = each.row.get(
                "id", f"{each.row.get('gpu')} {each.row.get('ranks')} x {each.row.get('bytes')}"
            )
            print(
                f"{name:<28} {each.measured:12.6g} {each.predicted:12.6g} {100 * each.error:7.2f}%  {each.why}"
            )
        print(of)
        return
    if options.folder is None:
        parser.error("give --folder or --rows")
    if options.fit:
        constants, _ = fit(runs_to_fit(options.folder))
        print(json.dumps({name: float(f"{value:.4g}") for name, value in constants.items()}, indent=1))
        return
    if options.halves:
        print(halves(options.folder, options.seed).text())
        return
    if options.left_out:
        tables = left_out_tables(options.folder)
        print("\n".join(each.text() for each in tables))
        if options.write:
            replace_generated(
                HERE / "exam.md", "exam.py --left-out", "\n".join(each.markdown() for each in tables)
            )
        return
    made, everything = table(options.folder)
    print(made.text())
    pages, published = made.markdown(), []
    if (options.folder / PUBLISHED).exists():
        published = list(runs_of(read_rows(options.folder / PUBLISHED), options.folder))
        sources = published_table(published)
        print(sources.text())
        pages += f"\n{sources.markdown()}"
    if options.write:
        replace_generated(PAGE, "exam.py", pages)
        scatter(everything, published)


def scatter(everything: Mapping[str, Sequence[Predicted]], published: Sequence[Run]) -> None:
    """The picture: predicted against measured iterations."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 7))
    for name in ("vtrain_multi", "selene", "megatron_sc21", "megatron_sc21, ZeRO-3", "nanotron_h100"):
        found = [each for each in everything.get(name, ()) if not each.why]
        axes.scatter([e.measured for e in found], [e.predicted for e in found], s=18, label=name, alpha=0.8)
    frameworks: dict[str, list[tuple[float, float]]] = {}
    for run in published:
        if run.measured and not run.refused:
            points = frameworks.setdefault(run.fitting[0].cluster.framework.name, [])
            points.append((run.measured, run.predicted()))
    for name, points in frameworks.items():
        measured, predicted = zip(*points, strict=True)
        axes.scatter(measured, predicted, s=8, marker="^", label=f"{name}, published", alpha=0.6)
    low, high = 0.1, 400.0
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.fill_between(
        [low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="black", alpha=0.08, linewidth=0
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        xlabel="measured (s)",
        ylabel="predicted (s)",
    )
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("Iterations, and 10% to either side", fontsize=10)
    figure.tight_layout()
    figure.savefig(PAGE.with_name("exam.png"), dpi=110)


if __name__ == "__main__":
    main()
