"""docs/survey.md: every system of the survey is where the page says, and its command runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from coppice.iteration.policies.catalogue import POLICIES
from coppice.planners.synthesis.synthesizing import METHODS
from support.benchmark_scripts import load_benchmark
from support.pages import coppice
from support.paths import ROOT

SURVEY = load_benchmark("survey", folder="docs")
SYSTEMS = [system for family in SURVEY.families() for system in family.systems]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_system_is_where_the_page_says(system) -> None:
    for place in system.where:
        assert (SURVEY.SOURCE / place).exists(), f"{system.name}: there is no {place}"
    assert bool(system.where) == bool(system.command), f"{system.name}: what is here has a command"


@pytest.mark.parametrize(
    "system", [system for system in SYSTEMS if system.command], ids=lambda system: system.name
)
def test_its_command_runs(system, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program, *words = shlex.split(system.command)
    assert program == "coppice"
    done = coppice(*words)
    assert done.exit_code == 0, done.output


def test_every_policy_is_on_the_page() -> None:
    named = [name for system in SYSTEMS for name in system.policies]
    assert sorted(named) == sorted(POLICIES), "docs/survey.toml: each policy belongs to one system"


@pytest.mark.parametrize("system", [each for each in SYSTEMS if each.policies], ids=lambda each: each.name)
def test_a_policy_is_where_the_page_says(system) -> None:
    for name in system.policies:
        place = POLICIES[name].__module__.removeprefix("coppice.").replace(".", "/") + ".py"
        assert place in system.where, f"{system.name}: policy {name} is in {place}"
    assert system.policies[0] in shlex.split(system.command), "the command runs the first policy"


def test_every_method_of_synthesis_is_on_the_page() -> None:
    shown = {word for system in SYSTEMS for word in shlex.split(system.command)}
    assert set(METHODS) <= shown, f"no command of docs/survey.toml runs {sorted(set(METHODS) - shown)}"
