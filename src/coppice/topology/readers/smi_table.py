"""Parse the device matrices that nvidia-smi and rocm-smi print.

Terminals and reports damage wide tables: a header cell and the next one become one word (``NIC11NIC12``), so do cells
(``NODENODE``), tabs become spaces, and columns that are blank disappear between white space. The header and the names
of the rows say how many cells there have to be; what does not fit them is taken apart where only one way is possible,
and refused with its line otherwise.

The text around a table may name the GPU model: ``GPU 0: NVIDIA H100 80GB HBM3``, ``gfx950``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coppice.errors import InputError
from coppice.text import shortened
from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel
from coppice.topology.readers.reading import ReadOptions, WarningLog

_ESCAPE = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]"
    r"|(?:\ufffd|\u241b|\^\[|\\u001b|\\x1b|\\033|\\e)?\[[0-9;]{0,8}m"  # colours whose escape was lost in a report
)
_GPU = re.compile(r"GPU\[?([0-9]{1,4})\]?")
_GLUED_NAMES = re.compile(r"(?:GPU|NIC)[0-9]{1,4}")
_TITLE = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_TAB = 8
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
    """A table whose rows and columns are devices."""

    devices: tuple[str, ...]  # Names of the columns
    cells: dict[tuple[str, str], str]  # `cells[row, column]`; rows may be missing
    lines: dict[str, int]  # Line of each row that is there
    titles: tuple[str, ...]  # Titles of the columns after the devices
    extra: dict[str, dict[str, str]]  # What stands below these titles, by row; blank cells are left out
    start: int  # Line of the header
    end: int  # Position in the list of lines after the last row


def is_gpu(name: str) -> bool:
    """Whether ``name`` is that of a GPU, such as ``GPU0``."""
    return _GPU.fullmatch(name) is not None


def text_lines(data: bytes, *, file: str) -> list[SmiLine]:
    """The lines of ``data`` without terminal colours and without prefixes of a launcher or a quotation."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not text (byte {error.start}): save the output of the tool as UTF-8."
        ) from None
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if len(lines) > _MAX_LINES or any(len(line) > _MAX_LINE for line in lines):
        raise InputError(
            f"{file} has more than {_MAX_LINES} lines or {_MAX_LINE} characters in one: is this the right "
            "file?"
        )
    plain = [_ESCAPE.sub("", line.replace("\u00a0", " ")) for line in lines]
    prefix = next((found for line in plain if (found := _prefix(line)) is not None), None)
    if prefix is not None:
        plain = [prefix.sub("", line, count=1) for line in plain]
    return [SmiLine(number, line) for number, line in enumerate(plain, start=1)]


def _prefix(text: str) -> re.Pattern[str] | None:
    """What stands before the header of a table, as a pattern for all lines; numbers in it may differ."""
    found = re.match(r"\s*(\S.{0,80}?)(?=\s+GPU0\s+(?:GPU1|NIC0|CPU Affinity|mlx5_0)\b)", text)
    if found is None or is_gpu(found[1].split()[-1]):
        return None
    pattern = "[0-9]+".join(re.escape(word) for word in re.split(r"[0-9]+", found[1]))
    boundary = r"(?=[ \t]|$)" if found[1][-1].isalnum() else ""
    return re.compile(rf"^\s*{pattern}{boundary} ?")


def parse_matrices(
    lines: Sequence[SmiLine], *, cell: re.Pattern[str], file: str, log: WarningLog
) -> list[Matrix]:
    """All tables whose header begins with a GPU.

    Args:
        log: Takes note of cells that had to be taken apart.
    """
    found: list[Matrix] = []
    position = 0
    while position < len(lines):
        if _is_header(lines[position].text, cell):
            found.append(_TableReader(lines, position, cell=cell, file=file, log=log).matrix())
            position = max(found[-1].end, position + 1)
        else:
            position += 1
    return found


def _is_header(text: str, cell: re.Pattern[str]) -> bool:
    words = text.split()
    if not words or not (is_gpu(words[0]) or _is_glued(words[0])):
        return False
    return len(words) == 1 or cell.fullmatch(words[1]) is None


