"""Check that the columns of a forest or a schedule are well formed: lengths, offsets, ranges.

Everything that reads columns relies on this and nothing more: once `forest_defects` or `schedule_defects`
finds nothing, no index leaves its column. Whether the plan is *right* is the verifier's question.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule

_INT32_MAX = 2**31 - 1


def num_slots(collective: Collective, ranks: int) -> int:
    """Number of slots of a schedule: R x R for all-to-all, one for broadcast, reduce and barrier, R otherwise.

    Examples:
        >>> num_slots(Collective.ALL_TO_ALL, 4), num_slots(Collective.REDUCE, 4)
        (16, 1)
    """
    if collective is Collective.ALL_TO_ALL:
        return ranks * ranks
    return 1 if collective in (Collective.BROADCAST, Collective.REDUCE, Collective.BARRIER) else ranks


@dataclass
class _Checker:
    """Collects one sentence per malformed column."""

    defects: list[str] = field(default_factory=list)

    def column(self, name: str, column: NDArray[np.integer], length: int | None, low: int, high: int) -> bool:
        """``column`` must be ``length`` integers (None: any number) in ``low .. high``."""
        if column.ndim != 1 or not np.issubdtype(column.dtype, np.integer):
            self.defects.append(
                f"{name} must be one column of integers, found {column.ndim}-d {column.dtype}."
            )
            return False
        if length is not None and len(column) != length:
            self.defects.append(f"{name} must have {length} rows, found {len(column)}.")
            return False
        if len(column) and (int(column.min()) < low or int(column.max()) > high):
            row = int(np.flatnonzero((column < low) | (column > high))[0])
            self.defects.append(f"{name}[{row}] must lie in {low} .. {high}, found {int(column[row])}.")
            return False
        return True

    def offsets(
        self, name: str, column: NDArray[np.integer], groups: int | None, rows: int, *, least: int = 0
    ) -> bool:
        """``column`` must be offsets that cut ``rows`` rows into runs of ``least`` or more."""
        if not self.column(name, column, None if groups is None else groups + 1, 0, rows):
            return False
        if not len(column) or int(column[0]) != 0 or int(column[-1]) != rows:
            self.defects.append(f"{name} must run from 0 to {rows}.")
            return False
        short = np.flatnonzero(np.diff(column) < least)
        if len(short):
            row = int(short[0])
            self.defects.append(
                f"{name}[{row}] must leave at least {least} rows for entry {row}, "
                f"found {int(column[row + 1]) - int(column[row])}."
            )
            return False
        return True

    def paths(self, start: NDArray[np.integer], nodes: NDArray[np.integer], num_nodes: int) -> int:
        """Check a table of paths; return how many there are (0 where it is malformed)."""
        well = self.column("path_nodes", nodes, None, 0, num_nodes - 1)
        return len(start) - 1 if well and self.offsets("path_start", start, None, len(nodes), least=2) else 0


def forest_defects(forest: Forest) -> list[str]:
    """List malformed columns of ``forest``, one sentence each; empty if all are well formed."""
    check = _Checker()
    nodes = forest.topology.num_nodes
    trees, edges = len(forest.tree_root), len(forest.edge_src)
    paths = check.paths(forest.path_start, forest.path_nodes, nodes)
    check.column("tree_root", forest.tree_root, trees, 0, nodes - 1)
    check.column("tree_weight", forest.tree_weight, trees, 1, 2**63 - 1)
    check.column("tree_phase", forest.tree_phase, trees, 0, 1)
    check.offsets("tree_start", forest.tree_start, trees, edges)
    check.column("edge_src", forest.edge_src, edges, 0, nodes - 1)
    check.column("edge_dst", forest.edge_dst, edges, 0, nodes - 1)
    check.column("edge_path", forest.edge_path, edges, 0, paths - 1)
    return check.defects


def schedule_defects(schedule: Schedule) -> list[str]:
    """List malformed columns of ``schedule``, one sentence each; empty if all are well formed."""
    check = _Checker()
    ranks, rows = schedule.topology.num_ranks, len(schedule.src)
    slots, chunks = num_slots(schedule.collective, ranks), len(schedule.chunk_slot)
    low_root = 0 if schedule.collective.rooted else -1
    high_root = ranks - 1 if schedule.collective.rooted else -1
    if not low_root <= schedule.root <= high_root:
        check.defects.append(f"root must lie in {low_root} .. {high_root}, found {schedule.root}.")
    check.column("slot_weight", schedule.slot_weight, slots, 0, 2**63 - 1)
    check.column("chunk_slot", schedule.chunk_slot, chunks, 0, slots - 1)
    check.column("chunk_share", schedule.chunk_share, chunks, 1, 2**63 - 1)
    paths = check.paths(schedule.path_start, schedule.path_nodes, schedule.topology.num_nodes)
    check.column("src", schedule.src, rows, 0, ranks - 1)
    check.column("dst", schedule.dst, rows, 0, ranks - 1)
    check.column("chunk", schedule.chunk, rows, 0, chunks - 1)
    check.column("op", schedule.op, rows, 0, 1)
    check.column("path", schedule.path, rows, -1, paths - 1)
    check.column("step", schedule.step, rows, -1, _INT32_MAX)
    if check.column("after", schedule.after, None, 0, rows - 1):
        check.offsets("after_start", schedule.after_start, rows, len(schedule.after))
    if len(schedule.chunk_slot) and not check.defects and (np.diff(schedule.chunk_slot) < 0).any():
        row = int(np.flatnonzero(np.diff(schedule.chunk_slot) < 0)[0]) + 1
        check.defects.append(
            f"chunk_slot must not decrease, but chunk_slot[{row}] is less than its predecessor."
        )
    return check.defects


def require_well_formed(body: Forest | Schedule) -> None:
    """Refuse a forest or schedule with malformed columns."""
    defects = forest_defects(body) if isinstance(body, Forest) else schedule_defects(body)
    if defects:
        raise InputError(f"expected well-formed columns: {defects[0]}")
