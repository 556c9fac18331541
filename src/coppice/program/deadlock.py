"""Deadlock of a program: the cycle of waits, and its description."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_SHOWN = 8


class Deadlock(Exception):  # noqa: N818  (an outcome, caught by verifiers)
    """The program deadlocks; the message is the cycle of waits, a sentence.

    Args:
        circle: The circle of waiting.
        stuck: Steps at which thread blocks stand.
    """

    def __init__(self, circle: str, *, stuck: Sequence[int] = ()) -> None:
        super().__init__(circle)
        self.stuck = tuple(stuck)


def circle_from(start: int, waits_for: Callable[[int], int | None]) -> list[int]:
    """Cycle reached by following the waits of thread blocks.

    Args:
        waits_for: What a thread block waits for, None where nothing will ever end its waiting.

    Returns:
        The circle, its first member once more at its end; where there is none, the thread block that waits in vain.

    Examples:
        >>> circle_from(0, {0: 2, 2: 5, 5: 2}.get)
        [2, 5, 2]
        >>> circle_from(0, {0: 2}.get)
        [2]
    """
    place: dict[int, int] = {}
    walk: list[int] = []
    while start not in place:
        place[start] = len(walk)
        walk.append(start)
        following = waits_for(start)
        if following is None:
            return [start]
        start = following
    return [*walk[place[start] :], start]


def waits_in_words(first: str, waits: Sequence[str]) -> str:
    """Sentence about a cycle of waits, without its middle where it is long.

    Args:
        waits: For what it waits; for what that waits; and so on.
    """
    if len(waits) > _SHOWN:
        waits = [*waits[: _SHOWN - 1], f".. ({len(waits) - _SHOWN} more) ..", waits[-1]]
    return f"{first} {'; that '.join(waits)}."
