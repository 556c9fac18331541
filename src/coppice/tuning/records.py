"""Measurements of a library's algorithms with its default, one JSON object per line; files may be joined.

A line stands for one choice (algorithm, protocol, channels, segments) at one size on one shape of communicator, with
the times of all repeats and, measured beside them, those of the library's own choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from coppice.collectives import Collective
from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.files import AppendedFile, file_name, read_bytes

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import CallShapeJson


class CallShape(msgspec.Struct, frozen=True, order=True):
    """Properties, apart from the size, by which a library's rules distinguish calls."""

    collective: Collective  # What is run
    nodes: int  # Nodes that the communicator spans
    ranks: int  # Its ranks

    def __str__(self) -> str:
        return f"{self.collective} on {self.nodes}x{self.ranks}"

    def record(self) -> CallShapeJson:
        """The shape as JSON values."""
        return {
            "collective": self.collective.value,
            "node_count": self.nodes,
            "nodes": self.nodes,
            "ranks": self.ranks,
        }


class LibraryChoice(msgspec.Struct, frozen=True, order=True):
    """A forced algorithm and its parameters."""

    # In the library's own words (`ring`, `rabenseifner`); for NCCL and RCCL those of tuner tables
    algorithm: str
    protocol: str = ""  # Protocol of NCCL and RCCL, else empty
    channels: int = 0  # Number of channels of NCCL and RCCL, 0 leaves it to the library
    segment_bytes: int = 0  # Size of a segment for Open MPI, 0 for whole messages
    number: int = 0  # Number that Open MPI gives the algorithm, 0 elsewhere

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol]
        words += [f"{self.channels} channels"] if self.channels else []
        words += [f"segments of {self.segment_bytes}"] if self.segment_bytes else []
        return " ".join(word for word in words if word)


class TimedRun(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Times of one choice at one size, with interleaved times of the default."""

    library: str  # `open-mpi`, `mpich`, `nccl` or `rccl`
    version: str = ""  # Its version, empty where nothing says so
    collective: Collective  # What was run
    nodes: int  # Nodes of the communicator
    ranks: int  # Its ranks
    size_bytes: int  # M (see :mod:`coppice.collectives`)
    choice: LibraryChoice  # What the library was told
    default_us: tuple[float, ...] = ()  # Times without being told, in the order of measuring
    # Times of the choice; the i-th belongs to the i-th default where `paired`
    time_us: tuple[float, ...] = ()
    paired: bool = True  # Every time was measured right after its default
    wrong: int = 0  # Number of wrong results; such a choice is never taken
    refusal: str = ""  # Why the library did not run it; there are no times then
    origin: str = ""  # Where the times come from, in words

    @property
    def shape(self) -> CallShape:
        """Collective, nodes and ranks."""
        return CallShape(self.collective, self.nodes, self.ranks)

    @property
    def key(self) -> tuple[str, str, CallShape, int, LibraryChoice]:
        """Identification of the measurement."""
        return (self.library, self.version, self.shape, self.size_bytes, self.choice)


def encode_run(run: TimedRun) -> bytes:
    """Encode a run as a line."""
    return msgspec.json.encode(run) + b"\n"


def decode_runs(data: bytes, *, file: str) -> tuple[tuple[TimedRun, ...], int]:
    r"""Decode the runs of a file, and where its last complete line ends.

    A last line without an end was cut off while it was written: it is left out.

    Examples:
        >>> decode_runs(b'{"library":"mpich","coll', file="runs.jsonl")
        ((), 0)
    """
    found: list[TimedRun] = []
    whole = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:whole].split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        words = f"{where} is no measurement of `coppice tune sweep`"
        run = decode_json(line, TimedRun, partial("{} ({}): remove the line.".format, words))
        reason = _contradiction(run)
        if reason is not None:
            raise InputError(f"{where}: {reason}: remove the line, and measure again.")
        found.append(run)
    return tuple(found), whole


def _contradiction(run: TimedRun) -> str | None:
    if not run.refusal and (not run.default_us or not run.time_us):
        return "expected times, or why there are none"
    if run.paired and len(run.default_us) != len(run.time_us):
        return f"expected as many times as defaults, found {len(run.time_us)} and {len(run.default_us)}"
    if any(not 0 < time < 1e15 for time in (*run.default_us, *run.time_us)):
        return "expected times above 0 us"
    if run.nodes < 1 or run.ranks < max(2, run.nodes) or run.size_bytes < 0:
        return f"expected 2 ranks or more, found {run.ranks} on {run.nodes} nodes, {run.size_bytes} bytes"
    return None


def reopen(path: Path) -> tuple[TimedRun, ...]:
    """Read the runs of an interrupted sweep; an incomplete last line is cut off.

    Args:
        path: The file, which need not be there.
    """
    if not path.absolute().parent.is_dir():
        raise InputError(
            f"expected a directory at {path.absolute().parent}, found none: make it, or choose another place."
        )
    kept = AppendedFile(path)
    data = kept.content()
    runs, whole = decode_runs(data, file=str(path))
    if whole < len(data):
        kept.keep(whole)
    return runs


def append(path: Path, runs: Iterable[TimedRun]) -> None:
    """Append runs to the file of a sweep durably."""
    AppendedFile(path).append(b"".join(map(encode_run, runs)), flush=True)


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[TimedRun, ...]:
    """Read runs from several files, joining those of one choice at one size."""
    found: list[TimedRun] = []
    for path in paths:
        data = read_bytes(path, hint="give a file of `coppice tune sweep`")
        found += decode_runs(data, file=file_name(path))[0]
    if not found:
        names = ", ".join(os.fspath(path) for path in paths)
        raise InputError(f"{names}: expected measurements, found none: `coppice tune sweep` makes some.")
    libraries = sorted({(run.library, run.version) for run in found})
    if len(libraries) > 1:
        words = ", ".join(" ".join(each).strip() for each in libraries)
        raise InputError(
            f"expected measurements of one version of one library, found {words}: fit them one by one."
        )
    return joined(found)


def joined(runs: Iterable[TimedRun]) -> tuple[TimedRun, ...]:
    """Merge runs of the same choice and size, in order of first appearance.

    A refusal gives way to times; of paired and unpaired times, unpaired ones make all unpaired.
    """
    found: dict[tuple[str, str, CallShape, int, LibraryChoice], TimedRun] = {}
    for run in runs:
        known = found.get(run.key)
        if known is None or known.refusal:
            found[run.key] = run if known is None or not run.refusal else known
        elif not run.refusal:
            found[run.key] = msgspec.structs.replace(
                known,
                default_us=known.default_us + run.default_us,
                time_us=known.time_us + run.time_us,
                paired=known.paired and run.paired,
                wrong=known.wrong + run.wrong,
            )
    return tuple(found.values())
