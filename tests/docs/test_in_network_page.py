"""docs/in-network.md: its Python runs, and its figures are what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import blocks, page_text


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    # Sessions, which have prompts, are run with their output by test_in_network_models.py.
    programs = [each for each in blocks("in-network.md", "python") if not each.text.startswith(">>>")]
    assert programs
    for program in programs:
        exec(program.text, {})
    printed = capsys.readouterr().out
    page = page_text("in-network.md")
    trace = [line for line in printed.splitlines() if " -> " in line]
    assert len(trace) == 10
    for line in trace:
        assert line in page
