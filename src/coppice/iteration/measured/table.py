"""Table of a measured device, with interpolation between sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.files import read_bytes

_NEAREST = 4  # rows between which is interpolated


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """FLOP/s of an (m x k) by (k x n) matrix product, in 1e12."""

    m: int
    n: int
    k: int
    tflops_per_s: float
    dtype: str = "bfloat16"
    seconds: float = 0.0


class CopyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Rate of a copy: bytes read and written per second."""

    bytes: int
    bytes_per_second: float
    seconds: float = 0.0


class AttentionRow(msgspec.Struct, frozen=True, kw_only=True):
    """FLOP/s of attention in 1e12, with masked scores counted."""

    sequences: int
    seq: int
    heads: int
    head_width: int
    forward_tflops_per_s: float
    backward_tflops_per_s: float
    causal: bool = True
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0


class _DeviceFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of a device file."""

    format: str
    version: int
    name: str
    matrices: list[MatrixRow]
    copies: list[CopyRow]
    attention: list[AttentionRow] = []
    launch_seconds: float = 0.0
    memory_bytes: float = 0.0
    measured_with: str = ""
    device: str = ""
    link_bytes_per_second: float = 0.0
    box: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceTable:
    """Measured rates of a device.

    Between sizes the logarithm of the rate is interpolated: the nearest rows count by the inverse square of their
    distance in the logarithms of the sizes (Shepard's interpolation); at a measured size the rate is the measured one,
    and beyond the largest that of the largest.
    """

    name: str  # Name of the device, as its driver gives it
    matrices: tuple[MatrixRow, ...]  # Matrix products
    copies: tuple[CopyRow, ...]  # Copies of memory
    attention: tuple[AttentionRow, ...] = ()  # Attention; may be empty
    launch_seconds: float = 0.0  # What the host needs to launch an operation
    memory_bytes: float = 0.0  # Size of the memory; 0: not said
    device: str = ""  # Name of the data sheet that it stands on; empty: by the name
    link_bytes_per_second: float = 0.0  # What it sends to others of its box, where the file says so
    box: int = 0  # Devices of a box, where the file says so

    def __post_init__(self) -> None:
        for what, rows in (("matrices", self.matrices), ("copies", self.copies)):
            if not rows:
                raise InputError(
                    f"expected rows of measured {what}, found none: measure the device (`coppice train measure`)."
                )
        numbers = (
            ("matrices", [(each.m, each.n, each.k, each.tflops_per_s) for each in self.matrices]),
            ("copies", [(each.bytes, each.bytes_per_second) for each in self.copies]),
            (
                "attention",
                [
                    (
                        each.sequences,
                        each.seq,
                        each.heads,
                        each.head_width,
                        each.forward_tflops_per_s,
                        each.backward_tflops_per_s,
                    )
                    for each in self.attention
                ],
            ),
        )
        for name, all_rows in numbers:
            for row, values in enumerate(all_rows):
                if not all(math.isfinite(value) and value > 0 for value in values):
                    raise InputError(f"expected sizes and rates above 0, found otherwise at $.{name}[{row}].")

    @property
    def most_flops(self) -> float:
        """Highest FLOP/s of a matrix product."""
        return max(each.tflops_per_s for each in self.matrices) * 1e12

    @property
    def memory_rate(self) -> float:
        """Memory bandwidth: bytes per second of the largest copy."""
        return max(self.copies, key=lambda each: each.bytes).bytes_per_second

    def matrix_flops(self, m: float, n: float, k: float) -> float:
        """FLOP/s of an (m x k) by (k x n) matrix product.

        Examples:
            >>> rows = [MatrixRow(m=size, n=512, k=512, tflops_per_s=rate) for size, rate in ((64, 10), (256, 40))]
            >>> table = DeviceTable(name="x", matrices=rows, copies=[CopyRow(bytes=1, bytes_per_second=1.0)])
            >>> [round(table.matrix_flops(m, 512, 512) / 1e12, 6) for m in (64, 128, 256, 1024)]
            [10.0, 20.0, 40.0, 40.0]
        """
        rows = [((each.m, each.n, each.k), each.tflops_per_s) for each in self.matrices]
        return 1e12 * _between(rows, (m, n, k))

    def copy_rate(self, size_bytes: float) -> float:
        """Rate of a copy by size."""
        return _between([((each.bytes,), each.bytes_per_second) for each in self.copies], (size_bytes,))

    def attention_flops(self, sequences: float, seq: float, heads: float, *, backward: bool = False) -> float:
        """FLOP/s of attention, with masked scores counted; 0 where unmeasured."""
        if not self.attention:
            return 0.0
        rows = [
            (
                (each.sequences * each.heads, each.seq),
                each.backward_tflops_per_s if backward else each.forward_tflops_per_s,
            )
            for each in self.attention
        ]
        return 1e12 * _between(rows, (sequences * heads, seq))


def _between(rows: Sequence[tuple[tuple[float, ...], float]], at: tuple[float, ...]) -> float:
    """Interpolate a rate between the nearest measured sizes; constant beyond them."""
    spans = [(min(sizes), max(sizes)) for sizes in zip(*(sizes for sizes, _ in rows), strict=True)]
    at = tuple(min(max(value, low), high) for value, (low, high) in zip(at, spans, strict=True))
    logs = [math.log(value) for value in at]
    far = sorted(
        (sum((math.log(value) - log) ** 2 for value, log in zip(sizes, logs, strict=True)), rate)
        for sizes, rate in rows
    )
    if far[0][0] < 1e-18:
        return far[0][1]
    near = far[:_NEAREST]
    weights = [1 / square for square, _ in near]
    return math.exp(
        sum(weight * math.log(rate) for weight, (_, rate) in zip(weights, near, strict=True)) / sum(weights)
    )


def read_device_table(path: Path | str) -> DeviceTable:
    """Read a device file (JSON) of `coppice train measure`."""
    data = read_bytes(path, what="the device file")
    try:
        record = msgspec.json.decode(data, type=decodable(_DeviceFile))
    except JSON_FAULTS as error:
        fault = json_fault(error, data)
        raise InputError(
            f"expected a device file in {path} (`coppice train measure` writes one), found otherwise: {fault}."
        ) from None
    if record.format != "coppice-device" or record.version != 1:
        raise InputError(
            f"expected format coppice-device of version 1 in {path}, found {record.format} {record.version}."
        )
    try:
        return DeviceTable(
            name=record.name,
            matrices=tuple(record.matrices),
            copies=tuple(record.copies),
            attention=tuple(record.attention),
            launch_seconds=record.launch_seconds,
            memory_bytes=record.memory_bytes,
            device=record.device,
            link_bytes_per_second=record.link_bytes_per_second,
            box=record.box,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
