"""Command line of an exported script; follows the other modules in the script."""

from __future__ import annotations

import argparse
import json
import sys

from coppice.export.put_signal.standalone.emulator import (
    PROGRAM,
    program_of,
    run_emulated,
)
from coppice.export.put_signal.standalone.gpus import (
    run_on_gpus,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Runs a program of puts and signals and checks its results.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    engines = ("emulated", "nccl", "nccl4py", "torch")
    parser.add_argument(
        "--engine",
        choices=engines,
        default="emulated",
        type=lambda name: "emulated" if name == "twin" else name,  # its name in earlier scripts
        help="what puts and signals",
    )
    parser.add_argument("--library", default="libnccl.so.2", help="NCCL itself, for --engine nccl")
    parser.add_argument("--print", action="store_true", help="print the program as JSON")
    parser.add_argument("--elements", type=int, default=4, help="numbers of a chunk, 1 or more")
    parser.add_argument("--in-place", action="store_true", help="input and output in the same memory")
    parser.add_argument("--runs", type=int, default=1, help="runs, 1 or more, each with other inputs")
    parser.add_argument("--seed", type=int, default=0, help="number of the first run")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds that a rank of the emulator waits"
    )
    given = parser.parse_args(arguments)
    for name in ("elements", "runs", "timeout"):
        if getattr(given, name) <= 0:
            parser.error(f"argument --{name}: expected a number above 0, found {getattr(given, name)}")
    program = program_of(PROGRAM)
    in_place = given.in_place or (given.engine != "emulated" and not program["out_of_place"])
    if in_place and not program["in_place"]:
        parser.error(f"argument --in-place: this {program['collective']} is only for output apart from input")
    if given.print:
        sys.stdout.write(json.dumps(program) + "\n")
        return 0
    given.in_place = in_place
    try:
        return run_emulated(program, given) if given.engine == "emulated" else run_on_gpus(program, given)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
