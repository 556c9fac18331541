"""TACOS: published collective times, seconds for large networks, and the public program beside ours.

    python benchmarks/tacos.py [--reference DIR] [--only PATTERN] [--write]

DIR is a checkout of https://github.com/astra-sim/tacos, which is compiled with the optimisation that ours has, in a
temporary folder; nothing of it is kept. Both run on one core, one attempt after the other, and seconds are per attempt.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.synthesis.synthesizing import Request, synthesize
from coppice.planners.synthesis.tacos import TacosOptions, synthesize_tacos
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from tables import Table, number, replace_generated

PAGE = Path(__file__).with_suffix(".md")
GIB = Fraction(2**30, 10**9)
MEBI = 2**20


@dataclass(frozen=True, kw_only=True)
class Grid:
    """An all-gather of the published tests; rates in GiB/s.

    Attributes:
        kind: Preset.
        dims: Sizes.
        rates: Rate along each dimension in GiB/s.
        latency_us: Latency of every link.
        chunks: Chunks of each rank.
        mib: Size of the result in MiB.
        published_us: Time that the tests of the public program expect within 1%, if any.
        source: How the public program names it: header, class and arguments of its constructor.
    """

    kind: str
    dims: tuple[int, ...]
    rates: tuple[int, ...]
    latency_us: float
    chunks: int
    mib: int
    published_us: float | None = None
    source: tuple[str, str, str] = ("", "", "")

    @property
    def name(self) -> str:
        """Short name."""
        return f"{self.kind} {'x'.join(map(str, self.dims))}"

    def topology(self) -> Topology:
        """The network."""
        found = preset(self.kind, dims=self.dims, gb_per_s=tuple(rate * GIB for rate in self.rates))
        return replace(found, latency_us=np.full(found.num_links, self.latency_us))

    def chunk_bytes(self, ranks: int) -> int:
        """Size of a chunk."""
        return self.mib * MEBI // (ranks * self.chunks)


def _grid(
    kind: str,
    dims: tuple[int, ...],
    rate: int,
    latency_us: float,
    chunks: int,
    mib: int,
    published_us: float | None = None,
) -> Grid:
    names = {
        ("torus", 2): "Torus2D",
        ("torus", 3): "Torus3D",
        ("mesh", 2): "Mesh2D",
        ("mesh", 3): "Hypercube3D",
    }
    headers = {
        "Torus2D": "torus_2d",
        "Torus3D": "torus_3d",
        "Mesh2D": "mesh_2d",
        "Hypercube3D": "hypercube_3d",
    }
    name = names[kind, len(dims)]
    sizes = ", ".join(map(str, dims[::-1]))
    return Grid(
        kind=kind,
        dims=dims,
        rates=(rate,) * len(dims),
        latency_us=latency_us,
        chunks=chunks,
        mib=mib,
        published_us=published_us,
        source=(headers[name], name, f"{sizes}, {rate}.0, {latency_us}"),
    )


def _uneven(
    dims: tuple[int, int],
    rates: tuple[int, int],
    latency_us: float,
    chunks: int,
    mib: int,
    published_us: float,
) -> Grid:
    across = f"{dims[1]}, {dims[0]}, {rates[1]}.0, {latency_us}, {rates[0]}.0, {latency_us}"
    return Grid(
        kind="mesh",
        dims=dims,
        rates=rates,
        latency_us=latency_us,
        chunks=chunks,
        mib=mib,
        published_us=published_us,
        source=("mesh_2d_hetero", "Mesh2D_Hetero", across),
    )


GRIDS = [
    _grid("torus", (3, 3, 3), 50, 0.5, 1, 1024, 3706.20),
    _grid("torus", (3, 4, 5), 50, 0.5, 2, 2048, 6676.67),
    _grid("torus", (4, 2, 3), 50, 0.5, 3, 3072, 11673.67),
    _grid("mesh", (5, 5), 50, 0.5, 1, 1024, 9606.0),
    _grid("mesh", (10, 10), 100, 1.0, 2, 1024, 5049.0),
    _grid("mesh", (12, 7), 100, 1.0, 3, 4096, 19966.27),
    _uneven((5, 5), (75, 50), 0.5, 1, 1024, 8005.0),
    _uneven((5, 8), (35, 80), 1.0, 2, 1024, 8595.43),
    _uneven((10, 7), (73, 16), 1.5, 3, 4096, 44612.47),
    _grid("mesh", (3, 3, 3), 50, 0.5, 1, 1024, 6671.17),
    _grid("mesh", (3, 4, 5), 50, 0.5, 2, 2048, 13353.33),
    _grid("mesh", (4, 2, 3), 50, 0.5, 3, 3072, 19178.17),
    _grid("torus", (8, 8), 50, 0.5, 1, 1024),
    _grid("torus", (16, 16), 50, 0.5, 1, 1024),
]
LARGE: list[tuple[str, str, dict[str, Any]]] = [
    ("torus 32x32", "torus", {"dims": (32, 32)}),
    ("torus 8x8x16", "torus", {"dims": (8, 8, 16)}),
    ("mesh 32x32", "mesh", {"dims": (32, 32)}),
    ("dgx-h100 x 16", "dgx-h100", {"boxes": 16}),
]

DRIVER = """\
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <tacos/collective/all_gather.h>
#include <tacos/synthesizer/synthesizer.h>
{includes}
static void run(const tacos::Topology& topology, int chunks, long chunk_bytes) {{
  const auto collective = tacos::AllGather(topology.npusCount(), chunks);
  auto best = 1e30;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < {attempts}; ++i) {{
    auto synthesizer = tacos::Synthesizer();
    best = std::min(best, synthesizer.solve(topology, collective, chunk_bytes));
  }}
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%.6f %.9f\\n", best, took.count() / {attempts});
}}
int main() {{
{calls}
}}
"""


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="checkout of the public program, to run beside ours")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="networks whose name fits")
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=f"write the tables to {PAGE.name}")
    options = parser.parse_args()
    if options.write and (options.only != "*" or options.reference is None):
        parser.error("--write needs --reference, and all networks")
    console = Console()
    made = [published(options), large(options.only)]
    for table in made:
        table.show(console)
    if options.write:
        machine = f"`python benchmarks/tacos.py --reference DIR` on {platform.system()} {platform.machine()}"
        load = f"Mean load during the last minutes: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores."
        body = "\n".join([f"{machine}. {load}\n", *(table.markdown() for table in made)])
        replace_generated(PAGE, "tacos.py", body)


def published(options: argparse.Namespace) -> Table:
    """Times of the collective, and seconds for an attempt, on one core."""
    header = (
        "network",
        "NPUs",
        "chunks",
        "published",
        "ours",
        "difference",
        "ours, an attempt",
        "public, an attempt",
    )
    table = Table(title=f"Published times, best of {options.attempts}", header=(*header, "ratio"))
    grids = [grid for grid in GRIDS if fnmatch.fnmatch(grid.name, options.only)]
    beside: list[tuple[float, float]] | None = None
    if options.reference is not None and grids:
        beside = run_reference(options.reference, grids, options.attempts)
    for row, grid in enumerate(grids):
        topology = grid.topology()
        size = grid.chunk_bytes(topology.num_ranks)
        asked = TacosOptions(
            chunks=grid.chunks, chunk_size=size, seeds=options.attempts, rule="random", threads=1
        )
        request = Request(problem=Problem(topology, Collective.ALL_GATHER), options=asked)
        begun = time.perf_counter()
        found = synthesize_tacos(request)
        took = (time.perf_counter() - begun) / options.attempts
        time_us = found.details["makespan_us"]
        wanted, public = grid.published_us, None
        if beside is not None:
            best, public = beside[row]
            wanted = best if wanted is None else wanted
        table.rows.append(
            (
                grid.name,
                str(topology.num_ranks),
                str(grid.chunks),
                "-" if wanted is None else f"{wanted:.2f} us",
                f"{time_us:.2f} us",
                "-" if wanted is None else f"{100 * (time_us / wanted - 1):+.2f}%",
                number(took, unit="s"),
                number(public, unit="s"),
                "-" if public is None else f"{public / took:.1f}x",
            )
        )
    table.notes.append(
        "Rates and sizes in powers of 1,024, as the public program takes them; the last two networks have no published "
        "time, and the public program's own best stands there. Both sides on one core, by the published rule (even "
        "draws). Ours is the whole call from Python: channels, attempts and schedule; the public program makes none. "
        "An attempt of ours that cannot become the best any more is given up."
    )
    return table


def run_reference(place: Path, grids: Sequence[Grid], attempts: int) -> list[tuple[float, float]]:
    """Best time in microseconds, and seconds an attempt, of the public program on each network."""
    headers = dict.fromkeys(grid.source[0] for grid in grids)
    calls = []
    for grid in grids:
        _, name, arguments = grid.source
        calls.append(
            f"  run(tacos::{name}({arguments}), {grid.chunks}, {grid.chunk_bytes(prod(grid.dims))});"
        )
    text = DRIVER.format(
        includes="\n".join(f"#include <tacos/topology/{header}.h>" for header in headers),
        attempts=attempts,
        calls="\n".join(calls),
    )
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "driver.cc", Path(folder) / "driver"
        source.write_text(text)
        files = [str(path) for path in sorted((place / "src").rglob("*.cpp")) if path.name != "main.cpp"]
        compiler = ["c++", "-std=c++20", "-O3", "-DNDEBUG", f"-I{place / 'include'}"]
        subprocess.run([*compiler, str(source), *files, "-o", str(program)], check=True)
        printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return [(float(best), float(seconds)) for best, seconds in map(str.split, printed.splitlines())]


def large(only: str) -> Table:
    """Networks of up to 1,024 ranks: three attempts, one by each rule, verified."""
    table = Table(
        title="Large networks, one attempt by each rule",
        header=("network", "ranks", "attempts", "verified after", "chunk by chunk", "of the bound"),
    )
    for name, kind, parameters in LARGE:
        if not fnmatch.fnmatch(name, only):
            continue
        problem = Problem(preset(kind, **parameters), Collective.ALL_GATHER)
        begun = time.perf_counter()
        found = synthesize(problem, method="tacos", options={"chunks": 1, "seeds": 3})
        took = time.perf_counter() - begun
        rate = found.synthesis.details["makespan_algbw_gb_per_s"]
        share = rate / float(bound(problem).algbw_gb_per_s)
        table.rows.append(
            (
                name,
                f"{problem.topology.num_ranks:,}",
                number(found.seconds, unit="s"),
                number(took, unit="s"),
                f"{rate:.4g} GB/s",
                f"{100 * share:.2f}%",
            )
        )
    return table


if __name__ == "__main__":
    main()
