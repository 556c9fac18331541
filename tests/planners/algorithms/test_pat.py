"""PAT: few messages, and those that go far are small."""

from __future__ import annotations

from collections import Counter

import pytest

from coppice.collectives import Collective
from planners.algorithms.crossbar import RANKS, check_cost


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_cost(collective: Collective, ranks: int) -> None:
    schedule = check_cost("pat", collective, ranks)
    assert len(set(schedule.step.tolist())) == (ranks - 1).bit_length()
    assert schedule.num_transfers == ranks * (ranks - 1)


@pytest.mark.parametrize("ranks", [6, 8, 13, 16])
def test_each_step_has_one_distance_and_far_ones_carry_least(ranks: int) -> None:
    schedule = check_cost("pat", Collective.ALL_GATHER, ranks)
    blocks = Counter(schedule.step.tolist())
    far = [
        set(((schedule.dst - schedule.src) % ranks)[schedule.step == step].tolist())
        for step in sorted(blocks)
    ]
    steps = (ranks - 1).bit_length()
    assert far == [{1 << (steps - 1 - step)} for step in range(steps)]
    assert sorted(blocks.values()) == [blocks[step] for step in sorted(blocks)] or ranks % 2


@pytest.mark.parametrize("ranks", [5, 12])
def test_reduce_scatter_is_the_mirror(ranks: int) -> None:
    there = check_cost("pat", Collective.ALL_GATHER, ranks)
    back = check_cost("pat", Collective.REDUCE_SCATTER, ranks)
    last = int(there.step.max())
    rows = zip(there.step.tolist(), there.src.tolist(), there.dst.tolist(), there.chunk.tolist(), strict=True)
    mirrored = {(last - step, dst, src, chunk) for step, src, dst, chunk in rows}
    assert mirrored == set(
        zip(back.step.tolist(), back.src.tolist(), back.dst.tolist(), back.chunk.tolist(), strict=True)
    )
