"""Machines of boxes: PCIe trees from slots, from switches of the topology, or as usual machines have them.

NVLinks are those of the topology. NCCL reckons with rates of its own for NVLink and PCIe (the class ``measured``); data
sheets' rates (``nominal``), which are recognised by being whole multiples of a nominal link, count as these, and all
others as they stand.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from coppice.errors import InputError
from coppice.selection.nccl.boxes import Box
from coppice.selection.nccl.machine import (
    NVSWITCH,
    PROCESSOR,
    HostMachine,
    MachineGpu,
    Nic,
    Part,
    PcieSwitch,
    PluginPort,
    Processor,
)
from coppice.selection.nccl.releases import constants
from coppice.topology.model import NodeKind
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s
from coppice.topology.slots import Slot, SlotStep

_NOMINAL_PCIE = {Fraction(each) for each in (8, 16, 32, 64, 128)}
_MEASURED_PCIE = Fraction(3, 4)
_PCIE_GB_PER_S = {"volta": 12.0, "ampere": 24.0, "hopper": 48.0, "blackwell": 48.0}
_SOCKETS_GB_PER_S = {"volta": 10.0, "ampere": 16.0, "hopper": 22.0, "blackwell": 40.0}
_AMD_GB_PER_S = 16.0
_GPUS_OF_SWITCH = {"volta": 2, "ampere": 2, "hopper": 1, "blackwell": 1}
WITHOUT_NETWORK = PluginPort(dev=0, gb_per_s=1.25, gdr=False)
"""NCCL finds some port of the host where it has no NIC: TCP at 10 Gb/s."""


def machine_of_box(
    box: Box, *, capability: int, generation: str, cpu: str | None = None, forced: bool = False
) -> HostMachine:
    """The machine of a box.

    Args:
        capability: Compute capability of GPUs that do not say theirs, times ten.
        generation: Generation of the GPUs, for what the box does not say.
        cpu: Maker of the processors, where it is given.
        forced: What GPUs say of themselves does not count.
    """
    return _MachineBuilder(box, capability, generation, cpu, forced=forced).machine()


class _MachineBuilder:
    """Builds the machine of one box."""

    def __init__(self, box: Box, capability: int, generation: str, cpu: str | None, *, forced: bool) -> None:
        self.box, self.capability, self.generation, self.cpu = box, capability, generation, cpu
        self.forced = forced
        self.factor = _nvlink_factor(box.gpu_links, capability, generation)
        self.multicast = any(box.copies(place) for place in box.gpu_switches) and all(
            box.copies(place) for place in box.gpu_switches
        )

    def machine(self) -> HostMachine:
        if all(self.box.slot(rank) for rank in self.box.ranks):
            processors = self.by_slots()
        elif self.box.bridges:
            processors = _SwitchTrees(self).processors()
        else:
            processors = self.usual()
        if not HostMachine(processors=processors).ports:
            nic = Nic(key="socket", gb_per_s=None, ports=(WITHOUT_NETWORK,))
            first = replace(processors[0], parts=(*processors[0].parts, nic))
            processors = (first, *processors[1:])
        return HostMachine(processors=processors, multicast=self.multicast)

    # Parts

    def gpu(self, place: int, dev: int, gb_per_s: float, *, step: SlotStep | None = None) -> MachineGpu:
        links: dict[str, float] = {}
        for (a, b), rate in self.box.gpu_links.items():
            if a == place:
                target = NVSWITCH if b in self.box.gpu_switches else str(b)
                links[target] = links.get(target, 0.0) + float(rate * self.factor)
        if step is not None and step.fact("cpu_nvlink"):
            links[PROCESSOR] = _number(step.fact("cpu_nvlink"))
        if step is not None and step.fact("own_nvlink"):  # virtual machines hide where NVLinks really end
            links[str(place)] = _number(step.fact("own_nvlink"))
        return MachineGpu(
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
        root = _SlotTree()
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

    def part(self, step: SlotStep, tree: _SlotTree) -> Part:
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

    def is_port(self, tree: _SlotTree) -> bool:
        return tree.leaf is not None and self.box.kind(tree.leaf) is NodeKind.NIC

    def port(self, step: SlotStep, tree: _SlotTree) -> PluginPort:
        assert tree.leaf is not None
        return PluginPort(
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

    def pcie(self, a: int, b: int, rate: Fraction) -> Fraction:
        """What NCCL reckons for a link of PCIe; links between processors have one rate in both classes."""
        sockets = self.box.is_cpu(a) and self.box.is_cpu(b)
        return rate * _MEASURED_PCIE if rate in _NOMINAL_PCIE and not sockets else rate

    def nic(self, place: int, dev: int, pcie: float | None) -> Nic:
        """NIC of a place with cables; on the fastest slot where no PCIe link is known."""
        cable = self.cable(place)
        slot = _PCIE_GB_PER_S[self.generation] if pcie is None else pcie
        port = PluginPort(dev=dev, gb_per_s=slot if cable is None else cable, latency_us=self.latency(place))
        return Nic(key=f"nic {place}", gb_per_s=slot, ports=(port,))

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
            port = PluginPort(dev=count, gb_per_s=cable, latency_us=self.latency(place))
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
        halves = (switches[:half], switches[half:])
        return tuple(
            Processor(key=f"processor {i}", maker=self.maker(), gb_per_s=self.sockets(), parts=tuple(parts))
            for i, parts in enumerate(halves)
            if parts
        )


class _SwitchTrees:
    """PCIe trees from the switches and processors of a topology: below each processor what is nearest to it."""

    def __init__(self, builder: _MachineBuilder) -> None:
        self.builder, self.box = builder, builder.box
        box = self.box
        same = _ways_back(box)
        self.bridges = box.bridges - same.keys()
        self.halved = frozenset(same.values())
        self.near: dict[int, dict[int, float]] = {
            place: {} for place in range(len(box.nodes)) if place not in same
        }
        for (a, b), rate in box.links.items():
            if not box.gpu_switches & {a, b} and (a, b) not in box.gpu_links:
                self.near[same.get(a, a)][same.get(b, b)] = float(builder.pcie(a, b, rate))
        cpus = [place for place in self.bridges if box.is_cpu(place)]
        self.roots = cpus or self.middles()
        self.below: dict[int, list[int]] = {place: [] for place in self.near}
        self.seen = set(self.roots)
        self.spread()
        self.devs = {place: i for i, place in enumerate(box.gpus)}
        ports = [
            place
            for place in self.near
            if builder.cable(place) is not None or box.kind(place) is NodeKind.NIC
        ]
        self.nics = {place: i for i, place in enumerate(ports)}
        # NICs that hang on a GPU itself share its switch.
        self.beside: dict[int, list[int]] = {}
        for place in ports:
            owners = [b for b in sorted(self.near[place]) if b in box.gpus]
            if box.kind(place) is NodeKind.NIC and place not in self.seen and owners:
                self.beside.setdefault(owners[0], []).append(place)

    def middles(self) -> list[int]:
        """A switch of each tree of switches to stand for its processor: the one with most neighbours."""
        left, found = set(self.bridges), []
        while left:
            start = min(left)
            group, ring = {start}, [start]
            while ring:
                ring = [b for place in ring for b in self.near[place] if b in left and b not in group]
                group.update(ring)
            found.append(max(sorted(group), key=lambda place: len(self.near[place])))
            left -= group
        return found

    def spread(self) -> None:
        """Hang every node on the first one that reaches it from the processors."""
        ring = list(self.roots)
        while ring:
            beyond = []
            for place in ring:
                for b in sorted(self.near[place]):
                    if b not in self.seen:
                        self.seen.add(b)
                        self.below[place].append(b)
                        if b in self.bridges:
                            beyond.append(b)
            ring = beyond

    def rate(self, a: int, b: int) -> float:
        """Rate of a link, the least of both directions."""
        there, back = self.near[a].get(b), self.near[b].get(a)
        return min(each for each in (there, back) if each is not None)

    def processors(self) -> tuple[Processor, ...]:
        """All processors."""
        lost = [rank for rank in self.box.ranks if rank not in self.seen]
        found = []
        for i, root in enumerate(self.roots):
            parts = [part for each in self.below[root] for part in self.parts(each, root)]
            if root in self.nics:
                parts.append(self.builder.nic(root, self.nics[root], None))
            if root in self.halved:  # it is known for a switch, of which only this much was kept
                rate = max(self.near[root].values())
                parts = [PcieSwitch(key=f"pcie {root}", gb_per_s=rate, parts=tuple(parts))]
            if i == 0:
                slot = _PCIE_GB_PER_S[self.builder.generation]
                parts += [part for rank in lost for part in self.gpu(rank, slot)]
            others = [self.near[root][each] for each in self.roots if each in self.near[root]]
            found.append(
                Processor(
                    key=f"processor {i}",
                    maker=self.builder.maker(),
                    gb_per_s=max(others, default=self.builder.sockets()),
                    parts=tuple(parts),
                )
            )
        return tuple(found)

    def parts(self, place: int, above: int) -> list[Part]:
        """What a node becomes below another one."""
        if place in self.box.gpus:
            return self.gpu(place, self.rate(place, above))
        if self.box.kind(place) is NodeKind.NIC:
            return [self.builder.nic(place, self.nics[place], self.rate(place, above))]
        inside = [part for each in self.below[place] for part in self.parts(each, place)]
        if place in self.nics:  # a cable that is plugged into a switch is a NIC behind it
            inside.append(self.builder.nic(place, self.nics[place], None))
        return [PcieSwitch(key=f"pcie {place}", gb_per_s=self.rate(place, above), parts=tuple(inside))]

    def gpu(self, place: int, pcie: float) -> list[Part]:
        """A GPU, and what it has of the network without a switch between."""
        own = [each for each in (place, *self.beside.get(place, [])) if each in self.nics]
        return [
            self.builder.gpu(place, self.devs[place], pcie),
            *(self.builder.nic(each, self.nics[each], pcie) for each in own),
        ]


def _ways_back(box: Box) -> dict[int, int]:
    """Switches of one direction, with the one of the other direction between the same nodes.

    Readers that keep only the GPUs and NICs of a PCIe switch cut it in two, so that nothing turns round in it.
    """
    into: dict[int, set[int]] = {place: set() for place in box.bridges}
    out: dict[int, set[int]] = {place: set() for place in box.bridges}
    for a, b in box.links:
        if b in into:
            into[b].add(a)
        if a in out:
            out[a].add(b)
    one_way = [place for place in sorted(box.bridges) if into[place] and not into[place] & out[place]]
    first = {(frozenset(into[place]), frozenset(out[place])): place for place in reversed(one_way)}
    found: dict[int, int] = {}
    for place in one_way:
        other = first.get((frozenset(out[place]), frozenset(into[place])))
        if other is not None and other < place and other not in found:
            found[place] = other
    return found


class _SlotTree:
    """Parts below a step, by the step."""

    def __init__(self) -> None:
        self.below: dict[tuple[int, str], tuple[SlotStep, _SlotTree]] = {}
        self.leaf: int | None = None

    def add(self, steps: tuple[SlotStep, ...], leaf: int) -> None:
        if not steps:
            self.leaf = leaf
            return
        step = steps[0]
        _, tree = self.below.setdefault((step.place, step.name), (step, _SlotTree()))
        tree.add(steps[1:], leaf)

    def ordered(self) -> list[tuple[SlotStep, _SlotTree]]:
        return [self.below[key] for key in sorted(self.below)]


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(
            f"expected a number of 0 or more in a slot of the topology, found {text[:40]!r}: mend it."
        )
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
