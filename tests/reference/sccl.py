"""SCCL by complete enumeration: every set of sends of every step, on networks of a few ranks.

A state says which chunks each rank has. From a state, one step leads to every state that some set of sends allows,
where a group (pairs of ranks, chunks per round) carries its chunks times the rounds of the step. Having more is never
worse, so states that others contain are dropped; nothing else is clever here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["is_satisfiable", "least_rounds"]

State = frozenset[tuple[int, int]]
"""Pairs (chunk, rank)."""
Group = tuple[frozenset[tuple[int, int]], int]
"""Pairs (sender, receiver) and chunks per round."""


def is_satisfiable(groups: Sequence[Group], start: State, goal: State, *, steps: int, rounds: int) -> bool:
    """Whether so many steps, of one round or more and ``rounds`` in all, lead from a state to one with the goal."""
    return any(
        any(goal <= state for state in _after(groups, {start}, shares)) for shares in _shares(rounds, steps)
    )


def least_rounds(groups: Sequence[Group], start: State, goal: State, *, steps: int, most: int) -> int | None:
    """The fewest rounds with which so many steps suffice; None if more than ``most``."""
    for rounds in range(steps, most + 1):
        if is_satisfiable(groups, start, goal, steps=steps, rounds=rounds):
            return rounds
    return None


def _shares(rounds: int, steps: int) -> Iterator[tuple[int, ...]]:
    if steps == 0:
        yield ()
        return
    for first in range(1, rounds - steps + 2):
        for rest in _shares(rounds - first, steps - 1):
            yield (first, *rest)


def _after(groups: Sequence[Group], states: set[State], shares: tuple[int, ...]) -> set[State]:
    for rounds in shares:
        reached = {following for state in states for following in _step(groups, state, rounds)}
        states = {state for state in reached if not any(state < other for other in reached)}
    return states


def _step(groups: Sequence[Group], state: State, rounds: int) -> set[State]:
    """The states after one step: every choice of sends that no further send could be added to."""
    pairs = sorted(set().union(*(pairs for pairs, _ in groups)))
    sends = [
        (chunk, u, v)
        for u, v in pairs
        for chunk, holder in sorted(state)
        if holder == u and (chunk, v) not in state
    ]
    found: set[State] = set()

    def choose(position: int, room: tuple[int, ...], gained: frozenset[tuple[int, int]]) -> None:
        if position == len(sends):
            found.add(state | gained)
            return
        chunk, u, v = sends[position]
        left = tuple(free - ((u, v) in pairs) for free, (pairs, _) in zip(room, groups, strict=True))
        if (chunk, v) not in gained and min(left) >= 0:
            choose(position + 1, left, gained | {(chunk, v)})
        choose(position + 1, room, gained)

    choose(0, tuple(rate * rounds for _, rate in groups), frozenset())
    return found
