"""Commands do not wander: a file that calls another one through many doors is hard to follow, and slow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

WALKS = Path(__file__).with_name("walks.py")


@pytest.mark.parametrize(
    ("most", "command"),
    [
        (1_700, "plan dgx-a100 --boxes 2 --collective all_reduce"),
        (500, "bound dgx-a100 --boxes 2 --collective all_reduce"),
    ],
)
def test_a_command_moves_between_files_no_more_often_than(most: int, command: str) -> None:
    done = subprocess.run(
        [sys.executable, WALKS, *command.split()], capture_output=True, text=True, check=True, timeout=300
    )
    found = re.search(r"^(\d+) moves", done.stderr, re.MULTILINE)
    assert found is not None
    assert 100 < int(found[1]) < most, done.stderr
