"""Rows of measured training iterations: what each was measured on, and its predicted time.

A row is one of the files that `exam.py` reads; what it leaves open (chunks, recomputation, micro-batch) is tried in
every way and the fastest taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coppice.errors import InputError
from coppice.iteration.devices import CALIBRATIONS, DEVICES
from coppice.iteration.estimate import estimate
from coppice.iteration.frameworks import FRAMEWORKS, Framework
from coppice.iteration.job.job import KindOfBox, Machines, TrainingJob
from coppice.iteration.job.tables import RunTable
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import CONSTANTS, Cluster
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.times import operator_seconds
from coppice.iteration.workload.transformers import transformer_layer
from coppice.topology import preset
from exam_boxes import profiled_seconds, ring_seconds
from exam_published import Run

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

ONE = preset("dgx-a100")
"""A box, in place of clusters whose rates are given."""
PRECISIONS = {"fp8": 2.0, "fp8-cs": 2.0, "mxfp8": 2.0, "nvfp4": 4.0}
"""How much faster than with 16 bits matrix products are by the data sheets."""


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
    if row["shard"] == "zero3":
        return FRAMEWORKS["deepspeed-2021"]
    names = {"nanotron_h100": "nanotron", "bridge_dense": "megatron"}
    return FRAMEWORKS[names.get(row["set"], "megatron-2021")]


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
                # Megatron-Bridge's recipes share out the optimizer where they do not say otherwise.
                shard={"zero1": Shard.ZERO1, "zero3": Shard.ZERO3, "fsdp": Shard.ZERO3}.get(
                    row["shard"], Shard.ZERO1 if row["set"] == "bridge_dense" else Shard.NONE
                ),
            )


def cluster_of(row: Row) -> Cluster:
    """The GPUs of a row."""
    # Pairs ran on cards of 500 W.
    chip = CHIPS.get(row["gpu"], row["gpu"]) if "set" in row else "H100-96G"
    count, rate = NICS[row.get("set", "overlap_pairs")]
    return Cluster(
        device=DEVICES[chip],
        nic_bytes_per_second=count * rate * DEVICES[chip].box / 8,
        shares_nics=count < 8,
        calibration=CALIBRATIONS[CONSTANTS.get(chip, chip)],
        precision=PRECISIONS.get(row["dtype"], 1.0),
        framework=framework_of(row) if "set" in row else FRAMEWORKS["fsdp"],
    )


def run_of(row: Row) -> Run:
    """A row as a run whose variants are the layouts that it may have had.

    Raises:
        InputError: If there is none.
    """
    model, cluster = model_of(row), cluster_of(row)
    kind = KindOfBox(name=row["gpu"], boxes=1, cluster=cluster, topology=ONE)
    machines = Machines(name=row["gpu"], kinds=(kind,))
    jobs = []
    for layout in layouts_of(row):
        overlap = None  # Megatron-LM of 2021 and nanotron sum gradients when all passes are done
        if row["set"] == "bridge_dense":
            overlap = "fsdp" if layout.shard is Shard.ZERO3 else "megatron"
        run = RunTable(policy=overlap)
        jobs.append(TrainingJob(name=row["model"], model=model, machines=machines, layout=layout, run=run))
    if not jobs:
        raise InputError(f"expected a layout that divides the batch of {row['id']}, found none.")
    about = {"source": row["set"], "exact": True, "group": row["model"], "measured_s": row["time_s"]}
    return Run(rows=[{**row, **about}], jobs=jobs)


def iteration_seconds(row: Row, folder: Path) -> float:
    """The predicted time of a row of measured iterations."""
    del folder
    return run_of(row).predicted()


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
        ranks = layout.tensor
        products = [
            each for part in transformer_layer(model, layout, cluster.framework) for each in part.products
        ]
        whole, piece = (
            sum(operator_seconds(each, samples, cluster).forward for each in products)
            for samples in (micro_batch, micro_batch / ranks)
        )
        passes = 3 + (layout.recompute is Recompute.FULL)
        slower = layout.micro_batches * layers * passes * (ranks * piece - whole)
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
