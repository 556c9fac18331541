"""Machines of a topology, as NCCL would read them from a topology file.

Where a file told the slots of GPUs and NICs, the PCIe tree is that of the file. Elsewhere switches and processors of the
topology make the tree; and where GPUs have NICs of their own without PCIe between them, each NIC shares a switch with its
GPU (with two GPUs, up to Ampere), as in the machines of that generation.

NVLinks are those of the topology. NCCL reckons with rates of its own for NVLink and PCIe (the class ``measured``); data
sheets' rates (``nominal``), which are recognised by being whole multiples of a nominal link, count as these, and all
others as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from coppice.errors import InputError
from coppice.selection.nccl.boxes import Box, boxes_of
from coppice.selection.nccl.communicator import BoxOfRanks
from coppice.selection.nccl.costs import constants
from coppice.selection.nccl.machine import (
    NVSWITCH,
    PROCESSOR,
    Gpu,
    Machine,
    Nic,
    Part,
    PcieSwitch,
    Port,
    Processor,
)
from coppice.topology.generation import GENERATIONS, capability_of, generation_of_capability, named_generation
from coppice.topology.model import NodeKind, Topology
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s
from coppice.topology.slots import Slot, SlotStep

_NOMINAL_PCIE = {Fraction(each) for each in (8, 16, 32, 64, 128)}
_MEASURED_PCIE = Fraction(3, 4)
_PCIE_GB_PER_S = {"volta": 12.0, "ampere": 24.0, "hopper": 48.0, "blackwell": 48.0}
_SOCKETS_GB_PER_S = {"volta": 10.0, "ampere": 16.0, "hopper": 22.0, "blackwell": 40.0}
_AMD_GB_PER_S = 16.0
_GPUS_OF_SWITCH = {"volta": 2, "ampere": 2, "hopper": 1, "blackwell": 1}
_OTHERWISE = "hopper"
_WITHOUT_NETWORK = Port(dev=0, gb_per_s=1.25, gdr=False)
"""NCCL finds some port of the host where it has no NIC: TCP at 10 Gb/s."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines of a topology."""

    boxes: tuple[BoxOfRanks, ...]  # Machines with their ranks, equal ones once in memory
    generation: str | None  # `volta`, `ampere`, `hopper` or `blackwell`; None where nothing tells
    told_by: str  # What the generation was concluded from, where it is not recorded; empty otherwise
    cpu: str | None  # Maker of the processors, `mixed` where GPUs differ, None where nothing tells
    described: bool  # The PCIe tree is that of the topology, not that of usual machines
    nics: int  # Least number of network ports of a box


@lru_cache(maxsize=16)
def machines_of(topology: Topology, generation: str | None = None, cpu: str | None = None) -> Machines:
    """Machines of a topology, as NCCL would read them.

    Args:
        generation: Generation of the GPUs, where it is given.
        cpu: Maker of the processors, where it is given.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = machines_of(preset("dgx-a100", boxes=2))
        >>> found.generation, len(found.boxes), found.nics, len(found.boxes[0].machine.processors)
        ('ampere', 2, 8, 2)
    """
    boxes = boxes_of(topology)
    kinds = list({id(box): box for box in boxes}.values())
    capability, told_by = _capability(topology, kinds, generation)
    reckoned = generation_of_capability(capability) if capability is not None else _OTHERWISE
    made: dict[int, BoxOfRanks] = {}
    for box in kinds:
        build = _MachineBuilder(box, capability or GENERATIONS[_OTHERWISE], reckoned, cpu, forced=generation is not None)
        made[id(box)] = BoxOfRanks(
            machine=build.machine(), gpus=tuple(str(place) for place in box.ranks)
        )
    makers = {box.maker(rank) for box in kinds for rank in box.ranks}
    return Machines(
        boxes=tuple(made[id(box)] for box in boxes),
        generation=None if capability is None else reckoned,
        told_by=told_by,
        cpu=cpu or (makers.pop() if len(makers) == 1 else "mixed"),
        described=all(build_is_described(box) for box in kinds),
        nics=min(_own_ports(each.machine) for each in made.values()),
    )


def build_is_described(box: Box) -> bool:
    """Whether the topology says what PCIe joins in a box."""
    return all(box.slot(rank) for rank in box.ranks) or any(
        box.is_cpu(place) or (box.kind(place) is NodeKind.SWITCH and place not in box.gpu_switches)
        for place in range(len(box.nodes))
    )


def _own_ports(machine: Machine) -> int:
    return sum(port is not _WITHOUT_NETWORK for port in machine.ports)


