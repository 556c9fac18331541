"""Doctor rules about tuner tables: what the plug-in and the libraries read but do not check."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.nccl.tuner_ranges import (
    NAMES,
    covers,
    dead,
    ends,
    gaps,
    good,
    no_fallback,
    shape_words,
    table_of,
)
from coppice.doctor.tuning import Case, Complaint, Given, TuningRule
from coppice.export.nccl.tuner import Dialect
from coppice.export.nccl.tuner_reader import ANY, TunerLine, dialect_of
from coppice.fitting.nccl_tuner.timings import ALGORITHMS, COLLECTIVES, MOST_CHANNELS, PROTOCOLS

__all__ = ["RULES"]

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_MOST_LINE = 255
_DIGEST = re.compile(r"#\s*sha256 of the lines below:\s*([0-9a-f]{64})")
_TOPOLOGY = re.compile(r"#\s*topology (.+) ([0-9a-f]{16})\s*$")
_LIBRARY = re.compile(r"#\s*library ([0-9]+(?:\.[0-9]+)*)")


def _channel_words(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    for line in table.lines:
        if line.problem is not None:
            continue
        if table.dialect is Dialect.NVIDIA_EXAMPLE and line.channels < 0:
            yield (
                ERROR,
                line.number,
                f"channels = {line.channels} is one channel to the example plug-in",
                "write 0",
            )
        elif table.dialect is Dialect.RCCL_BUILTIN and (line.channels == 0 or line.channels < -1):
            text = f"channels = {line.channels} is ignored, with a warning at every call"
            yield WARNING, line.number, text, "write -1 for RCCL's own number"
        elif table.dialect is Dialect.COPPICE and (line.channels == 0 or line.channels < -1):
            text = f"channels = {line.channels} has no meaning: the plug-in refuses the table"
            yield ERROR, line.number, text, "write -1 for NCCL's own number"


def _local(case: Case) -> Iterator[Complaint]:
    for line in table_of(case).lines:
        if line.problem is None and line.buffers != ANY:
            text = "regBuff is set, and buffers may be registered on some ranks only: ranks then choose differently"
            yield ERROR, line.number, text, "write -1"
        if line.problem is None and line.pipe != ANY:
            text = "numPipeOps is set: the line holds only for that many grouped calls per channel"
            yield WARNING, line.number, text, "write -1"


def _unknown_words(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    effects = {
        Dialect.NVIDIA_EXAMPLE: "the plug-in takes it for {}",
        Dialect.RCCL_BUILTIN: "RCCL skips the line",
        Dialect.NCCLX: "no communicator is made",
        Dialect.COPPICE: "the plug-in refuses the table",
    }
    for line in table.lines:
        if line.problem is not None:
            if not line.empty:
                effect = effects[table.dialect].format("something else")
                yield ERROR, line.number, f"{line.problem}: {effect}", "mend the line"
            continue
        for word, known, instead in (
            (line.collective, tuple(NAMES), "allreduce"),
            (line.algorithm, tuple(ALGORITHMS.values()), "ring"),
            (line.protocol, PROTOCOLS, "simple"),
        ):
            if word not in known:
                text = f"{word[:40]!r} is no word of tuner tables: {effects[table.dialect].format(instead)}"
                yield ERROR, line.number, text, f"write one of {', '.join(known)}"


def _long_lines(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    if table.dialect is Dialect.NCCLX:
        return
    for number, text in enumerate(table.texts, start=1):
        length = len(text.encode())
        if length > _MOST_LINE:
            refused = table.dialect is Dialect.COPPICE
            what = "the plug-in refuses the table" if refused else "the rest is read as a line of its own"
            yield ERROR, number, f"the line has {length} bytes, {_MOST_LINE} are read: {what}", "shorten it"


def _empty_fields(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    effect = {
        Dialect.NVIDIA_EXAMPLE: "the fields after it move up by one",
        Dialect.RCCL_BUILTIN: "RCCL skips the line",
        Dialect.NCCLX: "no communicator is made",
        Dialect.COPPICE: "the plug-in refuses the table",
    }[table.dialect]
    for line in table.lines:
        if line.empty:
            yield ERROR, line.number, f"{line.problem}: {effect}", "fill all fields, -1 for any"


def _impossible(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    for line in good(table):
        reason = dead(line)
        if reason is None and line.algorithm not in table.dialect.algorithms:
            reason = f"{table.dialect} has no {line.algorithm}"
        if reason is not None:
            yield WARNING, line.number, f"the line never holds: {reason}", "remove it"


def _own_channels(given: Given, line: TunerLine, dialect: Dialect) -> int | None:
    """Channels of the communicators for which a line holds."""
    counts = [
        each.channels
        for each in given.communicators
        if each.channels is not None
        and (each.nodes is None or each.ranks is None or _holds(line, (each.nodes, each.ranks), dialect))
    ]
    return given.channels if given.channels is not None else min(counts, default=None)


def _many_channels(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    rccl = table.dialect is Dialect.RCCL_BUILTIN
    for line in table.lines:
        if line.problem is not None or line.channels <= 0:
            continue
        own = _own_channels(case.given, line, table.dialect)
        limit = 128 if rccl else case.given.most_channels
        if line.channels > MOST_CHANNELS:
            text = f"{line.channels} channels do not fit a signed byte"
            yield ERROR, line.number, text, f"ask for {MOST_CHANNELS} at most"
        elif line.channels > limit:
            yield ERROR, line.number, f"{line.channels} channels, the library has {limit}", "ask for fewer"
        elif own is not None and line.channels > own:
            text = f"{line.channels} channels, the communicator has {own} (CollNet is not clamped)"
            yield WARNING, line.number, text, f"ask for {own} at most"


def _not_in_model(case: Case) -> Iterator[Complaint]:
    table = table_of(case)
    for line in good(table):
        for communicator in case.given.communicators:
            nodes, ranks = communicator.nodes, communicator.ranks
            if nodes is not None and ranks is not None and not _holds(line, (nodes, ranks), table.dialect):
                continue
            for cell in communicator.cells:
                names = (COLLECTIVES.get(cell.collective), cell.algorithm, cell.protocol)
                if (
                    names == (line.collective, line.algorithm, line.protocol)
                    and cell.gb_per_s == 0
                    and not dead(line)
                ):
                    text = (
                        f"{line.algorithm} with {line.protocol} has 0.0 GB/s in the library's own table "
                        f"(line {cell.line} of the log): it is off on this machine"
                    )
                    yield WARNING, line.number, text, "remove the line; to force ll128 on may corrupt data"


def _holds(line: TunerLine, shape: tuple[int, int], dialect: Dialect) -> bool:
    nodes, ranks = shape
    if dialect is Dialect.NCCLX:
        if ranks % nodes:
            return False
        ranks //= nodes
    return covers(line.nodes, (nodes, nodes)) and covers(line.ranks, (ranks, ranks))


def _other_shapes(case: Case) -> Iterator[Complaint]:
    table, shapes = table_of(case), case.given.known_shapes
    seen: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    for line in table.lines:
        if line.problem is None and (line.nodes, line.ranks) not in seen:
            seen.add((line.nodes, line.ranks))
            if not any(_holds(line, shape, table.dialect) for shape in shapes):
                known = ", ".join(f"{nodes} nodes with {ranks} ranks" for nodes, ranks in sorted(shapes)[:4])
                text = f"no communicator of the job has {shape_words(line, table.dialect)}; there are {known}"
                yield WARNING, line.number, text, "nodes are domains of NVLink: an NVL72 rack is one"


def _other_machine(case: Case) -> Iterator[Complaint]:
    table, given = table_of(case), case.given
    for number, comment in table.comments:
        digest, topology, library = (pattern.match(comment) for pattern in (_DIGEST, _TOPOLOGY, _LIBRARY))
        if digest:
            rest = "\n".join(table.texts[number:])
            if hashlib.sha256(rest.encode()).hexdigest() != digest[1]:
                yield (
                    NOTE,
                    number,
                    "lines were changed since the table was made",
                    "make it again where that was no intent",
                )
        if topology and given.topology is not None and not given.topology.sha256.startswith(topology[2]):
            own = given.topology.sha256[:16]
            text = f"the table was made for {topology[1][:60]} {topology[2]}, the topology is {own}"
            yield WARNING, number, text, "make the table again for this topology"
        version = given.known_version
        if library and version is not None and tuple(map(int, library[1].split("."))) != version:
            text = f"the table was measured with version {library[1]}, the library is {'.'.join(map(str, version))}"
            yield WARNING, number, text, "measure again: defaults and models change"
        shown = dialect_of(comment)
        if shown is not None and shown is not table.dialect:
            yield (
                ERROR,
                number,
                f"the table is of the dialect {shown}, not {table.dialect}",
                "export it for this dialect",
            )


def _beside(case: Case) -> Iterator[Complaint]:
    log = case.given.log
    for what, count in () if log is None else log.beside.items():
        text = f"the log has {count} lines of {what}: such calls never reach a tuner"
        yield NOTE, 0, text, "nothing to do, the table does not touch them"


def _other_tuner(case: Case) -> Iterator[Complaint]:
    table, log = table_of(case), case.given.log
    tuner = None if log is None else log.tuner
    if tuner is None:
        return
    builtin = table.dialect in (Dialect.RCCL_BUILTIN, Dialect.NCCLX)
    if tuner == "" and not builtin:
        yield ERROR, 0, "the library loaded no tuner plug-in: nobody reads the table", "set NCCL_TUNER_PLUGIN"
    elif tuner and builtin:
        text = f"the library loaded the tuner plug-in {tuner!r}: {table.dialect} tables are then not read"
        fix = "leave NCCL_TUNER_PLUGIN unset; a network plug-in that brings a tuner has to go"
        yield ERROR, 0, text, fix
    elif tuner and not re.search(r"example|coppice", tuner, re.IGNORECASE):
        text = f"the library loaded the tuner plug-in {tuner!r} (network plug-ins bring some), not that of the table"
        yield ERROR, 0, text, "name the plug-in of the table in NCCL_TUNER_PLUGIN"


def _has_log(given: Given) -> bool:
    return given.log is not None


RULES = (
    TuningRule("T01", "no gap, no overlap", "a size gets another choice than meant", gaps),
    TuningRule("T02", "ranges reach 2^64 - 1", "large calls get another choice than meant", ends),
    TuningRule("T03", "the number that stands for the default", "dialects differ in it", _channel_words),
    TuningRule("T04", "nothing that ranks may differ in", "ranks that choose differently hang", _local),
    TuningRule("T05", "known words", "few readers refuse unknown ones", _unknown_words),
    TuningRule("T06", f"lines of {_MOST_LINE} bytes", "longer ones are cut", _long_lines),
    TuningRule("T07", "no field is empty", "fields move, or the line is skipped", _empty_fields),
    TuningRule("T08", "a fallback for what may be missing", "the line is passed over there", no_fallback),
    TuningRule("T09", "pairs that exist", "the line is dead", _impossible),
    TuningRule("T10", "channels that exist", "more are clamped, or break CollNet", _many_channels),
    TuningRule(
        "T11",
        "cells that the model has",
        "the line is dead on this machine",
        _not_in_model,
        lambda given: any(each.cells for each in given.communicators),
        "a log with the cost model (NCCL_DEBUG_SUBSYS=INIT,TUNING)",
    ),
    TuningRule(
        "T12",
        "shapes of the job",
        "the line is never used",
        _other_shapes,
        lambda given: bool(given.known_shapes),
        "shapes, a topology, or a log",
    ),
    TuningRule("T13", "same machine, same version", "measurements age", _other_machine),
    TuningRule("T14", "calls that a tuner sees", "the others stay as they are", _beside, _has_log, "a log"),
    TuningRule(
        "T15", "the right tuner", "the first plug-in that is found wins", _other_tuner, _has_log, "a log"
    ),
)
