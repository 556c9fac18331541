"""Random matrices of splits on every engine, compared with NumPy.

Usage: python benchmarks/split_matrices.py [--matrices 288] [--write], which writes split_matrices.md.

In groups of 2 to 8 ranks, each a process, every engine carries out as many exchanges: even ones, heavy tails, a hot
receiver, sparse ones, ranks without anything, nothing at all; of five types, on networks of one box or several, with
and without counts that ranks tell each other before. All groups of all engines are the same 16 processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tables import Table

PAGE = Path(__file__).with_suffix(".md")
NAMES = {
    "torch": "messages of torch (gloo)",
    "coppice": "torch's `all_to_all_single`, backend coppice",
    "shm": "shared memory",
    "put-signal": "puts and signals, stand-in for a device",
    "mpi": "MPI (Open MPI)",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--matrices", type=int, default=288, help="of each engine in each size of a group")
    parser.add_argument("--write", action="store_true", help="write split_matrices.md")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    groups: Any = import_module("support.unequal_groups")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, dict[int, int]] = groups.right_calls(given.matrices, Path(folder))
    took = time.monotonic() - begun
    sizes = next(iter(found.values()))
    table = Table(
        title="Exchanges with the right outcome on all ranks",
        header=("engine", *(f"{size} ranks" for size in sizes), "of"),
        rows=[
            (NAMES[name], *(str(right) for right in each.values()), str(given.matrices * len(each)))
            for name, each in found.items()
        ],
    )
    right = sum(sum(each.values()) for each in found.values())
    every = given.matrices * len(sizes) * len(found)
    table.notes.append(
        f"{right:,} of {every:,} right, in {took:.0f} s on {os.cpu_count()} cores beside other work."
    )
    sys.stdout.write(table.text())
    if given.write:
        head = (
            "# Random splits on every engine\n\n"
            "Made by `python benchmarks/split_matrices.py --write`, which says what is drawn.\n\n"
        )
        PAGE.write_text(head + table.markdown())
    sys.exit(right != every)


if __name__ == "__main__":
    main()
