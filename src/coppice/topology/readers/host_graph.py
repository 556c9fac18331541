"""The inside of a machine while a reader puts it together: GPUs, switches, PCIe bridges, CPUs, NICs.

Readers add what the text says; :meth:`HostGraph.topology` then drops bridges and CPUs that lead nowhere,
contracts bridges that merely pass one link on (the rate of a chain is its least), orders the nodes and builds
the topology. Neither step changes what any set of GPUs and NICs can send to any other.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.readers.nic_ways import nic_ways
from coppice.topology.readers.reading import ReadOptions

_MAX_GPUS = 4096
_MAX_CPUS = 256


class MachinePart(enum.IntEnum):
    """What a node of the machine is, in the order in which the topology lists them."""

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


@dataclass(slots=True)
class HostGraph:
    """Nodes and directed rates, under construction."""

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
            part=part, host=host, rank=rank, in_network=in_network, arch=arch, cpu=cpu
        )
        self.out[unique] = {}
        return unique

    def are_of(self, gpus: Iterable[str], arch: str) -> None:
        """Say the architecture of GPUs."""
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
        """What ``gpu`` sends over NVLink or xGMI, GB/s."""
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
