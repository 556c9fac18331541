"""Every format that :func:`export` writes: what it is made of, the options that it takes, and who makes it."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.export.chakra.traces import export_chakra
from coppice.export.exported import Exported
from coppice.export.msccl.export import PROTOCOLS, export_msccl_xml, read_msccl_source
from coppice.export.msccl.targets import TARGETS
from coppice.export.mscclpp.program import export_mscclpp_json
from coppice.export.nccl.collnet import export_nccl_collnet
from coppice.export.nccl.topo_xml import export_nccl_topo_xml
from coppice.export.nccl.tuner import Dialect, export_nccl_tuner
from coppice.export.open_mpi.versions import FORMS
from coppice.export.open_mpi.writer import export_ompi_rules
from coppice.export.put_signal.kernel import export_put_signal_kernel
from coppice.export.put_signal.program import export_put_signal
from coppice.export.put_signal.script import export_put_signal_script
from coppice.export.rank_order import LAUNCHERS, export_rank_order
from coppice.export.rccl import export_rccl_rings, export_rccl_trees
from coppice.fitting.size_range import MODEL_KINDS
from coppice.program.two_sided.program import Program
from coppice.schedule.files.plan_file import FORMAT, read_plan
from coppice.schedule.plan import Plan
from coppice.text import parse_size, parse_sizes, suggestion
from coppice.topology.model import Topology


class OptionKind(enum.StrEnum):
    """What an option of an export is; every kind is also taken as text, in the words of the command line."""

    TEXT = "text"
    CHOICE = "choice"
    NUMBER = "number"
    FLAG = "flag"
    NAMES = "names"
    SIZE = "size"
    SIZES = "sizes"
    SIZE_RANGE = "range of sizes"
    FILE = "file"
    MODEL = "model of time"


@dataclass(frozen=True, kw_only=True)
class ExportOption:
    """An option of an export."""

    kind: OptionKind  # What it is
    help: str  # What it means
    choices: tuple[str, ...] = ()  # Values of a choice

    def value(self, name: str, given: Any) -> Any:
        """The value that an export is called with.

        Args:
            name: Name of the option, for messages.
            given: What the caller gave: a value of the kind, or its text.

        Examples:
            >>> ExportOption(kind=OptionKind.SIZES, help="sizes").value("sizes", "1K:4K")
            (1024, 2048, 4096)
            >>> ExportOption(kind=OptionKind.FLAG, help="whether").value("whole", "no")
            False
        """
        match self.kind:
            case OptionKind.TEXT:
                return _of_type(str, name, given, "text")
            case OptionKind.CHOICE:
                if given not in self.choices:
                    raise InputError(
                        f"expected {name} to be one of {', '.join(self.choices)}, found {given!r}."
                    )
                return str(given)
            case OptionKind.NUMBER:
                return self._number(name, given)
            case OptionKind.FLAG:
                if given not in (True, False, "yes", "no"):
                    raise InputError(f"expected {name} to be yes or no, found {given!r}.")
                return given in (True, "yes")
            case OptionKind.NAMES:
                parts = given.split(",") if isinstance(given, str) else _items(name, given, "names")
                return tuple(_of_type(str, name, part, "names").strip() for part in parts)
            case OptionKind.MODEL:
                return _of_type(MODEL_KINDS, name, given, "a model of time, its name or its file")
            case OptionKind.FILE:
                return Path(_of_type((str, os.PathLike), name, given, "the name of a file"))
            case _:
                return self._sizes(name, given)

    def _number(self, name: str, given: Any) -> int:
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        if not (isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10):
            raise InputError(f"expected {name} to be a whole number ({self.help}), found {given!r}.")
        return int(given)

    def _sizes(self, name: str, given: Any) -> Any:
        """One size in bytes, several in rising order, or a range: its text, or the sizes in it."""
        if isinstance(given, str):
            if self.kind is OptionKind.SIZE:
                return parse_size(given, option=f"`{name}`")
            return given if self.kind is OptionKind.SIZE_RANGE else parse_sizes(given, option=name)
        one = self.kind is OptionKind.SIZE or isinstance(given, int)
        sizes = [given] if one else _items(name, given, "sizes in bytes")
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise InputError(f"expected {name} in bytes, or as text such as 64K or 1M:1G, found {given!r}.")
        return given if self.kind is OptionKind.SIZE else tuple(sorted(set(sizes)))


def _of_type(kind: type | tuple[type, ...], name: str, given: Any, words: str) -> Any:
    if not isinstance(given, kind):
        raise InputError(f"expected {name} to be {words}, found {given!r}.")
    return given


def _items(name: str, given: Any, words: str) -> list[Any]:
    if not isinstance(given, Iterable):
        raise InputError(f"expected {name} to be {words}, found {given!r}.")
    return list(given)


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A format."""

    summary: str  # What the file is and who reads it
    make: Callable[..., Exported]  # Makes it; takes a plan (or a topology), and options by keyword
    options: Mapping[str, ExportOption]  # Options by keyword
    takes_plan: bool = False  # It is made of a plan; otherwise of a topology, for which a plan stands as well
    read: Callable[[str], Plan | Program] = read_plan  # Reads a file that stands for the plan
    tells_stages: bool = False  # `make` takes `on_stage`, since it may take long


