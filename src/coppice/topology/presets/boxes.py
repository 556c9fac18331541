"""Presets of GPU boxes by NVIDIA and AMD: a box, its network ports and the fabric between several of them.

NVLink: 6 links per V100, 12 per A100, 18 per H100, H200 and B200. Nominal figures are the data sheets' (per
direction: 25 GB/s per link up to NVLink 4, 50 for NVLink 5); measured ones those that NCCL reckons with
(``src/graph/topo.h``).
NICs: 100 Gb/s on DGX-1V, limited by PCIe 3 x16 to 12 GB/s; one of 100 Gb/s on NDv2; 200 Gb/s on DGX A100; 400 Gb/s
from H100 on.

xGMI, per link and direction: 46 GB/s on MI100, 50 on MI250, 64 on MI300X (data sheets); measured ones are
those that RCCL reckons with (``src/graph/topo.h``): 24, 36, 48.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.composition.compose import Host, Port, compose, repeated
from coppice.topology.composition.fabric import (
    FABRIC_KINDS,
    Fabric,
    RailFabric,
    SwitchFabric,
    fabric_from_fields,
)
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import PRESET_NIC
from coppice.topology.presets.registry import Preset, PresetParameter, integer, number_of, text
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s, pcie_gb_per_s, xgmi_gb_per_s

MAX_BOXES = 65_536

_SOCKETS = Fraction(16)
_NIC_200G = Fraction(25)
_NIC_400G = Fraction(50)
_NIC_DGX_1V = Fraction(12)
_NIC_100G = Fraction(25, 2)
_NIC_MI250 = Fraction(16)

# Pairs of GPUs of a DGX-1V, with the number of NVLinks between them (hybrid cube mesh).
_CUBE_MESH = (
    *(((a, b), 2) for a, b in ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))),
    *(((a, b), 1) for a, b in ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))),
)

# Pairs of dies (GCDs) of an MI250 box with the number of xGMI links between them; dies 2i and 2i+1 are one
# package.
_MI250 = (
    *(((i, i + 1), 4) for i in range(0, 16, 2)),
    *(((a, b), 2) for a, b in ((0, 4), (3, 7), (8, 12), (11, 15))),
    *(((a, b), 1) for a, b in ((0, 8), (1, 5), (1, 9), (1, 10), (2, 6), (2, 9), (2, 10), (3, 11))),
    *(((a, b), 1) for a, b in ((4, 6), (5, 6), (5, 7), (9, 13), (10, 14), (12, 14), (13, 14), (13, 15))),
)

_FABRIC_FIELDS = tuple(
    dict.fromkeys(
        field
        for kind in FABRIC_KINDS.values()
        for field in kind.__struct_fields__
        if field not in ("name", "cables")
    )
)


@dataclass(frozen=True, slots=True)
class GpuBox:
    """One box: its nodes and links, and its network ports if there is a network."""

    nodes: list[Node]
    links: list[Link]
    ports: tuple[Port, ...]


def switched(gpus: int, gb_per_s: Fraction, *, in_network: bool = False) -> tuple[list[Node], list[Link]]:
    """GPUs on one NVSwitch node, ``gb_per_s`` each way per GPU.

    Args:
        gb_per_s: Rate between a GPU and the switch.
        in_network: The switch can copy and add.
    """
    nodes = [Node(id=f"gpu{i}") for i in range(gpus)]
    nodes.append(Node(id="nvswitch", kind=NodeKind.SWITCH, multicast=in_network, aggregate=in_network))
    return nodes, [Link(src=f"gpu{i}", dst="nvswitch", gb_per_s=gb_per_s) for i in range(gpus)]


def rail_ports(gpus: int, *, nic: Fraction, pcie: Fraction, nics: str) -> tuple[Port, ...]:
    """One NIC per GPU, in GPU order.

    Args:
        nics: ``node`` for NIC nodes; ``link`` folds each NIC into the link from its GPU to the network.
    """
    if nics not in ("link", "node"):
        raise InputError(f"expected nics=link or nics=node, found nics={nics!r}.")
    if nics == "link":
        return tuple(Port(at=f"gpu{i}", gb_per_s=min(nic, pcie)) for i in range(gpus))
    return tuple(
        Port(at=f"gpu{i}", gb_per_s=nic, nic=f"{PRESET_NIC}{i}", nic_gb_per_s=pcie) for i in range(gpus)
    )


def nics_parameter(default: str) -> PresetParameter:
    """The parameter ``nics`` of :func:`rail_ports`."""
    return PresetParameter(
        name="nics",
        parse=text,
        default=default,
        description="node: NICs are nodes; link: folded into the GPU's network link",
    )


def box_preset(
    *,
    name: str,
    description: str,
    source: str,  # Where the nominal figures come from
    measured: str,  # Where the measured figures of the links come from
    arch: str,
    cpu: str,
    box: Callable[..., GpuBox],  # Makes one box from the class of rates and the values of `parameters`
    fabric: Fabric,  # Joins several boxes unless the caller chooses another
    parameters: tuple[PresetParameter, ...] = (),  # Beyond `rates` and the fabric's
) -> Preset:
    """A preset made of equal boxes."""
    own = {parameter.name for parameter in parameters}

    def host(*, rates: str = "nominal", **values: Any) -> Host:
        made = box(_rate_class(rates), **values)
        figures = source if rates == RateClass.NOMINAL else f"{measured} (measured); {source}"
        nodes = [
            replace(node, arch=arch, cpu=cpu) if node.kind is NodeKind.GPU else node for node in made.nodes
        ]
        inside = Topology.of(name, nodes, made.links, source=figures)
        return Host(name="box", topology=inside, ports=made.ports)

    def build(*, boxes: int = 1, rates: str = "nominal", **values: Any) -> Topology:
        if not 1 <= boxes <= MAX_BOXES:
            raise InputError(f"expected 1 .. {MAX_BOXES} boxes of {name}, found {boxes}.")
        inside = {key: value for key, value in values.items() if key in own}
        chosen = _chosen_fabric(fabric, {key: value for key, value in values.items() if key not in own})
        one = host(rates=rates, **inside)
        title = name if boxes == 1 else f"{boxes} x {name}"
        if boxes == 1 and chosen is not fabric:
            compose(repeated(one, 2), chosen, name=title)  # what no fabric takes is refused for one box too
        hosts = repeated(one, boxes)
        return compose(hosts, None if boxes == 1 else chosen, name=title, source=one.topology.source)

    fixed = (
        PresetParameter(name="boxes", parse=integer, default="1", description="number of boxes"),
        PresetParameter(name="rates", parse=text, default="nominal", description="nominal or measured"),
    )
    network = (
        PresetParameter(
            name="fabric",
            parse=text,
            default=_kind(fabric),
            description=f"joins several boxes: {', '.join(FABRIC_KINDS)}",
        ),
        *(
            PresetParameter(name=field, parse=text, default="", description="field of the fabric")
            for field in _FABRIC_FIELDS
        ),
    )
    return Preset(
        name=name,
        description=description,
        source=f"{source}; measured rates: {measured}",
        parameters=(*fixed, *parameters, *network),
        build=build,
        host=host,
    )


def _rate_class(rates: str) -> RateClass:
    if rates not in list(RateClass):
        raise InputError(
            f"expected rates nominal or measured, found {rates!r}: {suggestion(rates, list(RateClass))}"
        )
    return RateClass(rates)


def _kind(fabric: Fabric) -> str:
    return next(kind for kind, record in FABRIC_KINDS.items() if isinstance(fabric, record))


def _chosen_fabric(default: Fabric, values: Mapping[str, Any]) -> Fabric:
    """The default fabric with some fields changed, or another kind."""
    fields = dict(values)
    chosen = fields.pop("fabric", None)
    if chosen is not None and not isinstance(chosen, str):
        return chosen  # type: ignore[no-any-return]  # a Fabric from Python
    if chosen is None or chosen == _kind(default):
        given = {field: getattr(default, field) for field in default.__struct_fields__}
        return fabric_from_fields(_kind(default), {**given, **fields}) if fields else default
    return fabric_from_fields(chosen, fields)


def _linked(pairs: Iterable[tuple[tuple[int, int], int]], gb_per_s: Fraction) -> list[Link]:
    """Direct links between pairs of GPUs, so many of this rate between each."""
    return [Link(src=f"gpu{a}", dst=f"gpu{b}", gb_per_s=count * gb_per_s) for (a, b), count in pairs]


def _dgx_1v(rates: RateClass) -> GpuBox:
    return GpuBox(
        [Node(id=f"gpu{i}") for i in range(8)],
        _linked(_CUBE_MESH, nvlink_gb_per_s(70, rates)),
        tuple(Port(at=f"gpu{i}", gb_per_s=_NIC_DGX_1V) for i in (0, 2, 5, 7)),
    )


def _ndv2(rates: RateClass) -> GpuBox:
    """The hybrid cube mesh on a PCIe tree: four switches of two GPUs, two per CPU, one NIC at GPUs 0 and 1."""
    pcie = pcie_gb_per_s("8 GT/s", 16, rates)
    nodes = [Node(id=f"gpu{i}") for i in range(8)]
    nodes += [Node(id=f"pcie{i}", kind=NodeKind.SWITCH) for i in range(4)]
    nodes += [Node(id=f"cpu{i}", kind=NodeKind.SWITCH) for i in range(2)]
    links = _linked(_CUBE_MESH, nvlink_gb_per_s(70, rates))
    links += [Link(src=f"gpu{i}", dst=f"pcie{i // 2}", gb_per_s=pcie) for i in range(8)]
    links += [Link(src=f"pcie{i}", dst=f"cpu{i // 2}", gb_per_s=pcie) for i in range(4)]
    links.append(Link(src="cpu0", dst="cpu1", gb_per_s=_SOCKETS))
    nic = Port(
        at="pcie0", gb_per_s=min(_NIC_100G, pcie), nic=f"{PRESET_NIC}0", nic_gb_per_s=min(_NIC_100G, pcie)
    )
    return GpuBox(nodes, links, (nic,))


def _dgx_a100(rates: RateClass, *, nics: str = "node") -> GpuBox:
    nodes, links = switched(8, 12 * nvlink_gb_per_s(80, rates))
    pcie = min(pcie_gb_per_s("16 GT/s", 16, rates), _NIC_200G)
    return GpuBox(nodes, links, rail_ports(8, nic=_NIC_200G, pcie=pcie, nics=nics))


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
        Port(at=f"pcie{i // 2}", gb_per_s=_NIC_200G, nic=f"{PRESET_NIC}{i}", nic_gb_per_s=pcie)
        for i in range(8)
    )
    return GpuBox(nodes, links, ports)


def _with_400g(rates: RateClass, *, sm: int, gpus: int = 8, nics: str = "link") -> GpuBox:
    """GPUs of compute capability ``sm`` on one NVSwitch that copies and adds, with a NIC of 400 Gb/s each."""
    if not 1 <= gpus <= 1024:
        raise InputError(f"expected 1 .. 1024 GPUs on one NVSwitch, found {gpus}.")
    nodes, links = switched(gpus, 18 * nvlink_gb_per_s(sm, rates), in_network=True)
    pcie = min(pcie_gb_per_s("32 GT/s", 16, rates), _NIC_400G)
    return GpuBox(nodes, links, rail_ports(gpus, nic=_NIC_400G, pcie=pcie, nics=nics))


def _mi100(rates: RateClass, *, gpus: int = 8) -> GpuBox:
    """Hives of four completely linked GPUs, each hive on a CPU of its own."""
    if gpus not in (4, 8):
        raise InputError(f"expected gpus=4 (one hive) or gpus=8 (two hives) for mi100, found {gpus}.")
    link, pcie = xgmi_gb_per_s("908", rates), pcie_gb_per_s("16 GT/s", 16, rates)
    hives = range(gpus // 4)
    nodes = [Node(id=f"gpu{i}") for i in range(gpus)]
    nodes += [Node(id=f"cpu{hive}", kind=NodeKind.SWITCH) for hive in hives]
    pairs = [pair for hive in hives for pair in itertools.combinations(range(4 * hive, 4 * hive + 4), 2)]
    links = _linked(((pair, 1) for pair in pairs), link)
    links += [Link(src=f"gpu{i}", dst=f"cpu{i // 4}", gb_per_s=pcie) for i in range(gpus)]
    if len(hives) == 2:
        links.append(Link(src="cpu0", dst="cpu1", gb_per_s=_SOCKETS))
    ports = tuple(
        Port(at=f"cpu{hive}", gb_per_s=_NIC_200G, nic=f"{PRESET_NIC}{hive}", nic_gb_per_s=pcie)
        for hive in hives
    )
    return GpuBox(nodes, links, ports)


def _mi250(rates: RateClass) -> GpuBox:
    return GpuBox(
        [Node(id=f"gpu{i}") for i in range(16)],
        _linked(_MI250, xgmi_gb_per_s("gfx90a", rates)),
        tuple(Port(at=f"gpu{i}", gb_per_s=_NIC_MI250) for i in range(16)),
    )


def _xgmi_mesh(rates: RateClass, *, arch: str, nics: str = "link") -> GpuBox:
    pcie = min(pcie_gb_per_s("32 GT/s", 16, rates), _NIC_400G)
    return GpuBox(
        [Node(id=f"gpu{i}") for i in range(8)],
        _linked(((pair, 1) for pair in itertools.combinations(range(8), 2)), xgmi_gb_per_s(arch, rates)),
        rail_ports(8, nic=_NIC_400G, pcie=pcie, nics=nics),
    )


_nvidia = partial(box_preset, measured="NCCL src/graph/topo.h", fabric=RailFabric())
_of_400g = partial(_nvidia, parameters=(number_of("gpus", 8, "GPUs per box"), nics_parameter("link")))
_amd = partial(box_preset, measured="RCCL src/graph/topo.h")

PRESETS = (
    _nvidia(
        name="dgx-1v",
        description="8 V100, NVLink hybrid cube mesh; 4 NICs of 12 GB/s on GPUs 0, 2, 5, 7",
        source="DGX-1 (V100) white paper: NVLink 2, 25 GB/s per link; NICs behind PCIe 3 x16",
        arch="sm_70",
        cpu="intel",
        box=_dgx_1v,
        fabric=SwitchFabric(),
    ),
    _nvidia(
        name="ndv2",
        description="8 V100, NVLink hybrid cube mesh, a PCIe 3 tree; one NIC of 12.5 GB/s beside GPUs 0 and 1",
        source="Azure NDv2: 8 V100, NVLink 2 of 25 GB/s per link, one port of 100 Gb/s; PCIe 3 x16, 16 GB/s",
        arch="sm_70",
        cpu="intel",
        box=_ndv2,
        fabric=SwitchFabric(),
    ),
    _nvidia(
        name="dgx-a100",
        description="8 A100 on NVSwitch, 300 GB/s each; 8 NICs of 25 GB/s, on an odd and an even switch",
        source="DGX A100 data sheet: 12 NVLinks of 25 GB/s per GPU, 8 ports of 200 Gb/s",
        arch="sm_80",
        cpu="amd",
        box=_dgx_a100,
        fabric=RailFabric(rails=2),
        parameters=(nics_parameter("node"),),
    ),
    _nvidia(
        name="dgx-a100-pcie",
        description="dgx-a100 with its PCIe switches (2 GPUs and 2 NICs each) and CPUs",
        source="DGX A100 data sheet and PCIe layout: PCIe 4 x16, 32 GB/s; CPU to CPU 16 GB/s",
        arch="sm_80",
        cpu="amd",
        box=_dgx_a100_pcie,
        fabric=RailFabric(rails=2),
    ),
    _of_400g(
        name="dgx-h100",
        description="8 H100 on NVSwitch, 450 GB/s each; a 50 GB/s NIC and rail per GPU",
        source="DGX H100 data sheet: 18 NVLinks of 25 GB/s per GPU, 8 ports of 400 Gb/s",
        arch="sm_90",
        cpu="intel",
        box=partial(_with_400g, sm=90),
    ),
    _of_400g(
        name="hgx-h200",
        description="8 H200 on NVSwitch, 450 GB/s each; a 50 GB/s NIC and rail per GPU",
        source="HGX H200 data sheet: 18 NVLinks of 25 GB/s per GPU; 400 Gb/s per GPU",
        arch="sm_90",
        cpu="intel",
        box=partial(_with_400g, sm=90),
    ),
    _of_400g(
        name="dgx-b200",
        description="8 B200 on NVSwitch, 900 GB/s each; a 50 GB/s NIC and rail per GPU",
        source="DGX B200 data sheet: 18 NVLinks of 50 GB/s per GPU, 8 ports of 400 Gb/s",
        arch="sm_100",
        cpu="intel",
        box=partial(_with_400g, sm=100),
    ),
    _nvidia(
        name="gb200-nvl72",
        description="72 B200 of 18 trays on one NVSwitch, 900 GB/s each; one 50 GB/s NIC per GPU, 4 rails",
        source="GB200 NVL72 data sheet: 18 NVLinks of 50 GB/s per GPU; 400 Gb/s per GPU",
        arch="sm_100",
        cpu="arm",
        box=partial(_with_400g, sm=100, gpus=72),
        fabric=RailFabric(rails=4),
        parameters=(number_of("gpus", 72, "GPUs per box"), nics_parameter("link")),
    ),
    _amd(
        name="mi100",
        description="8 MI100 in two hives of 4 (xGMI, all linked); a CPU and a 25 GB/s NIC per hive",
        source="MI100 data sheet: 3 xGMI links of 46 GB/s; PCIe 4 x16; CPU to CPU 16 GB/s",
        arch="gfx908",
        cpu="amd",
        box=_mi100,
        fabric=SwitchFabric(),
        parameters=(number_of("gpus", 8, "4 (one hive) or 8 (two hives)"),),
    ),
    _amd(
        name="mi250",
        description="8 MI250 = 16 dies, xGMI in units of 50 GB/s; 16 GB/s to one network switch per die",
        source="MI250 data sheet: xGMI 50 GB/s per link; links and NIC rate as in the published ForestColl "
        "experiments",
        arch="gfx90a",
        cpu="amd",
        box=_mi250,
        fabric=SwitchFabric(),
    ),
    _amd(
        name="mi300x",
        description="8 MI300X, every two linked by xGMI of 64 GB/s; a 50 GB/s NIC and rail per GPU",
        source="MI300X data sheet: 7 xGMI links of 64 GB/s; 400 Gb/s per GPU",
        arch="gfx942",
        cpu="amd",
        box=partial(_xgmi_mesh, arch="gfx942"),
        fabric=RailFabric(),
        parameters=(nics_parameter("link"),),
    ),
    _amd(
        name="mi355x",
        description="8 MI355X, every two linked by xGMI of 76.8 GB/s; a 50 GB/s NIC and rail per GPU",
        source="MI355X data sheet: 7 xGMI links of 76.8 GB/s; 400 Gb/s per GPU",
        arch="gfx950",
        cpu="amd",
        box=partial(_xgmi_mesh, arch="gfx950"),
        fabric=RailFabric(),
        parameters=(nics_parameter("link"),),
    ),
)
