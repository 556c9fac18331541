"""docs/synthesis-milp.md shows what the commands print, but for how long they took and what memory they had."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import blocks, coppice, examples

PAGE = "synthesis-milp.md"


def timeless(text: str) -> str:
    """The text without durations of this run."""
    text = re.sub(r"after [\d.]+ (us|ms|s|min)\b", "after a while", text)
    return re.sub(r"(?m)^( +took) .*$", r"\1", text)


def test_commands_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (sketch,) = blocks(PAGE, "json")
    (tmp_path / "sketch.json").write_text(sketch.text)
    shown = examples(PAGE)
    assert len(shown) == 6
    for each in shown:
        done = coppice(*each.words)
        assert done.exit_code == (1 if "unsat" in each.shown else 0), done.output
        assert timeless(done.stdout) == timeless(each.shown)
