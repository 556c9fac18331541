"""Shared parts of the readers of topology files: format detection, options, warnings."""

from __future__ import annotations

import enum
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import InputError
from coppice.recognising import impression
from coppice.text import shortened, suggestion
from coppice.topology.model import Topology, exact_rate
from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel, RateClass

_MAX_BYTES = 256 * 2**20
_COLOURS = re.compile(
    rb"\x1b\[[0-9;?]*[ -/]*[@-~]|(?:\x1b|\xef\xbf\xbd|\^\[|\\u001b|\\x1b|\\033|\\e)?\[[0-9;]{0,8}m"
)
_MATRIX = re.compile(
    rb"^[ \t]*GPU[0-9]+[ \t]|^[^\n]{1,80}[ \t:]GPU0[ \t]+(?:GPU1|NIC0|CPU Affinity|mlx5_0)",
    re.ASCII | re.MULTILINE,
)
_FOREIGN_JSON = (
    (rb'"\(Topology\)', "JSON of rocm-smi", "the text of `rocm-smi --showtopo`"),
    (rb'"link_type"\s*:', "JSON of amd-smi", "the text of `rocm-smi --showtopo`"),
)
_FOREIGN = (
    (rb"^(?:WEIGHT|LINK TYPE) TABLE:", "the output of `amd-smi topology`", "`rocm-smi --showtopo`"),
    (rb"^[ \t]*Link [0-9]+: [0-9.]+ GB/s", "the output of `nvidia-smi nvlink -s`", "`nvidia-smi topo -m`"),
    (rb"^\| NVIDIA-SMI [0-9.]+", "the overview of `nvidia-smi`", "`nvidia-smi topo -m`"),
    (
        rb"^Machine \([^\n]*\)|^ +Package L#0",
        "the output of `lstopo`, which knows no NVLinks",
        "`nvidia-smi topo -m`",
    ),
    (
        rb"^[0-9a-f:.]{7,12} [^\n]*(?:3D|VGA|Processing)[^\n]*controller|^[0-9a-f:.]{7,12} 3D controller",
        "the output of `lspci`",
        "`nvidia-smi topo -m`",
    ),
)
"""Texts that people take for a topology: how their lines begin, what they are, and what to give instead."""
_YAML_KEY = re.compile(
    rb"(?:^|\n)(?:---[ \t]*\r?\n)?(format|version|name|nodes|links|source)[ \t]*:", re.ASCII
)

_HEAD = 65_536


class TopologyFormat(enum.StrEnum):
    """The formats of topology files."""

    JSON = "coppice JSON"
    YAML = "coppice YAML"
    NCCL_XML = "NCCL or RCCL topology XML"
    NVIDIA_SMI = "nvidia-smi topo -m"
    ROCM_SMI = "rocm-smi --showtopo"

    @property
    def max_bytes(self) -> int:
        """Largest size that is read."""
        return _LIMITS[self]


_LIMITS = {
    TopologyFormat.JSON: _MAX_BYTES,
    TopologyFormat.YAML: 32 * 2**20,
    TopologyFormat.NCCL_XML: 16 * 2**20,
    TopologyFormat.NVIDIA_SMI: 4 * 2**20,
    TopologyFormat.ROCM_SMI: 4 * 2**20,
}


def sniff(data: bytes, *, file: str) -> TopologyFormat:
    r"""Detect the format of a topology file from its content; the file name decides only for YAML.

    >>> sniff(b"\n  <system version='1'/>", file="a").value
    'NCCL or RCCL topology XML'
    """
    found = _recognised(data, file=file)
    if found is TopologyFormat.JSON and b'"nodes"' not in data[:_HEAD]:
        for pattern, what, instead in _FOREIGN_JSON:
            if re.search(pattern, data[:_HEAD]):
                raise InputError(f"{file} is {what}, which is not read: give {instead}.")
    if found is None:
        known = ", ".join(form.value for form in TopologyFormat)
        raise InputError(f"expected a topology in {file}, found {_impression(data)}: give one of {known}.")
    if len(data) > found.max_bytes:
        raise InputError(
            f"{file} is larger than {found.max_bytes >> 20} MiB, the limit for {found.value}: is this the "
            "right file?"
        )
    return found


