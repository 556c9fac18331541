"""`coppice doctor`: check whether a runtime will load a file, and use it at given sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_json, print_lines, print_note
from coppice.export.formats import MSCCL_RUNTIMES
from coppice.options import argument, option, parse_settings
from coppice.options.names import JOB_FACTS, TUNING_FILES
from coppice.options.shared import JsonOption, NumRanksOption, SizesOption
from coppice.text import parse_sizes


@with_options()
def doctor(
    file: Annotated[
        str,
        argument(
            "MSCCL XML, MSCCL++ JSON, put/signal program or tuning file; - is standard input.", metavar="FILE"
        ),
    ],
    *,
    target: Annotated[
        str,
        option(
            f"Runtime that is to read MSCCL XML ({', '.join(MSCCL_RUNTIMES)}), mscclpp, nccl for a put/signal "
            f"program, or kind of a tuning file ({', '.join(TUNING_FILES)}).",
            metavar="NAME",
        ),
    ],
    ranks: NumRanksOption = None,
    sizes: SizesOption | None = None,
    options: Annotated[
        list[str] | None,
        option(
            "Tuning files, put/signal programs: what is known of the job, out of "
            f"{', '.join(JOB_FACTS)}; may be repeated.",
            "--fact",
            metavar="KEY=VALUE",
            was=["--option", "--nccl version={}", "--cuda-max-connections max_connections={}"],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a runtime will load a file and use it, and if not, print the reason and the remedy.

    Every rule of the target's loader is checked, those that it does not check itself included. Whether the
    algorithm is right is another question: `coppice import` verifies it. Exit code 1 if there is an error, or a
    size at which the file would not be used.

    Tuning files are tuner tables, graphs, topologies, rings and trees that NCCL and RCCL read as they are shipped,
    rules of Open MPI and variables of MPICH; libraries hardly check them. The more is told of the job, the more rules
    can be decided; the rest are listed. With --size, tables of tuners and rules of Open MPI tell what holds at each.

    \b
    Examples:
      coppice doctor algo.xml --target rccl
      coppice doctor algo.xml --target rccl --num-ranks 16 --size 1M:1G
      coppice doctor plan.mscclpp.json --target mscclpp --num-ranks 8 --size 1M:1G
      coppice doctor plan.psp.json --target nccl --fact version=2.30 --fact max_connections=1
      coppice doctor table.csv --target nccl-tuner --fact dialect=rccl-builtin --fact log=nccl.log
      coppice doctor table.csv --target nccl-tuner --fact shapes=4x32,1x8 --size 1K:4G
      coppice doctor rules.conf --target ompi-rules --fact shapes=4x32,1x8 --fact version=5.0.11
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.doctor import JobFacts, diagnose

    told = parse_settings(options or (), option="--fact")
    facts = JobFacts.parse(told) if target in (*TUNING_FILES, "nccl") else None
    for warning in facts.warnings if facts else ():
        print_note(f"warning: {warning}")
    diagnosis = diagnose(
        Path(file),
        target,
        ranks=ranks,
        sizes=() if sizes is None else parse_sizes(sizes, option="--size"),
        options=facts or told,
        file=None if file == "-" else file,
    )
    if as_json:
        print_json("doctor" if diagnosis.runtime else "doctor-tuning", diagnosis.record())
    else:
        print_lines(diagnosis.lines())
    diagnosis.require_ok()
