"""Kept, early and on-demand recomputation of every layer of a stage: one integer program per stage.

Source: the optimum of Lynx (arXiv 2406.08756), there too a mixed-integer program.

Theory. As in :mod:`~coppice.iteration.policies.tensor.recompute_windows`, but every layer chooses for itself, and any
window before its backward pass serves: those of the forward pass that runs before, then those of the backward passes of
the layers above, the last one first. Windows are numbered in that order; a number beyond those before the backward pass
of a layer is on demand. Memory is counted when each layer's backward pass runs: what all layers keep of all
micro-batches in flight, what this layer does not keep, and what layers below have computed by then, those in the
windows of this very backward pass included. A choice that all layers share is one of these, at the same cost: the
search starts from it, and is never slower. HiGHS proves the optimum, within the precision of floats; cost and memory
are then counted again in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coppice.iteration.policies.tensor.recompute_windows import KEPT, TICKS, LayerWindows, plan_layer, ticks
from coppice.planners.synthesis.mip.program import MixedProgram, SearchLimits

_Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """Optimal plan of a stage."""

    # For each layer and operation -1 (kept), the number of a window, or a larger one (on demand)
    places: _Places
    added_seconds: float  # What it adds to a forward and backward pass
    memory_bytes: int  # Activations at their peak
    optimal: bool  # It is proved that no other is quicker


def shared_places(layer: LayerWindows, place: Sequence[int], layers: int) -> _Places:
    """Choice of :func:`~coppice.iteration.policies.tensor.recompute_windows.plan_layer`, for every layer."""
    own = len(layer.backward)
    return tuple(
        tuple(at if at == KEPT else own * (layers - 1 - number) + at for at in place)
        for number in range(layers)
    )


def stage_added_seconds(layer: LayerWindows, places: Sequence[Sequence[int]]) -> float:
    """Time that a choice adds to a stage's forward and backward pass."""
    return sum(layers_added(layer, places)) / TICKS


def layers_added(layer: LayerWindows, places: Sequence[Sequence[int]]) -> list[int]:
    """Ticks that a choice adds to each layer; excess of a window counts for the last layer that uses it."""
    rooms = _rooms(layer, len(places))
    loads, users = [0] * len(rooms), [0] * len(rooms)
    added = [0] * len(places)
    for number, place in enumerate(places):
        for op, at in zip(layer.ops, place, strict=True):
            if at >= _windows_before(layer, number, len(places)):
                added[number] += ticks(op.seconds)
            elif at != KEPT:
                loads[at] += ticks(op.seconds)
                users[at] = number
    for load, room, number in zip(loads, rooms, users, strict=True):
        added[number] += max(0, load - room)
    return added


def stage_bytes(layer: LayerWindows, places: Sequence[Sequence[int]], in_flight: int) -> int:
    """Peak activation bytes of a stage by micro-batches in flight."""
    held = sum(
        op.size_bytes for place in places for op, at in zip(layer.ops, place, strict=True) if at == KEPT
    )
    peak = 0
    for number in range(len(places)):
        early = sum(
            op.size_bytes
            for below in range(number)
            for op, at in zip(layer.ops, places[below], strict=True)
            if KEPT < at < _windows_until(layer, number, below, len(places))
        )
        own = sum(op.size_bytes for op, at in zip(layer.ops, places[number], strict=True) if at != KEPT)
        peak = max(peak, own + early)
    return in_flight * held + peak


def plan_stage(
    layer: LayerWindows,  # What all its layers are like
    *,
    layers: int,
    in_flight: int,  # Micro-batches whose activations the stage holds
    limit_bytes: int,
    limits: SearchLimits | None = None,  # When to stop the search; None: with the proof
) -> StagePlan:
    """Best choice for every layer of a stage.

    Examples:
        >>> from coppice.iteration.policies.tensor.recompute_windows import RecomputedOp
        >>> op = RecomputedOp(name="product", seconds=2.0, size_bytes=1)
        >>> layer = LayerWindows(ops=(op, op), backward=(1.0,), forward=(1.0,))
        >>> plan_stage(layer, layers=2, in_flight=1, limit_bytes=3).added_seconds
        3.0
    """
    shared = plan_layer(layer, layers=layers, in_flight=in_flight, limit_bytes=limit_bytes)
    best = shared_places(layer, shared.place, layers)
    room = limit_bytes
    while True:
        model = _Model(layer, layers, in_flight, room)
        start = model.columns(best) if stage_bytes(layer, best, in_flight) <= room else None
        solution = model.program.solve(limits or SearchLimits(gap=0.0), start=start)
        if solution.values is None:
            break
        places = model.read(solution.values.tolist())
        used = stage_bytes(layer, places, in_flight)
        if used <= limit_bytes:
            if stage_added_seconds(layer, places) < stage_added_seconds(layer, best):
                best = places
            break
        room -= used - limit_bytes  # the solver's floats let it exceed the limit
    return StagePlan(
        places=best,
        added_seconds=stage_added_seconds(layer, best),
        memory_bytes=stage_bytes(layer, best, in_flight),
        optimal=solution.optimal,
    )


