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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from coppice.errors import InputError
from coppice.iteration.devices import CALIBRATIONS, DEVICES, Calibration
from coppice.iteration.estimate import Cluster, Estimate, estimate, products_seconds
from coppice.iteration.framework import DEEPSPEED_2021, MEGATRON, NANOTRON, Framework
from coppice.iteration.memory import memory_of
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer
from exam_boxes import profiled_seconds, read, ring_seconds
from tables import Table, replace_generated

PAGE = Path(__file__).with_name("exam.md")
Row = Mapping[str, str]

NICS = {
    "vtrain_multi": (4, 25e9),
    "selene": (8, 25e9),
    "megatron_sc21": (8, 25e9),
    "nanotron_h100": (8, 50e9),
    "overlap_pairs": (8, 50e9),
    "bridge_dense": (8, 50e9),
}
"""NICs of a box of eight GPUs and bytes per second of one, by the descriptions of the runs."""

CHIPS = {"A100": "A100-80G"}
"""Whose data sheet counts: all measured A100 rows ran on 80 GB."""

LIKE = {"B200": "H100", "GB200": "H100", "GB300": "H100"}
"""Chips without constants of their own take those of another."""

PRECISIONS = {"fp8": 2.85, "fp8-cs": 2.25, "mxfp8": 2.25, "nvfp4": 3.95}
"""How much faster than with 16 bits matrix products seem: fitted to the open rows of bridge_dense, with constants of an
older chip, so that what else software has gained since is in them and they exceed the ratio of the peaks."""

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


