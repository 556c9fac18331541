"""Levels of copies and sums, in any order within which nothing changes, and what one kernel of them moves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.put_signal.kernels import chunks_moved, levels_of
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalCall
from coppice.program.dialects.put_signal.verify import verify_put_signal
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
    """15 others send to every rank at once: 15 that landed and its own are read, 8 of them and the result written."""
    program = lower_put_signal(forest("star", Collective.REDUCE_SCATTER, (("gpus", 16),)), pieces=1)
    verify_put_signal(program).require_ok()
    local = program.call_kind == PutSignalCall.LOCAL
    assert set(chunks_moved(program)[local].tolist()) == {16 + 8}


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-1v", "ring"])
def test_what_kernels_move(name: str, collective: Collective) -> None:
    """Beside a cache that takes everything: what is not there is read, and what was written goes to memory once."""
    program = lower_put_signal(forest(name, collective), pieces=4, communicators=2)
    moved = chunks_moved(program).tolist()
    for call, (first, last) in enumerate(pairwise(program.call_start.tolist())):
        read, written = set(), set()
        for row in range(first, last) if program.call_kind[call] == PutSignalCall.LOCAL else ():
            for nth in range(int(program.count[row])):
                for word in ("source", "addend"):
                    buffer, slot = getattr(program, f"{word}_buffer")[row], getattr(program, word)[row] + nth
                    if buffer >= 0 and (buffer, slot) not in written:
                        read.add((buffer, slot))
                written.add((program.target_buffer[row], program.target[row] + nth))
        assert moved[call] == len(read) + len(written)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_lanes_have_trees_of_their_own(groups: int) -> None:
    program = lower_put_signal(
        forest("dgx-a100", Collective.ALL_REDUCE, (("boxes", 2),)),
        communicators=4,
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
    with pytest.raises(InputError, match=r"expected `groups` to divide the 4 communicators, found 3\."):
        lower_put_signal(body, communicators=4, groups=3)
