"""Killed without warning in every phase, or while it writes, a training ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = TESTS / "support" / "killed_program.py"


def run(folder: Path, fatal: int) -> tuple[int, str]:
    command = [sys.executable, str(PROGRAM), str(folder), str(fatal)]
    variables = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout


@pytest.mark.slow
def test_killed_in_every_phase(tmp_path: Path) -> None:
    code, whole = run(tmp_path / "whole", 0)
    assert code == 0
    # Warm-up, before any checkpoint; trial; stage; writing a checkpoint in a stage; trial judged by validation.
    for fatal in (4, 16, 70, 84, 260):
        code, printed = run(tmp_path / "killed", fatal)
        assert (code, printed) == (-signal.SIGKILL, "")
    code, printed = run(tmp_path / "killed", 0)
    assert code == 0
    assert printed.split()[0] == "259"
    assert printed.split()[1] == whole.split()[1]
    assert (tmp_path / "killed" / "log.jsonl").read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()
