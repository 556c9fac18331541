"""A rank of `lab_sizes.py`: ``PROGRAM SPEC``; times algorithms over gloo, and rank 0 writes the rows to a file.

Where there is a plan to compare with, all others are looked at in a few rounds first. Those that come near the fastest
of them are then timed again, round by round beside the plan, and these rounds alone count: luck was among what made
them look best.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from coppice.collectives import Collective
from coppice.run.bench.measuring import NATIVE, BenchRow, bench
from coppice.run.engines.engine import Engine
from coppice.run.engines.launched import open_engine
from coppice.topology.load import load
from coppice.topology.model import Topology

NEAR, MOST = 1.3, 4
"""Times the least that an algorithm may take to be timed again, and of how many that holds."""
HOPELESS, TELLING_BYTES = 4.0, 1 << 17
"""Times the least that an algorithm may take at a size, if it is of so many bytes, to be timed at the next."""
LONG_BYTES = 1 << 20
"""From this size on a single round tells them apart, and the rounds that count are half as many."""


class Spec(msgspec.Struct, kw_only=True):
    """What is timed."""

    collective: Collective
    names: list[str]
    sizes: list[int]
    rounds: int  # Half as many where messages are long
    rest_s: float  # Before every run
    output: str
    plan: str = ""  # A set of plans that is compared with the best of the names

    def rounds_of(self, size: int) -> int:
        """Rounds that count."""
        return self.rounds if size < LONG_BYTES else -(-self.rounds // 2)


def timed(
    engine: Engine, topology: Topology, spec: Spec, names: list[str], size: int, rounds: int, warmup: int
) -> list[BenchRow]:
    """Rows of algorithms at a size."""
    found = bench(
        engine,
        topology,
        spec.collective,
        algorithms=names,
        sizes=[size],
        rounds=rounds,
        warmup=warmup,
        rest_s=spec.rest_s,
        timeout_s=120,
    )
    return [row for row in found if not row.refusal]


def compared(engine: Engine, topology: Topology, spec: Spec, names: list[str], size: int) -> list[BenchRow]:
    """The plan and those that come near the fastest of all others; then what the others took at first sight."""
    rounds, warmup = (1, 0) if size >= LONG_BYTES else (3, 1)
    seen = sorted(
        timed(engine, topology, spec, names, size, rounds, warmup), key=lambda row: row.time_us
    )  # the same on all ranks, as rows are
    near = [row.algorithm for row in seen if row.time_us <= NEAR * seen[0].time_us][:MOST]
    again = list(dict.fromkeys([spec.plan, *near, NATIVE]))
    rows = timed(engine, topology, spec, again, size, spec.rounds_of(size), 2)
    return [*rows, *(row for row in seen if row.algorithm not in again)]


def main(argument: str) -> None:
    """Run the specification on this rank."""
    spec = msgspec.json.decode(argument, type=Spec)
    engine = open_engine("torch", timeout_s=120)
    topology = load(os.environ["COPPICE_TOPOLOGY"])
    rows: list[dict[str, Any]] = []
    names = spec.names
    for size in spec.sizes:
        if spec.plan:
            made = compared(engine, topology, spec, names, size)
        else:
            made = timed(engine, topology, spec, names, size, spec.rounds_of(size), 2)
        least = min(row.time_us for row in made)
        hopeless = {row.algorithm for row in made if row.time_us > HOPELESS * least}
        names = [name for name in names if name not in hopeless or size < TELLING_BYTES]
        rows += [{**row.fields(), "rounds_us": row.rounds_us} for row in made]
    if engine.rank == 0:
        Path(spec.output).write_bytes(msgspec.json.encode(rows))
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
