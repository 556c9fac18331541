"""A run of nccl-tests while its lines are read: its rows, its ranks, and what has to be said of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from coppice.logs.tables import NcclTestsRank, NcclTestsRow, NcclTestsTable
from coppice.text import plural

_EXAMPLE = 60


@dataclass
class PrintedRun:
    """What was read of a run, or of several whose rows are mixed."""

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
        """Take a line of the list of ranks: a rank that is listed already is of another run."""
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
        """How often a closing line was read."""
        return sum(each == name for each, _ in self.summaries)

    def absorb(self, other: PrintedRun) -> None:
        """Take a run whose rows are mixed with those of this one."""
        self.rows += other.rows
        self.devices += other.devices
        self.devices_cut = self.devices_cut or other.devices_cut
        self.summaries += other.summaries
        self.unread += other.unread
        self.joined += other.joined

    def table(self, file: str) -> NcclTestsTable:
        """Everything as a record."""
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
    """In words, how many lines look like rows and are not read, with the first of them."""
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
