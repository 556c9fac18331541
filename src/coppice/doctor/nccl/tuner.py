"""Doctor rules for tuner tables, their lines and their ranges: what the plug-in and the libraries do not check.

Of ranges: gaps, overlaps, ends, and fallbacks for what a machine may lack.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Coverage, Need, Place, Rulebook
from coppice.doctor.job_facts import LOG, SHAPES, JobFacts, TuningFile
from coppice.errors import InputError
from coppice.export.formats import Dialect
from coppice.export.nccl.tuner import FIRST_WITH_PAT, algorithms_of
from coppice.export.nccl.tuner_reader import ANY, ParsedTunerTable, TunerLine, dialect_of, read_tuner_table
from coppice.fitting.nccl_tuner import ALGORITHMS, COLLECTIVES, MOST_CHANNELS, NO_END, PROTOCOLS, impossible
from coppice.text import plural

NAMES = {name: collective for collective, name in COLLECTIVES.items()}
"""Collectives by their words in tuner tables."""


class TunerTable(TuningFile):
    """A tuner table (CSV) under examination."""

    @cached_property
    def table(self) -> ParsedTunerTable:
        """Its lines."""
        table = read_tuner_table(self.text, self._told or Dialect.NVIDIA_EXAMPLE)
        if not table.lines:
            raise InputError(f"{self.file} holds no line of a tuner table: give the CSV file.")
        return table

    @property
    def _told(self) -> Dialect | None:
        """The dialect that is given, or that the table shows."""
        return self.facts.dialect or dialect_of(self.text)

    def kind(self, target: str) -> str:
        """Detected kind of the file."""
        return (
            f"{target} ({self.table.dialect}{'' if self._told else ', since nothing tells another dialect'})"
        )

    def concerns(self, place: Place) -> bool:
        """Whether the line applies to a communicator of the job."""
        shapes, line = self.facts.known_shapes, self._by_number.get(place if isinstance(place, int) else 0)
        if not shapes or line is None or line.problem is not None:
            return True
        return any(holds(line, shape, self.table.dialect) for shape in shapes)

    @cached_property
    def _by_number(self) -> dict[int, TunerLine]:
        return {line.number: line for line in self.table.lines}

    def coverage(self, sizes: tuple[int, ...]) -> tuple[Coverage, ...]:
        """First matching line for each collective and each communicator of the job."""
        dialect = self.table.dialect
        otherwise = (
            "no line: the plug-in takes one channel"
            if dialect is Dialect.NVIDIA_EXAMPLE
            else "no line: the library decides"
        )
        named = {line.collective for line in self.live}
        found = []
        for collective in [name for name in NAMES if name in named]:
            for shape in sorted(self.facts.known_shapes):
                own = [
                    line
                    for line in self.live
                    if line.collective == collective
                    and line.algorithm in algorithms_of(dialect)
                    and line.pipe == ANY
                    and line.buffers == ANY
                    and holds(line, shape, dialect)
                ]
                choices = []
                for size in sizes:
                    counted = size // shape[1] if dialect is Dialect.NCCLX else size
                    first = next((line for line in own if covers(line.sizes, (counted, counted))), None)
                    choices.append(
                        (size, otherwise, 0) if first is None else (size, _choice(first), first.number)
                    )
                call = f"{collective} on {plural(shape[0], 'node')} with {plural(shape[1], 'rank')}"
                found.append(Coverage(call, tuple(choices)))
        return tuple(found)

    @cached_property
    def good(self) -> tuple[TunerLine, ...]:
        """Lines that take effect as intended."""
        return tuple(
            line
            for line in self.table.lines
            if line.problem is None
            and line.collective in NAMES
            and line.algorithm in ALGORITHMS.values()
            and line.protocol in PROTOCOLS
        )

    @cached_property
    def live(self) -> tuple[TunerLine, ...]:
        """Such lines whose algorithm and protocol some library supports for the collective."""
        return tuple(line for line in self.good if dead(line) is None)


RULES = Rulebook[TunerTable]()
"""Rules about tuner tables."""


def dead(line: TunerLine) -> str | None:
    """Why no library supports a line's combination, or None."""
    return impossible(NAMES[line.collective], line.algorithm, line.protocol)


def _choice(line: TunerLine) -> str:
    channels = f", {plural(line.channels, 'channel')}" if line.channels > 0 else ""
    return f"{line.algorithm} with {line.protocol}{channels}"