def _option(kind: OptionKind) -> Callable[..., ExportOption]:
    """Options of a kind, from what they mean and, where they have such, their words."""
    return lambda words, *choices: ExportOption(kind=kind, help=words, choices=choices)


_text, _choice, _number = map(_option, (OptionKind.TEXT, OptionKind.CHOICE, OptionKind.NUMBER))

_flag, _names, _file = map(_option, (OptionKind.FLAG, OptionKind.NAMES, OptionKind.FILE))

_model = _option(OptionKind.MODEL)

_size, _sizes, _range = map(_option, (OptionKind.SIZE, OptionKind.SIZES, OptionKind.SIZE_RANGE))

_STAGING = "per cent of the message up to which staging memory costs no credits"
_PUT_SIGNAL: Mapping[str, ExportOption] = {
    "pieces": _number("pieces of every chunk, which follow each other (default: as few as keep the rate)"),
    "lanes": _number("communicators, each with a stream, that go side by side (default: 1)"),
    "groups": _number("groups of lanes, each with trees of its own (default: 1)"),
    "size": _size("size of the message for which pieces, lanes and groups are chosen, by simulation"),
    "signals": _number("signal indices of a peer; more than 1 needs NCCL 2.31 (default: 1)"),
    "graphs": _flag("may be captured as a CUDA graph: yes (default) or no"),
    "staging": _number(f"{_STAGING} (default: 25, with size 4 MiB or more)"),
    "name": _text("label of the program"),
}
"""Options of programs of puts and signals."""

