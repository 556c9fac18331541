"""The examples in docs/run.md print what they show."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "run.md"


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPPICE_CACHE", str(tmp_path))
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert not failed
    assert tried > 10
    assert len(list((tmp_path / "plans").iterdir())) == 2  # the plans of the communicator
