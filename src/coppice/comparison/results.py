"""Resumable result files, one JSON object per line.

The first line says what the file is and what its results depend on; every further line is a result with the key of what
decides it. Lines are only ever appended. A last line that was cut short is dropped; the result is then made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

import msgspec

from coppice.bounds.problem import Problem
from coppice.comparison.measurement import AlgorithmVariant, SimulatedTime
from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.files import AppendedFile
from coppice.simulation.models import Model
from coppice.version import __version__


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


Header = TypeVar("Header", bound=msgspec.Struct)
Row = TypeVar("Row", bound=_Keyed)


class ResultsFile(ABC, Generic[Header, Row]):
    """Append-only results in a file, or in memory only; subclasses define the results.

    Args:
        path: The file; it is made where it does not exist. None keeps nothing.
        header: First line of a new file, and what that of an existing one must agree with; the first fields are
            ``format`` and ``version``.
        row: Type of the results.

    Raises:
        InputError: If the file is something else, disagrees with the header, or cannot be read or written.
    """

    command: ClassVar[str]
    """Command whose files these are."""
    rows_are: ClassVar[str]
    """What a line holds, in words."""

    def __init__(self, path: str | os.PathLike[str] | None, header: Header, row: type[Row]) -> None:
        self._path = None if path is None else Path(path)
        self._file = None if path is None else AppendedFile(path)
        self._header = header
        self.known: dict[str, Row] = {}  # Results that the file holds, by key
        if self._file is None:
            return
        first = msgspec.json.encode(header)
        try:
            data = self._file.content()
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                self._read(whole, row)
            elif not _could_be_cut(data, first):
                self._refuse("it has no line that says what it holds")
            if whole != data:
                self._file.keep(len(whole))
            if not whole:
                self._append([first])
        except OSError as error:
            raise InputError(
                f"cannot use {self._path} for results ({error.strerror or error}): choose another place."
            ) from None

    @abstractmethod
    def differs(self, found: Header) -> str | None:
        """How the header of a file differs from the expected one, for a message; None if it matches."""

    def add(self, rows: Iterable[Row]) -> None:
        """Append results."""
        made = list(rows)
        self.known.update((row.key, row) for row in made)
        try:
            self._append([msgspec.json.encode(row) for row in made])
        except OSError as error:
            raise InputError(
                f"cannot write {self._path} ({error.strerror or error}): choose another place for results."
            ) from None

    def _append(self, lines: list[bytes]) -> None:
        """Append lines with one write, so that an interruption cannot mix them up."""
        if self._file is not None and lines:
            self._file.append(b"".join(line + b"\n" for line in lines))

    def _read(self, data: bytes, row: type[Row]) -> None:
        """Take the results of whole lines."""
        first, *lines = data.splitlines()
        try:
            header = msgspec.json.decode(first, type=decodable(type(self._header)))
        except msgspec.DecodeError:
            self._refuse("its first line does not say so")
        found = self.differs(header)
        if found is not None:
            self._refuse(found)
        decoder = msgspec.json.Decoder(decodable(row))
        for number, line in enumerate(lines, start=2):
            try:
                result = decoder.decode(line)
            except JSON_FAULTS as error:
                where = f"{self._path}:{number}"
                fault = json_fault(error, line)
                raise InputError(
                    f"{where}: expected {self.rows_are}, found something else ({fault}): remove the line."
                ) from None
            self.known[result.key] = result

    def _refuse(self, found: str) -> NoReturn:
        name = f"a results file of `coppice {self.command}`"
        raise InputError(f"expected {self._path} to be {name}, but {found}: choose another name.")


def _could_be_cut(data: bytes, header: bytes) -> bool:
    """Whether a file without a whole line may be the beginning of one with such a header."""
    start = header[: header.index(b",")]  # the format; the rest may be that of another problem
    return data.startswith(start) or start.startswith(data)


class _ComparisonHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    collective: str
    root: int | None
    topology: str
    problem_sha256: str


class MeasurementsFile(ResultsFile[_ComparisonHeader, SimulatedTime]):
    """Results file of the measurements of one problem (see :class:`ResultsFile`).

    Args:
        path: The file; None keeps nothing.
        problem: What all its measurements are about.
    """

    command = "compare"
    rows_are = "a measurement"

    def __init__(self, path: str | os.PathLike[str] | None, problem: Problem) -> None:
        header = _ComparisonHeader(
            format="coppice-comparison",
            version=1,
            collective=problem.collective.value,
            root=problem.root,
            topology=problem.topology.name,
            problem_sha256=problem_sha256(problem),
        )
        super().__init__(path, header, SimulatedTime)

    def differs(self, found: _ComparisonHeader) -> str | None:
        """Whether format or version differ; a different problem is an error of its own."""
        wanted = self._header
        if (found.format, found.version) != (wanted.format, wanted.version):
            return (
                f"its format is {found.format!r} version {found.version}, not {wanted.format!r} "
                f"version {wanted.version}"
            )
        if found.problem_sha256 != wanted.problem_sha256:
            raise InputError(
                f"{self._path} holds results of {found.collective} on {found.topology} "
                f"(problem {found.problem_sha256[:12]}), not of {wanted.collective} on {wanted.topology} "
                f"(problem {wanted.problem_sha256[:12]}): give each problem a file of its own."
            )
        return None


def problem_sha256(problem: Problem) -> str:
    """Hash of the topology and the collective."""
    return _hash(
        {
            "topology": problem.topology.sha256,
            "collective": problem.collective.value,
            "root": problem.root,
            "weights": problem.weights,
            "demands": problem.demands,
        }
    )


def key_of(problem_hash: str, candidate: AlgorithmVariant, size_bytes: int, model: Model) -> str:
    """Hash of everything that affects a measurement: problem, candidate, size, model and this version.

    Examples:
        >>> ring = AlgorithmVariant(algorithm="ring")
        >>> key_of("p", ring, 1024, Model()) == key_of("p", ring, 1024, Model(overhead_us=2.0))
        False
    """
    return _hash(
        {
            "problem": problem_hash,
            "candidate": candidate.facts(),
            "size_bytes": size_bytes,
            "model": asdict(model),
            "coppice": __version__,
        }
    )


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
