"""How far the fastest schedule found for a size is from the least time of that size, on fourteen clusters.

    python benchmarks/every_size.py [--only PATTERN] [--again] [--model NAME] [--write]

A case is a cluster and a collective, planned for 1 KiB to 4 GiB in powers of 4, on 1,024 GPUs for fewer sizes. Every
size is planned by itself, on a topology made anew: its gap and its processor seconds are those of `coppice plan
--size`. Results are kept in every_size.json, a row for each case and model, so that the table can be made in pieces;
`--only` counts its cases anew. With `--again` rows that are there are kept, and only sizes whose gap is above 5% are
planned anew.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.planned import gap_over, plan_for
from coppice.text import short_size, sizes_of
from coppice.topology import preset
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
KEPT = HERE / "every_size.json"
SIZES = sizes_of("1K:4G:4")
LARGE_SIZES = sizes_of("1K,64K,1M,64M,4G")
MODELS = ("ideal", "nccl-2.30")
COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_TO_ALL,
)
NEAR, NEARER = 0.15, 0.05
"""Gaps that the goal is about: all cells within the first one, and nine of ten within the second one."""
MOST_S, MOST_S_LARGE = 5, 60
"""Seconds in which a size is to be planned on up to 72 GPUs, and on 1,024."""
NEAR_LARGE = 0.10
"""On 1,024 GPUs nine of ten cells are to be within this one."""


def dead_nic() -> Topology:
    """Two DGX A100 of which the first GPU of the first box has lost its NIC."""
    return remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"])


CLUSTERS: Mapping[str, Callable[[], Topology]] = {
    "dgx-1v": partial(preset, "dgx-1v"),
    "dgx-a100": partial(preset, "dgx-a100"),
    "dgx-a100 x2": partial(preset, "dgx-a100", boxes=2),
    "dgx-a100 x4": partial(preset, "dgx-a100", boxes=4),
    "dgx-h100 x4": partial(preset, "dgx-h100", boxes=4),
    "mi250 x2": partial(preset, "mi250", boxes=2),
    "gb200-nvl72": partial(preset, "gb200-nvl72"),
    "dgx-h100 x8 on rails": partial(preset, "dgx-h100", boxes=8),
    "torus 4x4x4": partial(preset, "torus", dims=(4, 4, 4)),
    "hypercube 64": partial(preset, "hypercube", dimension=6),
    "dragonfly 72": partial(preset, "dragonfly", groups=9, routers_per_group=4, gpus_per_router=2),
    "dgx-a100 x2, a dead NIC": dead_nic,
}

LARGE: Mapping[str, Callable[[], Topology]] = {
    "dgx-h100 x128 on rails": partial(preset, "dgx-h100", boxes=128),
    "torus 8x8x16": partial(preset, "torus", dims=(8, 8, 16)),
}
"""Clusters of 1,024 GPUs."""


def cases(only: str) -> Iterator[tuple[str, Collective]]:
    """Clusters and collectives whose names match a pattern."""
    for name in (*CLUSTERS, *LARGE):
        for collective in COLLECTIVES:
            if fnmatch.fnmatch(f"{name} {collective}", only):
                yield name, collective


def sizes_on(name: str) -> tuple[int, ...]:
    """Sizes that are planned on a cluster."""
    return tuple(LARGE_SIZES if name in LARGE else SIZES)


def counted(
    name: str, collective: Collective, model: str, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Row of a case: the gap and the processor seconds of each size, and what limits the worst one.

    Args:
        known: A row that was counted before: what it has within the goal is kept.
    """
    sizes = sizes_on(name)
    old = {} if known is None else {place: gap for place, gap in enumerate(known["gap"]) if gap <= NEARER}
    rows: list[tuple[float, str, float | None, str]] = []
    for place, size in enumerate(sizes):
        if known is not None and place in old:
            rows.append((old[place], known["fastest"][place], known["seconds"][place], known["limit"]))
            continue
        made = (LARGE if name in LARGE else CLUSTERS)[name]()
        problem = Problem(made, collective, root=0 if collective.rooted else None)
        begun = time.process_time()
        found = plan_for(problem, [size], model=model, relay_gpus=None)
        seconds = time.process_time() - begun
        best, time_us = found.preferred.fastest[size]
        gap = gap_over(found.least[size].time_us, time_us)
        rows.append((round(gap, 4), best, round(seconds, 1), found.least[size].limit))
        print(
            " ", name, collective, model, short_size(size), f"{gap:.1%} {best}, {seconds:.1f} s", flush=True
        )
    gaps, fastest, spent, limits = (list(column) for column in zip(*rows, strict=True))
    return {
        "cluster": name,
        "collective": collective.value,
        "model": model,
        "gap": gaps,
        "fastest": fastest,
        "seconds": spent,
        "limit": limits[max(range(len(gaps)), key=gaps.__getitem__)],
    }