def _is_glued(word: str) -> bool:
    """Whether a word is several names of devices without a space between them."""
    return len(_GLUED_NAMES.findall(word)) > 1 and _GLUED_NAMES.sub("", word) == ""


@dataclass(slots=True)
class _TableReader:
    """Reads the table whose header stands at a position."""

    lines: Sequence[SmiLine]
    header: int
    cell: re.Pattern[str]
    file: str
    log: WarningLog
    devices: list[str] = field(default_factory=list)
    titles: tuple[str, ...] = ()

    def matrix(self) -> Matrix:
        rows, end = self.rows()
        self.read_header([line.text.split()[0] for line in rows])
        unknown = next((line for line in rows if line.text.split()[0] not in self.devices), None)
        if unknown is not None:
            raise InputError(
                f"the row {unknown.text.split()[0][:40]} at {self.file}:{unknown.number} has no column in the "
                f"header at line {self.lines[self.header].number}: the header was cut; run the tool again."
            )
        cells: dict[tuple[str, str], str] = {}
        found: dict[str, int] = {}
        extra: dict[str, dict[str, str]] = {}
        for line in rows:
            name = line.text.split()[0]
            place = f"the row {name[:40]} at {self.file}:{line.number}"
            if name in found:
                raise InputError(f"{place} repeats line {found[name]}: run the tool again.")
            values, rest = self.row(line, place)
            found[name] = line.number
            cells.update(((name, column), value) for column, value in zip(self.devices, values, strict=True))
            extra[name] = rest
        return Matrix(
            devices=tuple(self.devices),
            cells=cells,
            lines=found,
            titles=self.titles,
            extra=extra,
            start=self.lines[self.header].number,
            end=end,
        )

    def rows(self) -> tuple[list[SmiLine], int]:
        """The lines of the table below its header, and the position after the last; blank lines may stand between."""
        text = self.lines[self.header].text
        title = _TITLE.search(text)
        names = set(text[: title.start() if title else None].split())
        rows: list[SmiLine] = []
        end = self.header + 1
        for position in range(self.header + 1, len(self.lines)):
            line = self.lines[position]
            words = line.text.split()
            if not words:
                continue
            is_row = len(words) > 1 and _cells(words[1], self.cell) and not self.cell.fullmatch(words[0])
            next_table = len(words) > 1 and (words[1] in names or words[1] == "CPU")
            if not is_row and (words[0] not in names or next_table):
                break
            rows.append(line)
            end = position + 1
        return rows, end

    def read_header(self, rows: list[str]) -> None:
        """The devices and titles of the header; words that are several devices are taken apart."""
        line = self.lines[self.header]
        title = _TITLE.search(line.text)
        self.titles = tuple(_TITLE.findall(line.text))
        for word in line.text[: title.start() if title else None].split():
            names = [word] if word in rows else _apart(word, rows, len(self.devices))
            if len(names) > 1:
                shown = " and ".join((", ".join(names[:-1]), names[-1]))
                self.log.add(f"the header's {word[:60]} is taken for {shown}", line.number)
            self.devices += names
        repeated = next((name for i, name in enumerate(self.devices) if name in self.devices[:i]), None)
        if repeated is not None or len(self.devices) > _MAX_DEVICES:
            problem = (
                f"names {repeated[:40]} twice" if repeated is not None else f"has over {_MAX_DEVICES} columns"
            )
            raise InputError(f"the header at {self.file}:{line.number} {problem}: run the tool again.")

    def row(self, line: SmiLine, place: str) -> tuple[list[str], dict[str, str]]:
        """The cells of a row by device, and by title what follows them."""
        wanted = len(self.devices)
        values: list[str] = []
        words = list(_words(line.text))[1:]
        taken = 0
        for word in words:
            if len(values) >= wanted or (self.titles and _AFFINITY.fullmatch(word.text)):
                break
            parts = self.parts(word.text, wanted - len(values))
            if len(parts) > 1:
                self.log.add(f"the cell {word.text[:40]} is taken for {' and '.join(parts)}", line.number)
            values += parts
            taken += 1
        if len(values) != wanted:
            raise InputError(
                f"expected {wanted} cells in {place}, found {len(values)}: the text was cut or wrapped; run the "
                "tool again."
            )
        rest = words[taken:]
        surplus = next((word.text for word in rest if self.cell.fullmatch(word.text)), None)
        if surplus is not None:
            raise InputError(
                f"expected {wanted} cells in {place}, as the header names devices, found one more, "
                f"{surplus[:20]!r}: the header was cut or its names run together; run the tool again."
            )
        return values, self.below_titles(line, rest, words[taken - 1] if taken else None)

    def parts(self, word: str, most: int) -> list[str]:
        """The cells that a word is made of: itself, unless it is several without a space between them."""
        parts = _cells(word, self.cell)
        return parts if 1 < len(parts) <= most else [word]

    def below_titles(self, line: SmiLine, rest: list[_SmiWord], last: _SmiWord | None) -> dict[str, str]:
        """What follows the devices, by title: by tabs or tab stops, else by what the words look like."""
        if not rest:
            return {}
        if not self.titles:
            self.log.add("cells without a title follow the devices and are left out", line.number)
            return {}
        fields = _fields(line.text, rest, last)
        if fields is not None:
            after_numa = self.titles.index("NUMA Affinity") + 1 if "NUMA Affinity" in self.titles else 0
            if len(fields) == len(self.titles) + 1 and after_numa > 0 and not fields[after_numa]:
                del fields[after_numa]  # the tool prints two tabs there
            if len(fields) <= len(self.titles):
                return {title: text for title, text in zip(self.titles, fields, strict=False) if text}
        texts = [word.text for word in rest]
        if len(texts) == len(self.titles):
            return dict(zip(self.titles, texts, strict=True))
        if fields is not None:
            untitled = [text for text in fields[len(self.titles) :] if text and text != "N/A"]
            if untitled:
                self.log.add(f"{shortened(untitled, 4)} below no title is left out", line.number)
            return {title: text for title, text in zip(self.titles, fields, strict=False) if text}
        lists = [text for text in texts if re.fullmatch(r"[0-9]+[-,][0-9,-]+", text)]
        unclear = [text for text in texts if text not in lists and text != "N/A"]
        if unclear:
            self.log.add(
                f"{shortened(unclear, 4)} after the devices may belong below several of "
                f"{', '.join(self.titles)}: left out",
                line.number,
            )
        return {"CPU Affinity": lists[0]} if lists and "CPU Affinity" in self.titles else {}


