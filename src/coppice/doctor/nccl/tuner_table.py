"""Tuner table under examination: its lines, and those that take effect."""

from __future__ import annotations

from functools import cached_property

from coppice.doctor.framework import Coverage, Place, Rulebook
from coppice.doctor.job_facts import TuningFile
from coppice.errors import InputError
from coppice.export.formats import Dialect
from coppice.export.nccl.tuner import algorithms_of
from coppice.export.nccl.tuner_reader import ANY, ParsedTunerTable, TunerLine, dialect_of, read_tuner_table
from coppice.fitting.nccl_tuner import ALGORITHMS, COLLECTIVES, PROTOCOLS, impossible
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
