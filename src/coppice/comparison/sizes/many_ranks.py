"""What is looked at on many ranks before the catalogue, where one schedule has millions of transfers.

Nothing can be tried there by the dozen, so these are made for their networks: trees over rails for broadcasts and
reductions, all-to-alls in few messages, and the transfers of the optimal forest in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.promising import MANY_RANKS
from coppice.comparison.sizes.candidates import num_rows
from coppice.comparison.sizes.exchanges import exchanges_on_rails
from coppice.comparison.sizes.pipelined import likeliest, pipelined_us
from coppice.comparison.sizes.side_by_side import side_by_side
from coppice.planners.alternatives import Alternative, Timer
from coppice.planners.choice import PlannerOutput
from coppice.planners.in_turns import blocks_in_turns, hop_by_hop, in_turns
from coppice.planners.over_boxes import rails
from coppice.planners.torus_exchange import torus_exchange
from coppice.planners.trees_over_boxes import (
    DEGREES,
    Rails,
    exchanged_straight,
    straight_to_boxes,
    trees_over_boxes,
)
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model
from coppice.simulation.simulator import MOST_PIECES, fastest
from coppice.text import plural

_MOST_MESSAGES = 2**21
"""Messages of one simulation on many ranks, but for a schedule that has more transfers as it is."""
_FIRST_MESSAGES = 2**20
"""The same while schedules are compared with each other that are not cut yet."""
_MOST_ROWS = 2**22
"""Transfers of what is put into turns."""
_MOST_STRAIGHT = 2**14
"""Bytes that a root's box is worth sending to all others itself."""
_MOST_EXCHANGED = 2**22
"""Bytes of an exchange in which boxes send all that they have to each other."""
_NEARBY = 1.1
"""What takes so many times the best so far in few pieces may be the fastest in more."""


