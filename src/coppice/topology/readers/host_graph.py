"""The inside of a machine while a reader puts it together: GPUs, switches, PCIe bridges, CPUs, NICs.

Readers add what the text says; :meth:`HostGraph.topology` then drops bridges and CPUs that lead nowhere,
contracts bridges that merely pass one link on (the rate of a chain is its least), orders the nodes and builds
the topology. Neither step changes what any set of GPUs and NICs can send to any other.

With the option ``pcie=nics`` PCIe is nothing but the way between GPUs and NICs. Each NIC is used by the GPUs that are
nearest to it; where several NICs are equally near to several GPUs, they are dealt out among these, and a NIC whose
nearest GPUs all have nearer ones goes to one of them. Switches and CPUs on the ways stand twice, once on the way to
NICs and once on the way from them, and once for each set of GPUs that shares nothing with the others, so that a GPU
reaches another one only through a NIC that both use. What ways share stays shared: each direction of each PCIe link,
slot and connection between sockets is in the result at most once and at its own rate. So the whole machine carries
whatever the result carries, and no bound on the result is above the bound with PCIe kept.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.readers.reading import Groups, ReadOptions

Rates = dict[str, dict[str, Fraction]]
"""``rates[src][dst]``, GB/s per direction."""

_End = tuple[str, str, str]  # a switch or CPU, the NIC on whose way it stands, and whether there or back


@dataclass(frozen=True, slots=True)
class NicWays:
    """GPU-to-NIC paths that replace the PCIe tree."""

    places: tuple[str, ...]  # For each stand-in, the switch or CPU of the machine that it stands for
    # Ends and rates; an end is a GPU or NIC by name, or a stand-in by number
    links: tuple[tuple[str | int, str | int, Fraction], ...]


@dataclass(slots=True)
class _Way:
    """Shortest ways between a NIC and GPUs: links towards the GPUs, and the GPUs that each node leads to."""

    nic: str
    gpus: tuple[str, ...]
    hops: int
    back: list[tuple[str, str]] = field(default_factory=list)
    leads_to: dict[str, frozenset[str]] = field(default_factory=dict)


def nic_ways(
    rates: Rates, nics: Iterable[str], *, is_gpu: Callable[[str], bool], is_inner: Callable[[str], bool]
) -> NicWays:
    """Paths between NICs and the GPUs nearest to them.

    Args:
        is_gpu: Whether a node is a GPU.
        is_inner: Whether a node is a PCIe switch or a CPU.

    Examples:
        >>> ends = [("gpu0", "pcie0"), ("nic0", "pcie0"), ("nic1", "pcie0")]
        >>> rates = {v: {} for pair in ends for v in pair}
        >>> for a, b in ends:
        ...     rates[a][b] = rates[b][a] = Fraction(24)
        >>> ways = nic_ways(rates, ["nic0", "nic1"], is_gpu="gpu0".__eq__, is_inner="pcie0".__eq__)
        >>> ways.places, len(ways.links)
        (('pcie0',), 6)
    """
    found = [_nearest(rates, nic, is_gpu=is_gpu, is_inner=is_inner) for nic in nics]
    ways = [way for way in _dealt(found) if way.gpus]
    for way in ways:
        _trace(rates, way, is_inner=is_inner)
    return _joined(rates, ways, is_inner)


def _nearest(
    rates: Rates, nic: str, *, is_gpu: Callable[[str], bool], is_inner: Callable[[str], bool]
) -> _Way:
    """The GPUs at the fewest hops from a NIC over switches and CPUs."""
    seen, ring, hops = {nic}, [nic], 0
    while ring:
        hops += 1
        near = dict.fromkeys(
            b for v in ring for b in rates[v] if b not in seen and (is_gpu(b) or is_inner(b))
        )
        gpus = tuple(v for v in near if is_gpu(v))
        if gpus:
            return _Way(nic, gpus, hops)
        seen |= near.keys()
        ring = list(near)
    return _Way(nic, (), hops)


def _dealt(ways: list[_Way]) -> list[_Way]:
    """The same NICs, each with those of its nearest GPUs that use it, in the same order."""
    alike: dict[tuple[int, frozenset[str]], list[_Way]] = {}
    for way in ways:
        alike.setdefault((way.hops, frozenset(way.gpus)), []).append(way)
    chosen: dict[str, _Way] = {}
    served: set[str] = set()
    for _, members in sorted(alike.items(), key=lambda each: (each[0][0], len(each[0][1]))):
        gpus = members[0].gpus
        without = tuple(gpu for gpu in gpus if gpu not in served)
        few = len(members) < len(gpus)
        users = without if few and without else gpus
        for place, way in enumerate(members):
            first, last = (len(users) * each // len(members) for each in (place, place + 1))
            last = first + 1 if few and not without else max(last, first + 1)
            chosen[way.nic] = _Way(way.nic, users[first:last], way.hops)
        served.update(gpus)
    return [chosen[way.nic] for way in ways]


def _trace(rates: Rates, way: _Way, *, is_inner: Callable[[str], bool]) -> None:
    """Note all ways of so few hops between the NIC and its GPUs."""
    rings = [{way.nic}]
    seen = {way.nic}
    for _ in range(way.hops - 1):
        rings.append({b for v in rings[-1] for b in rates[v] if b not in seen and is_inner(b)})
        seen |= rings[-1]
    way.leads_to = {gpu: frozenset([gpu]) for gpu in way.gpus}
    farther = set(way.gpus)
    for ring in reversed(rings):
        for v in sorted(ring):
            beyond = sorted(farther & rates[v].keys())
            way.back += [(v, b) for b in beyond]
            if beyond:
                way.leads_to[v] = frozenset().union(*(way.leads_to[b] for b in beyond))
        farther = ring & way.leads_to.keys()


def _joined(rates: Rates, ways: list[_Way], is_inner: Callable[[str], bool]) -> NicWays:
    """One graph of all ways: links that several of them use are the same link, so their ends are the same stand-ins."""
    uses: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for way in ways:
        for v, b in way.back:
            uses.setdefault((v, b), []).append((way.nic, "back"))
            if v in rates[b]:
                uses.setdefault((b, v), []).append((way.nic, "there"))
    ends = [
        (v, way.nic, turn) for way in ways for v in way.leads_to if is_inner(v) for turn in ("there", "back")
    ]
    stand_ins = Groups(ends)
    for link, users in uses.items():
        for v in link:
            if is_inner(v):
                for user in users[1:]:
                    stand_ins.join((v, *users[0]), (v, *user))
    gpus: dict[Hashable, set[str]] = {}
    leads_to = {way.nic: way.leads_to for way in ways}
    for v, nic, turn in ends:
        gpus.setdefault(stand_ins.find((v, nic, turn)), set()).update(leads_to[nic][v])
    pairs = [[(v, nic, turn) for turn in ("there", "back")] for v, nic, turn in ends if turn == "there"]
    of_one_gpu = [pair for pair in pairs if all(len(gpus[stand_ins.find(end)]) == 1 for end in pair)]
    for there, back in of_one_gpu:
        stand_ins.join(there, back)
    numbers: dict[Hashable, int] = {}
    places: list[str] = []
    links: list[tuple[str | int, str | int, Fraction]] = []
    for link, users in uses.items():
        named: list[str | int] = []
        for v in link:
            if not is_inner(v):
                named.append(v)
                continue
            group = stand_ins.find((v, *users[0]))
            if group not in numbers:
                numbers[group] = len(places)
                places.append(v)
            named.append(numbers[group])
        links.append((named[0], named[1], rates[link[0]][link[1]]))
    return NicWays(tuple(places), tuple(links))


_MAX_GPUS = 4096
_MAX_CPUS = 256


class MachinePart(enum.IntEnum):
    """Kinds of nodes of a machine, in the order in which the topology lists them."""

    GPU = 0
    GPU_SWITCH = 1
    NIC = 2
    BRIDGE = 3
    CPU = 4

    @property
    def kind(self) -> NodeKind:
        """Kind of the node in a topology."""
        return {MachinePart.GPU: NodeKind.GPU, MachinePart.NIC: NodeKind.NIC}.get(self, NodeKind.SWITCH)


@dataclass(slots=True)
class _DraftNode:
    part: MachinePart
    host: str
    rank: int | None = None
    in_network: bool = False
    arch: str | None = None
    cpu: str | None = None
    slot: str | None = None


@dataclass(slots=True)
class HostGraph:
    """Builder of a machine's nodes and directed rates."""

    drafts: dict[str, _DraftNode] = field(default_factory=dict)
    out: dict[str, dict[str, Fraction]] = field(default_factory=dict)
    latency_us: dict[str, float] = field(default_factory=dict)
    counts: dict[MachinePart, int] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        name: str,
        part: MachinePart,
        *,
        host: str,
        rank: int | None = None,  # Rank of a GPU; None for a relay or a node of another kind
        in_network: bool = False,  # It copies and adds in hardware
        arch: str | None = None,  # Architecture of a GPU, where it is known
        cpu: str | None = None,  # Maker of the processors beside a GPU, where it is known
        slot: str | None = None,  # Place in the PCIe tree, where it is known
    ) -> str:
        """Add a node and return its id: ``name``, with a number where that is taken."""
        self.counts[part] = self.counts.get(part, 0) + 1
        for limited, limit in ((MachinePart.GPU, _MAX_GPUS), (MachinePart.CPU, _MAX_CPUS)):
            if part == limited and self.counts[part] > limit:
                raise InputError(
                    f"a machine may have at most {limit} {part.name}s, found more: is this one machine?"
                )
        unique = name
        while unique in self.drafts:
            self.repeats[name] = self.repeats.get(name, 1) + 1
            unique = f"{name}#{self.repeats[name]}"
        self.drafts[unique] = _DraftNode(
            part=part, host=host, rank=rank, in_network=in_network, arch=arch, cpu=cpu, slot=slot
        )
        self.out[unique] = {}
        return unique

    def are_of(self, gpus: Iterable[str], arch: str) -> None:
        """Set the architecture of the GPUs."""
        for gpu in gpus:
            self.drafts[gpu].arch = arch

    def connect(self, a: str, b: str, gb_per_s: Fraction, *, duplex: bool = True) -> None:
        """Add a link of this rate from ``a`` to ``b``, and back if ``duplex``; parallel links add up."""
        for src, dst in ((a, b), (b, a)) if duplex else ((a, b),):
            self.out[src][dst] = self.out[src].get(dst, Fraction(0)) + gb_per_s

    def connect_cpus(self, rates: dict[str, Fraction]) -> None:
        """Link every two CPUs of one host; ``rates[cpu]`` is what the CPU sends to each of the others."""
        for a, rate in rates.items():
            for b in rates:
                if a != b and self.drafts[a].host == self.drafts[b].host:
                    self.connect(a, b, rate, duplex=False)

    def gpu_degree(self, gpu: str) -> Fraction:
        """Total rate that ``gpu`` sends over NVLink or xGMI, GB/s."""
        direct = (MachinePart.GPU, MachinePart.GPU_SWITCH)
        return sum((rate for b, rate in self.out[gpu].items() if self.drafts[b].part in direct), Fraction(0))

    def topology(self, name: str, *, options: ReadOptions, source: str, where: str) -> Topology:
        """The finished topology.

        Args:
            options: For rounding, and to drop PCIe.
        """
        if options.pcie != "keep":
            self._check_joined(options.pcie, where)
        if options.pcie == "nics":
            self._simplify()
            self._keep_nic_ways()
        elif options.pcie == "drop":
            self._remove([v for v, draft in self.drafts.items() if draft.part > MachinePart.GPU_SWITCH])
        self._simplify()
        order = sorted(self.drafts, key=self._order)
        if not any(self.drafts[v].part is MachinePart.GPU and self.drafts[v].rank is not None for v in order):
            raise InputError(f"{where} describes no GPU that takes part: give a dump of a running job.")
        nodes = [
            Node(
                id=v,
                kind=self.drafts[v].part.kind,
                host=self.drafts[v].host,
                rank=self.drafts[v].rank,
                multicast=self.drafts[v].in_network,
                aggregate=self.drafts[v].in_network,
                arch=self.drafts[v].arch,
                cpu=self.drafts[v].cpu,
                slot=self.drafts[v].slot,
            )
            for v in order
        ]
        links = [
            Link(
                src=a,
                dst=b,
                gb_per_s=options.rounded(rate, where=f"{where} ({a} -> {b})"),
                latency_us=max(self.latency_us.get(a, 0.0), self.latency_us.get(b, 0.0)),
                duplex=False,
            )
            for a in order
            for b, rate in self.out[a].items()
        ]
        return Topology.of(name, nodes, links, source=source)

    def _check_joined(self, pcie: str, where: str) -> None:
        """Refuse to leave out PCIe where nothing else joins a GPU to the others."""
        gpus = [v for v, draft in self.drafts.items() if draft.part is MachinePart.GPU]
        alone = [v for v in gpus if not self.gpu_degree(v)]
        if alone and (len(gpus) > 1 or pcie == "drop"):
            raise InputError(
                f"pcie={pcie} leaves {alone[0]} of {where} without any link to a GPU: keep PCIe "
                "(`pcie=keep`), or leave that GPU out."
            )

    def _keep_nic_ways(self) -> None:
        """Put the ways between NICs and GPUs in the place of PCIe and CPUs."""
        part = {v: draft.part for v, draft in self.drafts.items()}
        ways = nic_ways(
            self.out,
            [v for v in part if part[v] is MachinePart.NIC],
            is_gpu=lambda v: part[v] is MachinePart.GPU,
            is_inner=lambda v: part[v] >= MachinePart.BRIDGE,
        )
        hosts = {v: draft.host for v, draft in self.drafts.items()}
        self._remove([v for v in part if part[v] >= MachinePart.BRIDGE])
        places = [self.add(v, MachinePart.BRIDGE, host=hosts[v]) for v in ways.places]
        for src, dst, rate in ways.links:
            a, b = (end if isinstance(end, str) else places[end] for end in (src, dst))
            self.connect(a, b, rate, duplex=False)

    def _order(self, v: str) -> tuple[int, int]:
        draft = self.drafts[v]
        return (draft.part, -1 if draft.rank is None else draft.rank)

    def _simplify(self) -> None:
        inner = {v for v, draft in self.drafts.items() if draft.part >= MachinePart.BRIDGE}
        neighbours: dict[str, set[str]] = {v: set() for v in self.drafts}
        for a, row in self.out.items():
            for b in row:
                neighbours[a].add(b)
                neighbours[b].add(a)
        useful = self._leading_somewhere(inner, neighbours)
        self._remove(inner - useful)
        for v in [v for v in self.drafts if v in useful and self.drafts[v].part is MachinePart.BRIDGE]:
            near = {b for b in neighbours[v] if b in self.drafts}
            if len(near) == 2:
                a, b = sorted(near)
                for src, dst in ((a, b), (b, a)):
                    if v in self.out[src] and dst in self.out[v]:
                        self.connect(src, dst, min(self.out[src][v], self.out[v][dst]), duplex=False)
                self._remove([v], neighbours=near)
                neighbours[a].add(b)
                neighbours[b].add(a)

    def _leading_somewhere(self, inner: set[str], neighbours: dict[str, set[str]]) -> set[str]:
        """Bridges and CPUs left when dead ends, and CPUs without devices, are taken away repeatedly."""
        left = set(inner)
        degree = {v: len(neighbours[v]) for v in inner}
        cpus = {v for v in inner if self.drafts[v].part is MachinePart.CPU}
        devices = {v: len(neighbours[v] - cpus) for v in cpus}
        queue = [v for v in inner if degree[v] <= 1 or devices.get(v) == 0]
        while queue:
            v = queue.pop()
            if v not in left:
                continue
            left.remove(v)
            for near in neighbours[v] & left:
                degree[near] -= 1
                if near in cpus and v not in cpus:
                    devices[near] -= 1
                if degree[near] <= 1 or devices.get(near) == 0:
                    queue.append(near)
        return left

    def _remove(self, nodes: Iterable[str], *, neighbours: Iterable[str] | None = None) -> None:
        gone = set(nodes)
        for v in gone:
            del self.drafts[v], self.out[v]
        for v in self.out if neighbours is None else neighbours:
            row = self.out[v]
            for b in gone & row.keys():
                del row[b]
