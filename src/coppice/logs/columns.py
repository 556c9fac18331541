"""Columns of tables of nccl-tests and similar programs, by the table's own header.

Two lines make a header: one that says which half is out of place and which in place, and one that names the columns. No
version, fork or option agrees with another on either: all_gather_perf of 2018 has 11 columns, all_reduce_perf 12, later
ones 13, ``-I`` adds four to each half; mscclpp-test begins with in place; rccl-tests may leave out of place away.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

_NAMES = {
    "size": "size", "bytes": "size", "count": "count", "n": "count", "elements": "count",
    "type": "type", "datatype": "type", "dtype": "type", "redop": "redop", "op": "redop", "root": "root",
    "time": "time", "cputime": "cputime", "algbw": "algbw", "busbw": "busbw",
    "#wrong": "wrong", "wrong": "wrong", "#errors": "wrong", "error": "error", "res": "error",
    "i_min": "i_min", "i_max": "i_max", "i_p99": "i_p99", "i_cv%": "i_cv",
    "nodes": "nodes", "ranks": "ranks", "algorithm": "algorithm", "timestamp": "timestamp",
}  # fmt: skip
_TIME_NAMES = ("time", "cputime")
_GROUP = re.compile(r"\b(out[- ]of[- ]place|in[- ]place)\b", re.IGNORECASE)
_WORD = re.compile(r"\S+")
_UNITS = {"(us)": 1.0, "(ms)": 1e3, "(s)": 1e6}
_STAMP = re.compile(r"\s+[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}\S*\s*$")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf)")
BLANK = ("N/A", "n/a", "-", "--")
"""What stands in a cell that has no value."""
_ROOT = re.compile(r"-?[0-9]+")
_BLANK_HALF = 32 * " "
_SLACK = 3
_MOST_SURPLUS = 2
_MARKS = ("|", ";", ",")
_LEAST_MARKS = 5


class Column(NamedTuple):
    """A column."""

    name: str  # What it holds, in one spelling for all versions; its own title where that is not known
    half: int  # Number of its half from 0, -1 for what both share
    end: int  # Where its title ends in the line


class RowCells(NamedTuple):
    """The cells of a row."""

    # Their words by (half, name); those of a half that is blank are missing
    by_name: dict[tuple[int, str], str]
    surplus: int  # Cells before the first one that the header names
    whole: bool  # No half is blank


class UnreadableError(ValueError):
    """A line that does not match the header; the text gives the reason."""


@dataclass(frozen=True)
class TableHeader:
    """Columns of a table."""

    columns: tuple[Column, ...]  # The columns, in order; a time stamp at the end is none
    in_place: tuple[bool | None, ...]  # For each half whether it is in place, None where nothing says so
    unit_us: float  # Microseconds of the unit of times
    line: int  # Line of the names, 0 where the file has none and the usual columns are assumed
    cpu_time: bool = False  # Times are those of the CPU, from which no bandwidth follows

    def with_units(self, text: str) -> TableHeader:
        """Add the units of the line below."""
        unit = next((_UNITS[word] for word in text.split() if word in _UNITS), None)
        return self if unit is None else replace(self, unit_us=unit)

    def continues(self, header: TableHeader) -> bool:
        """Whether these columns extend those of a truncated header."""
        own = [(column.name, column.half) for column in self.columns]
        named = [(column.name, column.half) for column in header.columns]
        return header.in_place == (None,) and len(named) < len(own) and own[: len(named)] == named

    @property
    def unknown(self) -> tuple[str, ...]:
        """Unrecognised titles, whose cells are skipped."""
        known = {*_NAMES.values(), "sidebw", "min", "max"}
        return tuple(dict.fromkeys(column.name for column in self.columns if column.name not in known))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that both halves share."""
        return tuple(column.name for column in self.columns if column.half < 0)

    def cells(self, text: str) -> RowCells:
        """The cells of a row."""
        found = list(_WORD.finditer(_STAMP.sub("", text)))
        words = [match[0] for match in found]
        surplus = len(words) - len(self.columns)
        if surplus == 0 or (0 < surplus <= _MOST_SURPLUS and self._shifted(words) == surplus):
            return RowCells(self._named(self.columns, words[surplus:]), surplus, whole=True)
        for half in self._nearest(found) if surplus < 0 else ():
            columns = tuple(column for column in self.columns if column.half in (-1, half))
            if len(words) < len(columns):  # values were not checked
                columns = tuple(column for column in columns if column.name not in ("wrong", "error"))
            if len(words) == len(columns) and self._stands(found, columns):
                return RowCells(self._named(columns, words), 0, whole=len(self.in_place) == 1)
        raise UnreadableError(f"{len(words)} cells under {len(self.columns)} columns")

    def _nearest(self, found: Sequence[re.Match[str]]) -> list[int]:
        """The half below which the last word of a row with one half stands."""
        ends = {
            half: max(c.end for c in self.columns if c.half == half) for half in range(len(self.in_place))
        }
        last = found[-1].end() if found else 0
        return sorted(ends, key=lambda half: abs(ends[half] - last))[:1]

    def _stands(self, found: Sequence[re.Match[str]], columns: Sequence[Column]) -> bool:
        """Whether the words of a row stand below the titles of these columns."""
        if not self.line:
            return False
        times = [index for index, column in enumerate(columns) if column.name in _TIME_NAMES]
        return all(abs(found[index].end() - columns[index].end) <= _SLACK for index in (0, *times))

    def _shifted(self, words: Sequence[str]) -> int | None:
        """By how many cells, which the header does not name, a row begins; None where that is not sure."""
        names = [column.name for column in self.columns]
        if "type" in names:
            places = [index for index, word in enumerate(words) if word.isidentifier() and word not in BLANK]
            at = names.index("type")
            fitting = [place - at for place in places if place >= at and words[place - 1].isdecimal()]
            return fitting[0] if fitting else None
        return None if words[0].isdecimal() else len(words) - len(names)

    @staticmethod
    def _named(columns: Sequence[Column], words: Sequence[str]) -> dict[tuple[int, str], str]:
        return {(column.half, column.name): word for column, word in zip(columns, words, strict=True)}

    def begins_row(self, text: str) -> bool:
        """Whether a line begins like a row, complete or not."""
        words = text.split(None, len(self.names) + 3)
        names = self.names
        if "type" in names:
            return bool(_TYPED.search(text))
        size = names.index("size")
        if len(words) <= size + 1 or not words[size].isdecimal():
            return False
        return "count" not in names or (len(words) > size + 1 and words[names.index("count")].isdecimal())


