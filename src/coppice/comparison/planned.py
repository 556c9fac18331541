"""Plan for given sizes: the fastest of the optimal planner's variants and of the catalogue, by simulated time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Any

import numpy as np

from coppice.bounds.network import check_problem
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem, problem_of
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.comparison.deterministic import (
    adds_in_pairs,
    along_the_order,
    none_adds_in_pairs,
    require_pairs,
)
from coppice.comparison.measurement import AlgorithmVariant, Bodies, candidates, fastest_value
from coppice.comparison.promising import MANY_RANKS, is_far, most_promising_first
from coppice.comparison.sizes.alike import for_alike_ranks
from coppice.comparison.sizes.candidates import ABOUT, NEARBY, is_short, num_rows
from coppice.comparison.sizes.effort import EFFORTS, Effort
from coppice.comparison.sizes.many_ranks import for_many_ranks, pieces_at_most
from coppice.comparison.sizes.search import SizeSearch
from coppice.comparison.sizes.unstepped import in_pieces_us
from coppice.errors import CoppiceError, InputError, UnreachableError
from coppice.planners.alternatives import REACH, Alternative, Preferred, Timer, preferred
from coppice.planners.choice import PlannerOutput, from_catalogue, optimal_planner
from coppice.planners.planning import PlannedResult, plan
from coppice.planners.synthesis.blink.routes import one_hop
from coppice.planners.synthesis.synthesizing import Request, method_named
from coppice.schedule.forest import Forest
from coppice.schedule.messages import messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.least_time import LeastTime, LeastTimes
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulated import without_bursts
from coppice.simulation.simulator import MOST_PIECES
from coppice.text import plural, sizes_of

NEAR = 1.002
"""A plan is fast enough if no schedule can be faster by more than this factor."""

_MOST_PACKED, _MOST_AROUND = 16, 128
"""Ranks for which trees are packed from one root as well: of any network, and where all hang on the same switches."""
_MOST_NEAR = 3
"""Algorithms of few transfers in steps that are worth a look in another order although they are not the fastest ones.
Trees of any kind are found elsewhere."""
_MOST_ROWS = 2**20
"""Transfers that doubling a parameter makes at most on many ranks."""

Taker = Callable[[Sequence[Alternative], Sequence[int], Timer], Preferred]
"""Takes a plan, given all, sizes and what each takes at a size."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SizedPlan:
    """A plan for some sizes: how it compares there, and what no schedule undercuts."""

    result: PlannedResult  # The verified plan
    preferred: Preferred  # How the alternatives compare
    least: Mapping[int, LeastTime]  # The least time of each size
    # The fastest that was found at each size of those that add in any order, where the plan must be deterministic
    in_any_order: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    untried: tuple[str, ...] = ()  # Algorithms of the catalogue that were left out as the effort was spent

    def gap(self, size_bytes: int) -> float:
        """Share by which the plan takes longer than the least time at a size (0: nothing is faster)."""
        return gap_over(self.least[size_bytes].time_us, self.preferred.time_us[size_bytes])


_ROUNDING = 1e-9
"""What sums of times in floating point may be off by; the least ones are exact."""


def gap_over(least_us: float, time_us: float) -> float:
    """Share by which a time is longer than the least one; 0 where nothing takes any time.

    >>> gap_over(10.0, 12.5), gap_over(10.0, 10.0 + 1e-12), gap_over(0.0, 0.0)
    (0.25, 0.0, 0.0)
    """
    gap = time_us / least_us - 1 if least_us else 0.0
    return gap if gap > _ROUNDING else 0.0


