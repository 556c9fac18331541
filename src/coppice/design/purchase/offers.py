"""Candidate networks for a workload: common fabrics, and Pareto-optimal direct-connect graphs.

    clos           leaves and spines, three levels where two do not suffice; a host's ports go to one leaf
    rail           rail-optimised: port i of all hosts meets in leaves of its own, which spines join
    rail-only      the same without spines: traffic between rails goes through hosts
    dragonfly      groups of completely linked routers, all pairs of groups linked; balanced
    torus          direct links, best sizes for the number of hosts and ports
    direct         the front of the topology finder: the best graph for small and the best for large messages

Each switched one is sized for every radix of the price list and every oversubscription; the cheapest radix counts.

Each offer has a bill of material: ports, switches and cables, and what they cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from math import ceil

from coppice.design.cabling import cabling_of
from coppice.design.graph import Graph
from coppice.design.purchase.request import Prices, TrainingWorkload
from coppice.design.recipes.recipe import Recipe
from coppice.design.search.finder import Progressing, find
from coppice.design.search.workload import best_torus
from coppice.topology.composition.compose import Host, compose, gpu_ports, repeated
from coppice.topology.composition.fabric import (
    DragonflyFabric,
    Fabric,
    FatTreeFabric,
    Hosts,
    RailFabric,
    SwitchFabric,
    Wiring,
)
from coppice.topology.model import Link, Node, NodeKind, Topology

MIDDLE = -1
"""Stands for the rack in the middle of the row, where switches above the leaves are."""


@dataclass(kw_only=True)
class Parts:
    """Parts of a network."""

    nic_ports: int  # Ports of ranks
    racks: int  # Racks in the row
    switches: Counter[int] = field(default_factory=Counter)  # Number of switches by radix
    # Number of full-duplex cables by the racks of their ends
    cables: Counter[tuple[int, int]] = field(default_factory=Counter)
    # Number of one-way fibres by the racks of their ends
    fibres: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def num_switches(self) -> int:
        """Number of switches."""
        return sum(self.switches.values())

    @property
    def num_cables(self) -> int:
        """Number of cables and fibres."""
        return sum(self.cables.values()) + sum(self.fibres.values())

    def cost(self, prices: Prices) -> float:
        """Total cost.

        Examples:
            >>> from coppice.design.purchase.request import CableClass, SwitchPrice
            >>> prices = Prices(nic_port=10, switches=[SwitchPrice(radix=4, price=100)],
            ...                 cables=[CableClass(max_m=3, price=1), CableClass(max_m=30, price=5)])
            >>> cables = Counter({(0, 0): 3, (0, 8): 1})
            >>> Parts(nic_ports=4, racks=9, switches=Counter({4: 1}), cables=cables).cost(prices)
            148.0
        """
        price_of = {switch.radix: switch.price for switch in prices.switches}
        total = self.nic_ports * prices.nic_port
        total += sum(count * price_of[radix] for radix, count in self.switches.items())
        total += sum(
            count * prices.cable_price(self._length(ends, prices)) for ends, count in self.cables.items()
        )
        half = sum(
            count * prices.cable_price(self._length(ends, prices)) for ends, count in self.fibres.items()
        )
        return total + half / 2

    def _length(self, ends: tuple[int, int], prices: Prices) -> float:
        middle = self.racks // 2
        a, b = (middle if rack == MIDDLE else rack for rack in ends)
        return prices.slack_m + abs(a - b) * prices.rack_pitch_m


@dataclass(frozen=True, eq=False, kw_only=True)
class Offer:
    """A candidate network with its parts and its graph."""

    name: str  # What it is
    topology: Topology  # All ranks and links
    parts: Parts  # What it consists of
    relays: bool  # Ranks pass on what is not theirs
    graph: Graph | None = None  # Between hosts, for direct ones


def offers(
    workload: TrainingWorkload,
    prices: Prices,
    *,
    oversubscriptions: Sequence[Fraction] = (Fraction(1),),  # Of leaves, 1 or more
    on_progress: Progressing | None = None,  # Told how far the topology finder is
) -> Iterator[Offer]:
    """All networks that can be built from the parts of a price list."""
    sizers: list[tuple[str, Sizer]] = []
    for ratio in oversubscriptions:
        shown = f" {float(ratio):g}:1" if ratio != 1 else ""
        sizers += [(f"clos{shown}", _at(_clos, ratio)), (f"rail{shown}", _at(_rail, ratio))]
    seen: list[Fabric] = []
    for name, sizer in (*sizers, ("rail-only", _rail_only), ("dragonfly", _dragonfly)):
        found = _cheapest(workload, prices, sizer)
        if found is not None and found[0] not in seen:  # one switch is not oversubscribed
            seen.append(found[0])
            yield _switched(name, workload, *found)
    hosts, ports = workload.hosts, workload.host_ports
    torus = best_torus(hosts, ports)
    if torus is not None:
        yield _direct(torus, ports // torus.size.degree, workload, prices)
    # Where hosts have more ports than there are others, cables run side by side.
    degree = max(d for d in range(1, ports + 1) if ports % d == 0 and (d < hosts or d == 1))
    named: dict[str, Recipe] = {}
    for both_ways in (False, True):
        front = find([(hosts, degree)], both_ways=both_ways, jobs=1, on_progress=on_progress)[hosts, degree]
        for entry in (front[0], front[-1]) if front else ():
            named[str(entry.recipe)] = entry.recipe
    for recipe in named.values():
        yield _direct(recipe, ports // degree, workload, prices)


class _Dragonfly(
    DragonflyFabric, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="spread-dragonfly"
):
    """A dragonfly whose bundles between groups are dealt out over all routers, cable by cable."""

    cables_between: int = 1  # Cables between two groups, each of the rate `global_gb_per_s`

    def wire(self, hosts: Hosts) -> Wiring:
        """Routers and cables for the ports of ``hosts``."""
        size, groups = (
            self.routers_per_group,
            -(-len(hosts) // (self.hosts_per_router * self.routers_per_group)),
        )
        names = [[f"group{g}/router{r}" for r in range(size)] for g in range(groups)]
        links = []
        for position, ports in enumerate(hosts):
            group, router = divmod(position // self.hosts_per_router, size)
            links += [self.plug(port, names[group][router]) for port in ports]
        for group_names in names:
            links += [self.cable(a, b, self.local_gb_per_s) for a, b in combinations(group_names, 2)]
        used = [0] * groups
        for low, high in combinations(range(groups), 2):
            for _ in range(self.cables_between):
                ends = [names[g][used[g] % size] for g in (low, high)]
                links.append(self.cable(ends[0], ends[1], self.global_gb_per_s))
                used[low] += 1
                used[high] += 1
        return Wiring([self.switch(name) for group_names in names for name in group_names], links)


Sized = tuple[Fabric, Parts]
Sizer = Callable[[TrainingWorkload, int, Prices], Sized | None]


def _at(make: Callable[[TrainingWorkload, int, Prices, Fraction], Sized | None], ratio: Fraction) -> Sizer:
    return lambda workload, radix, prices: make(workload, radix, prices, ratio)


def _cheapest(workload: TrainingWorkload, prices: Prices, make: Sizer) -> Sized | None:
    """The network of the radix with the least cost; None where none suffices."""
    made = [make(workload, switch.radix, prices) for switch in prices.switches]
    return min((each for each in made if each), key=lambda each: each[1].cost(prices), default=None)


def _clos(workload: TrainingWorkload, radix: int, prices: Prices, ratio: Fraction) -> Sized | None:
    """One switch, else leaves and spines, else pods of them below cores."""
    ports, hosts = workload.host_ports, workload.hosts
    parts = _parts(workload, prices)
    if hosts * ports <= radix:
        parts.switches[radix] += 1
        for host in range(hosts):
            parts.cables[_rack(host, prices), MIDDLE] += ports
        return SwitchFabric(latency_us=workload.latency_us), parts
    per_leaf = int(radix * ratio / (ratio + 1)) // ports
    if per_leaf < 1:
        return None
    up = ceil(per_leaf * ports / ratio)
    leaves = ceil(hosts / per_leaf)
    for host in range(hosts):
        parts.cables[_rack(host, prices), _rack(host // per_leaf * per_leaf, prices)] += ports
    parts.switches[radix] += leaves
    if leaves <= radix:
        spines = ceil(leaves * up / radix)
        while up % spines and spines < up:
            spines += 1
        for leaf in range(leaves):
            parts.cables[_rack(leaf * per_leaf, prices), MIDDLE] += up
        parts.switches[radix] += spines
        fabric = FatTreeFabric(
            hosts_per_leaf=per_leaf,
            spines=spines,
            oversubscription=Fraction(per_leaf * ports, up),
            latency_us=workload.latency_us,
        )
        return fabric, parts
    # A spine has half of its ports down, one for each leaf of its pod, and half up.
    pod = radix // 2
    pods = ceil(leaves / pod)
    if pods > radix:
        return None
    cores = ceil(up * pod * pods / radix / up) * up
    for leaf in range(leaves):
        parts.cables[_rack(leaf * per_leaf, prices), MIDDLE] += up
    parts.switches[radix] += pods * up + cores
    parts.cables[MIDDLE, MIDDLE] += leaves * up
    fabric = FatTreeFabric(
        hosts_per_leaf=per_leaf,
        spines=up,
        oversubscription=Fraction(per_leaf * ports, up),
        leaves_per_pod=pod,
        cores=cores,
        latency_us=workload.latency_us,
    )
    return fabric, parts


def _rail(workload: TrainingWorkload, radix: int, prices: Prices, ratio: Fraction) -> Sized | None:
    rails, hosts, ports = workload.ranks_per_host, workload.hosts, workload.ports
    if rails < 2:
        return None
    parts = _parts(workload, prices)
    per_leaf = min(hosts, int(radix * ratio / (ratio + 1)) // ports)
    if per_leaf < 1:
        return None
    up = ceil(per_leaf * ports / ratio)
    leaves = rails * ceil(hosts / per_leaf)
    if leaves > radix:
        return None
    spines = ceil(leaves * up / radix)
    while up % spines and spines < up:
        spines += 1
    _wire_rails(parts, workload, prices, per_leaf)
    parts.cables[MIDDLE, MIDDLE] += leaves * up
    parts.switches[radix] += leaves + spines
    fabric = RailFabric(
        rails=rails,
        hosts_per_leaf=per_leaf,
        spines=spines,
        oversubscription=Fraction(per_leaf * ports, up),
        latency_us=workload.latency_us,
    )
    return fabric, parts


def _rail_only(workload: TrainingWorkload, radix: int, prices: Prices) -> Sized | None:
    rails = workload.ranks_per_host
    if rails < 2 or workload.hosts * workload.ports > radix:
        return None
    parts = _parts(workload, prices)
    _wire_rails(parts, workload, prices, workload.hosts)
    parts.switches[radix] += rails
    return RailFabric(rails=rails, latency_us=workload.latency_us), parts


def _wire_rails(parts: Parts, workload: TrainingWorkload, prices: Prices, per_leaf: int) -> None:
    """Cables to the leaves of the rails, which stand in the middle of their hosts."""
    for host in range(workload.hosts):
        first = host // per_leaf * per_leaf
        middle = min(workload.hosts - 1, first + per_leaf // 2)
        parts.cables[_rack(host, prices), _rack(middle, prices)] += workload.host_ports


def _dragonfly(workload: TrainingWorkload, radix: int, prices: Prices) -> Sized | None:
    """Routers with p ports down, 2 p - 1 to their group and p to other groups."""
    down = (radix + 1) // 4
    per_router = down // workload.host_ports
    routers = 2 * down
    if per_router < 1:
        return None
    needed = ceil(workload.hosts / per_router)
    groups = ceil(needed / routers)
    if groups < 2 or groups > routers * down + 1:
        return None
    parts = _parts(workload, prices)
    for host in range(workload.hosts):
        parts.cables[_rack(host, prices), _rack(host // per_router * per_router, prices)] += (
            workload.host_ports
        )
    parts.switches[radix] += groups * routers
    for group in range(groups):
        rack = _rack(min(workload.hosts - 1, group * routers * per_router), prices)
        parts.cables[rack, rack] += routers * (routers - 1) // 2
    between = max(1, routers * down // (groups - 1))
    for high in range(groups):
        for low in range(high):
            ends = [_rack(min(workload.hosts - 1, g * routers * per_router), prices) for g in (low, high)]
            parts.cables[ends[0], ends[1]] += between
    fabric = _Dragonfly(
        routers_per_group=routers,
        hosts_per_router=per_router,
        local_gb_per_s=workload.gb_per_s,
        global_gb_per_s=workload.gb_per_s,
        cables_between=between,
        latency_us=workload.latency_us,
    )
    return fabric, parts


def _switched(name: str, workload: TrainingWorkload, fabric: Fabric, parts: Parts) -> Offer:
    """The topology of a sized fabric."""
    box = _box(workload)
    host = Host(name="host", topology=box, ports=gpu_ports(box, workload.gb_per_s * workload.ports))
    topology = compose(repeated(host, workload.hosts), fabric, name=name)
    apart = isinstance(fabric, RailFabric) and not fabric.spines
    radix = "+".join(str(radix) for radix in sorted(parts.switches))
    return Offer(name=f"{name}, radix {radix}", topology=topology, parts=parts, relays=apart)


def _box(workload: TrainingWorkload) -> Topology:
    """The inside of a host."""
    nodes = [Node(id=f"gpu{i}") for i in range(workload.ranks_per_host)]
    if workload.ranks_per_host == 1:
        return Topology.of("host", nodes, [])
    links = [
        Link(src=node.id, dst="switch", gb_per_s=workload.host_gb_per_s, latency_us=workload.latency_us)
        for node in nodes
    ]
    return Topology.of("host", [*nodes, Node(id="switch", kind=NodeKind.SWITCH)], links)


def _direct(recipe: Recipe, times: int, workload: TrainingWorkload, prices: Prices) -> Offer:
    """A graph between hosts, every link so many times: port p of a host is a port of its rank p div ports."""
    graph = recipe.build()
    name = str(recipe) if times == 1 else f"{recipe}, {times} links each"
    if times > 1:
        graph = replace(graph, name=name, degree=graph.degree * times, count=graph.count * times)
    cabling = cabling_of(graph)
    parts = _parts(workload, prices)
    rows = parts.cables if graph.bidirectional else parts.fibres
    ends = Counter((_rack(u, prices), _rack(v, prices)) for u, v in cabling.ends[:, [0, 2]].tolist())
    rows.update(ends)
    nodes: list[Node] = []
    links: list[Link] = []
    box = _box(workload)
    for host in range(workload.hosts):
        nodes += [
            Node(id=f"host{host}/{node.id}", kind=node.kind, host=f"host{host}") for node in box.nodes()
        ]
        links += [
            Link(
                src=f"host{host}/{link.src}",
                dst=f"host{host}/{link.dst}",
                gb_per_s=link.gb_per_s,
                latency_us=link.latency_us,
                duplex=False,
            )
            for link in box.links()
        ]
    for u, p, v, q in cabling.ends.tolist():
        links.append(
            Link(
                src=f"host{u}/gpu{p // workload.ports}",
                dst=f"host{v}/gpu{q // workload.ports}",
                gb_per_s=workload.gb_per_s,
                latency_us=workload.latency_us,
                duplex=graph.bidirectional,
            )
        )
    topology = Topology.of(name, nodes, links)
    return Offer(name=name, topology=topology, parts=parts, relays=True, graph=graph)


def _parts(workload: TrainingWorkload, prices: Prices) -> Parts:
    racks = ceil(workload.hosts / prices.hosts_per_rack)
    return Parts(nic_ports=workload.ranks * workload.ports, racks=racks)


def _rack(host: int, prices: Prices) -> int:
    return host // prices.hosts_per_rack
