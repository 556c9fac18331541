"""`coppice advise`: what to change today, for the library that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions, print_warnings
from coppice.cli.output import print_json, print_lines, progress_bar
from coppice.cli.terminal import terminal_width
from coppice.options.shared import JsonOption
from coppice.verbs.advising import LOGS, AdviseOptions, advised_options, job_on, read_reports


@with_options(
    "topology library collectives sizes logs job parallel global_batch write model jobs boxes rates settings ranks "
    "as_json"
)
def advise(
    where: TopologyOptions,
    options: AdviseOptions,
    *,
    logs: Annotated[list[Path] | None, *LOGS] = None,
    as_json: JsonOption = False,
) -> None:
    """Advise on what to change today: what the library picks, what it could pick best, what that brings, how to try it.

    NCCL is judged by its own cost model over the channels that its search finds on this cluster; Open MPI and MPICH by
    simulation of all algorithms that they can be told to use. With --log, what was measured comes first, and variables
    that take something from the library are found. That nothing is to be changed is the usual answer on a healthy
    cluster.

    \b
    Examples:
      coppice advise dgx-h100 --boxes 4
      coppice advise topo.xml --log nccl.log
      coppice advise dgx-a100 --boxes 2 --log all_reduce.log --log forced-ring.log
      coppice advise dgx-h100 --boxes 2 --log nccl.log --job gpt-7.5b --parallel tp=8,dp=2 --global-batch 32
      coppice advise cluster.json --library open-mpi --collective all_reduce,broadcast --sizes 1K:4M
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.advice.advise import advised
    from coppice.advice.page import page_lines

    chosen = advised_options(options)
    told = read_reports(logs or [], chosen["collectives"])
    print_warnings(told["logs"])
    topology = where.load()
    with progress_bar("simulating") as on_progress:
        found = advised(
            topology,
            job=job_on(topology, options),
            on_progress=on_progress,
            **told,
            **chosen,
        )
    if options.write is not None:
        found = found.written(options.write)
    if as_json:
        print_json("advise", found.record())
    else:
        print_lines(page_lines(found, max_width=terminal_width()))
