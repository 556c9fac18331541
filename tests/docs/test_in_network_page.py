"""docs/in-network.md: its Python runs, and its figures are what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import blocks, page_text


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    programs = blocks("in-network.md", "python")
    assert programs
    for program in programs:
        exec(program.text, {})
    printed = capsys.readouterr().out
    page = page_text("in-network.md")
    trace = [line for line in printed.splitlines() if " -> " in line]
    assert len(trace) == 10
    for line in trace:
        assert line in page
"""docs/in-network.md shows what the program prints."""

from __future__ import annotations

import pytest

from coppice.innetwork.models.systems import MODELLED
from support.pages import Example, coppice, examples, page_text, run_session

MODELS = [
    each
    for each in examples("in-network.md")
    if each.command.startswith(("coppice switch model", "coppice compare"))
]


@pytest.mark.parametrize("example", MODELS, ids=lambda example: example.command[8:48])
def test_models_print_what_the_page_shows(example: Example) -> None:
    done = coppice(*example.words)
    assert done.exit_code == 0, done.output
    assert done.stdout == example.shown


def test_sessions_print_what_the_page_shows() -> None:
    assert run_session("in-network.md") >= 7


def test_every_system_has_a_row() -> None:
    assert len(MODELS) >= 6
    text = page_text("in-network.md")
    assert [name for name in MODELLED if f"`{name}`" not in text] == []
