"""Exchanges of uneven sizes on rate-limited networks: by a plan for their traffic, and directly.

    python benchmarks/mixture_exchange.py [--rate 200] [--rounds 9]         # a table (Linux, root)

Four ranks on a ring and on a star. Traffic: everybody sends as much to everybody (even), most goes to the rank across
(across), or to one rank, as with a popular expert (popular). A figure is the median over rounds of the slowest rank's
time; exchanges follow each other, plans are made before. The least time is that of the bound: bytes over links that no
schedule can avoid.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.planning import plan
from coppice.run.lab.launch import launch_ranks
from coppice.topology.presets import preset
from lab import say, standing
from tables import Table

RANKS, WIDTH = 4, 256
ROWS = 3200
"""Rows that a rank sends."""
TRAFFIC = ("even", "across", "popular")
_MORE = 6
"""How much more goes where most goes."""


def part_of(name: str, source: int, target: int) -> int:
    """What a rank sends to another, beside what it sends to others."""
    hot = {"even": False, "across": target == (source + 2) % RANKS, "popular": target == 0}[name]
    return _MORE if hot else 1


def matrix_of(name: str) -> list[list[int]]:
    """Rows from each rank to each."""
    parts = [[0 if i == j else part_of(name, i, j) for j in range(RANKS)] for i in range(RANKS)]
    return [[ROWS * part // sum(row) for part in row] for row in parts]


def rank_main(network: str, rounds: int) -> None:
    """One rank: times of each traffic."""
    import torch
    import torch.distributed as dist

    from coppice.training.torch.whole.mixture.exchanges import DirectExchanges
    from coppice.training.torch.whole.mixture.skewed import PlannedExchange

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ways = {
        "direct": DirectExchanges(),
        "planned": DirectExchanges(PlannedExchange(preset(network, gpus=RANKS, gb_per_s=1), pieces=8)),
    }
    found: dict[str, dict[str, float]] = {}
    for name in TRAFFIC:
        matrix = matrix_of(name)
        sent, received = matrix[rank], [row[rank] for row in matrix]
        rows = torch.randn(sum(sent), WIDTH)
        times: dict[str, list[float]] = {way: [] for way in ways}
        outputs = {}
        for turn in range(-2, rounds):
            for way, exchanges in ways.items():
                dist.barrier()
                begin = time.perf_counter()
                outputs[way] = exchanges.post(name, rows, sent, received, dist.group.WORLD).wait()
                slowest = torch.tensor([time.perf_counter() - begin])
                dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
                if turn >= 0:
                    times[way].append(float(slowest))
        assert torch.equal(*outputs.values())
        found[name] = {way: statistics.median(own) for way, own in times.items()}
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of a link")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--network", default="ring,star")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(given.network, given.rounds)
        return
    cells = []
    for network in given.network.split(","):
        topology = preset(network, gpus=RANKS, gb_per_s=1)
        out = io.StringIO()
        with standing("exchange", topology, Fraction(given.rate, 8000)) as lab:
            say(f"{network}, {given.rate} Mbit/s")
            command = [sys.executable, str(Path(__file__).resolve()), "--rank"]
            command += ["--network", network, "--rounds", str(given.rounds)]
            launch_ranks(lab, command, timeout_s=300, out=out, err=io.StringIO())
        line = next(each for each in out.getvalue().splitlines() if each.startswith("{"))
        for name, times in json.loads(line).items():
            matrix = matrix_of(name)
            problem = Problem(topology, Collective.ALL_TO_ALL, demands=tuple(map(tuple, matrix)))
            row: Any = plan(problem, ring=False).bound.inv_rate  # bytes of a row over 1 GB/s, in ns
            least = float(row) * WIDTH * 4 * (8000 / given.rate) / 1e9
            cells.append(
                (
                    network,
                    name,
                    *(f"{1e3 * each:.0f}" for each in (times["direct"], times["planned"], least)),
                    f"{times['direct'] / times['planned']:.2f}",
                )
            )
    print(
        Table(
            title=f"{RANKS} ranks that send {ROWS * WIDTH * 4 / 1e3:.0f} kB each, links of {given.rate} Mbit/s",
            header=("network", "traffic", "direct ms", "planned ms", "least ms", "direct / planned"),
            rows=cells,
        ).text()
    )


if __name__ == "__main__":
    main()
