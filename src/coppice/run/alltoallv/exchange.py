"""All-to-all of unequal blocks over any engine: counts are exchanged, a native core plans, the engine carries out.

All ranks plan from the same counts by whole numbers, so that their programs fit each other without a word more. What
a rank sends and gets is in rank order, without gaps, as in MPI's ``Alltoallv`` and torch's ``all_to_all_single``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.all_to_all.rates import MOST_ELEMENTS, RankRates, planned_blocks
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine, ExchangingEngine
from coppice.run.errors import Mismatch

RELAY_COST_US = 100
"""What blocks that pass other ranks must save: their hops start messages and wait for each other."""
PIECE_US, PIECE_BYTES = 200, 16 << 10
"""The longest block is cut into pieces that take the fastest NIC so long, and have so many bytes at least."""
_KEPT = 32


@dataclass(frozen=True, kw_only=True)
class ExchangeEstimate:
    """What links have to carry, and how long that takes."""

    relays: bool  # Blocks pass other ranks
    seconds: float  # Busiest NIC or link inside a box
    seconds_directly: float  # The same if all went directly


class BlockExchange:
    """Exchanges of one group of ranks.

    Args:
        engine: This rank's end of the group.
        rates: Boxes and rates of the network, the same on all ranks (:func:`coppice.bounds.all_to_all.rates.rates_of`).
        relays: Let blocks pass other ranks; otherwise all go directly.

    Examples:
        >>> from coppice.bounds.all_to_all.rates import one_box
        >>> from coppice.run.engines.numpy import run_ranks
        >>> def work(engine):
        ...     sent = [engine.rank, 1]
        ...     got = [0, 1] if engine.rank == 0 else [1, 1]
        ...     exchange, wanted = BlockExchange(engine, one_box(2)), np.zeros(sum(got), dtype=np.int64)
        ...     given = 10 * engine.rank + np.arange(sum(sent))
        ...     exchange.run(given, wanted, sent, got, dtype=DataType.INT64, timeout_s=60)
        ...     return wanted.tolist()
        >>> run_ranks(2, work)
        [[10], [0, 11]]
    """

    def __init__(self, engine: Engine, rates: RankRates, *, relays: bool = True) -> None:
        if len(rates.order) != engine.ranks:
            raise InputError(
                f"expected rates of {engine.ranks} ranks, found {len(rates.order)}: give those of the group."
            )
        self.engine, self.rates, self._relays = engine, rates, relays
        self._programs: OrderedDict[tuple[int, bytes], RankProgram] = OrderedDict()

    def run(
        self,
        given: Any,
        wanted: Any,
        sent: Sequence[int],
        received: Sequence[int] | None,
        *,
        dtype: DataType,
        timeout_s: float,
    ) -> None:
        """Exchange blocks; collective over the ranks.

        Args:
            given: Elements for rank 0, 1, 2, ...: contiguous memory as engines take it.
            wanted: Takes the elements of rank 0, 1, 2, ..., likewise.
            sent: Elements for each rank.
            received: Elements from each rank; None takes what the others send.
            dtype: Type of the elements.
            timeout_s: Longest wait for another rank, in seconds.

        Raises:
            Mismatch: On every rank, if a rank expects another number than is sent, or another type.
            InputError: If a buffer is too short.
            RunError: If the collective did not complete.
        """
        counts = self.counts(sent, received, dtype)
        self.carry_out(counts, given, wanted, dtype=dtype, timeout_s=timeout_s)

    def counts(
        self, sent: Sequence[int], received: Sequence[int] | None, dtype: DataType
    ) -> NDArray[np.int64]:
        """Elements from each rank to each, checked alike on all ranks; collective over the ranks.

        Args:
            sent: Elements for each rank.
            received: Elements from each rank; None takes what the others send.
            dtype: Type of the elements.

        Raises:
            Mismatch: On every rank, if ranks do not agree.
        """
        ranks = self.engine.ranks
        card, reason = np.full(2 + 2 * ranks, -1, dtype=np.int64), ""
        for numbers, first in ((sent, 2), (received, 2 + ranks)):
            if numbers is None:
                continue
            if len(numbers) != ranks or any(not 0 <= each < MOST_ELEMENTS for each in numbers):
                reason = f"expected {ranks} counts of 0 or more, found {list(numbers)[:8]}"
            else:
                card[first : first + ranks] = numbers
        card[0], card[1] = list(DataType).index(dtype), bool(reason)
        answers = [np.frombuffer(each, dtype=np.int64) for each in self.engine.exchange(card.tobytes())]
        for rank, answer in enumerate(answers):
            if len(answer) != len(card) or answer[1]:
                own = f" ({reason})" if rank == self.engine.rank and reason else ""
                raise Mismatch(
                    f"rank {rank} has no counts of an all-to-all for {ranks} ranks{own}: give one for each rank."
                )
            model, other = (list(DataType)[int(each[0])] for each in (answers[0], answer))
            if model is not other:
                raise Mismatch(
                    f"all_to_all differs between ranks: expected elements of {model} as on rank 0, found {other} on "
                    f"rank {rank}; make the same call on all ranks."
                )
        table = np.stack(answers)
        found, expected = table[:, 2 : 2 + ranks], table[:, 2 + ranks :].T
        wrong = np.argwhere((expected >= 0) & (found != expected))
        if len(wrong):
            source, target = wrong[0].tolist()
            raise Mismatch(
                f"expected {expected[source, target]} elements from rank {source} on rank {target}, found that rank "
                f"{source} sends {found[source, target]}: let ranks tell each other their counts before."
            )
        return np.ascontiguousarray(found)

    def carry_out(
        self, counts: NDArray[np.int64], given: Any, wanted: Any, *, dtype: DataType, timeout_s: float
    ) -> None:
        """Exchange blocks whose counts all ranks know; collective over the ranks."""
        program = self.program(counts, dtype)
        self.engine.run(program, given, wanted, dtype=dtype, op=ReduceOp.SUM, timeout_s=timeout_s)

    def program(self, counts: NDArray[np.int64], dtype: DataType) -> RankProgram:
        """This rank's program, kept for the next exchange with the same counts."""
        key = (dtype.itemsize, counts.tobytes())
        found = self._programs.get(key)
        if found is None:
            planned = self._planned(counts, dtype.itemsize)
            piece = max(PIECE_BYTES // dtype.itemsize, self.rates.elements_in(PIECE_US, dtype.itemsize))
            found = program_of(planned, self.engine.rank, counts, piece)
            if isinstance(self.engine, ExchangingEngine):
                others = (program_of(planned, rank, counts, piece) for rank in range(self.engine.ranks))
                self.engine.learn_exchange(found, list(others))
            self._programs[key] = found
            while len(self._programs) > _KEPT:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return found

    def estimate(self, counts: NDArray[np.int64], dtype: DataType) -> ExchangeEstimate:
        """What the links have to carry, without latencies."""
        planned = self._planned(counts, dtype.itemsize)
        return ExchangeEstimate(
            relays=planned.relays(),
            seconds=self.rates.seconds(*planned.busiest(), dtype.itemsize),
            seconds_directly=self.rates.seconds(*planned.busiest_directly(), dtype.itemsize),
        )

    def _planned(self, counts: NDArray[np.int64], itemsize: int) -> _core.AllToAllV:
        least = self.rates.elements_in(RELAY_COST_US, itemsize) if self._relays else MOST_ELEMENTS
        return planned_blocks(self.rates, counts, least_saved=least)


def program_of(
    planned: _core.AllToAllV,
    rank: int,
    counts: NDArray[np.int64],
    piece: int,  # Elements of a piece of the longest block, at least
) -> RankProgram:
    """Program of one rank of a planned exchange."""
    columns = planned.program(rank, piece)
    step, kind, peer, tag, buffer, offset, length, source, source_offset = columns[:9]
    predecessors_start, predecessors, given, wanted, scratch, pieces = columns[9:]
    return RankProgram(
        rank=rank,
        ranks=len(counts),
        collective=Collective.ALL_TO_ALL,
        root=-1,
        count=int(counts.sum()),
        in_place=False,
        input_elements=given,
        output_elements=wanted,
        scratch_elements=scratch,
        result_offset=0,
        result_elements=wanted,
        step=step,
        kind=kind,
        peer=peer,
        tag=tag,
        buffer=buffer,
        offset=offset,
        length=length,
        source=source,
        source_offset=source_offset,
        predecessors_start=predecessors_start,
        predecessors=predecessors,
        pieces=pieces,
    )
