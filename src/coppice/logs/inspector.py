"""Read records of NCCL's inspector plug-in (formats v4.0 to v4.3) as measurements.

Every rank writes a record of each collective, one JSON object after the other. Records of one collective (same
communicator, same number) belong together: it took as long as on its slowest rank, and the fastest tells how far apart
they are. Sizes are those of a rank's count, so that an all-gather or a reduce-scatter of n ranks moves n times as much.
From v4.3 on, the records of a dump follow one that names the communicator for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.json_text import integer, mapping, number, text_of
from coppice.logs.records import (
    CLOCKS,
    TUNED,
    LoggedMeasurement,
    collective_named,
    count_untuned,
    message_bytes,
    own_name,
)
from coppice.text import plural

_PAYLOADS = ("coll_perf", "p2p_perf", "proxy_trace")
_MOST_RANKS = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectorCall:
    """A collective on one rank."""

    communicator: str  # Id of the communicator
    number: int  # Number of the collective in it
    rank: int  # The rank
    ranks: int  # Ranks of the communicator
    nodes: int  # Nodes that it spans
    collective: Collective  # What was run
    rank_bytes: int  # Bytes of the rank's count
    time_us: float  # Time on this rank
    algorithm: str | None  # What carried it out, None where not given
    protocol: str | None  # Likewise
    clock: str | None  # What timed it (:data:`coppice.logs.records.CLOCKS`), None where not given
    line: int  # Line of the file


def is_inspector(value: Any) -> bool:
    """Whether a JSON value is a record of the inspector."""
    return isinstance(value, dict) and ("dump_stats" in value or any(key in value for key in _PAYLOADS))


class Inspector:
    """Parse the records of one file in order."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.calls: list[InspectorCall] = []  # Collectives so far
        self.beside: dict[str, int] = {}  # Calls that a tuner is not asked about, by what they are
        self.dropped = 0  # Records that the plug-in says it lost
        self._header: dict[str, Any] | None = None

    def add(self, value: Any, line: int) -> None:
        """Add a record."""
        where = f"{self.file}:{line}"
        if not is_inspector(value):
            raise InputError(
                f"expected a record of the inspector at {where}, found something else: give its files unchanged."
            )
        if "dump_stats" in value:
            self._header = mapping(value, "header", where)
            stats = mapping(value, "dump_stats", where)
            if "coll_dropped_since_last_dump" in stats:
                self.dropped += integer(stats, "coll_dropped_since_last_dump", where)
            return
        header = mapping(value, "header", where) if "header" in value else self._header
        if header is None:
            raise InputError(
                f"the record at {where} names no communicator, nor does one before it: is the file whole?"
            )
        if "p2p_perf" in value:
            count_untuned(self.beside, text_of(mapping(value, "p2p_perf", where), "p2p", where)[:40])
        elif "coll_perf" in value:
            self._call(header, mapping(value, "coll_perf", where), where, line)

    def _call(self, header: dict[str, Any], perf: dict[str, Any], where: str, line: int) -> None:
        name = text_of(perf, "coll", where)
        collective = collective_named(name)
        if collective is None or collective not in TUNED.values():
            count_untuned(self.beside, name[:40])
            return
        ranks = integer(header, "n_ranks", where, low=1, high=_MOST_RANKS)
        algorithm, protocol, clock = (
            perf.get(key) for key in ("coll_algo", "coll_proto", "coll_timing_source")
        )
        self.calls.append(
            InspectorCall(
                communicator=text_of(header, "id", where),
                number=integer(perf, "coll_sn", where),
                rank=integer(header, "rank", where, high=ranks - 1),
                ranks=ranks,
                nodes=integer(header, "nnodes", where, low=1, high=ranks),
                collective=collective,
                rank_bytes=integer(perf, "coll_msg_size_bytes", where),
                time_us=number(perf, "coll_exec_time_us", where),
                algorithm=own_name(algorithm) if isinstance(algorithm, str) else None,
                protocol=own_name(protocol) if isinstance(protocol, str) else None,
                clock=clock[:40] if isinstance(clock, str) else None,
                line=line,
            )
        )


def joined(
    calls: Sequence[tuple[str, InspectorCall]], warnings: dict[str, list[str]]
) -> list[LoggedMeasurement]:
    """Join the collectives of several files over all ranks.

    Times of a collective are compared only where one kind of clock took them: where ranks differ, those of the best
    clock count.

    Args:
        calls: Records with the files that they came from.
        warnings: Gets by file what was left out, and which times are no times of kernels.
    """
    groups: dict[tuple[str, int, Collective, int], list[tuple[str, InspectorCall]]] = {}
    met: dict[tuple[str, int, Collective, int], int] = {}
    for file, call in calls:
        own = (call.communicator, call.number, call.collective, call.rank)
        met[own] = met.get(own, -1) + 1  # a rank that tells a number twice is of another run
        groups.setdefault((*own[:3], met[own]), []).append((file, call))
    found: list[LoggedMeasurement] = []
    mixed: dict[str, int] = {}
    for members in groups.values():
        file, first = members[0]
        for other_file, other in members[1:]:
            if (other.rank_bytes, other.ranks) != (first.rank_bytes, first.ranks):
                raise InputError(
                    f"{other_file}:{other.line} has {other.rank_bytes} bytes on {other.ranks} ranks, and "
                    f"{file}:{first.line} {first.rank_bytes} on {first.ranks} for the same collective: give files of "
                    "one job."
                )
        clock = min((call.clock for _, call in members), key=_quality)
        times = [call.time_us for _, call in members if call.clock == clock]
        if len(times) < len(members):
            mixed[file] = mixed.get(file, 0) + len(members) - len(times)
        found.append(
            LoggedMeasurement(
                collective=first.collective,
                ranks=first.ranks,
                nodes=first.nodes,
                size_bytes=message_bytes(first.collective, first.rank_bytes, first.ranks),
                time_us=max(times),
                least_us=min(times) if len(times) > 1 else None,
                algorithm=first.algorithm,
                protocol=first.protocol,
                clock=clock,
                file=file,
                line=first.line,
            )
        )
    for file, count in mixed.items():
        warnings.setdefault(file, []).append(
            f"{file}: left out: {plural(count, 'time')} by another clock than on the other ranks"
        )
    of_host: dict[tuple[str, str], int] = {}
    for each in found:
        if not each.of_kernels and each.clock is not None:
            of_host[each.file, each.clock] = of_host.get((each.file, each.clock), 0) + 1
    for (file, clock), count in of_host.items():
        warnings.setdefault(file, []).append(
            f"{file}: {plural(count, 'measurement')} by the host's clock around the call ({clock}): no times of kernels"
        )
    return found


def _quality(clock: str | None) -> int:
    """How good a clock is, the best first; where nothing is said, it was that of the GPU."""
    return 0 if clock is None else CLOCKS.index(clock) if clock in CLOCKS else len(CLOCKS)
