"""docs/in-network.md: sessions and programs print what it shows, and it has a row for every system."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise
from pathlib import Path

import pytest

from coppice.innetwork.systems.registry import MODELLED
from support.pages import blocks, examples, page_text, run_session

PAGE = "in-network.md"
MODELS = [
    each for each in examples(PAGE) if each.command.startswith(("coppice switch model", "coppice compare"))
]


def test_sessions_print_what_the_page_shows() -> None:
    assert run_session(PAGE) >= 7


def test_every_system_has_a_row() -> None:
    assert len(MODELS) >= 6
    assert [name for name in MODELLED if f"`{name}`" not in page_text(PAGE)] == []


@pytest.mark.parametrize("word", ["simulate_all_reduce", "import numerics"])
def test_programs_print_what_the_page_shows(word: str) -> None:
    shown = [
        (program.text, text.text)
        for program, text in pairwise(blocks(PAGE))
        if program.kind == "python" and word in program.text and text.kind == "text"
    ]
    assert shown
    for program, text in shown:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, {})
        assert printed.getvalue() == text


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    programs = [each for each in blocks(PAGE, "python") if not each.text.startswith(">>>")]
    assert programs
    for program in programs:
        exec(program.text, {})
    trace = [line for line in capsys.readouterr().out.splitlines() if " -> " in line]
    assert len(trace) == 10
    for line in trace:
        assert line in page_text(PAGE)


def test_the_published_scale_wraps_and_ours_does_not() -> None:
    """The figures in the text: a thousand workers at the end of the range of a block."""
    most = 2**31 - 1
    value = 1 - 2.0**-24  # of 2^e
    assert round(value * most / 1000, 2) == 2147483.52
    assert round(value * most / 1000) == 2147484
    assert 1000 * 2147484 == 2147484000 > most
    assert 1000 * round(value * (most // 1000)) <= most
