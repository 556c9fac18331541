"""Enumerate all sequences of rewrites of a program, and choose the fastest result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.policies.tensor.coconet.costs import Machine
from coppice.iteration.policies.tensor.coconet.program import TensorProgram
from coppice.iteration.policies.tensor.coconet.rewrites import PHASES


@dataclass(frozen=True)
class Tuned:
    """Fastest program with its rewrites."""

    program: TensorProgram  # The quickest program
    seconds: float  # What it takes
    rewrites: tuple[str, ...]  # The transforms that lead to it
    tried: int  # Programs that were compared: all that there are


def variants(
    program: TensorProgram, *, most: int = 200_000, phases: int = 3
) -> Iterator[tuple[tuple[str, ...], TensorProgram]]:
    """Every distinct program reachable by rewrites, with the rewrites applied, breadth first.

    Args:
        phases: Phases of transforms: 1 changes operations only, 2 fuses as well, 3 overlaps as well.
    """
    seen = {program.key()}
    found: list[tuple[tuple[str, ...], TensorProgram]] = [((), program)]
    for phase in PHASES[:phases]:
        front = 0
        while front < len(found):
            done, each = found[front]
            front += 1
            for transform in phase:
                for name, made in transform(each):
                    key = made.key()
                    if key in seen:
                        continue
                    seen.add(key)
                    found.append(((*done, name), made))
                    if len(found) > most:
                        raise InputError(
                            f"expected {most} variants of a program at most, found more: allow more with `most`."
                        )
    yield from found


def autotune(program: TensorProgram, machine: Machine, *, most: int = 200_000) -> Tuned:
    """Fastest variant; ties go to the fewest rewrites, then to the first.

    Examples:
        >>> from coppice.iteration.policies.tensor.coconet.examples import pipeline_handoff
        >>> found = autotune(pipeline_handoff(ranks=4, rows=64, columns=1024), Machine())
        >>> found.rewrites[:2]
        ('split sum along 0', 'reorder sent')
    """
    best: Tuned | None = None
    tried = 0
    for rewrites, each in variants(program, most=most):
        seconds = machine.seconds(each)
        tried += 1
        if best is None or seconds < best.seconds:
            best = Tuned(each, seconds, rewrites, 0)
    if best is None:
        raise InputError("expected a program, found none.")
    return Tuned(best.program, best.seconds, best.rewrites, tried)
