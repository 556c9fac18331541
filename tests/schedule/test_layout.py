"""Chunks tile the buffer without gaps, in equal parts to the byte."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs, whole
from coppice.schedule.layout import chunk_bounds
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.topology.presets import preset


def schedule(collective: Collective, ranks: int = 4, **columns: list[int]) -> Schedule:
    root = 0 if collective.rooted else -1
    case = AlgorithmCase(topology=preset("star", gpus=ranks), collective=collective, root=root)
    layout = pairs(case) if collective is Collective.ALL_TO_ALL else blocks(case)
    made = Moves(case, layout).schedule()
    kinds = {"chunk_slot": np.int32, "slot_weight": np.int64, "chunk_share": np.int64}
    for name, values in columns.items():
        object.__setattr__(made, name, np.array(values, dtype=kinds[name]))
    return made


weights = st.integers(0, 9) | st.integers(2**40, 2**62)


@settings(max_examples=300)
@given(
    st.lists(weights, min_size=4, max_size=4),
    st.lists(st.lists(st.integers(1, 9) | st.integers(2**40, 2**61), max_size=3), min_size=4, max_size=4),
    st.integers(0, 1000) | st.integers(2**40, 2**62),
)
def test_every_boundary_is_the_floor_of_its_share(
    weight: list[int], shares: list[list[int]], size: int
) -> None:
    body = schedule(
        Collective.ALL_GATHER,
        slot_weight=weight,
        chunk_slot=[slot for slot, parts in enumerate(shares) for _ in parts],
        chunk_share=[share for parts in shares for share in parts],
    )
    offset, length = chunk_bounds(body, size)
    expected = []
    for slot, parts in enumerate(shares):
        for i in range(len(parts)):
            cuts = [
                sum(weight[:slot]) + Fraction(weight[slot] * sum(parts[:j]), sum(parts)) for j in (i, i + 1)
            ]
            begin, end = (size * cut // sum(weight) if sum(weight) else 0 for cut in cuts)
            expected.append((begin, end - begin))
    assert list(zip(offset.tolist(), length.tolist(), strict=True)) == expected


@pytest.mark.parametrize("size", [0, 1, 2, 1000, 2**40 + 7])
def test_equal_chunks_differ_by_one_byte_and_add_up(size: int) -> None:
    for pieces in (1, 3, 64):
        length = chunk_bounds(in_pieces(schedule(Collective.ALL_REDUCE, 7), pieces), size)[1]
        assert length.sum() == size
        assert length.max() - length.min() <= 1


def test_all_to_all_has_a_buffer_of_m_for_every_sender() -> None:
    offset, length = chunk_bounds(schedule(Collective.ALL_TO_ALL, 3), 10)
    assert length.reshape(3, 3).sum(axis=1).tolist() == [10, 10, 10]
    assert offset[::3].tolist() == [0, 10, 20]


def test_a_buffer_in_one_slot() -> None:
    case = AlgorithmCase(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    assert chunk_bounds(Moves(case, whole(case, 2)).schedule(), 11)[1].tolist() == [5, 6]


def test_a_barrier_has_no_bytes() -> None:
    case = AlgorithmCase(topology=preset("star", gpus=4), collective=Collective.BARRIER)
    assert chunk_bounds(Moves(case, whole(case)).schedule(), 11)[1].tolist() == [0]


def test_refuses_what_has_no_meaning() -> None:
    with pytest.raises(InputError, match="0 bytes or more"):
        chunk_bounds(schedule(Collective.ALL_GATHER), -1)
    with pytest.raises(InputError, match=r"2\^63"):
        chunk_bounds(schedule(Collective.ALL_TO_ALL, 8), 2**60)
