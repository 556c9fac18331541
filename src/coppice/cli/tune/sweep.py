"""`coppice tune sweep`: measure every algorithm of the installed library with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.options.measuring import SteppedSizes
from coppice.cli.output import print_json, print_lines
from coppice.cli.terminal import keeps
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import option
from coppice.options.names import TUNED
from coppice.options.shared import (
    JsonOption,
    LauncherOption,
    LauncherWordsOption,
    NumRanksOption,
    OutputOption,
    RoundsOption,
    TimeLimitOption,
)
from coppice.text import parse_sizes

_MPI, _NCCL = ("open-mpi", "mpich"), ("nccl", "rccl")
_ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--num-ranks", "--lab"), _MPI),
    "--try segments": ("open-mpi",),
    "--launcher": _MPI + _NCCL,
    **dict.fromkeys(("--tests", "--try gpus", "--try channels", "--plugin", "--try ll128"), _NCCL),
    **dict.fromkeys(("--algorithm", "--topology"), ("put-signal",)),
}
"""Libraries that an option is for."""


class SweepExtras(Struct, frozen=True, kw_only=True):
    """What a sweep tries of one library, beyond its algorithms and protocols."""

    segments: Annotated[str, option("sizes of segments, Open MPI: 64K")] = "64K"
    channels: Annotated[str, option("numbers of channels, NCCL")] = ""
    ll128: Annotated[bool, option("yes: force LL128 too, NCCL, which may corrupt data where it is off")] = (
        False
    )
    gpus: Annotated[int, option("GPUs of each process of nccl-tests: 1", "--gpus", "-g", ge=1)] = 1


@with_options("library output collective first last factor listed as_json ...")
def sweep(
    stepped: SteppedSizes,
    *,
    library: Annotated[str, option(f"One of: {', '.join(TUNED)}.", "--library", "-l", metavar="NAME")],
    output: OutputOption = None,
    collective: Annotated[
        str,
        option("Collectives such as all_reduce,broadcast.", "--collective", "-c", metavar="LIST"),
    ] = "all_reduce",
    rounds: RoundsOption = 15,
    ranks: NumRanksOption = None,
    lab: Annotated[str | None, option("Run in this lab.", metavar="NAME")] = None,
    launcher: LauncherOption = None,
    options: LauncherWordsOption = None,
    extra: Annotated[SweepExtras, option("What else to try", "--try", was=["--option"])],
    tests: Annotated[Path | None, option("Directory of nccl-tests or rccl-tests.", metavar="DIR")] = None,
    plugin: Annotated[
        str | None,
        option(
            "Choose by a table and this plugin (`coppice tune plugin build`) instead of NCCL_ALGO and "
            "NCCL_PROTO; builtin for RCCL 2.28.3 and later.",
            metavar="FILE",
        ),
    ] = None,
    algorithms: Annotated[
        str,
        option(
            "Put/signal algorithms (forest, names of `coppice algorithms`), each against the library's own.",
            "--algorithm",
            "-a",
            metavar="LIST",
        ),
    ] = "forest,ring",
    topology: Annotated[
        str | None,
        option("What put-signal plans for [default: one switch between all ranks].", metavar="TOPOLOGY"),
    ] = None,
    time_limit: TimeLimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every algorithm that can be forced in the library, interleaved with its default, at every size.

    The lines go to -o as soon as a size is done. Started again, the sweep goes on where it was stopped, by Ctrl-C or
    by anything else. The library itself is not changed.

    \b
    Examples:
      coppice tune sweep --library open-mpi --collective all_reduce -b 1K -e 64M --num-ranks 8 -o runs.jsonl
      coppice tune sweep --library mpich --collective all_gather,broadcast --lab lab -o runs.jsonl
      torchrun --nproc-per-node 8 -m coppice tune sweep --library put-signal --topology dgx-h100 -o runs.jsonl
      coppice tune sweep --library nccl --tests ~/nccl-tests/build --launcher "mpirun -np 16 -npernode 8" -o runs.jsonl
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.sweep import sweep_mpi
    from coppice.tuning.worker import Spec

    if library not in TUNED:
        raise InputError(f"expected --library {', '.join(TUNED)}, found {library!r}.")
    given: dict[str, object] = {
        "--num-ranks": ranks is not None,
        "--lab": lab,
        "--try segments": extra.segments != "64K",
        "--launcher": launcher,
    }
    given |= {
        "--tests": tests,
        "--try gpus": extra.gpus != 1,
        "--try channels": extra.channels,
        "--plugin": plugin,
        "--try ll128": extra.ll128,
    }
    given |= {"--algorithm": algorithms != "forest,ring", "--topology": topology}
    for flag, is_given in given.items():
        if is_given and library not in _ONLY[flag]:
            others = " and ".join(_ONLY[flag])
            raise InputError(
                f"expected options for {library}, found {flag}, which is for {others}: leave it out."
            )
    if output is None or str(output) == "-":
        raise InputError(
            "expected a file for the measurements, found none: give `-o runs.jsonl`, where a later run goes on."
        )
    keeps(output, heads=0)
    if library in ("nccl", "rccl"):
        if tests is None:
            raise InputError(f"{library} is measured by nccl-tests: name their directory with --tests DIR.")
        from coppice.tuning.nccl_sweep import NcclSpec, sweep_nccl

        first, last, factor = stepped.steps(least=1)
        sweep_nccl(
            NcclSpec(
                library=library,
                collectives=tuple(chosen_collectives(collective)),
                first_bytes=first,
                last_bytes=last,
                factor=factor,
                rounds=rounds,
                output=output,
                programs=tests,
                launcher=launcher or "",
                gpus=extra.gpus,
                channels=parse_sizes(extra.channels, option="channels") if extra.channels else (),
                plugin=plugin,
                ll128=extra.ll128,
            ),
            say=lambda line: typer.echo(line, err=as_json),
            timeout_s=time_limit,
        )
        _tell_end(output, library, as_json=as_json)
        return
    if library == "put-signal":
        from coppice.run.engines.launched import engine_name, open_engine
        from coppice.run.engines.put_signal.engine import PutSignalEngine
        from coppice.tuning.put_signal_sweep import sweep_put_signal

        end = open_engine(engine_name(library), timeout_s=time_limit or 300.0)
        assert isinstance(end, PutSignalEngine)  # what it opens by that name
        try:
            sweep_put_signal(
                end,
                load_topology(topology)
                if topology
                else load_topology("star", settings=[f"gpus={end.ranks}"]),
                collectives=chosen_collectives(collective),
                sizes=stepped.sizes(least=4),
                algorithms=[name.strip() for name in algorithms.split(",") if name.strip()],
                rounds=rounds,
                output=output,
                say=lambda line: typer.echo(line, err=as_json),
                timeout_s=time_limit or 300.0,
            )
        finally:
            end.close()
        if end.rank == 0:
            _tell_end(output, library, as_json=as_json)
        return
    spec = Spec(
        library=library,
        collectives=chosen_collectives(collective),
        sizes=stepped.sizes(least=1),
        rounds=rounds,
        output=str(output),
        segments=list(parse_sizes(extra.segments, option="segments")) if extra.segments else [],
    )
    sweep_mpi(spec, ranks=ranks or 0, lab=lab, launcher=launcher, options=options or (), timeout_s=time_limit)
    _tell_end(output, library, as_json=as_json)


def _tell_end(output: Path, library: str, *, as_json: bool) -> None:
    from coppice.tuning.table import undo_line

    undo = undo_line(library)
    if as_json:
        print_json("tune-sweep", {"library": library, "output": str(output), "undo": undo})
        return
    print_lines(
        [
            f"written to {output}: fit rules with `coppice tune fit {output} -o table.csv`",
            f"{undo}, once rules are in use; the sweep itself changed nothing",
        ]
    )


def chosen_collectives(text: str) -> list[Collective]:
    """Parse a list of collectives.

    Raises:
        InputError: If a name is unknown.

    Examples:
        >>> chosen_collectives("AllReduce,broadcast,all-reduce")
        [<Collective.ALL_REDUCE: 'all_reduce'>, <Collective.BROADCAST: 'broadcast'>]
    """
    named: dict[Collective, None] = {}
    for part in [part.strip() for part in text.split(",") if part.strip()]:
        try:
            named[Collective(part)] = None
        except ValueError:
            raise InputError(
                f"expected collectives out of {', '.join(Collective)}, found {part!r}."
            ) from None
    if not named:
        raise InputError(f"expected collectives out of {', '.join(Collective)}, found none.")
    return list(named)
