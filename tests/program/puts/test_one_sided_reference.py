"""The verifier of one-sided programs against an interpreter that runs plans by threads in random order."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.mscclpp.document import parse_document
from coppice.export.mscclpp.program import MscclppOptions, one_sided_for
from coppice.export.mscclpp.reader import program_of
from coppice.export.mscclpp.writer import mscclpp_json
from coppice.planners.planning import plan as make_plan
from coppice.program.dialects.puts.verify import OneSidedReport, verify_one_sided
from coppice.topology import Topology, subset
from coppice.topology.presets import preset
from reference.one_sided_mutants import mutant
from reference.one_sided_run import run_plan
from support.mscclpp_samples import SAMPLES, Plan, pipelined, text

SEEDS = 10
MUTANTS = 60


def judged(plan: Plan) -> OneSidedReport:
    return verify_one_sided(program_of(parse_document(text(plan), file="p.json")).program)


def exported(topology: Topology, collective: Collective, **form: Any) -> Callable[[], Plan]:
    def made() -> Plan:
        problem = Problem(topology=topology, collective=collective)
        body = make_plan(
            problem, trees=None if collective is Collective.ALL_TO_ALL else 1, ring=False
        ).plan.body
        found: Plan = json.loads(mscclpp_json(one_sided_for(body, MscclppOptions(**form))))
        return found

    return made


RING, STAR = preset("ring", gpus=3), preset("star", gpus=3)
BOXES = subset(preset("dgx-a100", boxes=2), [0, 1, 8, 9])
EXPORTED = {
    "all_gather, ring": exported(RING, Collective.ALL_GATHER),
    "all_gather, out of place": exported(STAR, Collective.ALL_GATHER, in_place=False),
    "all_gather, boxes": exported(BOXES, Collective.ALL_GATHER),
    "all_reduce, star": exported(STAR, Collective.ALL_REDUCE),
    "all_reduce, one thread block": exported(RING, Collective.ALL_REDUCE, blocks=1),
    "all_reduce, boxes": exported(BOXES, Collective.ALL_REDUCE, in_place=False),
    "reduce_scatter, boxes": exported(BOXES, Collective.REDUCE_SCATTER),
    "reduce_scatter, ring": exported(RING, Collective.REDUCE_SCATTER, in_place=False, instances=2),
    "all_to_all, boxes": exported(BOXES, Collective.ALL_TO_ALL),
    "all_to_all, ring": exported(RING, Collective.ALL_TO_ALL),
}
PLANS: dict[str, Callable[[], Plan]] = {**{make.__name__: make for make in SAMPLES}, **EXPORTED}


@pytest.mark.parametrize("name", PLANS)
def test_right_plans_are_right_in_every_order(name: str) -> None:
    plan = PLANS[name]()
    report = judged(plan)
    assert report.ok, report.failures
    assert not report.warnings
    for seed in range(SEEDS):
        assert run_plan(plan, seed, together=seed % 2 == 0) == "right"


@pytest.mark.parametrize("name", PLANS)
def test_what_can_go_wrong_is_refused(name: str) -> None:
    """No mutant that passes goes wrong; of those that are refused, many are seen to go wrong."""
    plan = PLANS[name]()
    rng = random.Random(name)
    outcomes: Counter[str] = Counter()
    for turn in range(MUTANTS):
        kind, changed = mutant(plan, rng)
        if kind == "none":
            continue
        try:
            report = judged(changed)
        except InputError:
            outcomes["unreadable"] += 1
            continue
        seen = {run_plan(changed, 1000 * turn + seed) for seed in range(4 if report.ok else 2)}
        if report.ok:
            assert seen == {"right"}, (kind, turn, seen)
        outcomes["passed" if report.ok else "refused, seen wrong" if seen != {"right"} else "refused"] += 1
    assert outcomes["refused, seen wrong"] >= 5, outcomes


def test_scratch_memory_that_goes_round() -> None:
    """As many pieces on their way as scratch memory holds are right; one more is a race, seen where it goes round."""
    assert judged(pipelined(credit=64)).ok
    (first, *_) = judged(pipelined(credit=65)).failures
    assert first.startswith("with messages larger than its scratch memory: rank 0, thread block 0")
    assert {run_plan(pipelined(credit=3), seed, rounds=6, ring=3) for seed in range(20)} == {"right"}
    assert "wrong" in {run_plan(pipelined(credit=4), seed, rounds=6, ring=3) for seed in range(60)}