class _Model:
    """Integer program with the meaning of its columns."""

    def __init__(self, layer: LayerWindows, layers: int, in_flight: int, room: int) -> None:
        self.layer, self.layers = layer, layers
        self.program = MixedProgram()
        unit = max((op.seconds for op in layer.ops), default=0.0) or 1.0
        self.chosen: dict[tuple[int, int], dict[int, int]] = {}
        for number in range(layers):
            demand = _windows_before(layer, number, layers)
            for which, op in enumerate(layer.ops):
                self.chosen[number, which] = {
                    at: self.program.column(
                        cost=op.seconds / unit if at == demand else 0.0, upper=1.0, whole=True
                    )
                    for at in range(KEPT, demand + 1)
                }
                self.program.row(dict.fromkeys(self.chosen[number, which].values(), 1.0), least=1, most=1)
        self._windows(unit)
        self._order()
        self._memory(in_flight, room)

    def columns(self, places: _Places) -> dict[int, float]:
        """Column values of a choice; the excess of windows follows from them."""
        return {
            column: float(places[number][which] == at)
            for (number, which), columns in self.chosen.items()
            for at, column in columns.items()
        }

    def read(self, values: Sequence[float]) -> _Places:
        """Choice from column values."""
        return tuple(
            tuple(
                max(self.chosen[number, which], key=lambda at: values[self.chosen[number, which][at]])
                for which in range(len(self.layer.ops))
            )
            for number in range(self.layers)
        )

    def _windows(self, unit: float) -> None:
        """Add the cost of exceeding windows."""
        for window, room in enumerate(_rooms(self.layer, self.layers)):
            terms = {
                columns[window]: self.layer.ops[which].seconds / unit
                for (number, which), columns in self.chosen.items()
                if window < _windows_before(self.layer, number, self.layers)
            }
            if terms:
                terms[self.program.column(cost=1.0)] = -1.0
                self.program.row(terms, most=room / TICKS / unit)

    def _order(self) -> None:
        """Require inputs before recomputation: by every window, what an operation uses is kept or recomputed."""
        for (number, which), columns in self.chosen.items():
            for before in self.layer.ops[which].after:
                other = self.chosen[number, before]
                for at in range(_windows_before(self.layer, number, self.layers)):
                    terms = {columns[window]: -1.0 for window in range(at + 1)}
                    terms |= {other[window]: 1.0 for window in range(KEPT, at + 1)}
                    self.program.row(terms, least=0.0)

    def _memory(self, in_flight: int, room: int) -> None:
        """Limit memory during the backward pass of each layer."""
        unit = math.gcd(*(op.size_bytes for op in self.layer.ops)) or 1
        for number in range(self.layers):
            terms: dict[int, float] = {}
            for (other, which), columns in self.chosen.items():
                size = self.layer.ops[which].size_bytes // unit
                terms[columns[KEPT]] = float(in_flight * size)
                if other == number:
                    terms |= {column: float(size) for at, column in columns.items() if at != KEPT}
                elif other < number:
                    until = _windows_until(self.layer, number, other, self.layers)
                    terms |= {column: float(size) for at, column in columns.items() if KEPT < at < until}
            self.program.row({column: value for column, value in terms.items() if value}, most=room // unit)


def _rooms(layer: LayerWindows, layers: int) -> list[int]:
    """Capacity of all windows in ticks, in order; those of the first layer's backward pass are useless."""
    return [ticks(each) for each in (*layer.forward, *layer.backward * (layers - 1))]


def _windows_before(layer: LayerWindows, number: int, layers: int) -> int:
    """Number of windows before the backward pass of a layer."""
    return len(layer.backward) * (layers - number)


def _windows_until(layer: LayerWindows, number: int, below: int, layers: int) -> int:
    """Number of windows up to the end of a layer's backward pass, before that of a lower layer."""
    return min(_windows_before(layer, number - 1, layers), _windows_before(layer, below, layers))
