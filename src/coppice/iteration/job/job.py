"""The training job that is built from the tables of a job file, whose layout divides its model and its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coppice.errors import InputError
from coppice.iteration.costs.simulated import CALIBRATED, with_collectives
from coppice.iteration.devices import Cap
from coppice.iteration.frameworks import ATTENTION, SOFTMAX, Framework, framework_named
from coppice.iteration.job.tables import ClusterTable, JobRecord, LayoutTable, ModelTable, RunTable
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import Cluster, capped, cluster_of
from coppice.iteration.measured.table import DeviceTable, read_device_table
from coppice.iteration.models import MODELS, any_model
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LAYERED_MODELS, LayeredModel
from coppice.simulation.models import model_of as time_model_of
from coppice.text import suggestion
from coppice.topology.load import load
from coppice.topology.model import Topology

_MOST_PASSES = 500_000
"""Each is a few tasks of a simulation: so many take seconds and less than a gigabyte."""


def check_layout(model: Transformer | LayeredModel, layout: Layout, gpus: int, where: str) -> None:
    """Refuse a layout whose degrees do not divide the model or the cluster.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> check_layout(MODELS["mixtral-8x7b"], Layout(data=12, expert=12, global_batch=12), 12, "boxes")
        Traceback (most recent call last):
        coppice.errors.InputError: expected ep that divides 8 experts, found 12.
    """
    if layout.gpus != gpus:
        raise InputError(
            f"expected degrees whose product is the {gpus} GPUs of {where}, found {layout.gpus}: change "
            "`parallel` or `boxes`."
        )
    passes = layout.micro_batches * layout.pipeline * layout.chunks
    if passes > _MOST_PASSES:
        raise InputError(
            f"expected at most {_MOST_PASSES:,} passes of an iteration, found {passes:,} ({layout.micro_batches:,} "
            f"micro-batches on {layout.pipeline * layout.chunks} stages): raise micro_batch, or lower global_batch."
        )
    if isinstance(model, LayeredModel):
        for name in ("tensor", "pipeline", "context", "expert", "chunks"):
            if getattr(layout, name) > 1:
                raise InputError(
                    f"expected replicas alone for {model.name}, which is not cut, found {getattr(layout, name)} for "
                    f"{_SHORT[name]}: lay it out with dp."
                )
        if layout.shard is Shard.ZERO3:
            raise InputError(
                f"expected shard none, zero1 or zero2 for {model.name}, found {layout.shard.value}."
            )
        for name, usual in (("recompute_every", 1), ("recompute_layers", 0), ("shard_ranks", 0)):
            if getattr(layout, name) != usual:
                raise InputError(
                    f"expected no {name} for {model.name}, which has no layers that are alike, found "
                    f"{getattr(layout, name)}: leave it out."
                )
        return
    if model.share("M") and layout.context > 1:
        raise InputError(
            f"expected cp 1 with state-space layers, whose states run along the sequence, found {layout.context}: "
            "take tp."
        )
    for what, whole, degree, parts in (
        ("tp", model.heads, "heads", layout.tensor),
        ("tp", model.state_heads, "heads of state-space layers", layout.tensor),
        ("tp", model.ffn, "columns of the MLP", layout.tensor),
        ("cp", model.seq, "tokens", layout.context),
        ("ep", model.experts, "experts", layout.expert),
    ):
        if what == "ep" and parts > 1 and not whole:
            raise InputError(
                f"expected a model with experts for ep {parts}, found none: leave ep out, or give `model.experts`."
            )
        if whole % parts:
            raise InputError(f"expected {what} that divides {whole} {degree}, found {parts}.")
    if layout.shared_beside and not model.shared_ffn:
        raise InputError(
            "`layout.shared_experts`: expected a model with shared experts, found none: give `model.shared_ffn`, or "
            "leave it out."
        )
    if layout.chunks > 1 and layout.pipeline == 1:
        raise InputError(
            f"expected chunks of a device in a pipeline, found {layout.chunks} with pp 1: raise pp, or leave chunks "
            "out."
        )
    stages = layout.pipeline * layout.chunks
    if model.layers < stages:
        raise InputError(
            f"expected at most as many stages as the {model.layers} layers, found {layout.pipeline} x {layout.chunks}: "
            "lower pp or chunks."
        )


_SHORT = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "chunks": "chunks"}


TopologyLoader = Callable[[str, int | None, str | None, Mapping[str, object] | None], Topology]
"""Loads a topology by its name, with boxes, rates and parameters of a preset."""

_NEEDED = ("layers", "hidden", "heads", "ffn", "seq", "vocab")
_OF_EXPERTS = (
    "experts_per_token",
    "expert_ffn",
    "shared_ffn",
    "expert_every",
    "first_dense",
    "capacity_factor",
)
_DEGREES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}


@dataclass(frozen=True, kw_only=True)
class KindOfBox:
    """Boxes of one kind."""

    name: str  # Their topology
    boxes: int  # How many
    cluster: Cluster  # Their GPUs and network
    topology: Topology  # The topology
    nics: int = 1  # NICs of a box

    @property
    def gpus(self) -> int:
        """Total GPUs of the kind."""
        return self.boxes * self.cluster.device.box


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines of a job: boxes of one or more kinds."""

    name: str  # Its name
    kinds: tuple[KindOfBox, ...]  # The kinds, in the order in which ranks are given to them

    @property
    def gpus(self) -> int:
        """Total GPUs."""
        return sum(each.gpus for each in self.kinds)

    @property
    def cluster(self) -> Cluster:
        """The cluster; of several kinds, the slowest values.

        Ranks that wait for each other go at the pace of the slowest.
        """
        first = self.kinds[0].cluster
        for each in self.kinds[1:]:
            other = each.cluster
            slow = min(first, other, key=lambda one: one.device.flops * one.calibration.matrix_share)
            device = replace(
                slow.device,
                memory_bytes=min(first.device.memory_bytes, other.device.memory_bytes),
                link_bytes_per_second=min(
                    first.device.link_bytes_per_second, other.device.link_bytes_per_second
                ),
            )
            rate = min(first.nic_bytes_per_second, other.nic_bytes_per_second)
            first = replace(slow, device=device, nic_bytes_per_second=rate)
        return first


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A model, machines, a layout, and run options."""

    name: str  # Name of the model
    model: Transformer | LayeredModel  # The model
    machines: Machines  # What it runs on
    layout: Layout  # How it lies on them
    run: RunTable  # Order, policy and so on

    @property
    def cluster(self) -> Cluster:
        """The GPUs and the network."""
        return self.machines.cluster


def job_of(
    record: JobRecord, *, folder: Path | None = None, loaded: TopologyLoader | None = None
) -> TrainingJob:
    """Build the job of a record.

    Args:
        folder: Where files that it names are looked for first.
        loaded: Loads a topology; None: :func:`coppice.topology.load.load`.

    Examples:
        >>> from coppice.iteration.job.file import parse_job_record
        >>> text = '''
        ... [model]
        ... name = "gpt-175b"
        ... [cluster]
        ... topology = "dgx-a100"
        ... boxes = 64
        ... [layout]
        ... tp = 8
        ... pp = 16
        ... global_batch = 512
        ... '''
        >>> job = job_of(parse_job_record(text, where="job.toml"))
        >>> job.machines.name, job.layout.data, job.cluster.device.name
        ('64 x dgx-a100', 4, 'A100-80G')
    """
    model = model_of(record.model)
    machines = machines_of(
        record.cluster,
        folder=folder,
        loaded=loaded,
        precision=record.run.precision or 1.0,
        collectives=record.run.collectives or CALIBRATED,
        model=record.run.model,
    )
    layout = layout_of(record.layout, machines.gpus)
    check_layout(model, layout, machines.gpus, machines.name)
    framework, fused = profile_of(record.run, layout)
    layout = replace(layout, fused_attention=fused)
    machines = replace(
        machines,
        kinds=tuple(
            replace(each, cluster=replace(each.cluster, framework=framework)) for each in machines.kinds
        ),
    )
    name = record.model.name or "transformer"
    return TrainingJob(name=name, model=model, machines=machines, layout=layout, run=record.run)


def profile_of(run: RunTable, layout: Layout) -> tuple[Framework, bool]:
    """The framework of a job with its kernel of attention, and whether scores stay on the chip.

    Raises:
        InputError: If a name is unknown.
    """
    framework = framework_named(run.framework or ("fsdp" if layout.shard is Shard.ZERO3 else "megatron"))
    if run.attention in (None, "auto"):
        return framework, layout.fused_attention
    if run.attention in SOFTMAX:
        return replace(framework, softmax=run.attention), False
    if run.attention in ATTENTION:
        return replace(framework, attention=run.attention), True
    kernels = ["auto", *SOFTMAX, *ATTENTION]
    raise InputError(
        f"`run.attention`: expected a kernel of attention ({', '.join(kernels)}), found {run.attention!r}: "
        f"{suggestion(run.attention, kernels)}"
    )


def model_of(table: ModelTable) -> Transformer | LayeredModel:
    """Build the model of a table.

    Raises:
        InputError: If a number is missing, or does not go with the model.
    """
    given = {
        field.name: value
        for field in msgspec.structs.fields(ModelTable)
        if (value := getattr(table, field.name)) is not None
    }
    name = given.pop("name", None)
    if "gated" in given:
        given["mlp_matrices"] = 3 if given.pop("gated") else 2
    missing = [f"`model.{each}`" for each in _NEEDED if each not in given]
    known = name is None or name in MODELS or name in LAYERED_MODELS
    if known and name is None and missing:
        raise InputError(f"{missing[0]}: expected a number, or a model named by `model.name`, found neither.")
    if not known and missing and given:
        raise InputError(
            f"`model.name`: expected a known model, or all numbers of one called {name!r}, found neither: "
            f"{suggestion(str(name), [*MODELS, *LAYERED_MODELS]).rstrip('.')}, or give {', '.join(missing)} as well."
        )
    if name is None or not (known or missing):  # a name of one's own, for a model that is told in full
        return _transformer(None, given)
    found = any_model(str(name))
    if isinstance(found, LayeredModel):
        if given:
            raise InputError(
                f"`model.{next(iter(given))}`: expected a key that {name} has, found one of transformers."
            )
        return found
    return _transformer(found, given)


def _transformer(base: Transformer | None, given: Mapping[str, Any]) -> Transformer:
    """Transformer of given dimensions."""
    try:
        made = Transformer(**given) if base is None else replace(base, **given)
    except InputError as error:
        raise InputError(f"[model]: {error}") from None
    usual = {field.name: field.default for field in fields(Transformer)}
    idle = [each for each in _OF_EXPERTS if not made.experts and given.get(each, usual[each]) != usual[each]]
    if idle:
        raise InputError(
            f"`model.{idle[0]}`: expected a model with experts, found none: give `model.experts`, or leave it out."
        )
    return made


def machines_of(
    table: ClusterTable,
    *,
    folder: Path | None = None,  # Where files that it names are looked for first
    loaded: TopologyLoader | None = None,  # Loads a topology; None: :func:`coppice.topology.load.load`
    precision: float = 1.0,  # How much faster than with 16 bits matrix products are
    # What collectives cost, as :func:`coppice.iteration.costs.simulated.costs_named` takes it
    collectives: str = CALIBRATED,
    # What messages of simulated collectives cost: a model of time by its name, or a file of one
    model: str | None = None,
) -> Machines:
    """Build the machines of a table."""
    if (table.topology is None) == (not table.mixed):
        found = "neither" if table.topology is None else "both"
        raise InputError(f"`cluster.topology`: expected a preset or file, or `cluster.mixed`, found {found}.")
    if table.topology is not None:
        asked = [(table.topology, table.boxes, table.device, Cap(table.power_watts, table.clock_mhz))]
    else:
        if table.power_watts or table.clock_mhz:
            raise InputError(
                "`cluster.mixed`: expected `power_watts` and `clock_mhz` with each kind of boxes, found one of them "
                "beside `mixed`: move it there."
            )
        asked = [
            (each.topology, each.boxes, each.device, Cap(each.power_watts, each.clock_mhz))
            for each in table.mixed or ()
        ]
    if len(asked) > 1 and collectives != CALIBRATED:
        raise InputError(
            f"`run.collectives`: expected {CALIBRATED} on boxes of several kinds, found {collectives!r}."
        )
    if model is not None and collectives == CALIBRATED:
        raise InputError(
            f"`run.model`: expected simulated collectives beside a model of time, found {CALIBRATED} ones: name "
            "`run.collectives`."
        )
    assumed = time_model_of(None if model is None else in_folder(model, folder))
    kinds, names = [], []
    for spec, boxes, device, cap in asked:
        topology = (loaded or _load)(in_folder(spec, folder), boxes, table.rates, table.settings)
        kind = kind_of(topology, device_of(device, folder), precision=precision)
        kind = replace(kind, cluster=capped(kind.cluster, cap))
        kinds.append(
            replace(kind, cluster=with_collectives(kind.cluster, topology, collectives, model=assumed))
        )
        names.append(topology.name)
    return Machines(name=" + ".join(names), kinds=tuple(kinds))


def _load(spec: str, boxes: int | None, rates: str | None, settings: Mapping[str, object] | None) -> Topology:
    parameters: dict[str, Any] = {key.replace("-", "_"): value for key, value in (settings or {}).items()}
    return load(spec, boxes=boxes, rates=rates, **parameters)


def kind_of(topology: Topology, device: str | DeviceTable | None, *, precision: float = 1.0) -> KindOfBox:
    """Boxes of a topology."""
    cluster = replace(cluster_of(topology, device), precision=precision)
    from_host, to_host = topology.host[topology.src], topology.host[topology.dst]
    ports = np.unique(topology.src[(from_host >= 0) & (from_host != to_host)])
    boxes = topology.num_ranks // cluster.device.box
    nics = max(1, len(ports) // boxes)
    return KindOfBox(name=topology.name, boxes=boxes, cluster=cluster, topology=topology, nics=nics)


def device_of(name: str | None, folder: Path | None = None) -> str | DeviceTable | None:
    """Look up a device by name or file."""
    if name is None or not name.endswith(".json"):
        return name
    return read_device_table(in_folder(name, folder))


def in_folder(name: str, folder: Path | None) -> str:
    """Path relative to a folder if the file exists there, else the name."""
    return str(folder / name) if folder is not None and (folder / name).is_file() else name


def layout_of(table: LayoutTable, gpus: int) -> Layout:
    """Build the layout of a table; missing replicas are computed from the GPUs."""
    given: dict[str, Any] = {
        _DEGREES.get(field.name, field.name): value
        for field in msgspec.structs.fields(LayoutTable)
        if (value := getattr(table, field.name)) is not None
    }
    if (comm := given.pop("cp_comm", None)) is not None:
        if given.get("context", 1) == 1:
            raise InputError(
                f"`layout.cp_comm`: expected cp of 2 or more beside {comm}, found none: give it."
            )
        given["context_ring"] = comm == "p2p"
    if (comm := given.pop("ep_comm", None)) is not None:
        if given.get("expert", 1) == 1:
            raise InputError(
                f"`layout.ep_comm`: expected ep of 2 or more beside {comm}, found none: give it."
            )
        given["deduplicated"] = comm == "deduplicated"
    if (when := given.pop("shared_experts", None)) is not None:
        if given.get("expert", 1) == 1:
            raise InputError(
                f"`layout.shared_experts`: expected ep of 2 or more, whose exchanges they stand {when}, found none: "
                "give it."
            )
        given["shared_beside"] = when == "beside"
    if "recompute_modules" in given:
        given["recompute_modules"] = tuple(dict.fromkeys(given["recompute_modules"]))
    given["recompute"] = Recompute(given.get("recompute", "none"))
    given["shard"] = Shard(given.get("shard", "none"))
    given.setdefault("sequence_parallel", True)
    given.setdefault("fused_attention", True)
    if "data" not in given:
        others = given.get("tensor", 1) * given.get("pipeline", 1) * given.get("context", 1)
        if gpus % others:
            raise InputError(f"`layout`: expected tp x pp x cp that divides {gpus} GPUs, found {others}.")
        given["data"] = gpus // others
    if "global_batch" not in given:
        given["global_batch"] = given.get("micro_batch", 1) * given["data"]
    return Layout(**given)
