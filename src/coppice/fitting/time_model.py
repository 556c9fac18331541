"""Fit a time model to measured times.

Error of a time is the logarithm of predicted over measured, so that small and large messages count alike and being
twice too long is as bad as twice too short. Its loss is that of Huber in its smooth form, ``sqrt(e^2 + d^2) - d`` with
d of 5%: squares where errors are small, magnitudes where they are large, so that a few times that went wrong do not
bend the rest. What is made small is the mean of it, over the logarithms of the figures: by steps of Levenberg ("A
method for the solution of certain non-linear problems in least squares", Quart. Appl. Math. 2, 1944) with weights after
Huber as long as they help, and then, since times have kinks where another protocol or number of pieces is the fastest,
by the pattern search of Hooke and Jeeves ("Direct search solution of numerical and statistical problems", J. ACM 8,
1961): each figure is raised and lowered by a step, and steps are halved when nothing helps any more. It takes some
dozen simulations of every measured time for each figure, and is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.choice import FOREST, from_catalogue
from coppice.planners.planning import plan
from coppice.planners.ring.best import best_ring, ring_schedule
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.topology.model import Topology

LIBRARY = "library"
"""Name of an algorithm that a GPU library chose by itself."""

_HUBER = 0.05
_SLOPE, _REACH = math.log(1.05), math.log(4.0)
"""Steps with which slopes are taken, and the longest step of a figure."""
_DAMPING, _MOST_DAMPING = 1e-2, 1e3
_NONE = 0.001**2 / (2 * _HUBER)
"""Loss that counts as none: errors of 0.1%."""
_WORTH = 0.01
"""A step is followed by another one where it makes the loss smaller by this share."""
_STEPS = (math.log(1.15), math.log(1.03))
"""First and last steps of the pattern search."""
_RANGE = {"efficiency": (0.05, 1.0), "burst_bytes": (1.0, 1e12), "cache_bytes": (1.0, 1e12)}
_WHOLE = ("burst_bytes", "cache_bytes")


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """A measured time of an algorithm at a size."""

    algorithm: str  # Name of the algorithm, `forest`, or `library` for the choice of a GPU library
    size_bytes: int  # M
    time_us: float  # What it took
    # Pieces of a chunk that ran; in more than one only data bind steps, as with the engines of `coppice run`.
    # None: the fastest number.
    pieces: int | None = None


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """A fitted model with its prediction errors."""

    model: Model  # The model
    # `predicted / measured - 1` of every measured time, in their order
    errors: tuple[float, ...] = field(repr=False)
    tried: int  # Models that were tried
    figures: tuple[str, ...]  # What was fitted

    @property
    def judged(self) -> bool:
        """Whether the errors are meaningful: with as many figures as times, any measurement fits."""
        return len(self.errors) > len(self.figures)

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error."""
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def worst_error(self) -> float:
        """Largest absolute relative error."""
        return max(map(abs, self.errors))


Bodies = Mapping[str, Sequence[Schedule | Forest]]


def bodies_of(topology: Topology, collective: Collective, algorithms: Sequence[str], root: int = 0) -> Bodies:
    """Candidate schedules of measured algorithms; where there are several, the fastest ran.

    Args:
        algorithms: Names of the catalogue, ``forest``, or ``library``: the best rings and, where it performs the
            collective, the double binary tree of NCCL.
        root: Root rank of a rooted collective.
    """
    problem = Problem(topology=topology, collective=collective, root=root if collective.rooted else None)
    found: dict[str, Sequence[Schedule | Forest]] = {}
    for name in dict.fromkeys(algorithms):
        if name == LIBRARY:
            found[name] = _library(problem)
        elif name == FOREST:
            found[name] = (plan(problem, ring=False).plan.body,)
        else:
            found[name] = (_catalogue_body(problem, name),)
    return found


def _catalogue_body(problem: Problem, name: str) -> Schedule | Forest:
    """What an algorithm makes, through other ranks where nothing else leads to a peer, as messages of processes go."""
    try:
        return from_catalogue(problem, name).body
    except UnreachableError:
        return from_catalogue(problem, name, relay_gpus=True).body


def _library(problem: Problem) -> list[Schedule | Forest]:
    """What a GPU library would run: its rings, and its tree."""
    ring = best_ring(problem) if problem.collective.made_of_trees else None
    found: list[Schedule | Forest] = [] if ring is None else [ring_schedule(ring)]
    if problem.collective is Collective.ALL_REDUCE:
        with suppress(InputError):  # where no route leads along its edges
            found.append(from_catalogue(problem, "nccl-tree").body)
    if not found:
        raise InputError(
            f"expected rings or trees for {problem.collective} on {problem.topology.name}, found none without relays: "
            "give the topology with all its links, or name the algorithm that was measured."
        )
    return found


def predicted_us(
    bodies: Bodies, algorithm: str, size_bytes: int, model: Model, pieces: int | None = None
) -> float:
    """Simulated time of an algorithm at a size.

    Args:
        bodies: Schedules by the names of algorithms.
        pieces: As :attr:`MeasuredTime.pieces`.
    """
    if pieces is not None and pieces > 1:
        model = replace(model, steps_bind=False)
    return min(
        fastest(body, size_bytes, model=model, pieces=pieces, most=64, keep_hops=False).time_us
        for body in bodies[algorithm]
    )