_TYPES = r"(?:u?int(?:8|32|64)?|u?char|half|float(?:8\w*|16|32|64)?|double|bfloat\w*|bf16|fp(?:8\w*|16|32|64)|f8e\w+)"
_TAIL = re.compile(r"(?:^|\s)[0-9.]+(?:e[+-]?[0-9]+)?\s+[0-9]+\.[0-9]+\s+[0-9]+\.[0-9]+\s+(?:[0-9]+|N/A)\s*$")
_TYPED = re.compile(rf"(?:^|\s)[0-9]+\s+[0-9]+\s+{_TYPES}(?:\s|$)")


def looks_like_row(text: str) -> bool:
    """Whether a line has a size, a count and a type, which only rows have.

    >>> looks_like_row("n1 ;   8   2  float  sum"), looks_like_row("8 2 apples")
    (True, False)
    """
    return bool(_TYPED.search(text))


def row_part(text: str) -> str:
    """Part of a line from its size on, without prefixes.

    >>> row_part("n1 ; 8   2  float")
    '8   2  float'
    """
    found = _TYPED.search(text)
    return text if found is None else text[found.start() :].lstrip()


def ends_like_row(text: str) -> bool:
    """Whether a line ends as rows do: time, two bandwidths, number of wrong values.

    >>> ends_like_row("at sum  -1  62.18   0.00   0.01      0"), ends_like_row("took 7.5 s")
    (True, False)
    """
    return bool(_TAIL.search(text))


def numbers_only(text: str) -> bool:
    """Whether a line has nothing but numbers and empty cells."""
    words = text.split()
    return bool(words) and all(word in BLANK or _NUMBER.fullmatch(word) for word in words)


def spaced(text: str) -> str:
    """Replace the separators of a table line (bars, commas, semicolons) by spaces.

    >>> spaced("| 8 | 2 | float | sum | -1 | 10.1 | | 0.00 |")
    '8 2 float sum -1 10.1 N/A 0.00'
    """
    if "NCCL" in text:
        return text
    for mark in _MARKS:
        if text.count(mark) < _LEAST_MARKS:
            continue
        cells = [cell.strip().strip('"') for cell in text.strip().strip("|").split(mark)]
        if cells[0].lstrip("# ").split(" ")[0].lower() in ("size", "bytes", "(b)") or cells[0].isdecimal():
            return " ".join(cell or BLANK[0] for cell in cells)
    return text


