"""The text of smi tools: numbered lines, square tables in them, and the PCIe tree that explains distances.

``nvidia-smi topo -m`` tells of every two devices whether they share one PCIe switch (PIX), several (PXB), a
host bridge or NUMA node (PHB, NODE), or nothing but the interconnect between sockets (SYS). Devices with a
chain of pairs at most that near form a group; groups of PIX become switches, groups of PXB switches above
them, and groups of PHB or NODE the CPU that they hang from.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.readers.groups import Groups
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GpuModel, pcie_gb_per_s
from coppice.topology.readers.reading import ReadOptions

__all__ = [
    "Attached",
    "Distance",
    "Matrix",
    "PcieRates",
    "SmiLine",
    "attach",
    "is_gpu",
    "parse_matrix",
    "text_lines",
]


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
                f"{len(values)}: the text was cut or wrapped; run the tool again."
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


class Distance(enum.IntEnum):
    """How far apart two devices are on PCIe."""

    ONE_SWITCH = 1
    SWITCHES = 2
    CPU = 3
    SOCKETS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PcieRates:
    """Rates of the links that the distances imply, GB/s per direction."""

    link: Fraction
    nic: Fraction
    socket: Fraction

    @classmethod
    def of(cls, model: GpuModel, options: ReadOptions) -> PcieRates:
        """As the options set them, or as machines with this model of GPU have them."""
        given = (options.pcie_gb_per_s, options.nic_gb_per_s, options.socket_gb_per_s)
        usual = (
            pcie_gb_per_s(model.pcie_speed, 16, options.rates),
            model.nic_gb_per_s,
            model.socket_gb_per_s,
        )
        link, nic, socket = (b if a is None else a for a, b in zip(given, usual, strict=True))
        return cls(link=link, nic=nic, socket=socket)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """What the reader should tell about a finished tree.

    Attributes:
        far: Devices whose CPU has no GPU: NICs far from all of them.
        nearer: A pair of devices that the tree puts nearer together than their own entry says, or None.
    """

    far: tuple[str, ...]
    nearer: tuple[str, str] | None


def attach(
    graph: HostGraph,
    devices: dict[str, str],
    pairs: dict[tuple[str, str], Distance],
    *,
    host: str,
    numa: dict[str, int],
    rates: PcieRates,
) -> Attached:
    """Connect devices of one host by the PCIe switches and CPUs that their distances imply.

    Args:
        graph: Where the GPUs and NICs are.
        devices: Node of each device.
        pairs: Distances of pairs of devices, as far as known.
        host: Name of the host.
        numa: NUMA node of each device, as far as known; equal ones share a CPU.
        rates: Rates of the links.

    Returns:
        What is worth telling about the result.
    """
    levels = {level: Groups(devices) for level in (Distance.ONE_SWITCH, Distance.SWITCHES, Distance.CPU)}
    for (a, b), distance in pairs.items():
        for level, groups in levels.items():
            if distance <= level:
                groups.join(a, b)
    first_of: dict[int, str] = {}
    for device, numa_node in numa.items():
        levels[Distance.CPU].join(first_of.setdefault(numa_node, device), device)
    cpus = _cpus(graph, levels[Distance.CPU], devices, numa=numa, host=host)
    graph.connect_cpus(dict.fromkeys(cpus.values(), rates.socket))
    uplink: dict[Hashable, str] = {}
    for members in _switches(levels, devices):
        above = uplink.get(members[0], cpus[levels[Distance.CPU].find(members[0])])
        switch = graph.add(f"pcie{graph.counts.get(MachinePart.BRIDGE, 0)}", MachinePart.BRIDGE, host=host)
        graph.connect(switch, above, rates.link)
        uplink.update(dict.fromkeys(members, switch))
    for device, node in devices.items():
        above = uplink.get(device, cpus[levels[Distance.CPU].find(device)])
        is_nic = graph.drafts[node].part is MachinePart.NIC
        graph.connect(node, above, min(rates.link, rates.nic) if is_nic else rates.link)
    gpus = [device for device, node in devices.items() if graph.drafts[node].part is MachinePart.GPU]
    with_gpu = {levels[Distance.CPU].find(gpu) for gpu in gpus}
    return Attached(
        far=tuple(device for device in devices if levels[Distance.CPU].find(device) not in with_gpu),
        nearer=next(
            (
                (a, b)
                for (a, b), distance in pairs.items()
                if any(
                    groups.find(a) == groups.find(b) for level, groups in levels.items() if level < distance
                )
            ),
            None,
        ),
    )


def _cpus(
    graph: HostGraph, groups: Groups, devices: dict[str, str], *, numa: dict[str, int], host: str
) -> dict[Hashable, str]:
    """A CPU for each group, named by NUMA node where that is known."""
    names: dict[Hashable, str] = {}
    for device in devices:
        if device in numa:
            names.setdefault(groups.find(device), f"cpu{numa[device]}")
    taken, number = set(names.values()), 0
    result = {}
    for device in devices:
        group = groups.find(device)
        if group in result:
            continue
        if group not in names:
            while f"cpu{number}" in taken:
                number += 1
            names[group] = f"cpu{number}"
            taken.add(names[group])
        result[group] = graph.add(names[group], MachinePart.CPU, host=host)
    return result


def _switches(levels: dict[Distance, Groups], devices: Iterable[str]) -> list[list[str]]:
    """The devices below each switch, in the order of the first of them, upper switches first."""
    grouped: dict[tuple[Distance, Hashable], list[str]] = {}
    for device in devices:
        for level in (Distance.SWITCHES, Distance.ONE_SWITCH):
            grouped.setdefault((level, levels[level].find(device)), []).append(device)
    fine = levels[Distance.ONE_SWITCH]
    return [
        members
        for (level, _), members in grouped.items()
        if len(members) > 1 and (level is Distance.ONE_SWITCH or len({fine.find(m) for m in members}) > 1)
    ]
