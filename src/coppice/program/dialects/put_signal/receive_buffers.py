"""Receive buffers of put/signal messages, and the credits that senders wait for.

Everything happens in *ticks*: in a tick all ranks put, then wait for what was put to them, then add. What a rank knows
of another is the last tick that it knows to be over there; every signal brings what its sender knows. A put needs to
know that its peer is done with what it overwrites: what was read, added or landed there before, or at first whatever
the peer did before it began. Where that is not known, the peer sends a *credit*, a signal without data, in time.

A message lands where its value lives if that can be, and otherwise in a block of staging memory, for as long as the
value is there. Blocks are used again: those that the sender knows to be free, and once the memory is as large as it may
be, those that a credit can declare free. One credit declares free all that its sender has finished with, so that more
memory means fewer credits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.program.buffer_layout import BufferLayout
from coppice.program.dialects.put_signal.program import PutSignalAct
from coppice.program.lower import Transfers
from coppice.program.memory import Buffer
from coppice.rows import begins_run, nth_in_group, offsets
from coppice.schedule.schedule import Op

_Ints = NDArray[np.int64]
_BEFORE = -2
"""The tick before the first one: a rank has not begun."""
_NEVER = -9
_MOST_KNOWLEDGE = 2**28
"""Above this much work what ranks know of third ranks is left out."""


@dataclass
class CommunicatorSteps:
    """Operations with their ticks, as columns; data ticks are even, credits before the first put odd."""

    # Columns tick, src, dst, signal, source buffer, source, target buffer, target, count
    puts: list[NDArray[np.int64]] = field(default_factory=list)
    credits: set[tuple[int, int, int]] = field(default_factory=set)  # (tick, sender, receiver)
    # Columns tick, order, rank, act, source buffer, source, addend buffer, addend, target buffer, target,
    # count
    locals: list[NDArray[np.int64]] = field(default_factory=list)
    # Slots of staging memory of each rank, those of further memories added
    staging: list[int] = field(default_factory=list)


def assign_buffers(
    rows: Transfers, placement: BufferLayout, *, signals: int, in_turn: bool, most: int, base: list[int]
) -> CommunicatorSteps:
    """Assign receive buffers and credits to transfers.

    Args:
        rows: Transfers in the order of their rounds.
        placement: Where values lie, out of place.
        signals: Signal indices that the messages of a tick between two ranks are dealt out to.
        in_turn: Two messages of one tick between two ranks never have the same index; else all go in one tick.
        most: Slots of staging memory up to which no block is used again by a credit.
        base: First slot of each rank's staging memory.
    """
    return _BufferLedger(rows, placement, signals=signals, in_turn=in_turn, most=most, base=base).run()


class _BufferLedger:
    def __init__(
        self,
        rows: Transfers,
        placement: BufferLayout,
        *,
        signals: int,
        in_turn: bool,
        most: int,
        base: list[int],
    ) -> None:
        self.rows, self.placement = rows, placement
        self.signals, self.in_turn, self.most = signals, in_turn, most
        ranks = placement.ranks
        into, outof = rows.run * ranks + rows.dst, rows.run * ranks + rows.src
        self.values, column = np.unique(np.concatenate([into, outof]), return_inverse=True)
        self.into, self.outof = column[: len(into)], column[len(into) :]
        number = len(self.values)
        run, rank = self.values // ranks, self.values % ranks
        self.count = placement.units.count[run]
        self.buffer, self.offset = placement.at_start(run)
        self.home_buffer, self.home = placement.after_receive(rank, run)
        self.block = np.full(number, -1, dtype=np.int64)  # of staging memory, where it lives there
        self.touched = np.full(number, _BEFORE, dtype=np.int64)  # last tick in which it was read or written
        self.before = np.full(number, _BEFORE, dtype=np.int64)  # the same without the put to the reader
        self.reader = np.full(number, -1, dtype=np.int64)  # rank that the only put of the last tick went to
        self.reads = np.bincount(self.outof, minlength=number)  # puts of it that are still to come
        self.marked = np.zeros(number, dtype=np.bool_)  # None but within `_among`
        self.knows = np.full((ranks, ranks), _NEVER, dtype=np.int32)
        overwrites = bool(
            (rows.op == Op.REDUCE).any() or (self.home_buffer[self.into] == Buffer.SCRATCH).any()
        )
        self.transitive = overwrites and len(rows.src) * ranks <= _MOST_KNOWLEDGE
        self.blocks: list[list[int]] = []  # rank, slot, count, values that live in it
        self.free: list[dict[int, deque[tuple[int, int]]]] = [defaultdict(deque) for _ in range(ranks)]
        self.used = [0] * ranks
        self.base = base
        self.steps = CommunicatorSteps()

    def run(self) -> CommunicatorSteps:
        rounds = self.rows.round
        start = np.append(np.flatnonzero(begins_run(rounds)), len(rounds)).tolist()
        tick = 0
        for first, last in pairwise(start):
            tick = self._round(np.arange(first, last), tick)
        self.steps.staging = [begin + used for begin, used in zip(self.base, self.used, strict=True)]
        return self.steps

    def _round(self, rows: _Ints, tick: int) -> int:
        """The messages of a round; the first tick of the next one."""
        into, outof, reduces = self.into[rows], self.outof[rows], self.rows.op[rows] == Op.REDUCE
        src, dst, run = self.rows.src[rows], self.rows.dst[rows], self.rows.run[rows]
        home = self.home_buffer[into] != Buffer.SCRATCH
        twice = _repeated(into)
        direct = home & ~reduces & ~self._among(into, outof) & ~twice
        order = np.lexsort((self.offset[outof], self.buffer[outof], run, direct, dst, src))
        into, outof, src, dst = (column[order] for column in (into, outof, src, dst))
        direct, reduces = direct[order], reduces[order]
        count = self.count[outof]
        head = begins_run(src, dst, direct, reduces, self.buffer[outof], self.home_buffer[into])
        head[1:] |= self.offset[outof][1:] != (self.offset[outof] + count)[:-1]
        head[1:] |= direct[1:] & (self.home[into][1:] != (self.home[into] + count)[:-1])
        first = np.flatnonzero(head)
        message = np.cumsum(head) - 1
        size = np.add.reduceat(count, first)
        nth = nth_in_group(src[first] * self.placement.ranks + dst[first])
        turn = nth // self.signals if self.in_turn else np.zeros(len(nth), dtype=np.int64)
        target_buffer = np.where(direct[first], self.home_buffer[into[first]], int(Buffer.SCRATCH))
        target = self.home[into[first]]
        source_buffer, source = self.buffer[outof[first]].copy(), self.offset[outof[first]].copy()
        landed = np.full(len(first), -1, dtype=np.int64)
        last = tick + 2 * int(turn.max(initial=0))
        for part in range(int(turn.max(initial=0)) + 1):
            now = tick + 2 * part
            chosen = np.flatnonzero(turn == part)
            self._begin(now, chosen, first, message, into, direct, src, dst, size, landed, target)
            mine = turn[message] == part
            self._sent(outof[mine], dst[mine], now)
            self._learn(now, src[first[chosen]], dst[first[chosen]])
        ends = (src[first], dst[first], nth % self.signals)
        slots = (source_buffer, source, target_buffer, target, size)
        self.steps.puts.append(np.stack([tick + 2 * turn, *ends, *slots]))
        lands = target[message] + offsets(count)[:-1] - offsets(count)[:-1][first][message]
        self._arrive(last, into, direct, reduces, lands, landed[message], tick + 2 * turn[message])
        return last + 2

    def _among(self, values: _Ints, chosen: _Ints) -> NDArray[np.bool_]:
        """Which of some values are among others."""
        self.marked[chosen] = True
        found = self.marked[values]
        self.marked[chosen] = False
        return found

    def _begin(
        self, now: int, chosen: _Ints, first: _Ints, message: _Ints, into: _Ints, direct: NDArray[np.bool_],
        src: _Ints, dst: _Ints, size: _Ints, landed: _Ints, target: _Ints,
    ) -> None:  # fmt: skip
        """Find room for the messages of a tick, and the credits that they need."""
        np.fill_diagonal(self.knows, now - 1)
        sender = src[message]
        reader = self.reader[into]
        heard = (reader >= 0) & (self.knows[sender, np.maximum(reader, 0)] >= self.touched[into])
        needed = np.where(direct, np.where(heard, self.before[into], self.touched[into]), _BEFORE)
        need = np.maximum.reduceat(needed, first)
        rows_of = np.diff(np.append(first, len(message))).tolist()
        for number in chosen.tolist():
            row = int(first[number])
            source, peer = int(src[row]), int(dst[row])
            known = int(self.knows[source, peer])
            if direct[row]:
                if known < need[number]:
                    self._credit(now, int(need[number]), peer, source)
                continue
            if known < _BEFORE:
                self._credit(now, _BEFORE, peer, source)
            target[number], landed[number] = self._room(now, source, peer, int(size[number]), rows_of[number])

    def _room(self, now: int, source: int, peer: int, size: int, values: int) -> tuple[int, int]:
        """Slot and number of a block of ``peer``'s staging memory that ``source`` knows, or is told, to be free."""
        known = int(self.knows[source, peer])
        free = self.free[peer]
        line = free.get(size)
        full = self.used[peer] + size > self.most
        if not line and full:
            larger = [other for other, blocks in free.items() if other > size and blocks]
            line = free[min(larger)] if larger else None
        slot = -1
        if line:
            since = line[0][0]
            if since <= known or (full and since <= now - 4):
                if since > known:
                    self._credit(now, since, peer, source)
                _, number, *_ = line.popleft()
                _, slot, length, _ = self.blocks[number]
                if length > size:
                    self.blocks.append([peer, slot + size, length - size, 0])
                    free[length - size].append((since, len(self.blocks) - 1))
        if slot < 0:
            slot = self.base[peer] + self.used[peer]
            self.used[peer] += size
        self.blocks.append([peer, slot, size, values])
        return slot, len(self.blocks) - 1

    def _credit(self, now: int, done: int, giver: int, taker: int) -> None:
        """Let ``giver`` tell ``taker``, before tick ``now``, that it is done with tick ``done``."""
        when = now - 2 if now >= 2 and done < now - 2 else now - 1
        self.steps.credits.add((when, giver, taker))
        self.knows[taker, giver] = max(int(self.knows[taker, giver]), when - 1)

    def _sent(self, values: _Ints, to: _Ints, now: int) -> None:
        """Values are put in a tick, as they are."""
        alone = (self.touched[values] < now) & ~_repeated(values)
        self.before[values] = np.where(alone, self.touched[values], now)
        self.reader[values] = np.where(alone, to, -1)
        self.touched[values] = now
        np.subtract.at(self.reads, values, 1)
        ends = np.unique(values)
        ends = ends[(self.reads[ends] == 0) & (self.block[ends] >= 0)]
        self._release(self.block[ends], now)
        self.block[ends] = -1

    def _release(self, blocks: _Ints, now: int) -> None:
        """One value less lives in each of some blocks."""
        for number in blocks.tolist():
            block = self.blocks[number]
            block[3] -= 1
            if not block[3]:
                self.free[block[0]][block[2]].append((now, number))

    def _learn(self, now: int, src: _Ints, dst: _Ints) -> None:
        """Everybody who was signalled in a tick knows what the sender knew before."""
        if not self.transitive:
            np.maximum.at(self.knows, (dst, src), now - 1)
            return
        by = np.argsort(dst, kind="stable")
        heads = np.flatnonzero(begins_run(dst[by]))
        best = np.maximum.reduceat(self.knows[src[by]], heads, axis=0)
        ranks = dst[by][heads]
        self.knows[ranks] = np.maximum(self.knows[ranks], best)

    def _arrive(
        self, now: int, into: _Ints, direct: NDArray[np.bool_], reduces: NDArray[np.bool_], lands: _Ints,
        blocks: _Ints, when: _Ints,
    ) -> None:  # fmt: skip
        """What landed is where its value lives, or is added or copied at the end of the round."""
        place = np.flatnonzero(direct)
        values = into[place]
        self._leave(values, now)
        self.buffer[values], self.offset[values] = self.home_buffer[values], self.home[values]
        self._touch(values, when[place])
        if len(place) == len(into):
            return
        rest, waves = self._joined_in_pairs(now, np.flatnonzero(~direct), into, reduces, lands, blocks)
        wave = nth_in_group(into[rest])
        for turn in range(int(wave.max(initial=-1)) + 1):
            now_rows = rest[wave == turn]
            self._arrive_staged(
                now, waves + turn, into[now_rows], reduces[now_rows], lands[now_rows], blocks[now_rows]
            )

    def _joined_in_pairs(
        self, now: int, rest: _Ints, into: _Ints, reduces: NDArray[np.bool_], lands: _Ints, blocks: _Ints
    ) -> tuple[_Ints, int]:
        """Add what landed for one value in pairs, pairs of pairs and so on, all values at once.

        Few kernels then do it (:mod:`.kernels`), and sums of many are more exact.

        Returns:
            The rows that are left, one for each value that is only added to, and the waves that it took.
        """
        only_sums = ~self._among(into, into[rest[~reduces[rest]]])
        waves = 0
        while True:
            order = rest[np.argsort(into[rest], kind="stable")]
            odd = (nth_in_group(into[order]) % 2 == 1) & only_sums[order]
            if not odd.any():
                return rest, waves
            kept, gone = order[np.flatnonzero(odd) - 1], order[odd]
            staging = np.full(len(gone), int(Buffer.SCRATCH))
            rank = self.values[into[gone]] % self.placement.ranks
            columns = [
                np.full(len(gone), now), np.full(len(gone), waves), rank, np.full(len(gone), int(PutSignalAct.SUM)),
                staging, lands[kept], staging, lands[gone], staging, lands[kept], self.count[into[gone]],
            ]  # fmt: skip
            self.steps.locals.append(np.stack(columns))
            self._release(blocks[gone], now)
            left = np.ones(len(into), dtype=np.bool_)
            left[gone] = False
            rest = rest[left[rest]]
            waves += 1

    def _arrive_staged(
        self, now: int, turn: int, values: _Ints, adds: NDArray[np.bool_], lands: _Ints, blocks: _Ints
    ) -> None:
        home = self.home_buffer[values] != Buffer.SCRATCH
        staged = self.block[values] >= 0
        stays = ~home & (~adds | ~staged)  # what landed is where the value lives from now on
        old_buffer, old = self.buffer[values], self.offset[values]
        target_buffer = np.where(home, self.home_buffer[values], int(Buffer.SCRATCH))
        target = np.where(home, self.home[values], np.where(stays, lands, old))
        useless = ~home & (self.reads[values] == 0)
        works = (adds | home) & ~useless
        act = np.where(adds, int(PutSignalAct.SUM), int(PutSignalAct.COPY))
        rank = self.values[values] % self.placement.ranks
        addend_buffer = np.where(adds, int(Buffer.SCRATCH), -1)
        source_buffer = np.where(adds, old_buffer, int(Buffer.SCRATCH))
        source = np.where(adds, old, lands)
        addend = np.where(adds, lands, -1)
        tick, wave = np.full(len(values), now), np.full(len(values), turn)
        columns = [tick, wave, rank, act, source_buffer, source, addend_buffer, addend, target_buffer, target]
        self.steps.locals.append(np.stack([*columns, self.count[values]])[:, works])
        stays &= ~useless
        self._leave(values[stays | useless], now)
        self.buffer[values], self.offset[values] = target_buffer, target
        self.block[values[stays]] = blocks[stays]
        self._release(blocks[~stays], now)
        self._touch(values, np.full(len(values), now))

    def _leave(self, values: _Ints, now: int) -> None:
        """Values no longer live in the blocks of staging memory in which they lived."""
        staged = values[self.block[values] >= 0]
        self._release(self.block[staged], now)
        self.block[staged] = -1

    def _touch(self, values: _Ints, when: _Ints) -> None:
        self.touched[values] = np.maximum(self.touched[values], when)
        self.before[values] = self.touched[values]
        self.reader[values] = -1


def _repeated(values: _Ints) -> NDArray[np.bool_]:
    """Whether each value occurs more than once."""
    order = np.argsort(values, kind="stable")
    same = values[order][1:] == values[order][:-1]
    found = np.zeros(len(values), dtype=np.bool_)
    found[order[1:][same]] = found[order[:-1][same]] = True
    return found
