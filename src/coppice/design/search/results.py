"""Base graphs that have been evaluated, in a file: one JSON object a line, so that an interrupted search goes on.

The first line says what the file is and which version made it; every further line holds what one job found. Lines are
only ever appended. A last line that was cut short is dropped; the job is then done again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from coppice.design.search.bases import Found
from coppice.errors import InputError
from coppice.version import __version__

__all__ = ["FORMAT", "VERSION", "BasesFile"]

FORMAT = "coppice-design-bases"
VERSION = 1


class _Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    coppice: str


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    key: str
    found: list[Found]


class BasesFile:
    """What jobs found, in a file or nowhere.

    Args:
        path: The file; it is made where it does not exist. None keeps nothing.

    Attributes:
        known: What was found, by the key of the job.

    Raises:
        InputError: If the file is something else or was made by another version, or cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self.known: dict[str, Sequence[Found]] = {}
        if self._path is None:
            return
        header = msgspec.json.encode(_Header(format=FORMAT, version=VERSION, coppice=__version__))
        try:
            data = self._path.read_bytes() if self._path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                self._read(whole)
            elif not header.startswith(data):
                self._refuse("it has no line that says what it holds")
            if whole != data:
                os.truncate(self._path, len(whole))
            if not whole:
                self._append([header])
        except OSError as error:
            msg = f"cannot use {self._path} for results ({error.strerror or error}): choose another place."
            raise InputError(msg) from None

    def add(self, rows: Mapping[str, Sequence[Found]]) -> None:
        """Keep what jobs found.

        Raises:
            InputError: If the file cannot be written.
        """
        self.known.update(rows)
        try:
            self._append(
                [msgspec.json.encode(_Line(key=key, found=list(found))) for key, found in rows.items()]
            )
        except OSError as error:
            msg = f"cannot write {self._path} ({error.strerror or error}): choose another place for results."
            raise InputError(msg) from None

    def _append(self, lines: list[bytes]) -> None:
        """Append lines with one write, so that an interruption cannot mix them up."""
        if self._path is not None and lines:
            with self._path.open("ab", buffering=0) as file:
                file.write(b"".join(line + b"\n" for line in lines))

    def _read(self, data: bytes) -> None:
        first, *lines = data.splitlines()
        try:
            header = msgspec.json.decode(first, type=_Header)
        except msgspec.DecodeError:
            self._refuse("its first line does not say so")
        made = (header.format, header.version, header.coppice)
        if made != (FORMAT, VERSION, __version__):
            self._refuse(f"it holds {header.format!r} version {header.version} of coppice {header.coppice}")
        decoder = msgspec.json.Decoder(_Line)
        for number, line in enumerate(lines, start=2):
            try:
                row = decoder.decode(line)
            except msgspec.DecodeError as error:
                msg = f"{self._path}:{number}: expected base graphs, found something else ({error}): remove the line."
                raise InputError(msg) from None
            self.known[row.key] = row.found

    def _refuse(self, found: str) -> NoReturn:
        msg = f"expected {self._path} to be a results file of `coppice design`, but {found}: choose another name."
        raise InputError(msg)
