"""docs/shared-memory.md shows what happens: its examples, its program in processes, and the table of the benchmark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import blocks, page_text, run_session
from support.rank_groups import in_processes


def test_examples() -> None:
    assert run_session("shared-memory.md") > 8


def test_the_program_prints_what_is_shown(tmp_path: Path) -> None:
    shown = blocks("shared-memory.md", "python", "text")
    [at] = [number for number, block in enumerate(shown) if "ShmEngine.connect" in block.text]
    (tmp_path / "rank.py").write_text(shown[at].text)
    printed = in_processes(
        [[sys.executable, "rank.py", str(rank)] for rank in range(3)],
        variables={"COPPICE_CACHE": str(tmp_path / "cache")},
        folder=tmp_path,
    )
    assert "".join(printed) == shown[at + 1].text


@pytest.mark.slow
def test_the_table_has_the_columns_and_rows_that_are_shown() -> None:
    """All but the times is what the command prints."""
    pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")
    page = page_text("shared-memory.md")
    command = re.search(r"^    torchrun (--nproc-per-node 2 -m coppice bench .*)$", page, re.MULTILINE)
    shown = re.search(r"```text\n(# coppice bench.*?)```", page, re.DOTALL)
    assert command is not None
    assert shown is not None
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {name: value for name, value in os.environ.items() if name != "COPPICE_TOPOLOGY"}
    done = subprocess.run(
        [*launcher, *command[1].split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=environment,
    )
    assert done.returncode == 0, done.stderr

    def lasting(text: str) -> list[list[str]]:
        rows = [line.split() for line in text.splitlines()]
        return [row if row[0].startswith("#") else [*row[:6], row[-1]] for row in rows]

    assert lasting(done.stdout) == lasting(shown[1])
