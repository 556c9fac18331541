"""Pages whose commands and interactive sessions need nothing else print what they show."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.pages import coppice, examples, run_session
from support.paths import ROOT


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPPICE_CACHE", str(tmp_path))
    assert run_session("run.md") > 10
    assert len(list((tmp_path / "plans").iterdir())) == 2  # the plans of the communicator


def test_iteration() -> None:
    assert run_session("iteration.md") > 5


def test_scheduling() -> None:
    assert run_session("scheduling.md") > 5


def test_jobs() -> None:
    assert run_session("jobs.md") > 5


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("tuning.md", 2),
        ("selection.md", 3),
        pytest.param("iteration.md", 19, marks=pytest.mark.slow),
        ("jobs.md", 4),
    ],
)
def test_commands(page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    shown = [each for each in examples(page) if each.command.startswith("coppice ")]
    assert len(shown) >= count
    for each in shown:
        if "module.py:" in each.command and find_spec("torch") is None:
            continue  # traces a module of PyTorch
        done = coppice(*each.words)
        assert done.exit_code == 0, done.output
        assert done.stdout == each.shown
