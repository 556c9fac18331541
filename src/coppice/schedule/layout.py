"""Offset and length of each chunk of a schedule in the buffer of M bytes."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.exact_sums import grouped_sums
from coppice.schedule.schedule import Schedule

_INT64_MAX = 2**63 - 1


def chunk_bounds(schedule: Schedule, size_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First byte and length of every chunk in a buffer of ``size_bytes``.

    Chunks follow each other slot by slot, cut at floor(bytes before x total / weight of all): lengths of equal
    shares differ by one byte at most, and all of them add up to the whole. In an all-to-all the buffers of all
    senders follow each other; what ranks send to others is ``size_bytes`` x (ranks - 1) altogether, as much as where
    all blocks are equal. A slot without chunks keeps its place.

    Args:
        size_bytes: M in bytes, 0 or more.

    Examples:
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, blocks
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)
        >>> offset, length = chunk_bounds(Moves(case, blocks(case)).schedule(), 10)
        >>> offset.tolist(), length.tolist()
        ([0, 2, 5, 7], [2, 3, 2, 3])
    """
    if size_bytes < 0:
        raise InputError(f"expected a size of 0 bytes or more, found {size_bytes}.")
    chunks = schedule.num_chunks
    slot_weight: list[int] = schedule.slot_weight.tolist()
    total, weight = size_and_weight(schedule, size_bytes)
    if weight and total * sum(slot_weight) // weight > _INT64_MAX:
        raise InputError(
            f"expected less than 2^63 bytes in all buffers, found more with {size_bytes}: choose a smaller size."
        )
    if not chunks or not weight:
        return np.zeros(chunks, dtype=np.int64), np.zeros(chunks, dtype=np.int64)
    # A chunk begins at total * (before its slot + slot weight * before it / shares of the slot) / weight.
    common = gcd(weight, *slot_weight)
    slot_weight, weight = [each // common for each in slot_weight], weight // common
    shares = grouped_sums(schedule.chunk_slot, schedule.chunk_share, len(slot_weight))
    widest = max(shares) * sum(slot_weight)
    if widest < 2**31 and total // weight < 2**31:
        begin, end = _cuts(schedule, np.array(slot_weight), np.array(shares), total, weight)
    else:
        begin, end = _cuts(
            schedule, np.array(slot_weight, dtype=object), np.array(shares, dtype=object), total, weight
        )
    return begin.astype(np.int64), (end - begin).astype(np.int64)


def size_and_weight(schedule: Schedule, size: int) -> tuple[int, int]:
    """Meaning of the buffer's ``size``, and the slot weight it is divided by.

    In an all-to-all that is what ranks send to others, ``size`` x (ranks - 1) altogether: a block from a rank to itself
    is as large as its weight says, and changes nothing for the others. Otherwise it is the whole.
    """
    slot_weight: list[int] = schedule.slot_weight.tolist()
    ranks, whole = schedule.topology.num_ranks, sum(slot_weight)
    if schedule.collective is Collective.ALL_TO_ALL:
        moved = whole - sum(slot_weight[:: ranks + 1])
        if moved:
            return size * (ranks - 1), moved
        return size * ranks, whole
    return size, whole


def _cuts(
    schedule: Schedule, slot_weight: NDArray[Any], shares: NDArray[Any], total: int, weight: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """First byte of each chunk and of what follows it, in integers of the type of ``slot_weight``."""
    kind = slot_weight.dtype
    slot = schedule.chunk_slot
    share = schedule.chunk_share.astype(kind)
    up_to = np.cumsum(share, dtype=kind)
    first_of_slot = np.searchsorted(slot, slot)
    before_slot = np.cumsum(slot_weight, dtype=kind) - slot_weight
    unit = shares[slot]
    inside_end = up_to - (up_to - share)[first_of_slot]
    whole = unit * weight
    begin_share = before_slot[slot] * unit + slot_weight[slot] * (inside_end - share)
    end_share = before_slot[slot] * unit + slot_weight[slot] * inside_end
    # total * x // whole without leaving 64 bits: split total into a multiple of whole and the rest.
    multiple, rest = total // whole, total % whole
    return (
        multiple * begin_share + rest * begin_share // whole,
        multiple * end_share + rest * end_share // whole,
    )