def _recognised(data: bytes, *, file: str) -> TopologyFormat | None:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data[2:].replace(b"\0", b"")
    data = data[: _LIMITS[TopologyFormat.NVIDIA_SMI]].removeprefix(b"\xef\xbb\xbf").lstrip()
    head = data[:_HEAD]
    if head.startswith((b"<?", b"<!", b"<system")):
        return TopologyFormat.NCCL_XML
    has_matrix = (
        b"GPU" in data and _MATRIX.search(_COLOURS.sub(b"", data)) is not None
    )  # no line of JSON or XML begins like one of a matrix
    if head.startswith(b"<") and not has_matrix:
        return TopologyFormat.NCCL_XML
    if head.startswith((b"{", b"[")) and not has_matrix:
        return TopologyFormat.JSON
    if b"Weight between two GPUs" in data or b"ROCm System Management Interface" in data:
        return TopologyFormat.ROCM_SMI
    if has_matrix:
        return TopologyFormat.NVIDIA_SMI
    if file.lower().endswith((".yaml", ".yml")) or _YAML_KEY.search(head):
        return TopologyFormat.YAML
    return None


def _impression(data: bytes) -> str:
    for pattern, what, instead in _FOREIGN:
        if re.search(pattern, data[:_HEAD], re.MULTILINE):
            return f"{what} (give {instead})"
    return impression(data)


_SHOWN_LINES = 4
_MAX_ID = 200


