"""Exact minimum of the iteration time over all groupings and orders of messages, for small workloads.

Theory. All gradients of an iteration are summed between its backward pass and the next forward passes, so that
iterations do not meet on the network and an iteration is a problem by itself: messages on one machine. A message of a
set G of layers can start when the backward passes of G are done, takes c(G), and after it the forward passes from the
first layer of G on still have to run (or, where the optimizer steps once, all of them). For every set S of layers that
are sent, only the time at which the network is free and the end that is forced already matter, and of those only pairs
that no other pair beats in both. A message next joins any layers that are left: 3^L steps in all. A layer may be cut
into equal parts, which are items of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload

MOST_ITEMS = 10
"""Layers with gradients, times their parts, of which all groupings and orders are tried."""


@dataclass(frozen=True, kw_only=True)
class OptimalMessages:
    """Optimal messages of a workload."""

    seconds: float  # Time of an iteration
    # For each message, in the order in which they are sent, its layers; a layer that is cut is in several
    messages: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _State:
    """Partial schedule: layers sent so far, time at which the network is free, lower bound on the iteration."""

    free: float
    end: float
    group: int
    before: _State | None


def optimal_messages(workload: LayerWorkload, *, parts: int = 1, barrier: bool = False) -> OptimalMessages:
    """Minimum iteration time over all groupings and orders of messages.

    Args:
        parts: Equal parts that the gradients of a layer may be cut into.
        barrier: No layer runs again before all gradients are summed.

    Examples:
        Of three layers the last has the most gradients, which nothing needs at first:

        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> optimal_messages(three, barrier=True).seconds
        17.0
        >>> optimal_messages(three), optimal_messages(three, parts=2).seconds
        (OptimalMessages(seconds=16.0, messages=((2,), (0,), (1,))), 15.0)
    """
    layers = [layer for layer in range(workload.layers) if workload.bytes[layer]]
    items = [layer for layer in layers for _ in range(parts)]
    if parts < 1 or len(items) > MOST_ITEMS:
        raise InputError(
            f"expected layers with gradients times parts of 1 to {MOST_ITEMS}, found {len(layers)} layers and "
            f"{parts} parts: the optimum of more is not searched for."
        )
    done, left = _passes(workload)
    whole = workload.compute_seconds
    # The same for every set of items: what it waits for, how long it takes, what comes after it.
    count = 1 << len(items)
    ready, size, after = [0.0] * count, [0.0] * count, [0.0] * count
    for chosen in range(1, count):
        low = (chosen & -chosen).bit_length() - 1
        rest, layer = chosen & (chosen - 1), items[low]
        ready[chosen] = max(ready[rest], done[layer])
        size[chosen] = size[rest] + workload.bytes[layer] / parts
        after[chosen] = left[0] if barrier else max(after[rest], left[layer])
    fronts: list[list[_State]] = [[] for _ in range(count)]
    fronts[0] = [_State(0.0, whole, 0, None)]
    for sent in range(count):
        states = fronts[sent] = _least(fronts[sent])
        group = rest = (count - 1) ^ sent
        while group:
            if _first_of_their_layers(group, sent, items):
                seconds = workload.message(size[group])
                for state in states:
                    free = max(state.free, ready[group]) + seconds
                    fronts[sent | group].append(
                        _State(free, max(state.end, free + after[group]), group, state)
                    )
            group = (group - 1) & rest
    best = min(fronts[count - 1], key=lambda state: state.end)
    found: list[tuple[int, ...]] = []
    at: _State | None = best
    while at is not None and at.group:
        found.append(tuple(sorted({items[item] for item in range(len(items)) if at.group >> item & 1})))
        at = at.before
    return OptimalMessages(seconds=best.end, messages=tuple(reversed(found)))


def _passes(workload: LayerWorkload) -> tuple[list[float], list[float]]:
    """End of each layer's backward pass from the start of backward; end of forward from each layer on."""
    done, left = [0.0] * workload.layers, [0.0] * workload.layers
    at = tail = 0.0
    for layer in reversed(range(workload.layers)):
        at += workload.backward[layer]
        tail += workload.forward[layer]
        done[layer], left[layer] = at, tail
    return done, left


def _first_of_their_layers(group: int, sent: int, items: list[int]) -> bool:
    """Symmetry breaking: equal slices of a layer are sent in one order only."""
    taken = sent | group
    return all(
        not (group >> item & 1 and items[item] == items[item - 1] and not taken >> (item - 1) & 1)
        for item in range(1, len(items))
    )


def _least(states: list[_State]) -> list[_State]:
    """Pareto-minimal states by both times."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda each: (each.free, each.end)):
        if not kept or state.end < kept[-1].end:
            kept.append(state)
    return kept
