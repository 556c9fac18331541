"""Bound, plan, memory, trees and heights of the forest planner, against its goals and the public reference.

    python benchmarks/forest.py [--quick] [--only PATTERN] [--reference DIR] [--json FILE] [--readme]

Every case runs in a process of its own, one after the other. Times are wall times inside that process, from a
loaded topology to the packed forest, the best of five where that is short; verification has its own column. A
goal that is missed is printed as MISS with the measured figure; the exit code is 0 all the same.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from planner_cases import CASES, Case, Goal
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
FIGURES = {
    "plan_s": "plan",
    "bound_s": "bound",
    "peak_gib": "peak",
    "max_height": "height",
    "mean_height": "mean height",
}
SPEEDUPS = {"mi250 x 2": 1000.0, "dgx-a100 x 4": 10000.0}
"""Times faster than the reference that a case has to be."""

EMPTY_GIB = 48 / 1024
"""Memory that a process holds with almost any small case."""

Figures = dict[str, Any]


def run(script: str, arguments: list[str], limit_s: float) -> Figures:
    """The last line that ``script`` prints as JSON; where it fails or takes too long, also why (``failed``)."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
        why = (
            ""
            if process.returncode == 0
            else (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        )
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        why = f"no result in {limit_s:.0f} s"
    except KeyboardInterrupt:
        process.kill()
        process.wait()
        raise
    figures: Figures = json.loads(out.splitlines()[-1]) if out else {}
    return figures | ({"failed": why} if why else {})


def machine() -> dict[str, str]:
    """What the figures were measured on, in words."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line[:10] == "model name"
        ]
        model = names[0] if names else model
    compiler = subprocess.run(
        [os.environ.get("CXX", "c++"), "--version"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "compiler": compiler[0] if compiler else "unknown",
        "packages": ", ".join(f"{name} {version(name)}" for name in ("coppice", "numpy", "highspy")),
    }


def misses(case: Case, figures: Figures) -> list[str]:
    """The goals that a case misses, with the measured figures."""
    found: list[str] = []
    for goal in case.goals:
        if goal.figure not in figures:
            found.append(f"MISS {words(goal)}: {figures['failed']}")
        elif not goal.reached(figures[goal.figure]):
            found.append(f"MISS {words(goal)}: {shown(goal.figure, figures[goal.figure])}")
    if not figures.get("verified", True):
        found.append("MISS verified")
    if case.trees is None and not figures.get("optimal", True):
        found.append("MISS optimal")
    return found


def words(goal: Goal) -> str:
    """A goal in words."""
    return f"{FIGURES[goal.figure]} {'<' if goal.strict else '<='} {shown(goal.figure, goal.limit)}"


def shown(figure: str, value: float | None) -> str:
    """A figure with its unit."""
    if value is None:
        return "-"
    if figure.endswith("_s"):
        return number(value, unit="s")
    if figure.endswith("gib"):
        return f"{value:.3g} GiB" if value >= 1 else f"{value * 1024:.0f} MiB"
    return number(value)


def row(case: Case, figures: Figures) -> tuple[str, ...]:
    """The row of a case in the main table."""
    missed = misses(case, figures)
    if "failed" in figures and not any(figures["failed"] in miss for miss in missed):
        missed.append(figures["failed"])
    verdict = "; ".join(missed) or "; ".join(f"ok {words(goal)}" for goal in case.goals)
    result = {True: "optimal", False: "verified", None: "-"}[figures.get("optimal")]
    return (
        case.name,
        number(figures.get("ranks")),
        number(figures.get("bound_s"), unit="s"),
        number(figures.get("plan_s"), unit="s"),
        number(figures.get("verify_s"), unit="s"),
        shown("peak_gib", figures.get("peak_gib")),
        number(figures.get("trees_per_root")),
        number(figures.get("distinct_trees")),
        number(figures.get("templates") or None),
        number(figures.get("max_height")),
        number(figures.get("mean_height")),
        result if figures.get("verified", True) else "WRONG",
        verdict,
    )


def main_table(results: dict[str, Figures]) -> Table:
    """Every case with its goals."""
    table = Table(
        title="All-gather forests",
        header=(
            *("case", "GPUs", "bound", "plan", "verify", "peak", "trees/root", "distinct", "templates"),
            *("height", "mean", "result", "goals"),
        ),
        notes=[
            "bound, plan, verify: wall time in the process. peak: most memory of the process in all.",
            "distinct: distinct trees over all roots. height: most GPU-to-GPU hops; mean: weighted.",
            "templates: trees that stand for all their images under symmetries, where the forest is kept so.",
            "optimal: verified, and the worst link load equals the bound exactly.",
            "The row of random networks adds up 500 of them (3 to 16 GPUs, up to 8 switches).",
        ],
    )
    table.rows = [row(case, results[case.name]) for case in CASES if case.name in results]
    return table


def exponent(points: list[tuple[float, float]]) -> float | None:
    """Least-squares slope of log y over log x; None without two different x."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    middle_x = sum(x for x, _ in logs) / len(logs)
    middle_y = sum(y for _, y in logs) / len(logs)
    above = sum((x - middle_x) * (y - middle_y) for x, y in logs)
    return above / sum((x - middle_x) ** 2 for x, _ in logs)


def growth_table(results: dict[str, Figures]) -> Table:
    """How time and memory grow with the number of GPUs, by family."""
    table = Table(
        title="Growth with the number N of GPUs",
        header=("family", "N", "bound", "plan", "verify", "peak"),
        notes=[
            "x in time ~ N^x, fitted over the family's cases of 32 GPUs or more (where there are two).",
            "A forest that is written out has N (N - 1) edges or more: plan, verify and memory are N^2 at least.",
            "peak: memory above 48 MiB, where a case holds more than that.",
        ],
    )
    families: dict[str, list[Figures]] = {}
    for case in CASES:
        figures = results.get(case.name, {})
        if "bound_s" in figures:
            kept = ", templates" if figures.get("templates") else ""
            families.setdefault(case.family + kept, []).append(figures)
    for family, measured in families.items():
        large = [figures for figures in measured if figures["ranks"] >= 32]
        measured = large if len({figures["ranks"] for figures in large}) > 1 else measured
        if len({figures["ranks"] for figures in measured}) < 2:
            continue
        cells = []
        for key, base in (("bound_s", 0.0), ("plan_s", 0.0), ("verify_s", 0.0), ("peak_gib", EMPTY_GIB)):
            slope = exponent([(f["ranks"], f[key] - base) for f in measured if key in f])
            cells.append("-" if slope is None else f"N^{slope:.2f}")
        ranks = [figures["ranks"] for figures in measured]
        table.rows.append((family, f"{min(ranks):,} .. {max(ranks):,}", *cells))
    return table


def reference_table(results: dict[str, Figures], reference: dict[str, Figures]) -> Table:
    """Our figures beside those of the reference, measured in the same run."""
    table = Table(
        title="Against the public ForestColl code",
        header=(
            *("case", "bound", "theirs", "ratio", "plan", "theirs", "ratio", "trees", "theirs"),
            *("height", "theirs", "mean", "theirs", "1/x", "goals"),
        ),
        notes=[
            "trees: distinct trees over all roots; height and mean in GPU-to-GPU hops.",
            "1/x: time per shard of both forests; where they differ ours, then theirs.",
            "Goals: as many times faster as stated, the same optimum, no taller, no more distinct trees.",
        ],
    )
    for case in CASES:
        if case.name not in reference or "plan_s" not in results.get(case.name, {}):
            continue
        ours, theirs = results[case.name], reference[case.name]
        if "failed" in theirs:
            table.rows.append((case.name, *["-"] * 13, theirs["failed"]))
            continue
        ratio = theirs["plan_s"] / ours["plan_s"]
        same = ours["planned_inv_rate"] == theirs["inv_rate"]
        missed = [] if same or case.trees is not None else ["MISS same optimum"]
        wanted = SPEEDUPS.get(case.name)
        if wanted is not None and ratio < wanted:
            missed.append(f"MISS {wanted:,.0f} times faster: {ratio:,.0f}")
        if case.name in SPEEDUPS:
            missed += [
                f"MISS {label} <= {number(theirs[key])}: {number(ours[key])}"
                for key, label in (
                    ("max_height", "height"),
                    ("mean_height", "mean height"),
                    ("distinct_trees", "trees"),
                )
                if ours[key] > theirs[key]
            ]
        verdict = "; ".join(missed)
        if not missed and wanted is not None:
            verdict = f"ok {wanted:,.0f} times faster, same optimum, no taller, no more trees"
        table.rows.append(
            (
                case.name,
                number(ours["bound_s"], unit="s"),
                number(theirs["bound_s"], unit="s"),
                f"{theirs['bound_s'] / ours['bound_s']:,.0f}",
                number(ours["plan_s"], unit="s"),
                number(theirs["plan_s"], unit="s"),
                f"{ratio:,.0f}",
                *(
                    number(figures[key])
                    for key in ("distinct_trees", "max_height", "mean_height")
                    for figures in (ours, theirs)
                ),
                ours["planned_inv_rate"] if same else f"{ours['planned_inv_rate']}, {theirs['inv_rate']}",
                verdict,
            )
        )
    return table


def write_readme(tables: list[Table], command: str, about: dict[str, str]) -> None:
    """Replace the generated part of README.md."""
    facts = "\n".join(f"* {name}: {value}" for name, value in about.items())
    parts = [f"`{command}` on", "", facts, "", *(table.markdown() for table in tables)]
    replace_generated(HERE / "README.md", "forest.py", "\n".join(parts))


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark as the module docstring says."""
    parser = argparse.ArgumentParser(description="Benchmark of the forest planner.")
    parser.add_argument("--quick", action="store_true", help="small cases only (a minute)")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name matches a shell pattern")
    parser.add_argument(
        "--reference", metavar="DIR", type=Path, help="checkout of the public ForestColl code"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures to FILE")
    parser.add_argument("--readme", action="store_true", help="rewrite the table of benchmarks/README.md")
    parser.add_argument(
        "--limit", metavar="SECONDS", type=float, default=300.0, help="per case (default 300)"
    )
    parser.add_argument("--reference-limit", metavar="SECONDS", type=float, default=900.0, help="default 900")
    options = parser.parse_args(arguments)
    if options.reference is not None and not (options.reference / "pipeline_allgather.py").is_file():
        parser.error(f"expected pipeline_allgather.py in {options.reference}: give a checkout of ForestColl")
    chosen = [
        case
        for case in CASES
        if (not options.quick or case.quick)
        and (not options.only or fnmatch.fnmatch(case.name, options.only))
    ]
    if not chosen:
        parser.error(
            f"no case matches {options.only!r}: the names are " + ", ".join(case.name for case in CASES)
        )
    console, progress = Console(), Console(stderr=True)
    results: dict[str, Figures] = {}
    reference: dict[str, Figures] = {}
    for case in chosen:
        with progress.status(case.name):
            results[case.name] = run("measure.py", [case.name], options.limit)
        if options.reference is not None and case.reference is not None:
            preset, boxes = case.reference
            rest = [] if case.trees is None else [str(case.trees)]
            with progress.status(f"{case.name}, reference"):
                reference[case.name] = run(
                    "reference.py",
                    [str(options.reference), preset, str(boxes), *rest],
                    options.reference_limit,
                )
    about = machine()
    if versions := {figures["networkx"] for figures in reference.values() if "networkx" in figures}:
        about["reference"] = f"ForestColl, networkx {versions.pop()}"
    tables = [main_table(results), growth_table(results)]
    if reference:
        tables.append(reference_table(results, reference))
    for name, value in about.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
    console.print()
    for table in tables:
        table.show(console)
    if options.json is not None:
        document = {"machine": about, "cases": results, "reference": reference}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.readme:
        given = [f"--reference {Path('ForestColl')}"] if options.reference is not None else []
        write_readme(tables, " ".join(["python benchmarks/forest.py", *given]), about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
