"""Measure rates between the running ranks, alone and concurrently, without assumptions on the network.

An experiment is a set of flows that start together, with sizes by weight; its figure is the rate that a flow of weight
one has while all of them run: its size divided by the time until the last has arrived. The time of a size is subtracted
from that of twice the size, so that start-up and the bursts that shapers let through do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankBuffer, RankProgram
from coppice.rows import first_rows
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine

Rate = Callable[["Experiment"], float]
"""Gives the rate of every flow of an experiment in GB/s; on an engine, every rank calls it alike."""

_FIRST_BYTES = 1 << 16
_LARGEST_BYTES = 1 << 30
_FINEST = 100
_LEAST_S = 0.06
"""A size is large enough when it takes so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Concurrent flows."""

    kind: str  # `pair`, `out`, `in`, `out-of-group`, `into-group`, `group-out`, `group-in` or `all`
    flows: tuple[tuple[int, int], ...]  # (sender, receiver) of each
    weights: tuple[int, ...] = ()  # Relative size of each flow; empty for equal ones

    @property
    def sizes(self) -> tuple[int, ...]:
        """Weight of each flow."""
        return self.weights or (1,) * len(self.flows)


@dataclass(frozen=True, kw_only=True, slots=True)
class RateMeasurement:
    """Measured rate of an experiment for a flow of weight one, in GB/s."""

    experiment: Experiment
    gb_per_s: float

    @property
    def total_gb_per_s(self) -> float:
        """Total rate of all flows."""
        return self.gb_per_s * sum(self.experiment.sizes)

    def sent_by(self, ranks: Iterable[int]) -> float:
        """Total rate of the flows that start at these ranks, GB/s."""
        chosen = set(ranks)
        flows = zip(self.experiment.flows, self.experiment.sizes, strict=True)
        return self.gb_per_s * sum(size for (src, _), size in flows if src in chosen)


def pair_experiments(ranks: int) -> list[Experiment]:
    """One experiment for each ordered pair."""
    return [Experiment(kind="pair", flows=((a, b),)) for a in range(ranks) for b in range(ranks) if a != b]


def rank_experiments(groups: Sequence[Sequence[int]]) -> list[Experiment]:
    """Every rank against the rest of its group, and against all others, in both directions.

    Args:
        groups: Ranks of each group; all ranks together.
    """
    found: list[Experiment] = []
    ranks = sorted(rank for group in groups for rank in group)
    for rank in ranks:
        home = next(group for group in groups if rank in group)
        mates = [other for other in home if other != rank]
        strangers = [other for other in ranks if other not in home]
        for others, out, into in ((mates, "out", "in"), (strangers, "out-of-group", "into-group")):
            if others:
                found.append(Experiment(kind=out, flows=tuple((rank, other) for other in others)))
                found.append(Experiment(kind=into, flows=tuple((other, rank) for other in others)))
    return found


def group_experiments(
    groups: Sequence[Sequence[int]], pair_gb_per_s: NDArray[np.float64]
) -> list[Experiment]:
    """Every group against all others, in both directions, and twice all groups concurrently.

    Every rank has a flow, and as few as that takes: flows that meet at a port lose packets, and what is measured then
    is how long TCP waits. Flows are as large as they are fast alone, so that one slow port does not hold up the others.
    All groups at once are tried in two ways. Ranks send to those with the same place in the next group, as networks of
    rails like it; and to those one place further, so that no two send to each other, as engines like it that move the
    two directions of a connection one after the other.

    Args:
        pair_gb_per_s: Rate from row to column, alone.
    """

    def among(kind: str, flows: Sequence[tuple[int, int]]) -> Experiment:
        speeds = [float(pair_gb_per_s[flow]) for flow in flows]
        top = max(speeds)
        return Experiment(
            kind=kind,
            flows=tuple(flows),
            weights=tuple(max(1, round(_FINEST * each / top)) for each in speeds),
        )

    def across(senders: Sequence[int], receivers: Sequence[int], shift: int = 0) -> list[tuple[int, int]]:
        return [
            (senders[place % len(senders)], receivers[(place + shift) % len(receivers)])
            for place in range(max(len(senders), len(receivers)))
        ]

    ranks = sorted(rank for group in groups for rank in group)
    found: list[Experiment] = []
    for group in groups:
        rest = [rank for rank in ranks if rank not in group]
        found += [among("group-out", across(group, rest)), among("group-in", across(rest, group))]
    for turned in (0, 1):
        circle: list[tuple[int, int]] = []
        for place, (group, following) in enumerate(zip(groups, [*groups[1:], groups[0]], strict=True)):
            circle += across(group, following, turned * place)
        found.append(among("all", circle))
    return found


def run_experiments(
    ranks: int,
    rate: Rate,
    # Groups from the matrix of pair rates in GB/s (row sends to column, diagonal 0)
    groups_of: Callable[[NDArray[np.float64]], Sequence[Sequence[int]]],
    *,
    # Called with the numbers of experiments done and of all known
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[RateMeasurement], list[list[int]]]:
    """Run all pairs, then ranks and groups against the rest; return measurements and groups."""
    found: list[RateMeasurement] = []
    known = 0

    def run(experiments: Sequence[Experiment]) -> list[RateMeasurement]:
        nonlocal known
        known += len(experiments)
        for experiment in experiments:
            found.append(RateMeasurement(experiment=experiment, gb_per_s=rate(experiment)))
            if progress is not None:
                progress(len(found), known)
        return found[len(found) - len(experiments) :]

    matrix = np.zeros((ranks, ranks))
    for each in run(pair_experiments(ranks)):
        matrix[each.experiment.flows[0]] = each.gb_per_s
    groups = [list(group) for group in groups_of(matrix)]
    run(rank_experiments(groups))
    if len(groups) > 1:
        run(group_experiments(groups, matrix))
    return found, groups


def engine_rate(engine: Engine, *, rounds: int = 3, timeout_s: float = 60.0) -> Rate:
    """Measurement function on the ranks of an engine: the shortest of a few rounds, equal on all ranks.

    Args:
        engine: This rank's end of the group.
    """
    if rounds < 1:
        raise InputError(f"expected 1 round or more, found {rounds}.")
    memory = np.zeros(0, dtype=np.uint8)

    def seconds(experiment: Experiment, size: int) -> float:
        """Of the slowest rank."""
        nonlocal memory
        program = _program(experiment, engine.rank, engine.ranks, size)
        if len(memory) < program.output_elements:
            memory = np.zeros(program.output_elements, dtype=np.uint8)
        engine.exchange(b"")
        begin = time.perf_counter()
        engine.run(program, None, memory, dtype=DataType.UINT8, op=ReduceOp.SUM, timeout_s=timeout_s)
        own = time.perf_counter() - begin
        return max(float(msgspec.json.decode(each)) for each in engine.exchange(msgspec.json.encode(own)))

    def rate(experiment: Experiment) -> float:
        size = _FIRST_BYTES
        while size < _LARGEST_BYTES and min(seconds(experiment, size) for _ in range(2)) < _LEAST_S:
            size *= 2
        # Whatever disturbs a run makes it longer: the shortest ones tell of the network.
        short = min(seconds(experiment, size) for _ in range(rounds))
        took = min(seconds(experiment, 2 * size) for _ in range(rounds)) - short
        mean = sum(experiment.sizes) / len(experiment.sizes)
        if took > 0:
            return size / mean / took / 1e9
        return 2 * size / mean / seconds(experiment, 2 * size) / 1e9  # noise swallowed the difference

    return rate


def _program(experiment: Experiment, rank: int, ranks: int, size: int) -> RankProgram:
    """One step of this rank's flows, of ``size`` bytes on the average, every one in memory of its own."""
    mean = sum(experiment.sizes) / len(experiment.sizes)
    own = [
        (src == rank, dst if src == rank else src, max(1, round(size * weight / mean)))
        for (src, dst), weight in zip(experiment.flows, experiment.sizes, strict=True)
        if rank in (src, dst)
    ]
    own.sort(key=lambda flow: not flow[0])  # within a step, what is sent comes first
    length = np.array([flow[2] for flow in own], dtype=np.int64)
    return RankProgram.of_messages(
        rank,
        ranks,
        buffer=RankBuffer.OUTPUT,
        step=np.zeros(len(own), dtype=np.int64),
        sends=np.array([sends for sends, _, _ in own], dtype=np.bool_),
        peer=np.array([peer for _, peer, _ in own], dtype=np.int64),
        offset=first_rows(length),
        length=length,
    )
