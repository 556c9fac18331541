"""Results on disk: one JSON object a line, so that a comparison that was interrupted goes on where it stopped.

The first line says which problem the file belongs to; every further line is a measurement with the key of what decides
it. Lines are only ever appended. A last line that was cut short is dropped; the measurement is then made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from coppice.bounds.problem import Problem
from coppice.comparison.candidates import Candidate
from coppice.comparison.measurement import Measurement
from coppice.errors import InputError
from coppice.simulation.model import Model
from coppice.version import __version__

__all__ = ["FORMAT", "VERSION", "ResultsFile", "key_of", "problem_sha256"]

FORMAT = "coppice-comparison"
VERSION = 1


class _Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    collective: str
    root: int | None
    topology: str
    problem_sha256: str


def problem_sha256(problem: Problem) -> str:
    """Hash of the topology and of what is to be done on it."""
    return _hash(
        {
            "topology": problem.topology.sha256,
            "collective": problem.collective.value,
            "root": problem.root,
            "weights": problem.weights,
            "demands": problem.demands,
        }
    )


def key_of(problem_hash: str, candidate: Candidate, size_bytes: int, model: Model) -> str:
    """Hash of all that decides a measurement: the problem, the candidate, the size, the model and this version.

    Examples:
        >>> ring = Candidate(algorithm="ring")
        >>> key_of("p", ring, 1024, Model()) == key_of("p", ring, 1024, Model(overhead_us=2.0))
        False
    """
    return _hash(
        {
            "problem": problem_hash,
            "candidate": asdict(candidate),
            "size_bytes": size_bytes,
            "model": asdict(model),
            "coppice": __version__,
        }
    )


class ResultsFile:
    """Measurements in a file, or nowhere.

    Args:
        path: The file; it is made where it does not exist. None keeps nothing.
        problem: What all its measurements are about.

    Attributes:
        known: Measurements that the file holds, by key.

    Raises:
        InputError: If the file is something else, belongs to another problem, or cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, problem: Problem) -> None:
        self._path = None if path is None else Path(path)
        self.known: dict[str, Measurement] = {}
        if self._path is None:
            return
        header = _Header(
            format=FORMAT,
            version=VERSION,
            collective=problem.collective.value,
            root=problem.root,
            topology=problem.topology.name,
            problem_sha256=problem_sha256(problem),
        )
        try:
            data = self._path.read_bytes() if self._path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                self._read(whole, header)
            elif not _could_be_cut_header(data):
                self._refuse("it has no line that says what it holds")
            if whole != data:
                os.truncate(self._path, len(whole))
            if not whole:
                self._append([msgspec.json.encode(header)])
        except OSError as error:
            msg = f"cannot use {self._path} for results ({error.strerror or error}): choose another place."
            raise InputError(msg) from None

    def add(self, rows: Iterable[Measurement]) -> None:
        """Keep measurements."""
        made = list(rows)
        self.known.update((row.key, row) for row in made)
        if self._path is None:
            return
        try:
            self._append([msgspec.json.encode(row) for row in made])
        except OSError as error:
            msg = f"cannot write {self._path} ({error.strerror or error}): choose another place for results."
            raise InputError(msg) from None

    def _append(self, lines: list[bytes]) -> None:
        """Append lines with one write, so that an interruption cannot mix them up."""
        if self._path is not None and lines:
            with self._path.open("ab", buffering=0) as file:
                file.write(b"".join(line + b"\n" for line in lines))

    def _read(self, data: bytes, wanted: _Header) -> None:
        """Take the measurements of whole lines."""
        first, *lines = data.splitlines()
        try:
            header = msgspec.json.decode(first, type=_Header)
        except msgspec.DecodeError:
            self._refuse("its first line does not say so")
        if header.format != FORMAT or header.version != VERSION:
            self._refuse(
                f"its format is {header.format!r} version {header.version}, not {FORMAT!r} version {VERSION}"
            )
        if header.problem_sha256 != wanted.problem_sha256:
            msg = (
                f"{self._path} holds results of {header.collective} on {header.topology} "
                f"(problem {header.problem_sha256[:12]}), not of {wanted.collective} on {wanted.topology} "
                f"(problem {wanted.problem_sha256[:12]}): give each problem a file of its own."
            )
            raise InputError(msg)
        decoder = msgspec.json.Decoder(Measurement)
        for number, line in enumerate(lines, start=2):
            try:
                row = decoder.decode(line)
            except msgspec.DecodeError as error:
                msg = f"{self._path}:{number}: expected a measurement, found something else ({error}): remove the line."
                raise InputError(msg) from None
            self.known[row.key] = row

    def _refuse(self, found: str) -> Any:
        msg = f"expected {self._path} to be a results file of `coppice compare`, but {found}: choose another name."
        raise InputError(msg)


def _could_be_cut_header(data: bytes) -> bool:
    """Whether a file without a whole line may be the beginning of a results file."""
    start = f'{{"format":"{FORMAT}"'.encode()
    return data.startswith(start) or start.startswith(data)


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
