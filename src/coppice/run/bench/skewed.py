"""Measure all-to-alls of unequal blocks: planned at run time, directly, by offline plans and by the library."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.rates import rates_of
from coppice.bounds.problem import Problem
from coppice.bounds.skews import skewed_counts, skewed_demands
from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import CoppiceError, InputError
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_rank
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.alltoallv.exchange import BlockExchange
from coppice.run.bench.measuring import DIRECT, NATIVE, BenchRow, measured_rows, wrong_elements
from coppice.run.engines.datatype import DataType, ReduceOp, to_bfloat16
from coppice.run.engines.engine import Engine
from coppice.run.planned import choose_pieces, measure_overhead_us, piece_elements
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.topology.model import Topology

TWO_STAGE, OPTIMAL = "two-stage", "optimal"
"""Contenders that are planned at run time, and offline for just these demands."""

_PERIOD = 61


@runtime_checkable
class NativeBlocks(Protocol):
    """Engine whose library exchanges blocks of unequal lengths by itself."""

    def native_blocks(
        self, given: Any, wanted: Any, sent: Sequence[int], received: Sequence[int], *, dtype: DataType
    ) -> None:
        """Exchange blocks in rank order, of so many elements, and wait for the end."""


class _OfflinePlan(msgspec.Struct):
    """What rank 0 tells of an offline plan."""

    error: str = ""
    plan: bytes = b""
    pieces: int = 1


class SkewedContender:
    """One way to exchange the blocks of one matrix of counts.

    Args:
        engine: This rank's end of the group.
        topology: What is planned for.
        name: `direct`, `two-stage`, `optimal`, `native`, or an algorithm of the catalogue.
        counts: Elements from each rank to each; the diagonal is 0.
        dtype: Type of the elements.
        overhead_us: Cost of a message, for the pieces of offline plans.
        timeout_s: Longest wait for another rank, in seconds.

    Raises:
        InputError: On every rank, if it cannot run.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        name: str,
        counts: NDArray[np.int64],
        dtype: DataType,
        *,
        overhead_us: float,
        timeout_s: float,
    ) -> None:
        self.wrong, self.pieces = 0, 0
        self._engine, self._name, self._dtype, self._timeout_s = engine, name, dtype, timeout_s
        self._sent, self._received = counts[engine.rank].tolist(), counts[:, engine.rank].tolist()
        self._given = _values(np.arange(sum(self._sent)), engine.rank, dtype)
        first = (np.cumsum(counts, axis=1) - counts)[:, engine.rank].tolist()
        self._wanted = np.concatenate(
            [
                _values(np.arange(begin, begin + count), source, dtype)
                for source, (begin, count) in enumerate(zip(first, self._received, strict=True))
            ]
        )
        self._output = np.zeros_like(self._wanted)
        self._blocks: BlockExchange | None = None
        self._program: RankProgram | None = None
        if name == NATIVE:
            if not isinstance(engine, NativeBlocks):
                raise InputError(f"the engine {engine.name} has no exchange of its own: leave {NATIVE} out.")
        elif name in (DIRECT, TWO_STAGE):
            self._blocks = BlockExchange(engine, rates_of(topology), relays=name == TWO_STAGE)
            self.pieces = self._blocks.program(counts, dtype).pieces
        else:
            self._program = _offline(engine, topology, name, counts, dtype, overhead_us)
            self.pieces = self._program.pieces

    def run(self, *, check: bool) -> float:
        """Run it once, and give the seconds that it took on this rank."""
        if check:
            self._output.view(np.uint8)[:] = 0xA5
        self._engine.exchange(b"")
        begin = time.perf_counter()
        self._carry_out()
        seconds = time.perf_counter() - begin
        if check:
            self.wrong += wrong_elements(self._output, self._wanted, self._dtype)
        return seconds

    def _carry_out(self) -> None:
        """With all that a call has to do: counts are exchanged, and plans at run time are looked up."""
        if self._blocks is not None:
            self._blocks.run(
                self._given,
                self._output,
                self._sent,
                self._received,
                dtype=self._dtype,
                timeout_s=self._timeout_s,
            )
        elif self._program is not None:
            self._engine.run(
                self._program,
                self._given,
                self._output,
                dtype=self._dtype,
                op=ReduceOp.SUM,
                timeout_s=self._timeout_s,
            )
        elif isinstance(self._engine, NativeBlocks):
            self._engine.native_blocks(
                self._given, self._output, self._sent, self._received, dtype=self._dtype
            )


