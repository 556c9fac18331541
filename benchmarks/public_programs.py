"""The public TE-CCL and SyCCL programs beside the plan of each size: verified and simulated as ours are.

    python benchmarks/public_programs.py --programs DIR [--only PATTERN] [--epochs N] [--write]

DIR holds what is to be run; nothing of it is kept:

* ``DIR/te-ccl``, a checkout of https://github.com/microsoft/TE-CCL. It is run as ``python -m teccl solve`` with the
  Python of this process, or with ``DIR/python`` where there is one, which needs Gurobi (`pip install gurobipy
  argcomplete`; without a licence Gurobi solves small models only, which takes few epochs: ``--epochs``).
* ``DIR/syccl``, a program that is called as ``syccl CLUSTER.json COLLECTIVE BYTES OUT.xml`` and writes MSCCL XML: a
  script of the user's around https://github.com/aliyun/syccl, which has its own files for networks.

What is missing in DIR is left out. The exit code is 1 where a program's schedule is faster than ours.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.planned import plan_for
from coppice.export.importing import import_plan
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.text import short_size, sizes_of
from coppice.topology import preset
from coppice.topology.readers.document import write_topology
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
SIZES = sizes_of("64K,1M,64M")
MODELS = ("ideal", "nccl-2.30")
_LIMIT_S = 600
_FLOW = re.compile(r"Chunk (\d+) from (\d+) traveled over (\d+)->(\d+) in epoch (\d+)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, what is done on it, and how TE-CCL names the network."""

    name: str
    collective: Collective
    te_ccl: str | None = None
    boxes: int = 1

    @property
    def problem(self) -> Problem:
        """The same for us."""
        parameters: dict[str, Any] = {"boxes": self.boxes} if self.boxes > 1 else {}
        return Problem(preset(self.name, **parameters), self.collective)

    @property
    def title(self) -> str:
        """How the table names it."""
        return f"{self.name}{'' if self.boxes == 1 else f' x {self.boxes}'} {self.collective}"


CASES = (
    Case(name="dgx-1v", collective=Collective.ALL_GATHER, te_ccl="DGX1"),
    Case(name="dgx-a100", collective=Collective.ALL_GATHER, boxes=2),
    Case(name="dgx-a100", collective=Collective.REDUCE_SCATTER, boxes=2),
    Case(name="dgx-h100", collective=Collective.ALL_GATHER, boxes=4),
)


class FailedError(Exception):
    """A program ended without a schedule."""


def of_te_ccl(place: Path, python: str, epochs: int, case: Case, size_bytes: int) -> Schedule | None:
    """TE-CCL's schedule with one chunk of each rank, in epochs of the slowest link."""
    if case.te_ccl is None:
        return None
    problem = case.problem
    with tempfile.TemporaryDirectory() as folder:
        asked, written = Path(folder) / "input.json", Path(folder) / "schedule.json"
        asked.write_text(
            json.dumps(
                {
                    "TopologyParams": {
                        "name": case.te_ccl,
                        "chassis": case.boxes,
                        "chunk_size": size_bytes / problem.topology.num_ranks / 1e9,
                        "alpha": [0, 0],
                    },
                    "GurobiParams": {"time_limit": _LIMIT_S / 3600, "output_flag": 0, "log_to_console": 0},
                    "InstanceParams": {
                        "collective": 1,
                        "num_chunks": 1,
                        "epoch_type": 2,
                        "num_epochs": epochs,
                        "objective_type": 3,
                        "solution_method": 1,
                        "schedule_output_file": str(written),
                    },
                }
            )
        )
        paths = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
        ran = _ran([python, "-m", "teccl", "solve", "--input_args", str(asked)], PYTHONPATH=paths)
        if not written.exists():
            raise FailedError(ran)
        return schedule_of(json.loads(written.read_text())["7-Flows"], problem)


def schedule_of(flows: list[str], problem: Problem) -> Schedule:
    """An all-gather from TE-CCL's list of what goes over which link in which epoch.

    Examples:
        >>> pair = Problem(preset("star", gpus=2), "all_gather")
        >>> found = schedule_of([f"Chunk 0 from {a} traveled over {a}->{1 - a} in epoch 0" for a in (0, 1)], pair)
        >>> found.num_transfers, verify_schedule(found).ok
        (2, True)
    """
    read = [_FLOW.fullmatch(each) for each in flows]
    if not all(read) or not flows:
        raise FailedError(
            f"expected flows such as 'Chunk 0 from 2 traveled over 2->0 in epoch 0', found {flows[:1]}"
        )
    columns = [[int(value) for value in each.groups()] for each in read if each is not None]
    chunks = 1 + max(column[0] for column in columns)
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective)
    moves = Moves(case, blocks(case, chunks))
    for part, origin, source, target, epoch in sorted(columns, key=lambda each: each[4]):
        moves.add(epoch, source, target, origin * chunks + part)
    return routed(moves.schedule())


