"""Plans whose sums are in one order at any size, with any channels, pieces and placement: that of pairs of ranks.

Of the optimal planner's variants and the catalogue's algorithms, in the order of ranks' numbers, those are taken that
:mod:`coppice.schedule.verification.sums` certifies. Beside them stand trees that follow the order, which suit any
number of ranks (:mod:`coppice.planners.ordered_trees`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from coppice.bounds.problem import Problem
from coppice.comparison.measurement import candidates
from coppice.errors import InputError
from coppice.planners.alternatives import Alternative
from coppice.planners.choice import from_catalogue, optimal_planner
from coppice.planners.ordered_trees import NAME, plan_ordered
from coppice.planners.ordering import without_steps
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.sums import PAIRS, sum_order
from coppice.schedule.verification.transfers import verify_schedule


def adds_in_pairs(body: Forest | Schedule) -> bool:
    """Whether all sums, if there are any, are in the order of pairs.

    >>> from coppice.collectives import Collective
    >>> from coppice.topology.presets import preset
    >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    >>> [adds_in_pairs(from_catalogue(problem, name).body) for name in ("rabenseifner", "ring")]
    [True, False]
    """
    if not body.collective.reduces:
        return True
    found = sum_order(body)
    return found is not None and found.name == PAIRS


def require_pairs(body: Forest | Schedule, planner: str) -> None:
    """Raise unless all sums are in the order of pairs."""
    if not adds_in_pairs(body):
        found = sum_order(body)
        how = "in switches, in whatever order data arrive" if found is None else found.words
        raise InputError(
            f"expected sums in one order of pairs of ranks, found that {planner} adds {how}: "
            "leave out what chooses it, or `deterministic`."
        )


def of_best_rate(problem: Problem, variants: Iterator[Alternative], *, relaying: bool) -> Alternative:
    """The alternative of the best rate that adds in pairs; of equal ones that with the fewest transfers.

    Args:
        variants: The optimal planner's; taken where one of them adds so.
        relaying: Where an algorithm needs it, GPUs may pass on what is not theirs.
    """
    for each in variants:
        if adds_in_pairs(each.made.body):
            return each
    made = [*_of_the_catalogue(problem, relaying=relaying), *along_the_order(problem, relaying=relaying)]
    if not made:
        raise none_adds_in_pairs(problem)
    best = min(made, key=lambda each: (body_loads(each.made.body, problem).inv_rate, _transfers(each)))
    return _without_steps(best)


def along_the_order(problem: Problem, *, relaying: bool) -> Iterator[Alternative]:
    """The trees that follow the order, where they serve and have routes.

    Args:
        problem: The problem.
        relaying: GPUs may pass on what is not theirs.
    """
    with suppress(InputError):
        made = plan_ordered(problem, relay_gpus=relaying)
        yield _without_steps(Alternative(name=NAME, made=made, planner=NAME))


def none_adds_in_pairs(problem: Problem) -> InputError:
    """The error where nothing is left."""
    return InputError(
        f"expected an algorithm for {problem.collective} on {problem.topology.name} that adds pairs of ranks, "
        "found none with routes: allow `relay_gpus`, or leave out `deterministic`."
    )


def _of_the_catalogue(problem: Problem, *, relaying: bool) -> Iterator[Alternative]:
    for variant in candidates(problem, order="rank"):
        if variant.algorithm == optimal_planner(problem.collective):
            continue
        with suppress(InputError):
            made = from_catalogue(
                problem, variant.algorithm, variant.parameters, order="rank", relay_gpus=relaying
            )
            if adds_in_pairs(made.body):
                yield Alternative(name=variant.algorithm, made=made, planner=variant.algorithm)


def _without_steps(each: Alternative) -> Alternative:
    """The same without steps, so that links of one step need not wait for those of another, where it still adds so."""
    body = each.made.body
    if not isinstance(body, Schedule) or len(body.after):
        return each
    free = without_steps(routed(body))
    if not verify_schedule(free, relay_gpus=True).ok or not adds_in_pairs(free):
        return each
    parameters = {**each.made.parameters, "steps": "free"}
    return replace(each, made=replace(each.made, body=free, parameters=parameters))


def _transfers(each: Alternative) -> int:
    body = each.made.body
    return body.num_transfers if isinstance(body, Schedule) else body.num_edges * body.num_images
