"""Coppice's tuner plugin for NCCL and RCCL: building it from the C sources that lie beside this module."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path

from coppice.errors import CheckError, InputError
from coppice.files import replacing

__all__ = ["NAME", "TABLE_VARIABLE", "build_plugin", "compiler_found", "fingerprint"]

NAME = "libnccl-tuner-coppice.so"
"""File name under which ``NCCL_TUNER_PLUGIN=coppice`` finds it on the library path."""

TABLE_VARIABLE = "COPPICE_TUNER_TABLE"
"""Variable that names the table."""

_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_TIMEOUT_S = 120
_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3


def compiler_found(compiler: str | None = None) -> list[str] | None:
    """The command of a C compiler: what is asked for, else ``$CC``, else ``cc``; None where there is none.

    Args:
        compiler: Command, with options where need be.
    """
    words = shlex.split(compiler or os.environ.get("CC") or "cc")
    return words if words and shutil.which(words[0]) else None


def build_plugin(output: str | os.PathLike[str] = NAME, *, compiler: str | None = None) -> Path:
    """Compile the plugin; neither CUDA nor NCCL need be installed.

    Args:
        output: File to write.
        compiler: Command of a C11 compiler (default: ``$CC``, else ``cc``).

    Returns:
        The absolute path of the file, for ``NCCL_TUNER_PLUGIN``.

    Raises:
        InputError: If there is no compiler, or the file cannot be written.
        CheckError: If the compiler fails.
    """
    command = compiler_found(compiler)
    if command is None:
        asked = compiler or os.environ.get("CC") or "cc"
        msg = f"expected a C compiler, found no {asked!r}: install one, or name it in CC."
        raise InputError(msg)
    target = Path(output).absolute()
    if not target.parent.is_dir():
        msg = f"expected a directory at {target.parent}, found none: make it, or choose another place."
        raise InputError(msg)
    try:
        with replacing(target) as temporary, as_file(files("coppice.tuning") / "plugin") as directory:
            sources = sorted(map(str, Path(directory).glob("*.c")))
            done = subprocess.run(
                [*command, *_FLAGS, *sources, "-o", str(temporary)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
            if done.returncode:
                said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                msg = f"expected {command[0]} to build the plugin, but it says: {said[0]}; try another compiler (CC)."
                raise CheckError(msg)
    except subprocess.TimeoutExpired:
        msg = f"{command[0]} still compiled after {_TIMEOUT_S} s: try another compiler (CC)."
        raise CheckError(msg) from None
    return target


def fingerprint(data: bytes) -> str:
    """What the plugin prints about a table when a communicator is made: equal on all hosts where the files are equal.

    Args:
        data: Bytes of the table.

    Examples:
        >>> fingerprint(b"")
        'cbf29ce484222325'
    """
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME % 2**64
    return f"{value:016x}"
