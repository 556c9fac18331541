"""Simulated time of put/signal programs at 256 MiB, with what their calls cost, beside the plan's rate.

Usage: python benchmarks/put_signal.py [--write] [CLUSTER ...]; --write replaces the rows of these clusters in
put_signal.md, of all where none is named.

Programs are those of `coppice export --to put-signal --option size=256M`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.fitting.put_signal import fit_put_signal
from coppice.planners.planning import plan
from coppice.program.put_signal.verify import verify_put_signal
from coppice.simulation.put_signal import PutSignalCosts, simulate_put_signal
from coppice.topology.presets import preset

PAGE = Path(__file__).with_suffix(".md")
SIZE = 256 << 20
CLUSTERS: dict[str, tuple[str, dict[str, int], int | None]] = {
    "dgx-a100": ("dgx-a100", {}, None),
    "2 x dgx-a100": ("dgx-a100", {"boxes": 2}, None),
    "2 x dgx-h100": ("dgx-h100", {"boxes": 2}, None),
    "mi250": ("mi250", {}, None),
    "2 x mi250, 1 tree a root": ("mi250", {"boxes": 2}, 1),
}
"""Preset, its settings, and trees of a root where not all are taken."""
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")
HEAD = (
    "| cluster | collective | GB/s | communicators | pieces | messages | staging, MiB | free | cost |",
    "|---|---|---|---|---|---|---|---|---|",
)


def row(cluster: str, collective: Collective) -> str:
    """A line of the table."""
    name, settings, trees = CLUSTERS[cluster]
    root = 0 if collective.rooted else None
    problem = Problem(topology=preset(name, **settings), collective=collective, root=root)
    made = plan(problem, trees=None if collective is Collective.ALL_TO_ALL else trees).plan
    best_us = SIZE / float(made.algbw_gb_per_s) / 1e3
    found = fit_put_signal(made.body, SIZE)
    verify_put_signal(found.program).require_ok()
    free_us = simulate_put_signal(found.program, made.body, SIZE, costs=PutSignalCosts.free()).time_us
    staging = int(found.program.staging.max()) * SIZE / found.program.num_chunks / 2**20
    way = f"{found.way.groups} x {found.way.own}"
    return (
        f"| {cluster} | {collective} | {float(made.algbw_gb_per_s):.1f} | {way} | {found.way.pieces} | "
        f"{int(found.program.messages.max())} | {staging:.1f} | {best_us / free_us:.1%} | "
        f"{best_us / found.time_us:.1%} |"
    )


def main() -> None:
    """Print the table, or write it."""
    wanted = [word for word in sys.argv[1:] if word != "--write"] or list(CLUSTERS)
    lines = []
    for cluster in wanted:
        for collective in COLLECTIVES:
            lines.append(row(cluster, Collective(collective)))
            sys.stderr.write(f"{lines[-1]}\n")
    if "--write" not in sys.argv[1:]:
        sys.stdout.write("\n".join([*HEAD, *lines]) + "\n")
        return
    page, _, table = PAGE.read_text().partition(HEAD[0])
    kept = [line for line in table.splitlines()[2:] if line.split("|")[1].strip() not in wanted]
    order = {cluster: place for place, cluster in enumerate(CLUSTERS)}
    rows = sorted(kept + lines, key=lambda line: order[line.split("|")[1].strip()])
    PAGE.write_text(page + "\n".join([*HEAD, *rows]) + "\n")


if __name__ == "__main__":
    main()
