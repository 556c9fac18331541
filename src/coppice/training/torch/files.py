"""Checkpoints in files: written whole or not at all, and read without running code in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from coppice.errors import InputError
from coppice.files import replacing

__all__ = ["load_file", "save_file"]


def save_file(value: Any, path: Path) -> None:
    """Write a packed tree; a crash at any moment leaves the old file, or the new one.

    Raises:
        InputError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
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
