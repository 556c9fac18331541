"""Search for the shape in which a broadcast over boxes is fastest at a size, by simulation.

It begins with what theory (:mod:`coppice.planners.spread_over_boxes`) says of the end of the pipeline, and with as many
chunks as the square root of the size: a message costs every rank the same time, and what boxes lose at the beginning
and the end falls with the number of chunks. One figure after the other is changed while that helps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.comparison.sizes.path_costs import PathCosts
from coppice.planners.spread_over_boxes import SpreadShape, boxes_of, spread_over_boxes
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.models import Model
from coppice.topology.routing import Router

_MOST_ROWS, _MOST_SIMULATED = 2**17, 2**19
"""Transfers of a broadcast that is looked at, and of all that are looked at for a size."""
_CHUNKS = 128
"""Chunks of a MiB to begin with; of other sizes they go with the square root."""
_ALL_DIRECT = 0.6
"""From this share of the message on, all of it may as well go straight to all boxes."""
_LEAST_GAIN = 1e-3
"""Share of the time that a change saves, or it counts as none."""

Judge = Callable[[Schedule, float], float]
"""Time of a schedule; where that is above the second argument, some time above it."""


@dataclass(frozen=True, kw_only=True)
class SpreadFigures:
    """What is changed in a search: chunks of each rail, and the rest as in a shape."""

    turns: int
    direct_share: float
    taper: int = 2
    own_rail: float = 1.0
    home_last: bool = False

    @property
    def shape(self) -> SpreadShape | None:
        """The shape; None where there are too few chunks for both kinds."""
        direct = self.turns if self.direct_share == 1 else max(1, round(self.direct_share * self.turns))
        direct = direct if self.direct_share else 0
        if direct == self.turns and self.direct_share < 1:
            return None
        return SpreadShape(
            passed=self.turns - direct,
            direct=direct,
            direct_share=self.direct_share,
            taper=self.taper,
            own_rail=self.own_rail,
            home_last=self.home_last,
        )


Change = Callable[[SpreadFigures], SpreadFigures]


def _more_direct(each: SpreadFigures) -> SpreadFigures:
    return replace(each, direct_share=_no_more_than_all(2 * each.direct_share))


_CHANGES: tuple[Change, ...] = (
    lambda each: replace(each, turns=max(each.turns + 1, each.turns * 3 // 2)),
    lambda each: replace(each, turns=max(1, each.turns * 2 // 3)),
    _more_direct,
    lambda each: replace(each, direct_share=each.direct_share / 2 if each.direct_share < 1 else 0.5),
    lambda each: replace(each, taper=2 * each.taper),
    lambda each: replace(each, taper=max(1, each.taper // 2)),
    lambda each: replace(each, own_rail=each.own_rail / 2),
    lambda each: replace(each, home_last=True),
    lambda each: replace(each, own_rail=each.own_rail / 2),
    _more_direct,
    lambda each: replace(each, turns=each.turns * 6 // 5),
    lambda each: replace(each, turns=max(1, each.turns * 5 // 6)),
)


def _no_more_than_all(share: float) -> float:
    return share if share < _ALL_DIRECT else 1.0


class SpreadSearch:
    """Broadcasts over boxes, or reductions, of a problem under a model.

    Examples:
        >>> from coppice.comparison.sizes.candidates import as_it_is_us
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> model = model_of("nccl-2.30")
        >>> search = SpreadSearch(Problem(preset("dgx-h100", boxes=4), "broadcast", root=0), model)
        >>> found = search.fastest(2**20, lambda body, below_us: as_it_is_us(body, 2**20, model, below_us), 40.0)
        >>> (_, shape, body), *_ = found
        >>> shape.turns, shape.direct, body.num_chunks == 8 * shape.turns
        (13, 5, True)
    """

    def __init__(self, problem: Problem, model: Model) -> None:
        self.problem, self.model = problem, model

    @cached_property
    def apart(self) -> bool | None:
        """Whether boxes are single ranks as there are no others; None where there is no such broadcast."""
        one = SpreadShape(passed=1)
        for apart in (False, True):
            if spread_over_boxes(self.problem, one, apart=apart) is not None:
                return apart
        return None

    def fastest(
        self, size_bytes: int, judge: Judge, below_us: float
    ) -> list[tuple[float, SpreadShape, Schedule]]:
        """The fastest that is found with its time, shape and schedule; what is not below a time may be any.

        Behind it the fastest of those that wait for nothing but what they send, if it is another one.
        """
        if self.apart is None:
            return []
        best: tuple[float, SpreadShape, Schedule] | None = None
        plain: tuple[float, SpreadShape, Schedule] | None = None
        tried: set[SpreadShape] = set()
        rows = 0

        def improves(figures: SpreadFigures) -> bool:
            nonlocal best, plain, rows
            shape = figures.shape
            if shape is None or shape in tried or figures.turns > self._most_turns or rows > _MOST_SIMULATED:
                return False
            tried.add(shape)
            body = spread_over_boxes(self.problem, shape, apart=bool(self.apart))
            assert body is not None
            rows += body.num_transfers
            limit_us = below_us if best is None else min(below_us, best[0])
            time_us = judge(body, limit_us)
            if best is not None and time_us >= best[0] * (1 - _LEAST_GAIN):
                return False
            best = time_us, shape, body
            plain = plain if shape.home_last else best
            return True

        figures = self._first(size_bytes)
        improves(figures)
        if figures.direct_share == 1 and improves(hurried := replace(figures, own_rail=0.25, home_last=True)):
            figures = hurried
        for change in _CHANGES:
            while improves(change(figures)):
                figures = change(figures)
        return [each for each in dict.fromkeys((best, plain)) if each is not None]

    def _first(self, size_bytes: int) -> SpreadFigures:
        """Where the search begins."""
        turns = round(_CHUNKS * sqrt(size_bytes / 2**20) / self._rails)
        busy_us = size_bytes * float(bound_of(self.problem).inv_rate) / 1000
        share = self._crossing_us / (busy_us * (self._others + 1)) if self._others > 1 and busy_us else 0.0
        share = _no_more_than_all(share)
        return SpreadFigures(
            turns=max(1, min(turns, self._most_turns)), direct_share=share, taper=1 if share == 1 else 2
        )

    @cached_property
    def _crossing_us(self) -> float:
        """What a message between boxes costs beside its bytes, in the protocol in the middle."""
        boxes, members = self._boxes
        topology = self.problem.topology
        path = np.array(Router(topology).path(boxes[0][members[0]], boxes[1][members[0]]), dtype=np.int32)
        costs = sorted(
            float(PathCosts.of(topology, np.array([0, len(path)]), path, each, self.model).fixed_us[0])
            for each in transport_profiles(self.model, topology)
        )
        return costs[len(costs) // 2]

    @cached_property
    def _boxes(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        found = boxes_of(self.problem, apart=bool(self.apart))
        assert found is not None
        return found

    @property
    def _rails(self) -> int:
        return len(self._boxes[1])

    @property
    def _others(self) -> int:
        return len(self._boxes[0]) - 1

    @property
    def _most_turns(self) -> int:
        return max(1, _MOST_ROWS // (self._rails * (self.problem.topology.num_ranks - 1)))
