"""Measurements that somebody already has (nccl-tests, inspector, logs) as runs that rules are fitted to.

Times that the environment forced count for the algorithm, protocol and channels that carried them out; times that
nothing forced are the default. They were not measured side by side, so that they are compared without pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.fitting.nccl_tuner.timings import COLLECTIVES
from coppice.logs.records import Log, LoggedMeasurement
from coppice.tuning.records import LibraryChoice, TimedRun

__all__ = ["runs_of_logs"]

_Key = tuple[Collective, int, int, int]


def runs_of_logs(
    logs: Sequence[Log], *, library: str = "nccl"
) -> tuple[tuple[TimedRun, ...], tuple[str, ...]]:
    """Runs from what logs say, and what had to be left out, in words.

    Args:
        logs: The logs (see :func:`coppice.logs.reading.read_logs`).
        library: ``nccl`` or ``rccl``: logs do not tell them apart.

    Raises:
        InputError: If versions differ, or no size has both a default and a choice.
    """
    versions = sorted({log.version for log in logs if log.version})
    if len(versions) > 1:
        msg = f"expected logs of one version, found {', '.join(versions)}: a table is for one."
        raise InputError(msg)
    defaults: dict[_Key, list[float]] = {}
    times: dict[tuple[_Key, LibraryChoice], list[LoggedMeasurement]] = {}
    left: dict[str, int] = {}
    for log in logs:
        for row in log.measurements:
            reason = _unusable(row)
            if reason is not None:
                left[f"{log.file}: {reason}"] = left.get(f"{log.file}: {reason}", 0) + 1
                continue
            key = (row.collective, row.nodes or 1, row.ranks or 2, row.size_bytes)
            if row.forced and row.algorithm is not None and row.protocol is not None:
                choice = LibraryChoice(row.algorithm, row.protocol, _channels(row, log))
                times.setdefault((key, choice), []).append(row)
            else:
                defaults.setdefault(key, []).append(row.time_us)
                if row.forced is None:
                    words = f"{log.file}: does not say whether anything was forced, taken for the default"
                    left[words] = left.get(words, 0) + 1
    found = [
        TimedRun(
            library=library,
            version=versions[0] if versions else "",
            collective=key[0],
            nodes=key[1],
            ranks=key[2],
            size_bytes=key[3],
            choice=choice,
            default_us=tuple(defaults[key]),
            time_us=tuple(row.time_us for row in rows),
            paired=False,
            wrong=sum(row.wrong or 0 for row in rows),
            origin=", ".join(dict.fromkeys(row.file for row in rows)),
        )
        for (key, choice), rows in times.items()
        if key in defaults
    ]
    if not found:
        msg = (
            f"expected times of the default and of forced choices at equal sizes, found {len(defaults)} sizes of the "
            f"one and {len(times)} of the other: run nccl-tests with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV,TUNING, "
            "once as it is and once with NCCL_ALGO and NCCL_PROTO."
        )
        raise InputError(msg)
    return tuple(found), tuple(f"{words} ({count} times)" for words, count in left.items())


def _unusable(row: LoggedMeasurement) -> str | None:
    if row.ranks is None or row.nodes is None:
        return "nothing tells the shape of the communicator"
    if row.ranks < 2 or row.collective not in COLLECTIVES:
        return f"no tuner is asked about {row.collective} of {row.ranks} ranks"
    if row.time_us <= 0:
        return "no time"
    if row.in_place:
        return "in place, the other figures count"
    if row.forced and (row.algorithm is None or row.protocol is None):
        return "forced, but nothing tells what ran"
    return None


def _channels(row: LoggedMeasurement, log: Log) -> int:
    """Channels where they were forced; what the library took by itself stays with the library."""
    forced = any(name.endswith(("_CTAS", "_NCHANNELS")) for name in log.settings)
    return (row.channels or 0) if forced else 0
