"""Whether a plan of a size is slower than an algorithm of the catalogue or a synthesised schedule in the same model.

    python benchmarks/every_size_rivals.py [--only PATTERN] [--limit SECONDS] [--again] [--write]

Cases are those of every_size.py up to 72 GPUs. At three sizes the plan of the size stands beside every algorithm of
the catalogue in all its parameters and both orders of ranks, Swing and Trivance among them, none left out for the
effort, and beside what SCCL, TACCL, TE-CCL, TACOS, SyCCL and Blink find within a limit of seconds each. Rows are kept
in every_size_rivals.json. The exit code is 1 where a rival is faster by more than 0.2%: so near to the least time a
plan is taken without a look at what is left. With `--again` the rivals of rows that are there stand, and only plans
are made anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.measurement import Bodies, candidates, fastest_value
from coppice.comparison.planned import NEAR, plan_for
from coppice.errors import CoppiceError, UnreachableError
from coppice.planners.choice import optimal_planner
from coppice.planners.synthesis.synthesizing import METHODS, synthesize
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import fastest
from coppice.text import short_size, sizes_of
from every_size import CLUSTERS, cases
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
KEPT = HERE / "every_size_rivals.json"
SIZES = sizes_of("16K,1M,64M")
SAME = NEAR - 1
"""A plan this near to the least time is taken without a look at what is left."""


def of_the_catalogue(
    problem: Problem, model: Model, sizes: Sequence[int], *, relaying: bool = False
) -> Iterator[tuple[str, dict[int, float]]]:
    """Names of the algorithms of the catalogue, in all parameters and orders, with their times at each size.

    The time of what is slower than one before may be more than it takes at best.

    Args:
        relaying: GPUs pass on what is not theirs where an algorithm does not work otherwise.
    """
    plain, own = bound_of(problem), optimal_planner(problem.collective)
    best = dict.fromkeys(sizes, float("inf"))
    for variant in candidates(problem, order="both"):
        if variant.algorithm == own:
            continue
        for each in (variant, replace(variant, relay_gpus=True))[: 1 + relaying]:
            bodies = Bodies(problem, each, plain)
            try:
                bodies.body(1)
                found = {size: fastest_value(bodies, size, model, below_us=best[size])[1] for size in sizes}
            except UnreachableError:
                continue
            except CoppiceError:
                break
            best = {size: min(best[size], time_us) for size, time_us in found.items()}
            yield variant.algorithm, found
            break


def rivals(problem: Problem, model: Model, limit_s: float) -> Iterator[tuple[str, dict[int, float]]]:
    """Names of all others, with their times in microseconds at each size."""
    yield from of_the_catalogue(problem, model, SIZES)
    for method in METHODS:
        with contextlib.suppress(CoppiceError):
            made = synthesize(problem, method=method, time_limit_s=limit_s).plan.body
            yield method, {size: fastest(made, size, model=model, keep_hops=False).time_us for size in SIZES}


def planned_us(name: str, collective: Collective, model: str) -> list[float]:
    """What the plan of each size takes."""
    problem = problem_on(name, collective)
    return [round(plan_for(problem, size, model=model).preferred.time_us[size], 4) for size in SIZES]


def problem_on(name: str, collective: Collective) -> Problem:
    """The problem of a case."""
    return Problem(CLUSTERS[name](), collective, root=0 if collective.rooted else None)


def counted(name: str, collective: Collective, model: str, limit_s: float) -> dict[str, Any]:
    """Row of a case: at each size the plan's time, and the fastest of all others with its time."""
    begun = time.process_time()
    plan_us = planned_us(name, collective, model)
    best = dict.fromkeys(SIZES, (float("inf"), ""))
    number_of = 0
    for rival, times in rivals(problem_on(name, collective), model_of(model), limit_s):
        number_of += 1
        best = {size: min(best[size], (times[size], rival)) for size in SIZES}
    return {
        "cluster": name,
        "collective": collective.value,
        "model": model,
        "tried": number_of,
        "plan_us": plan_us,
        "rival_us": [round(best[size][0], 4) for size in SIZES],
        "rival": [best[size][1] for size in SIZES],
        "cpu_s": round(time.process_time() - begun, 1),
    }


def faster(row: dict[str, Any]) -> int:
    """Sizes of a row at which a rival is faster than the plan."""
    return sum(rival < plan * (1 - SAME) for rival, plan in zip(row["rival_us"], row["plan_us"], strict=True))


def table(rows: list[dict[str, Any]]) -> Table:
    """What the fastest of all others takes longer than the plan of the size."""
    made = Table(
        title="The fastest of all others, over the plan of the size",
        header=("model", "cluster", "collective", "tried", *map(short_size, SIZES), "cpu"),
    )
    for row in rows:
        cells = [
            f"{rival / plan - 1:+.1%} ({name})"
            for plan, rival, name in zip(row["plan_us"], row["rival_us"], row["rival"], strict=True)
        ]
        head = row["model"], row["cluster"], row["collective"], str(row["tried"])
        made.rows.append((*head, *cells, number(row["cpu_s"], unit="s")))
    slower = sum(map(faster, rows))
    made.notes.append(
        f"Others that are faster than the plan of the size by more than {SAME:.1%} (a plan this near to the least time "
        f"is taken without a further search): {slower} of {len(SIZES) * len(rows)} cells."
    )
    return made


def main() -> int:
    """Count what is asked for, keep it, and print the table or write it into every_size.md as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="count cases that match this pattern; none: print what is kept")
    parser.add_argument("--model", default="nccl-2.30", help="whose times are compared")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of each method of synthesis")
    parser.add_argument("--again", action="store_true", help="keep the rivals of rows that are there")
    parser.add_argument("--write", action="store_true", help="rewrite the table in every_size.md")
    options = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    place = {(name, str(collective)): i for i, (name, collective) in enumerate(cases("*"))}
    for name, collective in cases(options.only) if options.only else ():
        if name not in CLUSTERS:
            continue
        key = options.model, name, collective.value
        old = [each for each in kept if (each["model"], each["cluster"], each["collective"]) == key]
        if options.again and old:
            row = {**old[0], "plan_us": planned_us(name, collective, options.model)}
        else:
            row = counted(name, collective, options.model, options.limit)
        kept = [each for each in kept if each not in old] + [row]
        kept.sort(key=lambda each: (each["model"], place[each["cluster"], each["collective"]]))
        KEPT.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")
        print(*key, f"{faster(row)} faster", f"{row['cpu_s']} s", flush=True)
    made = table(kept)
    made.show(Console())
    if options.write:
        replace_generated(HERE / "every_size.md", "every_size_rivals.py", made.markdown())
    return int(any(map(faster, kept)))


if __name__ == "__main__":
    sys.exit(main())
