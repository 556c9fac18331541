"""Speed of the topology finder, and the front of 1,024 ranks of degree 4 beside the published one.

    python benchmarks/finder.py [--quick] [--write]

`wall` is from the start to the fronts, on all cores of the machine; `cpu` the time of all processes together, which is
what one free core would take. The goal is for `cpu`, since `wall` depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from coppice.design.search.finder import find
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
GOAL_S = 300.0
# Steps and bandwidth time of the published front.
PUBLISHED = (
    ("Pi(4,1024)", 5, Fraction(341, 256)),
    ("L^3(C(16,{3,4}))", 6, Fraction(261, 256)),
    ("L^2(Diamond^2)", 8, Fraction(257, 256)),
    ("L(DBJMod(2,4)^2)", 11, Fraction(1)),
    ("(UniRing(4) x UniRing(8))^2", 20, Fraction(1023, 1024)),
)


def cpu_s() -> float:
    """Processor time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def front_table() -> Table:
    """The published front, and what the finder has instead."""
    begin = time.perf_counter()
    front = find([(1024, 4)])[1024, 4]
    took = time.perf_counter() - begin
    table = Table(
        title="1,024 ranks of degree 4",
        header=("published", "steps", "T_B", "found steps", "found T_B", "recipe"),
    )
    for name, steps, bandwidth in PUBLISHED:
        best = min((entry for entry in front if entry.steps <= steps), key=lambda entry: entry.time)
        figures = (str(steps), f"{float(bandwidth):.5f}", str(best.steps), f"{float(best.time):.5f}")
        miss = " MISS" if best.time > bandwidth else ""
        table.rows.append((name, *figures, f"{best.recipe}{miss}"))
    table.notes.append(f"Found in {number(took)} s.")
    return table


def speed_table(max_ranks: int, max_degree: int) -> Table:
    """Time of all fronts up to a size."""
    begin, used = time.perf_counter(), cpu_s()
    goals = [(ranks, degree) for ranks in range(2, max_ranks + 1) for degree in range(1, max_degree + 1)]
    fronts = find(goals, measure=False)
    wall, used = time.perf_counter() - begin, cpu_s() - used
    table = Table(
        title="All fronts", header=("ranks up to", "degree up to", "graphs", "wall s", "cpu s", "goal s")
    )
    goal = number(GOAL_S) if used <= GOAL_S else f"{number(GOAL_S)} MISS"
    graphs = sum(map(len, fronts.values()))
    table.rows.append((f"{max_ranks:,}", str(max_degree), f"{graphs:,}", number(wall), number(used), goal))
    load = os.getloadavg()[1]
    table.notes.append(
        f"{os.cpu_count()} cores; mean load of the machine during the last minutes: {load:.1f}."
    )
    return table


def main() -> None:
    """Print the tables, or write them into design.md as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="up to 128 ranks of degree 4")
    parser.add_argument("--write", action="store_true", help="rewrite the tables in design.md")
    options = parser.parse_args()
    tables = [front_table(), speed_table(128, 4) if options.quick else speed_table(2048, 8)]
    for made in tables:
        made.show(Console())
    if options.write:
        machine = f"`python benchmarks/finder.py` on {platform.system()} {platform.machine()}.\n\n"
        body = "\n".join(made.markdown() for made in tables)
        replace_generated(HERE / "design.md", "finder.py", machine + body)


if __name__ == "__main__":
    main()
