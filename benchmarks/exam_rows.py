"""Rows of measured training iterations: what each was measured on, and its predicted time.

A row is one of the files that `exam.py` reads; what it leaves open (chunks, recomputation, micro-batch) is tried in
every way and the fastest taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coppice.errors import InputError
from coppice.iteration.devices import CALIBRATIONS, DEVICES, Calibration
from coppice.iteration.estimate import (
    DEEPSPEED_2021,
    MEGATRON,
    NANOTRON,
    Cluster,
    Estimate,
    Framework,
    estimate,
    products_seconds,
)
from coppice.iteration.memory import memory_of
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer
from exam_boxes import profiled_seconds, ring_seconds

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
        raise InputError(f"expected a layout that divides the batch of {row['id']}, found none.")
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