def pieces_at_most(problem: Problem, body: Forest | Schedule, messages: int = _MOST_MESSAGES) -> int:
    """Pieces that chunks are cut into at most on so many ranks."""
    if problem.topology.num_ranks <= MANY_RANKS:
        return MOST_PIECES
    return max(1, min(MOST_PIECES, messages // max(1, num_rows(body))))


def for_many_ranks(
    problem: Problem,
    model: Model,
    fastest_trees: Sequence[Alternative],
    best: Mapping[int, float],
    floors: Mapping[int, Mapping[str | None, float]],
    time_us: Timer,
    say: Callable[[str], object],
) -> list[Alternative]:
    """What is faster at some size than all there is, at most one for each size; nothing on few ranks.

    Args:
        fastest_trees: The trees that are fastest at some size.
        best: Their least time at each size, in microseconds.
        floors: What no schedule undercuts at each size in each protocol.
        time_us: What a body takes at a size.
        say: Called with a few words as each stage begins.
    """
    if problem.topology.num_ranks <= MANY_RANKS or problem.weights is not None:
        return []
    say("trying schedules of many ranks")
    known = dict(best)
    found: dict[int, Alternative] = {}
    for one in _schedules(problem, model, fastest_trees, list(best)):
        body = one.made.body
        assert isinstance(body, Schedule)
        checked = False
        for size, best_us in known.items():
            if not one.suits(size):
                continue
            if pieces_at_most(problem, body) == 1:
                found_us = time_us(body, size)
            else:
                found_us = fastest(
                    body,
                    size,
                    model=model,
                    most=pieces_at_most(problem, body, _FIRST_MESSAGES),
                    keep_hops=False,
                    below_us=best_us * _NEARBY,
                    give_up_us=best_us * _NEARBY,
                    least_us=floors.get(size),
                ).time_us
            if found_us < best_us and (checked or verify_schedule(body, relay_gpus=True).ok):
                checked = True
                known[size] = found_us
                found[size] = Alternative(name=one.name, made=one.made, size_bytes=size)
    return list(found.values())


def _schedules(
    problem: Problem, model: Model, made: Sequence[Alternative], sizes: Sequence[int]
) -> Iterator[Alternative]:
    if problem.collective in (Collective.BROADCAST, Collective.REDUCE):
        yield from side_by_side(problem, model, sizes, most_messages=_MOST_MESSAGES)
        yield from _over_boxes(problem, model, sizes)
    elif problem.collective is Collective.ALL_TO_ALL:
        yield from exchanges_on_rails(problem)
        exchange = torus_exchange(problem)
        if exchange is not None:
            yield _alternative(exchange, "dimension by dimension", {"torus_exchange": True})
        for one in made:
            turned = blocks_in_turns(one.made.body) if isinstance(one.made.body, Schedule) else None
            if turned is None:
                continue
            yield _alternative(turned, f"{one.name}, in turns", {**one.made.parameters, "in_turns": True})
            stepped = hop_by_hop(turned)
            if stepped is not None:
                yield _alternative(
                    stepped, f"{one.name}, hop by hop", {**one.made.parameters, "hop_by_hop": True}
                )
    elif problem.collective.made_of_trees:
        straight = exchanged_straight(problem) if min(sizes) <= _MOST_EXCHANGED else None
        if straight is not None:
            yield _alternative(straight, "exchange between boxes", {"over_boxes": "exchange"}, min(sizes))
        for one in made:
            body = one.made.body
            if isinstance(body, Forest) and not body.branches_at_switches and num_rows(body) <= _MOST_ROWS:
                ordered = in_turns(lower(body))
                if ordered is not None:
                    parameters: dict[str, Parameter] = {**one.made.parameters, "in_turns": True}
                    yield _alternative(ordered, f"{one.name}, in turns", parameters)


def _over_boxes(problem: Problem, model: Model, sizes: Sequence[int]) -> Iterator[Alternative]:
    joined = rails(problem.topology)
    if joined is None:
        return
    if min(sizes) <= _MOST_STRAIGHT:
        groups = 1
        while (straight := straight_to_boxes(problem, groups=groups, joined=joined)) is not None:
            name = f"straight to all boxes in {plural(groups, 'part')}"
            yield _alternative(straight, name, {"over_boxes": "straight", "groups": groups}, min(sizes))
            groups *= 2
    wanted: dict[tuple[int, int], int] = {}
    for size in sizes:
        likely = _likely_over_boxes(problem, joined, model, size)
        wanted |= dict.fromkeys(likeliest(likely, len(joined[1]) * problem.topology.num_ranks), size)
    cut = problem.collective is Collective.BROADCAST
    seen: set[int] = set()
    for (degree, pieces), size in wanted.items():
        trees = trees_over_boxes(problem, degree=degree, joined=joined)
        if trees is None or (not cut and degree in seen):
            continue
        seen.add(degree)
        made_for = size if len(sizes) == 1 else None
        parameters: dict[str, Parameter] = {"over_boxes": "trees", "degree": degree}
        name = f"trees over boxes of degree {degree}"
        if cut:
            trees, name = in_pieces(trees, pieces), f"{name} in {plural(pieces, 'piece')}"
            parameters["pieces"] = pieces
        # Pieces of a sum that come one after the other would wait for each other: simulations find better orders.
        yield _alternative(trees, name, parameters, made_for)


def _likely_over_boxes(
    problem: Problem, joined: Rails, model: Model, size_bytes: int
) -> dict[tuple[int, int], float]:
    """What trees over boxes are likely to take, by their degree and the pieces of a part."""
    boxes, members = joined
    away, ranks = len(boxes) - 1, problem.topology.num_ranks
    found = {}
    for degree in DEGREES:
        levels, reached = 1, 1
        while reached < away:
            levels, reached = levels + 1, degree * reached + 1
        inner = -(-(away - 1) // degree)
        parts = len(members) * degree
        most = max(1, min(size_bytes // parts, _MOST_MESSAGES // (parts * ranks)))
        for pieces in {most, *(1 << power for power in range(most.bit_length()))}:
            found[degree, pieces] = pipelined_us(
                problem,
                model,
                size_bytes,
                levels=levels + 1,  # the last one is within boxes
                # where boxes do not divide evenly, one is an inner node of two trees
                inv_rate=float(bound_of(problem).inv_rate) * (1 if degree * inner <= away else 2),
                pieces=pieces,
                messages=parts * pieces,
            )
    return found


def _alternative(
    body: Schedule, name: str, parameters: dict[str, Parameter], size_bytes: int | None = None
) -> Alternative:
    return Alternative(name=name, made=PlannerOutput(body=body, parameters=parameters), size_bytes=size_bytes)
