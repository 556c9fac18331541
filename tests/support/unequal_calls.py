"""All-to-alls of unequal blocks with drawn counts, carried out on an engine and compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.rates import RankRates
from coppice.run.alltoallv.exchange import BlockExchange
from coppice.run.engines.datatype import DataType
from coppice.topology.model import Link, Node, NodeKind, Topology

KINDS = ("even", "heavy tails", "hot", "sparse", "empty ranks", "nothing")
PATIENCE_S = 900  # of a rank that another one may have to wait for, on a machine with other work
TYPES = (DataType.UINT8, DataType.INT32, DataType.FLOAT32, DataType.INT64, DataType.FLOAT64)


@dataclass(frozen=True)
class UnequalCall:
    """One exchange, drawn from its seed by every rank alike."""

    seed: int
    ranks: int
    most: int = 300  # Elements of a block, more or less
    direct: bool = False  # As :mod:`support.generated_calls` has it

    def counts(self) -> NDArray[np.int64]:
        """Elements from each rank to each."""
        rng, ranks = np.random.default_rng(self.seed), self.ranks
        kind = KINDS[self.seed % len(KINDS)]
        found = rng.integers(0, self.most, (ranks, ranks))
        if kind == "even":
            found[:] = found[0, 0]
        elif kind == "heavy tails":
            found = np.minimum(self.most * rng.pareto(1.2, (ranks, ranks)), 40 * self.most).astype(np.int64)
        elif kind == "hot":
            found[:, rng.integers(ranks)] += 10 * self.most
        elif kind == "sparse":
            found *= rng.random((ranks, ranks)) < 0.2
        elif kind == "empty ranks":
            found[rng.random(ranks) < 0.4, :] = 0
            found[:, rng.random(ranks) < 0.4] = 0
        else:
            found[:] = 0
        return found.astype(np.int64)

    def rates(self) -> RankRates:
        """A network of equal boxes, at times with ranks in another order and rates that differ."""
        rng, ranks = np.random.default_rng(10**6 + self.seed), self.ranks
        widths = [width for width in range(1, ranks + 1) if ranks % width == 0]
        far = rng.integers(1, 4, ranks) if self.seed % 3 == 0 else np.ones(ranks)
        order = rng.permutation(ranks) if self.seed % 2 else np.arange(ranks)
        return RankRates(
            width=int(rng.choice(widths)),
            order=order.astype(np.int32),
            crossing=bool(rng.integers(2)),
            near=rng.integers(1, 12, ranks),
            far=far.astype(np.int64),
            denominator=10**9,  # so slow that relays always pay
        )

    def run(self, engine: Any, at_once: Callable[[], object] = lambda: None) -> str:
        """What is wrong, or nothing.

        Args:
            engine: This rank's end of the group: an engine, or a process group of torch.
            at_once: Is called when the others are about to wait for this rank.
        """
        dtype = TYPES[self.seed % len(TYPES)]
        counts = self.counts()
        rank: int = engine.rank() if callable(engine.rank) else engine.rank
        rows = [
            np.random.default_rng([self.seed, source]).integers(0, 100, int(counts[source].sum()))
            for source in range(self.ranks)
        ]
        first = np.cumsum(counts, axis=1) - counts
        wanted = np.concatenate(
            [
                rows[source][first[source, rank] : first[source, rank] + counts[source, rank]]
                for source in range(self.ranks)
            ]
        ).astype(dtype.numpy_name)
        given, found = rows[rank].astype(dtype.numpy_name), np.full(len(wanted), 101, dtype=dtype.numpy_name)
        sent, received = counts[rank].tolist(), counts[:, rank].tolist()
        if hasattr(engine, "all_to_all_single"):
            import torch

            at_once()
            taken, brought = torch.from_numpy(found), torch.from_numpy(given)
            engine.all_to_all_single(taken, brought, received, sent).wait()
        else:
            exchange = BlockExchange(engine, self.rates())
            agreed = exchange.counts(sent, None if self.seed % 7 == 0 else received, dtype)
            at_once()
            exchange.carry_out(agreed, given, found, dtype=dtype, timeout_s=PATIENCE_S)
        wrong = int((found != wanted).sum())
        return f"{self}: {wrong} of {len(wanted)} elements are wrong on rank {rank}" if wrong else ""


def two_boxes(members: int = 2) -> Topology:
    """Boxes of GPUs on a switch, with NICs of a thousandth of its rate on another switch."""
    nodes, links = [Node(id="network", kind=NodeKind.SWITCH)], []
    for box in range(2):
        nodes.append(Node(id=f"{box}/switch", kind=NodeKind.SWITCH, host=str(box)))
        for each in range(members):
            name = f"{box}/gpu{each}"
            nodes += [
                Node(id=name, host=str(box)),
                Node(id=f"{box}/nic{each}", kind=NodeKind.NIC, host=str(box)),
            ]
            links.append(Link(src=name, dst=f"{box}/switch", gb_per_s=1))
            links.append(Link(src=name, dst=f"{box}/nic{each}", gb_per_s="1/1000"))
            links.append(Link(src=f"{box}/nic{each}", dst="network", gb_per_s="1/1000"))
    return Topology.of("two boxes", nodes, links)


def unequal_calls(ranks: int, number: int, *, first: int = 0) -> list[UnequalCall]:
    """So many calls."""
    return [UnequalCall(seed, ranks) for seed in range(first, first + number)]
