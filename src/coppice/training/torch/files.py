"""Files that are whole or absent: written under a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from coppice.errors import InputError

__all__ = ["load_file", "save_file", "write_text"]


def save_file(value: Any, path: Path) -> None:
    """Write a packed tree; a crash at any moment leaves the old file, or the new one.

    Raises:
        InputError: If the file cannot be written.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())

    _replace(path, write)


def write_text(text: str, path: Path) -> None:
    """Write a short text the same way.

    Raises:
        InputError: If the file cannot be written.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    _replace(path, write)


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


def _replace(path: Path, write: Any) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
        _flush_directory(path.parent)
    except OSError as error:
        msg = f"cannot write {path} ({error.strerror or error}): choose another place."
        raise InputError(msg) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _flush_directory(path: Path) -> None:
    """A rename is on the disk only once its directory is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
