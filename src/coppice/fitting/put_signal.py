"""Tune the lowering of a put/signal program to a message size: communicators, groups, sub-chunks, by simulated time.

From a few starts the search goes to neighbours, with half or twice as many of one of the three, while that is faster.
What takes more staging memory than it may is worse than anything that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from coppice.errors import InputError
from coppice.program.dialects.put_signal.lower import MOST_STAGING, lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule
from coppice.simulation.put_signal import PutSignalCosts, simulate_put_signal

_PIECES = tuple(
    sorted(each for base in (1, 3, 5) for each in (base << shift for shift in range(9)) if each <= 256)
)
_MOST_COMMUNICATORS = 64
_MOST_OPERATIONS = 160_000
"""Of a program; a larger one is not tried."""
_EFFORT = 1_800_000
"""Operations of all programs together after which the search ends."""
_CLIMBS = 3
"""The search goes on from so many of its starts, those that take the least time."""
_FEW_TRANSFERS = 8_000
"""Of the programs that it starts with."""
_LITTLE_MEMORY = 4 << 20
"""Bytes that are worth no time."""
_BETTER = 0.998
"""Twice as many communicators or pieces are taken where they save so much."""


class PutSignalLowering(NamedTuple):
    """How a schedule is lowered: communicators in groups, and sub-chunks of a chunk."""

    groups: int
    own: int
    pieces: int

    @property
    def communicators(self) -> int:
        """Communicators of all groups."""
        return self.groups * self.own


class FittedPutSignal(NamedTuple):
    """A put/signal program fitted to a message size."""

    program: PutSignalProgram  # The fastest program
    way: PutSignalLowering  # How it was lowered
    time_us: float  # Its simulated time


def fit_put_signal(
    plan: Schedule | Forest,
    size_bytes: int,  # M in bytes
    *,
    pieces: int | None = None,  # Pieces of every chunk; None chooses
    communicators: int | None = None,  # Communicators; None chooses, up to 64
    groups: int | None = None,  # Groups of them; None chooses
    signals: int = 1,  # As of :func:`~coppice.program.dialects.put_signal.lower.lower_put_signal`, like the next two
    graphs: bool = True,
    # Most staging memory, as a part of M, if there is a way to do with that; None for a quarter, or 4 MiB
    # where that is more
    staging: Fraction | None = None,
    name: str = "coppice",
    costs: PutSignalCosts | None = None,
    effort: int = _EFFORT,  # Operations of all programs together after which the search ends
) -> FittedPutSignal:
    """Search for the fastest lowering of a plan at a size; given parameters stay fixed.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("dgx-a100"), collective=Collective.REDUCE_SCATTER)).plan
        >>> large = fit_put_signal(made.body, 256 << 20, effort=20_000)
        >>> small = fit_put_signal(made.body, 64 << 10, effort=20_000)
        >>> large.way.pieces > small.way.pieces
        True
    """
    schedule = lower(plan) if isinstance(plan, Forest) else plan
    if staging is None:
        staging = max(MOST_STAGING, Fraction(_LITTLE_MEMORY, max(size_bytes, 1)))
    lowered = partial(lower_put_signal, schedule, signals=signals, graphs=graphs, staging=staging, name=name)
    return _LoweringSearch(
        schedule,
        lowered,
        size_bytes,
        pieces,
        communicators,
        groups,
        staging,
        costs or PutSignalCosts(),
        effort,
    ).run()


class _LoweringSearch:
    def __init__(
        self, schedule: Schedule, lowered: Callable[..., PutSignalProgram], size_bytes: int, pieces: int | None,
        communicators: int | None, groups: int | None, staging: Fraction, costs: PutSignalCosts, effort: int,
    ) -> None:  # fmt: skip
        self.schedule, self.lowered, self.size_bytes = schedule, lowered, size_bytes
        self.costs, self.effort = costs, effort
        self.pieces, self.communicators, self.staging = pieces, communicators, staging
        trees = max(schedule.num_chunks, 1)
        self.groups = (
            sorted(
                {1 << shift for shift in range(7) if 1 << shift <= trees}
                | {trees} & set(range(_MOST_COMMUNICATORS + 1))
            )
            if groups is None
            else [groups]
        )
        self.tried: dict[PutSignalLowering, tuple[Fraction, float]] = {}
        self.best: FittedPutSignal | None = None
        self.operations_a_piece = _MOST_OPERATIONS  # the fewest so far
        self.failure: InputError | None = None

    def run(self) -> FittedPutSignal:
        """From each start to where no neighbour is faster."""
        transfers = max(self.schedule.num_transfers, 1)
        few = max((each for each in _PIECES if each * transfers <= _FEW_TRANSFERS and each <= 16), default=1)
        most = self.groups[-1]
        starts = [
            (1, 1, 1),
            *((*each, few) for each in ((1, 1), (1, 8), (2, 8), (2, 16), (most, 1), (most, 2))),
        ]
        ways = []
        for groups, own, pieces in starts:
            way = self._way(self.groups[_nearest(self.groups, groups)], own, self.pieces or pieces)
            if way is not None and self._try(way):
                ways.append(way)
        left = self.effort
        for way in sorted(dict.fromkeys(ways), key=lambda each: self.tried[each][1])[:_CLIMBS]:
            self.effort = left // _CLIMBS
            self._climb(way)
        if self.best is not None:
            return self.best
        if self.failure is None:  # no groups of so many communicators
            self.lowered(communicators=self.communicators or 1, groups=self.groups[0])
        raise self.failure or InputError("expected a plan that can be lowered, found none.")

    def _climb(self, way: PutSignalLowering) -> None:
        """From a way to where no neighbour is faster."""
        self._try(way)
        while way in self.tried:
            for each in self._neighbours(way):
                if self._try(each) and self._worth(each) < self._worth(way):
                    way = each
                    break
            else:
                return

    def _worth(self, way: PutSignalLowering) -> tuple[Fraction, float]:
        over, time_us = self.tried[way]
        return over, time_us / _BETTER ** (way.communicators.bit_length() + way.pieces.bit_length())

    def _way(self, groups: int, own: int, pieces: int) -> PutSignalLowering | None:
        """A way, with the number of communicators that is given."""
        if self.communicators is not None:
            own = self.communicators // groups
        if (
            own < 1
            or groups * own > (self.communicators or _MOST_COMMUNICATORS)
            or (self.communicators and groups * own != self.communicators)
        ):
            return None
        return PutSignalLowering(groups, own, pieces)

    def _neighbours(self, way: PutSignalLowering) -> Iterator[PutSignalLowering]:
        at = self.groups.index(way.groups)
        nearest = _nearest(_PIECES, way.pieces)
        # Three steps are about twice or half as many.
        pieces = [_PIECES[nearest + each] for each in (3, 1, -1, -3) if 0 <= nearest + each < len(_PIECES)]
        found = [self._way(way.groups, way.own, each) for each in ([] if self.pieces else pieces)]
        found += [self._way(way.groups, own, way.pieces) for own in (way.own * 2, way.own // 2)]
        for each in self.groups[max(at - 1, 0) : at + 2]:
            found += [self._way(each, own, way.pieces) for own in (way.own, way.communicators // each)]
        if self.pieces is None:
            for more in (Fraction(2), Fraction(1, 2)):
                found += [
                    self._way(way.groups, int(way.own * more), each)
                    for each in pieces
                    if each == way.pieces * more
                ]
        yield from dict.fromkeys(each for each in found if each is not None)

    def _try(self, way: PutSignalLowering) -> bool:
        """Whether a way could be tried."""
        if way in self.tried:
            return True
        if self.best is not None and (
            self.effort <= 0 or way.pieces * self.operations_a_piece > _MOST_OPERATIONS
        ):
            return False
        try:
            program = self.lowered(pieces=way.pieces, communicators=way.communicators, groups=way.groups)
        except InputError as error:
            self.failure = error
            return False
        self.effort -= program.num_operations
        self.operations_a_piece = min(self.operations_a_piece, program.num_operations // way.pieces)
        if self.best is not None and program.num_operations > _MOST_OPERATIONS:
            return False
        time_us = simulate_put_signal(program, self.schedule, self.size_bytes, costs=self.costs).time_us
        share = Fraction(int(program.staging.max(initial=0)), program.num_chunks)
        self.tried[way] = (max(share - self.staging, Fraction(0)), time_us)
        if self.best is None or self._worth(way) < self._worth(self.best.way):
            self.best = FittedPutSignal(program, way, time_us)
        return True


def _nearest(values: Sequence[int], wanted: int) -> int:
    """Place of the value nearest to one that is wanted, the first of several."""
    return min(range(len(values)), key=lambda at: abs(values[at] - wanted))
