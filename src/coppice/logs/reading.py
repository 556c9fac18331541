"""Read logs and results of libraries and benchmarks, detecting the kind of file by content.

    table of nccl-tests      what the programs print, and the file of ``-J``; those of rccl-tests and mscclpp-test too
    results of rccl-tests    the file of ``-x``, as CSV or as JSON lines; JSON lines of mscclpp-test
    log of NCCL or RCCL      ``NCCL_DEBUG=INFO`` with the subsystems INIT, ENV and TUNING; may be mixed with the table
    records of the inspector one JSON object after the other
    graphs                   the file of ``NCCL_GRAPH_DUMP_FILE``
    topology                 the file of ``NCCL_TOPO_DUMP_FILE``

:func:`read_log` reads one file, :func:`read_logs` several, in which records of one collective are put together.

A file that is no log is refused by its name: what it is, and what to give instead or where to give it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.nccl.graph import graphs_of
from coppice.files import file_name, read_bytes
from coppice.logs.inspector import Inspector, InspectorCall, is_inspector, joined
from coppice.logs.json_text import json_objects
from coppice.logs.lines import is_log, log_lines, unwrapped
from coppice.logs.nccl import read_nccl_log
from coppice.logs.nccl_tests import NoRowsError, has_table, read_nccl_tests
from coppice.logs.nccl_tests_log import (
    collective_of,
    doubts,
    is_tests_file,
    mixed_runs,
    read_tests_file,
    rows_measured,
    shape_of,
)
from coppice.logs.records import Log, LoggedDecision, LoggedMeasurement
from coppice.logs.result_files import is_csv, is_result, read_csv, read_results
from coppice.logs.rows import NcclTestsTable
from coppice.recognising import recognised
from coppice.text import plural
from coppice.topology.readers.nccl_xml import read_nccl_xml
from coppice.topology.readers.reading import ReadOptions, TopologyFormat, sniff
from coppice.topology.readers.xml_tree import parse_xml

_EXPECTED = "expected a table of nccl-tests, a log of NCCL, records of the inspector, or a dump of graphs or topology."
_NOT_READ = "which is not read"
_SHOWN = "give it to `coppice topology show`"
_TEXTS = (
    (r"(?m)^#\s*OSU (?:MPI|NCCL|RCCL)", f"a table of the OSU micro-benchmarks, {_NOT_READ}"),
    (
        r"(?m)^\s*(?:allreduce|allgather|reducescatter|broadcast|reduce)\s*,\s*[0-9]+\s*,\s*[0-9]+\s*,",
        "a tuner table: give it to `coppice doctor`",
    ),
    (r"(?m)^#\s*Intel\(R\) MPI Benchmarks", f"a table of the Intel MPI benchmarks, {_NOT_READ}"),
)
_JSON = (
    (
        ("format", "version"),
        "a file of Coppice, no log: give it to `coppice verify` or `coppice topology show`",
    ),
    (("traceEvents",), "a trace of a profiler: give it to `coppice train`"),
    (("pg_config", "entries"), "a dump of PyTorch's flight recorder: give it to `coppice diagnose logs`"),
    (("communicators", "nccl_version"), "a report of NCCL's RAS: give it to `coppice diagnose logs`"),
    (("cat", "ph", "ts"), "events of NCCL's profiler: give them to `coppice diagnose logs`"),
    (("name", "collective", "protocol", "gpus"), "a plan of MSCCL++: give it to `coppice import`"),
    (
        ("collective", "algorithm", "size_bytes", "time_us"),
        "of `coppice bench --json`: give its lines to `coppice model fit`",
    ),
)


def unknown_kind(text: str, *, file: str) -> str:
    r"""Advice about an unrecognised text.

    Examples:
        >>> unknown_kind("# OSU MPI Allreduce Latency Test v7.4\n", file="x")[:67]
        'x is a table of the OSU micro-benchmarks, which is not read: expect'
    """
    try:
        form = sniff(text.encode(), file="")
    except InputError:
        form = None
    if form in (TopologyFormat.NVIDIA_SMI, TopologyFormat.ROCM_SMI):
        return f"{file} is a topology ({form.value}), no log: {_SHOWN}."
    for pattern, words in _TEXTS:
        if re.search(pattern, text[: 1 << 20]):
            return f"{file} is {words}." if "give it" in words else f"{file} is {words}: {_EXPECTED}"
    found = recognised(text.encode())
    return f"{file} is of no known kind: {_EXPECTED}" if found is None else f"{file} is {found}: {_EXPECTED}"


def unknown_json(value: Any, *, file: str, line: int) -> str:
    """Advice about an unrecognised JSON value."""
    if isinstance(value, dict):
        for keys, words in _JSON:
            if all(key in value for key in keys):
                return f"{file}:{line} is {words}."
    return (
        f"{file}:{line} is JSON of no known kind: expected the file of nccl-tests -J, JSON lines of rccl-tests, or the "
        "inspector's."
    )


def unknown_xml(data: bytes, *, file: str) -> str:
    """Advice about unrecognised XML; empty where it may be readable."""
    if re.search(rb"<algo\b", data[:4096]):
        return f"{file} is an algorithm for MSCCL or RCCL, no log: give it to `coppice doctor` or `coppice import`."
    return ""


_MOST_BYTES = 512 * 2**20
_TOO_LARGE = "split it, or keep the lines of rank 0."


def read_log(path: str | os.PathLike[str], *, collective: Collective | None = None) -> Log:
    """Read one file.

    Args:
        path: The file; ``-`` is standard input.
        collective: What was run, for tables of old versions of nccl-tests that do not say.
    """
    return read_logs([path], collective=collective)[0]


@checked
def read_logs(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    collective: Collective | str | None = None,
) -> tuple[Log, ...]:
    """Read several files of one or more jobs.

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
    files = [(file_name(path), read_log_bytes(path)) for path in paths]
    return parse_logs(files, collective=named)[0]


