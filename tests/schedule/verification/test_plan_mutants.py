"""Plan files with something changed, before the verifier and before a judge that shares no code with it."""

from __future__ import annotations

import json

import pytest

from coppice.planners.planning import plan
from coppice.schedule.files.plan_file import encode_plan
from plan_mutants import outcome, run, seeds
from reference.plan_judge import judge


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
