"""GPU models: data-sheet peaks, and constants fitted to measurements."""

from __future__ import annotations

from dataclasses import dataclass, fields

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


_SHEETS = (
    ("V100", 125e12, 0.9e12, 32e9, 150e9, 8),
    ("A100", 312e12, 1.555e12, 40e9, 300e9, 8),
    ("A100-80G", 312e12, 2.039e12, 80e9, 300e9, 8),
    ("H100", 989.4e12, 3.35e12, 80e9, 450e9, 8),
    ("H200", 989.4e12, 4.8e12, 141e9, 450e9, 8),
    ("B200", 2250e12, 8e12, 180e9, 900e9, 8),
    ("GB200", 2500e12, 8e12, 186e9, 900e9, 64),
    ("GB300", 2500e12, 8e12, 279e9, 900e9, 64),
    ("MI250X", 191.5e12, 1.6384e12, 64e9, 250e9, 8),
    ("MI300X", 1307.4e12, 5.3e12, 192e9, 448e9, 8),
)
DEVICES = {
    name: Device(
        name=name,
        flops=flops,
        memory_bytes_per_second=rate,
        memory_bytes=size,
        link_bytes_per_second=link,
        box=box,
    )
    for name, flops, rate, size, link, box in _SHEETS
}
"""By name; NVIDIA's data sheets of V100 SXM2, A100 SXM4 (40 and 80 GB), H100 SXM5, H200 SXM, B200, and of the NVL72
racks of GB200 and GB300, of whose 72 GPUs jobs use 64; AMD's of MI300X, and of MI250X, a die of which has half of 383
TFLOP/s, 3.28 TB/s and 128 GB, and five links of 50 GB/s to others."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Constants fitted for a kind of GPU.

    Ten numbers are fitted to measured iterations; what the host takes to launch kernels is not among them.
    """

    matrix_share: float = 0.8  # Share of the peak that large matrix products reach
    # Tokens of a micro-batch with which they reach half of that where the weights of a GPU have as many
    # columns; otherwise it is the square root of tokens and columns
    half_tokens: float = 1000.0
    attention_share: float = 0.4  # Share of the peak that scores, softmax and context reach
    memory_share: float = 0.8  # Share of the rate of memory that passes over activations and weights reach
    host_seconds: float = 2e-4  # What a pass over a layer takes at least: the host has to launch its kernels
    near_seconds: float = 7e-5  # What a sum inside a box takes by itself
    near_share: float = 0.8  # Share of the rate of links in a box
    far_seconds: float = 5e-6  # What each hop around a ring takes by itself whose ranks are in several boxes
    far_share: float = 0.8  # Share of the rate of NICs
    gradient_share: float = 0.5  # Share of the rate of NICs that is left to gradient all-reduces
    # Share of their time by which passes take longer for each 1,000 GPUs, of which one that stalls stops all
    stall_share: float = 0.025

    @classmethod
    def names(cls) -> list[str]:
        """Names of the fitted constants."""
        return [each.name for each in fields(cls) if each.name != "host_seconds"]


CALIBRATIONS = {
    "V100": Calibration(
        matrix_share=0.56,
        half_tokens=1009.0,
        attention_share=0.3,
        memory_share=0.55,
        near_share=0.9,
        gradient_share=0.8,
    ),
    "A100-80G": Calibration(
        matrix_share=0.9221,
        half_tokens=1009.0,
        attention_share=0.4877,
        memory_share=0.9093,
        near_seconds=8.178e-05,
        near_share=0.7811,
        far_seconds=5.321e-06,
        far_share=0.8865,
        gradient_share=0.4912,
        stall_share=0.02901,
    ),
    "H100": Calibration(
        matrix_share=0.7267,
        half_tokens=2619.0,
        attention_share=0.5346,
        memory_share=0.7687,
        near_seconds=9.462e-05,
        near_share=0.8343,
        far_seconds=4.673e-06,
        far_share=0.4714,
        gradient_share=0.5017,
        stall_share=0.02364,
    ),
}
"""V100: so that ResNet-50 in mixed precision, 256 images a GPU, takes what was published with Horovod on one GPU of a
p3.16xlarge (872 and 740 images a second), and a GPT of 1.2 billion weights reaches about the 30% of the peak of Shoeybi
et al. (arXiv 1909.08053); rings of all GPUs have a NIC to themselves. The others by `benchmarks/exam.py --fit`: A100 to
48 published iterations of GPT on 64 to 512 GPUs, H100 to 15 of Llama-like models on 8 to 512 GPUs; near the defaults,
where what these do not tell stays (benchmarks/exam.md)."""