def holds(line: TunerLine, shape: tuple[int, int], dialect: Dialect) -> bool:
    """Whether a line applies to a communicator.

    Args:
        shape: Nodes and ranks of the communicator.
        dialect: Who reads the table: some count ranks per node.
    """
    nodes, ranks = shape
    if dialect is Dialect.NCCLX:
        if ranks % nodes:
            return False
        ranks //= nodes
    return covers(line.nodes, (nodes, nodes)) and covers(line.ranks, (ranks, ranks))


def covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    """Whether a range contains another."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def shape_words(line: TunerLine, dialect: Dialect) -> str:
    """Communicators that a line applies to, as text."""

    def text(span: tuple[int, int]) -> str:
        return "any" if span == ANY else str(span[0]) if span[0] == span[1] else f"{span[0]}..{span[1]}"

    per = " per node" if dialect is Dialect.NCCLX else ""
    return f"{text(line.nodes)} nodes and {text(line.ranks)} ranks{per}"


_MOST_LINE = 255
_DIGEST = re.compile(r"#\s*sha256 of the lines below:\s*([0-9a-f]{64})")
_TOPOLOGY = re.compile(r"#\s*topology (.+) ([0-9a-f]{16})\s*$")
_LIBRARY = re.compile(r"#\s*library ([0-9]+(?:\.[0-9]+)*)")
_FIRST_PLUGIN, _FIRST_EXAMPLE, _MENDED_EXAMPLE = (2, 22), (2, 27, 7), (2, 30, 3)
"""First versions of NCCL for our plug-in, with an example plug-in that reads tables, with one that does not crash."""
_BY_PLUGIN = (Dialect.NVIDIA_EXAMPLE, Dialect.COPPICE)
_PLUGINS = Need(
    "the version of NCCL, or a log",
    lambda file: file.facts.known_version is not None or file.table.dialect not in _BY_PLUGIN,
)
_CELLS = Need(
    "a log with the cost model (NCCL_DEBUG_SUBSYS=INIT,TUNING)",
    lambda file: any(each.cells for each in file.facts.communicators),
)


@RULES.rule("T03", ERROR, "the number that stands for the default", "dialects differ in it")
def _channel_words(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
    for line in table.lines:
        if line.problem is not None:
            continue
        if table.dialect is Dialect.NVIDIA_EXAMPLE and line.channels < 0:
            text = f"channels = {line.channels} is one channel to the example plug-in"
            yield ERROR, line.number, text, "write 0"
        elif table.dialect is Dialect.RCCL_BUILTIN and (line.channels == 0 or line.channels < -1):
            text = f"channels = {line.channels} is ignored, with a warning at every call"
            yield WARNING, line.number, text, "write -1 for RCCL's own number"
        elif table.dialect is Dialect.COPPICE and (line.channels == 0 or line.channels < -1):
            text = f"channels = {line.channels} has no meaning: the plug-in refuses the table"
            yield ERROR, line.number, text, "write -1 for NCCL's own number"


@RULES.rule("T04", ERROR, "nothing that ranks may differ in", "ranks that choose differently hang")
def _local(file: TunerTable) -> Iterator[Complaint]:
    for line in file.table.lines:
        if line.problem is None and line.buffers != ANY:
            text = "regBuff is set, and buffers may be registered on some ranks only: ranks then choose differently"
            yield ERROR, line.number, text, "write -1"
        if line.problem is None and line.pipe != ANY:
            text = "numPipeOps is set: the line holds only for that many grouped calls per channel"
            yield WARNING, line.number, text, "write -1"


@RULES.rule("T05", ERROR, "known words", "few readers refuse unknown ones")
def _unknown_words(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
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
                yield line.number, f"{line.problem}: {effect}", "mend the line"
            continue
        for word, known, instead in (
            (line.collective, tuple(NAMES), "allreduce"),
            (line.algorithm, tuple(ALGORITHMS.values()), "ring"),
            (line.protocol, PROTOCOLS, "simple"),
        ):
            if word not in known:
                text = f"{word[:40]!r} is no word of tuner tables: {effects[table.dialect].format(instead)}"
                yield line.number, text, f"write one of {', '.join(known)}"


@RULES.rule("T06", ERROR, f"lines of {_MOST_LINE} bytes", "longer ones are cut")
def _long_lines(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
    if table.dialect is Dialect.NCCLX:
        return
    for number, text in enumerate(table.texts, start=1):
        length = len(text.encode())
        if length > _MOST_LINE:
            refused = table.dialect is Dialect.COPPICE
            what = "the plug-in refuses the table" if refused else "the rest is read as a line of its own"
            yield number, f"the line has {length} bytes, {_MOST_LINE} are read: {what}", "shorten it"


@RULES.rule("T07", ERROR, "no field is empty", "fields move, or the line is skipped")
def _empty_fields(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
    effect = {
        Dialect.NVIDIA_EXAMPLE: "the fields after it move up by one",
        Dialect.RCCL_BUILTIN: "RCCL skips the line",
        Dialect.NCCLX: "no communicator is made",
        Dialect.COPPICE: "the plug-in refuses the table",
    }[table.dialect]
    for line in table.lines:
        if line.empty:
            yield line.number, f"{line.problem}: {effect}", "fill all fields, -1 for any"


@RULES.rule("T09", WARNING, "pairs that exist", "the line is dead")
def _impossible(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
    version = None if file.facts.rccl else file.facts.known_version
    for line in file.good:
        reason = dead(line)
        if reason is None and line.algorithm == "pat" and version is not None and version < FIRST_WITH_PAT:
            reason = f"NCCL {'.'.join(map(str, version))} has no pat, which came with 2.23"
        if reason is None and line.algorithm not in algorithms_of(table.dialect):
            reason = f"{table.dialect} has no {line.algorithm}"
        if reason is not None:
            yield line.number, f"the line never holds: {reason}", "remove it"


def _own_channels(facts: JobFacts, line: TunerLine, dialect: Dialect) -> int | None:
    """Channels of the communicators for which a line holds."""
    counts = [
        each.channels
        for each in facts.communicators
        if each.channels is not None
        and (each.nodes is None or each.ranks is None or holds(line, (each.nodes, each.ranks), dialect))
    ]
    return facts.channels if facts.channels is not None else min(counts, default=None)


@RULES.rule("T10", ERROR, "channels that exist", "more are clamped, or break CollNet")
def _many_channels(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
    rccl = table.dialect is Dialect.RCCL_BUILTIN
    for line in table.lines:
        if line.problem is not None or line.channels <= 0:
            continue
        own = _own_channels(file.facts, line, table.dialect)
        limit = 128 if rccl else file.facts.most_channels
        if line.channels > MOST_CHANNELS:
            text = f"{line.channels} channels do not fit a signed byte"
            yield ERROR, line.number, text, f"ask for {MOST_CHANNELS} at most"
        elif line.channels > limit:
            yield ERROR, line.number, f"{line.channels} channels, the library has {limit}", "ask for fewer"
        elif own is not None and line.channels > own:
            text = f"{line.channels} channels, the communicator has {own} (CollNet is not clamped)"
            yield WARNING, line.number, text, f"ask for {own} at most"


@RULES.rule("T11", WARNING, "cells that the model has", "the line is dead on this machine", needs=_CELLS)
def _not_in_model(file: TunerTable) -> Iterator[Complaint]:
    table = file.table
    for line in file.good:
        for communicator in file.facts.communicators:
            nodes, ranks = communicator.nodes, communicator.ranks
            if nodes is not None and ranks is not None and not holds(line, (nodes, ranks), table.dialect):
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
                    yield line.number, text, "remove the line; to force ll128 on may corrupt data"


@RULES.rule("T12", WARNING, "shapes of the job", "lines are never used, or calls get none", needs=SHAPES)
def _other_shapes(file: TunerTable) -> Iterator[Complaint]:
    """Communicators of the job without a line, and lines without a communicator."""
    table, shapes = file.table, sorted(file.facts.known_shapes)
    example = table.dialect is Dialect.NVIDIA_EXAMPLE
    effect = "the plug-in takes one channel there" if example else "the library decides there"
    collectives = [name for name in NAMES if any(line.collective == name for line in file.live)]
    for nodes, ranks in shapes:
        held = {line.collective for line in file.live if holds(line, (nodes, ranks), table.dialect)}
        without = [name for name in collectives if name not in held]
        if without:
            what = "no line" if not held else f"no line for {', '.join(without)}"
            text = f"{what} holds on {plural(nodes, 'node')} with {plural(ranks, 'rank')}: {effect}"
            severity = NOTE if held and not example else WARNING
            yield (
                severity,
                0,
                text,
                "measure that communicator and add lines, or leave it to the library on purpose",
            )
    unused: dict[str, int] = {}
    first = 0
    for line in table.lines:
        if line.problem is None and not any(holds(line, shape, table.dialect) for shape in shapes):
            words = shape_words(line, table.dialect)
            unused[words] = unused.get(words, 0) + 1
            first = first or line.number
    if unused:
        known = ", ".join(f"{plural(nodes, 'node')} with {plural(ranks, 'rank')}" for nodes, ranks in shapes)
        listed = "; ".join(f"{plural(count, 'line')} for {words}" for words, count in unused.items())
        text = f"no communicator of the job has the shape of {listed}; there are {known}"
        yield first, text, "nodes are domains of NVLink: an NVL72 rack is one"


@RULES.rule("T13", ERROR, "same machine, same version", "measurements age")
def _other_machine(file: TunerTable) -> Iterator[Complaint]:
    table, facts = file.table, file.facts
    for number, comment in table.comments:
        digest, topology, library = (pattern.match(comment) for pattern in (_DIGEST, _TOPOLOGY, _LIBRARY))
        if digest:
            rest = "\n".join(table.texts[number:])
            if hashlib.sha256(rest.encode()).hexdigest() != digest[1]:
                text = "lines were changed since the table was made"
                yield NOTE, number, text, "make it again where that was no intent"
        if topology and facts.topology is not None and not facts.topology.sha256.startswith(topology[2]):
            own = facts.topology.sha256[:16]
            text = f"the table was made for {topology[1][:60]} {topology[2]}, the topology is {own}"
            yield WARNING, number, text, "make the table again for this topology"
        version = facts.known_version
        if library and version is not None and tuple(map(int, library[1].split("."))) != version:
            text = f"the table was measured with version {library[1]}, the library is {'.'.join(map(str, version))}"
            yield WARNING, number, text, "measure again: defaults and models change"
        shown = dialect_of(comment)
        if shown is not None and shown is not table.dialect:
            text = f"the table is of the dialect {shown}, not {table.dialect}"
            yield ERROR, number, text, "export it for this dialect"


@RULES.rule("T14", NOTE, "calls that a tuner sees", "the others stay as they are", needs=LOG)
def _beside(file: TunerTable) -> Iterator[Complaint]:
    log = file.facts.log
    for what, count in () if log is None else log.beside.items():
        text = f"the log has {count} lines of {what}: such calls never reach a tuner"
        yield 0, text, "nothing to do, the table does not touch them"


@RULES.rule("T15", ERROR, "the right tuner", "the first plug-in that is found wins", needs=LOG)
def _other_tuner(file: TunerTable) -> Iterator[Complaint]:
    table, log = file.table, file.facts.log
    tuner = None if log is None else log.tuner
    if tuner is None:
        return
    builtin = table.dialect in (Dialect.RCCL_BUILTIN, Dialect.NCCLX)
    if tuner == "" and not builtin:
        yield 0, "the library loaded no tuner plug-in: nobody reads the table", "set NCCL_TUNER_PLUGIN"
    elif tuner and builtin:
        text = f"the library loaded the tuner plug-in {tuner!r}: {table.dialect} tables are then not read"
        fix = "leave NCCL_TUNER_PLUGIN unset; a network plug-in that brings a tuner has to go"
        yield 0, text, fix
    elif tuner and not re.search(r"example|coppice", tuner, re.IGNORECASE):
        text = f"the library loaded the tuner plug-in {tuner!r} (network plug-ins bring some), not that of the table"
        yield 0, text, "name the plug-in of the table in NCCL_TUNER_PLUGIN"


@RULES.rule(
    "T16", ERROR, "a plug-in for this version", "the job crashes, or nobody reads the table", needs=_PLUGINS
)
def _plugin_of_version(file: TunerTable) -> Iterator[Complaint]:
    dialect, version = file.table.dialect, file.facts.known_version
    if dialect not in _BY_PLUGIN or version is None or file.facts.rccl:
        return
    words = f"NCCL {'.'.join(map(str, version))}"
    fix = "use the plug-in of `coppice tune plugin build`, and export the table for it (dialect coppice)"
    if version < _FIRST_PLUGIN:
        yield (
            ERROR,
            0,
            f"{words} asks plug-ins otherwise than those that read tables answer",
            "use NCCL 2.22 or later",
        )
    elif dialect is Dialect.NVIDIA_EXAMPLE and version < _FIRST_EXAMPLE:
        yield WARNING, 0, f"{words} comes without an example plug-in that reads tables", fix
    elif dialect is Dialect.NVIDIA_EXAMPLE and version < _MENDED_EXAMPLE:
        text = f"the example plug-in of {words} takes the table of times for one of pointers, and crashes at the first "
        yield ERROR, 0, f"{text}line that holds (mended in 2.30.3)", fix


def _optional(line: TunerLine) -> bool:
    """It names what a machine may lack."""
    return line.algorithm not in ("ring", "tree") or line.protocol == "ll128"


def _for_shape(lines: Sequence[TunerLine], line: TunerLine) -> list[TunerLine]:
    """Lines of the same collective that hold wherever this one does."""
    return [
        other
        for other in lines
        if other.collective == line.collective
        and covers(other.nodes, line.nodes)
        and covers(other.ranks, line.ranks)
        and other.pipe == ANY
        and other.buffers == ANY
    ]


def _rest(span: tuple[int, int], taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of a range.

    >>> _rest((0, 9), [(2, 3), (7, 20)])
    [(0, 1), (4, 6)]
    """
    left, start = [], span[0]
    for first, last in sorted(taken):
        if first > span[1]:
            break
        if first > start:
            left.append((start, first - 1))
        start = max(start, last + 1)
    return [*left, (start, span[1])] if start <= span[1] else left


