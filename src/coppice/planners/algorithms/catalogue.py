"""The catalogue: every algorithm by name and collective, and the way to have one make a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter, Value
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule, routed
from coppice.text import nearest

_FAMILIES = (
    "hierarchies.levels.ACCL",
    "exchanges.bruck.ALL_GATHER",
    "direct.straight.DIRECT",
    "direct.straight.ALL_GATHER",
    "trees.single_tree.ALL_REDUCE",
    "exchanges.bruck.ALL_TO_ALL",
    "direct.straight.LINEAR",
    "trees.camdoop.CAMDOOP",
    "exchanges.recursive_multiplying.ONE_GROUP",
    "direct.barrier.ALGORITHMS",
    "rings.fitted_rings.BEST_RING",
    "trees.single_tree.BROADCAST",
    "exchanges.circulant.ROOTED",
    "exchanges.circulant.ALL_REDUCE",
    "exchanges.circulant.BLOCKS",
    "trees.double_tree.DOUBLE",
    "direct.gather_scatter.GATHER_SCATTER",
    "hierarchies.hierarchical.ALGORITHMS",
    "trees.in_network.ALGORITHMS",
    "trees.binary.IN_ORDER",
    "hierarchies.k_grouped.ALGORITHMS",
    "exchanges.recursive_multiplying.PARTS",
    "rings.ring.NCCL",
    "trees.double_tree.NCCL",
    "rings.ring.NEIGHBOR_EXCHANGE",
    "direct.straight.PAIRWISE",
    "exchanges.bruck.PAT",
    "rings.fitted_rings.PATARASUK_YUAN",
    "hierarchies.levels.PLINK",
    "exchanges.halving.RABENSEIFNER",
    "exchanges.doubling.RECEXCH",
    "exchanges.doubling.DOUBLING",
    "exchanges.recursive_multiplying.WHOLE_BUFFERS",
    "exchanges.halving.REDUCE_SCATTER",
    "direct.straight.REDUCE_SCATTER",
    "trees.single_tree.REDUCE",
    "rings.ring.RING",
    "direct.gather_scatter.BROADCAST",
    "rings.ring.SEGMENTED",
    "trees.binary.SPLIT",
    "hierarchies.levels.TORUS",
    "direct.straight.TWO_PROC",
)
"""Algorithms, or tuples of them, by module, in the order of listings; of equally fast ones the first counts."""


@cache
def algorithms() -> dict[tuple[str, Collective], Algorithm]:
    """All algorithms by name and collective, in the order of the catalogue."""
    entries: list[Algorithm] = []
    for family in _FAMILIES:
        module, _, name = family.rpartition(".")
        found = getattr(import_module(f"{__package__}.{module}"), name)
        entries += [found] if isinstance(found, Algorithm) else found
    return {(entry.name, entry.collective): entry for entry in entries}


def find(name: str, collective: Collective) -> Algorithm:
    """The algorithm ``name`` for ``collective``."""
    known = algorithms()
    if (name, collective) in known:
        return known[name, collective]
    names = [each for each, served in known if served is collective]
    serves = [served.value for each, served in known if each == name]
    if serves:
        msg = (
            f"algorithm {name} performs {', '.join(serves)}, not {collective}: "
            f"`coppice algorithms --collective {collective}` lists those that do."
        )
    else:
        near = nearest(name, names)
        hint = f"did you mean {near}? " if near else ""
        msg = (
            f"expected an algorithm for {collective}, found {name!r}: {hint}"
            f"`coppice algorithms --collective {collective}` lists them."
        )
    raise InputError(msg)


def case_of(
    entry: Algorithm,
    problem: Problem,  # What to plan; weights and demands must be equal ones
    parameters: Mapping[str, Value | str] | None = None,  # Values of parameters, as numbers or text
    *,
    order: tuple[int, ...] | None = None,  # Rank at each position; None is rank order
) -> AlgorithmCase:
    """The case of ``entry`` for a problem, with a value for every parameter."""
    check_problem(problem)
    if problem.weights is not None or problem.demands is not None:
        raise InputError(
            f"algorithm {entry.name} moves equal blocks: leave out `weights`, or plan with `algorithm=forest`."
        )
    given = dict(parameters or {})
    values = {
        name: _value(entry, name, parameter, given.pop(name, parameter.default))
        for name, parameter in entry.parameters.items()
    }
    if given:
        known = ", ".join(entry.parameters) or "none"
        raise InputError(f"algorithm {entry.name} has no parameter {next(iter(given))!r}, only: {known}.")
    root = -1 if problem.root is None else problem.root
    if order is not None and root >= 0:
        root = order.index(root)
    return AlgorithmCase(
        topology=problem.topology, collective=problem.collective, root=root, parameters=values, order=order
    )


def make(entry: Algorithm, case: AlgorithmCase, *, relay_gpus: bool = False) -> Schedule | Forest:
    """The schedule of ``entry`` for ``case``, with a route for every transfer.

    Args:
        relay_gpus: Where no path of switches and NICs exists, other GPUs may forward.
    """
    failed = entry.refusal(case)
    if failed is not None:
        raise InputError(failed)
    body = entry.build(case)
    if isinstance(body, Forest):
        return body
    try:
        found = routed(body, relay_gpus=relay_gpus)
    except UnreachableError as error:
        raise UnreachableError(f"algorithm {entry.name} does not fit {case.topology.name}: {error}") from None
    # Default routes stay unnamed, so that a plan says which transfers follow them.
    return found if relay_gpus else body


def _value(entry: Algorithm, name: str, parameter: AlgorithmParameter, given: Value) -> Value:
    if isinstance(parameter.default, str):
        if parameter.choices and str(given) not in parameter.choices:
            found = f"expected {' or '.join(parameter.choices)}, found {given!r}"
            raise InputError(f"parameter {name} of algorithm {entry.name}: {found}.")
        return str(given)
    text = str(given)
    if not text.isdecimal() or len(text) > 9 or int(text) < parameter.least:
        raise InputError(
            f"parameter {name} of algorithm {entry.name}: expected a number >= {parameter.least}, found {given!r}."
        )
    return int(text)
