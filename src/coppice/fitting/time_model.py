"""A model of time fitted to measured times: the figures with which simulations come closest to what was measured.

Error of a time is the logarithm of predicted over measured, and what is made small is the mean of its squares, so that
small and large messages count alike and being twice too long is as bad as twice too short. The search is the pattern
search of Hooke and Jeeves ("Direct search solution of numerical and statistical problems", J. ACM 8, 1961) over the
logarithms of the figures: each is raised and lowered by a step, and steps are halved when nothing helps any more. It
takes some hundred simulations of every measured time, and is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.choice import FOREST, from_catalogue
from coppice.planners.planning import plan
from coppice.planners.ring.best import best_ring, ring_schedule
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation.model import Model
from coppice.simulation.simulator import fastest
from coppice.topology.model import Topology

__all__ = ["FittedModel", "MeasuredTime", "bodies_of", "fit", "predicted_us"]

LIBRARY = "library"
"""Name of an algorithm that a GPU library chose by itself."""

_STEPS = (math.log(2.0), math.log(1.05))
_LEAST = {"efficiency": 0.05}


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """A measured time.

    Attributes:
        algorithm: Name of the algorithm, ``forest``, or ``library`` for the choice of a GPU library.
        size_bytes: M.
        time_us: What it took.
    """

    algorithm: str
    size_bytes: int
    time_us: float


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """A model and how well it predicts.

    Attributes:
        model: The model.
        errors: ``predicted / measured - 1`` of every measured time, in their order.
        tried: Models that were tried.
    """

    model: Model
    errors: tuple[float, ...] = field(repr=False)
    tried: int

    @property
    def mean_error(self) -> float:
        """Mean of the magnitudes of the errors."""
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def worst_error(self) -> float:
        """The largest magnitude of an error."""
        return max(map(abs, self.errors))


Bodies = Mapping[str, Sequence[Schedule | Forest]]


def bodies_of(topology: Topology, collective: Collective, algorithms: Sequence[str], root: int = 0) -> Bodies:
    """The schedules behind the names of measured algorithms, several where the fastest of them is what ran.

    Args:
        topology: Where it was measured.
        collective: What was measured.
        algorithms: Names of the catalogue, ``forest``, or ``library``: the best rings and, where it performs the
            collective, the double binary tree of NCCL.
        root: Root rank of a rooted collective.

    Raises:
        InputError: If an algorithm does not apply.
    """
    problem = Problem(topology=topology, collective=collective, root=root if collective.rooted else None)
    found: dict[str, Sequence[Schedule | Forest]] = {}
    for name in dict.fromkeys(algorithms):
        if name == LIBRARY:
            found[name] = _library(problem)
        elif name == FOREST:
            found[name] = (plan(problem, ring=False).plan.body,)
        else:
            found[name] = (from_catalogue(problem, name).body,)
    return found


def _library(problem: Problem) -> list[Schedule | Forest]:
    """What a GPU library would run: its rings, and its tree."""
    ring = best_ring(problem) if problem.collective.made_of_trees else None
    found: list[Schedule | Forest] = [] if ring is None else [ring_schedule(ring)]
    if problem.collective is Collective.ALL_REDUCE:
        with suppress(InputError):  # where no route leads along its edges
            found.append(from_catalogue(problem, "nccl-tree").body)
    if not found:
        msg = (
            f"expected rings or trees for {problem.collective} on {problem.topology.name}, found none without relays: "
            "give the topology with all its links, or name the algorithm that was measured."
        )
        raise InputError(msg)
    return found


def predicted_us(bodies: Bodies, algorithm: str, size_bytes: int, model: Model) -> float:
    """The simulated time of an algorithm at a size.

    Args:
        bodies: Schedules by the names of algorithms.
        algorithm: One of these names.
        size_bytes: M.
        model: What messages cost.
    """
    return min(
        fastest(body, size_bytes, model=model, most=64, keep_hops=False).time_us for body in bodies[algorithm]
    )


def fit(
    times: Sequence[MeasuredTime],
    bodies: Bodies,
    start: Model,
    *,
    name: str = "fitted",
    on_progress: Callable[[int, float], None] | None = None,
) -> FittedModel:
    """The model that predicts measured times best.

    Of a model with protocols the launch, the occupancy of workers and the efficiency of links are fitted; of one
    without also the overhead of messages and, where workers copy, their rate. Occupancy is the same at both ends.

    Args:
        times: What was measured, with times above 0.
        bodies: Schedules by the names of algorithms (see :func:`bodies_of`).
        start: Where the search begins; its protocols, workers and other figures stay.
        name: Name of the fitted model.
        on_progress: Called with the number of models tried and the mean error so far.

    Raises:
        InputError: If there are no times, or one is not above 0.

    Examples:
        What was measured with a model is found again:

        >>> from coppice.topology.presets import preset
        >>> bodies = bodies_of(preset("star", gpus=4), Collective.ALL_GATHER, ["ring"])
        >>> true = Model(overhead_us=8.0, efficiency=0.8)
        >>> sizes = [2**10, 2**14, 2**18, 2**22]
        >>> times = [
        ...     MeasuredTime(algorithm="ring", size_bytes=size, time_us=predicted_us(bodies, "ring", size, true))
        ...     for size in sizes
        ... ]
        >>> found = fit(times, bodies, Model())
        >>> found.worst_error < 0.02, round(found.model.efficiency, 1)
        (True, 0.8)
    """
    if not times or min(row.time_us for row in times) <= 0:
        found = "none" if not times else f"{min(row.time_us for row in times):g} us"
        msg = f"expected measured times above 0, found {found}: give at least one."
        raise InputError(msg)
    figures = _start(start)
    steps = dict.fromkeys(figures, _STEPS[0])
    known: dict[tuple[float, ...], tuple[float, tuple[float, ...]]] = {}

    def errors(at: dict[str, float]) -> tuple[float, tuple[float, ...]]:
        key = tuple(at.values())
        if key not in known:
            model = _with(start, at)
            ratios = [
                predicted_us(bodies, row.algorithm, row.size_bytes, model) / row.time_us for row in times
            ]
            cost = sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios)
            known[key] = cost, tuple(ratio - 1 for ratio in ratios)
            if on_progress is not None:
                least = min(known.values())[1]
                on_progress(len(known), sum(map(abs, least)) / len(least))
        return known[key]

    best = errors(figures)
    while max(steps.values()) > _STEPS[1]:
        moved = dict(figures)
        for key in figures:
            for sign in (1, -1):
                tried = {**moved, key: _moved(key, moved[key], sign * steps[key])}
                if errors(tried)[0] < best[0] * (1 - 1e-6):
                    moved, best = tried, errors(tried)
                    break
            else:
                steps[key] /= 2
        if moved != figures:  # as far again in the same direction
            further = {key: _moved(key, moved[key], math.log(moved[key] / figures[key])) for key in figures}
            figures = moved
            if errors(further)[0] < best[0]:
                figures, best = further, errors(further)
    return FittedModel(model=replace(_with(start, figures), name=name), errors=best[1], tried=len(known))


def _start(model: Model) -> dict[str, float]:
    """The figures that are fitted, with where the search begins."""
    figures = {"launch_us": model.launch_us or 1.0, "efficiency": min(model.efficiency, 0.9)}
    if not model.protocols:
        figures["overhead_us"] = model.overhead_us or 1.0
    if model.workers:
        figures["send_us"] = model.send_us or 0.1
    if model.copy_gb_per_s is not None:
        figures["copy_gb_per_s"] = model.copy_gb_per_s
    return figures


def _moved(key: str, value: float, step: float) -> float:
    """A figure after a step of its logarithm, in range."""
    moved = value * math.exp(step)
    return min(1.0, max(moved, _LEAST[key])) if key in _LEAST else min(max(moved, 1e-3), 1e6)


def _with(start: Model, figures: Mapping[str, float]) -> Model:
    """The model with fitted figures."""
    values = {key: float(f"{value:.4g}") for key, value in figures.items()}
    if "send_us" in values:
        values["receive_us"] = values["send_us"]
    return replace(start, **values)  # type: ignore[arg-type]
