"""Candidates of a comparison, and its unit of work: plan and simulate one candidate at some sizes, in any process.

Candidates are all algorithms, with the values of their parameters that are worth a trial.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.comparison.sizes.candidates import num_rows
from coppice.errors import InputError, MissingExtraError, UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmParameter, Value
from coppice.planners.algorithms.catalogue import algorithms as catalogue
from coppice.planners.algorithms.catalogue import find
from coppice.planners.algorithms.parts.orders import box_order
from coppice.planners.choice import FOREST, ORDERS, PlannerOptions, make_body, optimal_planner
from coppice.planners.synthesis.synthesizing import METHODS, SynthesizedResult, synthesize
from coppice.schedule.files.plan_file import encode_plan, plan_of
from coppice.schedule.files.set_file import plan_set_of
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.messages import messages_of
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.verify import verify
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.models import Model
from coppice.simulation.simulator import chain_length, fastest, further_gain_us
from coppice.simulation.timeline import Timeline
from coppice.topology.model import NodeKind

BOTH_ORDERS = "both"
"""Algorithms run in rank order and in one that suits the topology, and the better of the two counts."""

DOUBLED = ("segments",)
"""Parameters that are doubled, at each size of message by itself, for as long as that makes it faster."""

SWEPT: Mapping[str, tuple[int, ...]] = {"radix": (2, 4, 8, 16)}
"""Parameters that are tried at a few values, beside their default; none above the number of ranks."""

TRIED: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "tacos": ({}, {"chunks": 1}, {"chunks": 3}),
    "syccl": ({}, {"mix": "false"}),
}
"""Options with which methods of synthesis are tried, where not by their defaults alone: few chunks suit small M."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmVariant:
    """One algorithm with fixed parameters, in one order of ranks."""

    algorithm: str  # `forest`, `flow` or a name of the catalogue
    # Values of the parameters that are not left at their defaults
    parameters: Mapping[str, Value] = field(default_factory=dict)
    doubled: str | None = None  # Name of a parameter whose best value is looked for at each size, or None
    order: str = "auto"  # One of :data:`~coppice.planners.choice.ORDERS`
    relay_gpus: bool = False  # GPUs may pass on what is not theirs where no path of switches and NICs exists
    in_network: bool = False  # Switches that can copy or add may do so

    def facts(self) -> dict[str, Any]:
        """What distinguishes it from others, as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class GivenVariant(AlgorithmVariant):
    """A plan that is there already, under a name of its own."""

    body: Forest | Schedule = field(repr=False)  # Its trees or transfers, verified
    sha256: str  # Of its plan file

    def facts(self) -> dict[str, Any]:
        """The plan by its hash."""
        return {"algorithm": self.algorithm, "plan_sha256": self.sha256}


@dataclass(frozen=True, kw_only=True)
class SetVariant(AlgorithmVariant):
    """A set of plans, of which each size takes its own, under a name of its own."""

    ranges: tuple[tuple[int, GivenVariant], ...] = field(repr=False)  # Smallest size of each plan, rising

    def facts(self) -> dict[str, Any]:
        """The plans by their hashes, and where they begin."""
        return {
            "algorithm": self.algorithm,
            "ranges": [[first_bytes, each.sha256] for first_bytes, each in self.ranges],
        }

    def at(self, size_bytes: int) -> GivenVariant:
        """The plan for a size."""
        return [each for first_bytes, each in self.ranges if first_bytes <= size_bytes][-1]


@dataclass(frozen=True, kw_only=True)
class SynthesizedVariant(AlgorithmVariant):
    """Schedule of a synthesis method, under the method's name."""

    seed: int = 0  # Where its random choices begin
    time_limit_s: float | None = None  # Seconds after which the best that it found so far counts