FORMATS: Mapping[str, ExportFormat] = MappingProxyType(
    {
        "msccl-xml": ExportFormat(
            summary="Algorithm file for RCCL, msccl-executor-nccl or microsoft/msccl.",
            make=export_msccl_xml,
            takes_plan=True,
            read=read_msccl_source,
            tells_stages=True,
            options={
                "target": _text(f"runtime that reads it: {', '.join(TARGETS)} (needed)"),
                "channels": _number("most channels (default: 8, or what fits)"),
                "instances": _number("copies side by side, each on its part of the data (default: 1)"),
                "protocol": _text(
                    f"one of {', '.join(PROTOCOLS)} (default: Simple, or LL for what Simple cannot do)"
                ),
                "trees": _text(
                    "plan again with so many trees per root, or plan: those of the plan (default: those of the "
                    "plan if they fit and divide the sizes, else the best that do)"
                ),
                "size": _range(
                    "messages that are to use it, as LOW:HIGH, a list or all (default: where it is faster than "
                    "the library, by simulation)"
                ),
                "model": _model("model of time of that simulation (default: nccl-2.30)"),
                "name": _text("label of the algorithm"),
                "in_place": _flag("for calls in place (default: for both where one file can serve both)"),
                "out_of_place": _flag("for calls out of place"),
            },
        ),
        "mscclpp-json": ExportFormat(
            summary="Execution plan for MSCCL++: puts, signals and waits.",
            make=export_mscclpp_json,
            takes_plan=True,
            options={
                "instances": _number("every chunk is cut into so many, side by side (default: 1)"),
                "size": _range("messages that are to use it, as LOW:HIGH or all (default: all)"),
                "name": _text("label of the plan"),
                "in_place": _flag("for calls in place (default: wherever the collective can be)"),
                "out_of_place": _flag("for calls out of place"),
                "blocks": _number("most thread blocks of a GPU (default: 64)"),
                "threads": _number("threads of a thread block, a multiple of 32 up to 1024 (default: 1024)"),
            },
        ),
        "chakra": ExportFormat(
            summary="Execution traces of a message, one file per rank, for ASTRA-sim.",
            make=export_chakra,
            takes_plan=True,
            options={
                "size": _size("size of the message (needed)"),
                "name": _text("first part of the names of the files (default: trace)"),
            },
        ),
        "put-signal": ExportFormat(
            summary="Program of puts and signals for engines over stock NCCL and RCCL.",
            make=export_put_signal,
            takes_plan=True,
            tells_stages=True,
            options=_PUT_SIGNAL,
        ),
        "python": ExportFormat(
            summary="Script that runs the put/signal program over nccl4py or torch, or on NumPy arrays.",
            make=export_put_signal_script,
            takes_plan=True,
            tells_stages=True,
            options=_PUT_SIGNAL,
        ),
        "cuda": ExportFormat(
            summary="Kernel for NCCL's device API that holds the put/signal programs of all ranks.",
            make=export_put_signal_kernel,
            takes_plan=True,
            tells_stages=True,
            options={
                "pieces": _number("pieces of every chunk, which follow each other in a block (default: 1)"),
                "staging": _number(f"{_STAGING} (default: 25)"),
                "name": _PUT_SIGNAL["name"],
            },
        ),
        "rank-order": ExportFormat(
            summary="Order of ranks for Slurm, Open MPI, MPICH or torchrun that crosses few links.",
            make=export_rank_order,
            options={
                "launcher": _choice("who reads it", *LAUNCHERS),
                "groups": _text(
                    "axes such as tp=8,dp=4 (fastest first; tp=8:16 has weight 16) or lists such as 0-3;4-7",
                ),
                "whole_hosts": _flag("ranks of a host are consecutive: yes (default) or no"),
                "names": _names("names of the hosts, in the order of the topology"),
                "cores": _number("cores that a rank of Open MPI is bound to (default 1)"),
            },
        ),
        "nccl-tuner": ExportFormat(
            summary="Tuner table (CSV) by which NCCL, RCCL or NCCLX pick algorithm, protocol and channels.",
            make=export_nccl_tuner,
            options={
                "dialect": _choice("who reads it", *Dialect),
                "sizes": _sizes("sizes at which the cost model is asked, such as 1K:4G"),
                "times": _file("CSV of measured times, instead of the cost model"),
                "model": _text("inputs of the cost model, such as channels=16,bw_inter=24"),
                "shapes": _names(
                    "further communicators by equal bytes per rank: NODESxRANKS such as 4x32, or any (ncclx)",
                ),
                "library": _text("version of the library that was measured, such as 2.27.7"),
            },
        ),
        "ompi-rules": ExportFormat(
            summary="Rules file by which Open MPI picks an algorithm for ranks and sizes, from simulated times.",
            make=export_ompi_rules,
            tells_stages=True,
            options={
                "collectives": _names("names such as all_reduce,broadcast"),
                "sizes": _sizes("sizes at which algorithms are compared, such as 1K:16M"),
                "form": _choice("form of the file (default: that of the version)", *FORMS),
                "version": _text(
                    "version of Open MPI that is to read it (default: the installed one, else 5.0)"
                ),
                "model": _model("model of time of the comparison (default: ideal)"),
                "jobs": _number("processes that compare (default: one per core)"),
            },
        ),
        "nccl-topo-xml": ExportFormat(
            summary="Correction of a machine's topology for NCCL_TOPO_FILE: rails, planes and speeds of its ports.",
            make=export_nccl_topo_xml,
            options={
                "base": _file("dump of the machine, as NCCL_TOPO_DUMP_FILE writes it (needed)"),
                "host": _text("name of that machine in the topology (default: the first)"),
                "rails": _names("topology (default), none, or port:rail such as mlx5_0:0,mlx5_1:1"),
                "planes": _names("port:plane such as mlx5_0:0,mlx5_1:1"),
                "speeds": _flag("ports get the speeds of the topology: yes or no (default)"),
                "nvlinks": _flag("keep the GPU links of the dump: yes (default), or no to detect them"),
            },
        ),
        "nccl-collnet": ExportFormat(
            summary="Trees between nodes for Coppice's network plugin of NCCL (COPPICE_COLLNET_FOREST).",
            make=export_nccl_collnet,
            takes_plan=True,
            options={},
        ),
        "rccl-trees": ExportFormat(
            summary="RCCL_TREES: the trees of an all-reduce plan on one box, for RCCL as it is shipped.",
            takes_plan=True,
            make=export_rccl_trees,
            options={
                "trees": _number("number of trees, 1 .. 63 (default: what loses least)"),
            },
        ),
        "rccl-rings": ExportFormat(
            summary="NCCL_RINGS: rings for what a plan performs on one box, for RCCL as it is shipped.",
            takes_plan=True,
            make=export_rccl_rings,
            options={
                "rings": _number("number of rings, 1 .. 64 (default: what loses least)"),
            },
        ),
    }
)
"""Formats by name, those first whose options have flags of their own on the command line."""


