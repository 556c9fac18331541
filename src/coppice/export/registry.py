"""Exports by name: what each makes, of what, and the options that it takes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coppice.export.exported import Exported
from coppice.export.nccl.topo_xml import export_nccl_topo_xml
from coppice.export.nccl.tuner import Dialect, export_nccl_tuner
from coppice.export.open_mpi.export import export_ompi_rules
from coppice.export.open_mpi.writer import FORMS
from coppice.export.rank_order import LAUNCHERS, export_rank_order
from coppice.export.rccl.rings import export_rccl_rings
from coppice.export.rccl.trees import export_rccl_trees

__all__ = ["STOCK", "Kind", "Option", "Source", "Target"]


class Source(enum.StrEnum):
    """What an export begins with; a plan also stands for its topology."""

    TOPOLOGY = "topology"
    PLAN = "plan"


class Kind(enum.StrEnum):
    """How the text of an option is read."""

    TEXT = "text"
    CHOICE = "choice"
    NUMBER = "number"
    FLAG = "flag"
    NAMES = "names"
    SIZES = "sizes"
    FILE = "file"


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of an export.

    Attributes:
        kind: How its text is read.
        help: What it means.
        choices: Values of a choice.
    """

    kind: Kind
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Target:
    """An export.

    Attributes:
        summary: What the file is and who reads it.
        source: What it is made of.
        make: Makes it; takes the source, and options by keyword.
        options: Options by keyword.
    """

    summary: str
    source: Source
    make: Callable[..., Exported]
    options: Mapping[str, Option] = field(default_factory=dict)


STOCK: Mapping[str, Target] = {
    "rank-order": Target(
        summary="Order of ranks for Slurm, Open MPI, MPICH or torchrun that crosses few links.",
        source=Source.TOPOLOGY,
        make=export_rank_order,
        options={
            "launcher": Option(kind=Kind.CHOICE, help="who reads it", choices=tuple(LAUNCHERS)),
            "groups": Option(
                kind=Kind.TEXT,
                help="axes such as tp=8,dp=4 (fastest first; tp=8:16 has weight 16) or lists such as 0-3;4-7",
            ),
            "whole_hosts": Option(
                kind=Kind.FLAG, help="ranks of a host are consecutive: yes (default) or no"
            ),
            "names": Option(kind=Kind.NAMES, help="names of the hosts, in the order of the topology"),
            "cores": Option(kind=Kind.NUMBER, help="cores that a rank of Open MPI is bound to (default 1)"),
        },
    ),
    "nccl-tuner": Target(
        summary="Tuner table (CSV) by which NCCL, RCCL or NCCLX pick algorithm, protocol and channels.",
        source=Source.TOPOLOGY,
        make=export_nccl_tuner,
        options={
            "dialect": Option(kind=Kind.CHOICE, help="who reads it", choices=tuple(Dialect)),
            "sizes": Option(kind=Kind.SIZES, help="sizes at which the cost model is asked, such as 1K:4G"),
            "times": Option(kind=Kind.FILE, help="CSV of measured times, instead of the cost model"),
            "model": Option(kind=Kind.TEXT, help="inputs of the cost model, such as channels=16,bw_inter=24"),
            "shapes": Option(
                kind=Kind.NAMES,
                help="further communicators by equal bytes per rank: NODESxRANKS such as 4x32, or any (ncclx)",
            ),
            "library": Option(
                kind=Kind.TEXT, help="version of the library that was measured, such as 2.27.7"
            ),
        },
    ),
    "ompi-rules": Target(
        summary="Rules file by which Open MPI picks an algorithm for ranks and sizes, from simulated times.",
        source=Source.TOPOLOGY,
        make=export_ompi_rules,
        options={
            "collectives": Option(kind=Kind.NAMES, help="names such as all_reduce,broadcast"),
            "sizes": Option(kind=Kind.SIZES, help="sizes at which algorithms are compared, such as 1K:16M"),
            "form": Option(kind=Kind.CHOICE, help="form of the file", choices=FORMS),
            "jobs": Option(kind=Kind.NUMBER, help="processes that compare (default: one per core)"),
        },
    ),
    "nccl-topo-xml": Target(
        summary="Correction of a machine's topology for NCCL_TOPO_FILE: rails, planes and speeds of its ports.",
        source=Source.TOPOLOGY,
        make=export_nccl_topo_xml,
        options={
            "base": Option(
                kind=Kind.FILE, help="dump of the machine, as NCCL_TOPO_DUMP_FILE writes it (needed)"
            ),
            "host": Option(kind=Kind.TEXT, help="name of that machine in the topology (default: the first)"),
            "rails": Option(
                kind=Kind.NAMES, help="topology (default), none, or port:rail such as mlx5_0:0,mlx5_1:1"
            ),
            "planes": Option(kind=Kind.NAMES, help="port:plane such as mlx5_0:0,mlx5_1:1"),
            "speeds": Option(
                kind=Kind.FLAG, help="ports get the speeds of the topology: yes or no (default)"
            ),
            "nvlinks": Option(
                kind=Kind.FLAG, help="keep the GPU links of the dump: yes (default), or no to detect them"
            ),
        },
    ),
    "rccl-trees": Target(
        summary="RCCL_TREES: the trees of an all-reduce plan on one box, for RCCL as it is shipped.",
        source=Source.PLAN,
        make=export_rccl_trees,
        options={
            "trees": Option(kind=Kind.NUMBER, help="number of trees, 1 .. 63 (default: what loses least)"),
        },
    ),
    "rccl-rings": Target(
        summary="NCCL_RINGS: rings for what a plan performs on one box, for RCCL as it is shipped.",
        source=Source.PLAN,
        make=export_rccl_rings,
        options={
            "rings": Option(kind=Kind.NUMBER, help="number of rings, 1 .. 64 (default: what loses least)"),
        },
    ),
}
"""Exports that libraries and launchers read as they are shipped."""
