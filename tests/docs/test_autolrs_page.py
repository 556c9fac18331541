"""What docs/autolrs.md shows of the example is what the example and the command print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import blocks
from support.paths import ROOT

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn brings the data")


def shape(text: str) -> list[str]:
    """Lines without the rates: these differ from one version of torch to the next."""
    return [re.sub(r"lr \S+|the best.*|\d+ of trials.*", "...", line) for line in text.splitlines()]


@pytest.mark.slow
def test_the_page_shows_real_output(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    said = run(str(ROOT / "examples" / "autolrs_digits.py"))
    assert re.fullmatch(r"1450 steps kept, \d+ of trials; 9\d\.\d% of the test digits are right\n", said)
    printed = run("-c", "from coppice.cli.train import app; app(['lr-report', 'digits.jsonl'])")
    assert shape(printed) == shape(blocks("autolrs.md", "text")[0].text)
