"""The printed table of nccl-tests and rccl-tests as typed records.

A row has 13 columns: size, count, type, redop and root, then time, algbw, busbw and wrong values for out of place and
for in place. Reports of each iteration (``-I``) add four columns to each half, time stamps two words at the end, and
where out of place is not run, its columns are blank. Everything else that the programs print begins with ``#``;
launchers and libraries add lines of their own before and after, which are passed over. A line that begins like a row
and is none is an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from coppice.errors import InputError

__all__ = ["NcclTestsHalf", "NcclTestsRank", "NcclTestsRow", "NcclTestsTable", "read_nccl_tests"]

_DEVICE = re.compile(
    r"#\s+Rank\s+([0-9]+)(?:\s+Group\s+([0-9]+))?.*?\s+Pid\s+([0-9]+)\s+on\s+(\S+)\s+device\s+([0-9]+)"
    r"\s+\[([^\]]*)\]\s*(.*)"
)
_SUMMARY = re.compile(r"#\s*(Out of bounds values|Avg bus bandwidth)\s*:\s*([0-9.eE+-]+)")
_PROGRAM = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_KEYS = 5
_HALF = 4
_WHOLE_HALF = 8
_BLANK_HALF = 32 * " "
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$")
_DIGITS = 18
_INTEGER = re.compile(r"[0-9]+")
_UNCHECKED = "N/A"


@dataclass(frozen=True, kw_only=True)
class NcclTestsHalf:
    """One half of a row.

    Attributes:
        time_us: Time of a call.
        algbw_gb_per_s: Algorithm bandwidth, as printed.
        busbw_gb_per_s: Bus bandwidth, as printed.
        wrong: Number of wrong values, None where they were not checked.
    """

    time_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None


@dataclass(frozen=True, kw_only=True)
class NcclTestsRow:
    """A row.

    Attributes:
        size_bytes: The size column: M (see :mod:`coppice.collectives`).
        count: Elements of a rank.
        type: Their type, such as ``float``.
        redop: Reduction, or ``none``.
        root: Root rank, -1 without one.
        out_of_place: Times with two buffers, None where that was not run.
        in_place: Times with one, None likewise.
        line: Line of the text.
    """

    size_bytes: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: NcclTestsHalf | None
    in_place: NcclTestsHalf | None
    line: int


@dataclass(frozen=True, kw_only=True)
class NcclTestsRank:
    """A rank and where it ran."""

    rank: int
    pid: int
    host: str
    device: int
    bus_id: str
    name: str
    group: int = 0


@dataclass(frozen=True, kw_only=True)
class NcclTestsTable:
    """Everything that a run printed.

    Attributes:
        rows: Rows, in order.
        devices: Ranks, in order.
        wrong: Wrong values in all, None where nothing says so.
        avg_busbw_gb_per_s: Average bus bandwidth, None likewise.
        program: Name of the program, such as ``all_reduce_perf``, None likewise.
    """

    rows: tuple[NcclTestsRow, ...]
    devices: tuple[NcclTestsRank, ...]
    wrong: int | None
    avg_busbw_gb_per_s: float | None
    program: str | None = None


def read_nccl_tests(text: str, *, file: str) -> NcclTestsTable:
    r"""The table in what a run printed.

    Args:
        text: Standard output of the run.
        file: Its name, for messages.

    Raises:
        InputError: If a row cannot be read, with its line, or there is none.

    Examples:
        >>> row = "  1024  256  float  sum  -1  10.5  0.10  0.17  0  9.9  0.10  0.18  N/A\n"
        >>> table = read_nccl_tests("# nccl-tests version 2.17\n" + row, file="log")
        >>> table.rows[0].size_bytes, table.rows[0].out_of_place.time_us, table.rows[0].in_place.wrong
        (1024, 10.5, None)
    """
    rows: list[NcclTestsRow] = []
    devices: list[NcclTestsRank] = []
    found: dict[str, float] = {}
    program: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if line.startswith("#"):
            device = _DEVICE.match(line)
            if device:
                rank, group, pid, host, index, bus_id, name = device.groups()
                devices.append(
                    NcclTestsRank(
                        rank=_index(rank, "a rank", f"{file}:{number}"),
                        pid=_index(pid, "a process", f"{file}:{number}"),
                        host=host,
                        device=_index(index, "a device", f"{file}:{number}"),
                        bus_id=bus_id,
                        name=name.strip(),
                        group=_index(group or "0", "a group", f"{file}:{number}"),
                    )
                )
            started = _PROGRAM.match(line)
            program = started[1] if started else program
            summary = _SUMMARY.match(line)
            if summary:
                found[summary[1]] = _number(summary[2], summary[1], f"{file}:{number}")
        elif len(words) > 2 and _INTEGER.fullmatch(words[0]) and _INTEGER.fullmatch(words[1]):
            rows.append(_row(line, number, f"{file}:{number}"))
    if not rows:
        msg = f"{file} holds no row of nccl-tests: give the output of a run, such as that of all_reduce_perf."
        raise InputError(msg)
    wrong = found.get("Out of bounds values")
    return NcclTestsTable(
        rows=tuple(rows),
        devices=tuple(devices),
        wrong=None if wrong is None else int(wrong),
        avg_busbw_gb_per_s=found.get("Avg bus bandwidth"),
        program=program,
    )


def _row(text: str, line: int, where: str) -> NcclTestsRow:
    words = _STAMP.sub("", text.rstrip()).split()
    halves = len(words) - _KEYS
    alone = halves == _HALF and _BLANK_HALF in text
    if halves not in (2 * _HALF, 2 * _WHOLE_HALF) and not alone:
        whole, detailed = _KEYS + 2 * _HALF, _KEYS + 2 * _WHOLE_HALF
        msg = f"expected {whole} columns at {where}, or {detailed} with `-I`, found {len(words)}: drop the line."
        raise InputError(msg)
    root = words[4]
    if not re.fullmatch(r"-1|\d{1,9}", root):
        msg = f"expected a root of -1 or more at {where}, found {root[:20]!r}."
        raise InputError(msg)
    half = _HALF if halves <= 2 * _HALF else _WHOLE_HALF
    first = _run(words[_KEYS : _KEYS + _HALF], where)
    second = None if alone else _run(words[_KEYS + half : _KEYS + half + _HALF], where)
    return NcclTestsRow(
        size_bytes=_index(words[0], "a size", where),
        count=_index(words[1], "a count", where),
        type=words[2],
        redop=words[3],
        root=int(root),
        out_of_place=None if second is None else first,
        in_place=first if second is None else second,
        line=line,
    )


def _index(text: str, what: str, where: str) -> int:
    if len(text) > _DIGITS:
        msg = f"expected {what} of at most {_DIGITS} digits at {where}, found {text[:40]!r}."
        raise InputError(msg)
    return int(text)


def _run(words: list[str], where: str) -> NcclTestsHalf:
    wrong = None if words[3] == _UNCHECKED else _number(words[3], "#wrong", where)
    return NcclTestsHalf(
        time_us=_number(words[0], "time", where),
        algbw_gb_per_s=_number(words[1], "algbw", where),
        busbw_gb_per_s=_number(words[2], "busbw", where),
        wrong=None if wrong is None else int(wrong),
    )


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        msg = f"expected {name} as a number of 0 or more at {where}, found {text[:40]!r}."
        raise InputError(msg)
    return value
