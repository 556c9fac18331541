"""What RCCL picks on one to sixteen boxes of MI250, MI300X and MI355X, beside the optimal forest, and why.

    python benchmarks/rccl_picks.py [--json]

Writes benchmarks/rccl_picks.md. Both are simulated with one model on the same topology; RCCL's own estimate stands
beside.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.library import LibraryRuns
from coppice.planners.planning import plan
from coppice.selection import select
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.text import number, short_size
from coppice.topology.presets import preset

PAGE = Path(__file__).with_suffix(".md")
CLUSTERS = tuple((name, boxes) for name in ("mi250", "mi300x", "mi355x") for boxes in (1, 2, 4, 8, 16))
COLLECTIVES = (Collective.ALL_REDUCE, Collective.ALL_GATHER)
SIZES = (2**20, 2**26, 2**30)
MOST_RANKS = 128
"""Ranks up to which forests are simulated."""


def rows() -> list[dict[str, Any]]:
    """A row for each cluster, collective and size."""
    found = []
    model = model_of()
    for name, boxes in CLUSTERS:
        topology = preset(name, boxes=boxes)
        for collective in COLLECTIVES:
            problem = Problem(topology, collective)
            runs = LibraryRuns(problem, model)
            forest = plan(problem).plan.body if topology.num_ranks <= MOST_RANKS else None
            for size in SIZES:
                pick = select("rccl", collective, size, topology=topology)
                decided = [
                    words for words in pick.notes if "decides the protocol" in words or "takes LL up" in words
                ]
                why = decided or [
                    "directly up to a size" if pick.cell is None else "the least of its estimates"
                ]
                row = {
                    "cluster": name,
                    "boxes": boxes,
                    "collective": collective.value,
                    "size_bytes": size,
                    "pick": pick.algorithm,
                    "channels": pick.channels,
                    "predicted_us": None if pick.cell is None else pick.cell.time_us,
                    "why": why[0].removeprefix("between boxes "),
                }
                if forest is not None:
                    ours = fastest(forest, size, model=model, keep_hops=False)
                    for key, timeline in (("", runs.of(pick).timeline), ("forest_", ours)):
                        row[f"{key}time_us"] = timeline.time_us
                        row[f"{key}busy_us"] = float(timeline.link_busy_us[timeline.busiest_link])
                found.append(row)
                print(name, boxes, collective, short_size(size), pick.algorithm, file=sys.stderr)
    return found


def page(found: list[dict[str, Any]]) -> str:
    """The rows as a page."""
    version = select("rccl", "all_reduce", 1, topology=preset("mi300x"))
    lines = [
        "# RCCL's picks beside forests",
        "",
        f"RCCL {version.version} ({version.source}), by its boards, cost model and limits (docs/selection.md); made by",
        "`python benchmarks/rccl_picks.py`. Times are simulated with the model `nccl-2.30`, RCCL's rings and trees as",
        "they stand in it; *estimate* is RCCL's own, which reckons with xGMI links alone, whatever the NICs carry.",
        f"Forests are planned for their rate, and simulated up to {MOST_RANKS} ranks.",
        "*Busy* is how long the busiest link works, which tells why one takes longer than the other.",
        "",
        "| cluster | collective | size | RCCL | channels | estimate | simulated | busy | forest | busy | times | why |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        figures = [
            row.get(key) for key in ("predicted_us", "time_us", "busy_us", "forest_time_us", "forest_busy_us")
        ]
        cells = [
            f"{row['boxes']} x {row['cluster']}",
            row["collective"],
            short_size(row["size_bytes"]),
            row["pick"],
            str(row["channels"] or "-"),
            *("-" if value is None else f"{number(value)} us" for value in figures),
            "-" if "time_us" not in row else f"{row['time_us'] / row['forest_time_us']:.2f}",
            row["why"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    made = rows()
    if "--json" in sys.argv:
        print(json.dumps({"rows": made}, indent=2))
    else:
        PAGE.write_text(page(made))
