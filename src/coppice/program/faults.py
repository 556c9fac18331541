"""Descriptions of faults: reads of unwritten slots, invalid sums, wrong outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from coppice.collectives import Collective
from coppice.program.judge import Judgement
from coppice.program.memory import NO_CHUNK, MemoryLayout
from coppice.rows import begins_run, offsets

_EXAMPLES = 5
_NO_OTHERS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class ChunkNames:
    """Chunks of a program in words."""

    layout: MemoryLayout  # What decides on the values
    per_chunk: int = 1  # Slots of a chunk
    in_pieces: bool = False  # The piece of a chunk is named as well

    def __call__(self, number: int) -> str:
        """A chunk in words."""
        chunk, piece = divmod(number, self.per_chunk)
        of = f"piece {piece} of " if self.in_pieces else ""
        if self.layout.collective is Collective.ALL_TO_ALL:
            source, chunk = divmod(chunk, self.layout.num_chunks // self.per_chunk)
            return f"{of}chunk {chunk} of rank {source}"
        return f"{of}chunk {chunk}"


def value_faults(
    judgement: Judgement,
    names: ChunkNames,
    *,
    name: Callable[[int], str],  # An operation in words
    # The sentence for an access (row) of whose slots the given one is the first that nothing was written to
    unwritten: Callable[[int, int], str],
    misread: Mapping[int, str] = _NO_OTHERS,  # Other faults of accesses (rows), a sentence each
    slot_noun: str = "slot",  # What a slot of an output is called
) -> tuple[list[str], int]:
    """First faults in time, a sentence each, and their number."""
    values, accesses = judgement.values, judgement.execution.accesses
    start = offsets(accesses.count)
    empty = np.flatnonzero(values.missing)
    access = np.searchsorted(start, empty, side="right") - 1
    heads = begins_run(access)
    first = dict(zip(access[heads].tolist(), (empty - start[access])[heads].tolist(), strict=True))
    access = np.array([*first, *misread], dtype=np.int64)
    sums, actor = values.wrong_sums, judgement.execution.values.actor
    adder = actor[sums.value]
    time = np.zeros(int(max(accesses.actor.max(initial=0), actor.max(initial=0))) + 1, dtype=np.int64)
    time[accesses.actor] = accesses.time
    when = np.concatenate([time[accesses.actor[access]] * 2, time[adder] * 2 + 1])
    sentences = []
    for row in np.argsort(when, kind="stable")[:_EXAMPLES].tolist():
        if row < len(access):
            mine = int(access[row])
            sentences.append(unwritten(mine, first[mine]) if mine in first else misread[mine])
            continue
        row -= len(access)
        one, other = int(sums.one[row]), int(sums.other[row])
        what = (
            f"adds {names(other)} to {names(one)}: expected the same."
            if one != other
            else f"adds the contribution of rank {_lowest(values.common(row))} to {names(one)} a second time."
        )
        sentences.append(f"{name(int(adder[row]))} {what}")
    slots = values.wrong_slots
    for row in range(min(_EXAMPLES - len(sentences), len(slots.slot))):
        where = f"{slot_noun} {slots.slot[row] // names.per_chunk} of the output of rank {slots.rank[row]}"
        have, want = int(slots.have[row]), int(slots.want[row])
        sentences.append(f"{where} {_difference(have, want, names, values.differing(row))}")
    return sentences, len(access) + len(adder) + len(slots.slot)


def _difference(have: int, want: int, names: ChunkNames, differing: tuple[int, int]) -> str:
    """What is wrong with a slot of an output, as the end of a sentence."""
    if have == NO_CHUNK:
        return f"is never written: expected {names(want)}."
    if have != want:
        return f"ends with {names(have)}: expected {names(want)}."
    lacks, extra = differing
    if lacks:
        return (
            f"ends with {names(want)} without the contribution of rank {_lowest(lacks)} "
            f"({lacks.bit_count()} missing)."
        )
    return (
        f"ends with {names(want)} and the contribution of rank {_lowest(extra)}, which does not belong there."
    )


def _lowest(members: int) -> int:
    """Smallest member of a set of ranks."""
    return (members & -members).bit_length() - 1
