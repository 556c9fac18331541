"""Verify a plan against its problem and its own claims.

Nothing here knows how plans or bounds are made. Forests are checked in
:mod:`~coppice.schedule.verification.forest`, schedules in :mod:`~coppice.schedule.verification.transfers`; what
remains is to compare claims with counts.

A bound is proved from its cut by counting, so that nobody has to believe how it was found. Let S be the sending
side of a cut and out(S) the capacity of the links that leave it. Everything that ranks outside need and only ranks
inside have must leave through out(S), so a collective cannot take less time per shard than

* all-gather: the weight of the ranks in S over out(S), if some rank is outside;
* broadcast: 1 / out(S), if the root is in S and some rank is outside;
* reduce-scatter: the weight of the ranks outside S over out(S), if some rank is in S (their sums miss it);
* reduce: 1 / out(S), if the root is outside S and some rank is in S;
* all-reduce: 1 / out(S), if there are ranks on both sides;
* all-to-all: the demands from ranks in S to ranks outside over out(S);
* gather: the ranks in S over out(S), if the root is outside;
* scatter: the ranks outside S over out(S), if the root is in S.

A barrier moves nothing.

Switches may copy or add as they like: this holds all the same.

Where one cut is not enough, a plan brings a witness of more (:mod:`coppice.schedule.verification.proof`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coppice.arguments import checked
from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, LinkLengths, WholeTrees
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.schedule.files.plan_file import plan_of
from coppice.schedule.files.set_file import PlanSet, plan_set_of
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import exact_total
from coppice.schedule.plan import Plan
from coppice.schedule.verification.forest import root_weights, verify_forest
from coppice.schedule.verification.plan_set import SetReport, TimeOf, set_report
from coppice.schedule.verification.proof import (
    ProvedBound,
    check_whole_trees,
    prove_by_cuts,
    prove_by_lengths,
)
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.sums import sum_order
from coppice.schedule.verification.transfers import verify_schedule
from coppice.text import plural

_OTHER_CLASS = (
    "its bound on whole trees is for forests whose switches neither copy nor add, "
    "and says nothing about this one"
)


def cut_inv_rate(problem: Problem, cut: Sequence[int]) -> Fraction | None:
    """Time per shard that one cut proves necessary.

    Args:
        cut: Node ids of the sending side S.

    Returns:
        The proved time per shard, 1 / (GB/s); 0 if the cut separates nothing; None if nothing can cross it
        although something must (the collective is impossible).

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25))])
        >>> cut_inv_rate(Problem(topology=pair, collective=Collective.ALL_GATHER), [0])
        Fraction(1, 25)
    """
    topology = problem.topology
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[list(cut)] = True
    leaving = inside[topology.src] & ~inside[topology.dst]
    out = Fraction(exact_total(topology.capacity[leaving]), topology.denominator)
    needed = _needed(problem, inside[topology.rank_nodes].tolist())
    if not needed:
        return Fraction(0)
    return needed / out if out else None


def _needed(problem: Problem, inside: list[bool]) -> int:
    """Shards that must leave, given which ranks are in S."""
    if all(inside) or not any(inside):
        return 0
    ranks = len(inside)
    weights = problem.weights or (1,) * ranks
    match problem.collective:
        case Collective.ALL_GATHER:
            return sum(weight for weight, within in zip(weights, inside, strict=True) if within)
        case Collective.REDUCE_SCATTER:
            return sum(weight for weight, within in zip(weights, inside, strict=True) if not within)
        case Collective.BROADCAST:
            return int(problem.root is not None and inside[problem.root])
        case Collective.REDUCE:
            return int(problem.root is not None and not inside[problem.root])
        case Collective.ALL_REDUCE:
            return 1
        case Collective.GATHER:
            return 0 if problem.root is None or inside[problem.root] else sum(inside)
        case Collective.SCATTER:
            return 0 if problem.root is None or not inside[problem.root] else ranks - sum(inside)
        case Collective.BARRIER:
            return 0
        case Collective.ALL_TO_ALL:
            if problem.demands is None:
                return sum(inside) * (ranks - sum(inside))
            return sum(
                size
                for row, within in zip(problem.demands, inside, strict=True)
                if within
                for size, target_within in zip(row, inside, strict=True)
                if not target_within
            )


@checked
def verify(plan: object) -> Report:
    """Verify every claim of a plan: its semantics, its time, and its bound.

    A bound that neither its cut nor its witness proves is a failure. Only for all-reduce and all-to-all, whose optimum
    may need more than one cut, the witness may be missing: ``bound_proved`` is then None. Paths may lead through
    other ranks only where the plan's parameters say so: ``"relay_gpus": true``.

    Args:
        plan: The plan; it may come from anywhere. What holds one stands for it, and so does the name of a plan file. A
            set of plans, or its folder, stands for all its plans, and for what it claims of times.

    Returns:
        The report; failures are collected, not raised. That of a set is a :class:`SetReport`.

    Raises:
        InputError: If there is no plan in ``plan``.

    Examples:
        >>> from coppice.schedule.files.plan_file import read_plan
        >>> verify(read_plan("plan.json")).ok                                           # doctest: +SKIP
        True
    """
    plans = plan_set_of(plan)
    return verify_plan(plan_of(plan), sums=True) if plans is None else verify_plan_set(plans)


def verify_plan_set(plans: PlanSet, *, time_us: TimeOf | None = None) -> SetReport:
    """Verify each plan of a set, and its claims about times.

    Args:
        plans: The set.
        time_us: Simulates a plan under the model of the set, in microseconds; None leaves the times of plans as they
            are claimed, and only holds them against each other.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> from coppice.schedule.files.set_file import PlanRange
        >>> made = plan("ring", "all_gather", ring=False).plan
        >>> one = PlanRange(first_bytes=0, last_bytes=None, plan=made, sizes=())
        >>> verify_plan_set(PlanSet(ranges=(one,), least_gain=0.03, model={})).checked["plans"]
        1
    """
    return set_report(plans, [verify_plan(plan, sums=True) for plan in plans.plans], time_us)


def verify_plan(plan: Plan, *, sums: bool = False) -> Report:
    """The report about a plan, as :func:`verify` makes it.

    Args:
        plan: The plan.
        sums: Find out in which order a plan that verifies adds, too.
    """
    report = _verify_claims(plan)
    return replace(report, sums=sum_order(plan.body)) if sums and report.ok else report


def _verify_claims(plan: Plan) -> Report:
    problem = plan.problem
    try:
        check_problem(problem)
    except InputError as error:
        return Report(ok=False, failures=(str(error),))
    if plan.forest is not None:
        report = verify_forest(plan.forest, root=problem.root, weights=problem.weights, claimed=plan.inv_rate)
    elif plan.schedule is not None:
        report = verify_schedule(
            plan.schedule,
            weights=problem.weights,
            demands=problem.demands,
            claimed=plan.inv_rate,
            relay_gpus=plan.parameters.get("relay_gpus") is True,
        )
    else:
        return Report(ok=False, failures=("the plan holds neither a forest nor a schedule.",))
    return report if plan.bound is None else _with_bound(report, plan, plan.bound)


def _with_bound(report: Report, plan: Plan, bound: Bound) -> Report:
    """The report with what cut and witness prove."""
    failures = list(report.failures)
    proved = _proved(plan, bound, failures)
    is_proved: bool | None = proved is not None and proved.inv_rate >= bound.inv_rate
    if not is_proved and bound.proof is None:
        if plan.problem.collective in (Collective.ALL_REDUCE, Collective.ALL_TO_ALL):
            is_proved = None
        else:
            nothing = "nothing, as no link leaves it" if bound.cut else "nothing, as it is empty"
            shown = nothing if proved is None else f"{proved.inv_rate} per shard"
            failures.append(
                f"the bottleneck cut proves {shown}, less than the claimed bound {bound.inv_rate}."
            )
    elif not is_proved and not failures:
        best = 0 if proved is None else proved.inv_rate
        failures.append(f"the witness proves {best} per shard, less than the claimed bound {bound.inv_rate}.")
    applies = proved is None or proved.for_schedules or plan.forest is not None
    if report.inv_rate is not None and report.ok and applies:
        least = max(bound.inv_rate, proved.inv_rate if proved else Fraction(0))
        if report.inv_rate < least:
            failures.append(
                f"the plan takes {report.inv_rate} per shard, less than the claimed bound {least}: "
                "the bound is wrong."
            )
    _check_reached(bound, proved, failures)
    report = _with_whole_trees(report, plan, bound, failures)
    if report.fewer_trees_inv_rate is None and plan.forest is not None:
        asked = plan.parameters.get("tolerance") is not None
        report = replace(report, fewest_open=asked and report.whole_trees != 1)
    return replace(
        report,
        ok=not failures,
        failures=tuple(failures),
        bound_proved=is_proved,
        proved_inv_rate=None if proved is None else proved.inv_rate,
        slower="" if proved is None else proved.slower,
        optimal=bool(not failures and is_proved and proved and report.inv_rate == proved.inv_rate),
    )


@dataclass(frozen=True, kw_only=True)
class _Proved:
    """The best that cut and witness prove: time per shard, and for what; and what the cut proves for everything."""

    inv_rate: Fraction
    for_schedules: bool
    slower: str
    by_cut: Fraction = Fraction(0)


def _proved(plan: Plan, bound: Bound, failures: list[str]) -> _Proved | None:
    """What is proved; a witness that is none, or proves less than it says, is a failure."""
    found: list[_Proved] = []
    by_cut: Fraction | None = None
    if bound.cut or bound.inv_rate == 0:
        by_cut = cut_inv_rate(plan.problem, bound.cut)
        if by_cut is not None:
            found.append(_Proved(inv_rate=by_cut, for_schedules=True, slower="schedule", by_cut=by_cut))
    if bound.proof is not None:
        helped = plan.forest is not None and plan.forest.branches_at_switches
        try:
            by_proof = _prove(plan.problem, bound, helped=helped)
        except CheckError as error:
            failures.append(f"the witness of the bound does not hold: {error}")
            return max(found, key=lambda each: each.inv_rate, default=None)
        says = bound.proof.inv_rate
        if by_proof.inv_rate is None or by_proof.inv_rate < says:
            shown = (
                "nothing, as no link is left"
                if by_proof.inv_rate is None
                else f"{by_proof.inv_rate} per shard"
            )
            failures.append(f"the witness of the bound proves {shown}, less than the {says} that it says.")
        else:
            slower = "schedule" if by_proof.for_schedules else "pair of reduce trees and broadcast trees"
            if not helped and not _holds_with_help(plan.problem, bound):
                slower += " without copying and adding in switches"
            found.append(
                _Proved(
                    inv_rate=by_proof.inv_rate,
                    for_schedules=by_proof.for_schedules,
                    slower=slower,
                    by_cut=by_cut or Fraction(0),
                )
            )
    return max(found, key=lambda each: each.inv_rate, default=None)


def _check_reached(bound: Bound, proved: _Proved | None, failures: list[str]) -> None:
    """Nothing that the file says is reached takes less time than any schedule can."""
    least = proved.by_cut if proved is not None else Fraction(0)
    said = {"attainable": bound.attainable, **bound.alternatives}
    for name, inv_rate in said.items():
        if inv_rate is not None and inv_rate < least:
            failures.append(
                f"the bound says that {name} takes {inv_rate} per shard, less than the {least} that its cut proves."
            )
    if bound.attainable is not None and bound.attainable < bound.inv_rate:
        failures.append(
            f"the bound says that {bound.attainable} per shard is attainable, less than itself ({bound.inv_rate})."
        )


def _prove(problem: Problem, bound: Bound, *, helped: bool) -> ProvedBound:
    if isinstance(bound.proof, LinkLengths):
        return prove_by_lengths(problem, bound.proof)
    if bound.proof is None:
        raise CheckError("there is no witness.")
    return prove_by_cuts(problem, bound.proof, helped=helped)


def _holds_with_help(problem: Problem, bound: Bound) -> bool:
    """The witness says the same about plans in which switches copy and add, as far as they can."""
    topology = problem.topology
    if not (topology.multicast | topology.aggregate)[topology.rank < 0].any():
        return True
    try:
        found = _prove(problem, bound, helped=True).inv_rate
    except CheckError:
        return False
    return bound.proof is not None and found is not None and found >= bound.proof.inv_rate


def _with_whole_trees(report: Report, plan: Plan, bound: Bound, failures: list[str]) -> Report:
    """The report with what is proved about forests with the plan's number of trees, and with fewer.

    That holds for forests in which no switch copies or adds: of one in which some does it says nothing.
    """
    forest = plan.forest
    problems = plan.problem.phases
    proofs = [bound.whole_trees] if bound.whole_trees is not None else list(bound.phase_trees)
    fewer = bound.fewer_trees
    if not report.ok or not (proofs or fewer):
        return report
    alone = bound.whole_trees is not None
    if len(proofs) != len(problems) or (alone and bound.phase_trees) or (fewer and not alone):
        failures.append(f"expected bounds on whole trees for {plural(len(problems), 'phase')}, found others.")
        return report
    for problem, proof in zip(problems, proofs, strict=True):
        _check_whole_trees(problem, proof, failures)
    for proof in fewer:
        _check_whole_trees(plan.problem, proof, failures)
    if failures or forest is None:
        return report
    if forest.branches_at_switches:
        return replace(report, beside=_OTHER_CLASS)
    if not all(
        _has_whole_trees(forest, problem, proof) for problem, proof in zip(problems, proofs, strict=True)
    ):
        return report
    shards = (
        plan.problem.topology.num_ranks if len(proofs) > 1 else 1
    )  # of a phase, in a shard of an all-reduce
    least = sum((proof.inv_rate for proof in proofs), Fraction(0)) / shards
    if len(proofs) == 1 and report.inv_rate is not None and report.inv_rate < least:
        failures.append(
            f"the plan takes {report.inv_rate} per shard, less than the bound {least} "
            f"with {proofs[0].trees} trees: the bound is wrong."
        )
        return report
    all_fewer = [proof.trees for proof in fewer] == list(range(1, proofs[0].trees))
    return replace(
        report,
        whole_trees=max(proof.trees for proof in proofs),
        whole_trees_inv_rate=least,
        whole_phases=len(proofs),
        fewer_trees_inv_rate=min(proof.inv_rate for proof in fewer) if fewer and all_fewer else None,
    )


def _check_whole_trees(problem: Problem, proof: WholeTrees, failures: list[str]) -> None:
    try:
        check_whole_trees(problem, proof)
    except CheckError as error:
        failures.append(f"the witness of the bound with {proof.trees} trees does not hold: {error}")


def _has_whole_trees(forest: Forest, problem: Problem, proof: WholeTrees) -> bool:
    """The forest's trees of this phase are whole ones of so many per unit of weight."""
    chosen = forest.tree_phase == (Phase.REDUCE if problem.collective.reduces else Phase.BROADCAST)
    roots = root_weights(forest, chosen)
    total, shards = sum(roots), problem.shards if problem.root is None else 1
    if problem.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and not problem.weights:
        at_ranks = {roots[node] for node in problem.topology.rank_nodes.tolist()}
        if len(at_ranks) > 1:
            return False
    weights: set[int] = set(forest.tree_weight[chosen].tolist())
    return bool(total) and not any(w * proof.trees * shards % total for w in weights)
