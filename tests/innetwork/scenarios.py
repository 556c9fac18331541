"""The published scenarios of SwitchML's switch: what workers send to a slot, and what the switch answers.

``w:s*x`` is a packet of worker w for set s with the values x*i (i = 0, 1, ...), and behind it what comes back: ``-``
nothing, ``all y`` y*i to every worker, ``w y`` y*i to worker w alone. A packet equal to the last of its worker is a
retransmission of it. The state after the last step is bitmaps (worker 0 at the right), contributions still to come,
and values (as the multiplier; ``.`` where none was written), of both sets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SCENARIOS", "Scenario", "ScenarioStep"]


@dataclass(frozen=True)
class ScenarioStep:
    """One packet, and the answer: the multiplier, and to whom (None: to all); no answer at all without a multiplier."""

    worker: int
    set: int
    times: int
    answer: int | None
    to: int | None


@dataclass(frozen=True)
class Scenario:
    name: str
    workers: int
    steps: tuple[ScenarioStep, ...]
    bitmaps: tuple[int, int]
    missing: tuple[int, int]
    sums: tuple[int | None, int | None]


def _scenario(name: str, workers: int, steps: str, state: str) -> Scenario:
    found = []
    for packet, answer in re.findall(r"(\d:\d\*\d+) (-|all \d+|\d \d+)", steps):
        worker, of_set, times = map(int, re.split(r"[:*]", packet))
        words = answer.split()
        to = None if words[0] in ("-", "all") else int(words[0])
        found.append(ScenarioStep(worker, of_set, times, None if answer == "-" else int(words[1]), to))
    bitmaps, missing, sums = (part.split() for part in state.split("|"))
    return Scenario(
        name,
        workers,
        tuple(found),
        (int(bitmaps[0], 2), int(bitmaps[1], 2)),
        (int(missing[0]), int(missing[1])),
        (_sum(sums[0]), _sum(sums[1])),
    )


def _sum(text: str) -> int | None:
    return None if text == "." else int(text)


_FIRST = "0:0*1 -, 1:0*1 all 2"
_SECOND = "0:1*1 -, 1:1*1 all 2"
_THIRD = "0:0*3 -, 1:0*3 all 6"
_OF_THREE = "0:0*1 -, 1:0*1 -, 2:0*1 all 3"
_OF_THREE_SECOND = "0:1*1 -, 1:1*1 -, 2:1*1 all 3"
_OF_THREE_THIRD = "0:0*3 -, 1:0*3 -, 2:0*3 all 9"

SCENARIOS = (
    _scenario("basic", 2, _FIRST, "11 00 | 0 0 | 2 ."),
    _scenario("other set first", 2, _SECOND, "00 11 | 0 0 | . 2"),
    _scenario("half-way in the second set", 2, f"{_FIRST}, 0:1*3 -", "10 01 | 0 1 | 2 3"),
    _scenario("both sets", 2, f"{_FIRST}, 0:1*3 -, 1:1*3 all 6", "00 11 | 0 0 | 2 6"),
    _scenario("slot reuse", 2, f"{_FIRST}, {_SECOND}, {_THIRD}, 0:1*3 -, 1:1*3 all 6", "00 11 | 0 0 | 6 6"),
    _scenario("ignore retransmissions, open", 2, "0:1*1 -, 0:1*1 -, 0:1*1 -", "00 01 | 0 1 | . 1"),
    _scenario("ignore retransmissions", 2, "0:1*1 -, 0:1*1 -, 0:1*1 -, 1:1*1 all 2", "00 11 | 0 0 | . 2"),
    _scenario(
        "retransmit after reduction",
        2,
        f"{_FIRST}, 1:0*1 1 2, 1:0*1 1 2, 1:0*1 1 2, 0:0*1 0 2, 0:0*1 0 2",
        "11 00 | 0 0 | 2 .",
    ),
    _scenario(
        "retransmit from the previous set",
        2,
        f"{_SECOND}, 1:0*3 -, 0:1*1 0 2, 0:1*1 0 2, 0:1*1 0 2",
        "10 01 | 1 0 | 3 2",
    ),
    _scenario(
        "reuse and retransmit", 2, f"{_FIRST}, {_SECOND}, {_THIRD}, 1:1*3 -, 0:0*3 0 6", "01 10 | 0 1 | 6 3"
    ),
    _scenario("three: basic", 3, _OF_THREE, "111 000 | 0 0 | 3 ."),
    _scenario("three: other set", 3, _OF_THREE_SECOND, "000 111 | 0 0 | . 3"),
    _scenario("three: both sets", 3, f"{_OF_THREE}, 0:1*3 -, 1:1*3 -, 2:1*3 all 9", "000 111 | 0 0 | 3 9"),
    _scenario(
        "three: slot reuse",
        3,
        f"{_OF_THREE}, {_OF_THREE_SECOND}, {_OF_THREE_THIRD}, 0:1*3 -, 1:1*3 -, 2:1*3 all 9",
        "000 111 | 0 0 | 9 9",
    ),
    _scenario(
        "three: ignore retransmissions",
        3,
        "0:1*1 -, 0:1*1 -, 0:1*1 -, 1:1*1 -, 2:1*1 all 3",
        "000 111 | 0 0 | . 3",
    ),
    _scenario(
        "three: retransmit after reduction",
        3,
        f"{_OF_THREE}, 1:0*1 1 3, 1:0*1 1 3, 0:0*1 0 3, 2:0*1 2 3",
        "111 000 | 0 0 | 3 .",
    ),
    _scenario(
        "three: previous set",
        3,
        f"{_OF_THREE_SECOND}, 1:0*1 -, 0:1*1 0 3, 0:1*1 0 3, 0:1*1 0 3",
        "010 101 | 2 0 | 1 3",
    ),
    _scenario(
        "three: reuse and retransmit",
        3,
        f"{_OF_THREE}, {_OF_THREE_SECOND}, {_OF_THREE_THIRD}, 1:1*3 -, 0:0*3 0 9, 2:0*3 2 9",
        "101 010 | 0 2 | 9 3",
    ),
    _scenario("one worker", 1, "0:0*1 all 1, 0:0*1 0 1, 0:1*2 all 2, 0:0*3 all 3", "1 0 | 0 0 | 3 2"),
)
"""All scenarios within one slot; different ports, ordinary traffic and a packet through a foreign port are tests of
their own."""
