"""Clusters of single-GPU hosts: one switch with unequal ports, fat-tree, dragonfly, and the PCIe box."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.composition.compose import Host, compose, gpu_ports
from coppice.topology.composition.fabric import DragonflyFabric, Fabric, FatTreeFabric
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets.direct import MAX_GPUS
from coppice.topology.presets.registry import Preset, listed_in, number_of, rate_of, rates_of

_SOURCE = "by definition of the network; rates as given"
PRESETS: list[Preset] = []


@listed_in(
    PRESETS,
    number_of("gpus", 8, "number of GPUs"),
    rates_of("gb_per_s", "rate of every port, or of each: 3,10,10"),
    description="GPUs on one switch, with equal or unequal ports",
    source=_SOURCE,
)
def star(gpus: int = 8, *, gb_per_s: int | Fraction | Sequence[int | Fraction] = 1) -> Topology:
    """GPUs on one non-blocking switch.

    Args:
        gpus: Number of GPUs; with several rates, their number counts.
        gb_per_s: Rate of every port, or of each in rank order.

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


@listed_in(
    PRESETS,
    number_of("leaves", 4, "number of leaf switches"),
    number_of("gpus_per_leaf", 4, "GPUs on each leaf"),
    number_of("spines", 2, "number of spines (of each pod)"),
    rate_of("oversubscription", 1, "rate down over rate up at a leaf"),
    rate_of("gb_per_s", 1, "rate of a GPU"),
    number_of("leaves_per_pod", "none", "for three levels"),
    number_of("cores", "as spines", "core switches"),
    rate_of("core_oversubscription", 1, "rate down over rate up at a spine"),
    description="leaf and spine switches, or three levels, one GPU per port",
    source=_SOURCE,
)
def fat_tree(
    leaves: int = 4,
    gpus_per_leaf: int = 4,
    spines: int = 2,
    *,
    oversubscription: int | Fraction = 1,
    gb_per_s: int | Fraction = 1,
    leaves_per_pod: int | None = None,
    cores: int | None = None,
    core_oversubscription: int | Fraction = 1,
) -> Topology:
    """A fat-tree of two levels, or of three with ``leaves_per_pod``, with one GPU per port.

    Args:
        leaves: Number of leaf switches.
        gpus_per_leaf: GPUs on each.
        spines: Number of spines (of each pod).
        oversubscription: Rate down over rate up at a leaf; 1 is full bisection.
        gb_per_s: Rate of a GPU.
        leaves_per_pod: Leaves of a pod, for three levels.
        cores: Number of core switches, a multiple of ``spines``.
        core_oversubscription: Rate down over rate up at a spine.

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
    number_of("groups", 3, "number of groups"),
    number_of("routers_per_group", 2, "routers of a group"),
    number_of("gpus_per_router", 2, "GPUs on each router"),
    rate_of("gb_per_s", 2, "rate of a GPU"),
    rate_of("local_gb_per_s", 2, "rate between routers of a group"),
    rate_of("global_gb_per_s", 1, "rate between two groups"),
    description="groups of completely linked routers, one bundle of links between every two groups",
    source=_SOURCE,
)
def dragonfly(
    groups: int = 3,
    routers_per_group: int = 2,
    gpus_per_router: int = 2,
    *,
    gb_per_s: int | Fraction = 2,
    local_gb_per_s: int | Fraction = 2,
    global_gb_per_s: int | Fraction = 1,
) -> Topology:
    """A dragonfly with one GPU per port.

    Args:
        groups: Number of groups.
        routers_per_group: Routers of a group, all linked with each other.
        gpus_per_router: GPUs on each.
        gb_per_s: Rate of a GPU.
        local_gb_per_s: Rate between two routers of a group.
        global_gb_per_s: Rate between two groups.

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
    number_of("sockets", 2, "number of CPUs"),
    number_of("gpus_per_socket", 2, "GPUs on the PCIe switch of each"),
    rate_of("pcie_gb_per_s", 16, "rate of a PCIe link"),
    rate_of("socket_gb_per_s", 10, "rate between two CPUs"),
    description="GPUs under PCIe switches, one per CPU; CPUs linked with each other",
    source="typical server of PCIe 3 x16 with two sockets; rates as given",
)
def pcie_box(
    sockets: int = 2,
    gpus_per_socket: int = 2,
    *,
    pcie_gb_per_s: int | Fraction = 16,
    socket_gb_per_s: int | Fraction = 10,
) -> Topology:
    """GPUs without NVLink: per socket, a PCIe switch with GPUs under it; sockets are linked with each other.

    Args:
        sockets: Number of CPUs.
        gpus_per_socket: GPUs on the PCIe switch of each.
        pcie_gb_per_s: Rate of each PCIe link.
        socket_gb_per_s: Rate between two CPUs.

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