def read_log_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a log, of 512 MiB at most."""
    return read_bytes(path, hint="name an existing log", most_bytes=_MOST_BYTES, too_large=_TOO_LARGE)


def parse_logs(
    files: Sequence[tuple[str, bytes]], *, collective: Collective | None = None
) -> tuple[tuple[Log, ...], tuple[tuple[str, InspectorCall], ...]]:
    """Parse files by their names and contents, and the inspector's records of single ranks with their files."""
    logs: list[Log] = []
    calls: list[tuple[str, InspectorCall]] = []
    for name, data in files:
        log, own = _parsed(data, file=name, collective=collective)
        logs.append(log)
        calls += [(name, call) for call in own]
    return _with_calls(logs, calls), tuple(calls)


def parse_log(data: bytes, *, file: str, collective: Collective | None = None) -> Log:
    r"""Parse the content of one file.

    Args:
        collective: As in :func:`read_log`.

    Examples:
        >>> row = "1024  256  float  sum  -1  10.5  0.10  0.17  0  9.9  0.10  0.18  0\n"
        >>> log = parse_log(b"# Collective test starting: all_reduce_perf\n" + row.encode(), file="log")
        >>> [(str(m.collective), m.size_bytes, m.time_us, m.in_place) for m in log.measurements]
        [('all_reduce', 1024, 10.5, False), ('all_reduce', 1024, 9.9, True)]
    """
    return parse_logs([(file, data)], collective=collective)[0][0]


def _with_calls(logs: list[Log], calls: list[tuple[str, InspectorCall]]) -> tuple[Log, ...]:
    by_file: dict[str, list[LoggedMeasurement]] = {}
    warnings: dict[str, list[str]] = {}
    for measurement in joined(calls, warnings):
        by_file.setdefault(measurement.file, []).append(measurement)
    return tuple(
        replace(
            log,
            measurements=(*log.measurements, *by_file.pop(log.file, ())),
            warnings=(*log.warnings, *warnings.pop(log.file, ())),
        )
        for log in logs
    )


def _parsed(data: bytes, *, file: str, collective: Collective | None) -> tuple[Log, list[InspectorCall]]:
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise InputError(f"{file} is empty: expected a log, a table of nccl-tests, or a dump of NCCL.")
    text = decoded(data)
    inner = unwrapped(text)
    if inner is not None or is_log(text):
        return _text(text if inner is None else inner, file, collective), []
    if start.startswith(b"<"):
        return _xml(data, file), []
    if re.match(rb"\{|\[\s*\{", start):
        return _json(text, file, collective)
    if is_csv(text):
        return read_csv(text, file=file), []
    return _text(text, file, collective), []


