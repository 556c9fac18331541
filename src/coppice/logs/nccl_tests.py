"""Parse the printed tables of nccl-tests, rccl-tests and mscclpp-test into typed records.

Cells are read by the header that stands above them (see :mod:`coppice.logs.columns`). A file may hold several runs:
one after the other, or mixed, where a launcher started programs that were built without MPI, so that each of them is a
run of its own which lists ranks from 0. Lines that look like rows and are not read are counted and shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from coppice.errors import InputError
from coppice.logs.columns import (
    TableHeader,
    UnreadableError,
    ends_like_row,
    groups_of,
    header_of,
    looks_like_row,
    numbers_only,
    row_part,
    spaced,
    usual_header,
)
from coppice.logs.lines import LogLine
from coppice.logs.rows import (
    NcclTestsRank,
    NcclTestsRow,
    NcclTestsTable,
    TornRow,
    device_of,
    figures_agree,
    joined_row,
    number_of,
    row_of,
)
from coppice.text import plural

_EXAMPLE = 60


@dataclass
class PrintedRun:
    """Parsed part of a run, or of several interleaved ones."""

    rows: list[NcclTestsRow] = field(default_factory=list)  # Rows
    devices: list[list[NcclTestsRank]] = field(default_factory=list)  # Ranks, by run
    devices_cut: bool = False  # A list of ranks is not whole
    summaries: list[tuple[str, float]] = field(default_factory=list)  # Closing lines: (what, value)
    program: str | None = None  # Name of the program, as it says itself
    commands: list[str] = field(default_factory=list)  # Names of programs in lines before the rows
    kind: str = "nccl-tests"  # Whose program it was
    # Lines that look like rows: (line, text, why it is none)
    unread: list[tuple[int, str, str]] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)  # Titles of columns that are not known
    joined: int = 0  # Number of rows that were torn
    shifted: int = 0  # Number of rows that begin with a cell which the header does not name
    header_cut: bool = False  # The header names fewer columns than rows have
    own: dict[str, int] = field(default_factory=dict)  # Rows of algorithms of Coppice, by name
    unfinished: bool = False  # It begins where the run before it had not ended

    def listed(self, device: NcclTestsRank) -> None:
        """Add a line of the rank list: a repeated rank belongs to another run."""
        free = [
            ranks
            for ranks in self.devices
            if all((each.group, each.rank) != (device.group, device.rank) for each in ranks)
        ]
        near = [ranks for ranks in free if any(each.host == device.host for each in ranks)]
        if near or free:
            (near or free)[0].append(device)
        else:
            self.devices.append([device])

    def ended(self, name: str) -> int:
        """Number of closing lines."""
        return sum(each == name for each, _ in self.summaries)

    def absorb(self, other: PrintedRun) -> None:
        """Merge an interleaved run into this one."""
        self.rows += other.rows
        self.devices += other.devices
        self.devices_cut = self.devices_cut or other.devices_cut
        self.summaries += other.summaries
        self.unread += other.unread
        self.joined += other.joined

    def table(self, file: str) -> NcclTestsTable:
        """The run as a record."""
        wrong = [value for name, value in self.summaries if name == "Out of bounds values"]
        busbw = [
            value for name, value in self.summaries if name == "Avg bus bandwidth" and not math.isnan(value)
        ]
        commands = set(self.commands)
        return NcclTestsTable(
            rows=tuple(self.rows),
            devices=tuple(tuple(ranks) for ranks in self.devices),
            devices_cut=self.devices_cut,
            wrong=int(sum(wrong)) if wrong else None,
            avg_busbw_gb_per_s=busbw[-1] if busbw else None,
            program=self.program or (commands.pop() if len(commands) == 1 else None),
            kind=self.kind,
            warnings=tuple(self._warnings(file)),
        )

    def _warnings(self, file: str) -> list[str]:
        found = [unread_words(self.unread, file)] if self.unread else []
        if self.unknown:
            names = ", ".join(self.unknown)
            found.append(f"{file}: the table's columns {names} are not known and not read")
        if self.shifted:
            found.append(
                f"{file}: what stands before the first column of {plural(self.shifted, 'row')}, which no header names, "
                "is left out"
            )
        if self.own:
            names = ", ".join(self.own)
            found.append(
                f"{file}: left out: {plural(sum(self.own.values()), 'row')} of algorithms of Coppice ({names}), which "
                "are no times of the library's own"
            )
        if self.header_cut:
            found.append(
                f"{file}: the header names fewer columns than rows have: the usual ones of nccl-tests are assumed, as "
                "the figures confirm"
            )
        if self.joined:
            found.append(f"{file}: {plural(self.joined, 'row')} joined that other lines had torn apart")
        if back := _back(self.rows):
            found.append(
                f"{file}:{back}: sizes go back in the middle of a table, as where rows of several runs are mixed: "
                "figures of one size may be of several runs"
            )
        return found


def unread_words(unread: Sequence[tuple[int, str, str]], file: str) -> str:
    """Warning about lines that look like rows but are not parsed, with the first of them."""
    number, text, why = unread[0]
    short = " ".join(text.split())
    short = short if len(short) <= _EXAMPLE else f"{short[:_EXAMPLE]}..."
    many = (
        "1 line looks like a row and is"
        if len(unread) == 1
        else f"{len(unread)} lines look like rows and are"
    )
    return f"{many} not read, such as {file}:{number} ({short!r}: {why})"


def _back(rows: Sequence[NcclTestsRow]) -> int:
    """Line where sizes go back before the sweep is through, 0 where they never do."""
    largest: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = (row.type, row.redop, row.root)
        largest[key] = max(largest.get(key, 0), row.size_bytes)
    for before, row in pairwise(rows):
        key = (row.type, row.redop, row.root)
        same = key == (before.type, before.redop, before.root)
        if same and row.size_bytes < before.size_bytes < largest[key]:
            return row.line
    return 0


_SUMMARY = re.compile(r"#?\s*(Out of bounds values|Avg bus bandwidth)\s*:\s*([0-9.eE+-]+|-?nan)")
_PROGRAM = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_START = re.compile(r"#\s*(?:nThreads? [0-9]|nccl-tests version|Collective test starting|Using devices)")
_COMMAND = re.compile(r"(?<![\w.-])(?:\S*/)?([a-z]\w*_perf(?:_mpi)?)(?![\w.])")
_OTHER_PROGRAMS = (("rccl-tests", "rccl-tests: Version"), ("mscclpp-test", "MSCCL++"))
_FIGURE = re.compile(r"\s*[0-9]")
_OF_NCCL = re.compile(r"NCCL (?:INFO|WARN|TRACE|ERROR)")
_LIBRARY = "native"  # what the table of `coppice bench` calls the library's own


class NoRowsError(InputError):
    """A text that looks like a table but has no row."""


def has_table(lines: Iterable[LogLine]) -> bool:
    """Whether a log has a header or row of a table, or other output of these programs only."""
    for line in lines:
        text = line.text
        if text.startswith("#") and ("nccl-tests" in text or _PROGRAM.match(text)):
            return True
        text = spaced(text)
        if header_of(text, (), line=1) is not None:
            return True
        if "NCCL" not in text and (looks_like_row(text) or usual_header(text) is not None):
            return True
    return False


def read_nccl_tests(lines: Sequence[LogLine], *, file: str) -> tuple[NcclTestsTable, ...]:
    r"""Parse the tables of all runs in a log.

    Args:
        lines: Standard output (:func:`coppice.logs.lines.log_lines`).

    Examples:
        >>> from coppice.logs.lines import log_lines
        >>> row = "  1024  256  float  sum  -1  10.5  0.10  0.17  0  9.9  0.10  0.18  N/A\n"
        >>> table, = read_nccl_tests(log_lines("# nccl-tests version 2.17\n" + row), file="log")
        >>> table.rows[0].size_bytes, table.rows[0].out_of_place.time_us, table.rows[0].in_place.wrong
        (1024, 10.5, None)
    """
    lines = [line for line in lines if not _OF_NCCL.search(line.text)]
    lines = [
        line._replace(text=text) if text != line.text else line
        for line in lines
        for text in [spaced(line.text)]
    ]
    streams = [_RunsReader(file).read(stream) for stream in _streams(lines)]
    found = [run for runs in streams for run in runs if run.rows or run.unread or run.own]
    if not any(run.rows for run in found):
        unread = [each for run in found for each in run.unread]
        why = f": {unread_words(unread, file)}" if unread else ""
        raise NoRowsError(
            f"{file} holds no row of nccl-tests that can be read{why}: give the output of a run, such as that of "
            "all_reduce_perf, as it was printed."
        )
    tables = tuple(run.table(file) for run in found)
    if words := _apart(streams, file):
        tables = (replace(tables[0], warnings=(*tables[0].warnings, words)), *tables[1:])
    return tables


def _apart(streams: Sequence[Sequence[PrintedRun]], file: str) -> str:
    """In words, that several processes list ranks of the same numbers; empty where not."""
    first = [runs[0].devices[0] for runs in streams if runs and runs[0].rows and runs[0].devices]
    ranks = [{(device.group, device.rank) for device in devices} for devices in first]
    if not any(one & other for at, one in enumerate(ranks) for other in ranks[:at]):
        return ""
    return (
        f"{file}: {len(ranks)} processes print tables of their own, each with ranks from {first[0][0].rank}: these are "
        f"{len(ranks)} runs at the same time, not one of all: build nccl-tests with MPI=1 for that"
    )


def _streams(lines: Sequence[LogLine]) -> list[list[LogLine]]:
    """The lines of each process that printed a whole table, where a launcher tells them apart; else all lines."""
    own: dict[str, int] = {}
    for line in lines:
        if line.stream and header_of(line.text, (), line=1) is not None:
            own[line.stream] = own.get(line.stream, 0)
        elif line.stream in own and (looks_like_row(line.text) or numbers_only(line.text)):
            own[line.stream] += 1
    tables = [stream for stream, rows in own.items() if rows]
    if len(tables) < 2:
        return [list(lines)]
    rest = [line for line in lines if line.stream not in tables]
    return [*([line for line in lines if line.stream == stream] for stream in tables), rest]


class _RunsReader:
    """Reads one stream of lines."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.runs = [PrintedRun()]
        self.header: TableHeader | None = None
        self.groups: tuple[bool, ...] = ()
        self.torn: TornRow[NcclTestsRow] | None = None
        self.half: TornRow[NcclTestsRow] | None = None
        self.lost = False
        self.commands: list[str] = []

    @property
    def run(self) -> PrintedRun:
        return self.runs[-1]

    def read(self, lines: Sequence[LogLine]) -> list[PrintedRun]:
        """The runs, in order."""
        for line in lines:
            text = line.text
            if not text or text.isspace():
                continue
            if text.startswith("#"):
                self.comment(text, line.number)
            else:
                self.plain(line)
        self.close()
        return self._merged()

    def comment(self, text: str, number: int) -> None:
        """A line that begins with ``#``."""
        where = f"{self.file}:{number}"
        if _START.match(text):
            self.start(text)
        device = device_of(text, where)
        if device is not None:
            self.run.listed(device)
        elif re.match(r"#\s+Rank\s+[0-9]", text):
            self.run.devices_cut = True
        elif groups := groups_of(text):
            self.groups = groups
        elif self.names(text, number):
            return
        self.summary(text, where)
        for kind, words in _OTHER_PROGRAMS:
            if words in text:
                self.run.kind = kind

    def names(self, text: str, number: int) -> bool:
        """Whether a line names columns; then they count from here on."""
        found = header_of(text, self.groups, line=number)
        if found is not None:
            self.close()
            self.header = found
            self.run.unknown |= dict.fromkeys(found.unknown, 0)
        elif self.header is not None and re.match(r"#?\s+\(B\)\s", text):
            self.header = self.header.with_units(text)
        else:
            return False
        return True

    def summary(self, text: str, where: str) -> None:
        match = _SUMMARY.match(text)
        if match:
            self.close()
            value = math.nan if match[2].endswith("nan") else number_of(match[2], match[1], where)
            self.run.summaries.append((match[1], value))

    def start(self, text: str) -> None:
        """A line with which runs begin: is it of the run in hand, or of a new one?"""
        self.close()
        run = self.run
        program = _PROGRAM.match(text)
        other = program is not None and run.program is not None and program[1] != run.program
        if run.rows or run.summaries or other:
            self.runs.append(PrintedRun(unfinished=bool(run.rows) and not run.summaries and not other))
            self.header = self.header if self.run.unfinished else None
            self.lost = False
        if program is not None:
            self.run.program = program[1]

    def plain(self, line: LogLine) -> None:
        """A line that may be a row, a piece of one, a header without ``#``, or none of this."""
        text = line.text
        header = self.header
        begins = looks_like_row(text) or usual_header(text) is not None
        begins = header.begins_row(text) if header is not None else begins
        if self.torn is not None and self.piece(line, begins=begins):
            return
        if begins:
            doubtful = self.torn is not None and numbers_only(self.torn.text)
            self.close()
            self.row(line, doubtful=doubtful)
        elif header is not None and line.cut and _FIGURE.match(text):
            self.close()
            self.torn = self.begun(header, line)
        elif self.half is not None and self.other_half(text):
            return
        elif header is not None and (ends_like_row(text) or _is_piece(text, header)):
            self.run.unread.append((line.number, text, "figures without the beginning of their row"))
        elif looks_like_row(text):
            self.run.unread.append((line.number, text, "it does not begin like a row of its table"))
        elif text.rstrip() == "...":
            self.run.devices_cut = self.run.devices_cut or bool(self.run.devices and not self.run.rows)
        elif not self.names(text, line.number):
            self.other(text, f"{self.file}:{line.number}")

    def other(self, text: str, where: str) -> None:
        """A line that is no part of a table: commands and versions are of interest."""
        self.summary(text, where)
        for kind, words in _OTHER_PROGRAMS:
            if words in text:
                self.run.kind = kind
        if "_perf" in text:
            found = _COMMAND.findall(text)
            (self.commands if self.run.rows else self.run.commands).extend(found)

    def row(self, line: LogLine, *, doubtful: bool) -> None:
        """A line that begins like a row; doubtful where its beginning may have been torn off."""
        header = self.header or usual_header(line.text)
        if header is None and (part := row_part(line.text)) != line.text:
            header = usual_header(part)
            line = line if header is None else line._replace(text=part)
            self.run.shifted += header is not None
        if header is None:
            why = "no header names its columns"
            self.run.unread.append((line.number, line.text, why))
            return
        usual = usual_header(line.text)
        if (
            usual is not None
            and header.line
            and usual.continues(header)
            and joined_row(usual, line.text, 0, "")[1]
        ):
            header = usual
            self.run.header_cut = True
        try:
            cells = header.cells(line.text)
        except UnreadableError as error:
            if len(line.text.split()) < len(header.columns):
                self.torn = self.begun(header, line)
            else:
                self.run.unread.append((line.number, line.text, str(error)))
            return
        row = row_of(header, cells.by_name, line.number, f"{self.file}:{line.number}")
        agrees = figures_agree(row)
        if (cells.surplus and agrees is False) or (doubtful and not agrees):
            why = "its beginning may be torn off" if doubtful else "its figures do not fit the columns"
            self.run.unread.append((line.number, line.text, why))
            return
        algorithm = cells.by_name.get((-1, "algorithm"), _LIBRARY)
        if algorithm != _LIBRARY:
            self.run.own[algorithm] = self.run.own.get(algorithm, 0) + 1
            return
        self.run.shifted += bool(cells.surplus)
        if not cells.whole and line.cut:
            self.torn = self.begun(header, line)
            return
        self.emit(row)
        self.half = None if cells.whole else self.begun(header, line)

    def begun(self, header: TableHeader, line: LogLine) -> TornRow[NcclTestsRow]:
        """A row of which more is to come."""
        return TornRow(
            line.number,
            line.text,
            lambda text: joined_row(header, text, line.number, self.file),
            cut=line.cut,
        )

    def piece(self, line: LogLine, *, begins: bool) -> bool:
        """Whether a line continues the torn row; what also begins like a row does so only if the figures say it."""
        torn = self.torn
        if torn is None:
            return False
        figures = numbers_only(line.text) and not begins
        sure = begins or not figures or self.lost or len(self.run.devices) > 1
        row = torn.add(line.text, sure=sure, keep=figures)
        if row is not None and begins and self.stands_alone(line):
            return False
        if row is not None:
            self.torn = None
            self.run.joined += 1
            self.emit(row)
        return row is not None or figures

    def other_half(self, text: str) -> bool:
        """Whether a line is the other half of the last row, as where lines are wrapped; the figures have to say it."""
        row = None if self.half is None else self.half.add(text, sure=True, keep=False)
        if row is not None:
            self.run.rows[-1] = row
            self.run.joined += 1
            self.half = None
        return row is not None

    def stands_alone(self, line: LogLine) -> bool:
        """Whether a line is a row whose figures do not contradict each other."""
        row, agrees = (None, None) if self.header is None else joined_row(self.header, line.text, 0, "")
        return row is not None and agrees is not False

    def close(self) -> None:
        """Give up a torn row whose end has not come."""
        self.half = None
        if self.torn is not None:
            why = "it is torn by other lines, and its pieces cannot be joined in one way only"
            self.run.unread.append(
                (self.torn.number, self.torn.text, why if self.torn.cut else "it is cut off")
            )
            self.torn = None
            self.lost = True

    def emit(self, row: NcclTestsRow) -> None:
        if not self.run.rows and self.commands:
            self.run.commands = self.run.commands or self.commands
            self.commands = []
        self.run.rows.append(row)

    def _merged(self) -> list[PrintedRun]:
        """The runs; where one began while rows of another were printed, and both ended after it, they are one."""
        found: list[PrintedRun] = []
        for run in self.runs:
            mixed = run.unfinished and run.ended("Out of bounds values") > 1
            if found and mixed:
                found[-1].absorb(run)
            else:
                found.append(run)
        return found


def _is_piece(text: str, header: TableHeader) -> bool:
    """Whether a line holds figures as a part of a row does."""
    return numbers_only(text) and 1 < len(text.split()) < len(header.columns) and "." in text
