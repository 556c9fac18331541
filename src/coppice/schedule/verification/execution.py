"""Symbolic execution of a schedule: contributions held by each rank after every transfer.

Every (chunk, rank) buffer holds a set of contributors, or nothing. Transfers are carried out row by row: a
copy overwrites, a reduction unites two sets that must be disjoint (a common member would be added twice). At
the end the postcondition of the collective must hold in every buffer it names. Rows of one step read what was
there before the step, as the schedule's contract says. Sets of ranks are integers, one bit a rank.

Where a schedule claims to be ordered, every reduction must join neighbouring intervals of ranks, in row order where a
buffer gets several in one step: then the operands of an operator that does not commute stay in rank order, whichever
side of what is held each of them belongs to. Sets begin as single ranks, so it is enough that every union is an
interval.

A barrier moves no data, only the news of who has arrived: its sets may overlap when they are united, and in the
end every rank must have news of all.

A slot of weight 0 is empty. It may be left alone: then no transfer names a chunk of it. One that some transfer names
must be complete in the end, as every other: who runs the schedule does not look at weights.

Chunks do not influence each other, so they are executed one after the other, each on its own rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.schedule.loads import chunk_sizes
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.report import Findings

_EMPTY = 0


@dataclass
class Execution:
    """Execute all chunks symbolically and record violations."""

    schedule: Schedule  # What is executed; its columns must be well formed
    failures: list[str] = field(default_factory=list)  # The first few failures, a sentence each
    count: int = 0  # Number of failures
    buffers: int = 0  # Number of final buffers that were compared with the postcondition
    received: int = 0  # Bytes received, in units of chunk sizes
    redundant: int = 0  # Bytes received that the receiver held already, in the same unit

    @property
    def redundant_share(self) -> Fraction:
        """Bytes received that the receiver already had, over all bytes received."""
        return Fraction(self.redundant, self.received) if self.received else Fraction(0)

    def report(self, findings: Findings) -> None:
        """Add the violations to the findings."""
        findings.add_examples(self.failures, self.count, "symbolic checks")

    def run(self) -> None:
        """Execute every chunk."""
        schedule = self.schedule
        sizes, _ = chunk_sizes(schedule)
        order = np.argsort(schedule.chunk, kind="stable")
        starts = np.searchsorted(schedule.chunk[order], np.arange(schedule.num_chunks + 1)).tolist()
        used = set(schedule.chunk_slot[schedule.chunk].tolist())
        left_alone = {s for s, weight in enumerate(schedule.slot_weight.tolist()) if not weight} - used
        if schedule.collective is Collective.BARRIER:
            left_alone.clear()
        for chunk, slot in enumerate(schedule.chunk_slot.tolist()):
            rows = order[starts[chunk] : starts[chunk + 1]]
            value = self._run_chunk(chunk, slot, sizes[chunk], rows)
            if slot not in left_alone:
                self._check_end(chunk, slot, value)

    def _fail(self, sentence: str) -> None:
        self.count += 1
        if len(self.failures) < 5:
            self.failures.append(sentence)

    def _run_chunk(self, chunk: int, slot: int, size: int, rows: np.ndarray) -> defaultdict[int, int]:
        """Who holds whose contribution in the end."""
        schedule = self.schedule
        value = _precondition(schedule, slot)
        disjoint, ordered = schedule.collective is not Collective.BARRIER, schedule.ordered
        before: dict[int, int] = {}
        written: dict[int, int] = {}
        current = -1
        columns = (schedule.src, schedule.dst, schedule.op, schedule.step)
        for row, src, dst, op, step in zip(
            rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
        ):
            if step != current or step < 0:
                before.clear()
                written.clear()
                current = step
            sent = before.get(src, value[src])
            held = value[dst]
            if src == dst:
                self._fail(f"transfer {row} sends chunk {chunk} from rank {src} to itself.")
                continue
            if sent == _EMPTY:
                self._fail(f"transfer {row} sends chunk {chunk}, which rank {src} does not have by then.")
                continue
            if step >= 0:
                before.setdefault(dst, held)
            self.received += size
            if op == Op.REDUCE:
                if held == _EMPTY:
                    self._fail(f"transfer {row} adds chunk {chunk} to nothing at rank {dst}: copy it first.")
                elif disjoint and held & sent:
                    self._fail(
                        f"transfer {row} adds the contribution of rank {_lowest(held & sent)} "
                        f"to chunk {chunk} at rank {dst} a second time."
                    )
                if written.get(dst) == Op.COPY:
                    self._fail(_race(row, chunk, dst, step))
                value[dst] = held | sent
                if ordered and not _is_interval(held | sent):
                    self._fail(_out_of_order(row, chunk, dst, held, sent))
            else:
                earlier = written.get(dst)
                if earlier == Op.REDUCE or (earlier == Op.COPY and held != sent):
                    self._fail(_race(row, chunk, dst, step))
                if held == sent:
                    self.redundant += size
                value[dst] = sent
            if step >= 0:
                written[dst] = op
        return value

    def _check_end(self, chunk: int, slot: int, value: defaultdict[int, int]) -> None:
        schedule = self.schedule
        wanted = _postcondition(schedule, slot)
        for rank, contributors in wanted.items():
            self.buffers += 1
            found = value[rank]
            if found == contributors:
                continue
            missing = contributors & ~found
            if found == _EMPTY:
                self._fail(f"rank {rank} never receives chunk {chunk} of slot {slot}.")
            elif missing:
                self._fail(
                    f"chunk {chunk} of slot {slot} ends at rank {rank} without the contribution of rank "
                    f"{_lowest(missing)} ({missing.bit_count()} missing)."
                )
            else:
                extra = found & ~contributors
                self._fail(
                    f"chunk {chunk} of slot {slot} ends at rank {rank} with the contribution of rank "
                    f"{_lowest(extra)}, which does not belong there."
                )


def _race(row: int, chunk: int, dst: int, step: int) -> str:
    return (
        f"transfer {row} and another of step {step} write chunk {chunk} at rank {dst} in no certain order: "
        "give them different steps."
    )


def _is_interval(members: int) -> bool:
    """The members follow each other without a gap."""
    return not (members + (members & -members)) & members


def _out_of_order(row: int, chunk: int, dst: int, held: int, sent: int) -> str:
    return (
        f"the schedule claims to keep the order of ranks, but transfer {row} joins ranks {_members(sent)} to "
        f"{_members(held)} in chunk {chunk} at rank {dst}: expected neighbouring intervals."
    )


def _members(members: int) -> str:
    """A set of ranks in words, as runs: ``0-3, 6``."""
    runs: list[str] = []
    while members and len(runs) < 4:
        low = _lowest(members)
        rest = members >> low
        length = _lowest(~rest)
        runs.append(f"{low}-{low + length - 1}" if length > 1 else f"{low}")
        members = rest >> length << (low + length)
    return ", ".join(runs) + (", .." if members else "")


def _lowest(members: int) -> int:
    """Smallest member of a set of ranks."""
    return (members & -members).bit_length() - 1


def _precondition(schedule: Schedule, slot: int) -> defaultdict[int, int]:
    """Contributors that each rank holds of a slot at the start, as sets of bits."""
    ranks = schedule.topology.num_ranks
    if schedule.collective.reduces or schedule.collective is Collective.BARRIER:
        return defaultdict(int, {rank: 1 << rank for rank in range(ranks)})
    owner = _owner(schedule, slot)
    return defaultdict(int, {owner: 1 << owner})


def _owner(schedule: Schedule, slot: int) -> int:
    """Rank that holds a slot before a copying collective."""
    match schedule.collective:
        case Collective.ALL_TO_ALL:
            return slot // schedule.topology.num_ranks
        case Collective.BROADCAST | Collective.SCATTER:
            return schedule.root
        case _:
            return slot


def _postcondition(schedule: Schedule, slot: int) -> dict[int, int]:
    """Contributors that ranks must hold of a slot at the end."""
    ranks = schedule.topology.num_ranks
    everyone = (1 << ranks) - 1
    match schedule.collective:
        case Collective.REDUCE:
            return {schedule.root: everyone}
        case Collective.REDUCE_SCATTER:
            return {slot: everyone}
        case Collective.GATHER:
            return {schedule.root: 1 << slot}
        case Collective.SCATTER:
            return {slot: 1 << schedule.root}
        case Collective.ALL_REDUCE | Collective.BARRIER:
            return dict.fromkeys(range(ranks), everyone)
        case Collective.ALL_TO_ALL:
            return {slot % ranks: 1 << (slot // ranks)}
        case _:
            return dict.fromkeys(range(ranks), 1 << _owner(schedule, slot))
