"""What a comparison tries: every algorithm, with the values of its parameters that are worth a trial."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coppice.bounds.problem import Problem
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmParameter, Value
from coppice.planners.algorithms.catalogue import algorithms as catalogue
from coppice.planners.algorithms.catalogue import find
from coppice.planners.algorithms.parts.orders import box_order
from coppice.planners.choice import ORDERS, optimal_planner
from coppice.planners.synthesis.method import METHODS

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


@dataclass(frozen=True, kw_only=True)
class SynthesizedVariant(AlgorithmVariant):
    """What a method of synthesis finds, under the method's name."""

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
    """Everything to try for ``problem``: the optimal planner first, then the catalogue in its order.

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
            found += [
                AlgorithmVariant(
                    algorithm=name,
                    parameters=parameters,
                    doubled=_doubled(entry),
                    order=each,
                    relay_gpus=relay_gpus,
                    in_network=in_network,
                )
                for each in (("auto",) if entry.topological and order == BOTH_ORDERS else orders)
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
    """What methods of synthesis find with the options that are worth a trial, to be tried beside the algorithms."""
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


def _doubled(entry: Algorithm) -> str | None:
    """The parameter that is doubled."""
    return next((name for name in DOUBLED if name in entry.parameters), None)


def _variants(entry: Algorithm, ranks: int) -> list[dict[str, Value]]:
    """Every combination of the values at which the other parameters are tried; defaults are left out."""
    parameters = {name: each for name, each in entry.parameters.items() if name != _doubled(entry)}
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
