"""Time and memory from a plan to a verified MSCCL XML file, and from the file back to a verdict.

    python benchmarks/programs.py [--quick] [--only PATTERN] [--write]

First whole commands are measured, from their start to their end: `coppice export PLAN --to msccl-xml` (which lowers the
plan, verifies the program and writes the file) and `coppice verify FILE` (which reads and verifies it). Both run on one
core: `cpu` is what they took of it, `wall` is more where others had work for the machine at the same time. Goals hold
for `cpu`. Then the stages one by one, for programs of 8 channels and whatever limits a runtime has; an all-reduce of
1,024 ranks has more steps than any loader reads.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from coppice.export.msccl.targets import TARGETS
from coppice.export.msccl.writer import encode_msccl_xml
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.files.plan_file import read_plan
from measure import peak_gib
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
WRITE_GOAL_S = 10.0
"""Most seconds from a plan of 1,024 ranks to the file, for an all-gather with one tree per root."""
VERIFY_GOAL_S = 60.0
"""Most seconds to read and verify that file."""


@dataclass(frozen=True)
class Case:
    """A plan with one tree per root, and a target."""

    topology: str
    options: tuple[str, ...]
    ranks: int
    collective: str
    target: str

    @property
    def name(self) -> str:
        """For the table and for ``--only``."""
        return f"{self.topology} {self.collective} {self.target}"


def _cases() -> list[Case]:
    found = []
    for ranks, torus in ((256, "16x16"), (1024, "32x32")):
        shapes = (
            ("ring", ("--set", f"gpus={ranks}")),
            (f"torus {torus}", ("--set", f"dims={torus}")),
            (f"dgx-a100 x {ranks // 8}", ("--boxes", str(ranks // 8))),
        )
        for topology, options in shapes:
            asked = [("all_gather", target) for target in ("msccl", "rccl", "azure-executor")]
            asked.append(("reduce_scatter", "msccl"))
            found += [Case(topology, options, ranks, *each) for each in asked]
    return found


@dataclass(frozen=True)
class Run:
    """How a command went."""

    code: int
    out: str
    wall_s: float
    cpu_s: float


STAGES = (
    "topology",
    "ranks",
    "collective",
    "messages",
    "steps",
    "lower",
    "verify",
    "text",
    "us each",
    "GiB",
)


def run(*arguments: str) -> Run:
    """Run a `coppice` command and measure it."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "coppice", *arguments], check=False, capture_output=True, text=True
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(done.returncode, done.stdout + done.stderr, wall, cpu)


def row(case: Case, folder: Path) -> tuple[str, ...]:
    """One line of the table."""
    plan, xml = folder / "plan.json", folder / "algo.xml"
    preset = case.topology.split(" ", maxsplit=1)[0]
    made = run(
        "plan", preset, *case.options, "--collective", case.collective, "--trees", "1", "-o", str(plan)
    )
    if made.code:
        raise SystemExit(made.out)
    written = run("export", str(plan), "--to", "msccl-xml", "--target", case.target, "-o", str(xml))
    head = (case.topology, f"{case.ranks:,}", case.collective, case.target)
    if written.code:
        reason = re.sub(r"\s+", " ", written.out.strip().splitlines()[-1])
        return (*head, "-", "-", number(written.wall_s), number(written.cpu_s), "-", "-", reason[:90])
    read = run("verify", str(xml))
    if read.code:
        raise SystemExit(read.out)
    steps = re.search(r"([\d,]+) steps", read.out)
    size = xml.stat().st_size / 2**20
    xml.unlink()
    goal = ""
    if case.ranks == 1024 and case.collective == "all_gather":
        parts = (
            ("write", written.cpu_s, WRITE_GOAL_S),
            ("verify", read.cpu_s, VERIFY_GOAL_S),
        )
        goal = "; ".join(
            f"{'ok' if found <= most else 'MISS'} {name} <= {most:.0f} s" for name, found, most in parts
        )
    return (
        *head,
        f"{int(steps[1].replace(',', '')):,}" if steps else "-",
        f"{size:.0f}",
        *(number(each) for each in (written.wall_s, written.cpu_s, read.wall_s, read.cpu_s)),
        goal,
    )


def measure(plan_file: str) -> dict[str, float]:
    """Processor seconds of the stages of one plan."""
    plan = read_plan(plan_file)
    marks = [time.process_time()]
    program = lower_to_program(plan.body, channels=8, max_count=71)
    marks.append(time.process_time())
    verify_program(program).require_ok()
    marks.append(time.process_time())
    size = sum(map(len, encode_msccl_xml(program, TARGETS["msccl"])))
    marks.append(time.process_time())
    stages = zip(("lower", "verify", "text"), marks[:-1], marks[1:], strict=True)
    found = {name: end - begin for name, begin, end in stages}
    messages = verify_program(program).checked["messages"]
    return found | {"messages": messages, "steps": program.num_steps, "mib": size / 2**20, "gib": peak_gib()}


def stage_row(case: Case, folder: Path) -> tuple[str, ...]:
    """One line of the second table."""
    plan = str(folder / "plan.json")
    preset = case.topology.split(" ", maxsplit=1)[0]
    made = run("plan", preset, *case.options, "--collective", case.collective, "--trees", "1", "-o", plan)
    if made.code:
        raise SystemExit(made.out)
    command = [sys.executable, __file__, "--measure", plan]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    each = 1e6 * (found["lower"] + found["verify"] + found["text"]) / found["messages"]
    return (
        case.topology,
        f"{case.ranks:,}",
        case.collective,
        f"{found['messages']:,.0f}",
        f"{found['steps']:,.0f}",
        *(number(found[name]) for name in ("lower", "verify", "text")),
        number(each),
        f"{found['gib']:.2f}",
    )


def _machine() -> str:
    """Processor and system."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def main() -> None:
    """Measure all cases and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="256 ranks only")
    parser.add_argument("--only", default="*", help="cases that match this pattern")
    parser.add_argument("--write", action="store_true", help="rewrite the table in programs.md")
    parser.add_argument("--measure", metavar="PLAN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    cases = [
        case
        for case in _cases()
        if (case.ranks <= 256 or not options.quick) and fnmatch.fnmatch(case.name, options.only)
    ]
    header = (
        "topology",
        "ranks",
        "collective",
        "target",
        "steps",
        "MiB",
        "write: wall s",
        "cpu s",
        "verify: wall s",
        "cpu s",
        "goals",
    )
    table = Table(title="Plans with one tree per root as MSCCL XML", header=header)
    stages = Table(title="Stages, in processor seconds", header=STAGES)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            table.rows.append(row(case, Path(folder)))
        for case in cases:
            if case.target != "msccl":
                continue
            collectives = [case.collective]
            if case.collective == "reduce_scatter":
                collectives.append("all_reduce")
            for collective in collectives:
                stages.rows.append(stage_row(replace(case, collective=collective), Path(folder)))
    table.notes.append(
        "`write`: `coppice export`, from a plan to a verified program and its file. `verify`: `coppice verify` of that "
        "file. Where a plan does not fit its target, the limit stands in the last column."
    )
    stages.notes.append("`us each`: all three stages, microseconds of a processor per message.")
    table.show(Console())
    stages.show(Console())
    if options.write:
        machine = f"`python benchmarks/programs.py` on {_machine()}.\n\n"
        body = f"{machine}{table.markdown()}\n{stages.markdown()}"
        replace_generated(HERE / "programs.md", "programs.py", body)


if __name__ == "__main__":
    main()
