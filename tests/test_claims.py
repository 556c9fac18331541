"""Published claims: their records are whole, what they quote stands in the benchmarks, and verdicts follow."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from types import ModuleType
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.published.formulas import value_of
from coppice.published.measuring import judged_claims
from coppice.published.records import Claim, Run, claims, claims_of
from coppice.published.verdicts import verdict_on
from support.paths import ROOT

SURVEY = tomllib.loads((ROOT / "docs" / "survey.toml").read_text())


def claim(**given: Any) -> Claim:
    return Claim(**{"system": "A", "claim": "b", "source": "c", **given})


def test_every_system_that_is_here_has_a_claim() -> None:
    here = {
        system["name"] for family in SURVEY["family"] for system in family["system"] if system.get("where")
    }
    claimed = {each.system for each in claims()}
    assert here - claimed == {"No overlap"}  # a baseline, of which nothing is claimed
    assert claimed <= here
    assert len(claims()) >= 90


def test_claims_of_a_system_differ() -> None:
    stated = [(each.system, each.claim) for each in claims()]
    assert len(set(stated)) == len(stated)


@pytest.mark.parametrize("each", [each for each in claims() if each.recorded], ids=lambda each: each.claim)
def test_recorded_figures_stand_in_the_benchmark(each: Claim) -> None:
    assert each.recorded is not None
    page = (ROOT / "benchmarks" / each.recorded.benchmark).read_text()
    lines = [line for line in page.splitlines() if each.recorded.quote in line]
    assert len(lines) == 1, f"{each.recorded.quote} is no one line of {each.recorded.benchmark}"
    [line] = lines
    numbers = [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", page)]
    figures = re.findall(r"\d+(?:\.\d+)?", str(each.recorded.value))
    assert all(float(figure) in numbers for figure in figures)
    if isinstance(each.recorded.value, float):
        assert each.recorded.value in [
            float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*(?:\.\d+)?", line)
        ]
    script = each.recorded.command.split()[1]
    assert (ROOT / script).is_file()


def test_only_hardware_makes_a_claim_unaskable() -> None:
    assert all(each.hardware for each in claims() if not each.runs and not each.recorded and not each.setting)


@pytest.mark.parametrize(
    ("formula", "found"),
    [
        ("a", 2.0),
        ("a + 3 * (b[0] - 1) / 2", 3.5),
        ("b[-1] - a", 1.0),
        ("max(b[*]) / min(b[*], a)", 1.5),
        ("min(rows[*].time)", 1.0),
        ("rows[name=ring].time", 1.5),
        ("rows[*].time", None),
        ("two[two-phase]", 0.25),
        ("status[=unsat]", 1.0),
        ("status[=sat]", 0.0),
    ],
)
def test_formulas(formula: str, found: float | None) -> None:
    document = {
        "a": 2,
        "b": [2, 3],
        "rows": [{"name": "tree"}, {"name": "ring", "time": "3/2"}, {"time": 1.0}],
        "two": {"two-phase": "1/4"},
        "status": "unsat",
    }
    if found is None or "rows[*]" in formula:
        with pytest.raises(InputError, match="expected"):
            value_of(formula, document)
        document["rows"] = [row for row in document["rows"] if "time" in row]  # type: ignore[union-attr, attr-defined]
    if found is not None:
        assert value_of(formula, document) == found


@pytest.mark.parametrize("formula", ["", "a +", "(a", "a b", "a ? 2", "missing", "a[7]", "a.b", "max(a"])
def test_formulas_that_cannot_be(formula: str) -> None:
    with pytest.raises(InputError, match="expected"):
        value_of(formula, {"a": [1]})


@pytest.mark.parametrize(
    ("given", "measured", "verdict"),
    [
        ({"published": 10, "sense": "less"}, 5, "beaten"),
        ({"published": 10, "sense": "less"}, 12, "reached"),
        ({"published": 10, "sense": "less"}, 13, "contradicted"),
        ({"published": 10, "sense": "less", "neutral": 100}, 50, "direction"),
        ({"published": 66, "sense": "more"}, 29, "direction"),
        ({"published": 66, "sense": "more"}, 0, "contradicted"),
        ({"published": 66, "sense": "more"}, -3, "contradicted"),
        ({"published": 7, "tolerance": 0}, 7, "reached"),
        ({"published": 7, "tolerance": 0}, 8, "contradicted"),
        ({}, 1, "reached"),
        ({}, 0, "contradicted"),
        ({"published": 7}, None, "not askable"),
    ],
)
def test_verdicts(given: dict[str, Any], measured: float | None, verdict: str) -> None:
    assert verdict_on(claim(hardware="x", **given), measured) == verdict


def test_records_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="one of"):
        claim()
    with pytest.raises(ValueError, match="one of"):
        claim(hardware="x", runs={"a": Run(command="coppice schema")})
    with pytest.raises(ValueError, match="a formula over a"):
        claim(runs={"a": Run(command="coppice schema")}, measured="a / b")
    with pytest.raises(InputError, match="did you mean 'SCCL'"):
        claims_of("SCLC")


def test_commands_are_run_once_and_faults_are_told() -> None:
    count = Run(command="coppice model list", value="models[0].overhead_us")
    wrong = Run(command="coppice model lits", value="models")
    nowhere = Run(command="coppice model list", value="model")
    slower = claim(runs={"time": Run(command="coppice model list")}, published=1e4, sense="less")
    asked = [claim(runs={"count": each}, published=1, sense="more") for each in (count, wrong, nowhere)]
    listed, refused, empty, timed = judged_claims([*asked, slower])
    assert listed.measured is not None
    assert (listed.verdict, listed.fault) == ("reached", "")
    assert (refused.measured, refused.verdict) == (None, "not askable")
    assert "did you mean list" in refused.fault
    assert "expected model in the output" in empty.fault
    assert timed.verdict == "beaten"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("claims_page", ROOT / "docs" / "claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_every_claim() -> None:
    assert _generator().missing((ROOT / "docs" / "claims.md").read_text()) == []


@pytest.mark.slow
def test_every_claim_has_a_figure() -> None:
    assert [(each.claim.claim, each.fault) for each in judged_claims(claims()) if each.fault] == []
