"""Repair a plan after a fault: keep unaffected trees, and reroute the others.

Everything is held under one time per shard, which sets how much each link may carry; the least time for which all
trees find a place is searched from what cuts around the fault allow up to what the plan takes if no tree is moved.
That is quick, as only what crosses lost, slow or crowded links is looked at, and no optimum: whether it is one, a
cut may show, or the bound of the network with its fault, which takes longer than the repair.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bandwidths, Bound, load_rates
from coppice.display import Shown
from coppice.errors import InputError, UnreachableError
from coppice.planners.forest.damage import placed, without_unused_paths
from coppice.planners.forest.moving import MovableForest, MovedForest
from coppice.planners.forest.reweighting import without_idle
from coppice.schedule.columns import require_well_formed
from coppice.schedule.files.plan_file import plan_of
from coppice.schedule.forest import Forest, expanded
from coppice.schedule.loads import LinkLoads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import tree_heights
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import cut_inv_rate, verify_plan
from coppice.topology.load import load
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import RepairedPlanJson

TALLER = 2
"""Trees may be this many times as high as those of the whole network while others reach the same time."""

FINEST = 60
"""Most parts that a unit of weight is cut into, so that trees can be split where that fills links exactly."""

SHARES = tuple(Fraction(each) for each in ("0", "1/250", "1/60", "1/16", "1/4", "1", "3", "99", "1000000000"))
"""By how much more than the least time is tried, one after the other."""

HALVINGS = 4
"""Times between the last that failed and the first that did not which are tried."""

CLOSE = Fraction(1, 200)
"""Between times that are nearer than this share of the least none is tried."""

_LARGEST = 2**56
"""Weight of all trees times nodes up to which weights leave room for splitting trees."""

OPTIMUM_RANKS = 256
"""Up to this many ranks the optimum is computed by default."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RepairedResult(Shown, Bandwidths):
    """A repaired and verified plan, with the number of trees kept, moved and lost."""

    plan: Plan  # The plan on the network with the fault
    report: Report  # What the verifier says of it
    before: Fraction  # Time per shard that the given plan takes on its own network
    # Time per shard with all trees as they were; None where a lost link or GPU breaks some
    unmoved: Fraction | None
    kept: int  # Trees that are as they were
    rerouted: int  # Trees in which every rank has its old parent, some over other switches
    rehung: int  # Trees in which a rank has another parent, and parts of trees that were split off
    dropped: int  # Trees of ranks that left
    cpu_seconds: float  # Processor time of the repair, without reading, verifying and the optimum

    @property
    def problem(self) -> Problem:
        """The problem on the faulty network."""
        return self.plan.problem

    @property
    def inv_rate(self) -> Fraction:
        """Time per shard of the repaired plan, counted by the verifier."""
        return self.plan.inv_rate if self.report.inv_rate is None else self.report.inv_rate

    @property
    def optimum(self) -> Bound | None:
        """Optimum on the faulty network; None where it was not computed and no cut shows it."""
        return self.plan.bound

    @property
    def loss(self) -> Fraction | None:
        """Relative loss of the repaired plan against the optimum; None where that is unknown."""
        return None if self.optimum is None else self.loss_against(self.optimum)

    def __repr__(self) -> str:
        loss = self.loss
        how = "optimum not computed"
        if loss is not None:
            how = f"{100 * float(loss):.3g}% below the optimum" if loss else "optimal"
        trees = f"{self.kept} trees kept, {self.rerouted} rerouted, {self.rehung} made anew"
        return (
            f"<{self.problem.collective} on {self.problem.topology.name}, repaired: {trees}; {how}, verified>"
        )

    def record(self) -> RepairedPlanJson:
        """The figures as JSON values: fractions as text."""
        old, loss = _rates(self.before, self.problem), self.loss
        return {
            **self.problem.record(),
            "trees_kept": self.kept,
            "trees_rerouted": self.rerouted,
            "trees_made_anew": self.rehung,
            "trees_dropped": self.dropped,
            "before_ns_per_byte": str(self.before),
            "inv_rate_before": str(self.before),
            "unmoved_ns_per_byte": None if self.unmoved is None else str(self.unmoved),
            "inv_rate_with_trees_unmoved": None if self.unmoved is None else str(self.unmoved),
            **load_rates(self.problem, self.inv_rate),
            "planned_inv_rate": str(self.inv_rate),
            "planned_algbw_gb_per_s": float(self.algbw_gb_per_s),
            "planned_algbw_exact": str(self.algbw_gb_per_s),
            "planned_busbw_gb_per_s": float(self.busbw_gb_per_s),
            "rate_of_before": None if not old else float(self.before / self.inv_rate),
            "optimum_computed": self.optimum is not None,
            "optimum_ns_per_byte": None if self.optimum is None else str(self.optimum.inv_rate),
            "optimum_inv_rate": None if self.optimum is None else str(self.optimum.inv_rate),
            "loss": None if loss is None else str(loss),
            "optimal": self.report.optimal,
            "verified": self.report.ok,
            "repair_cpu_seconds": self.cpu_seconds,
        }


