"""docs/survey.md: every system of the survey is where the page says, and its command runs."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.pages import coppice
from support.paths import ROOT


def _survey() -> ModuleType:
    spec = importlib.util.spec_from_file_location("survey", ROOT / "docs" / "survey.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SURVEY = _survey()
SYSTEMS = [system for systems in SURVEY.families().values() for system in systems]


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
    words = shlex.split(system.command.replace("examples/", f"{ROOT}{os.sep}examples{os.sep}"))
    assert words[0] == "coppice"
    done = coppice(*words[1:])
    assert done.exit_code == 0, done.output