def table(rows: list[dict[str, Any]], clusters: Sequence[str], shares: tuple[float, float]) -> Table:
    """Gaps by case on some clusters, and how many cells are within two shares."""
    rows = [row for row in rows if row["cluster"] in clusters]
    made = Table(
        title="Gap to the least time" if clusters[0] in CLUSTERS else "Gap to the least time on 1,024 GPUs",
        header=(
            *("model", "cluster", "collective", *(f"within {share:.0%}" for share in shares)),
            *("worst", "at", "cpu", "for", "the worst is limited by"),
        ),
    )
    for row in rows:
        gaps = row["gap"]
        worst = max(range(len(gaps)), key=gaps.__getitem__)
        made.rows.append(
            (
                *(row["model"], row["cluster"], row["collective"]),
                *(f"{sum(each <= most for each in gaps)} of {len(gaps)}" for most in shares),
                f"{gaps[worst]:.1%}",
                short_size(sizes_on(row["cluster"])[worst]),
                *_longest(row),
                row["limit"],
            )
        )
    for model in MODELS:
        gaps = [gap for row in rows if row["model"] == model for gap in row["gap"]]
        if gaps:
            within = (
                f"{sum(gap <= most for gap in gaps) / len(gaps):.1%} within {most:.0%}" for most in shares
            )
            made.notes.append(f"{model}: {len(gaps)} cells, {', '.join(within)}.")
    spent = [each for row in rows for each in row["seconds"] if each is not None]
    limit_s = MOST_S if clusters[0] in CLUSTERS else MOST_S_LARGE
    slow = sum(each > limit_s for each in spent)
    made.notes.append(
        f"Planning took more than {limit_s} processor seconds in {slow} of the {len(spent)} cells in which it was "
        "measured."
    )
    missing = len(MODELS) * len(clusters) * len(COLLECTIVES) - len(rows)
    if missing:
        made.notes.append(
            f"Not counted yet: {missing} of {missing + len(rows)} cases, which are not in the table."
        )
    return made


def _longest(row: dict[str, Any]) -> tuple[str, str]:
    """Processor seconds of the size that took longest to plan, of those that were measured, and that size."""
    spent = [(each, place) for place, each in enumerate(row["seconds"]) if each is not None]
    if not spent:
        return number(None), ""
    most, place = max(spent)
    return number(most, unit="s"), short_size(sizes_on(row["cluster"])[place])


def main() -> None:
    """Count what is asked for, keep it, and print the table or write it into every_size.md as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        help="count cases that match this pattern, such as `torus* all_reduce`; none: print what is kept",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="keep the rows of these cases, and plan the sizes anew whose gap is above 5%%",
    )
    parser.add_argument("--model", choices=MODELS, action="append", help="in this model only")
    parser.add_argument("--write", action="store_true", help="rewrite the table in every_size.md")
    options = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    for name, collective in cases(options.only) if options.only else ():
        for model in options.model or MODELS:
            key = model, name, collective.value
            known = [row for row in kept if (row["model"], row["cluster"], row["collective"]) == key]
            row = counted(name, collective, model, known[0] if options.again and known else None)
            kept = [each for each in kept if (each["model"], each["cluster"], each["collective"]) != key]
            kept.append(row)
            place = {case: i for i, case in enumerate(cases("*"))}
            kept.sort(
                key=lambda each: (
                    MODELS.index(each["model"]),
                    place[each["cluster"], Collective(each["collective"])],
                )
            )
            KEPT.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")
            print(*key, f"worst {max(row['gap']):.1%}", flush=True)
    tables = [
        table(kept, list(CLUSTERS), (NEARER, NEAR)),
        table(kept, list(LARGE), (NEAR_LARGE, NEAR)),
    ]
    for made in tables:
        made.show(Console())
    if options.write:
        replace_generated(
            HERE / "every_size.md", "every_size.py", "\n".join(f"{made.markdown()}\n" for made in tables)
        )


if __name__ == "__main__":
    main()
