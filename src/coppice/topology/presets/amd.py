"""AMD boxes.

xGMI, per link and direction: 46 GB/s on MI100, 50 on MI250, 64 on MI300X (data sheets); measured ones are
those that RCCL reckons with (``src/graph/topo.h``): 24, 36, 48.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import partial

from coppice.errors import InputError
from coppice.topology.composition.compose import Port
from coppice.topology.composition.fabric import RailFabric, SwitchFabric
from coppice.topology.model import Link, Node, NodeKind
from coppice.topology.presets.box import GpuBox, box_preset, nics_parameter, rail_ports
from coppice.topology.presets.registry import number_of
from coppice.topology.readers.link_rates import RateClass, pcie_gb_per_s, xgmi_gb_per_s

__all__ = ["PRESETS"]

_SOCKETS = Fraction(16)
_NIC_200G = Fraction(25)
_NIC_400G = Fraction(50)
_NIC_MI250 = Fraction(16)

# Pairs of dies (GCDs) of an MI250 box with the number of xGMI links between them; dies 2i and 2i+1 are one
# package.
_MI250 = (
    *(((i, i + 1), 4) for i in range(0, 16, 2)),
    *(((a, b), 2) for a, b in ((0, 4), (3, 7), (8, 12), (11, 15))),
    *(((a, b), 1) for a, b in ((0, 8), (1, 5), (1, 9), (1, 10), (2, 6), (2, 9), (2, 10), (3, 11))),
    *(((a, b), 1) for a, b in ((4, 6), (5, 6), (5, 7), (9, 13), (10, 14), (12, 14), (13, 14), (13, 15))),
)


def _mi100(rates: RateClass, *, gpus: int = 8) -> GpuBox:
    """Hives of four completely linked GPUs, each hive on a CPU of its own."""
    if gpus not in (4, 8):
        msg = f"expected gpus=4 (one hive) or gpus=8 (two hives) for mi100, found {gpus}."
        raise InputError(msg)
    link, pcie = xgmi_gb_per_s("908", rates), pcie_gb_per_s("16 GT/s", 16, rates)
    hives = range(gpus // 4)
    nodes = [Node(id=f"gpu{i}") for i in range(gpus)]
    nodes += [Node(id=f"cpu{hive}", kind=NodeKind.SWITCH) for hive in hives]
    links = [
        Link(src=f"gpu{a}", dst=f"gpu{b}", gb_per_s=link)
        for hive in hives
        for a, b in itertools.combinations(range(4 * hive, 4 * hive + 4), 2)
    ]
    links += [Link(src=f"gpu{i}", dst=f"cpu{i // 4}", gb_per_s=pcie) for i in range(gpus)]
    if len(hives) == 2:
        links.append(Link(src="cpu0", dst="cpu1", gb_per_s=_SOCKETS))
    ports = tuple(
        Port(at=f"cpu{hive}", gb_per_s=_NIC_200G, nic=f"nic{hive}", nic_gb_per_s=pcie) for hive in hives
    )
    return GpuBox(nodes, links, ports)


def _mi250(rates: RateClass) -> GpuBox:
    link = xgmi_gb_per_s("gfx90a", rates)
    return GpuBox(
        [Node(id=f"gpu{i}") for i in range(16)],
        [Link(src=f"gpu{a}", dst=f"gpu{b}", gb_per_s=count * link) for (a, b), count in _MI250],
        tuple(Port(at=f"gpu{i}", gb_per_s=_NIC_MI250) for i in range(16)),
    )


def _mi300x(rates: RateClass, *, nics: str = "link") -> GpuBox:
    link = xgmi_gb_per_s("gfx942", rates)
    pcie = min(pcie_gb_per_s("32 GT/s", 16, rates), _NIC_400G)
    return GpuBox(
        [Node(id=f"gpu{i}") for i in range(8)],
        [Link(src=f"gpu{a}", dst=f"gpu{b}", gb_per_s=link) for a, b in itertools.combinations(range(8), 2)],
        rail_ports(8, nic=_NIC_400G, pcie=pcie, nics=nics),
    )


_preset = partial(box_preset, measured="RCCL src/graph/topo.h")

PRESETS = (
    _preset(
        name="mi100",
        description="8 MI100 in two hives of 4 (xGMI, all linked); a CPU and a 25 GB/s NIC per hive",
        source="MI100 data sheet: 3 xGMI links of 46 GB/s; PCIe 4 x16; CPU to CPU 16 GB/s",
        box=_mi100,
        fabric=SwitchFabric(),
        parameters=(number_of("gpus", 8, "4 (one hive) or 8 (two hives)"),),
    ),
    _preset(
        name="mi250",
        description="8 MI250 = 16 dies, xGMI in units of 50 GB/s; 16 GB/s to one network switch per die",
        source="MI250 data sheet: xGMI 50 GB/s per link; links and NIC rate as in the published ForestColl "
        "experiments",
        box=_mi250,
        fabric=SwitchFabric(),
    ),
    _preset(
        name="mi300x",
        description="8 MI300X, every two linked by xGMI of 64 GB/s; a 50 GB/s NIC and rail per GPU",
        source="MI300X data sheet: 7 xGMI links of 64 GB/s; 400 Gb/s per GPU",
        box=_mi300x,
        fabric=RailFabric(),
        parameters=(nics_parameter("link"),),
    ),
)
