"""NVIDIA boxes.

NVLink: 6 links per V100, 12 per A100, 18 per H100, H200 and B200. Nominal figures are the data sheets' (per
direction: 25 GB/s per link up to NVLink 4, 50 for NVLink 5); measured ones those that NCCL reckons with
(``src/graph/topo.h``).
NICs: 100 Gb/s on DGX-1V, limited by PCIe 3 x16 to 12 GB/s; 200 Gb/s on DGX A100; 400 Gb/s from H100 on.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from coppice.errors import InputError
from coppice.topology.composition.compose import Port
from coppice.topology.composition.fabric import RailFabric, SwitchFabric
from coppice.topology.model import Link, Node, NodeKind
from coppice.topology.presets.box import GpuBox, box_preset, nics_parameter, rail_ports, switched
from coppice.topology.presets.registry import number_of
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s, pcie_gb_per_s

__all__ = ["PRESETS"]

_NIC_200G = Fraction(25)
_NIC_400G = Fraction(50)
_NIC_DGX_1V = Fraction(12)
_SOCKETS = Fraction(16)

# Pairs of GPUs of a DGX-1V, with the number of NVLinks between them (hybrid cube mesh).
_CUBE_MESH = (
    ((0, 1), 2),
    ((0, 2), 1),
    ((0, 3), 1),
    ((0, 4), 2),
    ((1, 2), 1),
    ((1, 3), 2),
    ((1, 5), 1),
    ((2, 3), 2),
    ((2, 6), 2),
    ((3, 7), 1),
    ((4, 5), 2),
    ((4, 6), 1),
    ((4, 7), 1),
    ((5, 6), 1),
    ((5, 7), 2),
    ((6, 7), 2),
)


def _dgx_1v(rates: RateClass) -> GpuBox:
    link = nvlink_gb_per_s(70, rates)
    return GpuBox(
        [Node(id=f"gpu{i}") for i in range(8)],
        [Link(src=f"gpu{a}", dst=f"gpu{b}", gb_per_s=count * link) for (a, b), count in _CUBE_MESH],
        tuple(Port(at=f"gpu{i}", gb_per_s=_NIC_DGX_1V) for i in (0, 2, 5, 7)),
    )


def _dgx_a100(rates: RateClass, *, nics: str = "node") -> GpuBox:
    nodes, links = switched(8, 12 * nvlink_gb_per_s(80, rates))
    pcie = min(pcie_gb_per_s("16 GT/s", 16, rates), _NIC_200G)
    return GpuBox(nodes, links, rail_ports(8, nic=_NIC_200G, pcie=pcie, nics=nics, name="mlx5_"))


def _dgx_a100_pcie(rates: RateClass) -> GpuBox:
    """With the PCIe tree: four switches of two GPUs and two NICs each, two switches per CPU."""
    nodes, links = switched(8, 12 * nvlink_gb_per_s(80, rates))
    pcie = pcie_gb_per_s("16 GT/s", 16, rates)
    nodes += [Node(id=f"pcie{i}", kind=NodeKind.SWITCH) for i in range(4)]
    nodes += [Node(id=f"cpu{i}", kind=NodeKind.SWITCH) for i in range(2)]
    links += [Link(src=f"gpu{i}", dst=f"pcie{i // 2}", gb_per_s=pcie) for i in range(8)]
    links += [Link(src=f"pcie{i}", dst=f"cpu{i // 2}", gb_per_s=pcie) for i in range(4)]
    links.append(Link(src="cpu0", dst="cpu1", gb_per_s=_SOCKETS))
    ports = tuple(
        Port(at=f"pcie{i // 2}", gb_per_s=_NIC_200G, nic=f"mlx5_{i}", nic_gb_per_s=pcie) for i in range(8)
    )
    return GpuBox(nodes, links, ports)


def _hopper(rates: RateClass, *, gpus: int = 8, nics: str = "link") -> GpuBox:
    return _with_400g(gpus, 18 * nvlink_gb_per_s(90, rates), rates, nics)


def _blackwell(rates: RateClass, *, gpus: int = 8, nics: str = "link") -> GpuBox:
    return _with_400g(gpus, 18 * nvlink_gb_per_s(100, rates), rates, nics)


def _nvl72(rates: RateClass, *, gpus: int = 72, nics: str = "link") -> GpuBox:
    return _with_400g(gpus, 18 * nvlink_gb_per_s(100, rates), rates, nics)


def _with_400g(gpus: int, nvlink: Fraction, rates: RateClass, nics: str) -> GpuBox:
    if not 1 <= gpus <= 1024:
        msg = f"expected 1 .. 1024 GPUs on one NVSwitch, found {gpus}."
        raise InputError(msg)
    nodes, links = switched(gpus, nvlink, in_network=True)
    pcie = min(pcie_gb_per_s("32 GT/s", 16, rates), _NIC_400G)
    return GpuBox(nodes, links, rail_ports(gpus, nic=_NIC_400G, pcie=pcie, nics=nics))


_preset = partial(box_preset, measured="NCCL src/graph/topo.h", fabric=RailFabric())
_of_400g = partial(_preset, parameters=(number_of("gpus", 8, "GPUs per box"), nics_parameter("link")))

PRESETS = (
    _preset(
        name="dgx-1v",
        description="8 V100, NVLink hybrid cube mesh; 4 NICs of 12 GB/s on GPUs 0, 2, 5, 7",
        source="DGX-1 (V100) white paper: NVLink 2, 25 GB/s per link; NICs behind PCIe 3 x16",
        box=_dgx_1v,
        fabric=SwitchFabric(),
    ),
    _preset(
        name="dgx-a100",
        description="8 A100 on NVSwitch, 300 GB/s each; 8 NICs of 25 GB/s, on an odd and an even switch",
        source="DGX A100 data sheet: 12 NVLinks of 25 GB/s per GPU, 8 ports of 200 Gb/s",
        box=_dgx_a100,
        fabric=RailFabric(rails=2),
        parameters=(nics_parameter("node"),),
    ),
    _preset(
        name="dgx-a100-pcie",
        description="dgx-a100 with its PCIe switches (2 GPUs and 2 NICs each) and CPUs",
        source="DGX A100 data sheet and PCIe layout: PCIe 4 x16, 32 GB/s; CPU to CPU 16 GB/s",
        box=_dgx_a100_pcie,
        fabric=RailFabric(rails=2),
    ),
    _of_400g(
        name="dgx-h100",
        description="8 H100 on NVSwitch, 450 GB/s each; a 50 GB/s NIC and rail per GPU",
        source="DGX H100 data sheet: 18 NVLinks of 25 GB/s per GPU, 8 ports of 400 Gb/s",
        box=_hopper,
    ),
    _of_400g(
        name="hgx-h200",
        description="8 H200 on NVSwitch, 450 GB/s each; a 50 GB/s NIC and rail per GPU",
        source="HGX H200 data sheet: 18 NVLinks of 25 GB/s per GPU; 400 Gb/s per GPU",
        box=_hopper,
    ),
    _of_400g(
        name="dgx-b200",
        description="8 B200 on NVSwitch, 900 GB/s each; a 50 GB/s NIC and rail per GPU",
        source="DGX B200 data sheet: 18 NVLinks of 50 GB/s per GPU, 8 ports of 400 Gb/s",
        box=_blackwell,
    ),
    _preset(
        name="gb200-nvl72",
        description="72 B200 of 18 trays on one NVSwitch, 900 GB/s each; one 50 GB/s NIC per GPU, 4 rails",
        source="GB200 NVL72 data sheet: 18 NVLinks of 50 GB/s per GPU; 400 Gb/s per GPU",
        box=_nvl72,
        fabric=RailFabric(rails=4),
        parameters=(number_of("gpus", 72, "GPUs per box"), nics_parameter("link")),
    ),
)
