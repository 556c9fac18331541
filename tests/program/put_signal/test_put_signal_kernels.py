"""Levels of copies and sums: in any order within a level nothing changes, and there are few of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.put_signal.kernels import kernels_of, levels_of
from coppice.program.put_signal.lower import lower_put_signal
from coppice.program.put_signal.program import PutSignalCall
from coppice.program.put_signal.verify import verify_put_signal
from support.put_signal_cases import forest

CELLS = 8
WORK = st.tuples(*[st.integers(0, CELLS - 3)] * 3, st.integers(1, 3), st.booleans())


@given(st.lists(WORK, max_size=12), st.randoms(use_true_random=False))
def test_within_a_level_any_order_will_do(
    work: list[tuple[int, int, int, int, bool]], chance: object
) -> None:
    """Each of the operations at once reads all before it writes, as one stretch of one kernel cannot overlap itself."""
    columns = np.array(work, dtype=np.int64).reshape(-1, 5).T
    source, addend, target, count, adds = columns
    level = levels_of(np.zeros(len(work), dtype=np.int64), source, np.where(adds, addend, -1), target, count)
    mixed = list(range(len(work)))
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    wanted, found = np.arange(CELLS) + 1, np.arange(CELLS) + 1
    for memory, order in ((wanted, range(len(work))), (found, sorted(mixed, key=lambda each: level[each]))):
        for each in order:
            read, other, into, length, add = work[each]
            memory[into : into + length] = memory[read : read + length] + (
                memory[other : other + length] if add else 0
            )
    assert (found == wanted).all()


def test_many_sums_of_one_value_are_joined_in_pairs() -> None:
    """15 others send to every rank at once: 4 kernels for pairs of pairs, and one that adds its own."""
    program = lower_put_signal(forest("star", Collective.REDUCE_SCATTER, (("gpus", 16),)), pieces=1)
    verify_put_signal(program).require_ok()
    kernels, chunks = kernels_of(program)
    local = program.call_kind == PutSignalCall.LOCAL
    assert set(kernels[local].tolist()) == {5}
    assert set(chunks[local].tolist()) == {45}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_lanes_have_trees_of_their_own(groups: int) -> None:
    program = lower_put_signal(
        forest("dgx-a100", Collective.ALL_REDUCE, (("boxes", 2),)),
        lanes=4,
        groups=groups,
        pieces=4,
        graphs=False,
    )
    verify_put_signal(program).require_ok()
    assert program.num_communicators == 4
    remote = program.call_kind != PutSignalCall.LOCAL
    calls = np.bincount(program.communicator[remote], minlength=4)
    assert (calls > 0).all()


def test_groups_that_do_not_divide_lanes_are_refused() -> None:
    body = forest("star", Collective.ALL_GATHER, (("gpus", 3),))
    with pytest.raises(InputError, match=r"expected `groups` to divide the 4 lanes, found 3\."):
        lower_put_signal(body, lanes=4, groups=3)
