"""`coppice bench`: benchmark algorithms against the library's own collective on launched processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.measuring import SteppedSizes
from coppice.cli.output import json_line
from coppice.errors import CheckError
from coppice.files import write_atomically
from coppice.options import argument, option
from coppice.verbs.bench import BenchOptions

_TITLES = (
    "size",
    "count",
    "type",
    "redop",
    "root",
    "algorithm",
    "time",
    "min",
    "max",
    "algbw",
    "busbw",
    "#wrong",
)
_UNITS = ("(B)", "(elements)", "", "", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "")
_WIDTHS = (12, 12, 9, 7, 5, 24, 10, 10, 10, 8, 8, 7)


@with_options("collective first last factor listed options ...")
def bench(
    stepped: SteppedSizes,
    options: BenchOptions,
    *,
    collective: Annotated[
        str | None,
        argument("all_reduce, all_gather, reduce_scatter, broadcast, ...", metavar="[COLLECTIVE]"),
    ] = None,
    output: Annotated[Path | None, option("Write the rows as JSON lines.", metavar="FILE")] = None,
    as_json: Annotated[bool, option("Print JSON lines instead of the table.", "--json")] = False,
) -> None:
    """Benchmark algorithms and the library's own collective in one run, interleaved round by round.

    Started by torchrun, mpirun or `coppice lab run`; rank 0 prints a table like that of nccl-tests. Exit code 1 if
    any element is wrong, or no algorithm can run.

    \b
    Examples:
      torchrun --nproc-per-node 8 -m coppice bench all_reduce -b 1K -e 256M -f 2 --algorithm forest,ring,native
      mpirun -np 8 coppice bench all_gather --engine mpi --topology dgx-h100
      coppice lab run -- coppice bench all_gather -b 16M -e 16M
      coppice lab run -- coppice bench --together plans/jobs.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.run.engines.put_signal.engine import PutSignalEngine

    what, sizes = options.checked(collective), stepped.sizes()
    chosen = engine_name(options.engine)
    end = open_engine(chosen, timeout_s=options.timeout)
    wrong, rates = 0, []
    lines: list[str] = []
    try:
        network = options.network(end.ranks)
        talk = end.rank == 0
        if talk and not as_json:
            of_plan = None if options.given is None else f"that of {options.given}"
            source = options.spec or of_plan or "one switch between all ranks, none was given"
            moved = f"{chosen} on {end.device.name}" if isinstance(end, PutSignalEngine) else chosen
            of = f"--together {options.together}" if what is None else what
            _say(f"# coppice bench {of} on {end.ranks} ranks, engine {moved}, topology {source}")
            _say(
                f"# median, least and most of {options.rounds} interleaved rounds of the slowest rank's time"
            )
            _say("#" + _line(_TITLES)[1:])
            _say("#" + _line(_UNITS)[1:])
        for row in options.rows(end, network, what, sizes):
            wrong += row.wrong
            if not row.refusal:
                rates.append(row.busbw_gb_per_s)
            if not talk:
                continue
            record = json_line("bench", row.record())
            lines.append(record)
            if as_json:
                _say(record)
            elif row.refusal:
                _say(f"# {row.size_bytes} {row.algorithm}: {row.refusal}")
            else:
                _say(
                    _line(
                        (
                            *(row.size_bytes, row.count, row.dtype, row.op, row.root, row.algorithm),
                            *(f"{each:.1f}" for each in (row.time_us, row.fastest_us, row.slowest_us)),
                            *(f"{each:.3f}" for each in (row.algbw_gb_per_s, row.busbw_gb_per_s)),
                            row.wrong,
                        )
                    )
                )
        if talk and rates and not as_json:  # the lines that scripts look for in the output of nccl-tests
            _say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
            _say(f"# Avg bus bandwidth    : {sum(rates) / len(rates):g}")
            _say("#")
        if talk and output is not None:
            write_atomically(output, "".join(f"{line}\n" for line in lines).encode())
    finally:
        end.close()
    if wrong:
        raise CheckError(
            f"expected right results on all ranks, found {wrong} wrong elements: see the column #wrong."
        )
    if not rates:
        found = ", ".join(options.names)
        raise CheckError(
            f"expected an algorithm that performs {what} here, found none of {found}: the lines above say why."
        )


def _line(cells: tuple[object, ...]) -> str:
    return " ".join(f"{cell!s:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
