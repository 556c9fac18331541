"""What the exam predicts from tables and topologies of one box: profiled iterations, and all-reduces around rings."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.ring.best import best_ring
from coppice.topology import Topology, preset
from coppice.topology.operations import subset

Row = Mapping[str, str]


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


EMBEDDING_S = 0.833e-3
"""Forward and backward pass of the embedding, which the profile has in one number with head and loss: the launches of
its kernels, so that it does not grow with the micro-batch."""
SORTED_TOKENS = 3072
"""Tokens beyond which PyTorch sorts the indices in the backward pass of an embedding (aten/src/ATen/native/cuda/
Embedding.cu): with all the launches of a sort it takes twice as long."""
SEND_BYTES_PER_S = 12.5 * 2**30
"""100 Gb/s, of which the program took a gigabyte for 2^30 bytes."""


@cache
def profile_of(folder: Path) -> Mapping[tuple[int, int, int], Row]:
    """Rows of the layer profile by hidden width, tensor parallelism and micro-batch."""
    rows = read(folder / "a100_layer_profile.csv")
    return {(int(row["hidden"]), int(row["tp"]), int(row["micro_batch"])): row for row in rows}


@cache
def in_place_table(folder: Path) -> Mapping[int, list[tuple[int, float]]]:
    """Measured in-place all-reduces of the A100 box: for each number of ranks bytes and seconds."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in read(folder / "nccl_allreduce.csv"):
        if row["gpu"] == "A100":
            found.setdefault(int(row["ranks"]), []).append(
                (int(row["bytes"]), float(row["time_in_place_us"]) / 1e6)
            )
    return {ranks: sorted(rows) for ranks, rows in found.items()}


def table_seconds(folder: Path, ranks: int, size: float) -> float:
    """The time in the table for the next size; beyond it that of its last bus bandwidth taken as algorithm bandwidth,
    as the program did whose output the rows are."""
    rows = in_place_table(folder)[ranks]
    for bytes_, seconds in rows:
        if bytes_ >= size:
            return seconds
    last, seconds = rows[-1]
    return size * seconds / (last * 2 * (ranks - 1) / ranks)


def profiled_seconds(row: Row, folder: Path) -> float:
    """The arithmetic of 1F1B over profiled layers: nothing is modelled but the order.

    The first micro-batch goes through all stages and back. Each further one takes the last stage its layers, the head,
    and a send, since the gradient leaves on the stream of the computation; the embedding is on another stage.
    """
    hidden, tensor, stages, data = (int(row[key]) for key in ("hidden", "tp", "pp", "dp"))
    micro_batch, seq = int(row["micro_batch"]), int(row["seq"])
    count = int(row["global_batch"]) // (micro_batch * data)
    profile = profile_of(folder)[hidden, tensor, micro_batch]
    held = int(row["layers"]) / stages
    stage = held * float(profile["layer_fwd_bwd_ms"]) / 1e3
    ends = float(profile["embedding_head_loss_fwd_bwd_ms"]) / 1e3
    step = (held * float(profile["update_per_layer_ms"]) + float(profile["update_rest_ms"])) / 1e3
    seconds = count * (stage + ends) + step
    if stages > 1:
        send = 2 * micro_batch * seq * hidden / SEND_BYTES_PER_S
        embedding = EMBEDDING_S * (2 if micro_batch * seq > SORTED_TOKENS else 1)
        seconds = stages * stage + ends + 2 * (stages - 1) * send + step
        seconds += (count - 1) * (stage + ends - embedding + send)
    if data > 1:
        words = int(row["vocab"]) * hidden * (2 if stages == 1 else 1)
        seconds += table_seconds(folder, data, 2 * (12 * hidden**2 * held + words) / tensor)
    return seconds


V100_RANKS = (0, 2, 3, 1, 4, 6, 7, 5)  # the box numbers its GPUs so that 0 and 1 share one NVLink
NVLINK = 25e9  # bytes/s of one NVLink of a V100
RINGS = {
    "A100": (20.8e-6, 1.52e-6, 0.0, 776e9, 8.37e-9),
    "V100": (27.5e-6, 0.0, 3.15e-6, math.inf, 0.0),
}
"""Seconds of a launch, of a hop and of each ring, rate of one more pass over memory, and seconds for the square root of
a byte, as filling a pipeline costs whose pieces grow with the buffer. Of A100 fitted to 2, 4 and 8 ranks."""
SHARES: Mapping[str, Mapping[int, float]] = {
    "A100": {},
    "V100": {0: 0.928, 1: 0.903, 2: 0.913, 4: 0.868, 6: 0.900},
}
"""Share of their links' rate that so many rings of one NVLink reach together; 0: a chain. 3 and 6 ranks have two rings
and agree within 1%, 4 and 7 have four and agree within 2%, which is less than how far two and four rings are apart."""
SHARE = 0.95
"""That of rings through a switch, which have all links of a GPU."""


class RingRate(NamedTuple):
    """Bus bandwidth of rings, and how many of one NVLink that is."""

    bytes_per_second: float
    rings: int  # 0: a chain, or rings through a switch


@cache
def ring_rate(gpu: str, ranks: int) -> RingRate:
    """The best rings on the first GPUs of a box; where no ring joins them, a chain.

    A chain of NVLinks reduces in one direction and broadcasts in the other, each link all bytes once.

    Raises:
        InputError: If no chain of NVLinks joins them either.

    Examples:
        >>> [ring_rate("V100", ranks).bytes_per_second / 1e9 for ranks in (2, 3, 4, 5, 6, 7, 8)]
        [25.0, 50.0, 100.0, 40.0, 50.0, 100.0, 150.0]
    """
    box = preset("dgx-a100") if gpu == "A100" else subset(preset("dgx-1v"), V100_RANKS)
    part = subset(box, range(ranks))
    ring = best_ring(Problem(topology=part, collective=Collective.ALL_REDUCE))
    if ring is not None:
        rate = 1e9 * float(ring.busbw_gb_per_s)
        return RingRate(rate, round(rate / NVLINK) if gpu == "V100" else 0)
    if not _has_chain(part, ranks):
        raise InputError(f"no ring or chain of NVLinks joins {ranks} GPUs of the {gpu} box.")
    return RingRate(NVLINK * 2 * (ranks - 1) / ranks, 0)


def _has_chain(part: Topology, ranks: int) -> bool:
    """Whether some order of the ranks has a link from each to the next."""
    links = set(zip(part.rank[part.src].tolist(), part.rank[part.dst].tolist(), strict=True))
    return any(
        all(pair in links and pair[::-1] in links for pair in pairwise(order))
        for order in permutations(range(ranks))
    )


def ring_seconds(row: Row, folder: Path) -> float:
    """An all-reduce around rings: launch, hops, links, a pass over memory, and filling the pipeline."""
    del folder
    launch, hop, start, memory, fill = RINGS[row["gpu"]]
    ranks, size = int(row["ranks"]), int(row["bytes"])
    rate, rings = ring_rate(row["gpu"], ranks)
    rounds, shares = 2 * (ranks - 1), SHARES[row["gpu"]]
    links = rounds / ranks / (shares.get(rings, SHARE) * rate)
    began = launch + rounds * hop + max(1, rings) * start
    return began + size * (links + 1 / memory) + fill * math.sqrt(size)