def _capability(topology: Topology, boxes: list[Box], generation: str | None) -> tuple[int | None, str]:
    """Compute capability of the GPUs, and what told it where it is not recorded."""
    recorded = capability_of(topology)
    if generation is not None:
        same = recorded is not None and generation_of_capability(recorded) == generation
        return recorded if same else GENERATIONS[generation], ""
    if recorded is not None:
        return recorded, ""
    rates = {
        sum((rate for (a, _), rate in box.gpu_links.items() if a == rank), Fraction(0))
        for box in boxes
        for rank in box.ranks
    }
    most = max(rates, default=Fraction(0))
    for name, capability in GENERATIONS.items():
        full = constants().most_nvlinks[name]
        if most in {full * nvlink_gb_per_s(capability, rates_class) for rates_class in RateClass}:
            return capability, f"the {float(most):g} GB/s of NVLink of a GPU"
    named = named_generation(topology)
    return (None, "") if named is None else (GENERATIONS[named], "the topology's name")


class _MachineBuilder:
    """Builds the machine of one box."""

    def __init__(self, box: Box, capability: int, generation: str, cpu: str | None, *, forced: bool) -> None:
        self.box, self.capability, self.generation, self.cpu = box, capability, generation, cpu
        self.forced = forced
        self.factor = _nvlink_factor(box.gpu_links, capability, generation)
        self.multicast = any(box.copies(place) for place in box.gpu_switches) and all(
            box.copies(place) for place in box.gpu_switches
        )

    def machine(self) -> Machine:
        box = self.box
        if all(box.slot(rank) for rank in box.ranks):
            processors = self.by_slots()
        elif any(
            box.kind(p) is NodeKind.SWITCH and p not in box.gpu_switches for p in range(len(box.nodes))
        ):
            processors = self.by_switches()
        else:
            processors = self.usual()
        if not any(part for part in Machine(processors=processors).ports):
            first = processors[0]
            nic = Nic(key="socket", gb_per_s=None, ports=(_WITHOUT_NETWORK,))
            processors = (
                Processor(
                    key=first.key, maker=first.maker, gb_per_s=first.gb_per_s, parts=(*first.parts, nic)
                ),
                *processors[1:],
            )
        return Machine(processors=processors, multicast=self.multicast)

    # Parts

    def gpu(self, place: int, dev: int, gb_per_s: float, *, step: SlotStep | None = None) -> Gpu:
        links: dict[str, float] = {}
        for (a, b), rate in self.box.gpu_links.items():
            if a == place:
                target = NVSWITCH if b in self.box.gpu_switches else str(b)
                links[target] = links.get(target, 0.0) + float(rate * self.factor)
        if step is not None and step.fact("cpu_nvlink"):
            links[PROCESSOR] = _number(step.fact("cpu_nvlink"))
        if step is not None and step.fact("own_nvlink"):  # virtual machines hide where NVLinks really end
            links[str(place)] = _number(step.fact("own_nvlink"))
        return Gpu(
            key=str(place),
            dev=dev,
            capability=self.capability_of(place),
            gb_per_s=gb_per_s,
            gdr=step is None or step.fact("gdr", "1") != "0",
            nvlinks=tuple(links.items()),
            c2c_gb_per_s=_number(step.fact("c2c", "0")) if step is not None else 0.0,
        )

    def capability_of(self, place: int) -> int:
        arch = self.box.topology.arch[self.box.nodes[place]] if self.box.topology.arch else None
        found = None if arch is None or self.forced else re.fullmatch(r"sm_?([0-9]{2,3})[a-z]?", arch)
        return self.capability if found is None else int(found[1])

    def maker(self) -> str | None:
        makers = [self.box.maker(rank) for rank in self.box.ranks if self.box.maker(rank)]
        return self.cpu or (makers[0] if makers else constants().usual_cpu[self.generation])

    def sockets(self) -> float:
        return _AMD_GB_PER_S if self.maker() == "amd" else _SOCKETS_GB_PER_S[self.generation]

    # From slots

    def by_slots(self) -> tuple[Processor, ...]:
        box = self.box
        root = _Tree()
        for place in range(len(box.nodes)):
            text = box.slot(place)
            if text is not None and box.kind(place) is not NodeKind.SWITCH:
                root.add(Slot.of(text).steps, place)
        return tuple(
            Processor(
                key=f"processor {step.place}",
                maker=self.cpu or step.fact("maker") or None,
                gb_per_s=float(step.gb_per_s),
                parts=tuple(self.part(inner, below) for inner, below in tree.ordered()),
            )
            for step, tree in root.ordered()
        )

    def part(self, step: SlotStep, tree: _Tree) -> Part:
        box = self.box
        if tree.leaf is not None and box.kind(tree.leaf) is NodeKind.GPU:
            return self.gpu(tree.leaf, int(_number(step.fact("dev", "0"))), float(step.gb_per_s), step=step)
        inside = tree.ordered()
        ports = [(each, below) for each, below in inside if self.is_port(below)]
        if ports:
            return Nic(
                key=f"nic {step.place}",
                gb_per_s=float(step.gb_per_s),
                ports=tuple(self.port(each, below) for each, below in ports),
            )
        if self.is_port(tree):  # a network without a PCIe device
            return Nic(key=f"nic {step.place}", gb_per_s=None, ports=(self.port(step, tree),))
        peers = step.fact("peers")
        return PcieSwitch(
            key=f"pcie {step.name}",
            gb_per_s=float(step.gb_per_s),
            parts=tuple(self.part(each, below) for each, below in inside),
            peers=tuple(f"pcie {each}" for each in peers.split("+")) if peers else (),
        )

    def is_port(self, tree: _Tree) -> bool:
        return tree.leaf is not None and self.box.kind(tree.leaf) is NodeKind.NIC

    def port(self, step: SlotStep, tree: _Tree) -> Port:
        assert tree.leaf is not None
        return Port(
            dev=int(_number(step.fact("dev", "0"))),
            gb_per_s=min(float(step.gb_per_s), self.cable(tree.leaf) or float(step.gb_per_s)),
            latency_us=self.latency(tree.leaf),
            port=int(_number(step.fact("port", "0"))),
            guid=step.fact("guid"),
            gdr=step.fact("gdr", "1") != "0",
            adds=step.fact("coll", "0") != "0",
        )

    def latency(self, place: int) -> float:
        """Latency that a NIC states, which readers put on its links inside the box."""
        topology, node = self.box.topology, self.box.nodes[place]
        inside = [topology.link_index.get((node, self.box.nodes[b])) for a, b in self.box.links if a == place]
        return max((float(topology.latency_us[e]) for e in inside if e is not None), default=0.0)

    def cable(self, place: int) -> float | None:
        """Rate of all cables of a node, or None without any."""
        rates = [rate for at, rate in self.box.cables if at == place]
        return float(sum(rates)) if rates else None

    # From switches and processors of the topology

    def by_switches(self) -> tuple[Processor, ...]:
        box = self.box
        inner = {
            place
            for place in range(len(box.nodes))
            if box.kind(place) is NodeKind.SWITCH and place not in box.gpu_switches
        }
        near: dict[int, dict[int, float]] = {place: {} for place in range(len(box.nodes))}
        for (a, b), rate in box.links.items():
            if (a, b) not in box.gpu_links and b not in box.gpu_switches and a not in box.gpu_switches:
                near[a][b] = float(self.pcie(a, b, rate))
        cpus = [place for place in sorted(inner) if box.is_cpu(place)]
        roots = cpus or _middles(inner, near)
        below: dict[int, list[int]] = {place: [] for place in near}
        seen = set(roots)
        ring = list(roots)
        while ring:
            beyond = []
            for place in ring:
                for b in sorted(near[place]):
                    if b not in seen and not (b in roots):
                        seen.add(b)
                        below[place].append(b)
                        if b in inner:
                            beyond.append(b)
            ring = beyond
        lost = [rank for rank in box.ranks if rank not in seen]
        devs = {place: i for i, place in enumerate(box.gpus)}
        nics = {place: i for i, place in enumerate(p for p in range(len(box.nodes)) if self.has_port(p))}

        def rate(a: int, b: int) -> float:
            return min(near[a].get(b, near[b].get(a, 0.0)), near[b].get(a, near[a].get(b, 0.0)))

        def made(place: int, above: int) -> list[Part]:
            parts: list[Part] = []
            if box.kind(place) is NodeKind.GPU:
                return [self.gpu(place, devs[place], rate(place, above))]
            if box.kind(place) is NodeKind.NIC:
                if place not in nics:
                    return []
                return [self.nic(place, nics[place], rate(place, above))]
            for each in below[place]:
                parts += made(each, place)
            if place in nics:  # a cable that is plugged into a switch is a NIC behind it
                parts.append(self.nic(place, nics[place], None))
            return [PcieSwitch(key=f"pcie {place}", gb_per_s=rate(place, above), parts=tuple(parts))]

        processors = []
        for i, root in enumerate(roots):
            parts = [part for each in below[root] for part in made(each, root)]
            if root in nics:
                parts.append(self.nic(root, nics[root], None))
            if root == roots[0]:
                parts += [self.gpu(rank, devs[rank], _PCIE_GB_PER_S[self.generation]) for rank in lost]
            others = [near[root][each] for each in roots if each in near[root]]
            processors.append(
                Processor(
                    key=f"processor {i}",
                    maker=self.maker(),
                    gb_per_s=max(others, default=self.sockets()),
                    parts=tuple(parts),
                )
            )
        return tuple(processors)

    def pcie(self, a: int, b: int, rate: Fraction) -> Fraction:
        """What NCCL reckons for a link of PCIe; links between processors have one rate in both classes."""
        sockets = self.box.is_cpu(a) and self.box.is_cpu(b)
        return rate * _MEASURED_PCIE if rate in _NOMINAL_PCIE and not sockets else rate

    def has_port(self, place: int) -> bool:
        return place not in self.box.gpus and self.cable(place) is not None or (
            self.box.kind(place) is NodeKind.NIC
        )

    def nic(self, place: int, dev: int, pcie: float | None) -> Nic:
        cable = self.cable(place)
        known = [each for each in (cable, pcie) if each is not None]
        rate = cable if cable is not None else known[0] if known else 1.25
        return Nic(
            key=f"nic {place}",
            gb_per_s=_PCIE_GB_PER_S[self.generation] if pcie is None else pcie,
            ports=(Port(dev=dev, gb_per_s=rate, latency_us=self.latency(place)),),
        )

    # Machines as usual

    def usual(self) -> tuple[Processor, ...]:
        box = self.box
        each = _GPUS_OF_SWITCH[self.generation]
        pcie = _PCIE_GB_PER_S[self.generation]
        groups = [list(box.gpus[i : i + each]) for i in range(0, len(box.gpus), each)]
        group_of = {gpu: g for g, group in enumerate(groups) for gpu in group}
        devs = {place: i for i, place in enumerate(box.gpus)}
        nics: list[list[Part]] = [[] for _ in groups]
        count = 0
        for place in range(len(box.nodes)):
            cable = self.cable(place)
            if cable is None:
                continue
            if place in group_of:
                group = group_of[place]
            elif box.kind(place) is NodeKind.NIC:
                owners = [group_of[b] for a, b in box.links if a == place and b in group_of]
                if not owners:
                    continue
                group = min(owners)
            else:
                continue
            port = Port(dev=count, gb_per_s=cable, latency_us=self.latency(place))
            nics[group].append(Nic(key=f"nic {place}", gb_per_s=pcie, ports=(port,)))
            count += 1
        switches = [
            PcieSwitch(
                key=f"pcie {g}",
                gb_per_s=pcie,
                parts=(*(self.gpu(gpu, devs[gpu], pcie) for gpu in group), *nics[g]),
            )
            for g, group in enumerate(groups)
        ]
        half = -(-len(switches) // 2)
        halves: Iterable[list[PcieSwitch]] = (switches[:half], switches[half:])
        return tuple(
            Processor(
                key=f"processor {i}", maker=self.maker(), gb_per_s=self.sockets(), parts=tuple(parts)
            )
            for i, parts in enumerate(halves)
            if parts
        )


class _Tree:
    """Parts below a step, by the step."""

    def __init__(self) -> None:
        self.below: dict[tuple[int, str], tuple[SlotStep, _Tree]] = {}
        self.leaf: int | None = None

    def add(self, steps: tuple[SlotStep, ...], leaf: int) -> None:
        if not steps:
            self.leaf = leaf
            return
        step = steps[0]
        _, tree = self.below.setdefault((step.place, step.name), (step, _Tree()))
        tree.add(steps[1:], leaf)

    def ordered(self) -> list[tuple[SlotStep, _Tree]]:
        return [self.below[key] for key in sorted(self.below)]


def _middles(inner: set[int], near: dict[int, dict[int, float]]) -> list[int]:
    """A switch of each tree of switches to stand for its processor: the one with most neighbours."""
    left, found = set(inner), []
    while left:
        start = min(left)
        group, ring = {start}, [start]
        while ring:
            ring = [b for place in ring for b in near[place] if b in left and b not in group]
            group.update(ring)
        found.append(max(sorted(group), key=lambda place: len(near[place])))
        left -= group
    return found


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"expected a number of 0 or more in a slot of the topology, found {text[:40]!r}: mend it.")
    return value


def _nvlink_factor(nvlinks: dict[tuple[int, int], Fraction], capability: int, generation: str) -> Fraction:
    """What NCCL reckons for a GB/s of these NVLinks: less where their rates are nominal."""
    nominal, measured = (
        nvlink_gb_per_s(capability, rates) for rates in (RateClass.NOMINAL, RateClass.MEASURED)
    )
    most = constants().most_nvlinks[generation]

    def whole(unit: Fraction) -> int:
        counts = [rate / unit for rate in nvlinks.values()]
        return sum(count.denominator == 1 and count <= most for count in counts)

    return measured / nominal if whole(nominal) and whole(nominal) >= whole(measured) else Fraction(1)
