"""Records of one job from all its files, joined over ranks: the subject of the rules about runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.doctor.framework import Place, Rulebook, Subject
from coppice.errors import InputError
from coppice.files import file_name
from coppice.logs.flight_recorder import FlightRecording, is_pickle, is_recording, read_recording, unpickled
from coppice.logs.inspector import InspectorCall
from coppice.logs.json_text import json_objects
from coppice.logs.lines import LogLine, log_lines
from coppice.logs.nccl_tests import has_table
from coppice.logs.profiler_events import ProfiledCall, ProxyWait, profile_events, read_profile
from coppice.logs.ras import RasReport, ras_json, read_ras
from coppice.logs.reading import decoded, parse_logs, read_log_bytes
from coppice.logs.records import CLOCKS, Log
from coppice.text import plural
from coppice.topology.model import Topology

_SPOKEN = re.compile(r"NCCL (?:INFO|WARN) |WorkNCCL\(|\[rank ?[0-9]+\]", re.IGNORECASE)
_PROCESS = re.compile(r"(?P<host>[\w.-]+):(?P<pid>[0-9]+):[0-9]+ \[[0-9]+\] ")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCall:
    """A collective on one rank, with its time there."""

    communicator: str
    number: int  # Of the collective in the communicator
    rank: int
    ranks: int | None  # Of the communicator, None where nothing tells
    operation: str
    time_us: float
    kernels: bool  # The time is of kernels; otherwise it is the host's
    file: str


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecords(Subject):
    """Records of one job from all its files."""

    files: tuple[str, ...]
    logs: tuple[Log, ...] = ()
    texts: tuple[tuple[str, bytes], ...] = ()  # Logs of programs, with their contents
    inspected: tuple[tuple[str, InspectorCall], ...] = ()  # Records of the inspector, with their files
    recordings: tuple[FlightRecording, ...] = ()
    reports: tuple[RasReport, ...] = ()
    profiled: tuple[tuple[str, ProfiledCall], ...] = ()  # With their files
    waits: tuple[ProxyWait, ...] = ()
    topology: Topology | None = None  # The network, where it was given or one of the files is a dump of it

    def locate(self, place: Place) -> tuple[int, str]:
        """A place is a file and a line of it."""
        if isinstance(place, tuple) and len(place) == 2 and isinstance(place[1], int):
            return place[1], str(place[0])
        return (place, "") if isinstance(place, int) else (0, str(place[0]))

    @cached_property
    def lines(self) -> tuple[tuple[str, tuple[LogLine, ...]], ...]:
        """Lines of each log, without what launchers put before them."""
        return tuple((file, tuple(log_lines(decoded(data)))) for file, data in self.texts)

    def spoken(self) -> Iterator[tuple[str, LogLine]]:
        """Lines of all logs, with their files."""
        for file, lines in self.lines:
            for line in lines:
                yield file, line

    @cached_property
    def calls(self) -> tuple[RankCall, ...]:
        """Collectives of all ranks, with their times."""
        found = [
            RankCall(
                communicator=call.communicator,
                number=call.number,
                rank=call.rank,
                ranks=call.ranks,
                operation=str(call.collective),
                time_us=call.time_us,
                kernels=call.clock not in CLOCKS[2:],
                file=file,
            )
            for file, call in self.inspected
        ]
        for each in self.recordings:
            found += [
                RankCall(
                    communicator=call.group,
                    number=call.number,
                    rank=each.rank,
                    ranks=len(each.groups[call.group][1]) or None if call.group in each.groups else None,
                    operation=call.operation,
                    time_us=1000 * call.duration_ms,
                    kernels=True,
                    file=each.file,
                )
                for call in each.calls
                if call.duration_ms is not None and not call.message
            ]
        return tuple(found)


RUN_RULES = Rulebook[RunRecords]()
"""Rules about runs."""


def process_of(text: str) -> tuple[str, str] | None:
    """Host and process that printed a line of NCCL.

    Examples:
        >>> process_of("n1:7:9 [0] NCCL INFO NCCL_ALGO set by environment to Ring.")
        ('n1', '7')
    """
    match = _PROCESS.match(text)
    return None if match is None else (match["host"], match["pid"])


@checked
def read_records(
    paths: Sequence[str | os.PathLike[str]],
    *,
    topology: Topology | None = None,
    collective: Collective | None = None,
) -> RunRecords:
    """Read files of one job: logs, tables, records of the inspector, reports of RAS, dumps, events of the profiler.

    Args:
        paths: The files; their kinds are found by content.
        topology: The network, to tell what is achievable there.
        collective: What was run, for tables of old versions of nccl-tests that do not say.

    Raises:
        InputError: If a file cannot be read, or is of no known kind.
    """
    plain: list[tuple[str, bytes]] = []
    texts: list[tuple[str, bytes]] = []
    spoken: list[Log] = []
    recordings: list[FlightRecording] = []
    reports: list[RasReport] = []
    profiled: list[tuple[str, ProfiledCall]] = []
    waits: list[ProxyWait] = []
    names = [file_name(path) for path in paths]
    for path, name in zip(paths, names, strict=True):
        data = read_log_bytes(path)
        if is_pickle(data):
            recordings.append(read_recording(unpickled(data, file=name), file=name))
            continue
        text = decoded(data)
        start = text.lstrip()[:4096]
        events = profile_events(text, file=name) if start.startswith(("{", "[")) else None
        report = ras_json(text) if '"communicators"' in text[: 1 << 16] else None
        if report is not None:
            reports.append(read_ras(report, file=name))
        elif events is not None:
            calls, own = read_profile(events, file=name)
            profiled += [(name, call) for call in calls]
            waits += own
        elif '"entries"' in text and start.startswith("{") and '"pg_' in text:
            value = next(iter(json_objects(text, file=name)))[1]
            if not is_recording(value):
                raise InputError(f"expected a dump of the flight recorder in {name}, found other JSON.")
            recordings.append(read_recording(value, file=name))
        elif not start.startswith(("<", "{", "[{")) and _SPOKEN.search(text):
            texts.append((name, data))
            if re.search("NCCL (?:INFO|WARN|version)", text) or has_table(log_lines(text)):
                spoken += parse_logs([(name, data)], collective=collective)[0]
            else:
                spoken.append(Log(file=name, kind="log of PyTorch"))
        else:
            plain.append((name, data))
    logs, inspected = parse_logs(plain, collective=collective)
    ranks = [each.rank for each in recordings]
    again = next((rank for rank in ranks if ranks.count(rank) > 1), None)
    if again is not None:
        both = [each.file for each in recordings if each.rank == again]
        raise InputError(
            f"expected one dump a rank, found {both[0]} and {both[1]} of rank {again}: give one job."
        )
    dumped = next((log.topology for log in logs if log.topology is not None), None)
    return RunRecords(
        file=names[0] if len(names) == 1 else plural(len(names), "file"),
        files=tuple(names),
        logs=tuple(sorted((*spoken, *logs), key=lambda log: names.index(log.file))),
        texts=tuple(texts),
        inspected=inspected,
        recordings=tuple(sorted(recordings, key=lambda each: each.rank)),
        reports=tuple(reports),
        profiled=tuple(profiled),
        waits=tuple(waits),
        topology=topology if topology is not None else dumped,
    )
