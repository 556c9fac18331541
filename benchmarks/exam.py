"""The exam of the model of training iterations: rows of measured iterations, predicted and compared.

    python benchmarks/exam.py --folder DIR --write       # every table of exam.md, from the files of DIR
    python benchmarks/exam.py --rows FILE --json         # one file, nothing fitted
    python benchmarks/exam.py --folder DIR --fit         # the constants that src/coppice/iteration/devices.py holds
    python benchmarks/exam.py --folder DIR --halves      # fitted on random parts of the rows, scored on the others

Error of a row is predicted over measured time minus one; a row that cannot be predicted counts as 100%. Regret is that
of an owner who takes the configuration that is predicted to be fastest of those with the same model and number of GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coppice.iteration.devices import Calibration
from exam_boxes import read
from exam_rows import Predicted, Row, best_estimate, predict
from tables import Table, replace_generated

PAGE = Path(__file__).with_name("exam.md")

FITTED_ON = {"A100-80G": "vtrain_multi", "H100": "nanotron_h100"}
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


WIDTHS = {
    "matrix_share": 0.15,
    "half_tokens": 1.0,
    "attention_share": 0.7,
    "memory_share": 0.2,
    "near_seconds": 0.5,
    "near_share": 0.2,
    "far_seconds": 0.3,
    "far_share": 0.3,
    "gradient_share": 0.3,
    "stall_share": 1.5,
}
"""How far each constant may be from what is usual, the default of :class:`Calibration`, for as much as an error of 3%
counts: as differences of logarithms. What rows do not tell stays at what is usual."""
USUAL_ERROR = 0.03


def fit(rows: Sequence[Row]) -> Calibration:
    """The constants with which rows are met best, within physical limits and near what is usual."""
    from scipy.optimize import least_squares

    names = Calibration.names()
    middle = [math.log(getattr(Calibration(), name)) for name in names]
    high = [
        math.log(0.95 if name.endswith("_share") else 5000.0 if name == "half_tokens" else 1e-2)
        for name in names
    ]
    low = [math.log(0.05 if name.endswith("_share") else 1e-6) for name in names]
    low[names.index("stall_share")] = math.log(1e-4)

    def misses(logs: Sequence[float]) -> list[float]:
        constants = Calibration(**{name: math.exp(value) for name, value in zip(names, logs, strict=True)})
        found = [math.log(best_estimate(row, constants).seconds / float(row["time_s"])) for row in rows]
        # The soft L1 norm: errors beyond the usual one count linearly.
        soft = [math.sqrt(2 * (math.sqrt(1 + (each / USUAL_ERROR) ** 2) - 1)) for each in found]
        apart = [
            (value - usual) / WIDTHS[name] for name, value, usual in zip(names, logs, middle, strict=True)
        ]
        return [math.copysign(size, each) for size, each in zip(soft, found, strict=True)] + apart

    found = least_squares(misses, middle, bounds=(low, high), xtol=1e-6, ftol=1e-6)
    values = (float(f"{math.exp(value):.4g}") for value in found.x)
    return Calibration(**dict(zip(names, values, strict=True)))


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


def fitted_rows(folder: Path, name: str) -> list[Row]:
    """The rows to which constants are fitted: A100 without those that a note calls unstable."""
    rows = read(folder / f"{name}.csv")
    return stable(rows) if name == "vtrain_multi" else list(rows)


def held_out(rows: Sequence[Row], draw: random.Random, parts: int) -> list[float]:
    """Percent by which each row is missed with constants fitted to the other parts of a random division."""
    order = list(rows)
    draw.shuffle(order)
    errors = []
    for part in range(parts):
        constants = fit([row for k, row in enumerate(order) if k % parts != part])
        errors += [
            abs(best_estimate(row, constants).seconds / float(row["time_s"]) - 1) * 100
            for row in order[part::parts]
        ]
    return errors


def halves(folder: Path, seed: int) -> Table:
    """Rows predicted with constants that were fitted to others, over ten random divisions."""
    result = Table(
        title="Fitted on some rows, scored on the others",
        header=("rows", "parts", "mean", "of divisions", "median", "largest"),
    )
    draw = random.Random(seed)
    for name in FITTED_ON.values():
        rows = fitted_rows(folder, name)
        for parts in (2, 5):
            runs = [held_out(rows, draw, parts) for _ in range(10)]
            means = [statistics.mean(each) for each in runs]
            result.rows.append(
                (
                    f"{name}, stable" if name == "vtrain_multi" else name,
                    str(parts),
                    f"{statistics.mean(means):.2f}%",
                    f"{min(means):.2f} to {max(means):.2f}%",
                    f"{statistics.mean(statistics.median(each) for each in runs):.2f}%",
                    f"{max(max(each) for each in runs):.1f}%",
                )
            )
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
    parser.add_argument("--seed", type=int, default=0, help="of the halves")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
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
        for chip, name in FITTED_ON.items():
            found_constants = fit(fitted_rows(options.folder, name))
            print(chip, asdict(found_constants))
        return
    if options.halves:
        print(halves(options.folder, options.seed).text())
        return
    made, everything = table(options.folder)
    print(made.text())
    if options.write:
        replace_generated(PAGE, "exam.py", made.markdown())
        scatter(everything)


def scatter(everything: Mapping[str, Sequence[Predicted]]) -> None:
    """The picture: predicted against measured iterations."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5.5))
    for name in ("vtrain_multi", "selene", "megatron_sc21", "megatron_sc21, ZeRO-3", "nanotron_h100"):
        found = [each for each in everything.get(name, ()) if not each.why]
        axes.scatter([e.measured for e in found], [e.predicted for e in found], s=18, label=name, alpha=0.8)
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
