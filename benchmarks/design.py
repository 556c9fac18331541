"""Speed of direct-connect design: figures, schedules and verification of large graphs.

    python benchmarks/design.py [--quick] [--write]

`figures` is the time of the steps and exact step loads of breadth-first broadcast; `schedule` that of the whole
all-gather as transfers, graph and topology included; `verify` that of its symbolic execution. Wall times on one core.
"""

from __future__ import annotations

import argparse
import platform
import time
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from coppice.design.recipes.parser import parse
from coppice.design.schedules.breadth_first import schedule_facts
from coppice.design.schedules.collectives import breadth_first_schedule
from coppice.schedule.verification.transfers import verify_schedule
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
# Recipe and goal of its schedule in seconds.
CASES = (
    ("hypercube(10)", 10.0),
    ("torus(50, 50)", 10.0),
    ("gkautz(4, 1024)", 2.0),
    ("line^3(circulant(16, 3, 4))", 2.0),
    ("line^2(diamond^2)", 2.0),
    ("two_jump(2048)", 10.0),
    ("gkautz(4, 2048)", 10.0),
)
QUICK = ("gkautz(4, 1024)",)


def row(text: str, goal: float) -> tuple[str, ...]:
    """One line of the table."""
    recipe = parse(text)
    begin = time.perf_counter()
    facts = schedule_facts(recipe.build())
    figured = time.perf_counter()
    graph = recipe.build()
    made = breadth_first_schedule(graph, graph.to_topology())
    scheduled = time.perf_counter()
    report = verify_schedule(made.schedule, claimed=made.inv_rate(Fraction(1)))
    verified = time.perf_counter()
    took = scheduled - figured
    return (
        text,
        str(facts.steps),
        f"{float(facts.bandwidth_time):.5f}",
        number(figured - begin),
        number(took),
        number(goal) if took <= goal else f"{number(goal)} MISS",
        f"{made.schedule.num_transfers:,}",
        str(made.pieces),
        f"{float(made.loss):.2%}",
        number(verified - scheduled) if report.ok else "FAILED",
    )


def main() -> None:
    """Print the table, or write it into design.md as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one graph only")
    parser.add_argument("--write", action="store_true", help="rewrite the table in design.md")
    options = parser.parse_args()
    header = (
        *("recipe", "steps", "T_B", "figures s", "schedule s", "goal s"),
        *("transfers", "pieces", "loss", "verify s"),
    )
    table = Table(title="All-gather by breadth-first broadcast", header=header)
    for text, goal in CASES:
        if not options.quick or text in QUICK:
            table.rows.append(row(text, goal))
    table.notes.append(
        "`loss`: how much longer the steps take because shards are cut into no more pieces than 2^24 transfers allow."
    )
    table.show(Console())
    if options.write:
        machine = f"`python benchmarks/design.py` on {platform.system()} {platform.machine()}, one core.\n\n"
        replace_generated(HERE / "design.md", "design.py", machine + table.markdown())


if __name__ == "__main__":
    main()
