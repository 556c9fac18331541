"""Programs over chunks compiled: steps, thread blocks and channels, beside those of MSCCLang's own compiler.

    python benchmarks/language.py [--only PATTERN] [--reference DIR] [--write]

The examples of examples/language are compiled as they are. With --reference, a checkout of
https://github.com/microsoft/msccl-tools, its own examples are compiled by its compiler, and their operations, one for
one and without their hints, by this one. Both files are read back and verified by `coppice`'s verifier.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from coppice.errors import CoppiceError
from coppice.export.importing import read_program
from coppice.export.registry import export
from coppice.language import ChunkProgram, compile_program, per_rank_program
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import verify_program
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples" / "language"
OURS = (
    ("all_gather_ring", {"ranks": 16}),
    ("all_gather_recursive_doubling", {"ranks": 16}),
    ("all_gather_all_pairs", {"ranks": 8}),
    ("all_reduce_ring", {"ranks": 16}),
    ("all_reduce_all_pairs", {"ranks": 8}),
    ("all_reduce_one_step", {"ranks": 8}),
    ("all_reduce_binomial_tree", {"ranks": 16}),
    ("all_reduce_halving_doubling", {"ranks": 16}),
    ("all_reduce_hierarchical", {"ranks": 16, "boxes": 2}),
    ("all_to_all_two_step", {"ranks": 32, "boxes": 4}),
    ("all_to_all_three_step", {"ranks": 32, "boxes": 4}),
    ("all_to_all_all_pairs", {"ranks": 16}),
)
REFERENCE = (
    "allgather_ring.py 8 1 1",
    "allgather_recursive_doubling.py 8 1",
    "allgather_allpairs.py 8 1",
    "simple/allreduce_ring.py 8 1",
    "simple/allreduce_ring.py 64 1",
    "allreduce_a100_ring.py 8 1 8",
    "allreduce_a100_allpairs.py 8 2",
    "allreduce_1step.py 8 1",
    "allreduce_binomial_tree.py 8 2 1",
    "allreduce_recursive_doubling_halving.py 16 1",
    "allreduce_a100_recursive_doubling_halving.py 2 1",
    "hierarchical_allreduce.py 8 2 1",
    "hierarchical_allreduce.py 8 2 1 --schedule manual",
    "alltoall_a100_two_step.py 4 8",
    "alltoall_a100_three_step.py 4 8 1",
    "alltoall_allpairs.py 16 1",
)
HEADER = ("steps", "longest block", "thread blocks", "channels", "compile")
NAMES = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all"}


def figures(program: Program, seconds: float) -> tuple[str, ...]:
    """What a program takes."""
    return (
        f"{program.num_steps:,}",
        str(program.most_steps),
        str(program.most_blocks),
        str(program.num_channels),
        number(seconds, unit="s"),
    )


def own_row(name: str, parameters: dict[str, int]) -> tuple[str, ...]:
    """An example of ours."""
    start = time.perf_counter()
    made = compile_program(EXAMPLES / f"{name}.py", parameters=parameters)
    seconds = time.perf_counter() - start
    words = f"{name} {' '.join(str(value) for value in parameters.values())}"
    if made.program is None:
        raise SystemExit(f"{name}: expected thread blocks, found none")
    return (words, str(made.source.num_operations), *figures(made.program, seconds), "yes")


def replayed(found: dict[str, Any]) -> ChunkProgram:
    """The operations of an example of the reference, one for one."""
    program = ChunkProgram(
        NAMES[found["collective"]],
        ranks=found["ranks"],
        chunks=found["chunks"],
        in_place=found["in_place"],
        instances=found["instances"],
        protocol=found["protocol"],
    )
    for adds, sender, held, first, rank, buffer, index, size in found["operations"]:
        given = program.chunk(sender, held, first, size)
        if adds:
            program.chunk(rank, buffer, index, size).reduce(given)
        else:
            given.copy(rank, buffer, index)
    return program


def verdict(program: Program) -> str:
    """What the verifier says."""
    report = verify_program(program)
    return "yes" if report.ok else f"no: {report.failures[0]}"[:90]


def reference_rows(directory: Path, case: str, folder: Path) -> list[tuple[str, ...]]:
    """An example of the reference, by both compilers."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(HERE / "language_reference.py"),
        str(directory),
        *case.split(),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1][:90]
        return [(case, "msccl-tools", "-", *["-"] * len(HEADER), reason)]
    found = json.loads(done.stdout)
    path = folder / "reference.xml"
    path.write_text(found["xml"])
    operations = str(len(found["operations"]))
    rows = []
    try:
        theirs, _, _ = read_program(path)
        if not isinstance(theirs, Program):
            raise SystemExit(f"{case}: expected sends and receives, found puts")
        rows.append((case, "msccl-tools", operations, *figures(theirs, found["seconds"]), verdict(theirs)))
    except CoppiceError as error:
        rows.append((case, "msccl-tools", operations, *["-"] * len(HEADER), str(error)[:90]))
    start = time.perf_counter()
    try:
        program = replayed(found)
        program.check()
        ours = per_rank_program(program)
        export(ours, "msccl-xml", path, target="msccl")
        seconds = time.perf_counter() - start
        back, _, _ = read_program(path)
        if not isinstance(back, Program):
            raise SystemExit(f"{case}: expected sends and receives, found puts")
        plan = compile_program(program, relay_gpus=True)
        verified = f"{verdict(back)}, as a plan {'too' if plan.report.ok else 'not'}"
        rows.append(("", "coppice", operations, *figures(ours, seconds), verified))
    except CoppiceError as error:
        rows.append(("", "coppice", operations, *["-"] * len(HEADER), str(error)[:90]))
    return rows


def machine() -> str:
    """Processor and system."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def main() -> None:
    """Compile everything and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="examples that match this pattern")
    parser.add_argument("--reference", type=Path, metavar="DIR", help="a checkout of msccl-tools")
    parser.add_argument("--write", action="store_true", help="rewrite the tables in language.md")
    options = parser.parse_args()
    own = Table(title="The examples", header=("example", "operations", *HEADER, "verified"))
    for name, parameters in OURS:
        if fnmatch.fnmatch(name, options.only):
            own.rows.append(own_row(name, parameters))
    own.notes.append(
        "`steps`: of all ranks. `longest block`: steps of the fullest thread block. `thread blocks`: of the fullest "
        "GPU. `compile`: from the file to a verified plan with its bound, and verified thread blocks; wall time."
    )
    tables = [own]
    if options.reference is not None:
        both = Table(
            title="Examples of msccl-tools by both compilers",
            header=("example", "compiler", "operations", *HEADER, "verified"),
        )
        with tempfile.TemporaryDirectory() as folder:
            for case in REFERENCE:
                if fnmatch.fnmatch(case, options.only):
                    both.rows.extend(reference_rows(options.reference, case, Path(folder)))
        both.notes.append(
            "Arguments as its scripts take them. `compile`: wall time from the first operation to the XML, both with "
            "their own checks, without the start of Python. `verified`: what Coppice's verifier says of the file that "
            "was written, and of the plan."
        )
        tables.append(both)
    for table in tables:
        table.show(Console())
    if options.write:
        body = f"`python benchmarks/language.py --reference msccl-tools` on {machine()}.\n\n"
        body += "\n".join(table.markdown() for table in tables)
        replace_generated(HERE / "language.md", "language.py", body)


if __name__ == "__main__":
    main()
