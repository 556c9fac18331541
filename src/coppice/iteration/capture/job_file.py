"""Write a recognised job as a job file, with what was not recognised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from coppice.iteration.capture.recognising import RecognisedJob
from coppice.text import plural
from coppice.version import __version__


def job_text(job: RecognisedJob, command: Sequence[str], *, rank: int, ranks: int) -> str:
    """Text of a job file (TOML) as ``coppice train estimate`` reads it.

    Args:
        job: The job.
        command: The script and its arguments.
        rank: The rank that was captured.
        ranks: Ranks of the job.
    """
    lines = [
        f"# Captured from {' '.join(command)} as rank {rank} of {ranks} by coppice {__version__}.",
        f"# Weights of the script: {job.weights:,}; by the numbers below: {job.recognised_weights:,}.",
    ]
    lines += [f"# Not recognised: {note}." for note in job.notes]
    if not job.notes:
        lines.append("# All that it needs was recognised.")
    tables: dict[str, dict[str, Any]] = msgspec.to_builtins(job.record)
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    if "cluster" not in {name for name, table in tables.items() if table}:
        lines += ["", f"# [cluster] is that of --topology and --boxes: {plural(ranks, 'GPU')}."]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return msgspec.json.encode(value).decode()
