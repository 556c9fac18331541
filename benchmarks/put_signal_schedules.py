"""Every reference topology, collective and planner under adversarial schedules: what the slow tests' sweep takes.

Usage: python benchmarks/put_signal_schedules.py [--planner P ...] [--minutes M] [--write]

Runs what `tests/program/put_signal/test_put_signal_fuzzer.py` runs under its mark `slow`, one case (topology, planner,
collective) after the other, small topologies first; a case is all its programs, in place and out of place, with chunks
of three sizes. What has been done is kept in put_signal_schedules.json (or --figures FILE), and a further call goes on
from there; delete a case there to run it anew. After M minutes no case is begun. --write replaces the table of
put_signal_schedules.md. It needs the reference data (COPPICE_SHARED, as the tests do).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from coppice.collectives import Collective

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
ORACLE, CASES, SWEEP = map(
    import_module, ("reference.oracle", "support.put_signal_cases", "support.put_signal_runs")
)
NAMES: list[str] = ORACLE.NAMES
COLLECTIVES: list[str] = [str(each) for each in CASES.COLLECTIVES]
PLANNERS: tuple[str, ...] = SWEEP.PLANNERS

PAGE = HERE / "put_signal_schedules.md"
HEAD = (
    "| topology | ranks | planner | programs | runs | actions | processor time | ns an action |",
    "|---|---|---|---|---|---|---|---|",
)


def cases(planners: list[str]) -> Iterator[tuple[str, str, str]]:
    """(topology, planner, collective), small topologies first."""
    sized = sorted(NAMES, key=ranks_of)
    for planner in planners:
        for name in sized:
            for collective in COLLECTIVES:
                yield name, planner, collective


def measured(name: str, planner: str, collective: str, schedules: int) -> dict[str, Any]:
    """Run a case."""
    found = {"schedules": schedules, "programs": 0, "runs": 0, "actions": 0, "seconds": 0.0}
    for _, program in SWEEP.programs_of(ORACLE.oracle_topology(name), planner, Collective(collective)):
        begin = process_time()
        done = SWEEP.run_in_every_way(program, schedules)
        found["seconds"] += process_time() - begin
        found["programs"] += 1
        found["runs"] += done.runs
        found["actions"] += done.actions
    return {**found, "seconds": round(found["seconds"], 3)}


def written(figures: dict[str, dict[str, Any]]) -> str:
    """Figures as JSON, a line for each case."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(figures[key])}" for key in figures) + "\n}\n"


def table(figures: dict[str, dict[str, Any]]) -> str:
    """A line for each topology and planner of which all collectives are done, and one for the sum."""
    lines, total = list(HEAD), dict.fromkeys(("programs", "runs", "actions", "seconds"), 0.0)
    rows = sorted(
        {tuple(key.split()[:2]) for key in figures},
        key=lambda row: (PLANNERS.index(row[1]), ranks_of(row[0]), row[0]),
    )
    for name, planner in rows:
        done = [figures.get(f"{name} {planner} {each}") for each in COLLECTIVES]
        some = [each for each in done if each is not None]
        mine = {key: sum(each[key] for each in some) for key in total}
        for key in total:
            total[key] += mine[key]
        if mine["actions"]:
            label = (
                planner if len(some) == len(done) else f"{planner}, {len(some)} of {len(done)} collectives"
            )
            lines.append(line(name, str(ranks_of(name)), label, mine))
    lines.append(line("all of these", "", "", total))
    return "\n".join(lines) + "\n"


def ranks_of(name: str) -> int:
    """Ranks of a topology."""
    return int(ORACLE.oracle_topology(name).num_ranks)


def line(name: str, ranks: str, label: str, found: dict[str, float]) -> str:
    """A line of the table."""
    per_action = 1e9 * found["seconds"] / max(found["actions"], 1)
    return (
        f"| {name} | {ranks} | {label} | {found['programs']:.0f} | {found['runs']:,.0f} | {found['actions']:.2e} | "
        f"{found['seconds']:,.1f} s | {per_action:.0f} |"
    )


def main() -> None:
    """Run cases, print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--planner", choices=PLANNERS, action="append")
    parser.add_argument("--figures", type=Path, default=PAGE.with_suffix(".json"))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    if given.figures.is_file():
        figures = json.loads(given.figures.read_text())
    begin, asked = monotonic(), list(cases(given.planner or list(PLANNERS)))
    for name, planner, collective in asked:
        key = f"{name} {planner} {collective}"
        is_done = key in figures and figures[key]["schedules"] >= given.schedules
        if is_done or monotonic() - begin > 60 * given.minutes:
            continue
        figures[key] = measured(name, planner, collective, given.schedules)
        sys.stderr.write(f"{key}: {figures[key]}\n")
        given.figures.write_text(written(figures))
    figures = {key: each for key, each in figures.items() if each["schedules"] >= given.schedules}
    every = len(NAMES) * len(PLANNERS) * len(COLLECTIVES)
    text = f"{len(figures)} of {every} cases, {given.schedules:,} schedules each.\n\n{table(figures)}"
    if not given.write:
        sys.stdout.write(text)
        return
    page = PAGE.read_text()
    mark = "<!-- table -->\n"
    PAGE.write_text(page[: page.index(mark) + len(mark)] + "\n" + text)


if __name__ == "__main__":
    main()
