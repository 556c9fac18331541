"""Parse tuner tables in each dialect, with the reason why a line is ignored.

This reader is no judge: words that no library knows are kept, and lines that cannot be read are kept with the reason.
Ranges of sizes, nodes and ranks are first and last value, both included; ranks and sizes are those of the dialect, that
is ranks per node and bytes per rank for ``ncclx``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coppice.export.formats import Dialect
from coppice.fitting.nccl_tuner import NO_END

Span = tuple[int, int]
ANY: Span = (0, NO_END)
"""Any number."""

_LEAST_FIELDS = {Dialect.NVIDIA_EXAMPLE: 8, Dialect.RCCL_BUILTIN: 8, Dialect.NCCLX: 7, Dialect.COPPICE: 8}
_MOST_FIELDS = 10
_INTERVAL = re.compile(r"\*|-1|([0-9]+)|([\[(])\s*([0-9]*)\s*,\s*([0-9]*)\s*([\])])")
_COMMA = re.compile(r",(?![^\[(]*[\])])")
_HEAD = re.compile(r"#\s*tuner table \(([\w-]+)\)")
_MOST_DIGITS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TunerLine:
    """A line other than a comment."""

    number: int  # Number of the line
    text: str  # The line
    # Why it cannot be read, None where it can; what follows means nothing where it cannot
    problem: str | None = None
    empty: bool = False  # A field is empty, or missing
    collective: str = ""  # Word of the collective
    sizes: Span = ANY  # Sizes for which it holds
    algorithm: str = ""  # Word of the algorithm
    protocol: str = ""  # Word of the protocol
    channels: int = 0  # Number of channels
    nodes: Span = ANY  # Numbers of nodes for which it holds
    ranks: Span = ANY  # Numbers of ranks for which it holds
    pipe: Span = ANY  # Numbers of operations in a pipe, likewise
    buffers: Span = ANY  # Registered buffers, likewise


@dataclass(frozen=True, kw_only=True)
class ParsedTunerTable:
    """A parsed tuner table."""

    dialect: Dialect  # Who is to read it
    lines: tuple[TunerLine, ...]  # Lines that are rules or should be
    comments: tuple[tuple[int, str], ...]  # Comments with their numbers
    texts: tuple[str, ...]  # All lines, without their ends


def dialect_of(text: str) -> Dialect | None:
    """Dialect by the header or the intervals of a table; None where neither decides.

    Examples:
        >>> dialect_of("# tuner table (rccl-builtin) by hand").value
        'rccl-builtin'
        >>> dialect_of("allgather,[0,64),ring,ll,-1,2,8").value
        'ncclx'
    """
    match = _HEAD.search(text)
    if match and match[1] in list(Dialect):
        return Dialect(match[1])
    rules = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return Dialect.NCCLX if any(set("[(*") & set(line) for line in rules) else None


def read_tuner_table(text: str, dialect: Dialect) -> ParsedTunerTable:
    r"""Parse every line of a tuner table.

    Examples:
        >>> table = read_tuner_table("# head\nallreduce,0,65536,ring,ll,-1,2,16\n", Dialect.RCCL_BUILTIN)
        >>> line, = table.lines
        >>> line.number, line.sizes, line.channels, line.nodes, line.pipe == ANY
        (2, (0, 65536), -1, (2, 2), True)
    """
    texts = tuple(line.removesuffix("\r") for line in text.split("\n"))
    lines: list[TunerLine] = []
    comments: list[tuple[int, str]] = []
    for number, line in enumerate(texts, start=1):
        start = line if dialect is Dialect.NVIDIA_EXAMPLE else line.lstrip()
        if start.startswith("#"):
            comments.append((number, line))
        elif line.strip():
            lines.append(_line(number, line, dialect))
    return ParsedTunerTable(dialect=dialect, lines=tuple(lines), comments=tuple(comments), texts=texts)


def _line(number: int, text: str, dialect: Dialect) -> TunerLine:
    ncclx = dialect is Dialect.NCCLX
    fields = [field.strip() for field in (_COMMA.split(text) if ncclx else text.split(","))]
    least = _LEAST_FIELDS[dialect]
    empty = "" in fields
    if not least <= len(fields) <= _MOST_FIELDS:
        problem = f"{len(fields)} fields where {least} to {_MOST_FIELDS} are expected"
        return TunerLine(number=number, text=text, problem=problem, empty=empty or len(fields) < least)
    if empty:
        return TunerLine(
            number=number, text=text, problem=f"field {fields.index('') + 1} is empty", empty=True
        )
    if ncclx:
        collective, sizes, algorithm, protocol, channels, nodes, ranks, *more = fields
        spans = [_interval(each) for each in (sizes, nodes, ranks)]
        # Versions differ in the middle pair; the last of three fields more is the size of a chunk.
        extra = [_interval(each) for each in (more[:2] if len(more) > 1 else [])]
    else:
        collective, low, high, algorithm, protocol, channels, nodes, ranks, *more = fields
        first, last = _number(low), _number(high)
        spans = [None if first is None or last is None else (first, last), *map(_exact, (nodes, ranks))]
        extra = [_exact(each) for each in more]
    names = ("size", "nodes", "ranks", "numPipeOps", "regBuff")
    wrong = next((name for name, span in zip(names, [*spans, *extra], strict=False) if span is None), None)
    count = _number(channels.removeprefix("-"))
    if wrong is not None or count is None:
        problem = f"{wrong or 'channels'} cannot be read"
        return TunerLine(number=number, text=text, problem=problem)
    found = [span if span is not None else ANY for span in [*spans, *extra, ANY, ANY]]
    if found[0][0] > found[0][1]:
        return TunerLine(
            number=number, text=text, problem=f"sizes from {found[0][0]} to {found[0][1]} are none"
        )
    return TunerLine(
        number=number,
        text=text,
        collective=collective,
        sizes=found[0],
        algorithm=algorithm,
        protocol=protocol,
        channels=-count if channels.startswith("-") else count,
        nodes=found[1],
        ranks=found[2],
        pipe=found[3],
        buffers=found[4],
    )


def _number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) <= NO_END:
        return int(text)
    return None


def _exact(text: str) -> Span | None:
    """-1 is any."""
    value = _number(text)
    return ANY if text == "-1" else None if value is None else (value, value)


def _interval(text: str) -> Span | None:
    """``*``, ``N``, ``[a,b]``, ``(a,)`` and the like.

    >>> [_interval(each) for each in ("8", "[2,4)", "(2,]", "(4,4)")]
    [(8, 8), (2, 3), (3, 18446744073709551615), None]
    """
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return None
    if text in ("*", "-1"):
        return ANY
    if match[1] is not None:
        value = _number(match[1])
        return None if value is None else (value, value)
    low, high = (_number(match[group] or "0") for group in (3, 4))
    if low is None or high is None:
        return None
    first = low + 1 if match[2] == "(" and match[3] else low
    last = NO_END if not match[4] else high - (match[5] == ")")
    return (first, last) if first <= last else None
