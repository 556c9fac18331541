"""Distributed checkpoints: a directory per step, and a file that names the last complete one.

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
from coppice.training.torch.core.agree import World

_LATEST = "LATEST"


def save(content: Any, directory: Path, *, number: int, world: World) -> None:
    """Write this rank's part of a checkpoint.

    Args:
        directory: Where checkpoints of this training are.
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
    """This rank's part of the last complete checkpoint, or None.

    Raises:
        InputError: If it was written by another number of ranks, or is damaged.
    """
    words: list[str] = world.agree(lambda: _latest(directory))
    if not words:
        return None
    if len(words) != 2 or words[1] != str(world.size):
        raise InputError(
            f"expected a checkpoint of {world.size} ranks in {directory}, found {' '.join(words)!r}: resume on as many "
            "ranks as wrote it."
        )
    return load_file(directory / words[0] / f"rank-{world.rank}.pt")


def _latest(directory: Path) -> list[str]:
    try:
        return (directory / _LATEST).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []


def save_file(value: Any, path: Path) -> None:
    """Write a packed tree atomically."""
    with replacing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(value, file)


def load_file(path: Path) -> Any:
    """Read a packed tree, without executing code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror or error}): give the directory of the checkpoints."
        ) from None
    except Exception as error:  # noqa: BLE001 (torch raises whatever the damage leads to)
        raise InputError(
            f"expected a checkpoint of AutoLRS in {path}, found something else ({error}): use another one."
        ) from None