def candidates(
    problem: Problem,
    names: Iterable[str] | None = None,  # Algorithms to try; None takes all that perform the collective
    *,
    order: str = BOTH_ORDERS,  # One of :data:`~coppice.planners.choice.ORDERS`, or `both`
    relay_gpus: bool = False,  # See :class:`AlgorithmVariant`
    in_network: bool = False,  # See :class:`AlgorithmVariant`
) -> list[AlgorithmVariant]:
    """All candidates for ``problem``: the optimal planner first, then the catalogue in its order.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
        >>> [each.algorithm for each in candidates(problem, ["ring", "forest"])]
        ['forest', 'ring']
    """
    if order not in (*ORDERS, BOTH_ORDERS):
        raise InputError(f"expected an order that is {', '.join(ORDERS)} or {BOTH_ORDERS}, found {order!r}.")
    optimal = optimal_planner(problem.collective)
    wanted = None if names is None else list(names)
    for name in wanted or ():
        if name != optimal:
            find(name, problem.collective)
    orders: Sequence[str] = (order,)
    if order == BOTH_ORDERS:
        suited = box_order(problem.topology) != tuple(range(problem.topology.num_ranks))
        orders = ("rank", "topology") if suited else ("rank",)
    found: list[AlgorithmVariant] = []
    if optimal is not None and (wanted is None or optimal in wanted):
        found.append(AlgorithmVariant(algorithm=optimal))
        if in_network:
            found.append(AlgorithmVariant(algorithm=optimal, in_network=True))
    for (name, collective), entry in catalogue().items():
        if collective is problem.collective and (wanted is None or name in wanted):
            by_itself = entry.topological and not entry.orders_matter
            found += [
                AlgorithmVariant(
                    algorithm=name,
                    parameters=parameters,
                    doubled=doubled_parameter(entry),
                    order=each,
                    relay_gpus=relay_gpus,
                    in_network=in_network,
                )
                for each in (("auto",) if by_itself and order == BOTH_ORDERS else orders)
                for parameters in _variants(entry, problem.topology.num_ranks)
            ]
    if not found:
        raise InputError(
            f"expected algorithms for {problem.collective}, found none: name some that perform it."
        )
    return found


def synthesized_candidates(
    methods: Iterable[str], *, seed: int = 0, time_limit_s: float | None = None
) -> list[SynthesizedVariant]:
    """Candidates from synthesis methods with the options worth trying."""
    if time_limit_s is not None and not time_limit_s > 0:
        raise InputError(f"expected a time limit above 0 seconds, found {time_limit_s}.")
    names = list(dict.fromkeys(methods))
    for name in names:
        if name not in METHODS:
            raise InputError(f"expected methods of synthesis ({', '.join(METHODS)}), found {name!r}.")
    return [
        SynthesizedVariant(algorithm=name, parameters=options, seed=seed, time_limit_s=time_limit_s)
        for name in names
        for options in TRIED.get(name, ({},))
    ]


def given_candidates(problem: Problem, plans: Iterable[object]) -> list[AlgorithmVariant]:
    """Candidates from plans, results with one, plan files, or sets of plans.

    Files and folders are named as they are, others by their number.

    Raises:
        InputError: If one is for another collective or topology.
        CheckError: If one does not do what it claims.
    """
    found: list[AlgorithmVariant] = []
    for number, each in enumerate(plans, 1):
        name = Path(each).name if isinstance(each, (str, PathLike)) else ""
        held = plan_set_of(each)
        if held is None:
            found.append(_given(problem, plan_of(each), name or f"plan {number}"))
            continue
        name = name or f"set {number}"
        made = {id(plan): _given(problem, plan, name) for plan in held.plans}
        ranges = tuple((one.first_bytes, made[id(one.plan)]) for one in held.ranges)
        found.append(SetVariant(algorithm=name, ranges=ranges))
    return found


def _given(problem: Problem, plan: Plan, name: str) -> GivenVariant:
    """A plan as a candidate, verified."""
    if plan.problem.collective is not problem.collective:
        raise InputError(
            f"expected a plan of {problem.collective} to compare, found {name} of {plan.problem.collective}: give one "
            "of the same collective."
        )
    if plan.topology != problem.topology:
        raise InputError(
            f"expected a plan on {problem.topology.name} to compare, found {name} on {plan.topology.name} or with "
            "other links: plan on the same topology."
        )
    verify(plan).require_ok()
    return GivenVariant(algorithm=name, body=plan.body, sha256=sha256(encode_plan(plan)).hexdigest())


def doubled_parameter(entry: Algorithm) -> str | None:
    """The parameter that is doubled."""
    return next((name for name in DOUBLED if name in entry.parameters), None)