def groups_of(text: str) -> tuple[bool, ...]:
    """Whether each half is in place, by the line above the column names; empty if that is unknown.

    >>> groups_of("#      in-place        out-of-place  ")
    (True, False)
    """
    rest = _GROUP.sub("", text).replace("(+ per-iteration)", "").strip("# \t|")
    return () if rest else tuple(match[1][0] in "iI" for match in _GROUP.finditer(text))


def header_of(text: str, groups: tuple[bool, ...], *, line: int) -> TableHeader | None:
    """Parse a header from a line of names; None where it is none.

    Args:
        groups: The halves, as the line above names them; empty where there is none.

    Examples:
        >>> found = header_of("# size count time algbw busbw  #wrong", (True,), line=3)
        >>> [column.name for column in found.columns], found.in_place
        (['size', 'count', 'time', 'algbw', 'busbw', 'wrong'], (True,))
    """
    if "bw" not in text.lower():  # as most lines of a log
        return None
    words = [(match[0], match.end()) for match in _WORD.finditer(text)]
    if words and words[0][0] == "#":
        words = words[1:]
    unit = next(
        (_UNITS[word[word.find("(") :]] for word, _ in words if word[word.find("(") :] in _UNITS), None
    )
    titles = [(re.sub(r"\([^)]*\)$", "", word).lower(), word, end) for word, end in words]
    titles = [title for title in titles if title[0]]
    if titles and titles[0][0].startswith("#") and titles[0][0][1:] in ("size", "bytes"):
        titles[0] = (titles[0][0][1:], *titles[0][1:])
    names = [_NAMES.get(title, title) for title, _, _ in titles]
    if "size" not in names or not any(name in _TIME_NAMES for name in names):
        return None
    if "algbw" not in names and "busbw" not in names:
        return None
    columns, half, cpu = [], -1, False
    for name, (_, _, end) in zip(names, titles, strict=True):
        if name in _TIME_NAMES:
            half += 1
            cpu = cpu or name == "cputime"
        if name != "timestamp":
            columns.append(Column("time" if name == "cputime" else name, half, end))
    halves = half + 1
    if halves > 2:
        return None
    if len(groups) == halves and len(set(groups)) == halves:
        in_place: tuple[bool | None, ...] = groups
    else:
        in_place = (False, True) if halves == 2 else (None,)
    old = any(title == "bytes" for title, _, _ in titles)  # nccl-tests of NCCL 1 counted milliseconds
    return TableHeader(tuple(columns), in_place, unit if unit else (1e3 if old else 1.0), line, cpu)


def usual_header(text: str) -> TableHeader | None:
    """Columns of an nccl-tests row in a file without header; None where it is ambiguous.

    Examples:
        >>> usual_header("8 2 float sum 10.1 0.00 0.00 0 9.8 0.00 0.00 N/A").names
        ('size', 'count', 'type', 'redop')
    """
    words = _STAMP.sub("", text).split()
    if len(words) < 9 or not (words[0].isdecimal() and words[1].isdecimal() and words[2].isidentifier()):
        return None
    keys = ["size", "count", "type"]
    half = ["time", "algbw", "busbw", "wrong"]
    in_place_only = len(words) == len(keys) + 2 + len(half)
    if not _NUMBER.fullmatch(words[3]):
        keys.append("redop")
    if _ROOT.fullmatch(words[len(keys)]) and len(words) != len(keys) + 2 * len(half):
        keys.append("root")
    if in_place_only and len(keys) == 5:
        halves: tuple[bool, ...] = (True,) if _BLANK_HALF in text else ()
    else:
        halves = (False, True)
        half += ["i_min", "i_max", "i_p99", "i_cv"] if len(words) == len(keys) + 16 else []
    if not halves or len(words) != len(keys) + len(halves) * len(half):
        return None
    columns = [Column(name, -1, 0) for name in keys]
    columns += [Column(name, at, 0) for at in range(len(halves)) for name in half]
    return TableHeader(tuple(columns), halves, 1.0, 0)
