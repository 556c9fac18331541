"""Tables in the output of smi tools: numbered lines rid of colours, and square matrices in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coppice.errors import InputError

__all__ = ["Matrix", "SmiLine", "is_gpu", "parse_matrix", "text_lines"]

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_GPU = re.compile(r"GPU\[?([0-9]{1,4})\]?")
_MAX_LINES = 5000
_MAX_LINE = 20_000
_MAX_DEVICES = 512


@dataclass(frozen=True, slots=True)
class SmiLine:
    """A line of text and its number, from 1."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table whose rows and columns are devices.

    Attributes:
        devices: Names of the columns.
        cells: ``cells[row, column]``; rows may be missing.
        lines: Line of each row that is there.
        extra: What stands after the device columns of each row.
        extra_columns: The header after the device columns.
        end: Position in the list of lines after the last row.
    """

    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    lines: dict[str, int]
    extra: dict[str, tuple[str, ...]]
    extra_columns: str
    end: int


def is_gpu(name: str) -> bool:
    """Whether ``name`` is that of a GPU, such as ``GPU0``."""
    return _GPU.fullmatch(name) is not None


def text_lines(data: bytes, *, file: str) -> list[SmiLine]:
    """The lines of ``data`` without terminal colours.

    Raises:
        InputError: If it is not text, or longer than the output of any such tool.
    """
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        msg = f"{file} is not text (byte {error.start}): save the output of the tool as UTF-8."
        raise InputError(msg) from None
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > _MAX_LINES or any(len(line) > _MAX_LINE for line in lines):
        msg = (
            f"{file} has more than {_MAX_LINES} lines or {_MAX_LINE} characters in one: is this the right "
            "file?"
        )
        raise InputError(msg)
    return [SmiLine(number, _ESCAPE.sub("", line)) for number, line in enumerate(lines, start=1)]


def parse_matrix(lines: Sequence[SmiLine], *, start: int, file: str) -> Matrix | None:
    """The first table at or after position ``start`` whose header begins with a GPU, or None.

    Columns may be separated by tabs or spaces. The table ends at the first line that begins with no device.

    Raises:
        InputError: If a row is short, or devices repeat.
    """
    header = next((i for i in range(start, len(lines)) if _is_header(lines[i].text)), None)
    if header is None:
        return None
    line = lines[header]
    devices, rest = _columns(line.text)
    repeated = next((name for i, name in enumerate(devices) if name in devices[:i]), None)
    if repeated is not None or len(devices) > _MAX_DEVICES:
        problem = (
            f"names {repeated[:40]} twice" if repeated is not None else f"has over {_MAX_DEVICES} columns"
        )
        msg = f"the header at {file}:{line.number} {problem}: run the tool again."
        raise InputError(msg)
    cells: dict[tuple[str, str], str] = {}
    rows: dict[str, int] = {}
    extra: dict[str, tuple[str, ...]] = {}
    position = header + 1
    while position < len(lines):
        line = lines[position]
        words = line.text.split()
        if not words or words[0] not in devices:
            break
        name, values = words[0], words[1:]
        if name in rows:
            msg = (
                f"the row {name[:40]} at {file}:{line.number} repeats line {rows[name]}: run the tool again."
            )
            raise InputError(msg)
        if len(values) < len(devices):
            msg = (
                f"expected {len(devices)} cells in the row {name[:40]} at {file}:{line.number}, found "
                f"{len(values)}: "
                "the text was cut or wrapped; run the tool again."
            )
            raise InputError(msg)
        rows[name] = line.number
        cells.update(((name, column), value) for column, value in zip(devices, values, strict=False))
        extra[name] = tuple(values[len(devices) :])
        position += 1
    return Matrix(
        devices=tuple(devices), cells=cells, lines=rows, extra=extra, extra_columns=rest, end=position
    )


def _is_header(text: str) -> bool:
    words = text.split()
    return bool(words) and is_gpu(words[0]) and (len(words) == 1 or words[1] == "CPU" or _names(words[1]))


def _names(word: str) -> bool:
    """Whether the word is a device name rather than a cell, which is what follows GPU0 in a row."""
    cells = r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|[0-9]+|XGMI|PCIE|N/A"
    return re.fullmatch(cells, word) is None


def _columns(text: str) -> tuple[list[str], str]:
    found = re.search(r"\s(CPU Affinity|NUMA Affinity|GPU NUMA ID)", text)
    if found is None:
        return text.split(), ""
    return text[: found.start()].split(), text[found.start() :]
