"""The formats of topology files, recognised by their content."""

from __future__ import annotations

import enum
import re

from coppice.errors import InputError

__all__ = ["TopologyFormat", "sniff"]

_MAX_BYTES = 256 * 2**20
_MATRIX = re.compile(rb"(?:^|\n)(?:\x1b\[[0-9;]*m|[ \t])*GPU[0-9]+[ \t\x1b]", re.ASCII)
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
    r"""The format of a topology file, from its content; the ending of the name decides only for YAML.

    >>> sniff(b"\n  <system version='1'/>", file="a").value
    'NCCL or RCCL topology XML'

    Raises:
        InputError: If it is none of the formats, or too large for its format.
    """
    found = _recognised(data, file=file)
    if found is None:
        known = ", ".join(form.value for form in TopologyFormat)
        msg = f"{file} is {_impression(data)}: expected one of {known}."
        raise InputError(msg)
    if len(data) > found.max_bytes:
        msg = (
            f"{file} is larger than {found.max_bytes >> 20} MiB, the limit for {found.value}: is this the "
            "right file?"
        )
        raise InputError(msg)
    return found


def _recognised(data: bytes, *, file: str) -> TopologyFormat | None:
    head = data[:_HEAD]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        head = head[2:].replace(b"\0", b"")
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"<"):
        return TopologyFormat.NCCL_XML
    if head.startswith((b"{", b"[")):
        return TopologyFormat.JSON
    if b"Weight between two GPUs" in head or b"ROCm System Management Interface" in head:
        return TopologyFormat.ROCM_SMI
    if _MATRIX.search(b"\n" + head):
        return TopologyFormat.NVIDIA_SMI
    if file.lower().endswith((".yaml", ".yml")) or _YAML_KEY.search(head):
        return TopologyFormat.YAML
    return None


def _impression(data: bytes) -> str:
    if not data.strip():
        return "empty"
    return "binary" if b"\0" in data[:_HEAD] else "text of no known format"