def _words(span: tuple[int, int]) -> str:
    return f"{span[0]} bytes and more" if span[1] == NO_END else f"{span[0]} .. {span[1]} bytes"


def _shapes(file: TunerTable) -> list[TunerLine]:
    """One line for every collective and shape of the table."""
    found = {(line.collective, line.nodes, line.ranks): line for line in reversed(file.good)}
    return sorted(found.values(), key=lambda line: line.number)


@RULES.rule("T01", ERROR, "no gap, no overlap", "a size gets another choice than meant")
def _gaps(file: TunerTable) -> Iterator[Complaint]:
    """Sizes without a line, and lines that come too late."""
    table = file.table
    lines = file.live
    example = table.dialect is Dialect.NVIDIA_EXAMPLE
    for first in _shapes(file):
        spans = [line.sizes for line in _for_shape(lines, first)]
        if not spans:
            continue
        reach = (min(span[0] for span in spans), max(span[1] for span in spans))
        for gap in _rest((0, reach[1]), spans):
            effect = "the plug-in takes one channel there" if example else "the library decides there"
            yield (
                ERROR if example else NOTE,
                first.number,
                f"no line for {first.collective} of {_words(gap)} on {shape_words(first, table.dialect)}: {effect}",
                "extend a neighbouring range, or leave it out on purpose",
            )
    for at, line in enumerate(lines):
        before = [other for other in _for_shape(lines[:at], line) if not _optional(other)]
        overlap = [
            other for other in before if other.sizes[0] <= line.sizes[1] and line.sizes[0] <= other.sizes[1]
        ]
        if not overlap:
            continue
        left = _rest(line.sizes, [other.sizes for other in overlap])
        if not left:
            text = f"the line never holds: line {overlap[0].number} comes first at all its sizes"
        elif any(other.nodes == line.nodes and other.ranks == line.ranks for other in overlap):
            text = f"the line overlaps with line {overlap[0].number}, which comes first"
        else:
            continue
        yield (
            WARNING,
            line.number,
            text,
            "the first line that holds counts: part the ranges, or change the order",
        )


