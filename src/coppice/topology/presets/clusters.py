"""Clusters of single-GPU hosts: one switch with unequal ports, fat-tree, dragonfly, and the PCIe box."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from coppice.errors import InputError
from coppice.topology.composition.compose import Host, compose, gpu_ports
from coppice.topology.composition.fabric import DragonflyFabric, Fabric, FatTreeFabric
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets.direct import MAX_GPUS, Gpus
from coppice.topology.presets.registry import Preset, Rate, Rates, listed_in

_SOURCE = "by definition of the network; rates as given"
PRESETS: list[Preset] = []


@listed_in(PRESETS, description="GPUs on one switch, with equal or unequal ports", source=_SOURCE)
def star(
    gpus: Gpus = 8, *, gb_per_s: Annotated[Rates, "rate of every port, or of each: 3,10,10"] = 1
) -> Topology:
    """GPUs on one non-blocking switch.

    With several rates, their number counts, and each is that of a port in rank order.

    Raises:
        InputError: If a number is out of range.

    Examples:
        >>> star(gb_per_s=(3, 10, 10)).num_ranks
        3
    """
    given = [gb_per_s] if isinstance(gb_per_s, (int, Fraction)) else list(gb_per_s)
    rates = given * gpus if len(given) == 1 else given
    if not 1 <= len(rates) <= MAX_GPUS or min(rates) <= 0:
        raise InputError(f"expected 1 .. {MAX_GPUS} ports with rates > 0 for a star, found {len(rates)}.")
    nodes = [Node(id=f"gpu{i}") for i in range(len(rates))]
    links = [Link(src=f"gpu{i}", dst="switch", gb_per_s=Fraction(value)) for i, value in enumerate(rates)]
    nodes.append(Node(id="switch", kind=NodeKind.SWITCH))
    return Topology.of(f"star of {len(rates)}", nodes, links, source=_SOURCE)


@listed_in(PRESETS, description="leaf and spine switches, or three levels, one GPU per port", source=_SOURCE)
def fat_tree(
    leaves: Annotated[int, "number of leaf switches"] = 4,
    gpus_per_leaf: Annotated[int, "GPUs on each leaf"] = 4,
    spines: Annotated[int, "number of spines (of each pod)"] = 2,
    *,
    oversubscription: Annotated[Rate, "rate down over rate up at a leaf"] = 1,
    gb_per_s: Annotated[Rate, "rate of a GPU"] = 1,
    leaves_per_pod: Annotated[int | None, "for three levels"] = None,
    cores: Annotated[int | None, "core switches", "as spines"] = None,
    core_oversubscription: Annotated[Rate, "rate down over rate up at a spine"] = 1,
) -> Topology:
    """A fat-tree of two levels, or of three with ``leaves_per_pod``, with one GPU per port.

    An oversubscription of 1 is full bisection; the number of cores is a multiple of ``spines``.

    Raises:
        InputError: If a number is out of range.
    """
    fabric = FatTreeFabric(
        hosts_per_leaf=gpus_per_leaf,
        spines=spines,
        oversubscription=Fraction(oversubscription),
        leaves_per_pod=leaves_per_pod,
        cores=cores,
        core_oversubscription=Fraction(core_oversubscription),
    )
    name = f"fat-tree of {leaves} x {gpus_per_leaf}, {spines} spines"
    return _of_gpus(leaves * gpus_per_leaf, Fraction(gb_per_s), fabric, name)


@listed_in(
    PRESETS,
    description="groups of completely linked routers, one bundle of links between every two groups",
    source=_SOURCE,
)
def dragonfly(
    groups: Annotated[int, "number of groups"] = 3,
    routers_per_group: Annotated[int, "routers of a group"] = 2,
    gpus_per_router: Annotated[int, "GPUs on each router"] = 2,
    *,
    gb_per_s: Annotated[Rate, "rate of a GPU"] = 2,
    local_gb_per_s: Annotated[Rate, "rate between routers of a group"] = 2,
    global_gb_per_s: Annotated[Rate, "rate between two groups"] = 1,
) -> Topology:
    """A dragonfly with one GPU per port.

    The routers of a group are all linked with each other.

    Raises:
        InputError: If a number is out of range.
    """
    fabric = DragonflyFabric(
        routers_per_group=routers_per_group,
        hosts_per_router=gpus_per_router,
        local_gb_per_s=Fraction(local_gb_per_s),
        global_gb_per_s=Fraction(global_gb_per_s),
    )
    name = f"dragonfly of {groups} x {routers_per_group} x {gpus_per_router}"
    return _of_gpus(groups * routers_per_group * gpus_per_router, Fraction(gb_per_s), fabric, name)


@listed_in(
    PRESETS,
    description="GPUs under PCIe switches, one per CPU; CPUs linked with each other",
    source="typical server of PCIe 3 x16 with two sockets; rates as given",
)
def pcie_box(
    sockets: Annotated[int, "number of CPUs"] = 2,
    gpus_per_socket: Annotated[int, "GPUs on the PCIe switch of each"] = 2,
    *,
    pcie_gb_per_s: Annotated[Rate, "rate of a PCIe link"] = 16,
    socket_gb_per_s: Annotated[Rate, "rate between two CPUs"] = 10,
) -> Topology:
    """GPUs without NVLink: per socket, a PCIe switch with GPUs under it; sockets are linked with each other.

    Raises:
        InputError: If a number is out of range.
    """
    if not 1 <= sockets <= 64 or not 1 <= gpus_per_socket <= 64:
        raise InputError(f"expected 1 .. 64 sockets of 1 .. 64 GPUs, found {sockets} of {gpus_per_socket}.")
    pcie, between = Fraction(pcie_gb_per_s), Fraction(socket_gb_per_s)
    gpus = range(sockets * gpus_per_socket)
    nodes = [Node(id=f"gpu{i}") for i in gpus]
    nodes += [Node(id=f"pcie{i}", kind=NodeKind.SWITCH) for i in range(sockets)]
    nodes += [Node(id=f"cpu{i}", kind=NodeKind.SWITCH) for i in range(sockets)]
    links = [Link(src=f"gpu{i}", dst=f"pcie{i // gpus_per_socket}", gb_per_s=pcie) for i in gpus]
    links += [Link(src=f"pcie{i}", dst=f"cpu{i}", gb_per_s=pcie) for i in range(sockets)]
    links += [Link(src=f"cpu{a}", dst=f"cpu{b}", gb_per_s=between) for b in range(sockets) for a in range(b)]
    return Topology.of(f"PCIe box of {sockets} x {gpus_per_socket}", nodes, links, source=_SOURCE)


def _of_gpus(gpus: int, gb_per_s: Fraction, fabric: Fabric, name: str) -> Topology:
    if not 1 <= gpus <= MAX_GPUS:
        raise InputError(f"expected 1 .. {MAX_GPUS} GPUs for a {name}, found {gpus}.")
    one = Topology.of("gpu", [Node(id="gpu")], [])
    ports = gpu_ports(one, gb_per_s)
    return compose(
        [Host(name=f"host{i}", topology=one, ports=ports) for i in range(gpus)],
        fabric,
        name=name,
        source=_SOURCE,
    )
