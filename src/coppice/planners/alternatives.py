"""Alternative plans for a request, and the choice among them for given sizes.

The forest planner makes the plan of the best rate. At small messages another one may be faster: the combined all-reduce
wins rate by trees that are deeper and of more kinds than those of reduce-scatter then all-gather, and a few trees
have fewer messages than the many that an exact rate takes. What a plan takes at a size is for the caller to say (a
simulation, a model, a measurement): here plans are listed, and compared by the times that the caller gives.

The one plan for several sizes is the one whose worst loss against the best at each size is least. So a plan for one
size is never slower there than any other of the list, and where one is best everywhere it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.errors import InputError
from coppice.planners.choice import FOREST, PlannerOptions, PlannerOutput, make_body
from coppice.schedule.forest import Forest
from coppice.schedule.loads import forest_loads
from coppice.schedule.schedule import Schedule
from coppice.schedule.shape import shape

Timer = Callable[[Forest | Schedule, int], float]
"""Time in microseconds of a body at a size in bytes."""

FEWER_TREES = (1, 2, 4, 8)

REACH = 4
"""What was made for a size is looked at for sizes up to so many times smaller or larger."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Alternative:
    """A candidate plan of a request."""

    name: str  # What sets it apart, such as `combined` or `2 trees per root`
    made: PlannerOutput  # Its body and parameters
    planner: str | None = None  # The algorithm, where it is another than the one that was asked for
    size_bytes: int | None = None  # The size that it was made for, where it suits no others

    def suits(self, size_bytes: int) -> bool:
        """Whether it is worth a look at a size.

        >>> made = PlannerOutput(body=None, parameters={})
        >>> [Alternative(name="", made=made, size_bytes=4096).suits(size) for size in (1024, 2**20)]
        [True, False]
        """
        own = size_bytes if self.size_bytes is None else self.size_bytes
        return max(own, size_bytes) <= REACH * min(own, size_bytes)


def alternatives(problem: Problem, choice: PlannerOptions, plain: Bound) -> Iterator[Alternative]:
    """Candidate plans of a request, the best rate first, each made on demand.

    Args:
        choice: The planner and its options; one that names trees, a tolerance, help of switches or an algorithm
            leaves nothing open.
        plain: The problem's bound without help of switches.

    Examples:
        >>> from coppice.bounds import bound
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)
        >>> [one.name for one in alternatives(problem, PlannerOptions.of(problem), bound(problem))]
        ['forest', '1 tree per root']
    """
    best = make_body(problem, choice, plain)
    if plain.combined is not None and choice.algorithm == FOREST and choice.trees is None:
        name = "combined"
    else:
        name = choice.algorithm
    yield Alternative(name=name, made=best)
    if choice.algorithm != FOREST or choice.trees or choice.tolerance is not None or choice.in_network:
        return
    most = None if not isinstance(best.body, Forest) else shape(best.body).trees_per_root
    if plain.combined is not None:
        made = make_body(problem, choice, replace(plain, combined=None))
        yield Alternative(name="two phases", made=made)
        most = shape(made.body).trees_per_root if isinstance(made.body, Forest) else None
    for trees in FEWER_TREES:
        if most is not None and trees >= most:
            return
        name = "1 tree per root" if trees == 1 else f"{trees} trees per root"
        yield Alternative(name=name, made=make_body(problem, replace(choice, trees=trees), plain))


def lowest(candidates: Iterable[Alternative]) -> Alternative:
    """Plan with the lowest trees, then the best rate; plans without trees come last."""
    found = list(candidates)
    if not found:
        raise InputError("expected plans to choose by height, found none: give at least one.")

    def order(one: Alternative) -> tuple[float, Fraction]:
        body = one.made.body
        if not isinstance(body, Forest):
            return inf, Fraction(0)
        return shape(body).max_height, forest_loads(body).inv_rate

    return min(found, key=order)


@dataclass(frozen=True, eq=False, kw_only=True)
class Preferred:
    """Plan chosen for some sizes."""

    taken: Alternative  # The plan
    time_us: Mapping[int, float]  # Its time at each size, in microseconds
    fastest: Mapping[int, tuple[str, float]]  # The fastest plan at each size, by name, with its time

    @property
    def worst_loss(self) -> float:
        """Largest relative loss of the plan against the fastest, over the sizes (0: none)."""
        return max(self.time_us[size] / best - 1 if best else 0.0 for size, (_, best) in self.fastest.items())


def preferred(candidates: Iterable[Alternative], sizes: Sequence[int], time: Timer) -> Preferred:
    """Plan with the least worst-case loss over ``sizes``; the first of equals.

    Args:
        sizes: Sizes in bytes, at least one.
        time: What a body takes at a size.
    """
    found = list(candidates)
    if not found or not sizes:
        raise InputError(
            f"expected plans and sizes to choose by, found {len(found)} plans and {len(sizes)} sizes: give both."
        )
    times = [{size: time(one.made.body, size) if one.suits(size) else inf for size in sizes} for one in found]
    fastest = {}
    for size in sizes:
        number = min(range(len(found)), key=lambda i: times[i][size])
        fastest[size] = (found[number].name, times[number][size])
    choices = [
        Preferred(taken=one, time_us=own, fastest=fastest) for one, own in zip(found, times, strict=True)
    ]
    return min(choices, key=lambda one: one.worst_loss)
