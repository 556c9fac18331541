"""Read what NCCL's RAS service reports of a running job (``ncclras -f json``, ``SET FORMAT json`` of its protocol)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coppice.errors import InputError
from coppice.logs.json_text import integer

# The writer of 2.28.9 leaves a comma out between two keys of a missing rank
_NO_COMMA = re.compile(r'([0-9"el])(\s*\n\s*)("[^"\n]*"\s*:)')


@dataclass(frozen=True, kw_only=True, slots=True)
class RasRank:
    """A rank of a communicator, as RAS sees it."""

    communicator: str  # Hash of the communicator
    rank: int
    host: str
    pid: int
    counts: Mapping[str, int]  # Collectives that it called, by kind; empty of a rank that does not answer
    answers: bool = True
    dead: bool = False  # RAS gave it up
    started: bool = True  # Its initialisation is done
    failed: int = 0  # Asynchronous error of NCCL, 0 for none
    aborted: bool = False

    @property
    def where(self) -> str:
        """The rank in words."""
        return f"rank {self.rank} (process {self.pid} on {self.host})"


@dataclass(frozen=True, kw_only=True)
class RasReport:
    """Ranks of all communicators."""

    file: str
    version: str
    ranks: tuple[RasRank, ...]


def is_ras(value: Any) -> bool:
    """Whether a JSON value is a report of RAS."""
    return isinstance(value, dict) and isinstance(value.get("communicators"), list) and "files" not in value


def ras_json(text: str) -> Any:
    r"""The JSON of a report, None where a text is none; lines of the protocol before it are left out.

    Examples:
        >>> ras_json('OK\n{"communicators": []}')
        {'communicators': []}
    """
    body = re.sub(r"\A\s*(?:OK\s*\n)+", "", text)
    if not body.lstrip().startswith("{") or '"communicators"' not in body:
        return None
    for each in (body, _NO_COMMA.sub(r"\1,\2\3", body)):
        try:
            value = json.loads(each)
        except (ValueError, RecursionError):
            continue
        return value if is_ras(value) else None
    return None


def read_ras(value: Any, *, file: str) -> RasReport:
    """The report as records.

    Raises:
        InputError: If a key is missing or of another type.
    """
    found: list[RasRank] = []
    for place, communicator in enumerate(value["communicators"]):
        where = f"{file} $.communicators[{place}]"
        name = str(_object(communicator, where).get("hash", place))[:80]
        for key in ("ranks", "missing_ranks"):
            rows = communicator.get(key) or ()
            found += [_rank(_object(row, where), name, where, missing=key == "missing_ranks") for row in rows]
    return RasReport(file=file, version=str(value.get("nccl_version", ""))[:40], ranks=tuple(found))


def _rank(row: Mapping[str, Any], communicator: str, where: str, *, missing: bool) -> RasRank:
    status = row.get("status") if isinstance(row.get("status"), dict) else row
    counts = row.get("collective_counts") or {}
    told = {str(kind)[:40]: integer(counts, kind, where) for kind in _object(counts, where)}

    def flag(key: str) -> bool:
        return isinstance(status, dict) and status.get(key) is True

    def code(key: str) -> int:
        value = status.get(key, 0) if isinstance(status, dict) else 0
        return value if isinstance(value, int) else 0

    return RasRank(
        communicator=communicator,
        rank=integer(row, "rank", where, high=1 << 24),
        host=str(row.get("host", "?"))[:80],
        pid=integer(row, "pid", where) if "pid" in row else 0,
        counts=told,
        answers=not missing,
        dead=flag("considered_dead"),
        started=code("init_state") == 0,
        failed=code("async_error"),
        aborted=flag("abort_flag"),
    )


def _object(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise InputError(f"expected an object at {where}, found {type(value).__name__}: is the report whole?")
    return value
