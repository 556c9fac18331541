"""Random collectives with their right results, the same on all ranks for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coppice.collectives import Collective
from coppice.run.engines.datatype import DataType, ReduceOp, combine, divide

COLLECTIVES = tuple(Collective)


@dataclass(frozen=True)
class Case:
    collective: Collective
    ranks: int
    count: int
    dtype: DataType
    op: ReduceOp
    root: int
    in_place: bool
    seed: int

    @property
    def edges(self) -> list[int]:
        return [self.count * rank // self.ranks for rank in range(self.ranks + 1)]

    def full(self, rank: int) -> np.ndarray[Any, Any]:
        """What a rank would put into a buffer of M elements: small whole numbers, exact in every type."""
        values = np.random.default_rng([self.seed, rank]).integers(0, 3, size=self.count)
        if self.dtype is DataType.BFLOAT16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(self.dtype.numpy_name)

    def given(self, rank: int) -> np.ndarray[Any, Any]:
        block = self.full(rank)[self.edges[rank] : self.edges[rank + 1]]
        match self.collective:
            case Collective.ALL_GATHER | Collective.GATHER:
                return block
            case Collective.BROADCAST | Collective.SCATTER if rank != self.root:
                return block[:0]
            case Collective.BARRIER:
                return block[:0]
        return self.full(rank)

    def right(self, rank: int) -> np.ndarray[Any, Any]:
        mine = slice(self.edges[rank], self.edges[rank + 1])
        ranks, none = range(self.ranks), self.full(rank)[:0]
        match self.collective:
            case Collective.ALL_GATHER:
                return np.concatenate([self.given(peer) for peer in ranks])
            case Collective.GATHER:
                return np.concatenate([self.given(peer) for peer in ranks]) if rank == self.root else none
            case Collective.BROADCAST:
                return self.full(self.root)
            case Collective.SCATTER:
                return self.full(self.root)[mine]
            case Collective.ALL_TO_ALL:
                return np.concatenate([self.full(peer)[mine] for peer in ranks])
            case Collective.BARRIER:
                return none
        total = self.full(0).copy()
        for peer in range(1, self.ranks):
            combine(self.op, self.dtype, total, self.full(peer), total)
        if self.op is ReduceOp.AVG:
            divide(self.dtype, total, self.ranks)
        if self.collective is Collective.REDUCE_SCATTER:
            return total[mine]
        return total if self.collective is Collective.ALL_REDUCE or rank == self.root else none

    def buffers(self, rank: int) -> tuple[Any, np.ndarray[Any, Any], slice]:
        """Input, output, and where in the output the result will be."""
        given, right = self.given(rank), self.right(rank)
        if not self.in_place:
            return given, np.zeros(len(right), dtype=given.dtype), slice(0, len(right))
        mine = slice(self.edges[rank], self.edges[rank + 1])
        holds_all = rank == self.root or not self.collective.rooted
        memory = np.zeros(max(len(given), len(right)), dtype=given.dtype)
        result = slice(0, len(right))
        if self.collective in (Collective.ALL_GATHER, Collective.GATHER) and holds_all:
            memory[mine] = given
        else:
            memory[: len(given)] = given
            if self.collective in (Collective.REDUCE_SCATTER, Collective.SCATTER) and holds_all:
                result = mine
        return None, memory, result

    def direct(self, engine: Any, timeout_s: float = 60.0) -> bool:
        """Run it on an engine. Returns whether the result is right."""
        given, output, result = self.buffers(engine.rank)
        engine.run_direct(
            self.collective,
            given,
            output,
            count=self.count,
            dtype=self.dtype,
            op=self.op,
            root=self.root,
            in_place=self.in_place,
            timeout_s=timeout_s,
        )
        return bool(np.array_equal(output[result], self.right(engine.rank)))


def random_case(rng: np.random.Generator, ranks: int, *, seed: int, most: int = 5000) -> Case:
    collective = COLLECTIVES[rng.integers(len(COLLECTIVES))]
    while True:
        dtype = tuple(DataType)[rng.integers(len(DataType))]
        op = tuple(ReduceOp)[rng.integers(len(ReduceOp))]
        if op.serves(dtype) and (op is not ReduceOp.AVG or not dtype.is_float):
            break
    count = 0 if collective is Collective.BARRIER else int(rng.integers(0, rng.integers(1, most + 1)))
    return Case(
        collective=collective,
        ranks=ranks,
        count=count,
        dtype=dtype,
        op=op if collective.reduces else ReduceOp.SUM,
        root=int(rng.integers(ranks)) if collective.rooted else -1,
        in_place=bool(rng.integers(2)),
        seed=seed,
    )
