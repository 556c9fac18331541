"""Trees in strongly polynomial time: the guaranteed way beside the fast search, on networks without any slack.

    python benchmarks/guarantee.py [--quick] [--write]

A network is planted: random spanning trees with random weights on a random graph, and the capacities are what they
take, so each tree has to fit exactly. The fast search is asked for its packing; then it is switched off, and all is
packed by splitting. Each packing is checked by counting. Exponents are slopes of a line through logarithms.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coppice import _core
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
SIZES = (16, 24, 32, 48, 64, 96)
DEGREE = 6
WEIGHT = 10**6


def planted(ranks: int, switches: int, seed: int = 1) -> tuple[Any, ...]:
    """Arguments of the packer: capacities that ``ranks`` random trees, one from each rank, take to the last unit."""
    rng = random.Random(seed)
    size = ranks + switches
    around = list(range(size))
    rng.shuffle(around)
    after = dict(zip(around, [*around[1:], around[0]], strict=True))
    near = [
        [after[v], *rng.sample([u for u in range(size) if u not in (v, after[v])], DEGREE - 1)]
        for v in range(size)
    ]
    capacity: dict[tuple[int, int], int] = {}
    roots = [0] * size
    for root in range(ranks):
        weight = rng.randint(1, WEIGHT)
        roots[root] = weight
        parent = {root: root}
        open_ = [root]
        while open_:
            v = open_.pop(rng.randrange(len(open_)))
            for u in near[v]:
                if u not in parent:
                    parent[u] = v
                    open_.append(u)
        for rank in range(ranks):  # an edge of the tree is a path through switches
            v = rank
            while v != root and (v == rank or v >= ranks):
                capacity[parent[v], v] = capacity.get((parent[v], v), 0) + weight
                v = parent[v]
    links = sorted(capacity)
    src, dst = (np.array(ends, dtype=np.int32) for ends in zip(*links, strict=True))
    amounts = np.array([capacity[link] for link in links], dtype=np.int64)
    return size, src, dst, amounts, np.array(roots, dtype=np.int64), np.arange(size) < ranks


def check(network: tuple[Any, ...], found: dict[str, Any]) -> None:
    """Raise unless the trees span all ranks within the capacities, as many from each root as asked for."""
    size, src, dst, capacity, roots, terminal = network
    left = dict(zip(zip(src.tolist(), dst.tolist(), strict=True), capacity.tolist(), strict=True))
    start, nodes = found["path_start"].tolist(), found["path_nodes"].tolist()
    rooted = [0] * size
    for tree, (root, weight) in enumerate(zip(found["tree_root"], found["tree_weight"], strict=True)):
        rooted[root] += int(weight)
        reached = {int(root)}
        for edge in range(found["tree_start"][tree], found["tree_start"][tree + 1]):
            first, last = int(found["edge_src"][edge]), int(found["edge_dst"][edge])
            path = nodes[start[found["edge_path"][edge]] : start[found["edge_path"][edge] + 1]]
            if first not in reached or last in reached or (path[0], path[-1]) != (first, last):
                raise SystemExit("a tree is no tree")
            reached.add(last)
            for link in pairwise(path):
                left[link] -= int(weight)
        if reached != set(np.flatnonzero(terminal).tolist()):
            raise SystemExit("a tree does not span")
    if rooted != roots.tolist() or min(left.values()) < 0:
        raise SystemExit("the trees do not fit")


def packed(network: tuple[Any, ...], most_checks: int) -> tuple[float, dict[str, Any]]:
    """Processor seconds of a packing, and the packing."""
    size, src, dst, capacity, roots, terminal = network
    start = time.process_time()
    found = _core.pack_trees(size, src, dst, capacity, roots, terminal, most_checks=most_checks)
    seconds = time.process_time() - start
    check(network, found)
    return seconds, found


def most_flows(vertices: int, switches: int, pairs: int) -> int:
    """Max-flows that the theorem allows."""
    n = vertices - switches
    return switches * (vertices - 1) ** 2 * n + (n - 1) * (n + pairs + n * pairs) + n * pairs


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Exponent of the power of the size that fits the values best."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def family(title: str, switches_per_rank: float, sizes: tuple[int, ...]) -> Table:
    """One table."""
    table = Table(
        title=title,
        header=(
            "ranks",
            "switches",
            "links",
            "search: checks",
            "search: CPU s",
            "trees",
            "guarantee: flows",
            "allowed",
            "guarantee: CPU s",
            "trees ",
            "search / guarantee",
        ),
    )
    fast_s: list[float] = []
    sure_s: list[float] = []
    flows: list[int] = []
    allowed: list[int] = []
    checks: list[int] = []
    for ranks in sizes:
        switches = int(ranks * switches_per_rank)
        network = planted(ranks, switches)
        fast, by_search = packed(network, most_checks=2**62)
        sure, by_splitting = packed(network, most_checks=0)
        pairs = ranks * (ranks - 1) if switches else len(network[1])
        most = most_flows(ranks + switches, switches, pairs)
        if not 0 < by_splitting["stats"]["flows"] <= most or by_search["stats"]["flows"]:
            raise SystemExit("more max-flows than the theorem allows, or the switch does not switch")
        fast_s.append(fast)
        sure_s.append(sure)
        flows.append(by_splitting["stats"]["flows"])
        allowed.append(most)
        checks.append(by_search["stats"]["checks"])
        table.rows.append(
            (
                str(ranks),
                str(switches),
                str(len(network[1])),
                str(checks[-1]),
                f"{fast:.3f}",
                str(len(by_search["tree_root"])),
                str(flows[-1]),
                f"{most:.2g}",
                f"{sure:.3f}",
                str(len(by_splitting["tree_root"])),
                f"{fast / sure:.1f}",
            )
        )
    table.notes.append(
        f"Exponent in the number of ranks: flows {slope(sizes, flows):.2f} where the theorem allows "
        f"{slope(sizes, allowed):.2f}; processor time of the guarantee {slope(sizes, sure_s):.2f}, of the search "
        f"{slope(sizes, fast_s):.2f}."
    )
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="up to 32 ranks")
    parser.add_argument("--write", action="store_true", help="rewrite the tables in guarantee.md")
    options = parser.parse_args()
    sizes = SIZES[:3] if options.quick else SIZES
    before = time.process_time()
    tables = [
        family("Ranks that are linked directly", 0, sizes),
        family("Half as many switches as ranks", 0.5, sizes),
    ]
    console = Console()
    for table in tables:
        table.show(console)
    if options.write:
        seconds = f"{time.process_time() - before:.0f} s of processor time"
        machine = (
            f"`python benchmarks/guarantee.py` on {platform.system()} {platform.machine()}: {seconds}.\n\n"
        )
        text = "\n".join(table.markdown() for table in tables)
        replace_generated(HERE / "guarantee.md", "guarantee.py", machine + text)


if __name__ == "__main__":
    main()
