"""GPU models: data-sheet peaks, and constants fitted to measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coppice.errors import InputError

KERNELS = 12
"""Kernels of a pass over a layer of a transformer: products, attention, norms, and what is between them."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Data sheet of a GPU in its box."""

    name: str  # Its name
    flops: float  # Dense 16-bit operations a second
    memory_bytes_per_second: float  # Rate of its memory
    memory_bytes: float  # Its size
    link_bytes_per_second: float  # What it sends to the other GPUs of its box, in one direction
    box: int = 8  # GPUs of a box
    processors: int = 0  # Multiprocessors, over which the tiles of a product are dealt; 0: not known
    clock_mhz: float = 0.0  # Clock with which its peak is counted; 0: not known
    power_watts: float = 0.0  # Power that it is made for; 0: not known
    limit_watts: float = 0.0  # Power that this card is capped at; 0: at what it is made for


@dataclass(frozen=True)
class Cap:
    """Limits of the power and of the clock of a GPU; None: those that it is made for."""

    power_watts: float | None = None
    clock_mhz: float | None = None


UNCAPPED = Cap()
POWER = (1.0, 0.5, 1 / 3)
"""Powers of the share of its watts with which the clock of a busy GPU falls that is capped: as the voltage stays, so
that watts go with the clock; as taken; and as the voltage falls with the clock, so that watts go with its third power.
Cards of one chip differ, and what is published of whole trainings says less than the first (250 W capped at 150 W made
BERT 8.5% slower on V100; McDonald et al., NAACL 2022), so that the first and the last are the ends of a range."""


_SHEETS = (
    ("V100", 125e12, 0.9e12, 32e9, 150e9, 8, 80, 1530, 300, 0),
    ("TITAN-X", 6.6e12, 0.3365e12, 12e9, 15.75e9, 8, 24, 1075, 250, 0),
    ("P4000", 5.3e12, 0.243e12, 8e9, 15.75e9, 1, 14, 1480, 105, 0),
    ("P40", 11.76e12, 0.346e12, 24e9, 15.75e9, 8, 30, 1531, 250, 0),
    ("P100", 21.2e12, 0.732e12, 16e9, 80e9, 8, 56, 1480, 300, 0),
    ("GTX-1080-TI", 11.34e12, 0.484e12, 11e9, 15.75e9, 8, 28, 1582, 250, 0),
    ("RTX-2080-TI", 53.8e12, 0.616e12, 11e9, 15.75e9, 4, 68, 1545, 250, 0),
    ("RTX-3090", 71e12, 0.936e12, 24e9, 31.5e9, 8, 82, 1695, 350, 0),
    ("A100", 312e12, 1.555e12, 40e9, 300e9, 8, 108, 1410, 400, 0),
    ("A100-80G", 312e12, 2.039e12, 80e9, 300e9, 8, 108, 1410, 400, 0),
    ("H100", 989.4e12, 3.35e12, 80e9, 450e9, 8, 132, 1830, 700, 0),
    ("H100-96G", 989.4e12, 2.4e12, 96e9, 450e9, 8, 132, 1830, 700, 500),
    ("H200", 989.4e12, 4.8e12, 141e9, 450e9, 8, 132, 1830, 700, 0),
    ("B200", 2250e12, 8e12, 180e9, 900e9, 8, 148, 1856, 1000, 0),
    ("GB200", 2500e12, 8e12, 186e9, 900e9, 64, 148, 2062, 1200, 0),
    ("GB300", 2500e12, 8e12, 279e9, 900e9, 64, 148, 2062, 1400, 0),
    ("MI250X", 191.5e12, 1.6384e12, 64e9, 250e9, 8, 110, 1700, 280, 0),
    ("MI300X", 1307.4e12, 5.3e12, 192e9, 448e9, 8, 304, 2100, 750, 0),
)
DEVICES = {
    name: Device(
        name=name,
        flops=flops,
        memory_bytes_per_second=rate,
        memory_bytes=size,
        link_bytes_per_second=link,
        box=box,
        processors=processors,
        clock_mhz=clock,
        power_watts=watts,
        limit_watts=limit,
    )
    for name, flops, rate, size, link, box, processors, clock, watts, limit in _SHEETS
}
"""By name; NVIDIA's data sheets of V100 SXM2, A100 SXM4 (40 and 80 GB), H100 SXM5, H200 SXM, B200, of H100s of 96 GB
that are capped at 500 W (2.4 TB/s; PyTorch publishes runs on them), and of the NVL72 racks of GB200 and GB300, of whose
72 GPUs jobs use 64; AMD's of MI300X, and of MI250X, a die of which has half of 383 TFLOP/s, 3.28 TB/s and 128 GB, and
five links of 50 GB/s to others. TITAN X (Maxwell), P4000, P40 and GTX 1080 Ti have no faster 16-bit products, so that
theirs are those of 32 bits; 2080 Ti and 3090 add 16-bit products up in 32 bits; links of cards without NVLink are PCIe,
16 lanes. Clocks are those with which the processors make up the peak."""