def _variants(entry: Algorithm, ranks: int) -> list[dict[str, Value]]:
    """Every combination of the values at which the other parameters are tried; defaults are left out."""
    parameters = {name: each for name, each in entry.parameters.items() if name != doubled_parameter(entry)}
    choices = [_values(name, parameter, ranks) for name, parameter in parameters.items()]
    return [
        {
            name: value
            for (name, parameter), value in zip(parameters.items(), values, strict=True)
            if value != parameter.default
        }
        for values in itertools.product(*choices)
    ]


def _values(name: str, parameter: AlgorithmParameter, ranks: int) -> list[Value]:
    """The default, and what else is worth a trial."""
    others: Iterable[Value] = parameter.choices
    if isinstance(parameter.default, int):
        others = (value for value in SWEPT.get(name, ()) if parameter.least <= value <= max(ranks, 2))
    return list(dict.fromkeys((parameter.default, *others)))


MOST_SEGMENTS = 1024
PATIENCE = 2
WORTH = 0.005
"""A parameter is doubled up to this value, or until so many doublings in a row save less than this share of time."""


class _SwitchesNeededError(InputError):
    """An algorithm lets switches copy and add where they may not."""


class SimulatedTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Simulated time of one candidate at one size with its explanation, or the reason why there is none."""

    key: str  # Hash of all that decides the figures
    algorithm: str  # Its name
    size_bytes: int  # M
    # Its parameters beside the defaults, with the best value of a doubled one
    parameters: dict[str, Value] = {}
    order: str = "auto"  # Order of ranks
    refusal: str | None = None  # Why it does not apply, or None; otherwise the figures below are 0
    # The reason is that GPUs without a path of switches and NICs would have to exchange data
    unreachable: bool = False
    needs_switches: bool = False  # The reason is that switches would have to copy or add, and may not
    time_us: float = 0.0  # Simulated time
    pieces: int = 1  # Pieces that every chunk was cut into on top of the algorithm
    protocol: str = ""  # Protocol on the wire; empty: all bytes on it are data
    chain: int = 0  # Messages of the critical path: each waits for the one before
    sent_bytes: int = 0  # Most bytes that one rank sends
    link: str = ""  # The link that is busy longest
    link_us: float = 0.0  # For how long it is busy
    relays: bool = False  # Whether GPUs pass on what is not theirs
    in_network: bool = False  # Whether switches copy or add
    # Of what a method of synthesis found: share of the optimal rate that it does not reach; otherwise None
    gap: float | None = None
    synthesis_seconds: float | None = None  # Seconds that the method took, otherwise None

    @property
    def algbw_gb_per_s(self) -> float:
        """M / time."""
        return self.size_bytes / self.time_us / 1000 if self.time_us else 0.0


@dataclass(frozen=True, kw_only=True)
class MeasurementJob:
    """A picklable job: one candidate at some sizes."""

    problem: bytes  # The problem, :func:`packed`
    candidate: AlgorithmVariant  # What to simulate
    keys: dict[int, str]  # Key of the measurement of each size, by size
    model: Model  # How to simulate


def faster(time_us: float, than_us: float) -> bool:
    """Whether a time is shorter by more than the rounding error of its sums."""
    return time_us < than_us * (1 - 1e-9)


def packed(problem: Problem) -> bytes:
    """The problem as bytes, without values derived from its topology."""
    return pickle.dumps(replace(problem, topology=replace(problem.topology)))


def measure(job: MeasurementJob) -> list[SimulatedTime]:
    """Simulate a candidate at all sizes of a job.

    An algorithm that does not apply gives a refusal at every size.
    """
    problem, plain = _problem(job.problem)
    candidate = job.candidate
    if isinstance(candidate, SetVariant):
        return [
            row
            for size_bytes, key in job.keys.items()
            for row in measure(replace(job, candidate=candidate.at(size_bytes), keys={size_bytes: key}))
        ]
    bodies = Bodies(problem, candidate, plain)
    try:
        bodies.body(1)
    except (InputError, MissingExtraError) as error:
        if isinstance(error, MissingExtraError) and not isinstance(candidate, SynthesizedVariant):
            raise
        refusal = " ".join(str(error).split())
        return [
            SimulatedTime(
                key=key,
                algorithm=candidate.algorithm,
                size_bytes=size_bytes,
                parameters=dict(candidate.parameters),
                order=candidate.order,
                refusal=refusal,
                unreachable=isinstance(error, UnreachableError)
                and not isinstance(candidate, SynthesizedVariant),
                needs_switches=isinstance(error, _SwitchesNeededError),
            )
            for size_bytes, key in job.keys.items()
        ]
    rows = [
        _best(bodies, size_bytes, job.model).measurement(key, candidate, size_bytes)
        for size_bytes, key in job.keys.items()
    ]
    if bodies.synthesized is None:
        return rows
    figures = {"gap": bodies.synthesized.gap, "synthesis_seconds": bodies.synthesized.seconds}
    return [msgspec.structs.replace(row, **figures) for row in rows]


@lru_cache(maxsize=2)
def _problem(data: bytes) -> tuple[Problem, Bound]:
    """The problem with its bound; a process that measures several candidates unpacks it once."""
    problem: Problem = pickle.loads(data)
    return problem, bound_of(problem)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A simulation with what led to it."""

    body: Forest | Schedule
    time_us: float
    timeline: Timeline | None = None  # Unless only its time was asked for
    parameters: dict[str, Value]

    def measurement(self, key: str, candidate: AlgorithmVariant, size_bytes: int) -> SimulatedTime:
        """Its figures."""
        timeline = self.timeline
        assert timeline is not None
        link, data = timeline.busiest_link, messages_of(self.body, size_bytes)
        sent = np.bincount(data.src, weights=data.num_bytes)
        return SimulatedTime(
            key=key,
            algorithm=candidate.algorithm,
            size_bytes=size_bytes,
            parameters=self.parameters,
            order=candidate.order,
            time_us=timeline.time_us,
            pieces=timeline.pieces,
            protocol=timeline.protocol or "",
            chain=chain_length(timeline),
            sent_bytes=int(sent.max(initial=0)),
            link=timeline.topology.link_name(link) if link >= 0 else "",
            link_us=float(timeline.link_busy_us[link]) if link >= 0 else 0.0,
            relays=relays(self.body),
            in_network=isinstance(self.body, Forest),
        )


