"""The front door of verification: a plan, checked against its problem and its own claims.

Nothing here knows how plans or bounds are made. Forests are checked in
:mod:`~coppice.schedule.verification.forest`, schedules in :mod:`~coppice.schedule.verification.transfers`; what
remains is to compare claims with counts.
"""

from __future__ import annotations

from dataclasses import replace

from coppice.arguments import checked
from coppice.bounds.network import check_problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.files.plan_file import plan_of
from coppice.schedule.plan import Plan
from coppice.schedule.verification.certificate import cut_inv_rate
from coppice.schedule.verification.forest import verify_forest
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.transfers import verify_schedule

__all__ = ["Report", "verify", "verify_forest", "verify_schedule"]


@checked
def verify(plan: object) -> Report:
    """Check everything that a plan claims: what it does, how long it takes, and its bound.

    A bound that its own cut does not prove is a failure for collectives that one cut decides; for all-reduce
    and all-to-all, whose optimum may need more than one cut, ``bound_proved`` is then None. Paths may lead through
    other ranks only where the plan's parameters say so: ``"relay_gpus": true``.

    Args:
        plan: The plan; it may come from anywhere. What holds one stands for it, and so does the name of a plan file.

    Returns:
        The report; failures are collected, not raised.

    Raises:
        InputError: If there is no plan in ``plan``.

    Examples:
        >>> from coppice.schedule.files.plan_file import read_plan
        >>> verify(read_plan("plan.json")).ok                                           # doctest: +SKIP
        True
    """
    plan = plan_of(plan)
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
    failures = list(report.failures)
    proved: bool | None = None
    if bound.cut or bound.inv_rate == 0:
        proof = cut_inv_rate(plan.problem, bound.cut)
        proved = proof is not None and proof >= bound.inv_rate
        if not proved and plan.problem.collective in (Collective.ALL_REDUCE, Collective.ALL_TO_ALL):
            proved = None
        elif not proved:
            shown = "nothing, as no link leaves it" if proof is None else f"{proof} per shard"
            failures.append(
                f"the bottleneck cut proves {shown}, less than the claimed bound {bound.inv_rate}."
            )
    if report.inv_rate is not None and report.inv_rate < bound.inv_rate and report.ok:
        failures.append(
            f"the plan takes {report.inv_rate} per shard, less than the claimed bound {bound.inv_rate}: "
            "the bound is wrong."
        )
    reached = report.inv_rate == bound.inv_rate
    return replace(
        report,
        ok=not failures,
        failures=tuple(failures),
        bound_proved=proved,
        optimal=bool(not failures and proved and reached),
    )