def _rates(inv_rate: Fraction, problem: Problem) -> Fraction:
    return problem.shards / inv_rate if inv_rate else Fraction(0)


@checked
def repair(plan: Any, topology: Any, *, optimum: bool | None = None) -> RepairedResult:
    """Repair a plan after a fault of its network, and verify it; unaffected trees stay as they are.

    Args:
        plan: The plan of the whole network, a result that holds one, or the name of a plan file; a forest.
        topology: The network as it is now, or what :func:`coppice.load` takes: links may be slower, faster or gone,
            GPUs, NICs and switches may be gone. Nodes keep their names; ranks may have closed up.
        optimum: Compute the optimum of the network as it is now, too, which takes longer than the repair; None does
            so for up to 256 ranks.

    Raises:
        InputError: If the plan is no forest of ranks, ranks are new, or the root left.
        UnreachableError: If some rank cannot be reached any more.
        CheckError: If the repaired plan does not verify, which would be a defect here.

    Examples:
        >>> import coppice
        >>> from coppice.topology.operations import set_link_rate
        >>> whole = coppice.load("dgx-a100", boxes=2)
        >>> slow = set_link_rate(whole, "box0/gpu3", "box0/nvswitch", "50%")
        >>> mended = repair(coppice.plan(whole, "all_gather"), slow)
        >>> mended.report.ok, mended.inv_rate <= mended.unmoved
        (True, True)
    """
    given, now = plan_of(plan), load(topology)
    start = time.process_time()
    repaired, figures = repaired_plan(given, now)
    seconds = time.process_time() - start
    if optimum is None:
        optimum = now.num_ranks <= OPTIMUM_RANKS
    if optimum and repaired.bound is None:
        repaired = replace(repaired, bound=bound_of(repaired.problem))
    report = verify_plan(repaired)
    report.require_ok()
    return RepairedResult(plan=repaired, report=report, before=given.inv_rate, cpu_seconds=seconds, **figures)


def repaired_plan(given: Plan, now: Topology, *, best: Fraction | None = None) -> tuple[Plan, dict[str, Any]]:
    """Repair a plan without verifying it; count the trees kept, moved and lost.

    Args:
        best: The least time per shard that trees can reach, where that is known; else cuts around the fault say what to
            try for.
    """
    forest = given.forest
    if forest is None:
        found_by = given.planner or "an unknown planner"
        raise InputError(f"expected a plan of trees to repair, found transfers by {found_by}: plan anew.")
    if forest.branches_at_switches:
        raise InputError(
            "expected trees that branch at ranks, found switches that copy or add: plan anew (`in_network=True`)."
        )
    require_well_formed(forest)
    where, problem = fault_of(given, now)
    left, dropped = placed(expanded(forest), now, where)
    units = left.total_weight
    if not units:
        raise InputError(
            "expected trees with roots that are left, found that all roots of the plan are gone: plan anew."
        )
    shard = Fraction(units, given.problem.collective.shards(now.num_ranks, problem.weights))
    damaged = MovableForest(left)
    loads = LinkLoads(topology=now, load=tuple(damaged.load), shard=shard)
    unmoved = None if len(damaged.broken) else loads.inv_rate
    least, cut = _least(problem, given, where, Fraction(forest.total_weight, units))
    if best is not None:
        least = best
    found: MovedForest | None = None
    if unmoved is None or unmoved > least:
        tallest = TALLER * int(tree_heights(forest).max(initial=1))
        found = _search(damaged, shard, least, unmoved, tallest)
    touched = 0 if found is None else found.rehung
    rerouted = 0 if found is None else found.rerouted
    inv_rate = loads.inv_rate if found is None else _reached(found, shard)
    result = Plan(
        problem=problem,
        inv_rate=inv_rate,
        forest=without_unused_paths(left) if found is None else found.forest,
        bound=_proved(problem, cut, inv_rate),
        planner="forest",
        parameters={**given.parameters, "repaired": True},
    )
    figures = {
        "unmoved": unmoved,
        "kept": left.num_trees - touched - rerouted,
        "rerouted": rerouted,
        "rehung": touched + (0 if found is None else found.split),
        "dropped": dropped,
    }
    return result, figures