def fastest_value(
    bodies: Bodies,
    size_bytes: int,
    model: Model,
    *,
    below_us: float = inf,
    most_rows: float = inf,
    times: KnownTimes | None = None,
) -> tuple[dict[str, Value], float]:
    """Parameters with the best value of the doubled one, and their simulated time in microseconds.

    Args:
        below_us: A time to undercut. The search ends where it cannot be, by what doublings gained so far, and the time
            is then one that takes longer; one that does not is that of the search without it.
        most_rows: No schedule of more transfers comes from a doubling.
        times: Of what was simulated under the model already.
    """
    known = KnownTimes(model) if times is None else times
    found = _best(bodies, size_bytes, model, below_us=below_us, most_rows=most_rows, times=known)
    if below_us < inf and found.time_us < below_us:
        found = _best(bodies, size_bytes, model, most_rows=most_rows, times=known)
    return found.parameters, found.time_us


def fastest_run(
    bodies: Bodies, size_bytes: int, model: Model
) -> tuple[Forest | Schedule, dict[str, Value], Timeline]:
    """The schedule of a candidate that is the fastest at a size, its parameters, and how it goes."""
    found = _best(bodies, size_bytes, model)
    assert found.timeline is not None
    return found.body, found.parameters, found.timeline


def _best(
    bodies: Bodies,
    size_bytes: int,
    model: Model,
    *,
    below_us: float = inf,
    most_rows: float = inf,
    times: KnownTimes | None = None,
) -> _Found:
    """The fastest of the values of the doubled parameter; the smaller one of equals."""
    best: _Found | None = None
    value, idle = 1, 0
    gain_us = before_us = inf  # what the last doubling gained, and the one before it
    while True:
        try:
            body = bodies.body(value)
        except UnreachableError:  # more segments may have messages between further pairs of ranks
            if best is None:
                raise
            return best
        # How much doublings gain shows in times that are too long as well.
        give_up_us = below_us if bodies.candidate.doubled is None else inf
        found = _found(body, bodies.parameters(value), size_bytes, model, below_us, give_up_us, times)
        idle = 0 if best is None or found.time_us < best.time_us * (1 - WORTH) else idle + 1
        if best is not None:
            gain_us, before_us = max(0.0, best.time_us - found.time_us), gain_us
        if best is None or faster(found.time_us, best.time_us):
            best = found
        value *= 2
        done = bodies.candidate.doubled is None or idle == PATIENCE or value > MOST_SEGMENTS
        done = done or 2 * num_rows(body) > most_rows
        hopeless = before_us < inf and best.time_us * _LEAST_SHARE - further_gain_us(gain_us, inf) > below_us
        if done or hopeless or size_bytes < 2 * model.least_piece_bytes * _chunks(body):
            return best