@RULES.rule("T02", ERROR, "ranges reach 2^64 - 1", "large calls get another choice than meant")
def _ends(file: TunerTable) -> Iterator[Complaint]:
    """Lines that end before the largest size; collectives and shapes without lines, for the example plug-in."""
    table = file.table
    example = table.dialect is Dialect.NVIDIA_EXAMPLE
    lines = file.live
    for first in _shapes(file):
        own = _for_shape(lines, first)
        last = max((line.sizes[1] for line in own), default=-1)
        if own and last != NO_END:
            yield (
                ERROR if example else NOTE,
                first.number,
                f"lines for {first.collective} on {shape_words(first, table.dialect)} end at {last} bytes",
                f"end the last range at {NO_END}"
                if table.dialect is not Dialect.NCCLX
                else "end the last one with `,)`",
            )
    if not example:
        return
    for name in NAMES:
        if not any(line.collective == name and line.nodes == ANY and line.ranks == ANY for line in lines):
            text = f"no line for {name} on other shapes: the plug-in runs it on one channel"
            yield ERROR, 0, text, f"add {name},0,{NO_END},ring,simple,0,-1,-1 at the end"


@RULES.rule("T08", ERROR, "a fallback for what may be missing", "the line is passed over there")
def _no_fallback(file: TunerTable) -> Iterator[Complaint]:
    """Lines that name what a machine may lack, with nothing after them."""
    table = file.table
    lines = file.live
    example = table.dialect is Dialect.NVIDIA_EXAMPLE
    for at, line in enumerate(lines):
        if not _optional(line):
            continue
        after = [other.sizes for other in _for_shape(lines[at + 1 :], line) if not _optional(other)]
        left = _rest(line.sizes, after)
        if left:
            effect = "one channel is taken" if example else "the library decides"
            yield (
                ERROR if example else WARNING,
                line.number,
                f"a machine may lack {line.algorithm} with {line.protocol}; then {effect} at {_words(left[0])}",
                "add a line for ring or tree with ll or simple after it",
            )
