"""One way to judge a planned forest, for all tests of planners: verify it, count it, and compare the two.

The verifier of the package and the count of the tests share no code; a plan passes only if both accept it and
name the same time per shard.
"""

from __future__ import annotations

from fractions import Fraction

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from reference.counting import count_forest
from reference.network import describe, network_of, supply_of

PHASES = {
    Collective.ALL_GATHER: {Phase.BROADCAST},
    Collective.BROADCAST: {Phase.BROADCAST},
    Collective.REDUCE_SCATTER: {Phase.REDUCE},
    Collective.REDUCE: {Phase.REDUCE},
    Collective.ALL_REDUCE: {Phase.BROADCAST, Phase.REDUCE},
}


def judged_inv_rate(problem: Problem, forest: Forest) -> Fraction:
    """Time per shard of a forest that implements ``problem``.

    Raises:
        AssertionError: If it does not, or the verifier disagrees with the count.
    """
    assert forest.topology is problem.topology or forest.topology.sha256 == problem.topology.sha256
    assert forest.collective is problem.collective
    counted = count_forest(forest)
    if problem.topology.num_ranks > 1:
        assert set(counted.share) == PHASES[problem.collective], describe(problem)
    if problem.collective is Collective.ALL_REDUCE:
        phases = [counted.share.get(phase) for phase in Phase]
        assert phases[0] == phases[1], f"shares are reduced elsewhere than spread from: {describe(problem)}"
    else:
        supply = supply_of(problem)
        expected = {v: Fraction(w, sum(supply.values())) for v, w in supply.items() if w}
        for share in counted.share.values():
            assert share == expected, describe(problem)
    inv_rate = counted.time_per_total(network_of(problem.topology)) * problem.shards
    best = bound(problem)
    report = verify(Plan(problem=problem, forest=forest, inv_rate=inv_rate, bound=best))
    assert report.ok, f"{report.failures}: {describe(problem)}"
    assert report.inv_rate == inv_rate, describe(problem)
    if problem.collective is not Collective.ALL_REDUCE:
        proved = best.inv_rate if best.proof is None else best.proof.inv_rate
        assert report.proved_inv_rate == proved, describe(problem)
        assert report.optimal == (inv_rate == proved), describe(problem)
    too_fast = verify(Plan(problem=problem, forest=forest, inv_rate=inv_rate * Fraction(999, 1000)))
    assert too_fast.ok == (inv_rate == 0), f"a claim that is too fast passes: {describe(problem)}"
    return inv_rate