def repaired_at_rates(
    given: Plan, now: Topology, *, best: Fraction, root_rates: dict[int, Fraction]
) -> Plan | None:
    """The trees at other weights of their roots, moved so that they take ``best``; None where that is not found.

    The optimum of an all-reduce after a fault often has other shares of the data at the roots than the one before.
    Trees of one root keep their shares of it.

    Args:
        given: A plan of trees of both phases.
        best: Time per shard to reach.
        root_rates: Relative share of the data that is reduced at each rank of the network as it is now; 0 if left out.
    """
    where, problem = fault_of(given, now)
    if given.forest is None:
        return None
    left, _ = placed(expanded(given.forest), now, where)
    weight = weights_at_rates(left, {int(now.rank_nodes[rank]): rate for rank, rate in root_rates.items()})
    if weight is None:
        return None
    left = without_idle(replace(left, tree_weight=np.array(weight, dtype=np.int64)), weight)
    shard = Fraction(left.total_weight, problem.collective.shards(now.num_ranks, None))
    tallest = TALLER * int(tree_heights(given.forest).max(initial=1))
    found = _attempt(MovableForest(left), shard, best, best, tallest)
    if found is None:
        return None
    return Plan(
        problem=problem,
        inv_rate=_reached(found, shard),
        forest=found.forest,
        planner="forest",
        parameters={**given.parameters, "repaired": True},
    )


def unmoved_inv_rate(given: Plan, now: Topology) -> Fraction | None:
    """Time per shard with all trees as they were; None where a lost link or GPU breaks some."""
    if given.forest is None:
        return None
    where, problem = fault_of(given, now)
    left, _ = placed(expanded(given.forest), now, where)
    damaged = MovableForest(left)
    shard = Fraction(left.total_weight, problem.collective.shards(now.num_ranks, problem.weights))
    loads = LinkLoads(topology=now, load=tuple(damaged.load), shard=shard)
    return None if len(damaged.broken) else loads.inv_rate


