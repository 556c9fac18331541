"""Jobs files: plans of several groups that run at once, each with its size and start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.files import read_bytes, write_atomically

FORMAT = "coppice-jobs"

VERSION = 1


class JobRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A plan that runs concurrently with others."""

    name: str  # What it is called in reports
    plan: str  # Plan file, from where the jobs file lies
    size: str | int  # M
    start_us: float = 0.0  # When it starts
    pieces: int | None = None  # Pieces of every chunk; None: what is the best for it alone


class JobsFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a jobs file holds."""

    format: str
    version: int
    jobs: list[JobRow]
    topology: str | None = None  # The cluster: a file beside the jobs, or what a command line takes


def encode_jobs(jobs: Sequence[JobRow]) -> bytes:
    """Encode a jobs file.

    >>> print(encode_jobs([JobRow(name="dp", plan="dp.json", size="1M")]).decode())
    {
      "format": "coppice-jobs",
      "version": 1,
      "jobs": [
        {
          "name": "dp",
          "plan": "dp.json",
          "size": "1M"
        }
      ]
    }
    <BLANKLINE>
    """
    document = JobsFile(format=FORMAT, version=VERSION, jobs=list(jobs))
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def write_jobs(jobs: Sequence[JobRow], path: str | os.PathLike[str]) -> None:
    """Write a jobs file.

    Raises:
        InputError: If the file cannot be written.
    """
    write_atomically(path, encode_jobs(jobs))


def decode_jobs(path: Path) -> JobsFile:
    """Read a jobs file, without its plans.

    Raises:
        InputError: If it is none, or of another version.
    """
    data = read_bytes(path, what="the jobs", hint="check the name")
    words = f"expected jobs as docs/simulation.md describes in {path}, found"
    document = decode_json(data, JobsFile, lambda fault: f"{words}: {fault.rstrip('.')}.")
    if (document.format, document.version) != (FORMAT, VERSION):
        found = f"{document.format[:40]!r}, version {document.version}"
        raise InputError(f'expected format "{FORMAT}", version {VERSION} in {path}, found {found}.')
    return document
