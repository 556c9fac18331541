"""All-to-all of unequal blocks by puts and signals.

The window of every rank has room for the longest input, output and scratch memory of any rank, one behind the other, so
that a rank knows from the counts alone where its blocks lie at others. Before anything is put, ranks signal those that
put to them that what was there has been read. Then each step is one group of puts, each with a signal, and one wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind
from coppice.run.engines.datatype import DataType
from coppice.run.engines.put_signal.device import Awaited, Put, PutSignalDevice

_ALIGNED = 64
MOST_IN_FLIGHT = 255
"""Signals of a pair in one step; before NCCL 2.30.7 a 257th may be lost."""


class ExchangedBlocks:
    """Where the blocks of an exchange lie, and where they go.

    Args:
        program: Of this rank.
        programs: Those of all ranks, of the same counts.

    Attributes:
        obstacle: Why puts cannot carry it out, or nothing; the same on all ranks.
    """

    def __init__(self, program: RankProgram, programs: Sequence[RankProgram]) -> None:
        self.program, self.obstacle = program, ""
        self._longest = [
            max(each.input_elements for each in programs),
            max(each.output_elements for each in programs),
            max(each.scratch_elements for each in programs),
        ]
        self._needed = max(
            range(len(programs)),
            key=lambda rank: programs[rank].input_elements + programs[rank].output_elements,
        )
        for each in programs:
            keys = each.step.astype(np.int64) * each.ranks + each.peer
            crowd = Counter(keys[each.kind == RowKind.SEND].tolist())
            if max(crowd.values(), default=0) > MOST_IN_FLIGHT:
                self.obstacle = f"more than {MOST_IN_FLIGHT} blocks of a step between two ranks"
        self._sends_to = sorted({int(peer) for peer in program.peer[program.kind == RowKind.SEND]})
        self._gets_from = sorted({int(peer) for peer in program.peer[program.kind == RowKind.RECV]})
        there = {
            (rank, int(tag)): row
            for rank, each in enumerate(programs)
            for row, (kind, peer, tag) in enumerate(zip(each.kind, each.peer, each.tag, strict=True))
            if kind == RowKind.RECV and peer == program.rank
        }
        self._target = {
            row: there[int(program.peer[row]), int(program.tag[row])]
            for row in np.flatnonzero(program.kind == RowKind.SEND).tolist()
        }
        self._programs = {peer: programs[peer] for peer in self._sends_to}

    def window_bytes(self, itemsize: int) -> int:
        """Bytes of every rank's window."""
        return self._bases(itemsize)[-1]

    def check_capacity(self, itemsize: int, capacity_bytes: int | None) -> None:
        """Refuse, on all ranks alike, what the window has no room for.

        Raises:
            InputError: If there is less room.
        """
        if capacity_bytes is not None and self.window_bytes(itemsize) > capacity_bytes:
            raise InputError(
                f"expected an all-to-all within the capacity of {capacity_bytes} bytes, found one for which windows "
                f"need {self.window_bytes(itemsize)}, since rank {self._needed} sends and gets so much: raise "
                "`capacity_bytes`, or drop tokens beyond it."
            )

    def carry_out(
        self, device: PutSignalDevice, given: Any, wanted: Any, *, dtype: DataType, timeout_s: float
    ) -> None:
        """Run it: stage in, put step by step, stage out."""
        program, size = self.program, dtype.itemsize
        bases = self._bases(size)

        def at(of: RankProgram, row: int) -> int:
            return bases[int(of.buffer[row])] + int(of.offset[row]) * size

        if program.input_elements:
            device.write(bases[RankBuffer.INPUT], given[: program.input_elements])
        device.begin()
        if self._gets_from:
            device.transfer(0, 0, [Put(peer, 0, 0, 0, 0, 0) for peer in self._gets_from])
        if self._sends_to:
            device.wait(0, 0, [Awaited(peer, 1, 0, 0) for peer in self._sends_to])
        for begin, end in pairwise(program.step_start.tolist()):
            rows = range(begin, end)
            puts = [
                Put(
                    int(program.peer[row]),
                    at(program, row),
                    at(self._programs[int(program.peer[row])], self._target[row]),
                    int(program.length[row]) * size,
                    0,
                    0,
                )
                for row in rows
                if program.kind[row] == RowKind.SEND
            ]
            if puts:
                device.transfer(0, 0, puts)
            arrivals = Counter(int(program.peer[row]) for row in rows if program.kind[row] == RowKind.RECV)
            if arrivals:
                device.wait(0, 0, [Awaited(peer, number, 0, 0) for peer, number in sorted(arrivals.items())])
            for row in rows:
                if program.kind[row] == RowKind.COPY:
                    source = bases[int(program.source[row])] + int(program.source_offset[row]) * size
                    device.copy(0, source, at(program, row), int(program.length[row]) * size)
        device.join(str(program.collective), timeout_s, into=wanted)
        if program.output_elements:
            device.read(bases[RankBuffer.OUTPUT], wanted[: program.output_elements])

    def _bases(self, itemsize: int) -> list[int]:
        """First bytes of input, output and scratch memory, and the end."""
        bases = [0]
        for elements in self._longest:
            bases.append(bases[-1] + -(-elements * itemsize // _ALIGNED) * _ALIGNED)
        return bases