_AFFINITY = re.compile(r"[0-9]+(?:[-,][0-9,-]+)|N/A")


@dataclass(frozen=True, slots=True)
class _SmiWord:
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _cells(word: str, cell: re.Pattern[str]) -> list[str]:
    """The cells that a word consists of, from the left; none where it is anything else or numbers run together."""
    parts: list[str] = []
    position = 0
    while position < len(word):
        found = cell.match(word, position)
        if found is None or (parts and parts[-1][-1].isdigit() and found[0][0].isdigit()):
            return []
        parts.append(found[0])
        position = found.end()
    return parts


def _words(text: str) -> Iterator[_SmiWord]:
    return (_SmiWord(found[0], found.start()) for found in re.finditer(r"\S+", text))


def _apart(word: str, rows: list[str], position: int) -> list[str]:
    """A word of the header as the names that it is made of: those of the rows from a position on, or GPUs and NICs."""
    for count in range(2, len(rows) - position + 1):
        names = rows[position : position + count]
        if "".join(names) == word:
            return names
    return _GLUED_NAMES.findall(word) if _is_glued(word) else [word]


def _fields(text: str, rest: list[_SmiWord], last: _SmiWord | None) -> list[str] | None:
    """The cells after the devices, blank ones included, or None where the text does not tell them."""
    start = last.end if last is not None else 0
    between = text[start : rest[0].start]
    if "\t" in text[start:]:
        fields = [part.strip() for part in text[start:].split("\t")][1:]
        while fields and not fields[-1]:
            fields.pop()
        return fields if "\t" in between else None
    first = next(_words(text)).start
    words = list(_words(text[first:]))
    if "\t" in text or any(word.start % _TAB > (word.text == "X") for word in words) or last is None:
        return None
    place = _TAB * ((last.end - first) // _TAB + 1)
    result = []
    for word in rest:
        while word.start - first - place >= _TAB:
            result.append("")
            place += _TAB
        result.append(word.text)
        place = _TAB * ((word.end - first) // _TAB + 1)
    return result


NVIDIA_NAMES = {
    **{
        name.upper(): name
        for name in ("p100", "v100", "a6000", "a100", "a800", "h100", "h800", "h20", "h200", "b200", "b300")
    },
    "GB200": "b200",
    "GB300": "b300",
}
"""Names in NVIDIA's products, and the models that have their links."""

AMD_NAMES = {
    **{
        name.upper(): name
        for name in ("mi50", "mi100", "mi250", "mi300a", "mi300x", "mi325x", "mi350x", "mi355x")
    },
    "MI60": "mi50",
    "MI250X": "mi250",
    "gfx950": "mi355x",
    "gfx90a": "mi250",
    "gfx908": "mi100",
    "gfx906": "mi50",
}
"""Names in AMD's products and of their architectures; ``gfx942`` is left out, which several products share."""

_PRODUCT = re.compile(r"NVIDIA|Tesla|\bGPU\s?[0-9]+:|AMD|Instinct|\bgfx[0-9]|Card (?:[Ss]eries|[Mm]odel|SKU)")


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A model that a text names."""

    model: GpuModel  # The model
    text: str  # Its name there
    line: int  # The first line that has it


def named_model(lines: Sequence[SmiLine], names: Mapping[str, str], log: WarningLog) -> NamedGpu | None:
    """The one GPU model that product lines of a report name, or None; warn about several.

    Args:
        names: Models by the names that products have.

    Examples:
        >>> lines = [SmiLine(1, "Driver of NVIDIA"), SmiLine(2, "GPU 0: NVIDIA H100 80GB HBM3")]
        >>> found = named_model(lines, NVIDIA_NAMES, WarningLog("a.txt"))
        >>> found.model.name, found.line
        ('h100', 2)
    """
    words = re.compile(rf"\b({'|'.join(sorted(names, key=len, reverse=True))})\b")
    found: dict[str, NamedGpu] = {}
    for line in lines:
        if _PRODUCT.search(line.text) is None:
            continue
        hits = words.findall(line.text)
        products = [hit for hit in hits if not hit.startswith("gfx")] or hits
        for hit in products:
            model = GPU_MODELS[names[hit]]
            found.setdefault(model.name, NamedGpu(model, hit, line.number))
    exact = [named for named in found.values() if not named.text.startswith("gfx")] or list(found.values())
    if len(exact) > 1:
        log.add(
            f"the text names several GPU models ({', '.join(named.text for named in exact)}): none is taken from it",
            exact[1].line,
        )
        return None
    return exact[0] if exact else None


def reported_model(
    options: ReadOptions, named: NamedGpu | None, log: WarningLog, *, text: str, amd: bool
) -> GpuModel | None:
    """The GPU model given as an option, or else named around a table; None if neither is known.

    Raises:
        InputError: If the other maker makes the model that is given.
    """
    if options.gpu is not None:
        if options.gpu.xgmi != amd:
            maker, other = ("AMD", "NVIDIA") if amd else ("NVIDIA", "AMD")
            raise InputError(
                f"expected a model of {maker} for {text}, found gpu={options.gpu.name}, which {other} makes: "
                "name another."
            )
        return options.gpu
    if named is None:
        return None
    log.add(
        f"the text names {named.text}: rates not given are those of model {named.model.name} (`gpu=NAME` sets it)",
        named.line,
    )
    return named.model
