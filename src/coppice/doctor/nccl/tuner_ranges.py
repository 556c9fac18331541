"""Doctor rules about the ranges of tuner tables: gaps, overlaps, ends, and fallbacks for what a machine may lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint
from coppice.doctor.nccl.tuner_table import NAMES, RULES, TunerTable, covers, shape_words
from coppice.export.nccl.tuner import Dialect
from coppice.export.nccl.tuner_reader import ANY, TunerLine
from coppice.fitting.nccl_tuner.rules import NO_END


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
