"""docs/synthesis.md shows what `coppice synthesize` prints, but for seconds and memory, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'coppice[smt]'")

from support.pages import blocks, coppice, examples

VARYING = re.compile(r"[0-9.]+ (?:us|ms|s|min|[KMG]iB)\b")


def steady(text: str) -> str:
    """A text without what differs from run to run."""
    return VARYING.sub("-", text)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [each for each in examples("synthesis.md") if each.command.startswith("coppice ")]
    assert shown
    for each in shown:
        done = coppice(*each.words)
        assert done.exit_code in (0, 1), done.output
        assert steady(done.stdout) == steady(each.shown)


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = blocks("synthesis.md", "python")
    assert programs
    for program in programs:
        exec(program.text, {})
