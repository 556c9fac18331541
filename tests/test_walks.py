"""Commands do not wander: a file that calls another one through many doors is hard to follow, and slow."""

from __future__ import annotations

import os
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


def test_a_job_is_estimated_by_few_files() -> None:
    """Of the room of iterations it visits no more than this, from the tables of the job to where the time goes."""
    job = "gpt-175b --topology dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512"
    done = subprocess.run(
        [sys.executable, WALKS, "train", "estimate", *job.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = re.search(r"^files visited: .*?(\d+) of iteration", done.stderr, re.MULTILINE)
    assert found is not None
    assert 15 < int(found[1]) <= 25, done.stderr


SCHEDULE = """
import sys
import torch
import torch.distributed as dist
from coppice.training.torch import schedule
from walks import watching

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
with watching() as moves:
    schedule(model, torch.optim.SGD(model.parameters(), 0.1), policy="priority")
print(len({file for ends in moves for file in ends[:2]}))
"""


def test_a_training_is_scheduled_by_few_files(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULE, tmp_path / "store"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(WALKS.parent)},
    )
    assert 5 < int(done.stdout) <= 14, done.stdout