@dataclass(frozen=True, slots=True)
class Reading:
    """A topology read from a file, with the reader's assumptions and omissions."""

    topology: Topology  # The topology
    format: str  # Name of the format that the text was found to have
    # One sentence each, in the order of the file; empty where everything was plain
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Options of the readers; parse them from texts with :meth:`parse`."""

    # Class of the link rates that a machine description gets (`measured`, the default, or `nominal`)
    rates: RateClass = RateClass.MEASURED
    round: int | None = None  # Decimals to which rates in GB/s are rounded, or None
    # GPU model: completes a description without GPU links, and names the rates where text gives counts only
    gpu: GpuModel | None = None
    gpu_link_gb_per_s: Fraction | None = None  # Rate of one NVLink or xGMI link, instead of the table's
    pcie_gb_per_s: Fraction | None = None  # Rate of each PCIe link of an smi text, instead of the model's
    socket_gb_per_s: Fraction | None = None  # Rate between two CPU sockets, instead of the table's
    nic_gb_per_s: Fraction | None = None  # Rate of every NIC, instead of the file's or the model's
    # xGMI links between two directly connected GPUs, which rocm-smi does not show
    xgmi_links: int | None = None
    # `keep`, `nics` to keep PCIe only as the way between GPUs and NICs, or `drop` to keep only GPUs and the
    # links between them (NVLink, xGMI)
    pcie: str = "keep"
    self_links: str = "refuse"  # `refuse` or `drop` NVLinks that claim to end at the GPU where they begin
    no_gpu_links: bool = False  # The option `gpu=pcie`: the GPUs have no links of their own

    @classmethod
    def parse(cls, options: Mapping[str, str] | None) -> ReadOptions:
        """Parse options from texts, as on the command line.

        >>> ReadOptions.parse({"rates": "nominal", "nic_gb_per_s": "25/2"}).nic_gb_per_s
        Fraction(25, 2)
        """
        given = dict(options or {})
        values: dict[str, object] = {}
        if (text := given.pop("rates", None)) is not None:
            name = {"nccl": "measured"}.get(text, text)
            values["rates"] = RateClass(_choice("rates", name, [*RateClass]))
        if (text := given.pop("gpu", None)) is not None:
            choice = _choice("gpu", text.lower(), [*GPU_MODELS, "pcie"])
            values["no_gpu_links"] = choice == "pcie"
            values["gpu"] = GPU_MODELS.get(choice)
        for key, low, high in (("round", 0, 9), ("xgmi_links", 1, 16)):
            if (text := given.pop(key, None)) is not None:
                if not (text.isascii() and text.isdigit() and len(text) < 4 and low <= int(text) <= high):
                    raise InputError(f"expected {key}={low} .. {high}, found {key}={text[:40]!r}.")
                values[key] = int(text)
        for key in ("gpu_link_gb_per_s", "pcie_gb_per_s", "socket_gb_per_s", "nic_gb_per_s"):
            if (text := given.pop(key, None)) is not None:
                values[key] = exact_rate(text, where=f"option {key}")
        for key, choices in (("pcie", ["keep", "nics", "drop"]), ("self_links", ["refuse", "drop"])):
            if (text := given.pop(key, None)) is not None:
                values[key] = _choice(key, text, choices)
        for key in given:
            known = [name for name in cls.__dataclass_fields__ if name != "no_gpu_links"]
            raise InputError(f"topology files have no option {key!r}: {suggestion(key, known)}")
        return cls(**values)  # type: ignore[arg-type]

    def link_rate(self, model: GpuModel) -> Fraction:
        """Rate of one NVLink or xGMI link: as set, or that of the GPU model."""
        return model.link.at(self.rates) if self.gpu_link_gb_per_s is None else self.gpu_link_gb_per_s

    def rounded(self, rate: Fraction, *, where: str) -> Fraction:
        """``rate`` rounded to the wanted decimals."""
        if self.round is None:
            return rate
        result = round(rate, self.round)
        if result == 0 and rate > 0:
            raise InputError(
                f"the rate {float(rate):.3g} GB/s at {where} rounds to 0: give `round_digits` more digits."
            )
        return result


@dataclass(slots=True)
class WarningLog:
    """Collect warnings; equal ones are merged, with the lines where they arose."""

    where: str
    lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, text: str, line: int | None = None) -> None:
        """Add a warning, ``text`` being a clause without a final full stop, possibly once more at ``line``."""
        places = self.lines.setdefault(text, [])
        if line is not None:
            places.append(line)

    def sentences(self) -> tuple[str, ...]:
        """All warnings, in order of first appearance."""
        return tuple(f"{_place(self.where, places)}: {text}." for text, places in self.lines.items())


def _place(where: str, lines: list[int]) -> str:
    if not lines:
        return where
    return f"{where}:{shortened(lines, _SHOWN_LINES)}"


def checked_id(text: str, *, where: str) -> str:
    """Return ``text`` if it can name a node: 1 to 200 printable characters."""
    if not 0 < len(text) <= _MAX_ID or not text.isprintable():
        raise InputError(
            f"expected a name of 1 to {_MAX_ID} printable characters, found {text[:40]!r} at {where}."
        )
    return text


def _choice(key: str, text: str, choices: Iterable[str]) -> str:
    names = [str(choice) for choice in choices]
    if text not in names:
        raise InputError(
            f"expected one of {', '.join(names)} for {key}, found {text[:40]!r}: {suggestion(text, names)}"
        )
    return text


class Groups:
    """Disjoint groups of devices that merge (union-find)."""

    def __init__(self, members: Iterable[Hashable]) -> None:
        self._parent = {member: member for member in members}

    def find(self, member: Hashable) -> Hashable:
        """Representative of the group of ``member``."""
        root = member
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[member] != root:
            self._parent[member], member = root, self._parent[member]
        return root

    def join(self, a: Hashable, b: Hashable) -> None:
        """Merge the groups of ``a`` and ``b``."""
        self._parent[self.find(b)] = self.find(a)
