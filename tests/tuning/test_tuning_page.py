"""The commands in docs/tuning.md print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli.tune import app
from support.paths import ROOT

PAGE = ROOT / "docs" / "tuning.md"
BLOCK = re.compile(r"```console\n\$ coppice tune (.*)\n((?s:.*?))```")


def test_the_page_shows_real_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 2
    for command, shown in blocks:
        found = CliRunner().invoke(app, shlex.split(command))
        assert found.exit_code == 0, found.output
        assert found.stdout == shown
