"""SCCL by complete enumeration: every set of sends of every step, on networks of a few ranks.

A state says which chunks each rank has. From a state, one step leads to every state that some set of sends allows,
where a group (pairs of ranks, chunks per round) carries its chunks times the rounds of the step. Having more is never
worse, so states that others contain are dropped, and the last step sends only what is missing; nothing else is clever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

State = frozenset[tuple[int, int]]
"""Pairs (chunk, rank)."""
Group = tuple[frozenset[tuple[int, int]], int]
"""Pairs (sender, receiver) and chunks per round."""


def is_satisfiable(groups: Sequence[Group], start: State, goal: State, *, steps: int, rounds: int) -> bool:
    """Whether so many steps, of one round or more and ``rounds`` in all, lead from a state to one with the goal."""
    return any(_leads(groups, start, goal, shares) for shares in _shares(rounds, steps))


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


def _leads(groups: Sequence[Group], start: State, goal: State, shares: tuple[int, ...]) -> bool:
    """Whether steps of so many rounds lead to the goal: all that any but the last can do, and what the last must do."""
    states = {start}
    for rounds in shares[:-1]:
        reached = {following for state in states for following in _step(groups, state, rounds)}
        states = {state for state in reached if not any(state < other for other in reached)}
    if not shares:
        return goal <= start
    return any(_arrives(groups, state, sorted(goal - state), _room(groups, shares[-1])) for state in states)


def _room(groups: Sequence[Group], rounds: int) -> tuple[int, ...]:
    return tuple(rate * rounds for _, rate in groups)


def _taken(groups: Sequence[Group], room: tuple[int, ...], pair: tuple[int, int]) -> tuple[int, ...]:
    """What is left in the groups after a send; negative where there was no room."""
    return tuple(free - (pair in pairs) for free, (pairs, _) in zip(room, groups, strict=True))


def _arrives(
    groups: Sequence[Group], state: State, missing: list[tuple[int, int]], room: tuple[int, ...]
) -> bool:
    """Whether one step brings all missing chunks, each from any rank that has it."""
    if not missing:
        return True
    (chunk, v), *rest = missing
    senders = [u for holding, u in sorted(state) if holding == chunk and _linked(groups, (u, v))]
    ways = (_taken(groups, room, (u, v)) for u in senders)
    return any(min(left) >= 0 and _arrives(groups, state, rest, left) for left in ways)


def _linked(groups: Sequence[Group], pair: tuple[int, int]) -> bool:
    return any(pair in pairs for pairs, _ in groups)


def _step(groups: Sequence[Group], state: State, rounds: int) -> set[State]:
    """The states after one step, by every choice of sends."""
    ranks = {rank for pairs, _ in groups for pair in pairs for rank in pair}
    sends = [
        (chunk, u, v)
        for chunk, u in sorted(state)
        for v in sorted(ranks)
        if _linked(groups, (u, v)) and (chunk, v) not in state
    ]
    found: set[State] = set()

    def choose(position: int, room: tuple[int, ...], gained: State) -> None:
        if position == len(sends):
            found.add(state | gained)
            return
        chunk, u, v = sends[position]
        left = _taken(groups, room, (u, v))
        if (chunk, v) not in gained and min(left) >= 0:
            choose(position + 1, left, gained | {(chunk, v)})
        choose(position + 1, room, gained)

    choose(0, _room(groups, rounds), frozenset())
    return found