_LEAST_SHARE = 0.95
"""Of the best time so far, before what further doublings are expected to gain: what they may have left out."""


def _found(
    body: Forest | Schedule,
    parameters: dict[str, Value],
    size_bytes: int,
    model: Model,
    below_us: float,
    give_up_us: float,
    times: KnownTimes | None,
) -> _Found:
    """Simulate a schedule in the number of pieces that suits the size."""
    if times is not None:
        trial = times.fastest(body, size_bytes, below_us=below_us, give_up_us=give_up_us)
        return _Found(body=body, time_us=trial.time_us, parameters=parameters)
    timeline = fastest(
        body, size_bytes, model=model, keep_hops=False, below_us=below_us, give_up_us=give_up_us
    )
    return _Found(body=body, time_us=timeline.time_us, timeline=timeline, parameters=parameters)


class Bodies:
    """Cache of a candidate's schedules by the value of its doubled parameter.

    Args:
        problem: What they implement.
        candidate: The algorithm with its fixed parameters.
        plain: The problem's bound.
    """

    def __init__(self, problem: Problem, candidate: AlgorithmVariant, plain: Bound) -> None:
        self.problem = problem
        self.candidate = candidate
        self.synthesized: SynthesizedResult | None = None
        self._plain = plain
        self._made: dict[int, Forest | Schedule] = {}

    def parameters(self, doubled: int) -> dict[str, Value]:
        """All parameters for a value of the doubled one."""
        values = dict(self.candidate.parameters)
        if self.candidate.doubled is not None:
            values[self.candidate.doubled] = doubled
        return values

    def body(self, doubled: int) -> Forest | Schedule:
        """Schedule for a value of the doubled parameter, prepared for simulations."""
        if doubled not in self._made:
            candidate = self.candidate
            if isinstance(candidate, GivenVariant):
                return self._made.setdefault(doubled, _ready(candidate.body))
            if isinstance(candidate, SynthesizedVariant):
                self._made[doubled] = _ready(self._synthesized(candidate))
                return self._made[doubled]
            choice = PlannerOptions.of(
                self.problem,
                algorithm=candidate.algorithm,
                parameters=self.parameters(doubled),
                order=candidate.order,
                relay_gpus=candidate.relay_gpus,
                in_network=candidate.in_network and candidate.algorithm == FOREST,
            )
            body = _ready(make_body(self.problem, choice, self._plain).body)
            if isinstance(body, Forest) and not candidate.in_network:
                raise _SwitchesNeededError(
                    f"{candidate.algorithm} lets switches copy and add: allow that with `in_network`."
                )
            self._made[doubled] = body
        return self._made[doubled]

    @property
    def transfers(self) -> int:
        """Those of all schedules that were made."""
        return sum(map(num_rows, self._made.values()))

    def _synthesized(self, candidate: SynthesizedVariant) -> Forest | Schedule:
        """What the method finds, verified."""
        self.synthesized = synthesize(
            self.problem,
            method=candidate.algorithm,
            options=candidate.parameters,
            seed=candidate.seed,
            time_limit_s=candidate.time_limit_s,
        )
        plan = self.synthesized.plan
        body: Forest | Schedule = plan.schedule if plan.forest is None else plan.forest
        return body


def _chunks(body: Forest | Schedule) -> int:
    """Chunks into which the data are cut."""
    return max(1, body.num_chunks if isinstance(body, Schedule) else body.num_trees * body.num_images)


def relays(body: Forest | Schedule) -> bool:
    """Whether a path passes through intermediate GPUs."""
    inner = np.ones(len(body.path_nodes), dtype=np.bool_)
    inner[body.path_start[:-1]] = False
    inner[body.path_start[1:] - 1] = False
    return bool((body.topology.kind[body.path_nodes[inner]] == NodeKind.GPU).any())


def _ready(body: Forest | Schedule) -> Forest | Schedule:
    """The same with what every simulation needs: trees as transfers, and a route for each.

    Trees that branch at switches stay as they are.
    """
    if isinstance(body, Forest):
        if body.branches_at_switches:
            return body
        body = lower(body)
    return routed(body)
