"""An iteration by hand, in exact fractions: the backward pass from 0 on, one machine after the other, a forward pass.

All messages are needed by the next forward pass, so the network is idle when a backward pass begins, and an iteration
is one round. Chains only.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from coppice.iteration.layers import LayerWorkload

Job = tuple[Fraction, Fraction, int]
"""Release, time, priority."""


def exact(value: float) -> Fraction:
    return Fraction(value).limit_denominator(10**6)


def message(work: LayerWorkload, size: Fraction) -> Fraction:
    return exact(work.message_seconds) + size / exact(work.bytes_per_second)


def one_machine(jobs: Sequence[Job]) -> list[Fraction]:
    """Ends of jobs, of which the ready one of least priority runs to its end, of equal ones the first."""
    ends: list[Fraction | None] = [None] * len(jobs)
    now = Fraction(0)
    for _ in jobs:
        left = [number for number, end in enumerate(ends) if end is None]
        now = max(now, min(jobs[number][0] for number in left))
        ready = [number for number in left if jobs[number][0] <= now]
        number = min(ready, key=lambda each: (jobs[each][2], each))
        now += jobs[number][1]
        ends[number] = now
    return [Fraction(0) if end is None else end for end in ends]


def gradients(work: LayerWorkload, delayed: int = 0) -> tuple[list[Fraction], Fraction]:
    """When the gradients of each layer are there, and when the backward pass ends; the first k weights delayed."""
    now, ready = Fraction(0), [Fraction(0)] * work.layers
    for layer in reversed(range(work.layers)):
        weights = exact(work.weight_seconds(layer))
        now += exact(work.backward[layer]) - (weights if layer < delayed else 0)
        ready[layer] = now
    for layer in range(delayed):
        now += exact(work.weight_seconds(layer))
        ready[layer] = now
    return ready, now


def forward(work: LayerWorkload, begin: Fraction, there: Sequence[Fraction]) -> Fraction:
    """The end of the forward pass."""
    for seconds, own in zip(work.forward, there, strict=True):
        begin = max(begin, own) + exact(seconds)
    return begin


def cut(size: Fraction, most: Fraction | None) -> list[Fraction]:
    if most is None or size <= most:
        return [size]
    rest = size % most
    return [most] * (size // most) + ([rest] if rest else [])


def by_priority(
    work: LayerWorkload, most: float | None = None, *, delayed: int = 0, servers: bool = False
) -> Fraction:
    """Parts of at most so many bytes, the layer as priority; pushed and then pulled, or summed at once."""
    ready, end = gradients(work, delayed)
    jobs: list[Job] = []
    owner = []
    for layer in reversed(range(work.layers)):
        for part in cut(exact(work.bytes[layer]), None if most is None else exact(most)):
            if part:
                jobs.append((ready[layer], message(work, part), layer))
                owner.append(layer)
    ends = one_machine(jobs)
    if servers:
        ends = one_machine([(end, job[1], job[2]) for end, job in zip(ends, jobs, strict=True)])
    there = [Fraction(0)] * work.layers
    for each, layer in zip(ends, owner, strict=True):
        there[layer] = max(there[layer], each)
    return forward(work, end, there)


def in_halves(work: LayerWorkload, ahead: int | None) -> Fraction:
    """Reduce-scatters, then all-gathers, layer by layer, launched so many layers ahead."""
    ready, end = gradients(work)
    layers = [layer for layer in range(work.layers) if work.bytes[layer]]
    half = {layer: message(work, exact(work.bytes[layer])) / 2 for layer in layers}
    free = Fraction(0)
    for layer in reversed(layers):
        free = max(free, ready[layer]) + half[layer]
    there = [Fraction(0)] * work.layers
    starts: dict[int, Fraction] = {}
    now = end
    place = 0

    def gather(until: int) -> None:
        nonlocal free, place
        while place < len(layers) and place < until:
            gate = starts[layers[place - ahead]] if ahead is not None and place >= ahead else Fraction(0)
            free = max(free, gate) + half[layers[place]]
            there[layers[place]] = free
            place += 1

    gather(len(layers) if ahead is None else ahead)
    for layer in range(work.layers):
        now = max(now, there[layer])
        starts[layer] = now
        if ahead is not None and layer in half:
            gather(layers.index(layer) + 1 + ahead)
        now += exact(work.forward[layer])
    return now


def with_a_barrier(work: LayerWorkload, groups: Sequence[Sequence[int]]) -> Fraction:
    """Groups in turn, and one step after all."""
    ready, end = gradients(work)
    free = Fraction(0)
    for group in groups:
        if size := sum((exact(work.bytes[layer]) for layer in group), Fraction(0)):
            free = max(free, *(ready[layer] for layer in group)) + message(work, size)
    return max(end, free) + sum((exact(each) for each in work.forward), Fraction(0))
