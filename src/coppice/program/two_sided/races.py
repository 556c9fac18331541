"""Races of a two-sided program: two accesses of one slot, one of them a write, that nothing puts in order.

A step *happens before* another if a chain of these leads from it to the other: the next step of its thread block, a
step that depends on it, the step that receives its message. That a connection has no room left also orders steps, but
it does so with one depth and not with another, and is not counted on. Without a race, all orders of execution give the
same result, so that one of them stands for all.

What waits for a send need not come after its reads in every runtime (:mod:`coppice.program.two_sided.early_sends`):
there, only later steps of the send's thread block, and who receives its message, come after them.

Of the pairs of :func:`coppice.program.memory.conflicting_pairs`, those in one thread block, or joined by a dependency
between their two, are settled at once; for the rest, vector clocks are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import Buffer, ProgramMemory, conflicting_pairs
from coppice.program.two_sided.early_sends import overwritten_next
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.structure import MessagePairs, step_addresses, step_name
from coppice.rows import grouped, inverse, ranges

_CELLS = 2**25
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


def find_races(
    program: Program,
    memory: ProgramMemory,
    messages: MessagePairs,
    order: list[int],  # An order in which its steps can take place
    *,
    # Sends that count as done before all their threads have read; None: none does
    early: _Bools | None = None,
    examples: int = 5,
) -> tuple[list[str], int]:
    """Races of a program.

    Returns:
        The first few races, a sentence each, and how many pairs of steps there are.
    """
    first, second, address = _conflicts(program, memory, order)
    none = np.zeros(program.num_steps, dtype=np.bool_)
    left = _unordered(program, messages, order, first, second, none)
    sentences = []
    for row in left[:examples].tolist():
        one, other = int(first[row]), int(second[row])
        slot = _slot_name(program, memory, other, int(address[row]))
        sentences.append(
            f"{step_name(program, one)} and {step_name(program, other)} both use {slot}, one of them writes it, "
            "and nothing puts them in order: let one wait for the other."
        )
    if early is None or not early.any():
        return sentences, len(left)
    found = _written_early(program, memory, messages, order, (first, second, address), early)
    fresh = found[~np.isin(found, left)]
    sentences += [
        _of_early_send(program, memory, int(first[row]), int(second[row]), int(address[row]))
        for row in fresh[: examples - len(sentences)].tolist()
    ]
    return sentences, len(left) + len(fresh)


class EarlyWrites(NamedTuple):
    """Slots that are written while a send that counts as done may still read them."""

    send: _Ints  # The send (row) of each
    sentence: str  # The first in words, empty where there is none


def written_early(
    program: Program, memory: ProgramMemory, messages: MessagePairs, order: list[int], early: _Bools
) -> EarlyWrites:
    """Slots that are written while a send that counts as done may still read them; arguments as of :func:`find_races`.

    Args:
        early: Sends that count as done too early.
    """
    first, second, address = conflicts = _conflicts(program, memory, order)
    found = _written_early(program, memory, messages, order, conflicts, early)
    sentence = ""
    if len(found):
        row = int(found[0])
        sentence = _of_early_send(program, memory, int(first[row]), int(second[row]), int(address[row]))
    return EarlyWrites(first[found], sentence)


def _written_early(
    program: Program,
    memory: ProgramMemory,
    messages: MessagePairs,
    order: list[int],
    conflicts: tuple[_Ints, _Ints, _Ints],
    early: _Bools,
) -> _Ints:
    """Conflicts of early sends whose reads come before the write in no way."""
    first, second, _ = conflicts
    own = np.flatnonzero(early[first])
    apart = own[_unordered(program, messages, order, first[own], second[own], early)]
    next_ = overwritten_next(program, memory, early)
    same = own[next_[first[own]] & (second[own] == first[own] + 1)]
    if len(same):
        # A message that was sent after all that the send reads had arrived comes later.
        clocks = _Clocks(program, messages, order, early)
        sender = clocks.sent_by[second[same]]
        known = np.flatnonzero(sender >= 0)
        known = known[clocks.happens_before(first[same[known]], sender[known])]
        same = np.delete(same, known)
    return np.union1d(apart, same)


def _of_early_send(program: Program, memory: ProgramMemory, one: int, other: int, address: int) -> str:
    return (
        f"{step_name(program, other)} writes {_slot_name(program, memory, other, address)} while threads of "
        f"{step_name(program, one)} may still read it: with {program.protocol}, a send of RCCL (ROCm 6.0 and later) "
        "counts as done before all its threads have read; put a copy of the slot onto itself behind the send and wait "
        "for that, or use Simple or LL128."
    )


def _unordered(
    program: Program, messages: MessagePairs, order: list[int], first: _Ints, second: _Ints, early: _Bools
) -> _Ints:
    """Pairs of different thread blocks that nothing puts in order."""
    block = program.step_block
    left = np.flatnonzero((block[first] != block[second]) & ~_joined(program, first, second, early))
    if len(left):
        after = _Clocks(program, messages, order, early).happens_before(first[left], second[left])
        left = left[~after]
    return left


def _conflicts(program: Program, memory: ProgramMemory, order: list[int]) -> tuple[_Ints, _Ints, _Ints]:
    """Pairs of steps (earlier and later in ``order``) that conflict at an address, each pair once."""
    time = inverse(np.array(order, dtype=np.int64))
    src, dst = step_addresses(program, memory)
    # Copies of slots onto themselves, as in place, leave every byte as it is and disturb no reader.
    writing = program.writes_dst & ~((program.op == StepOp.COPY) & (src == dst))
    reads, writes = np.flatnonzero(program.reads_src), np.flatnonzero(writing)
    rows = np.concatenate([reads, writes])
    count = program.count[rows].astype(np.int64)
    address = ranges(np.concatenate([src[reads], dst[writes]]), count)
    step = np.repeat(rows, count)
    write = np.repeat(np.arange(len(rows)) >= len(reads), count)
    one, two = conflicting_pairs(address, time[step], write)
    first, second, where = step[one], step[two], address[two]
    _, unique = np.unique(first * program.num_steps + second, return_index=True)
    first, second, where = first[unique], second[unique], where[unique]
    apart = first != second
    return first[apart], second[apart], where[apart]


def _joined(program: Program, first: _Ints, second: _Ints, early: _Bools) -> _Bools:
    """Pairs that a single dependency puts in order.

    The later one, or a step before it in its thread block, depends on the earlier one or on a step after that.
    """
    waiting, reached = program.dep_waiter, program.dep_target - early[program.dep_target]
    block = program.step_block.astype(np.int64)
    blocks = max(program.num_blocks, 1)
    key = block[waiting] * blocks + program.dep_target_block
    by = np.lexsort((waiting, key))
    key, waiting, reached = key[by], waiting[by], reached[by]
    if not len(key):
        return np.zeros(len(first), dtype=np.bool_)
    # Largest step reached so far, within each (waiting, reached) pair of thread blocks.
    names, group = np.unique(key, return_inverse=True)
    span = program.num_steps + 1
    most = np.maximum.accumulate(group * span + reached) - group * span
    wanted = block[second] * blocks + block[first]
    which = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    place = np.searchsorted(group * span + waiting, which * span + second, side="right") - 1
    found = (names[which] == wanted) & (place >= 0)
    place = np.maximum(place, 0)
    joined: NDArray[np.bool_] = found & (group[place] == which) & (most[place] >= first)
    return joined


class _Clocks:
    """Vector clocks, a few thread blocks at a time."""

    def __init__(self, program: Program, messages: MessagePairs, order: list[int], early: _Bools) -> None:
        self.program, self.early = program, early
        steps = program.num_steps
        self.sent_by = np.full(steps, -1, dtype=np.int64)
        self.sent_by[messages.recv] = messages.send
        self.deps = program.dep_target
        level = self._levels(order)
        rows, start = grouped(level, int(level.max(initial=0)) + 1)
        self.layers = np.split(rows, start[1:-1])

    def _levels(self, order: list[int]) -> _Ints:
        """Length of the longest chain that leads to each step."""
        level = [0] * self.program.num_steps
        first = set(self.program.step_start[:-1].tolist())
        sent_by, start, deps = self.sent_by.tolist(), self.program.dep_start.tolist(), self.deps.tolist()
        for step in order:
            highest = -1 if step in first else level[step - 1]
            if sent_by[step] >= 0:
                highest = max(highest, level[sent_by[step]])
            for row in range(start[step], start[step + 1]):
                highest = max(highest, level[deps[row]])
            level[step] = highest + 1
        return np.array(level, dtype=np.int64)

    def happens_before(self, first: _Ints, second: _Ints) -> NDArray[np.bool_]:
        """Whether a chain leads from each step of ``first`` to that of ``second``."""
        block = self.program.step_block
        sources = np.unique(block[first])
        width = max(1, _CELLS // max(self.program.num_steps, 1))
        answer = np.zeros(len(first), dtype=np.bool_)
        column = np.searchsorted(sources, block[first])
        for start in range(0, len(sources), width):
            clock = self._clock(sources[start : start + width])
            rows = np.flatnonzero((column >= start) & (column < start + width))
            answer[rows] = clock[second[rows], column[rows] - start] >= first[rows]
        return answer

    def _clock(self, sources: NDArray[np.int32]) -> NDArray[np.int32]:
        """For every step, the last step of each source thread block that happens before it, or is it; or -1."""
        program = self.program
        clock = np.full((program.num_steps, len(sources)), -1, dtype=np.int32)
        column = np.full(max(program.num_blocks, 1), -1, dtype=np.int64)
        column[sources] = np.arange(len(sources))
        own = column[program.step_block]
        starts = np.zeros(program.num_steps, dtype=np.bool_)
        lengths = np.diff(program.step_start)
        starts[program.step_start[:-1][lengths > 0]] = True
        dep_count = np.diff(program.dep_start)
        for layer in self.layers:
            follow = layer[~starts[layer]]
            clock[follow] = clock[follow - 1]
            receiving = layer[self.sent_by[layer] >= 0]
            clock[receiving] = np.maximum(clock[receiving], clock[self.sent_by[receiving]])
            left = layer[dep_count[layer] > 0]
            turn = 0
            while len(left):
                awaited = self.deps[program.dep_start[left] + turn]
                reached = clock[awaited]
                open_ = np.flatnonzero(self.early[awaited] & (own[awaited] >= 0))
                send = awaited[open_]  # its flag says that what came before it is done
                reached[open_, own[send]] = np.where(starts[send], -1, send - 1)
                clock[left] = np.maximum(clock[left], reached)
                turn += 1
                left = left[dep_count[left] > turn]
            mine = layer[own[layer] >= 0]
            clock[mine, own[mine]] = mine
        return clock


def _slot_name(program: Program, memory: ProgramMemory, step: int, address: int) -> str:
    """The slot that ``step`` uses at an address."""
    rank = program.step_rank[step]
    op = StepOp(program.op[step])
    for used, buffer, offset in (
        (op.writes_dst, program.dst_buffer, program.dst_offset),
        (op.reads_src, program.src_buffer, program.src_offset),
    ):
        place = address - int(memory.base[buffer[step], rank])
        if used and 0 <= place - int(offset[step]) < int(program.count[step]):
            return f"slot {place} of the {Buffer(buffer[step]).name.lower()}"
    return "a slot"
