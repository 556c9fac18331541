"""docs/simulation.md shows what the commands print: all of its examples are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner

from coppice.cli import Commands
from coppice.cli.plan import plan
from coppice.cli.simulate.command import simulate
from coppice.simulation.protocols import protocols

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def test_examples_print_what_is_shown(tmp_path: Path) -> None:
    app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command("plan")(plan)
    app.command("simulate")(simulate)
    printed, shown = "", 0
    home = Path.cwd()
    os.chdir(tmp_path)
    try:
        for kind, text in BLOCK.findall(PAGE.read_text()):
            if kind == "json":
                (tmp_path / "jobs.json").write_text(text)
            elif kind == "sh":
                for line in text.splitlines():
                    words = shlex.split(line)
                    assert words[0] == "coppice"
                    result = CliRunner().invoke(app, words[1:])
                    assert result.exit_code == 0, result.stderr
                    printed = result.stdout
            elif kind == "python":
                done = subprocess.run(
                    [sys.executable, "-c", text], capture_output=True, text=True, check=True
                )
                printed = done.stdout
            else:
                assert kind == "text"
                assert printed == text
                shown += 1
    finally:
        os.chdir(home)
    assert shown == 5


def test_the_table_of_protocols_is_the_data() -> None:
    page = PAGE.read_text()
    for name, each in protocols().items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        for figure in (each.start_us, each.box_us, each.network_us):
            assert f"{figure:g} us" in row
        limits = each.channel_gb_per_s or each.gpu_gb_per_s
        assert ", ".join(f"{limits[g][0]:g}" for g in ("ampere", "hopper", "blackwell")) in row
