"""Reads what libraries and benchmarks leave behind; the kind of a file is found by its content.

    table of nccl-tests      what the programs print, and the file of ``-J``
    log of NCCL or RCCL      ``NCCL_DEBUG=INFO`` with the subsystems INIT, ENV and TUNING; may be mixed with the table
    records of the inspector one JSON object after the other
    graphs                   the file of ``NCCL_GRAPH_DUMP_FILE``
    topology                 the file of ``NCCL_TOPO_DUMP_FILE``

:func:`read_log` reads one file, :func:`read_logs` several, in which records of one collective are put together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.nccl.graph import graphs_of
from coppice.files import file_name, read_bytes
from coppice.logs.inspector import Inspector, InspectorCall, is_inspector, joined
from coppice.logs.json_text import json_objects
from coppice.logs.nccl import read_nccl_log
from coppice.logs.nccl_tests import NcclTestsTable, read_nccl_tests
from coppice.logs.nccl_tests_log import collective_of, is_tests_file, read_tests_file, rows_measured, shape_of
from coppice.logs.records import Log, LoggedMeasurement
from coppice.topology.readers.nccl_xml import read_nccl_xml
from coppice.topology.readers.reading import ReadOptions
from coppice.topology.readers.xml_tree import parse_xml

__all__ = ["parse_log", "read_log", "read_logs"]

_MOST_BYTES = 512 * 2**20
_TOO_LARGE = "split it, or keep the lines of rank 0."
_ROW = "nccl-tests"


def read_log(path: str | os.PathLike[str], *, collective: Collective | None = None) -> Log:
    """Everything in one file.

    Args:
        path: The file; ``-`` is standard input.
        collective: What was run, for tables of old versions of nccl-tests that do not say.

    Raises:
        InputError: If it cannot be read or is none of the known kinds; with the line where something is wrong.
    """
    return read_logs([path], collective=collective)[0]


@checked
def read_logs(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    collective: Collective | str | None = None,
) -> tuple[Log, ...]:
    """Everything in several files of one job, or of several.

    Records of the inspector tell of a collective once per rank: they become one measurement, which stands with the
    first file that has it.

    Args:
        paths: The files, or one.
        collective: As in :func:`read_log`; a name will do.

    Raises:
        InputError: As :func:`read_log`, and if records of one collective contradict each other.
    """
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    named = None if collective is None else Collective.named(collective)
    logs: list[Log] = []
    calls: list[tuple[str, InspectorCall]] = []
    for path in paths:
        data = read_bytes(path, hint="name an existing log", most_bytes=_MOST_BYTES, too_large=_TOO_LARGE)
        name = file_name(path)
        log, own = _parsed(data, file=name, collective=named)
        logs.append(log)
        calls += [(name, call) for call in own]
    return _with_calls(logs, calls)


def parse_log(data: bytes, *, file: str, collective: Collective | None = None) -> Log:
    r"""Everything in the content of one file.

    Args:
        data: The content.
        file: Its name, for messages.
        collective: As in :func:`read_log`.

    Raises:
        InputError: As :func:`read_log`.

    Examples:
        >>> row = "1024  256  float  sum  -1  10.5  0.10  0.17  0  9.9  0.10  0.18  0\n"
        >>> log = parse_log(b"# Collective test starting: all_reduce_perf\n" + row.encode(), file="log")
        >>> [(str(m.collective), m.size_bytes, m.time_us, m.in_place) for m in log.measurements]
        [('all_reduce', 1024, 10.5, False), ('all_reduce', 1024, 9.9, True)]
    """
    log, calls = _parsed(data, file=file, collective=collective)
    return _with_calls([log], [(file, call) for call in calls])[0]


def _with_calls(logs: list[Log], calls: list[tuple[str, InspectorCall]]) -> tuple[Log, ...]:
    by_file: dict[str, list[LoggedMeasurement]] = {}
    for measurement in joined(calls):
        by_file.setdefault(measurement.file, []).append(measurement)
    return tuple(replace(log, measurements=(*log.measurements, *by_file.pop(log.file, ()))) for log in logs)


def _parsed(data: bytes, *, file: str, collective: Collective | None) -> tuple[Log, list[InspectorCall]]:
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        msg = f"{file} is empty: expected a log, a table of nccl-tests, or a dump of NCCL."
        raise InputError(msg)
    if start.startswith(b"<"):
        return _xml(data, file), []
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    if re.match(rb"\{|\[\s*\{", start):
        return _json(text, file, collective)
    return _text(text, file, collective), []


def _xml(data: bytes, file: str) -> Log:
    root = parse_xml(data, file=file)
    if root.tag == "graphs":
        return Log(file=file, kind="graphs of NCCL", graphs=graphs_of(root))
    stem = Path(file).stem
    topology, warnings = read_nccl_xml(
        data,
        file=file,
        name=stem if stem.isprintable() and 0 < len(stem) <= 200 else "dump",
        options=ReadOptions(),
    )
    return Log(file=file, kind="topology of NCCL", topology=topology, warnings=warnings)


def _json(text: str, file: str, collective: Collective | None) -> tuple[Log, list[InspectorCall]]:
    warnings: list[str] = []
    inspector = Inspector(file)
    for line, value in json_objects(text, file=file, warnings=warnings):
        if is_tests_file(value):
            return _tests_file(value, file, collective), []
        if not is_inspector(value) and not inspector.calls:
            msg = f"{file}:{line} is JSON of no known kind: expected the file of nccl-tests -J, or the inspector's."
            raise InputError(msg)
        inspector.add(value, line)
    if inspector.dropped:
        warnings.append(f"{file}: the inspector says that it lost {inspector.dropped} records")
    log = Log(file=file, kind="records of the inspector", beside=inspector.beside, warnings=tuple(warnings))
    return log, inspector.calls


def _tests_file(value: object, file: str, collective: Collective | None) -> Log:
    found = read_tests_file(value, file=file)
    measurements, warnings = _measured(
        found.table, file, collective, shape=shape_of(found.table.devices), settings=found.settings, told=True
    )
    return Log(
        file=file,
        kind="table of nccl-tests",
        measurements=measurements,
        version=found.version,
        settings=found.settings,
        warnings=warnings,
    )


def _measured(
    table: NcclTestsTable,
    file: str,
    given: Collective | None,
    *,
    shape: tuple[int | None, int | None],
    settings: Mapping[str, str],
    told: bool,
    log: Log | None = None,
) -> tuple[tuple[LoggedMeasurement, ...], tuple[str, ...]]:
    collective = collective_of(table.program, given, file=file)
    if collective is None:
        return (), (f"{file}: {table.program} runs no known collective, {len(table.rows)} rows are left out",)
    rows = rows_measured(
        table,
        collective,
        file=file,
        shape=shape,
        settings=settings,
        told=told,
        decisions=() if log is None else log.decisions,
    )
    wrong = table.wrong or sum(row.wrong or 0 for row in rows)
    return tuple(rows), (f"{file}: {wrong} wrong values",) if wrong else ()


def _text(text: str, file: str, collective: Collective | None) -> Log:
    log = read_nccl_log(text, file=file)
    table = read_nccl_tests(text, file=file) if _has_table(text) else None
    kinds = ["table of nccl-tests"] * (table is not None) + [log.kind] * bool(log.kind)
    if not kinds:
        msg = (
            f"{file} is of no known kind: expected a table of nccl-tests, a log of NCCL, records of the inspector, or "
            "a dump of graphs or topology."
        )
        raise InputError(msg)
    measurements: tuple[LoggedMeasurement, ...] = ()
    warnings: tuple[str, ...] = ()
    if table is not None:
        measurements, warnings = _measured(
            table,
            file,
            collective,
            shape=_shape(table, log),
            settings=log.settings,
            told=any(name.startswith("NCCL_DEBUG") for name in log.settings),
            log=log,
        )
    return replace(
        log, kind=" and ".join(kinds), measurements=measurements, warnings=(*warnings, *log.warnings)
    )


def _shape(table: NcclTestsTable, log: Log) -> tuple[int | None, int | None]:
    """Ranks and nodes: as the library counts them, where it speaks of one shape; else ranks and hosts of the table."""
    told = {(each.ranks, each.nodes) for each in log.communicators if each.ranks is not None}
    return told.pop() if len(told) == 1 else shape_of(table.devices)


def _has_table(text: str) -> bool:
    """Whether a text has a line that begins like a row of nccl-tests, or its head."""
    for line in text.splitlines():
        words = line.split(None, 5)
        if line.startswith("#") and _ROW in line:
            return True
        if len(words) > 5 and words[0].isdecimal() and words[1].isdecimal() and words[2].isidentifier():
            return True
    return False
