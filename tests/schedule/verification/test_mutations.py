"""One transfer gone wrong: the verifier refuses exactly what comes out wrong, and little else.

Every mutant of a schedule is carried out with values that cannot be mistaken for each other (payloads.py). The verifier
may accept none that ends wrong. What it refuses though it ends right must be refused for one of the reasons that
:mod:`coppice.schedule.verification.transfers` owns up to; it may never say of such a mutant that data are missing in
the end.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from coppice.bounds import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.planners.flow import plan_all_to_all, plan_flow
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import plan
from coppice.schedule.files.plan_file import encode_plan
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from plan_mutants import outcome, run, seeds
from reference.mutants import mutants
from reference.payloads import right
from reference.plan_judge import judge
from schedule.builders import make_schedule, star_topology

STRICT = (
    "does not have by then",
    "to itself",
    "to nothing at rank",
    "a second time",
    "in no certain order",
    "claims to keep the order of ranks",
    "more of the",
)
EVERY = [pytest.param(entry, id=f"{name}-{collective}") for (name, collective), entry in algorithms().items()]


def judged(schedule: Schedule, *, sample: int | None = None, seed: str = "") -> Counter[str]:
    """Compare the verifier with execution on mutants; count what came of them."""
    assert verify_schedule(schedule).ok
    assert right(schedule)
    chosen = list(mutants(schedule))
    if sample is not None and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    outcome: Counter[str] = Counter()
    for name, make_mutant in chosen:
        mutant = make_mutant()
        report, truth = verify_schedule(mutant), right(mutant)
        assert truth or not report.ok, f"accepted, but wrong: {name} ({seed})"
        outcome["refused" if not truth else "equivalent" if report.ok else "strict"] += 1
        if truth and not report.ok:
            unexplained = [f for f in report.failures if not any(reason in f for reason in STRICT)]
            assert not unexplained, f"right, but refused: {name} ({seed}): {unexplained}"
    return outcome


def made(entry: Algorithm, ranks: int) -> Schedule | None:
    """The schedule of an algorithm on a star, unless it cannot serve or plans a forest."""
    root = ranks // 2 if entry.collective.rooted else None
    problem = Problem(topology=preset("star", gpus=ranks), collective=entry.collective, root=root)
    case = case_of(entry, problem)
    if entry.refusal(case) is not None:
        return None
    body = make(entry, case)
    return body if isinstance(body, Schedule) else lower(body)


@pytest.mark.parametrize("entry", EVERY)
def test_algorithms_of_the_catalogue(entry: Algorithm) -> None:
    total: Counter[str] = Counter()
    for ranks, sample in ((2, 20), (3, 20), (4, 20), (7, 10)):
        schedule = made(entry, ranks)
        if schedule is not None and schedule.num_transfers:
            total += judged(schedule, sample=sample, seed=f"{entry.name} {entry.collective} {ranks}")
    assert total["refused"] > 0 or not total


@pytest.mark.slow
@pytest.mark.parametrize("entry", EVERY)
def test_all_mutants_of_small_cases(entry: Algorithm) -> None:
    for ranks in (2, 3, 4, 5, 6):
        schedule = made(entry, ranks)
        if schedule is not None and schedule.num_transfers:
            judged(schedule, sample=800, seed=f"{entry.name} {entry.collective} {ranks}")


FORESTS = [collective for collective in Collective if collective.made_of_trees]


@pytest.mark.parametrize("collective", FORESTS, ids=str)
def test_all_mutants_of_forests(collective: Collective) -> None:
    root = 2 if collective.rooted else None
    problem = Problem(topology=preset("star", gpus=3), collective=collective, root=root)
    assert judged(lower(plan_forest(problem)))["refused"] > 10


def test_all_mutants_of_flows() -> None:
    star = preset("star", gpus=4)
    for collective in (Collective.GATHER, Collective.SCATTER):
        assert judged(plan_flow(Problem(topology=star, collective=collective, root=1)))["refused"] > 10
    assert judged(plan_all_to_all(Problem(topology=star, collective=Collective.ALL_TO_ALL)), sample=400)[
        "refused"
    ]


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER], ids=str)
def test_pieces_of_a_ring(collective: Collective) -> None:
    schedule = made(algorithms()["ring", collective], 3)
    assert schedule is not None
    assert judged(in_pieces(schedule, 2), sample=400, seed="pieces")["refused"] > 100


def ordered_tree() -> Schedule:
    """0 <- 1, 3 <- 2, then 0 <- 3, 0 <- 4 in one step."""
    rows = [
        (0, 1, 0, 1, (1, 5, 0), 0),
        (0, 2, 3, 1, (2, 5, 3), 0),
        (0, 3, 0, 1, (3, 5, 0), 1),
        (0, 4, 0, 1, (4, 5, 0), 1),
    ]
    schedule = make_schedule(star_topology(5), Collective.REDUCE, rows, chunk_slot=[0], root=0)
    return replace(schedule, ordered=True)


def test_order_is_lost_by_mutants_that_only_swap() -> None:
    outcome = judged(ordered_tree())
    assert outcome["refused"] > 30
    swapped = dict(mutants(ordered_tree()))["rows 2 and 3 swapped"]()
    assert not verify_schedule(swapped).ok
    assert verify_schedule(replace(swapped, ordered=False)).ok
    assert right(replace(swapped, ordered=False))


def test_equivalent_mutants_are_accepted_and_strictness_is_seen() -> None:
    ring = made(algorithms()["ring", Collective.ALL_GATHER], 3)
    assert ring is not None
    outcome = judged(ring)
    assert outcome["equivalent"] > 0
    assert outcome["refused"] > 30


def test_no_mutant_is_accepted_wrongly() -> None:
    found, faults = run(2_000, seed=7)
    assert not faults, faults[:5]
    assert found["wrong and refused"] > 500
    assert found["right and accepted"] > 500


@pytest.mark.slow
def test_no_mutant_of_very_many_is_accepted_wrongly() -> None:
    _, faults = run(100_000, seed=1)
    assert not faults, faults[:5]


def test_plans_of_every_kind_are_among_the_seeds() -> None:
    documents = list(seeds())
    assert {document["collective"] for document in documents} >= {
        *("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"),
        *("all_to_all", "gather", "scatter", "barrier"),
    }
    bounds = [document["bound"] for document in documents if document["bound"]]
    assert {None} < {document["bound"] and "bound" for document in documents}
    for part in ("proof", "whole_trees", "phase_trees"):
        assert any(bound.get(part) for bound in bounds), part
    assert any("symmetry" in document for document in documents)
    assert any(document["weights"] for document in documents)
    assert any(document["demands"] for document in documents)
    assert sum(judge(document).helped for document in documents) >= 3


def test_the_judge_knows_what_is_wrong() -> None:
    """The judge is no rubber stamp: what is broken on purpose it names."""
    document = json.loads(encode_plan(plan("star", "all_gather", ring=False).plan))
    assert not judge(document).wrong
    for change, why in (
        (lambda d: d["edges"]["dst"].__setitem__(0, d["edges"]["src"][0]), "path"),
        (lambda d: d["trees"]["weight"].__setitem__(0, 2), "share"),
        (lambda d: d.__setitem__("inv_rate", "1/100"), "per shard"),
        (lambda d: d["paths"].__setitem__(0, [0, 1]), "link"),
    ):
        broken = json.loads(json.dumps(document))
        change(broken)
        assert why in judge(broken).wrong
        assert outcome(broken, document)[0] == "wrong and refused"