def of_syccl(program: Path, case: Case, size_bytes: int) -> Schedule:
    """What a program writes as MSCCL XML."""
    problem = case.problem
    with tempfile.TemporaryDirectory() as folder:
        cluster, written = Path(folder) / "cluster.json", Path(folder) / "algorithm.xml"
        write_topology(problem.topology, cluster)
        ran = _ran([str(program), str(cluster), problem.collective.value, str(size_bytes), str(written)])
        if not written.exists():
            raise FailedError(ran)
        body = import_plan(written, topology=problem.topology).plan.body
        assert isinstance(body, Schedule)
        return body


def _ran(command: list[str], **environment: str) -> str:
    """Run a program; its last line."""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * _LIMIT_S,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {2 * _LIMIT_S} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}, no output"


def programs(place: Path, epochs: int) -> dict[str, Callable[[Case, int], Schedule | None]]:
    """Programs that the directory has."""
    found: dict[str, Callable[[Case, int], Schedule | None]] = {}
    own = place / "python"
    if (place / "te-ccl").is_dir():
        python = str(own) if own.exists() else sys.executable
        found["TE-CCL"] = partial(of_te_ccl, place / "te-ccl", python, epochs)
    if (place / "syccl").is_file():
        found["SyCCL"] = partial(of_syccl, place / "syccl")
    return found


def rows(
    found: Mapping[str, Callable[[Case, int], Schedule | None]], only: str
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Rows of the table, and whether a program is ahead."""
    for case in CASES:
        for program, make in found.items():
            if not fnmatch.fnmatch(f"{program} {case.title}", only):
                continue
            for size in SIZES:
                begun = time.perf_counter()
                head = (program, case.title, short_size(size))
                try:
                    schedule = make(case, size)
                except FailedError as error:
                    yield (*head, "", "", "", "", "", str(error)[:90]), False
                    continue
                if schedule is None:
                    continue
                spent = time.perf_counter() - begun
                verify_schedule(schedule, relay_gpus=True).require_ok()
                for name in MODELS:
                    model = model_of(name)
                    theirs = fastest(schedule, size, model=model, keep_hops=False).time_us
                    begun = time.perf_counter()
                    planned = plan_for(case.problem, size, model=model)
                    ours = planned.preferred.time_us[size]
                    yield (
                        (
                            *head,
                            name,
                            number(theirs / 1e6, unit="s"),
                            number(ours / 1e6, unit="s"),
                            f"{theirs / ours - 1:+.1%}",
                            f"{number(spent, unit='s')}, {number(time.perf_counter() - begun, unit='s')}",
                            "",
                        ),
                        theirs < ours * (1 - 1e-9),
                    )


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--programs", type=Path, required=True, help="a directory with te-ccl, syccl, or both"
    )
    parser.add_argument("--only", default="*", help="programs and cases whose name matches")
    parser.add_argument("--epochs", type=int, default=4, help="of TE-CCL; -1: as many as it estimates")
    parser.add_argument("--write", action="store_true", help="rewrite the table of public_programs.md")
    options = parser.parse_args(arguments)
    found = programs(options.programs, options.epochs)
    if not found:
        parser.error(f"expected te-ccl or syccl in {options.programs}, found neither.")
    table = Table(
        title="Public programs beside the plan of the size",
        header=("program", "case", "size", "model", "theirs", "ours", "longer", "took, ours", "no schedule"),
    )
    ahead = 0
    for row, faster in rows(found, options.only):
        table.rows.append(row)
        ahead += faster
        Console(stderr=True).print(*row, highlight=False)
    table.notes.append(
        f"Programs that were faster than the plan of the size: {ahead} of {len(table.rows)} rows."
    )
    table.show(Console())
    if options.write:
        replace_generated(HERE / "public_programs.md", "public_programs.py", table.markdown())
    return int(ahead > 0)


if __name__ == "__main__":
    sys.exit(main())
