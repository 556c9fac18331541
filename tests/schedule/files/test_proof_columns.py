"""Witnesses in plan files: they come back as they were, and a file whose witness was changed is refused."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify
from coppice.topology.presets import preset

Edit = Callable[[dict[str, Any]], object]

PLANS = {
    "sets": Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE),
    "dual": Problem(topology=preset("random-balanced"), collective=Collective.ALL_REDUCE),
    "lengths": Problem(topology=preset("torus", dims=(4, 4)), collective=Collective.ALL_TO_ALL),
}


WITH_TREES: dict[str, tuple[Problem, int | str]] = {
    "whole_trees": (Problem(preset("mi250"), Collective.ALL_GATHER), 2),
    "phase_trees": (Problem(preset("mi250", boxes=1), Collective.ALL_REDUCE), 2),
    "fewer_trees": (Problem(preset("mi250"), Collective.REDUCE, root=0), "auto:20%"),
}
"""By the member of the bound that proves it: plans with a number of trees."""


@pytest.fixture(scope="module", params=[*PLANS, *WITH_TREES])
def named(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A plan of each kind as the document in its file."""
    if request.param in WITH_TREES:
        problem, trees = WITH_TREES[request.param]
        made = plan(problem, trees=trees, ring=False)
    else:
        made = plan(PLANS[request.param], ring=False)
    return request.param, json.loads(encode_plan(made.plan))


def sealed(document: dict[str, Any]) -> bytes:
    """The file with the right checksum, as somebody would make it on purpose."""
    members = [f'"{key}": {json.dumps(value)}' for key, value in document.items() if key != "sha256"]
    body = ("{" + ",\n".join(members)).encode()
    return body + b',\n"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def verified(document: dict[str, Any]) -> Report:
    return verify(decode_plan(sealed(document), name="plan.json"))


def test_witnesses_come_back_as_they_were(named: tuple[str, dict[str, Any]]) -> None:
    name, document = named
    data = sealed(document)
    assert json.loads(encode_plan(decode_plan(data, name="plan.json"))) | {"sha256": ""} == json.loads(
        data
    ) | {"sha256": ""}
    report = verified(document)
    assert report.ok
    assert report.bound_proved
    assert report.optimal == (name not in WITH_TREES)
    assert (report.whole_trees is not None) == (name in WITH_TREES)
    assert report.whole_phases == (2 if name == "phase_trees" else 1)
    assert (report.fewer_trees_inv_rate is not None) == (name == "fewer_trees")


def numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where numbers stand in a witness: integers, and fractions as text."""
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in numbers(each, (*path, key))]
    if isinstance(value, list):
        return [found for place, each in enumerate(value) for found in numbers(each, (*path, place))]
    return [path]


def test_every_number_of_a_witness_counts(named: tuple[str, dict[str, Any]]) -> None:
    """No change of any number makes a file that proves more; a bound that is better than true never verifies."""
    name, document = named
    member = name if name in WITH_TREES else "proof"
    honest = verified(document)
    paths = numbers(document["bound"][member])
    refused = 0
    for path in paths[:: max(1, len(paths) // 15)]:
        for change in (lambda n: n + 1, lambda n: max(n - 1, 0), lambda _: 0, lambda n: 10 * n):
            wrong = copy.deepcopy(document)
            place = wrong["bound"][member]
            for key in path[:-1]:
                place = place[key]
            value = place[path[-1]]
            if isinstance(value, int):
                place[path[-1]] = change(value)
            else:
                top, _, bottom = value.partition("/")
                place[path[-1]] = f"{change(int(top))}/{bottom or 1}"
            try:
                report = verified(wrong)
            except InputError:
                refused += 1
                continue
            refused += not report.ok
            if report.ok:
                assert report.inv_rate == honest.inv_rate
                assert report.proved_inv_rate is not None
                assert honest.proved_inv_rate is not None
                assert report.proved_inv_rate <= honest.proved_inv_rate
                if report.whole_trees is not None:
                    assert report.whole_trees_inv_rate is not None
                    assert honest.whole_trees_inv_rate is not None
                    assert report.whole_trees_inv_rate <= honest.whole_trees_inv_rate
                if report.fewer_trees_inv_rate is not None:
                    assert honest.fewer_trees_inv_rate is not None
                    assert report.fewer_trees_inv_rate <= honest.fewer_trees_inv_rate
    assert refused


def scaled(bound: dict[str, Any]) -> None:
    bound["inv_rate"] = bound["attainable"] = "1/100"
    bound["proof"]["inv_rate"] = "1/100"


SETS: list[tuple[Edit, str]] = [
    (lambda b: b["proof"].update(inv_rate="1/173"), "less than the 1/173 that it says"),
    (scaled, "less than the 1/100 that it says"),
    (lambda b: b["proof"]["cuts"]["nodes"][0].append(1), "less than the"),
    (lambda b: b["proof"]["cuts"]["nodes"][3].clear(), "holds no rank"),
    (lambda b: b["proof"]["cuts"]["nodes"][3].append(36), "expected nodes below 36"),
    (lambda b: b["proof"]["cuts"]["broadcast"].pop(), "expected 16 rows"),
    (lambda b: b["proof"]["cuts"].update(broadcast=["0"] * 16), "less than the"),
    (lambda b: b["proof"]["cuts"]["reduce"].__setitem__(2, "-1"), "expected a fraction"),
    (lambda b: b["proof"]["potentials"]["reduce"].__setitem__(0, "0"), "less than the"),
    (lambda b: b["proof"]["potentials"]["reduce"].__setitem__(0, "2"), "less than the"),
    (lambda b: b["proof"]["potentials"]["broadcast"].__setitem__(0, "1"), "less than the"),
    (lambda b: b["proof"]["potentials"]["node"].__setitem__(0, 0), "can add, so"),
    (lambda b: b["proof"].pop("potentials"), "less than the"),
    (lambda b: b["proof"].pop("cuts"), "expected either cuts or lengths"),
    (lambda b: b["proof"].update(symmetry={"orders": [2], "generators": [list(range(36))]}), "symmetry"),
    (
        lambda b: b["proof"].update(symmetry={"orders": [2], "generators": [list(range(36))[::-1]]}),
        "symmetry",
    ),
    (lambda b: b["proof"].update(lengths={"src": [], "dst": [], "length": []}), "neither or both"),
    (lambda b: b.update(inv_rate="1/100"), "less than the claimed bound"),
]


@pytest.mark.parametrize(("edit", "why"), SETS)
def test_a_changed_witness_is_refused(edit: Edit, why: str) -> None:
    document = json.loads(encode_plan(plan(PLANS["sets"], ring=False).plan))
    edit(document["bound"])
    try:
        sentences = verified(document).failures
    except InputError as error:
        sentences = (str(error),)
    assert any(why in sentence for sentence in sentences), sentences


def test_a_file_of_an_older_version_is_read_and_says_how_to_have_a_witness() -> None:
    document = json.loads(encode_plan(plan(PLANS["sets"], ring=False).plan))
    del document["bound"]["proof"]
    report = verified(document)
    assert report.ok
    assert (report.bound_proved, report.optimal) == (None, False)
    assert "plan again to have one" in report.proof_in_words


def test_lengths_of_links_that_do_not_exist_are_refused() -> None:
    document = json.loads(encode_plan(plan(PLANS["lengths"], ring=False).plan))
    document["bound"]["proof"]["lengths"]["dst"][0] = 0
    document["bound"]["proof"]["lengths"]["src"][0] = 0
    with pytest.raises(InputError, match="expected a link at"):
        verified(document)