_SINGLE = {"V100": 15.7e12, "P100": 10.6e12, "A100": 19.5e12, "RTX-2080-TI": 13.45e12, "RTX-3090": 35.6e12}


def single_precision(device: Device) -> Device:
    """A GPU that trains with 32 bits: its peak of such operations by data sheet, and values of 4 bytes for those of 2.

    Raises:
        InputError: If no peak is known.

    Examples:
        >>> found = single_precision(DEVICES["V100"])
        >>> found.flops, found.memory_bytes_per_second
        (15700000000000.0, 450000000000.0)
    """
    known = {name: sheet.flops for name, sheet in DEVICES.items() if sheet.flops < 15e12} | _SINGLE
    if device.name not in known:
        raise InputError(
            f"expected a GPU whose peak with 32 bits is known ({', '.join(known)}), found {device.name}: take one."
        )
    return replace(
        device, flops=known[device.name], memory_bytes_per_second=device.memory_bytes_per_second / 2
    )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted constants of a kind of GPU: what kernels and rings reach of its data sheet."""

    matrix_share: float = 0.8  # Share of the peak that large matrix products reach
    # Length of the inner dimension with which a tile takes half its time to fill and drain its pipeline
    half_depth: float = 200.0
    # Share of the peak of 8-bit and 4-bit products over that of 16-bit ones
    narrow_share: float = 1.0
    # Share of the peak that each kernel of attention reaches on long sequences of wide heads, by its name; of those
    # that are not named that of `flash-2`
    attention_share: Mapping[str, float] = field(default_factory=lambda: {"flash-2": 0.6})
    unfused_share: float = (
        0.6  # Share of the peak that products of attention reach whose scores leave the chip
    )
    memory_share: float = 0.8  # Share of the rate of memory that passes over activations and weights reach
    near_seconds: float = 4e-5  # What a sum inside a box takes by itself
    near_share: float = 0.8  # Share of the rate of links in a box
    far_seconds: float = 5e-6  # What each hop around a ring takes by itself whose ranks are in several boxes
    far_share: float = 0.8  # Share of the rate of NICs
    gradient_share: float = 0.5  # Share of the rate of NICs that is left to gradient all-reduces
    # Share of their time by which passes take longer on 1,000 GPUs, of which one that stalls stops all; it grows with
    # the square root of their number
    stall_share: float = 0.03


CALIBRATIONS = {
    "V100": Calibration(matrix_share=0.56, memory_share=0.55, near_share=0.9, gradient_share=0.8),
    "A100-80G": Calibration(
        matrix_share=0.869,
        half_depth=159.0,
        narrow_share=1.0,
        attention_share={"flash-1": 0.322, "flash-2": 0.696, "triton": 0.429, "cudnn": 0.7},
        unfused_share=0.803,
        memory_share=0.55,
        near_seconds=7.26e-05,
        near_share=0.751,
        far_share=0.848,
        stall_share=0.0534,
    ),
    "H100": Calibration(
        matrix_share=0.714,
        half_depth=496.0,
        narrow_share=1.02,
        attention_share={"flash-1": 0.2, "flash-2": 0.488, "triton": 0.236, "cudnn": 0.835},
        unfused_share=0.5,
        memory_share=0.722,
        near_seconds=5.85e-05,
        near_share=0.821,
        far_share=0.581,
        stall_share=0.0534,
    ),
    "B200": Calibration(
        matrix_share=0.757,
        half_depth=902.0,
        narrow_share=1.17,
        attention_share={"flash-1": 0.15, "flash-2": 0.3, "triton": 0.2, "cudnn": 0.437},
        unfused_share=0.5,
        memory_share=0.783,
        near_seconds=4.52e-05,
        near_share=0.557,
        far_share=0.589,
        stall_share=0.0534,
    ),
}
"""By `benchmarks/exam.py --fit`, near the defaults and what data sheets say where runs do not show otherwise. V100: so
that ResNet-50 in mixed precision, 256 images a GPU, takes what was published with Horovod on one GPU of a p3.16xlarge
(872 and 740 images a second), and a GPT of 1.2 billion weights reaches about the 30% of the peak of Shoeybi et al.
(arXiv 1909.08053); rings of all GPUs have a NIC to themselves."""