def plan_for(
    problem: Any,
    sizes: str | int | Sequence[int | str],
    *,
    model: Model | str | os.PathLike[str] | None = None,
    effort: str = "normal",
    deterministic: bool = False,
    take: Taker = preferred,
    **options: Any,
) -> SizedPlan:
    """Plan for some sizes; at a single size no variant and no algorithm that was looked at is faster.

    The plan of the best rate may have deeper trees, or more of them, than one that is a little slower in the end, and
    small messages may suit another algorithm altogether. All are simulated at each size, and the one is taken whose
    worst loss against the fastest is least. Where options name an algorithm or its trees, only that is looked at.

    Args:
        problem: As :func:`coppice.planners.planning.plan` takes it.
        sizes: Sizes M in bytes, as a list or as text such as ``"1M"`` or ``"1K:1G"``.
        model: What messages cost: a model or its name; None is the default.
        effort: One of :data:`EFFORTS`.
        deterministic: Take only what adds in one order (:mod:`coppice.comparison.deterministic`).
        take: Takes one of all that was looked at, by what each takes at the sizes.
        options: All other arguments of :func:`coppice.planners.planning.plan`.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = plan_for(preset("ring", gpus=4), "1K", collective="all_gather", model="alpha-beta")
        >>> found.preferred.taken.name, found.preferred.worst_loss, round(found.gap(1024), 3)
        ('matched in 4 chunks', 0.0, 0.03)
    """
    wanted, assumed = sizes_of(sizes), model_of(model)
    if not wanted:
        raise InputError("expected sizes to plan for, found none: give one, such as 1M.")
    if effort not in EFFORTS:
        raise InputError(f"expected an effort of {', '.join(EFFORTS)}, found {effort!r}.")
    posed = problem_of(
        problem,
        options.pop("collective", None),
        **{name: options.pop(name, None) for name in ("root", "weights", "demands")},
    )
    check_problem(posed)
    relaying = bool(options.get("relay_gpus"))
    options = planner_options(options)
    say = options.get("on_stage") or (lambda _: None)
    say("computing the least times")
    times = LeastTimes(
        posed,
        assumed,
        relay_gpus=relaying,
        helped=bool(options.get("in_network")),
    )
    least = {size: times.at(size) for size in wanted}
    floors = {size: each.by_protocol for size, each in least.items()}
    found: list[Preferred] = []
    in_any_order: dict[int, tuple[str, float]] = {}
    untried: dict[str, None] = {}
    known: dict[tuple[int, int], float] = {}
    reached: dict[tuple[int, int], float] = {}  # what was made for a size took so long when it was found
    bodies: dict[int, Forest | Schedule] = {}  # live as long as this call: times are known by identity
    simulated = KnownTimes(assumed)

    def time_us(body: Forest | Schedule, size_bytes: int) -> float:
        key = id(bodies.setdefault(id(body), body)), size_bytes
        if key not in known:
            # For one size nobody asks how much slower another one is, unless its order may be at fault.
            best_us = min((us for (_, size), us in known.items() if size == size_bytes), default=inf)
            reached_us = reached.get(key, inf)
            near_us = best_us * NEARBY if len(wanted) == 1 else inf
            about = near_us < reached_us == inf
            near_us = min(near_us, reached_us)
            most = pieces_at_most(posed, body)
            trial = simulated.fastest(
                body,
                size_bytes,
                most=most,
                below_us=near_us,
                give_up_us=near_us * (1 + _ROUNDING),
                least_us=floors.get(size_bytes),
                gain=ABOUT if about else 0.0,
            )
            found = trial.time_us
            if about and best_us <= found <= best_us * (1 + ABOUT):
                found = simulated.fastest(
                    body, size_bytes, most=most, below_us=best_us, least_us=floors.get(size_bytes)
                ).time_us
            # Another number of pieces may be taken than the first one that undercuts, unless more of them are slower.
            whole = trial.pieces == 1 and abs(found - reached_us) <= found * _ROUNDING
            undercuts = found < best_us or reached_us < inf
            if undercuts and not whole and near_us < inf and most == MOST_PIECES:
                found = simulated.fastest(
                    body, size_bytes, most=most, least_us=floors.get(size_bytes)
                ).time_us
            found = min(found, reached_us)
            known[key] = found
        return known[key]

    def searched(
        made: Sequence[Alternative], limits: Mapping[int, float], budget: Effort
    ) -> list[Alternative]:
        search = SizeSearch(
            posed, assumed, tuple(made), time_us, budget, times=simulated, plain=bound_of(posed), say=say
        )
        found = [(size, *each) for size in wanted for each in search.at(size, limits[size])]
        for size, one, found_us in found:
            body = one.made.body
            key = id(bodies.setdefault(id(body), body)), size
            reached[key] = found_us
            if isinstance(body, Forest):  # rows were timed in more pieces than they are worth being cut into
                known[key] = found_us
        return [one for _, one, _ in found]

    def choose(variants: Iterator[Alternative]) -> Alternative:
        looking = EFFORTS[effort].catalogue > 0 and not is_closed(options) and not deterministic
        limits = {size: least[size].time_us * NEAR for size in wanted}
        balanced = for_alike_ranks(posed, assumed, limits, time_us, say) if looking else []
        made = balanced or _unlike(variants)
        say(f"simulating trees at {plural(len(wanted), 'size')}")
        best = {size: min(time_us(one.made.body, size) for one in made if one.suits(size)) for size in wanted}
        if not is_closed(options):
            if EFFORTS[effort].catalogue and not balanced:
                made += for_many_ranks(
                    posed, assumed, _leaders(made, wanted, time_us), best, floors, time_us, say
                )
            say("trying the algorithms of the catalogue")
            # Beside balanced trees algorithms of the catalogue are named and not made: each has millions of transfers.
            budget = replace(EFFORTS[effort], catalogue=1) if balanced else EFFORTS[effort]
            made += _packed_from_one_root(posed) if budget.catalogue else []
            best = {
                size: min(time_us(one.made.body, size) for one in made if one.suits(size)) for size in wanted
            }
            if (
                budget.ordering and len(wanted) == 1
            ):  # in pieces what suits smaller messages may be the fastest
                below = max(1, wanted[0] // REACH)
                best[below] = inf
                for one in sorted(made, key=lambda one: time_us(one.made.body, wanted[0])):
                    if one.suits(below):
                        body, least_us = one.made.body, best[below]
                        trial = simulated.fastest(
                            body,
                            below,
                            most=pieces_at_most(posed, body),
                            below_us=least_us,
                            give_up_us=least_us,
                        )
                        best[below] = min(least_us, trial.time_us)
            made += _of_the_catalogue(
                posed,
                simulated,
                best,
                limits,
                budget.catalogue,
                untried,
                relaying=relaying,
                near=NEARBY if budget.ordering and len(wanted) == 1 else 1.0,
            )
            made += searched(made, limits, budget)
            if deterministic:
                in_any_order.update(preferred(made, wanted, time_us).fastest)
                known.clear()  # what is no faster than others may be the fastest of those that add in one order
                say("trying algorithms that add in one order")
                none = dict.fromkeys(wanted, inf)
                made += _of_the_catalogue(
                    posed,
                    simulated,
                    none,
                    limits,
                    budget.catalogue,
                    untried,
                    relaying=relaying,
                    keep=adds_in_pairs,
                )
                made += along_the_order(posed, relaying=relaying)
                made = [each for each in made if adds_in_pairs(each.made.body)]
                if not made:
                    raise none_adds_in_pairs(posed)
                ordered = searched(made, limits, replace(budget, growing=0, matching=0))
                made += [each for each in ordered if adds_in_pairs(each.made.body)]
        elif deterministic:
            require_pairs(made[0].made.body, made[0].name)
        found.append(take(made, wanted, time_us))
        return found[-1].taken

    result = plan(posed, choose=choose, **options)
    return SizedPlan(
        result=result,
        preferred=found[-1],
        least=least,
        in_any_order=in_any_order,
        untried=tuple(sorted(untried)),
    )


def _leaders(made: Sequence[Alternative], sizes: Sequence[int], time_us: Timer) -> list[Alternative]:
    """Those that are fastest at some size."""
    found = [min((time_us(one.made.body, size), i) for i, one in enumerate(made))[1] for size in sizes]
    return [made[i] for i in sorted(set(found))]


def _unlike(variants: Iterator[Alternative]) -> list[Alternative]:
    """Variants without those whose trees are those of an earlier one: several trees of a root may come to the same."""
    found: dict[object, Alternative] = {}
    for each in variants:
        body = each.made.body
        found.setdefault(_trees_of(body) if isinstance(body, Forest) else id(body), each)
    return list(found.values())


def _trees_of(forest: Forest) -> tuple[object, ...]:
    """What two forests share that differ in the unit of their weights alone."""
    weight = forest.tree_weight // max(1, int(np.gcd.reduce(forest.tree_weight)))
    columns = (
        weight,
        forest.tree_root,
        forest.tree_phase,
        forest.tree_start,
        forest.edge_src,
        forest.edge_dst,
    )
    paths = (forest.edge_path, forest.path_start, forest.path_nodes)
    images = None if forest.symmetry is None else forest.symmetry.generators.tobytes()
    return (images, *(each.tobytes() for each in (*columns, *paths)))


def is_closed(options: Mapping[str, Any]) -> bool:
    """Whether options name the plan that is meant, so that nothing is left open."""
    return any(options.get(name) for name in ("algorithm", "trees", "tolerance", "in_network"))


def planner_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for :func:`coppice.planners.planning.plan` of a plan for sizes.

    Where nothing says which algorithm is meant, GPUs that may relay are for those of the catalogue that need it.
    """
    if is_closed(options):
        return dict(options)
    return {name: value for name, value in options.items() if name != "relay_gpus"}


def _packed_from_one_root(problem: Problem) -> list[Alternative]:
    """Few trees of whole rates from one root, as Blink packs them, where that takes next to no time."""
    from_one = problem.root is not None or problem.collective is Collective.ALL_REDUCE
    topology = problem.topology
    most = _MOST_AROUND if one_hop(topology, range(topology.num_ranks)) else _MOST_PACKED
    if not from_one or topology.num_ranks > most:
        return []
    method = method_named("blink")
    try:
        found = method.run(Request(problem=problem, options=method.read_options({})))
    except CoppiceError:
        return []
    if found.body is None:
        return []
    made = PlannerOutput(body=found.body, parameters=found.parameters)
    return [Alternative(name=method.name, made=made, planner=method.name)]


def _of_the_catalogue(
    problem: Problem,
    times: KnownTimes,
    best: Mapping[int, float],
    limits: Mapping[int, float],
    budget: int,
    untried: dict[str, None],
    *,
    relaying: bool,
    keep: Callable[[Forest | Schedule], bool] | None = None,
    near: float = 1.0,
) -> list[Alternative]:
    """The algorithm of the catalogue that is fastest at each size, where one beats the best so far, and some near it.

    An algorithm is passed over where its busiest link alone takes longer than the best so far, and the search ends
    where nothing can be faster, or once so many transfers were looked at.

    Args:
        best: Least time so far at each size.
        limits: A time at each size that is good enough; those without are looked at on the way.
        untried: Gets the algorithms that were not looked at as too many transfers were.
        relaying: Where an algorithm needs it, GPUs may pass on what is not theirs.
        keep: Whether a schedule will do, with its ranks as they are numbered.
        near: What takes so many times the best, with few transfers in steps, may be the fastest in another order.
    """
    plain, known, model = bound_of(problem), dict(best), times.model
    taken: dict[int, Alternative] = {}
    close: list[tuple[float, int, Alternative]] = []
    seen: set[object] = set()
    ranks = problem.topology.num_ranks
    expected = ranks if problem.collective.rooted else ranks**2
    own = optimal_planner(problem.collective)
    variants = candidates(problem, order="both" if keep is None else "rank") if budget else []
    for variant, likely in most_promising_first(problem, variants, model, list(known)):
        if variant.algorithm == own:
            continue
        if all(known[size] <= limit for size, limit in limits.items()):
            break
        if budget < max(expected, likely.transfers) or is_far(likely, known):
            untried[variant.algorithm] = None
            continue
        bodies = _bodies(problem, variant, plain, relaying=relaying)
        if bodies is None:
            continue
        body = bodies.body(1)
        if isinstance(body, Schedule):
            budget -= body.num_transfers
        most_rows = inf if ranks <= MANY_RANKS else max(_MOST_ROWS, num_rows(body))
        alike = _alike(bodies)
        if alike in seen:
            continue
        seen.add(alike)
        if keep is not None and not keep(body):
            continue
        for size in known:
            is_near = near > 1 and size in limits and bodies.candidate.doubled is None and is_short(body)
            below_us = known[size] * (near if is_near else 1.0)
            if known[size] <= limits.get(size, 0.0) or _least_busy_us(bodies, size, model) >= below_us:
                continue
            parameters, time_us = fastest_value(
                bodies, size, model, below_us=below_us, most_rows=most_rows, times=times
            )
            budget -= bodies.transfers if ranks > MANY_RANKS else 0
            if time_us < known[size] * (1 - 1e-9):
                known[size], taken[size] = time_us, _alternative(bodies, parameters)
            elif is_near:
                hoped_us = min(time_us, in_pieces_us(body, size, times, below_us, known[size]))
                if hoped_us < below_us * (1 - 1e-9):
                    close.append((hoped_us, len(close), _alternative(bodies, parameters)))
    found = [*taken.values(), *(each for _, _, each in sorted(close)[:_MOST_NEAR])]
    return list({id(each): each for each in found}.values())


def _alike(bodies: Bodies) -> object:
    """What candidates have in common that carry out the same transfers, with one and with two segments.

    Some orders and layouts come to the same on a topology. Algorithms whose segments are doubled are compared with
    themselves only, unless they have none there.
    """
    doubled = bodies.candidate.doubled
    digests = []
    for value in (1,) if doubled is None else (1, 2):
        try:
            body = bodies.body(value)
        except InputError:
            return bodies
        if not isinstance(body, Schedule):
            return bodies
        digest = sha256()
        for name in _CARRIED:
            column = np.ascontiguousarray(getattr(body, name))
            digest.update(f"{name} {column.dtype.str} {column.shape}".encode() + column.tobytes())
        digests.append(digest.digest())
    same = len(set(digests)) == 1
    return None if same else bodies.candidate.algorithm, *digests[: 1 if same else None]


_CARRIED = (
    *("slot_weight", "chunk_slot", "chunk_share", "src", "dst", "chunk", "op", "step"),
    *("path", "path_start", "path_nodes", "after_start", "after"),
)
"""Columns of a schedule that say what is carried out."""


def _bodies(problem: Problem, variant: AlgorithmVariant, plain: Bound, *, relaying: bool) -> Bodies | None:
    """Schedules of a candidate, with GPUs that relay where it needs them and they may; None where it does not apply."""
    for each in (variant, replace(variant, relay_gpus=True))[: 1 + relaying]:
        bodies = Bodies(problem, each, plain)
        try:
            bodies.body(1)
        except UnreachableError:
            continue
        except InputError:
            return None
        return bodies
    return None


def _alternative(bodies: Bodies, parameters: Mapping[str, Any]) -> Alternative:
    variant = bodies.candidate
    made = from_catalogue(
        bodies.problem, variant.algorithm, parameters, order=variant.order, relay_gpus=variant.relay_gpus
    )
    words = ", ".join(f"{name}={value}" for name, value in parameters.items())
    return Alternative(
        name=f"{variant.algorithm} ({words})" if words else variant.algorithm,
        made=made,
        planner=variant.algorithm,
    )


def _least_busy_us(bodies: Bodies, size_bytes: int, model: Model) -> float:
    """Time for which the busiest link carries data, in the number of segments where that is least.

    A pipeline fills and drains with segments, so what a link carries with S of them is about ``a + b / S``.
    """
    one = _busy_us(bodies.body(1), size_bytes, model)
    if bodies.candidate.doubled is None:
        return one
    try:
        two = _busy_us(bodies.body(2), size_bytes, model)
    except InputError:
        return one
    return min(one, two, 2 * two - one)


def _busy_us(body: Forest | Schedule, size_bytes: int, model: Model) -> float:
    """Time for which the busiest link carries the data of a message."""
    messages = messages_of(body, size_bytes)
    topology, routes = messages.topology, messages.routes
    by_route = np.bincount(messages.route, weights=messages.num_bytes, minlength=len(routes.src))
    load = np.bincount(
        routes.links, weights=np.repeat(by_route, routes.num_links), minlength=topology.num_links
    )
    busy = float((load * topology.denominator / topology.capacity).max(initial=0.0)) / 1000
    return without_bursts(busy, model, topology)
