"""A training that saves itself every seven steps and is killed: `python killed_program.py DIRECTORY STEP`.

It goes on from the checkpoint that it finds. At total step STEP (0: never) it kills itself without any warning, in the
middle of writing a checkpoint if that is due. At the end it prints a digest of everything.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch

from support.small_training import SmallTraining

folder, fatal = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
training = SmallTraining(snapshots=folder / "snapshots", log=folder / "log.jsonl")
training.tuner.load(folder / "checkpoints")
begun = training.tuner.total_steps


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


while not training.tuner.finished:
    training.step()
    if training.tuner.total_steps == fatal:
        torch.save = kill  # dies with the new file half written
        if fatal % 7:
            kill()
    if training.tuner.total_steps % 7 == 0:
        training.tuner.save(folder / "checkpoints")
torch.set_printoptions(precision=17, threshold=10**9)
print(begun, hashlib.sha256(repr(training.state()).encode()).hexdigest())
