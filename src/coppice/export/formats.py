"""The table of exports: what each format is, its options, where its writer is, and what comes of it, loading none.

A format's options are the fields of its record, and the first sentence of the record is what the format is. Writers
take the record; the command line, the check of arguments and the documentation are made from it.
"""

from __future__ import annotations

import enum
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.display import Brief
from coppice.errors import CheckError, InputError
from coppice.files import write_atomically
from coppice.options import Names, Option, OptionKind, Size, SizeRange, Sizes, option, options_of

if TYPE_CHECKING:
    from coppice.fitting.size_range import ModelChoice
    from coppice.program.dialects.thread_blocks.program import Program
    from coppice.schedule.plan import Plan


@dataclass(frozen=True, kw_only=True, repr=False)
class Exported(Brief):
    """A file for another tool, or a folder of files."""

    text: str = ""  # The whole file; lines end with LF. Empty where there is a folder.
    # The files of a folder by name, each made in pieces when it is called for; empty where there is one file
    files: Mapping[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    # Sentences for the user: what was gained or lost, how to use the file, what it cannot say
    notes: tuple[str, ...] = ()
    suffix: str = ".txt"  # Usual end of its name, such as `.xml`
    summary: str = ""  # What a folder holds, in a few words
    # What kind of file it is to :mod:`coppice.doctor`, empty where that judges no such files
    read_as: str = ""
    known: Mapping[str, str] = field(default_factory=dict)  # What is known of its readers, as that takes it
    # Of a set of plans: what was made of each range of sizes, by the name of its file in the folder
    parts: Mapping[str, Exported] = field(default_factory=dict)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the file, or the files into a folder that is made if it is not there; each is whole or as it was.

        Args:
            path: The file, or the folder.

        Returns:
            What was written.

        Raises:
            InputError: If it cannot be written.
        """
        target = Path(path)
        if not self.files:
            write_atomically(target, self.text.encode())
            return [target]
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make the directory {target} ({error.strerror or error}): choose another place."
            ) from None
        for name, pieces in self.files.items():
            write_atomically(target / name, pieces())
        return [target / name for name in self.files]


@dataclass(frozen=True, kw_only=True)
class SizeSpan:
    """Sizes that are to use a file of a set of plans."""

    first_bytes: int  # Smallest M
    last_bytes: int | None  # Largest M, None for no limit
    sizes: tuple[int, ...]  # Sizes in between that the set was made for; chunks should divide them
    protocol: str | None = None  # Protocol in which it is to run; None: as the format has it


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A limit of a runtime that a program exceeds."""

    limit: str  # What is limited, in words
    found: int  # How much the program needs
    allowed: int  # How much there is
    where: str  # Where most of it is
    advice: str = ""  # What to do; empty where the caller knows better

    @property
    def sentence(self) -> str:
        """The limit, by how much and where it is exceeded, and the next step if there is one."""
        if self.allowed:
            over = f"{self.allowed:,} are allowed, {self.found - self.allowed:,} too many"
        else:
            over = "none are allowed"
        words = f"{self.found:,} {self.limit} where {over} ({self.where})"
        return f"{words}: {self.advice}" if self.advice else words


def require_none(found: Sequence[Excess], reader: str, *, advice: str = "") -> None:
    """Refuse a program that exceeds limits.

    Args:
        found: The limits, the most telling first.
        advice: What to do, where the first of them does not say it.
    """
    if found:
        more = f" ({len(found) - 1} further limits are passed as well)" if len(found) > 1 else ""
        raise CheckError(f"the program does not fit {reader}: {found[0].sentence}{more}{advice}")


MSCCL_RUNTIMES = ("rccl", "azure-executor", "msccl")
"""Runtimes that read MSCCL XML, as :data:`coppice.export.msccl.targets.TARGETS` describes them."""

PROTOCOLS = ("Simple", "LL", "LL128")
"""Protocols of NCCL that an MSCCL XML file may name."""

LAUNCHERS = ("json", "hosts", "slurm", "open-mpi", "mpich", "torchrun")
"""Who reads an order of ranks."""

OMPI_FORMS = ("classic", "json")
"""Forms of rules files of Open MPI."""


class Dialect(enum.StrEnum):
    """Dialects of tuner tables, by the library that reads them."""

    NVIDIA_EXAMPLE = "nvidia-example"
    RCCL_BUILTIN = "rccl-builtin"
    NCCLX = "ncclx"
    COPPICE = "coppice"


def _model(option: Option, given: Any) -> Any:
    """A model of time; the room that knows its type is loaded where it is no text."""
    if not isinstance(given, str | os.PathLike):
        from coppice.fitting.size_range import MODEL_KINDS

        if not isinstance(given, MODEL_KINDS):
            raise InputError(
                f"expected {option.name} to be a model of time, its name or its file, found {given!r}."
            )
    return given


MODEL = OptionKind("NAME|FILE", _model)
"""A model of time, or its name or file."""

if TYPE_CHECKING:
    _Model = ModelChoice
else:
    _Model = Annotated[Any, MODEL]

_IN_PLACE = "for calls in place (default: for both where one file can serve both)"
_STAGING = "per cent of the message up to which staging memory costs no credits"


class MscclXmlOptions(Struct, frozen=True, kw_only=True):
    """Algorithm file for RCCL, msccl-executor-nccl or microsoft/msccl."""

    target: Annotated[
        str | None,
        option(
            f"runtime that reads it: {', '.join(MSCCL_RUNTIMES)} (needed)", metavar="|".join(MSCCL_RUNTIMES)
        ),
    ] = None
    channels: Annotated[int | None, option("most channels (default: 8, or what fits)", ge=1)] = None
    instances: Annotated[
        int | None, option("copies side by side, each on its part of the data (default: 1)", ge=1)
    ] = None
    protocol: Annotated[
        str | None,
        option(
            f"one of {', '.join(PROTOCOLS)} (default: Simple, or LL for what Simple cannot do)",
            metavar="|".join(PROTOCOLS),
        ),
    ] = None
    trees: Annotated[
        int | str | None,
        option(
            "plan again with so many trees per root, or plan: those of the plan (default: those of the plan if they "
            "fit and divide the sizes, else the best that do)",
            metavar="N|plan",
        ),
    ] = None
    size: Annotated[
        SizeRange | None,
        option(
            "messages that are to use it, as LOW:HIGH, a list or all (default: where it is faster than the library, "
            "by simulation)"
        ),
    ] = None
    model: Annotated[_Model | None, option("model of time of that simulation (default: nccl-2.30)")] = None
    name: Annotated[str | None, option("label of the algorithm")] = None
    in_place: Annotated[bool, option(_IN_PLACE)] = False
    out_of_place: Annotated[bool, option("for calls out of place")] = False


class MscclppJsonOptions(Struct, frozen=True, kw_only=True):
    """Execution plan for MSCCL++: puts, signals and waits."""

    instances: Annotated[
        int | None, option("every chunk is cut into so many, side by side (default: 1)", ge=1)
    ] = None
    size: Annotated[
        SizeRange | None, option("messages that are to use it, as LOW:HIGH or all (default: all)")
    ] = None
    name: Annotated[str | None, option("label of the plan")] = None
    in_place: Annotated[bool, option("for calls in place (default: wherever the collective can be)")] = False
    out_of_place: Annotated[bool, option("for calls out of place")] = False
    blocks: Annotated[int | None, option("most thread blocks of a GPU (default: 64)")] = None
    threads: Annotated[
        int, option("threads of a thread block, a multiple of 32 up to 1024 (default: 1024)")
    ] = 1024


class ChakraOptions(Struct, frozen=True, kw_only=True):
    """Execution traces of a message, one file per rank, for ASTRA-sim."""

    size: Annotated[Size | None, option("size of the message (needed)")] = None
    name: Annotated[str, option("first part of the names of the files (default: trace)")] = "trace"


class PutSignalOptions(Struct, frozen=True, kw_only=True):
    """Program of puts and signals for engines over stock NCCL and RCCL."""

    pieces: Annotated[
        int | None,
        option("pieces of every chunk, which follow each other (default: as few as keep the rate)"),
    ] = None
    communicators: Annotated[
        int | None, option("communicators, each with a stream, that run concurrently (default: 1)")
    ] = None
    groups: Annotated[
        int | None, option("groups of communicators, each with trees of its own (default: 1)")
    ] = None
    size: Annotated[
        Size | None,
        option("size of the message for which pieces, communicators and groups are chosen, by simulation"),
    ] = None
    signals: Annotated[int, option("signal indices of a peer; more than 1 needs NCCL 2.31 (default: 1)")] = 1
    graphs: Annotated[bool, option("may be captured as a CUDA graph: yes (default) or no")] = True
    staging: Annotated[int | None, option(f"{_STAGING} (default: 25, with size 4 MiB or more)")] = None
    name: Annotated[str | None, option("label of the program")] = None


class PutSignalScriptOptions(PutSignalOptions, frozen=True, kw_only=True):
    """Script that runs the put/signal program over nccl4py or torch, or on NumPy arrays."""


class PutSignalKernelOptions(Struct, frozen=True, kw_only=True):
    """Kernel for NCCL's device API that holds the put/signal programs of all ranks."""

    pieces: Annotated[
        int, option("pieces of every chunk, which follow each other in a block (default: 1)")
    ] = 1
    staging: Annotated[int | None, option(f"{_STAGING} (default: 25)")] = None
    name: Annotated[str | None, option("label of the program")] = None


class RankOrderOptions(Struct, frozen=True, kw_only=True):
    """Order of ranks for Slurm, Open MPI, MPICH or torchrun that crosses few links."""

    launcher: Annotated[str, option("who reads it", choices=LAUNCHERS)] = "json"
    groups: Annotated[
        str | None,
        option("axes such as tp=8,dp=4 (fastest first; tp=8:16 has weight 16) or lists such as 0-3;4-7"),
    ] = None
    whole_hosts: Annotated[bool, option("ranks of a host are consecutive: yes (default) or no")] = True
    names: Annotated[Names | None, option("names of the hosts, in the order of the topology")] = None
    cores: Annotated[int, option("cores that a rank of Open MPI is bound to (default 1)")] = 1


class NcclTunerOptions(Struct, frozen=True, kw_only=True):
    """Tuner table (CSV) by which NCCL, RCCL or NCCLX pick algorithm, protocol and channels."""

    dialect: Annotated[str, option("who reads it", choices=Dialect)] = Dialect.COPPICE
    sizes: Annotated[Sizes, option("sizes at which the cost model is asked, such as 1K:4G")] = tuple(
        1 << power for power in range(10, 33)
    )
    times: Annotated[Path | None, option("CSV of measured times, instead of the cost model")] = None
    model: Annotated[str | None, option("inputs of the cost model, such as channels=16,bw_inter=24")] = None
    # They get the rules of all-gather and reduce-scatter for as many bytes per rank, which nobody measured
    shapes: Annotated[
        Names,
        option("further communicators by equal bytes per rank: NODESxRANKS such as 4x32, or any (ncclx)"),
    ] = ()
    # For the head of the table; PAT is left out before 2.23
    library: Annotated[str | None, option("version of the library that was measured, such as 2.27.7")] = None


class OmpiRulesOptions(Struct, frozen=True, kw_only=True):
    """Rules file by which Open MPI picks an algorithm for ranks and sizes, from simulated times."""

    collectives: Annotated[Names | None, option("names such as all_reduce,broadcast")] = None
    sizes: Annotated[Sizes, option("sizes at which algorithms are compared, such as 1K:16M")] = tuple(
        1 << power for power in range(6, 28, 3)
    )
    form: Annotated[
        str | None, option("form of the file (default: that of the version)", choices=OMPI_FORMS)
    ] = None
    version: Annotated[
        str | None,
        option("version of Open MPI that is to read it (default: the installed one, else 5.0)"),
    ] = None
    model: Annotated[_Model | None, option("model of time of the comparison (default: alpha-beta)")] = None
    jobs: Annotated[int | None, option("processes that compare (default: one per core)")] = None


class NcclTopoXmlOptions(Struct, frozen=True, kw_only=True):
    """Correction of a machine's topology for NCCL_TOPO_FILE: rails, planes and speeds of its ports."""

    base: Annotated[Path | None, option("dump of the machine, as NCCL_TOPO_DUMP_FILE writes it (needed)")] = (
        None
    )
    host: Annotated[str | None, option("name of that machine in the topology (default: the first)")] = None
    rails: Annotated[Names, option("topology (default), none, or port:rail such as mlx5_0:0,mlx5_1:1")] = (
        "topology",
    )
    planes: Annotated[Names, option("port:plane such as mlx5_0:0,mlx5_1:1")] = ()
    speeds: Annotated[bool, option("ports get the speeds of the topology: yes or no (default)")] = False
    # Without any, NCCL detects them
    nvlinks: Annotated[
        bool, option("keep the GPU links of the dump: yes (default), or no to detect them")
    ] = True


class NcclCollnetOptions(Struct, frozen=True, kw_only=True):
    """Trees between nodes for Coppice's network plugin of NCCL (COPPICE_COLLNET_FOREST)."""


class RcclTreesOptions(Struct, frozen=True, kw_only=True):
    """RCCL_TREES: the trees of an all-reduce plan on one box, for RCCL as it is shipped."""

    trees: Annotated[int | None, option("number of trees, 1 .. 63 (default: what loses least)")] = None


class RcclRingsOptions(Struct, frozen=True, kw_only=True):
    """NCCL_RINGS: rings for what a plan performs on one box, for RCCL as it is shipped."""

    rings: Annotated[int | None, option("number of rings, 1 .. 64 (default: what loses least)")] = None


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A format."""

    record: type[Struct]  # Its options
    # Module and name of its writer, which takes a plan (or a topology) and the record
    writer: str
    takes_plan: bool = False  # It is made of a plan; otherwise of a topology, for which a plan stands as well
    takes_programs: bool = False  # A program that was read from a file stands for the plan
    # Module and name of what reads a file that stands for the plan
    reader: str = "coppice.schedule.files.plan_file:read_plan"
    tells_stages: bool = False  # The writer takes `on_stage`, since it may take long
    # Of a set of plans it makes a file for each range, and takes that as `span`
    takes_span: bool = False
    takes_protocol: bool = False  # A file is for one protocol: ranges are parted where it changes
    # Module and name of what makes one file of a set of plans, and of the record
    set_writer: str = ""

    @property
    def summary(self) -> str:
        """What the file is and who reads it."""
        return inspect.cleandoc(self.record.__doc__ or "").partition("\n")[0]

    @property
    def options(self) -> Mapping[str, Option]:
        """Options by keyword."""
        return options_of(self.record)

    def write(self, *args: Any, **kwargs: Any) -> Exported:
        """What the writer makes; it is loaded now."""
        made: Exported = _named(self.writer)(*args, **kwargs)
        return made

    def write_set(self, *args: Any) -> Exported:
        """What is made of a set of plans as one file; the writer is loaded now."""
        made: Exported = _named(self.set_writer)(*args)
        return made

    def read(self, path: str) -> Plan | Program:
        """What a file that stands for the plan holds."""
        found: Plan | Program = _named(self.reader)(path)
        return found


def _named(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


FORMATS: Mapping[str, ExportFormat] = MappingProxyType(
    {
        "msccl-xml": ExportFormat(
            record=MscclXmlOptions,
            writer="coppice.export.msccl.export:export_msccl_xml",
            takes_plan=True,
            takes_protocol=True,
            takes_span=True,
            takes_programs=True,
            reader="coppice.export.msccl.export:read_msccl_source",
            tells_stages=True,
        ),
        "mscclpp-json": ExportFormat(
            record=MscclppJsonOptions,
            writer="coppice.export.mscclpp.program:export_mscclpp_json",
            takes_plan=True,
            takes_span=True,
        ),
        "chakra": ExportFormat(
            record=ChakraOptions, writer="coppice.export.chakra.traces:export_chakra", takes_plan=True
        ),
        "put-signal": ExportFormat(
            record=PutSignalOptions,
            writer="coppice.export.put_signal.program:export_put_signal",
            takes_plan=True,
            takes_span=True,
            tells_stages=True,
        ),
        "python": ExportFormat(
            record=PutSignalScriptOptions,
            writer="coppice.export.put_signal.program:export_put_signal_script",
            takes_plan=True,
            takes_span=True,
            tells_stages=True,
        ),
        "cuda": ExportFormat(
            record=PutSignalKernelOptions,
            writer="coppice.export.put_signal.kernel:export_put_signal_kernel",
            takes_plan=True,
            tells_stages=True,
        ),
        "rank-order": ExportFormat(
            record=RankOrderOptions, writer="coppice.export.rank_order:export_rank_order"
        ),
        "nccl-tuner": ExportFormat(
            record=NcclTunerOptions, writer="coppice.export.nccl.tuner:export_nccl_tuner"
        ),
        "ompi-rules": ExportFormat(
            record=OmpiRulesOptions,
            writer="coppice.export.open_mpi.writer:export_ompi_rules",
            set_writer="coppice.export.open_mpi.of_set:export_ompi_rules_of_set",
            tells_stages=True,
        ),
        "nccl-topo-xml": ExportFormat(
            record=NcclTopoXmlOptions, writer="coppice.export.nccl.topo_xml:export_nccl_topo_xml"
        ),
        "nccl-collnet": ExportFormat(
            record=NcclCollnetOptions,
            writer="coppice.export.nccl.collnet:export_nccl_collnet",
            takes_plan=True,
        ),
        "rccl-trees": ExportFormat(
            record=RcclTreesOptions, writer="coppice.export.rccl:export_rccl_trees", takes_plan=True
        ),
        "rccl-rings": ExportFormat(
            record=RcclRingsOptions, writer="coppice.export.rccl:export_rccl_rings", takes_plan=True
        ),
    }
)
"""Formats by name, those first whose options have flags of their own on the command line."""
