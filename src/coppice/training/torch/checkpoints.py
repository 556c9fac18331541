"""Checkpoints of a training on many ranks: one directory per step, and a file that names the last complete one.

    directory/LATEST              "step-000001230 4": the checkpoint and its number of ranks
    directory/step-000001230/     rank-0.pt ... rank-3.pt

Files are whole or absent: written under a temporary name, flushed to the disk, then renamed. LATEST is replaced once
every rank has written its part, and older steps are removed after that: whenever a crash comes, LATEST names a
checkpoint whose parts are all there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from coppice.errors import InputError
from coppice.files import replacing, write_atomically
from coppice.training.torch.world import World

__all__ = ["load", "load_file", "save", "save_file"]

_LATEST = "LATEST"


def save(content: Any, directory: Path, *, number: int, world: World) -> None:
    """Write this rank's part of a checkpoint.

    Args:
        content: Tensors and plain values.
        directory: Where checkpoints of this training are.
        number: Number of the step.
        world: The ranks.

    Raises:
        InputError: If a file cannot be written.
    """
    name = f"step-{number:09d}"
    save_file(content, directory / name / f"rank-{world.rank}.pt")
    world.barrier()
    if world.decides:
        write_atomically(directory / _LATEST, f"{name} {world.size}\n".encode())
        for old in directory.glob("step-*"):
            if old.name != name:
                shutil.rmtree(old, ignore_errors=True)
    world.barrier()


def load(directory: Path, *, world: World) -> Any:
    """This rank's part of the last complete checkpoint, or None if there is none.

    Raises:
        InputError: If it was written by another number of ranks, or is damaged.
    """
    words: list[str] = world.agree(lambda: _latest(directory))
    if not words:
        return None
    if len(words) != 2 or words[1] != str(world.size):
        msg = (
            f"expected a checkpoint of {world.size} ranks in {directory}, found {' '.join(words)!r}: resume on as many "
            "ranks as wrote it."
        )
        raise InputError(msg)
    return load_file(directory / words[0] / f"rank-{world.rank}.pt")


def _latest(directory: Path) -> list[str]:
    try:
        return (directory / _LATEST).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []


def save_file(value: Any, path: Path) -> None:
    """Write a packed tree; a crash at any moment leaves the old file, or the new one.

    Raises:
        InputError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(value, file)


def load_file(path: Path) -> Any:
    """Read a packed tree; code in it would not be run.

    Raises:
        InputError: If it cannot be read, or holds something else.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        msg = f"cannot read {path} ({error.strerror or error}): give the directory of the checkpoints."
        raise InputError(msg) from None
    except Exception as error:  # noqa: BLE001 (torch raises whatever the damage leads to)
        msg = f"expected a checkpoint of AutoLRS in {path}, found something else ({error}): use another one."
        raise InputError(msg) from None
