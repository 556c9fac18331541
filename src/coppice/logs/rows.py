"""Convert rows and rank lists of nccl-tests and similar programs to typed records.

Rows that lines of other processes tore apart, put together where that can be done in one way only.

Programs print a row in pieces (its keys, then each half), and what other threads and processes print meanwhile stands
between. Pieces are joined as they were printed, blank space included. A joined row counts only if it has exactly the
columns of its table and its figures do not contradict each other (size / time is algbw); where a piece of an earlier
row was lost, or rows of several runs are mixed, the figures have to confirm the joint, for then a piece may belong to
another row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from coppice.errors import InputError
from coppice.logs.columns import BLANK, TableHeader, UnreadableError
from coppice.logs.tables import IterationSpread, NcclTestsHalf, NcclTestsRank, NcclTestsRow, agree, figures_of

WORD_BYTES = {
    "int8": 1, "uint8": 1, "fp8": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
"""Bytes of an element, by the name that nccl-tests gives its type."""

_DEVICE = re.compile(
    r"#\s{1,20}Rank\s{1,20}([0-9]+)(?:\s{1,20}Group\s{1,20}([0-9]+))?(?:.{0,80}?\s{1,20}Pid\s{1,20}([0-9]+))?"
    r"\s{1,20}on\s{1,80}(\S+)\s{1,20}device\s{1,20}([0-9]+)\s{1,20}\[([^\]]*)\]\s*(.*)"
)
_DIGITS = 18
_INTEGER = re.compile(r"[0-9]+")
_BARE_ROOT = re.compile(r"-1|[0-9]{1,9}")


def joined_row(
    header: TableHeader, text: str, line: int, file: str
) -> tuple[NcclTestsRow | None, bool | None]:
    """Row of a rejoined text, None where it is none, and whether its figures agree."""
    try:
        cells = header.cells(text)
        if not cells.whole or cells.surplus:
            return None, None
        row = row_of(header, cells.by_name, line, f"{file}:{line}")
    except (UnreadableError, InputError):
        return None, None
    return row, figures_agree(row)


def figures_agree(row: NcclTestsRow) -> bool | None:
    """Whether the figures of a row agree in all halves."""
    word = WORD_BYTES.get(row.type or "")
    if row.count and word and row.size_bytes % (row.count * word):
        return False
    found = [None if half.figures is None else agree(half.figures) for half, _ in row.halves]
    return False if False in found else (True if found and all(found) else None)


def row_of(header: TableHeader, cells: Mapping[tuple[int, str], str], line: int, where: str) -> NcclTestsRow:
    """Convert cells to a row."""
    shared = {name: cells.get((-1, name)) for name in header.names}
    size = _index(shared["size"] or "", "a size", where)
    root = shared.get("root") or "-1"
    if not _BARE_ROOT.fullmatch(root):
        raise InputError(f"expected a root of -1 or more at {where}, found {root[:20]!r}.")
    halves: dict[bool | None, NcclTestsHalf] = {}
    for number, place in enumerate(header.in_place):
        own = {name: word for (half, name), word in cells.items() if half == number}
        if own and own["time"] not in BLANK:
            halves[place] = _half(header, own, size, where)
    return NcclTestsRow(
        size_bytes=size,
        count=_counted(shared, "count", where),
        type=shared.get("type"),
        redop=shared.get("redop"),
        root=int(root),
        out_of_place=halves.get(False),
        in_place=halves.get(True),
        unnamed=halves.get(None),
        ranks=_counted(shared, "ranks", where),
        nodes=_counted(shared, "nodes", where),
        line=line,
    )


def _counted(shared: dict[str, str | None], name: str, where: str) -> int | None:
    word = shared.get(name)
    return None if word is None or word in BLANK else _index(word, f"{name} as an integer", where)


def _half(header: TableHeader, own: dict[str, str], size: int, where: str) -> NcclTestsHalf:
    wrong = own.get("wrong", BLANK[0]).removesuffix("*")  # rccl-tests marks what exceeds a threshold
    counted = None if wrong in BLANK else number_of(wrong, "#wrong", where)
    words = {name: own.get(name, "0") for name in ("time", "algbw", "busbw")}
    values = {name: 0.0 if word in BLANK else number_of(word, name, where) for name, word in words.items()}
    iterations = None
    if "i_min" in own:
        told = [number_of(own.get(name, "0"), name, where) for name in ("i_min", "i_max", "i_p99", "i_cv")]
        iterations = IterationSpread(
            least_us=told[0], most_us=told[1], p99_us=told[2], variation_percent=told[3]
        )
    whole = not header.cpu_time and "algbw" in own and "busbw" in own
    return NcclTestsHalf(
        time_us=values["time"] * header.unit_us,
        algbw_gb_per_s=values["algbw"],
        busbw_gb_per_s=values["busbw"],
        wrong=None if counted is None else int(counted),
        iterations=iterations,
        figures=figures_of(size, words["time"], words["algbw"], words["busbw"], unit_us=header.unit_us)
        if whole
        else None,
    )


def device_of(text: str, where: str) -> NcclTestsRank | None:
    """Rank of a line of the rank list; None for other lines."""
    match = _DEVICE.match(text)
    if match is None:
        return None
    rank, group, pid, host, index, bus_id, name = match.groups()
    return NcclTestsRank(
        rank=_index(rank, "a rank", where),
        pid=None if pid is None else _index(pid, "a process", where),
        host=host,
        device=_index(index, "a device", where),
        bus_id=bus_id,
        name=name.strip(),
        group=_index(group or "0", "a group", where),
    )


def _index(text: str, what: str, where: str) -> int:
    if len(text) > _DIGITS or not _INTEGER.fullmatch(text):
        raise InputError(f"expected {what} of at most {_DIGITS} digits at {where}, found {text[:40]!r}.")
    return int(text)


def number_of(text: str, name: str, where: str) -> float:
    """Parse a non-negative number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"expected {name} as a number of 0 or more at {where}, found {text[:40]!r}.")
    return value


_MOST_VARIANTS = 8

R = TypeVar("R")


class TornRow(Generic[R]):
    """An interrupted row."""

    def __init__(
        self, number: int, text: str, parse: Callable[[str], tuple[R | None, bool | None]], *, cut: bool
    ) -> None:
        """Begin a row.

        Args:
            parse: Gives the row of a text (None: it is none), and whether its figures agree (None: too few digits).
            cut: Another line began right after the text.
        """
        self.number = number  # Line where it begins
        self.text = text  # Its beginning
        self.cut = cut  # Another line began right after that
        self._parse = parse
        self._variants = [text]

    def add(self, text: str, *, sure: bool, keep: bool) -> R | None:
        """Append a part; return the row once complete.

        Args:
            sure: The figures have to confirm the joint.
            keep: The piece stays also where the row is not complete with it.
        """
        joined = [variant + text for variant in self._variants]
        if not text[:1].isspace():  # blank space may be lost, or a number may be torn
            joined += [f"{variant} {text}" for variant in self._variants if not variant[-1:].isspace()]
        variants = list(dict.fromkeys(joined))[:_MOST_VARIANTS]
        found: dict[str, R] = {}
        for variant in variants:
            row, agrees = self._parse(variant)
            ambiguous = sure or len(variants) > 1
            if row is not None and agrees is not False and (agrees or not ambiguous):
                found[" ".join(variant.split())] = row
        if keep:
            self._variants = variants
        return next(iter(found.values())) if len(found) == 1 else None
