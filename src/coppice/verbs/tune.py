"""Tune an installed library by measurements: sweep, fit, report, export, check; the verbs of `coppice tune`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.collectives import Collective
from coppice.options import ANYTHING, AnySizes, argument, option, parse_settings
from coppice.options.calls import verb
from coppice.options.shared import (
    USUAL_SIZES,
    BoxesOption,
    LauncherOption,
    LauncherWordsOption,
    NumRanksOption,
    RoundsOption,
    SeedOption,
    SetOption,
    TimeLimitOption,
)

if TYPE_CHECKING:
    from coppice.export.formats import Exported
    from coppice.topology.model import Topology
    from coppice.tuning.fit import Fit
    from coppice.tuning.records import TimedRun
    from coppice.tuning.sweep import Checked

    AnyPath = str | os.PathLike[str]
else:
    AnyPath = Any

_RunFiles = Annotated[
    AnyPath | Sequence[AnyPath], ANYTHING, argument("Files of `coppice tune sweep`, or one of them.")
]
_TableFile = Annotated[AnyPath, ANYTHING, argument("Table of `coppice tune fit`.")]

_Written = Annotated[
    AnyPath | None,
    ANYTHING,
    argument("File to write: the table of the rules (CSV), or the page; None: none."),
]


class FitOptions(Struct, frozen=True, kw_only=True):
    """Options of fitting rules."""

    topology: Annotated[
        str | None, option("Preset or file, for the distance from the bound.", metavar="TOPOLOGY")
    ] = None
    boxes: BoxesOption = None
    settings: SetOption = None
    alpha: Annotated[
        float, option("Probability with which a choice that makes no difference may get a rule.")
    ] = 0.01
    least_gain: Annotated[float, option("Least relative gain of a rule.")] = 0.03
    extend: Annotated[bool, option("Rules reach to sizes beyond the measured ones.")] = False
    seed: SeedOption = 0

    def fit(
        self, runs: Sequence[TimedRun], loaded: Callable[..., Topology] | None = None
    ) -> tuple[Fit, Topology | None]:
        """Fit measurements, with bounds where a topology is named; return that topology too."""
        from coppice.topology.load import load
        from coppice.tuning.fit import fit_runs
        from coppice.tuning.report import bounds_us

        network = None
        if self.topology is not None and loaded is not None:
            network = loaded(self.topology, boxes=self.boxes, settings=self.settings)
        elif self.topology is not None:
            parameters: dict[str, Any] = dict(parse_settings(self.settings or ()))
            network = load(self.topology, boxes=self.boxes, **parameters)
        found = fit_runs(
            runs,
            bounds_us=None if network is None else bounds_us(runs, network),
            alpha=self.alpha,
            least_gain=self.least_gain,
            extend=self.extend,
            seed=self.seed,
        )
        return found, network


class FitCall(FitOptions, frozen=True):
    """A fit of rules to measurements."""

    runs: _RunFiles
    output: _Written = None


class LogsCall(FitOptions, frozen=True):
    """A fit of rules to logs."""

    files: Annotated[
        Sequence[AnyPath], ANYTHING, argument("Output of nccl-tests, logs of NCCL, the inspector.")
    ]
    library: Annotated[str, argument("One of: nccl, rccl.")] = "nccl"
    output: _Written = None
    collective: Annotated[
        Collective | str | None, option("The collective that was run, where a file does not say it.")
    ] = None


class ExportCall(Struct, frozen=True):
    """A table, and the form that a library reads."""

    table: _TableFile
    to: Annotated[str, argument("Form of its library, such as nccl-tuner or ompi-rules.")]


class CheckCall(Struct, frozen=True):
    """A table, and measurements with its rules."""

    table: _TableFile
    runs: _RunFiles
    tolerance: Annotated[float, option("Relative loss that is no failure.", ge=0)] = 0.03


class SweepOptions(Struct, frozen=True, kw_only=True):
    """A sweep of an MPI library."""

    sizes: Annotated[AnySizes, option("Message sizes M.")] = USUAL_SIZES
    rounds: RoundsOption = 15
    num_ranks: NumRanksOption = None
    lab: Annotated[str | None, option("Run in this lab.", metavar="NAME")] = None
    launcher: LauncherOption = None
    launcher_options: LauncherWordsOption = None
    time_limit: TimeLimitOption = None


class SweepCall(SweepOptions, frozen=True):
    """A sweep, of what and to which file."""

    library: Annotated[str, argument("One of: open-mpi, mpich.")]
    output: Annotated[AnyPath, ANYTHING, argument("File of the measurements; a later sweep goes on there.")]
    collectives: Annotated[
        str | Sequence[Collective | str], ANYTHING, argument("Collectives to measure.")
    ] = "all_reduce"


@verb(SweepCall)
def sweep(asked: SweepCall) -> None:
    """Measure every algorithm of an MPI library with its default; nccl-tests and puts are swept by the command."""
    from coppice.text import sizes_of
    from coppice.tuning.sweep import sweep_mpi
    from coppice.tuning.worker import Spec

    names = asked.collectives.split(",") if isinstance(asked.collectives, str) else asked.collectives
    spec = Spec(
        library=asked.library,
        collectives=[Collective.named(name) for name in names],
        sizes=list(sizes_of(asked.sizes)),
        rounds=asked.rounds,
        output=os.fspath(asked.output),
    )
    sweep_mpi(
        spec,
        ranks=asked.num_ranks or 0,
        lab=asked.lab,
        launcher=asked.launcher,
        options=asked.launcher_options or (),
        timeout_s=asked.time_limit,
    )


@verb(FitCall)
def fit(asked: FitCall) -> Fit:
    """Find the fastest choice of every shape and size, and keep it where it beats the default significantly.

    Raises:
        InputError: If a file cannot be read or written.

    Examples:
        >>> import coppice
        >>> found = coppice.tune.fit("examples/tuning-runs.jsonl", topology="examples/tuning-lab.json")
        >>> found.library
        'open-mpi'
    """
    return _with_table(*asked.fit(_read(asked.runs)), asked.output)


def _with_table(found: Fit, network: Topology | None, output: AnyPath | None) -> Fit:
    if output is not None:
        write_table(found, network, output)
    return found


def write_table(found: Fit, network: Topology | None, output: AnyPath) -> None:
    """Write the rules of a fit as a table.

    Args:
        network: The topology that its bounds are of.
        output: File to write.
    """
    from coppice.files import write_atomically
    from coppice.tuning.table import RuleTable, encode_table

    words = "" if network is None else f"{network.name} {network.sha256[:16]}"
    write_atomically(output, encode_table(RuleTable.of(found, topology=words)).encode())


@verb(LogsCall)
def from_logs(asked: LogsCall) -> Fit:
    """Fit rules to nccl-tests output and NCCL logs, for the default and with NCCL_ALGO and NCCL_PROTO set."""
    from coppice.logs.reading import read_logs
    from coppice.tuning.logged import runs_of_logs

    logs = read_logs([Path(each) for each in asked.files], collective=asked.collective)
    runs, _ = runs_of_logs(logs, library=asked.library)
    return _with_table(*asked.fit(runs), asked.output)


@verb(FitCall)
def report(asked: FitCall) -> str:
    """Page (HTML) with heat maps of gain and of distance from the bound, the rules, and every comparison.

    Examples:
        >>> import coppice
        >>> coppice.tune.report("examples/tuning-runs.jsonl").lower().startswith("<!doctype html>")
        True
    """
    from coppice.files import write_atomically
    from coppice.tuning.report import tuning_html

    found, network = asked.fit(_read(asked.runs))
    page = tuning_html(found, topology="" if network is None else network.name)
    if asked.output is not None:
        write_atomically(asked.output, page.encode())
    return page


@verb(ExportCall)
def export(asked: ExportCall) -> Exported:
    """Write the rules of a table in the form of their library; its notes explain their use, and how to undo it."""
    from coppice.tuning.exports import export_table
    from coppice.tuning.table import read_table

    return export_table(read_table(asked.table), asked.to)


@verb(CheckCall)
def check(asked: CheckCall) -> tuple[Checked, ...]:
    """Compare measurements with the rules of a table with the default, size by size."""
    from coppice.tuning.sweep import check_runs
    from coppice.tuning.table import read_table

    return check_runs(read_table(asked.table), _read(asked.runs), tolerance=asked.tolerance)


def _read(files: AnyPath | Sequence[AnyPath]) -> tuple[TimedRun, ...]:
    from coppice.tuning.records import read_runs

    return read_runs([files] if isinstance(files, str | os.PathLike) else files)
