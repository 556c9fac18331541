"""All-to-all of unequal blocks: how near two stages come to the optimum, next to direct exchange, FAST and SABRE.

    python benchmarks/skewed_exchange.py [--skews 1000] [--large]        # writes skewed_exchange.md

Every skew is a random matrix of demands (heavy tails, Zipf popularity of experts, a few hot receivers, few blocks) on a
cluster of 16 to 64 ranks, judged by exact link loads. A plan within 1% of its own bound is within 1% of the optimum;
where the bound is farther away, the linear program of the exact flow decides.
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow
from coppice.bounds.all_to_all.distances import length_bound
from coppice.bounds.all_to_all.two_stage import Deal, boxes_with_hops, two_stages
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.topology.presets import preset
from tables import Table

CLUSTERS = [
    *(("dgx-h100", boxes) for boxes in (2, 4, 8)),
    *(("dgx-a100", boxes) for boxes in (2, 4, 8)),
    *(("dgx-b200", boxes) for boxes in (2, 4)),
    *(("mi300x", boxes) for boxes in (2, 4)),
]
LARGE = (("dgx-h100", 64), ("dgx-h100", 128), ("mi300x", 128), ("dgx-a100", 128))
OTHERS = {"direct": Deal.DIRECT, "fast": Deal.KEPT, "sabre, even": Deal.EVEN, "sabre, 2D": Deal.TARGET}
KINDS = ("heavy tails", "zipf", "hot", "sparse")


def skew(rng: np.random.Generator, ranks: int, kind: str) -> np.ndarray:
    """A matrix of demands."""
    if kind == "heavy tails":
        found = (1000 * rng.pareto(1 + rng.random(), (ranks, ranks))).astype(np.int64)
    elif kind == "zipf":
        popular = 1 / np.arange(1, ranks + 1) ** (0.5 + rng.random())
        share = rng.permutation(popular / popular.sum())
        found = np.stack([rng.multinomial(4096, share) for _ in range(ranks)])
    elif kind == "hot":
        found = rng.integers(1, 10, (ranks, ranks))
        found[:, rng.choice(ranks, rng.integers(1, 4), replace=False)] += rng.integers(50, 500)
    else:
        found = rng.integers(1, 100, (ranks, ranks)) * (
            rng.random((ranks, ranks)) < 0.02 + 0.2 * rng.random()
        )
        found[0, ranks - 1] += 1
    found = found.astype(np.int64)
    np.fill_diagonal(found, 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--skews", type=int, default=1000)
    parser.add_argument("--large", action="store_true", help="the large clusters only")
    given = parser.parse_args()
    texts = []
    if not given.large:
        texts.append(small(given.skews))
    texts.append(large())
    if not given.large:
        Path(__file__).with_suffix(".md").write_text(
            "# Skewed all-to-all\n\nMade by `python benchmarks/skewed_exchange.py`. "
            "Times are processor time of one core. "
            "Where two stages leave a gap, `coppice plan` solves the exact flow up to 64 ranks (by program).\n\n"
            + "\n\n".join(texts)
            + "\n"
        )
    print("\n\n".join(texts))


def small(skews: int) -> str:
    rng = np.random.default_rng(0)
    rows: list[tuple[str, ...]] = []
    per = -(-skews // len(CLUSTERS))
    for name, boxes in CLUSTERS:
        topology = preset(name, boxes=boxes)
        gaps: list[float] = []
        gains: dict[str, list[float]] = {each: [] for each in OTHERS}
        slower, spent, programs = 0, 0.0, 0
        for number in range(per):
            demand = skew(rng, topology.num_ranks, KINDS[number % len(KINDS)])
            begun = time.process_time()
            found = two_stages(topology, demand)
            spent += time.process_time() - begun
            assert found is not None
            assert length_bound(topology, demand, found.length) == found.bound
            best = found.bound
            if found.reached > best * Fraction(101, 100):
                programs += 1
                posed: Any = demand
                best = concurrent_flow(
                    Problem(topology, Collective.ALL_TO_ALL, demands=posed), staged=False
                ).reached
            gaps.append(float(found.reached / best) - 1)
            for each, deal in OTHERS.items():
                other = two_stages(topology, demand, deal=deal)
                assert other is not None
                gains[each].append(float(other.reached / found.reached))
                slower += other.reached < found.reached
        within = sum(gap <= 0.01 for gap in gaps)
        rows.append(
            (
                f"{name} x {boxes}",
                str(topology.num_ranks),
                f"{within} of {per}",
                f"{100 * max(gaps):.2f}%",
                str(programs),
                *(f"{np.mean(own):.2f}" for own in gains.values()),
                str(slower),
                f"{1e3 * spent / per:.1f}",
            )
        )
        print(rows[-1], flush=True)
    return Table(
        title=f"{per * len(CLUSTERS)} random skews: two stages against the optimum; times of others over theirs (mean)",
        header=("cluster", "ranks", "within 1%", "worst", "by program", *OTHERS, "slower than another", "ms"),
        rows=rows,
    ).markdown()


def large() -> str:
    rng = np.random.default_rng(1)
    rows: list[tuple[str, ...]] = []
    for name, boxes in LARGE:
        topology = preset(name, boxes=boxes)
        boxes_with_hops(topology)  # of the cluster, not of the demands
        for kind in KINDS[:3]:
            demand = skew(rng, topology.num_ranks, kind)
            begun = time.process_time()
            found = two_stages(topology, demand)
            took = time.process_time() - begun
            assert found is not None
            direct = two_stages(topology, demand, deal=Deal.DIRECT)
            assert direct is not None
            rows.append(
                (
                    f"{name} x {boxes}",
                    str(topology.num_ranks),
                    kind,
                    f"{100 * found.gap:.3f}%",
                    f"{float(direct.reached / found.reached):.2f}",
                    f"{took:.2f}",
                )
            )
            print(rows[-1], flush=True)
    return Table(
        title="Large clusters: bracket and time",
        header=("cluster", "ranks", "demands", "gap at most", "direct / two stages", "s"),
        rows=rows,
    ).markdown()


if __name__ == "__main__":
    main()
