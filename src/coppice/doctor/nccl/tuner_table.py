"""A tuner table as rules see it: its lines, those that the library follows as they are meant, and their words."""

from __future__ import annotations

from functools import cached_property

from coppice.doctor.framework import Rulebook
from coppice.doctor.given import TuningFile
from coppice.errors import InputError
from coppice.export.nccl.tuner import Dialect
from coppice.export.nccl.tuner_reader import ANY, ParsedTunerTable, TunerLine, dialect_of, read_tuner_table
from coppice.fitting.nccl_tuner.timings import ALGORITHMS, COLLECTIVES, PROTOCOLS, impossible

__all__ = ["NAMES", "RULES", "TunerTable", "covers", "dead", "shape_words"]

NAMES = {name: collective for collective, name in COLLECTIVES.items()}
"""Collectives by their words in tuner tables."""


class TunerTable(TuningFile):
    """A tuner table (a CSV file)."""

    @cached_property
    def table(self) -> ParsedTunerTable:
        """Its lines.

        Raises:
            InputError: If it has none.
        """
        dialect = self.given.dialect or dialect_of(self.text) or Dialect.NVIDIA_EXAMPLE
        table = read_tuner_table(self.text, dialect)
        if not table.lines:
            msg = f"{self.file} holds no line of a tuner table: give the CSV file."
            raise InputError(msg)
        return table

    @cached_property
    def good(self) -> tuple[TunerLine, ...]:
        """Lines that the library follows as they are meant."""
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
        """Good lines whose algorithm and protocol some library has for the collective."""
        return tuple(line for line in self.good if dead(line) is None)


RULES = Rulebook[TunerTable]()
"""Rules about tuner tables."""


def dead(line: TunerLine) -> str | None:
    """Why no library has the combination of a line, or None."""
    return impossible(NAMES[line.collective], line.algorithm, line.protocol)


def covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    """A range lies within another."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def shape_words(line: TunerLine, dialect: Dialect) -> str:
    """For which communicators a line holds, in words."""

    def text(span: tuple[int, int]) -> str:
        return "any" if span == ANY else str(span[0]) if span[0] == span[1] else f"{span[0]}..{span[1]}"

    per = " per node" if dialect is Dialect.NCCLX else ""
    return f"{text(line.nodes)} nodes and {text(line.ranks)} ranks{per}"
