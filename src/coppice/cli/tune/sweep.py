"""`coppice tune sweep`: measure every algorithm of the installed library with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.options.measuring import SteppedSizes
from coppice.cli.output.kept import keeps
from coppice.cli.output.render import print_json, print_lines
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import option
from coppice.options.names import TUNED
from coppice.options.shared import JsonOption, LauncherWordsOption, OutputOption
from coppice.text import parse_sizes

_MPI, _NCCL = ("open-mpi", "mpich"), ("nccl", "rccl")
_ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--ranks", "--lab"), _MPI),
    "--segments": ("open-mpi",),
    "--launcher": _MPI + _NCCL,
    **dict.fromkeys(("--tests", "--gpus", "--channels", "--plugin", "--ll128"), _NCCL),
    **dict.fromkeys(("--algorithm", "--topology"), ("put-signal",)),
}
"""Libraries that an option is for."""


@with_options("library output collective first last factor listed as_json ...")
def sweep(
    stepped: SteppedSizes,
    *,
    library: Annotated[str, option("The library.", "--library", "-l", metavar="|".join(TUNED))],
    output: OutputOption = None,
    collective: Annotated[
        str,
        option("Collectives such as all_reduce,broadcast.", "--collective", "-c", metavar="LIST"),
    ] = "all_reduce",
    rounds: Annotated[
        int,
        option("Rounds; each interleaves every choice with the default.", "-n", "--rounds", ge=1),
    ] = 15,
    ranks: Annotated[int, option("Number of ranks.", metavar="N")] = 0,
    lab: Annotated[str | None, option("Run in this lab.", metavar="NAME")] = None,
    launcher: Annotated[
        str | None,
        option("mpirun, mpiexec or srun [default: on PATH].", metavar="PATH"),
    ] = None,
    options: LauncherWordsOption = None,
    segments: Annotated[str, option("Sizes of segments to try with Open MPI.", metavar="LIST")] = "64K",
    tests: Annotated[Path | None, option("Directory of nccl-tests or rccl-tests.", metavar="DIR")] = None,
    gpus: Annotated[int, option("GPUs of each process of nccl-tests.", "-g", "--gpus", ge=1)] = 1,
    channels: Annotated[str, option("Numbers of channels of NCCL to try as well.", metavar="LIST")] = "",
    plugin: Annotated[
        str | None,
        option(
            "Choose by a table and this plugin (`coppice tune plugin build`) instead of NCCL_ALGO and "
            "NCCL_PROTO; builtin for RCCL 2.28.3 and later.",
            metavar="FILE",
        ),
    ] = None,
    ll128: Annotated[bool, option("Force LL128 too: it may corrupt data where NCCL has it off.")] = False,
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
    timeout: Annotated[
        float | None,
        option("Time limit in seconds; with nccl-tests, for each run.", ge=1),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every algorithm that can be forced in the library, interleaved with its default, at every size.

    The lines go to -o as soon as a size is done. Started again, the sweep goes on where it was stopped, by Ctrl-C or
    by anything else. The library itself is not changed.

    \b
    Examples:
      coppice tune sweep --library open-mpi --collective all_reduce -b 1K -e 64M --ranks 8 -o runs.jsonl
      coppice tune sweep --library mpich --collective all_gather,broadcast --lab lab -o runs.jsonl
      torchrun --nproc-per-node 8 -m coppice tune sweep --library put-signal --topology dgx-h100 -o runs.jsonl
      coppice tune sweep --library nccl --tests ~/nccl-tests/build --launcher "mpirun -np 16 -npernode 8" -o runs.jsonl
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.sweep import sweep_mpi
    from coppice.tuning.worker import Spec

    if library not in TUNED:
        raise InputError(f"expected --library {', '.join(TUNED)}, found {library!r}.")
    given: dict[str, object] = {
        "--ranks": ranks != 0,
        "--lab": lab,
        "--segments": segments != "64K",
        "--launcher": launcher,
    }
    given |= {
        "--tests": tests,
        "--gpus": gpus != 1,
        "--channels": channels,
        "--plugin": plugin,
        "--ll128": ll128,
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
                gpus=gpus,
                channels=parse_sizes(channels, option="--channels") if channels else (),
                plugin=plugin,
                ll128=ll128,
            ),
            say=lambda line: typer.echo(line, err=as_json),
            timeout_s=timeout,
        )
        _tell_end(output, library, as_json=as_json)
        return
    if library == "put-signal":
        from coppice.run.engines.launched import engine_name, open_engine
        from coppice.run.engines.put_signal.engine import PutSignalEngine
        from coppice.tuning.put_signal_sweep import sweep_put_signal

        end = open_engine(engine_name(library), timeout_s=timeout or 300.0)
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
                timeout_s=timeout or 300.0,
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
        segments=list(parse_sizes(segments, option="--segments")) if segments else [],
    )
    sweep_mpi(spec, ranks=ranks, lab=lab, launcher=launcher, options=options or (), timeout_s=timeout)
    _tell_end(output, library, as_json=as_json)


def _tell_end(output: Path, library: str, *, as_json: bool) -> None:
    from coppice.tuning.table import undo_line

    undo = undo_line(library)
    if as_json:
        print_json({"library": library, "output": str(output), "undo": undo})
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