@checked
def export(
    source: Any,
    format: str,  # noqa: A002 (what everybody calls it)
    path: str | os.PathLike[str] | None = None,
    *,
    on_stage: Callable[[str], None] | None = None,
    **options: Any,
) -> Exported:
    """Make a file for a runtime, a library or a launcher, and write it if a path is given.

    Args:
        source: A plan, or anything with a ``plan``; for some formats a topology; or the name of a plan file, and for
            ``msccl-xml`` also of an MSCCL XML file of another target (``-`` is standard input).
        format: One of :data:`FORMATS`.
        path: File to write, a folder for ``chakra``; None only returns what would be written.
        on_stage: Called with what goes on.
        options: Options of the format, as values or as text: numbers, names, sizes in bytes or such as ``"1M:1G"``.
            None stands for an option that is not given.

    Returns:
        The text, or the files, and notes for the user.

    Raises:
        CheckError: If the plan does not fit the runtime; with the limit, by how much, and the next step.
        InputError: If there is no such format, the source is not what it is made of, an option is unknown or cannot be
            used, or the file cannot be written.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> export(preset("fat-tree", leaves=2, gpus_per_leaf=1), "rank-order", launcher="mpich").text.splitlines()
        ['host0:1', 'host1:1']
    """
    if format not in FORMATS:
        raise InputError(f"there is no export {format!r}: {suggestion(format, FORMATS)}")
    chosen = FORMATS[format]
    values: dict[str, Any] = {}
    for name, given in options.items():
        if name not in chosen.options:
            raise InputError(f"{format} has no option {name!r}: {suggestion(name, chosen.options)}")
        if given is not None:
            values[name] = chosen.options[name].value(name, given)
    if chosen.tells_stages and on_stage is not None:
        values["on_stage"] = on_stage
    made = chosen.make(_source(source, format, chosen), **values)
    if path is not None:
        made.write(path)
    return made


def is_plan_file(path: str) -> bool:
    """Whether a name is that of a plan file, rather than of a topology; standard input is none."""
    if path == "-" or not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            start = file.read(4096).lstrip()
    except OSError:
        return False
    return start.startswith(b"{") and f'"{FORMAT}"'.encode() in start


def _source(source: Any, name: str, chosen: ExportFormat) -> Plan | Topology | Program:
    """What the format is made of."""
    found = getattr(source, "plan", source)
    if isinstance(found, str | os.PathLike):
        found = chosen.read(os.fspath(found))
    if isinstance(found, Plan):
        return found if chosen.takes_plan else found.topology
    if isinstance(found, Program) and chosen.read is not read_plan:
        return found
    if isinstance(found, Topology) and not chosen.takes_plan:
        return found
    wanted = "a plan" if chosen.takes_plan else "a topology or a plan"
    raise InputError(
        f"{name} is made of {wanted}, found {type(source).__name__}: make one with `coppice plan ... -o plan.json`."
    )
