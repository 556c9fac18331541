"""Turns of messages: nobody has two in one turn, and what is overwritten was sent before."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coppice.program.lower import rendezvous_rounds


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(2, 7), st.sampled_from([0.0, 0.1, 0.4]))
def test_turns_keep_what_they_promise(seed: int, groups: int, actors: int, dense: float) -> None:
    rng = random.Random(seed)
    rows = []
    for group in range(groups):
        receivers = rng.sample(range(actors), actors)
        rows += [
            (group, sender, receiver)
            for sender, receiver in enumerate(receivers)
            if sender != receiver and rng.random() < 0.8
        ]
    group, sender, receiver = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    pairs = [
        (one, other)
        for one in range(len(rows))
        for other in range(len(rows))
        if one != other and rows[one][0] == rows[other][0] and rng.random() < dense
    ]
    sent, overwritten = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    found = rendezvous_rounds(group, sender, receiver, sent, overwritten).tolist()
    assert all(found[one] <= found[other] for one, other in pairs)
    last = {
        each: max(found[m] for m in range(len(rows)) if rows[m][0] == each) for each in set(group.tolist())
    }
    used = Counter((rows[m][0], found[m], actor) for m in range(len(rows)) for actor in rows[m][1:])
    twice = [key for key, number in used.items() if number > 1]
    if not pairs:
        assert not twice
        assert max(found, default=0) <= 2
    for each, turn, _ in twice:  # what overwrites in a circle, and what follows
        assert turn == last[each]
        assert _has_circle([pair for pair in pairs if rows[pair[0]][0] == each])


def _has_circle(pairs: list[tuple[int, int]]) -> bool:
    """Whether what overwrites cannot be put in an order."""
    left = set(pairs)
    while left:
        later = {other for _, other in left}
        free = {pair for pair in left if pair[0] not in later}
        if not free:
            return True
        left -= free
    return False
