"""Blink on every allocation of 3 to 8 GPUs of a DGX-1: how near few whole trees come to the exact optimum.

    python benchmarks/blink.py [--quick] [--write]

Allocations that are linked alike, root included, count together and are measured once. Broadcast is measured from every
GPU of an allocation. A whole tree takes one NVLink; where whole trees lose more than 5%, Blink allows parts of one.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from rich.console import Console

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.synthesis.synthesizing import synthesize
from coppice.topology import preset, subset
from coppice.topology.model import Topology
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
ENOUGH = Fraction(95, 100)


def machines() -> dict[str, Topology]:
    """The boxes: six NVLinks of 25 GB/s on a V100, and four of 20 GB/s, one a pair, on a P100."""
    volta = preset("dgx-1v")
    pascal = replace(volta, name="dgx-1 (P100)", capacity=np.full_like(volta.capacity, 20), denominator=1)
    return {"V100": volta, "P100": pascal}


def table_of(box: Topology) -> np.ndarray:
    """Rate between every two GPUs in units of the topology."""
    rates = np.zeros((box.num_ranks, box.num_ranks), dtype=np.int64)
    rates[box.rank[box.src], box.rank[box.dst]] = box.capacity
    return rates


def form(rates: np.ndarray, chosen: tuple[int, ...], *, rooted: bool) -> bytes:
    """The same for allocations that are linked alike, with the first GPU as the root if they are rooted."""
    orders = (
        [(0, *rest) for rest in permutations(range(1, len(chosen)))]
        if rooted
        else permutations(range(len(chosen)))
    )
    every = np.array(chosen)[np.array(list(orders))]
    tables = rates[every[:, :, None], every[:, None, :]].reshape(len(every), -1)
    return bytes(max(map(bytes, np.unique(tables.astype(np.uint8), axis=0))))


@dataclass(frozen=True)
class Found:
    """What one kind of allocation got: shares of the optimum, and trees."""

    whole: Fraction
    share: Fraction
    trees: int


def measured(box: Topology, chosen: tuple[int, ...], collective: Collective) -> Found | None:
    """The shares that whole trees and trees with parts reach; None where NVLinks do not connect the GPUs."""
    topology = subset(box, list(chosen))
    problem = Problem(topology, collective, root=0 if collective.rooted else None)
    try:
        optimum = bound(problem).algbw_gb_per_s
    except UnreachableError:
        return None
    whole = synthesize(problem, method="blink", options={"loss": 0.99})
    best = whole
    if whole.planned is None or whole.planned.algbw_gb_per_s < ENOUGH * optimum:
        best = synthesize(problem, method="blink")
    assert whole.planned is not None
    assert best.planned is not None
    phases = 2 if collective is Collective.ALL_REDUCE else 1
    return Found(
        whole=whole.planned.algbw_gb_per_s / optimum,
        share=best.planned.algbw_gb_per_s / optimum,
        trees=best.plan.forest.num_trees // phases,
    )


def allocations(box: Topology, size: int, collective: Collective) -> Iterator[tuple[tuple[int, ...], int]]:
    """One allocation of each kind, its first GPU the root, and how many there are."""
    rates, count = table_of(box), Counter[bytes]()
    seen: dict[bytes, tuple[int, ...]] = {}
    for chosen in combinations(range(box.num_ranks), size):
        roots = range(size) if collective.rooted else range(1)
        for root in roots:
            turned = (chosen[root], *chosen[:root], *chosen[root + 1 :])
            key = form(rates, turned, rooted=collective.rooted)
            seen.setdefault(key, turned)
            count[key] += 1
    yield from ((seen[key], count[key]) for key in seen)


def percent(share: Fraction) -> str:
    """A share with one decimal, never rounded up to all."""
    return "100%" if share == 1 else f"{int(share * 1000) / 10:.1f}%"


def main() -> None:
    """Measure all allocations and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="allocations of 3 GPUs only")
    parser.add_argument("--write", action="store_true", help="rewrite the table in blink.md")
    options = parser.parse_args()
    began = time.process_time()
    header = (
        "GPUs",
        "collective",
        "allocations",
        "linked",
        "kinds",
        "whole trees, worst",
        "whole trees >= 95%",
        "with parts, worst",
        "trees at most",
        "goal",
    )
    tables = []
    for name, box in machines().items():
        table = Table(title=f"DGX-1 with {name}", header=header)
        for collective in (Collective.BROADCAST, Collective.ALL_REDUCE):
            for size in range(3, 4 if options.quick else 9):
                found: dict[bool, list[tuple[int, Found | None]]] = defaultdict(list)
                for chosen, count in allocations(box, size, collective):
                    each = measured(box, chosen, collective)
                    found[each is not None].append((count, each))
                linked = [(count, each) for count, each in found[True] if each is not None]
                worst = min(each.share for _, each in linked)
                table.rows.append(
                    (
                        str(size),
                        collective.value,
                        str(sum(count for each in found.values() for count, _ in each)),
                        str(sum(count for count, _ in linked)),
                        str(len(linked)),
                        percent(min(each.whole for _, each in linked)),
                        str(sum(count for count, each in linked if each.whole >= ENOUGH)),
                        percent(worst),
                        str(max(each.trees for _, each in linked)),
                        "ok" if worst >= ENOUGH else "MISS",
                    )
                )
        table.show(Console())
        tables.append(table)
    tables[-1].notes.append(
        "`allocations` counts sets of GPUs, for a broadcast with each of their GPUs as the root; `linked`: those that "
        "NVLinks connect, of so many `kinds`. Shares are of the exact optimum: the max-flow bound of a broadcast, the "
        "packing of mirrored trees of an all-reduce. Goal: 95% with parts."
    )
    if options.write:
        seconds = f"{time.process_time() - began:.0f} s of processor time"
        machine = f"`python benchmarks/blink.py` on {platform.system()} {platform.machine()}: {seconds}.\n\n"
        text = "\n".join(table.markdown() for table in tables)
        replace_generated(HERE / "blink.md", "blink.py", machine + text)


if __name__ == "__main__":
    main()