def decoded(data: bytes) -> str:
    """The text of a file: UTF-8, or UTF-16 with its mark, as PowerShell redirects output."""
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8", errors="replace").removeprefix("\ufeff")


def _xml(data: bytes, file: str) -> Log:
    if words := unknown_xml(data, file=file):
        raise InputError(words)
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
    values = json_objects(text, file=file, warnings=warnings)
    for line, value in values:
        if is_tests_file(value):
            return _tests_file(value, file, collective), []
        if is_result(value):
            found = read_results(chain([(line, value)], values), file=file)
            return replace(found, warnings=(*warnings, *found.warnings)), []
        if not is_inspector(value) and not inspector.calls:
            raise InputError(unknown_json(value, file=file, line=line))
        inspector.add(value, line)
    if inspector.dropped:
        warnings.append(f"{file}: the inspector says that it lost {inspector.dropped} records")
    log = Log(file=file, kind="records of the inspector", beside=inspector.beside, warnings=tuple(warnings))
    return log, inspector.calls


def _tests_file(value: object, file: str, collective: Collective | None) -> Log:
    found = read_tests_file(value, file=file)
    measurements, warnings = _measured(
        found.table, file, collective, shape=shape_of(found.table), settings=found.settings, told=True
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
    decisions: Sequence[LoggedDecision] = (),
) -> tuple[tuple[LoggedMeasurement, ...], tuple[str, ...]]:
    if not table.rows:
        return (), table.warnings
    collective = collective_of(table.program, given, file=file)
    if collective is None:
        rows = plural(len(table.rows), "row")
        left = f"{file}: left out: {rows} of {table.program}, which runs no known collective"
        return (), (left, *table.warnings)
    measured = rows_measured(
        table, collective, file=file, shape=shape, settings=settings, told=told, decisions=decisions
    )
    warnings = [mixed_runs(table, file=file), *doubts(table, collective, file=file, shape=shape)]
    if given not in (None, collective):
        warnings.append(f"{file} says that it ran {table.program}: that counts, not {given}")
    if table.devices_cut and shape[0] is None:
        warnings.append(f"{file}: the list of ranks is not whole, so that nothing tells how many there are")
    wrong = table.wrong or sum(row.wrong or 0 for row in measured)
    if wrong:
        warnings.append(f"{file}: {plural(wrong, 'wrong value')}")
    return tuple(measured), (*(words for words in warnings if words), *table.warnings)


def _text(text: str, file: str, collective: Collective | None) -> Log:
    lines = log_lines(text)
    log = read_nccl_log(lines, file=file)
    measurements: list[LoggedMeasurement] = []
    warnings: list[str] = []
    tables: tuple[NcclTestsTable, ...] = ()
    if has_table(lines):
        try:
            tables = read_nccl_tests(lines, file=file)
        except NoRowsError as error:
            if not log.kind:
                raise
            warnings.append(str(error))
    kinds = [*dict.fromkeys(f"table of {table.kind}" for table in tables), *([log.kind] if log.kind else [])]
    if not kinds:
        raise InputError(unknown_kind(text, file=file))
    one = len({table.program for table in tables if table.rows}) == 1
    for table in tables:
        found, said = _measured(
            table,
            file,
            collective,
            shape=_shape(table, log, alone=len(tables) == 1),
            settings=log.settings,
            told=any(name.startswith("NCCL_DEBUG") for name in log.settings),
            decisions=[each for each in log.decisions if one or each.collective is not None],
        )
        measurements += found
        warnings += said
    return replace(
        log,
        kind=" and ".join(kinds),
        measurements=tuple(measurements),
        warnings=(*dict.fromkeys(warnings), *log.warnings),
    )


def _shape(table: NcclTestsTable, log: Log, *, alone: bool) -> tuple[int | None, int | None]:
    """Ranks and nodes: as the library counts them, where it speaks of one shape; else ranks and hosts of the table."""
    told = {(each.ranks, each.nodes) for each in log.communicators if each.ranks is not None}
    listed = shape_of(table)
    if len(told) == 1 and (alone or listed[0] is None):
        return told.pop()
    ranks = {nodes for count, nodes in told if count == listed[0]}
    return (listed[0], ranks.pop()) if len(ranks) == 1 else listed