@dataclass(frozen=True)
class Predicted:
    """A row with what was predicted; ``why`` says why nothing was."""

    row: Row
    measured: float
    predicted: float
    why: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured minus one; -1 where nothing was predicted."""
        return self.predicted / self.measured - 1


def model_of(row: Row) -> Transformer:
    """The model of a row."""
    return Transformer(
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        ffn=int(row["ffn"]),
        mlp_matrices=3 if row["mlp"] == "swiglu3" else 2,
        seq=int(row["seq"]),
        vocab=int(row["vocab"]),
        biases=row["mlp"] == "gelu2",
    )


def framework_of(row: Row) -> Framework:
    """What a row was run with, by the description of the runs."""
    if row["set"] == "nanotron_h100":
        return NANOTRON
    return DEEPSPEED_2021 if row["shard"] == "zero3" else MEGATRON


def layouts_of(row: Row) -> Iterator[Layout]:
    """The layouts that a row may have had: what is not published is left open, and the fastest counts."""
    batch, data, stages = int(row["global_batch"]), int(row["dp"]), int(row["pp"])
    given = row["micro_batch"]
    for micro_batch in [int(given)] if given else (1, 2, 4, 8):
        if batch % (micro_batch * data):
            continue
        chunks = [int(row["vp"])] if row["vp"] else [1]
        if row["schedule"] == "interleaved" and not row["vp"]:
            held = int(row["layers"]) // stages
            chunks = [
                v for v in range(1, held + 1) if held % v == 0 and batch // (micro_batch * data) % stages == 0
            ]
        for each in chunks or [1]:
            yield Layout(
                tensor=int(row["tp"]),
                pipeline=stages,
                data=data,
                context=int(row["cp"] or 1),
                chunks=each,
                micro_batch=micro_batch,
                global_batch=batch,
                recompute=Recompute.NONE if row["recompute"] == "unknown" else Recompute(row["recompute"]),
                sequence_parallel=row["seq_par"] == "1",
                fused_attention=row["gpu"] not in ("A100", "A100-80G", "V100"),
                shard={"zero1": Shard.ZERO1, "zero3": Shard.ZERO3, "fsdp": Shard.ZERO3}.get(
                    row["shard"], Shard.NONE
                ),
            )


def cluster_of(row: Row, calibration: Calibration | None = None) -> Cluster:
    """The GPUs of a row, with fitted constants or given ones."""
    chip = CHIPS.get(row["gpu"], row["gpu"])
    count, rate = NICS[row.get("set", "overlap_pairs")]
    return Cluster(
        device=DEVICES[chip],
        nic_bytes_per_second=count * rate * DEVICES[chip].box / 8,
        shares_nics=count < 8,
        calibration=calibration or CALIBRATIONS[LIKE.get(chip, chip)],
        precision=PRECISIONS.get(row["dtype"], 1.0),
    )


@cache
def possible(names: tuple[str, ...], values: tuple[str, ...]) -> tuple[Transformer, tuple[Layout, ...]]:
    """The model of a row, and the layouts that it may have had: of several those that fit the memory.

    Raises:
        InputError: If there is none.
    """
    row = dict(zip(names, values, strict=True))
    model, layouts = model_of(row), tuple(layouts_of(row))
    room = DEVICES[CHIPS.get(row["gpu"], row["gpu"])].memory_bytes
    fitting = tuple(each for each in layouts if memory_of(model, each).total <= room)
    if not layouts:
        msg = f"expected a layout that divides the batch of {row['id']}, found none."
        raise InputError(msg)
    return model, fitting or layouts


def best_estimate(row: Row, calibration: Calibration | None = None) -> Estimate:
    """The fastest of the layouts that a row may have had."""
    model, layouts = possible(tuple(row), tuple(row.values()))
    cluster, framework = cluster_of(row, calibration), framework_of(row)
    found = [estimate(model, layout, cluster, framework) for layout in layouts]
    return min(found, key=lambda each: each.seconds)


def iteration_seconds(row: Row, folder: Path) -> float:
    """The predicted time of a row of measured iterations."""
    del folder
    return best_estimate(row).seconds


def pair_ratio(row: Row, folder: Path) -> float:
    """Rate of the variant over that of the base."""
    del folder
    stages = int(row["pp"])
    heads, kv_heads, layers, hidden, ffn = {
        "LLAMA3_8B": (32, 8, 32, 4096, 14336),
        "LLAMA3_70B": (64, 8, 80, 8192, 28672),
        "LLAMA3.1_405B": (128, 8, 126, 16384, 53248),
    }[row["model"]]
    model = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        mlp_matrices=3,
        seq=int(row["seq"]),
        vocab=128256,
    )
    data, batch = int(row["fsdp"]), int(row["local_batch"])

    def seconds(chunks: int, micro_batch: int, *, hides: bool = False) -> float:
        layout = Layout(
            tensor=int(row["tp"]),
            pipeline=stages,
            data=data,
            chunks=chunks,
            micro_batch=micro_batch,
            global_batch=batch * data,
            recompute=Recompute(row["recompute"]),
            sequence_parallel=True,
            fused_attention=True,
        )
        cluster = cluster_of({**row, "dtype": "bf16"})
        found = estimate(model, layout, cluster)
        if not hides:
            return found.seconds
        # In as many steps as ranks, all but the first of a gather and the last of a scatter run beside the products,
        # whose pieces have fewer tokens.
        tokens, ranks = model.seq * layout.micro_batch, layout.tensor
        whole = products_seconds(model, tokens, ranks, cluster)
        pieces = ranks * products_seconds(model, tokens / ranks, ranks, cluster)
        passes = 3 + (layout.recompute is Recompute.FULL)
        slower = layout.micro_batches * layers * passes * (pieces - whole)
        return found.seconds - found.tensor * (1 - 1 / ranks) + slower

    if stages > 1:
        return seconds(1, 1) / seconds(layers // stages, 1)
    return seconds(1, batch) / seconds(1, batch, hides=True)


def kind_of(row: Row) -> tuple[Callable[[Row, Path], float], Callable[[Row], float]]:
    """What predicts a row, and what was measured."""
    if "variant_rate" in row:
        return pair_ratio, lambda each: float(each["variant_rate"]) / float(each["base_rate"])
    if "busbw_out_of_place_gbs" in row:
        return ring_seconds, lambda each: float(each["time_out_of_place_us"]) / 1e6
    if row["set"] == "vtrain_single":
        return profiled_seconds, lambda each: float(each["time_s"])
    return iteration_seconds, lambda each: float(each["time_s"])


def predict(rows: Sequence[Row], folder: Path) -> list[Predicted]:
    """Every row; one that cannot be predicted has the reason, and counts as 100%."""
    found = []
    for row in rows:
        predicting, measuring = kind_of(row)
        measured = measuring(row)
        try:
            found.append(Predicted(row, measured, predicting(row, folder)))
        except (InputError, KeyError, ValueError, FileNotFoundError) as error:
            found.append(Predicted(row, measured, 0.0, why=str(error)))
    return found


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
