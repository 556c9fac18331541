"""Catalogue of algorithms by name and collective, and construction of their schedules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

import numpy as np

from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter, Value
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule, routed
from coppice.text import nearest

_FAMILIES = {
    "hierarchies.levels.ACCL": "accl",
    "exchanges.bruck.ALL_GATHER": "bruck sparbit",
    "direct.straight.DIRECT": "direct",
    "direct.straight.ALL_GATHER": "linear gather-broadcast",
    "trees.single_tree.ALL_REDUCE": "linear nonoverlapping tree",
    "exchanges.bruck.ALL_TO_ALL": "bruck",
    "exchanges.bruck.REDUCTIONS": "bruck",
    "direct.straight.LINEAR": "linear linear-sync scattered",
    "trees.camdoop.CAMDOOP": "camdoop",
    "exchanges.recursive_multiplying.ONE_GROUP": "allgather-reduce",
    "direct.barrier.ALGORITHMS": "linear double-ring tree recursive-doubling bruck k-dissemination",
    "rings.BEST_RING": "best-ring",
    "trees.single_tree.BROADCAST": "linear chain pipeline binary binomial k-nomial tree",
    "exchanges.circulant.ROOTED": "circulant",
    "exchanges.circulant.ALL_REDUCE": "circulant",
    "exchanges.circulant.BLOCKS": "circulant",
    "trees.double_tree.DOUBLE": "double-binary-tree",
    "direct.gather_scatter.GATHER_SCATTER": "linear linear-sync linear-nb binomial k-nomial",
    "hierarchies.hierarchical.ALGORITHMS": "hierarchical",
    "trees.in_network.ALGORITHMS": "collnet-chain collnet-direct nvls nvls-tree",
    "trees.double_tree.IN_ORDER": "in-order-binary",
    "hierarchies.levels.K_GROUPED": "k-grouped",
    "exchanges.recursive_multiplying.PARTS": "k-reduce-scatter-allgather",
    "rings.NCCL": "nccl-ring",
    "trees.double_tree.NCCL": "nccl-tree",
    "rings.NEIGHBOR_EXCHANGE": "neighbor-exchange",
    "direct.straight.PAIRWISE": "pairwise sendrecv-replace",
    "exchanges.bruck.PAT": "pat",
    "rings.PATARASUK_YUAN": "patarasuk-yuan",
    "hierarchies.levels.PLINK": "plink",
    "exchanges.halving.RABENSEIFNER": "rabenseifner",
    "exchanges.doubling.RECEXCH": "recexch-doubling recexch-halving",
    "exchanges.doubling.DOUBLING": "recursive-doubling",
    "exchanges.recursive_multiplying.WHOLE_BUFFERS": "recursive-doubling recursive-multiplying",
    "exchanges.halving.REDUCE_SCATTER": "recursive-halving butterfly",
    "direct.straight.REDUCE_SCATTER": "linear nonoverlapping",
    "trees.single_tree.REDUCE": "linear chain pipeline binary binomial k-nomial tree",
    "rings.RING": "ring",
    "direct.gather_scatter.BROADCAST": "scatter-allgather scatter-ring-allgather",
    "rings.SEGMENTED": "segmented-ring",
    "trees.double_tree.SPLIT": "split-binary",
    "exchanges.swing.SWING": "swing",
    "hierarchies.levels.TORUS": "2d-torus blueconnect",
    "exchanges.trivance.TRIVANCE": "trivance",
    "hierarchies.two_level.TWO_LEVEL": "two-level",
    "exchanges.two_stage.TWO_STAGE": "two-stage fast sabre direct",
    "direct.straight.TWO_PROC": "two-proc",
    "hierarchies.rerouting.REROUTING": "r2ccl optcc",
}
"""Algorithms, or tuples of them, by module, with their names, in the order of listings; of equally fast ones the first
counts. A module is loaded when one of its names is asked for."""


@cache
def _family(place: str) -> tuple[Algorithm, ...]:
    """The algorithms of a row of the table."""
    module, _, name = place.rpartition(".")
    found = getattr(import_module(f"{__package__}.{module}"), name)
    return (found,) if isinstance(found, Algorithm) else tuple(found)


@cache
def algorithms() -> dict[tuple[str, Collective], Algorithm]:
    """All algorithms by name and collective, in the order of the catalogue."""
    return {(entry.name, entry.collective): entry for place in _FAMILIES for entry in _family(place)}


def find(name: str, collective: Collective) -> Algorithm:
    """Look up the algorithm ``name`` for ``collective``."""
    for place, listed in _FAMILIES.items():
        for entry in _family(place) if name in listed.split() else ():
            if (entry.name, entry.collective) == (name, collective):
                return entry
    known = algorithms()
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
    problem: Problem,  # What to plan; weights must be equal ones
    parameters: Mapping[str, Value | str] | None = None,  # Values of parameters, as numbers or text
    *,
    order: tuple[int, ...] | None = None,  # Rank at each position; None is rank order
) -> AlgorithmCase:
    """Instance of a problem for ``entry``, with a value for every parameter."""
    check_problem(problem)
    if problem.weights is not None:
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
        topology=problem.topology,
        collective=problem.collective,
        root=root,
        parameters=values,
        order=order,
        demands=problem.demands,
    )


def make(entry: Algorithm, case: AlgorithmCase, *, relay_gpus: bool = False) -> Schedule | Forest:
    """Build the schedule of ``entry`` for ``case``, with a route for every transfer.

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
    if not relay_gpus and _passes_ranks(body):
        raise UnreachableError(
            f"algorithm {entry.name} does not fit {case.topology.name}: its NICs are reached through other GPUs: "
            "allow these with `relay_gpus`."
        )
    # Default routes stay unnamed, so that a plan says which transfers follow them.
    return found if relay_gpus else body


def _passes_ranks(body: Schedule) -> bool:
    """Whether a named path leads through a rank."""
    inner = np.ones(len(body.path_nodes), dtype=np.bool_)
    inner[body.path_start[:-1]] = False
    inner[body.path_start[1:] - 1] = False
    return bool((body.topology.rank[body.path_nodes[inner]] >= 0).any())


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
