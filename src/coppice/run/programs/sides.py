"""Both sides of every transfer: which memory the sender reads and the receiver writes, as known to all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.run.programs.placement import Homes
from coppice.run.programs.rank_program import Place
from coppice.run.programs.steps import flow_of
from coppice.schedule.schedule import Op, Schedule

__all__ = ["Side", "Sides"]


@dataclass(frozen=True, eq=False)
class Side:
    """Memory at one end of some transfers.

    Attributes:
        cell: Cell in scratch memory, or -1 where the place is known without (int64).
        place: :class:`~coppice.run.programs.rank_program.Place` (int64).
        offset: First element; for a cell its place among the cells of its group (int64).
    """

    cell: NDArray[np.int64]
    place: NDArray[np.int64]
    offset: NDArray[np.int64]


class Sides:
    """What all ranks know of a schedule at a count.

    Cells in scratch memory come in *groups* that lie side by side: chunks that follow each other and that one rank
    receives from another in one step, as long as chunks are not cut into pieces; then every cell is a group of its own.

    A copy that would overwrite what its rank sends in the same step lands in a cell of its own (a *detour*) and is
    copied home when the step's messages are done; the second copy of the same value in one step lands in such a cell
    and stays there.

    Attributes:
        schedule: The schedule.
        flow: Its steps and cells.
        homes: Where values lie.
        pieces: Number of pieces of every chunk.
        piece_elements: Longest message, or None.
        detour: Cell in which each transfer lands instead of its home, or -1 (int64).
        dropped: It stays there (bool).
        cell_group: Group of each cell that lies in scratch memory, otherwise -1 (int64). Detours come after the
            schedule's own cells.
        cell_offset: Place of each such cell in its group (int64).
        cell_chunk: Chunk of each cell (int64).
        cell_first: First step of each cell (int64).
        cell_last: Last step of each cell (int64).
        cell_rank: Rank of each cell (int64).
    """

    def __init__(self, schedule: Schedule, count: int, *, in_place: bool, piece_elements: int | None) -> None:
        self.schedule, self.flow = schedule, flow_of(schedule)
        self.homes = homes = Homes(schedule, count, in_place=in_place)
        longest = int(homes.chunk_length.max()) if schedule.num_chunks else 0
        self.pieces = max(1, -(-longest // piece_elements)) if piece_elements else 1
        self.piece_elements = piece_elements
        self._check_starts()
        self.detour, self.dropped = self._detours()
        around = np.flatnonzero(self.detour >= 0)
        flow = self.flow
        self.cell_chunk = np.concatenate([flow.cell_chunk, flow.cell_chunk[flow.write_cell[around]]])
        self.cell_rank = np.concatenate([flow.cell_rank, flow.cell_rank[flow.write_cell[around]]])
        self.cell_first = np.concatenate([flow.cell_first, flow.step[around]])
        self.cell_last = np.concatenate([flow.cell_last, flow.step[around]])
        self.cell_group, self.cell_offset = self._groups(around)

    def sent(self, rows: NDArray[np.int64]) -> Side:
        """What the senders of ``rows`` read."""
        cell = self.flow.read_cell[rows]
        return self._held(cell, self.flow.cell_first[cell] < self.flow.step[rows])

    def held(self, rows: NDArray[np.int64]) -> Side:
        """What the receivers of ``rows`` hold before: the own operand of a reduction."""
        return self._held(self.flow.write_cell[rows], ~self.flow.first_write[rows])

    def arrival(self, rows: NDArray[np.int64]) -> Side:
        """Where what the receivers of ``rows`` receive, or its sum, is written."""
        home = self.target(rows)
        detour = self.detour[rows]
        around = detour >= 0
        return Side(
            cell=np.where(around, detour, home.cell),
            place=np.where(around, Place.SCRATCH, home.place),
            offset=np.where(around, 0, home.offset),
        )

    def target(self, rows: NDArray[np.int64]) -> Side:
        """The homes of what the receivers of ``rows`` receive."""
        return self._held(self.flow.write_cell[rows], np.ones(len(rows), dtype=np.bool_))

    def _held(self, cell: NDArray[np.int64], arrived: NDArray[np.bool_]) -> Side:
        chunk, rank = self.flow.cell_chunk[cell], self.flow.cell_rank[cell]
        start_place, start = self.homes.start(chunk, rank)
        home_place, home = self.homes.home(chunk, rank)
        scratch = arrived & (home_place == Place.SCRATCH)
        return Side(
            cell=np.where(scratch, cell, -1),
            place=np.where(arrived, home_place, start_place),
            offset=np.where(scratch, self.cell_offset[cell], np.where(arrived, home, start)),
        )

    def _check_starts(self) -> None:
        """Refuse transfers of what their rank does not have, and additions to nothing."""
        flow, schedule = self.flow, self.schedule
        rows = np.arange(schedule.num_transfers)
        for cell, fresh, verb in (
            (flow.read_cell, flow.cell_first[flow.read_cell] >= flow.step, "sends"),
            (flow.write_cell, flow.first_write & (schedule.op == Op.REDUCE), "adds to"),
        ):
            asked = rows[fresh]
            missing = ~self.homes.has_start(flow.cell_chunk[cell[asked]], flow.cell_rank[cell[asked]])
            if missing.any():
                row = int(asked[np.flatnonzero(missing)[0]])
                msg = (
                    f"expected values before they are used, but transfer {row} {verb} chunk {schedule.chunk[row]} "
                    f"at rank {flow.cell_rank[cell[row]]}, which does not hold it by then: verify the schedule."
                )
                raise InputError(msg)

    def _detours(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Cells beyond the schedule's own for copies that cannot go home at once, and which of them stay there."""
        flow, rows = self.flow, self.schedule.num_transfers
        detour, dropped = np.full(rows, -1, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
        copies = self.schedule.op == Op.COPY
        dropped[copies & (flow.turn > 0)] = True
        late = np.flatnonzero(copies & flow.met)
        if len(late):
            late = late[self._read_at_home(late)]
        around = np.union1d(np.flatnonzero(dropped), late)
        detour[around] = len(flow.cell_chunk) + np.arange(len(around))
        return detour, dropped

    def _read_at_home(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The homes of what ``rows`` bring are sent in the same step, rather than other memory of the cell."""
        flow = self.flow
        cell = flow.write_cell[rows]
        chunk, rank = flow.cell_chunk[cell], flow.cell_rank[cell]
        (place, offset), (home_place, home) = self.homes.start(chunk, rank), self.homes.home(chunk, rank)
        same = (place == home_place) & (offset == home) & (home_place != Place.SCRATCH)
        return np.asarray(same | (flow.cell_first[cell] < flow.step[rows]))

    def _groups(self, around: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Group of each cell in scratch memory, and its place in it."""
        flow, own = self.flow, len(self.flow.cell_chunk)
        cells = len(self.cell_chunk)
        group, offset = np.full(cells, -1, dtype=np.int64), np.zeros(cells, dtype=np.int64)
        place, _ = self.homes.home(flow.cell_chunk, flow.cell_rank)
        scratch = np.flatnonzero((place == Place.SCRATCH) & (flow.cell_writer >= 0))
        length = self.homes.chunk_length
        scratch = scratch[length[flow.cell_chunk[scratch]] > 0]
        detours = own + np.arange(len(around))
        if self.pieces > 1:
            every = np.concatenate([scratch, detours])
            group[every] = np.arange(len(every))
            return group, offset
        source = self.schedule.src[flow.cell_writer[scratch]]
        chunk, rank, first = flow.cell_chunk[scratch], flow.cell_rank[scratch], flow.cell_first[scratch]
        order = np.lexsort((chunk, source, first, rank))
        begins = np.diff(chunk[order], prepend=-2) != 1
        for column in (source, first, rank):
            begins |= np.diff(column[order], prepend=-1) != 0
        size = length[chunk[order]]
        before = np.cumsum(size) - size
        number = np.cumsum(begins) - 1
        group[scratch[order]] = number
        offset[scratch[order]] = before - before[begins][number]
        group[detours] = (int(number[-1]) + 1 if len(number) else 0) + np.arange(len(detours))
        return group, offset