def weights_at_rates(forest: Forest, rates: dict[int, Fraction]) -> list[int] | None:
    """Whole weights at which the trees of each root have its rate; None where one has none, or weights are too large.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> pair = plan("ring", "all_reduce", ring=False).plan.forest
        >>> sorted(set(weights_at_rates(expanded(pair), {int(v): Fraction(1) for v in pair.topology.rank_nodes})))
        [1]
    """
    total: dict[tuple[int, int], int] = {}
    rows = list(
        zip(forest.tree_phase.tolist(), forest.tree_root.tolist(), forest.tree_weight.tolist(), strict=True)
    )
    for phase, root, weight in rows:
        total[phase, root] = total.get((phase, root), 0) + weight
    phases = {phase for phase, _ in total}
    if any((phase, root) not in total for root, rate in rates.items() if rate for phase in phases):
        return None
    shares = [rates.get(root, Fraction(0)) * weight / total[phase, root] for phase, root, weight in rows]
    unit = lcm(*{share.denominator for share in shares})
    found = [int(share * unit) for share in shares]
    common = gcd(*found) or 1
    found = [weight // common for weight in found]
    return found if sum(found) * forest.topology.num_nodes < _LARGEST else None


def fault_of(given: Plan, now: Topology) -> tuple[NDArray[np.int32], Problem]:
    """Where each node of a plan is in the network as it is now (the number of nodes: gone), and its problem there."""
    where = _where(given.topology, now)
    return where, _problem(given.problem, now, where)


def _where(old: Topology, now: Topology) -> NDArray[np.int32]:
    """Node of the network as it is now for each node of the old one, the number of nodes where it is gone."""
    index = now.node_index
    where = np.array([index.get(name, now.num_nodes) for name in old.node_ids], dtype=np.int32)
    ranks = np.zeros(now.num_nodes + 1, dtype=np.bool_)
    ranks[where[old.rank_nodes]] = True
    new = [v for v in now.rank_nodes.tolist() if not ranks[v]]
    if new:
        raise InputError(
            f"expected the ranks of the plan, or fewer, found {now.node_ids[new[0]]!r}, which is none of them: "
            "a repair adds no ranks, plan anew."
        )
    if now.num_ranks < 2 <= old.num_ranks:
        raise InputError(
            f"expected at least two ranks that are left, found {now.num_ranks}: there is nothing to repair."
        )
    return where


def _problem(old: Problem, now: Topology, where: NDArray[np.int32]) -> Problem:
    """The collective among the ranks that are left."""
    node_of = where[old.topology.rank_nodes]
    ranks = np.append(now.rank, -1)[node_of].tolist()
    root = None if old.root is None else ranks[old.root]
    if root is not None and root < 0:
        name = old.topology.node_ids[old.topology.rank_nodes[old.root or 0]]
        raise InputError(
            f"the root of the {old.collective}, {name!r}, is not in the network any more: plan with another root."
        )
    was = {rank: before for before, rank in enumerate(ranks) if rank >= 0}
    kept = [was[rank] for rank in range(now.num_ranks)]
    weights = None if old.weights is None else tuple(old.weights[rank] for rank in kept)
    demands = None
    if old.demands is not None:
        demands = tuple(tuple(old.demands[src][dst] for dst in kept) for src in kept)
    return Problem(now, old.collective, root=root, weights=weights, demands=demands)


def _least(
    problem: Problem, given: Plan, where: NDArray[np.int32], heavier: Fraction
) -> tuple[Fraction, tuple[int, ...]]:
    """Time per shard to try for: the most that a cut around the fault proves, with the cut; no proof for two phases."""
    ranks = problem.topology.num_ranks if len(problem.phases) > 1 else 1
    best: tuple[Fraction, tuple[int, ...]] = (Fraction(0), ())
    for cut in _cuts(problem.topology, given, where):
        total = Fraction(0)
        for phase in problem.phases:
            least = cut_inv_rate(phase, cut)
            if least is None:
                nodes = ", ".join(problem.topology.node_ids[v] for v in cut[:4])
                raise UnreachableError(
                    f"no link leads out of {{{nodes}}} any more, so no {problem.collective} is possible there."
                )
            total += least / ranks
        if total > best[0]:
            best = (total, cut)
    if ranks == 1:
        return best
    # Of two phases, one after the other at each link, the slowest boxes say little: all must pass on what they get.
    return max(best[0], given.inv_rate * heavier), ()


def _cuts(now: Topology, given: Plan, where: NDArray[np.int32]) -> Iterable[tuple[int, ...]]:
    """Nodes of one side: narrowest ranks, ranks and boxes at links that changed, the old bottleneck; and all others."""
    old, size = given.topology, now.num_nodes
    rates = (
        {
            (a, b): Fraction(c, old.denominator)
            for a, b, c in zip(
                where[old.src].tolist(), where[old.dst].tolist(), old.capacity.tolist(), strict=True
            )
        }
        if old.denominator != now.denominator
        else dict(
            zip(
                zip(where[old.src].tolist(), where[old.dst].tolist(), strict=True),
                old.capacity.tolist(),
                strict=True,
            )
        )
    )
    scale = Fraction(1, now.denominator) if old.denominator != now.denominator else 1
    new = dict(zip(now.link_index, now.capacity.tolist(), strict=True))
    ends: set[int] = set()
    for link, rate in rates.items():
        if new.get(link, 0) * scale != rate:
            ends.update(link)
    ends.discard(size)
    everything = set(range(size))
    sets: dict[tuple[int, ...], None] = {}
    if given.bound is not None and given.bound.cut:
        sets[tuple(sorted({int(v) for v in where[list(given.bound.cut)]} - {size}))] = None
    for capacity in (now.capacity_in, now.capacity_out):
        sets[int(now.rank_nodes[np.argmin(capacity[now.rank_nodes])]),] = None
    hosts: set[int] = set()
    for v in sorted(ends):
        if now.rank[v] >= 0:
            sets[v,] = None
        if now.host[v] >= 0:
            hosts.add(int(now.host[v]))
    for host in sorted(hosts):
        sets[tuple(np.flatnonzero(now.host == host).tolist())] = None
    for inside in sets:
        yield inside
        yield tuple(sorted(everything.difference(inside)))


def _search(
    damaged: MovableForest, shard: Fraction, least: Fraction, unmoved: Fraction | None, tallest: int
) -> MovedForest | None:
    """The fastest of what was found; None where nothing beats the trees as they are."""
    best: MovedForest | None = None
    share, failed = Fraction(0), Fraction(-1)
    for each in SHARES:
        share = each
        wanted = least * (1 + share)
        if unmoved is not None and wanted >= unmoved:
            share = unmoved / least - 1
            break
        best = _attempt(damaged, shard, wanted, least, tallest)
        if best is not None:
            break
        failed = share
    if failed >= 0:
        for _ in range(HALVINGS):
            if share - failed <= CLOSE or (best is None and unmoved is None):
                break
            middle = (share + failed) / 2
            found = _attempt(damaged, shard, least * (1 + middle), least, tallest)
            if found is None:
                failed = middle
            else:
                best, share = found, middle
    if best is not None:
        return best
    if unmoved is not None:
        return None
    raise UnreachableError(
        "some rank cannot be reached from the others any more: leave it out (`coppice topology subset`)."
    )


def _attempt(
    damaged: MovableForest, shard: Fraction, inv_rate: Fraction, least: Fraction, tallest: int
) -> MovedForest | None:
    """Everything moved so that no link takes longer than ``inv_rate``, None where that was not found."""
    topology = damaged.forest.topology
    scale = _scale(topology, shard * least, damaged.forest)
    each = inv_rate * shard * scale / topology.denominator
    top, bottom = each.numerator, each.denominator
    limit = [capacity * top // bottom for capacity in topology.capacity.tolist()]
    # Low trees where they fit; only the least time is worth more attempts.
    ways = ((True, tallest), (False, tallest), (True, None), (False, None))
    for low, most in ways if inv_rate == least else ways[::2]:
        found = damaged.moved(scale, limit, low=low, tallest=most)
        if found is not None:
            return found
    return None


def _scale(topology: Topology, most: Fraction, forest: Forest) -> int:
    """Into how many parts weights are cut so that links can be filled exactly, as far as that stays small."""
    scale = 1
    for capacity in np.unique(topology.capacity).tolist():
        finer = lcm(scale, (most * Fraction(capacity, topology.denominator)).denominator)
        if finer <= FINEST:
            scale = finer
    return scale if scale * forest.total_weight < 2**62 else 1


def _reached(found: MovedForest, shard: Fraction) -> Fraction:
    """Time per shard of an attempt."""
    topology = found.forest.topology
    return LinkLoads(topology=topology, load=tuple(found.load), shard=shard * found.scale).inv_rate


def _proved(problem: Problem, cut: tuple[int, ...], inv_rate: Fraction) -> Bound | None:
    """The optimum, where a cut shows that the plan reaches it."""
    if not cut or cut_inv_rate(problem, cut) != inv_rate:
        return None
    return Bound(
        problem=problem,
        inv_rate=inv_rate,
        cut=cut,
        attainable=inv_rate,
        method="a cut that the repaired plan fills",
    )