def fit(
    times: Sequence[MeasuredTime],  # What was measured, with times above 0
    bodies: Bodies,  # Schedules by the names of algorithms (see :func:`bodies_of`)
    start: Model,  # Where the search begins; its protocols, workers and other figures stay
    *,
    name: str = "fitted",
    # Called with the number of models tried and the mean error so far
    on_progress: Callable[[int, float], None] | None = None,
) -> FittedModel:
    """Fit the model that predicts measured times best.

    Of a model with protocols the launch, the occupancy of workers and the efficiency of links are fitted; of one
    without also the overhead of messages. Where the model has them, so are the rate at which workers copy, what fits
    into a cache with the rate beyond it, and the burst of links. Occupancy is the same at both ends.

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
        raise InputError(f"expected measured times above 0, found {found}: give at least one.")
    search = _FigureSearch(times, bodies, start, on_progress)
    figures = search.patterned(search.descended(_start(start)))
    return FittedModel(
        model=replace(_with(start, figures), name=name),
        errors=tuple(math.expm1(error) for error in search.errors(figures)),
        tried=len(search.known),
        figures=tuple(figures),
    )


_Figures = dict[str, float]


class _FigureSearch:
    """The search for the figures with the least loss."""

    def __init__(
        self,
        times: Sequence[MeasuredTime],
        bodies: Bodies,
        start: Model,
        on_progress: Callable[[int, float], None] | None,
    ) -> None:
        self._times, self._bodies, self._start, self._on_progress = times, bodies, start, on_progress
        self._least = math.inf
        self.known: dict[Model, NDArray[np.float64]] = {}

    def errors(self, figures: _Figures) -> NDArray[np.float64]:
        """Logarithms of predicted over measured times."""
        model = _with(self._start, figures)
        if model not in self.known:
            ratios = [
                predicted_us(self._bodies, row.algorithm, row.size_bytes, model, row.pieces) / row.time_us
                for row in self._times
            ]
            self.known[model] = np.log(ratios)
            self._least = min(self._least, float(np.mean(np.abs(np.array(ratios) - 1))))
            if self._on_progress is not None:
                self._on_progress(len(self.known), self._least)
        return self.known[model]

    def loss(self, figures: _Figures) -> float:
        """What is made small."""
        return float(np.mean(np.sqrt(self.errors(figures) ** 2 + _HUBER**2) - _HUBER))

    def descended(self, figures: _Figures) -> _Figures:
        """The figures after damped steps along slopes, as long as they help."""
        damping = _DAMPING
        while damping < _MOST_DAMPING and self.loss(figures) > _NONE:
            errors, before = self.errors(figures), self.loss(figures)
            slopes = np.stack([self._slope(figures, key) for key in figures], axis=1)
            weighted = slopes / np.sqrt(errors**2 + _HUBER**2)[:, None]
            normal, right = weighted.T @ slopes, -(weighted.T @ errors)
            scale = np.diag(np.maximum(normal.diagonal(), 1e-6))
            while damping < _MOST_DAMPING:
                step = np.clip(np.linalg.solve(normal + damping * scale, right), -_REACH, _REACH)
                tried = {
                    key: _moved(key, value, by)
                    for (key, value), by in zip(figures.items(), step.tolist(), strict=True)
                }
                if self.loss(tried) < before:
                    break
                damping *= 10
            else:
                return figures
            figures, damping = tried, max(damping / 10, _DAMPING / 100)
            if self.loss(figures) > before * (1 - _WORTH):
                return figures
        return figures

    def _slope(self, figures: _Figures, key: str) -> NDArray[np.float64]:
        """What a small change of the logarithm of a figure changes."""
        moved = _moved(key, figures[key], _SLOPE)
        if moved == figures[key]:  # at the end of its range
            moved = _moved(key, figures[key], -_SLOPE)
        change = self.errors({**figures, key: moved}) - self.errors(figures)
        return np.asarray(change / math.log(moved / figures[key]))

    def patterned(self, figures: _Figures) -> _Figures:
        """The figures after raising and lowering each, by ever smaller steps."""
        steps = dict.fromkeys(figures, _STEPS[0])
        while max(steps.values()) > _STEPS[1] and self.loss(figures) > _NONE:
            moved = dict(figures)
            for key in figures:
                for sign in (1, -1):
                    tried = {**moved, key: _moved(key, moved[key], sign * steps[key])}
                    if self.loss(tried) < self.loss(moved) * (1 - 1e-6):
                        moved = tried
                        break
                else:
                    steps[key] /= 2
            if moved != figures:  # as far again in the same direction
                further = {
                    key: _moved(key, moved[key], math.log(moved[key] / figures[key])) for key in figures
                }
                figures = min(moved, further, key=self.loss)
        return figures


def _start(model: Model) -> dict[str, float]:
    """The figures that are fitted, with where the search begins."""
    figures = {"launch_us": model.launch_us or 1.0, "efficiency": min(model.efficiency, 0.9)}
    if not model.protocols:
        figures["overhead_us"] = model.overhead_us or 1.0
    if model.workers:
        figures["send_us"] = model.send_us or 0.1
    for key in ("copy_gb_per_s", "memory_gb_per_s"):
        if getattr(model, key) is not None:
            figures[key] = getattr(model, key)
    for key in _WHOLE:
        if getattr(model, key):
            figures[key] = float(getattr(model, key))
    return figures


def _moved(key: str, value: float, step: float) -> float:
    """A figure after a step of its logarithm, in range."""
    least, most = _RANGE.get(key, (1e-3, 1e6))
    return min(max(value * math.exp(step), least), most)


def _with(start: Model, figures: Mapping[str, float]) -> Model:
    """The model with fitted figures, each with four digits."""
    values: dict[str, Any] = {key: float(f"{value:.4g}") for key, value in figures.items()}
    values.update({key: round(values[key]) for key in _WHOLE if key in values})
    if "send_us" in values:
        values["receive_us"] = values["send_us"]
    return replace(start, **values)
