"""SYNDICATE: joint random search over chunks, decompositions, channels and order of all collectives.

Source: Mahajan et al., "Better Together: Jointly Optimizing ML Collective Scheduling and Execution Planning using
SYNDICATE" (NSDI 2023), after its abstract; moves and cooling are a reconstruction.

Collectives are broken in phases that run on any channel, so that those of different collectives run side by side. A
plan says for every collective into how many pieces it is cut, by which decomposition and on which channels it
runs, and which collective goes first. The search begins with the plain plan and keeps the best plan that it meets, so
that the result is never worse: it doubles or halves pieces, changes the decomposition, moves a phase to another
channel or swaps two collectives in the order, and accepts what is worse by e with probability exp(-e / T), with a
temperature T that falls to nothing.
With one collective on one channel there is nothing to gain. Where there are no more plans than may be simulated, all
are tried instead, and the best is proved.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec

from coppice.iteration.policies.whole.operations import (
    MOVES,
    OperationChoice,
    OperationGraph,
    PlanSpace,
    WholePlan,
    WholePolicy,
)

_WARMEST = 0.25
"""First temperature, as a share of the time of the plain plan."""
_REPEATS = 10
"""Steps that a walk may take for every plan that it may simulate: it often comes back to plans that it knows."""


@dataclass(frozen=True, kw_only=True)
class FoundPlan:
    """Result of a search."""

    plan: WholePlan  # The best plan
    seconds: float  # Its time
    default_seconds: float  # Time of the plain plan
    simulated: int  # Plans that were simulated
    exact: bool  # There is no better plan, as all were tried or a bound is attained


def search_plan(
    graph: OperationGraph,
    *,
    budget: int = 1000,  # Plans that are simulated at most
    seed: int = 0,  # Seed of the choices; the same one gives the same plan
    most_pieces: int = 16,  # Pieces of an operation at most
    moves: Iterable[str] = MOVES,  # What may be changed, of :data:`MOVES`
    walk: bool = False,  # Walk even where plans are few
) -> FoundPlan:
    """Best plan of a random walk, or of all plans where they are few."""
    draw = random.Random(seed)
    decisions = sorted(graph.decisions())
    wanted = [move for move in MOVES if move in set(moves)]
    space = PlanSpace(graph, pieces=[2**k for k in range(most_pieces.bit_length())], moves=wanted)
    if space.count() <= budget and not walk:
        plan, least = space.best()
        return FoundPlan(
            plan=plan, seconds=least, default_seconds=graph.seconds(), simulated=space.count(), exact=True
        )
    known: dict[object, float] = {}

    def seconds(plan: WholePlan) -> float:
        key = plan.key()
        if key not in known:
            known[key] = graph.seconds(plan)
        return known[key]

    default = seconds(WholePlan())
    at = best = WholePlan()
    now = least = default
    bound = graph.lower_bound_seconds()
    turns = _REPEATS * budget if decisions and wanted else 0
    for turn in range(turns):
        progress = max(turn / turns, len(known) / budget)
        if progress >= 1 or least <= bound * (1 + 1e-12):
            break
        changed = _changed(graph, decisions, at, draw, wanted, most_pieces)
        if changed is None:
            continue
        then = seconds(changed)
        warmth = _WARMEST * default * (1 - progress)
        if then <= now or draw.random() < math.exp((now - then) / warmth):
            at, now = changed, then
            if now < least:
                best, least = at, now
    exact = least <= bound * (1 + 1e-12)
    return FoundPlan(plan=best, seconds=least, default_seconds=default, simulated=len(known), exact=exact)


def _changed(
    graph: OperationGraph,
    decisions: list[str],
    plan: WholePlan,
    draw: random.Random,
    moves: list[str],
    most_pieces: int,
) -> WholePlan | None:
    """Plan with one random change; None where it changes nothing."""
    known = graph.decisions()
    move, decision = draw.choice(moves), draw.choice(decisions)
    choice = plan.choices.get(decision, OperationChoice())
    decompositions = known[decision].decompositions
    if move == "order":
        other = draw.choice(decisions)
        ranks = _ranks(known.keys(), plan)
        if decision == other:
            return None
        ranks[decision], ranks[other] = ranks[other], ranks[decision]
        return WholePlan(choices=plan.choices, ranks=ranks)
    if move == "pieces":
        pieces = choice.pieces * 2 if draw.random() < 0.5 else choice.pieces // 2
        if not 1 <= pieces <= most_pieces:
            return None
        choice = choice._replace(pieces=pieces)
    elif move == "decomposition":
        decomposition = draw.randrange(len(decompositions))
        if decomposition == choice.decomposition:
            return None
        choice = choice._replace(decomposition=decomposition, channels=())
    else:
        phases = decompositions[choice.decomposition]
        number = draw.randrange(len(phases))
        channel = draw.randrange(len(phases[number].channels))
        channels = [*choice.channels, *[0] * (len(phases) - len(choice.channels))]
        if channels[number] == channel:
            return None
        channels[number] = channel
        choice = choice._replace(channels=tuple(channels))
    choices = {each: kept for each, kept in plan.choices.items() if each != decision}
    if choice.channels and not any(choice.channels):
        choice = choice._replace(channels=())
    if choice != OperationChoice():
        choices[decision] = choice
    return WholePlan(choices=choices, ranks=plan.ranks)


def _ranks(decisions: Iterable[str], plan: WholePlan) -> dict[str, int]:
    """Priorities of all decisions, in operation order where the plan has none."""
    found: Mapping[str, int] = plan.ranks or {each: number for number, each in enumerate(decisions)}
    return dict(found)


class SyndicateOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the search."""

    budget: Annotated[int, msgspec.Meta(ge=0)] = 1000  # Plans that are simulated at most
    seed: int = 0  # Seed of the choices
    most_pieces: Annotated[int, msgspec.Meta(ge=1)] = 16  # Pieces of an operation at most


class Syndicate(WholePolicy):
    """Search chunks, decompositions, channels and order of collectives."""

    name = "syndicate"
    about = "collectives in phases; cuts, channels and order searched (SYNDICATE, NSDI'23)"
    assumes = "the same plan on all ranks, settled before training; channels that run side by side"
    decides = frozenset({"gradients", "tensor", "experts", "weights"})
    options: ClassVar[type[msgspec.Struct]] = SyndicateOptions

    def plan(self, graph: OperationGraph) -> WholePlan:
        """Best plan found, never worse than the plain one."""
        settings = self.settings
        return search_plan(
            graph, budget=settings.budget, seed=settings.seed, most_pieces=settings.most_pieces
        ).plan