def bench_skewed(
    engine: Engine,
    topology: Topology,
    skew: str,
    *,
    algorithms: Sequence[str],
    sizes: Sequence[int],
    dtype: DataType = DataType.FLOAT32,
    rounds: int = 20,
    warmup: int = 5,
    timeout_s: float = 300.0,
) -> Iterator[BenchRow]:
    """Run a benchmark of unequal blocks; collective over the ranks, with the same rows on each.

    Args:
        engine: This rank's end of the group.
        topology: What is planned for.
        skew: As :func:`coppice.bounds.skews.skewed_demands` reads it.
        algorithms: `direct` and `two-stage` (at run time), `optimal` (offline, for these demands), `native`, or names
            of the catalogue such as `fast`, planned offline.
        sizes: M in bytes, which a rank sends to others on average: R ranks send R M together.
        dtype: Type of the elements.
        rounds: Measured rounds, 1 or more.
        warmup: Rounds before.
        timeout_s: Longest wait for another rank, in seconds.

    Yields:
        The rows of a size as soon as it is done, in the order of ``algorithms``.

    Raises:
        InputError: On every rank, if something cannot be asked for.
        RunError: If a rank is lost.
    """
    if rounds < 1 or warmup < 0 or len(set(algorithms)) != len(algorithms) or not algorithms:
        raise InputError(
            "expected different algorithms, 1 measured round or more and no negative warm-up, found "
            f"{', '.join(algorithms) or 'no algorithm'}, {rounds} and {warmup}."
        )
    if engine.ranks < 2:
        raise InputError("expected 2 ranks or more for unequal blocks, found 1: start more.")
    shares = skewed_demands(skew, engine.ranks)
    overhead_us = measure_overhead_us(engine, timeout_s=timeout_s)
    for size in dict.fromkeys(sizes):
        counts = skewed_counts(shares, size // dtype.itemsize)
        rows: list[BenchRow] = []
        contenders: dict[str, SkewedContender] = {}
        for name in algorithms:
            row = BenchRow(
                collective=Collective.ALL_TO_ALL.value,
                algorithm=name,
                ranks=engine.ranks,
                size_bytes=size // dtype.itemsize * dtype.itemsize,
                count=int(counts.sum()),
                dtype=dtype.value,
                op="none",
                root=-1,
                in_place=False,
                skew=skew,
            )
            try:
                contenders[name] = SkewedContender(
                    engine, topology, name, counts, dtype, overhead_us=overhead_us, timeout_s=timeout_s
                )
                row = replace(row, pieces=contenders[name].pieces)
            except InputError as error:  # raised on every rank alike
                row = replace(row, refusal=str(error))
            rows.append(row)
        yield from measured_rows(engine, rows, contenders, rounds=rounds, warmup=warmup)


def _values(place: NDArray[np.int64], rank: int, dtype: DataType) -> NDArray[Any]:
    """Elements of a rank's input by their places: small whole numbers that tell ranks and places apart."""
    values = (place + 17 * rank) % _PERIOD
    if dtype is DataType.BOOL:
        values = values % 2
    if dtype is DataType.BFLOAT16:
        return to_bfloat16(values.astype(np.float32))
    return values.astype(dtype.numpy_name)


def _offline(
    engine: Engine,
    topology: Topology,
    name: str,
    counts: NDArray[np.int64],
    dtype: DataType,
    overhead_us: float,
) -> RankProgram:
    """This rank's program of a plan that rank 0 makes."""
    mine = b""
    if engine.rank == 0:
        try:
            demands: Any = counts
            problem = Problem(topology=topology, collective=Collective.ALL_TO_ALL, demands=demands)
            found = plan(problem, algorithm=None if name == OPTIMAL else name, ring=False).plan
            size = int(counts.sum()) * dtype.itemsize // engine.ranks
            answer = _OfflinePlan(
                plan=zlib.compress(encode_plan(found), 1),
                pieces=choose_pieces(found.body, size, overhead_us),
            )
        except CoppiceError as error:
            answer = _OfflinePlan(error=str(error))
        mine = msgspec.msgpack.encode(answer)
    told = msgspec.msgpack.decode(engine.exchange(mine)[0], type=decodable(_OfflinePlan))
    if told.error:
        raise InputError(told.error)
    body = decode_plan(zlib.decompress(told.plan), name="the plan of rank 0").body
    count = int(counts.sum()) // engine.ranks  # M of such demands
    return lower_rank(
        body,
        engine.rank,
        count,
        in_place=False,
        piece_elements=piece_elements(body, count, told.pieces),
    )
