"""Simulated time of put/signal programs at 256 MiB, with what their calls cost, beside the plan's rate.

Usage: python benchmarks/put_signal.py [--write] [CLUSTER[:COLLECTIVE] ...]; --write replaces these rows in
put_signal.md, all where none is named.

Programs are those of `coppice export --to put-signal --option size=256M`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.fitting.put_signal import fit_put_signal
from coppice.planners.planning import plan
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.schedule.plan import Plan
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
_MORE_TREES = (3, 6)
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")
HEAD = (
    "| cluster | collective | GB/s | trees | communicators | pieces | messages | staging, MiB | free | cost |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def row(cluster: str, collective: Collective) -> str:
    """A line of the table."""
    name, settings, trees = CLUSTERS[cluster]
    root = 0 if collective.rooted else None
    problem = Problem(topology=preset(name, **settings), collective=collective, root=root)
    planned = [plan(problem, trees=None if collective is Collective.ALL_TO_ALL else trees)]
    if collective.rooted and trees is None:  # lower, at the same rate
        planned += [plan(problem, trees=times * trees_of(planned[0].plan)) for times in _MORE_TREES]
    fitted = [fit_put_signal(each.plan.body, SIZE) for each in planned]
    best = min(range(len(planned)), key=lambda at: fitted[at].time_us)
    found, made = fitted[best], planned[best].plan
    number = trees_of(made) if made.forest is not None else ""
    best_us = SIZE / float(planned[0].plan.algbw_gb_per_s) / 1e3
    verify_put_signal(found.program).require_ok()
    free_us = simulate_put_signal(found.program, made.body, SIZE, costs=PutSignalCosts.free()).time_us
    staging = int(found.program.staging.max()) * SIZE / found.program.num_chunks / 2**20
    way = f"{found.way.groups} x {found.way.own}"
    return (
        f"| {cluster} | {collective} | {float(made.algbw_gb_per_s):.1f} | {number} | {way} | {found.way.pieces} | "
        f"{int(found.program.messages.max())} | {staging:.1f} | {best_us / free_us:.1%} | "
        f"{best_us / found.time_us:.1%} |"
    )


def trees_of(made: Plan) -> int:
    """Trees of a root, or of each."""
    assert made.forest is not None
    return made.forest.total_weight // len(set(made.forest.tree_root.tolist()))


def main() -> None:
    """Print the table, or write it."""
    words = [word for word in sys.argv[1:] if word != "--write"] or list(CLUSTERS)
    wanted = [
        (cluster, collective)
        for cluster in CLUSTERS
        for collective in COLLECTIVES
        if cluster in words or f"{cluster}:{collective}" in words
    ]
    lines = {}
    for cluster, collective in wanted:
        lines[cluster, collective] = row(cluster, Collective(collective))
        sys.stderr.write(f"{lines[cluster, collective]}\n")
    if "--write" not in sys.argv[1:]:
        sys.stdout.write("\n".join([*HEAD, *lines.values()]) + "\n")
        return
    page, _, table = PAGE.read_text().partition(HEAD[0])
    kept = {
        (cells[1].strip(), cells[2].strip()): line
        for line in table.splitlines()[2:]
        if (cells := line.split("|"))
    }
    places = [(cluster, collective) for cluster in CLUSTERS for collective in COLLECTIVES]
    rows = sorted((kept | lines).items(), key=lambda item: places.index(item[0]))
    PAGE.write_text(page + "\n".join([*HEAD, *(line for _, line in rows)]) + "\n")


if __name__ == "__main__":
    main()
