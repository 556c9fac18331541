"""Machines straight from NCCL's topology files, for tests: what the product makes of topologies must be the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

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
from coppice.topology.readers.gpu_links import bus_id
from coppice.topology.readers.link_rates import (
    RateClass,
    cpu_maker,
    inter_socket_gb_per_s,
    nvlink_gb_per_s,
    pcie_gb_per_s,
)
from coppice.topology.readers.xml_tree import Element, parse_xml


def machine_of_file(
    path: Path, *, nic_gb_per_s: float = 0.0, capability: int = 0, nvlinks: int = 0, multicast: bool = False
) -> HostMachine:
    """The machine of a file; skeletons get GPUs of this capability on an NVSwitch, and NICs of this rate."""
    root = parse_xml(path.read_bytes(), file=str(path))
    return _Reader(root, nic_gb_per_s, capability, nvlinks, multicast).machine()


class _Reader:
    def __init__(self, root: Element, rate: float, capability: int, nvlinks: int, multicast: bool) -> None:
        self.root, self.rate, self.capability, self.nvlinks = root, rate, capability, nvlinks
        self.multicast = multicast
        self.skeleton = not any(True for each in _all(root) if each.tag == "gpu")
        classes = [e for e in _all(root) if e.tag == "pci" and e.text("class", "").startswith("0x03")]
        self.devs = {id(e): i for i, e in enumerate(classes)}
        nics = [e for e in _all(root) if e.tag == "pci" and e.text("class", "").startswith("0x02")]
        self.nets = {id(e): i for i, e in enumerate(nics)}

    def machine(self) -> HostMachine:
        processors = []
        has_nets = any(e.tag == "net" for e in _all(self.root)) or self.rate
        for i, cpu in enumerate(self.root.named("cpu")):
            parts = []
            for each in cpu.children:
                if each.tag == "pci":
                    part = self.part(each)
                    if part is not None:
                        parts.append(part)
                elif each.tag == "nic":
                    parts.append(Nic(key=f"nic of {i}", gb_per_s=None, ports=self.ports(each)))
            if i == 0 and not has_nets:
                parts.append(
                    Nic(key="socket", gb_per_s=None, ports=(PluginPort(dev=0, gb_per_s=1.25, gdr=False),))
                )
            arch, vendor = cpu.text("arch", ""), cpu.text("vendor", "")
            family, model = (int(cpu.text(key, "0")) for key in ("familyid", "modelid"))
            processors.append(
                Processor(
                    key=f"cpu{i}",
                    maker=cpu_maker(arch, vendor),
                    gb_per_s=float(inter_socket_gb_per_s(arch, vendor, family, model)),
                    parts=tuple(parts),
                )
            )
        return HostMachine(processors=tuple(processors), multicast=self.multicast)

    def part(self, pci: Element) -> Part | None:
        busid = bus_id(pci.text("busid"))
        rate = float(
            pcie_gb_per_s(pci.text("link_speed", ""), int(pci.text("link_width", "0")), RateClass.MEASURED)
        )
        kind = pci.text("class", "")
        gpus, nics = pci.named("gpu"), pci.named("nic")
        if gpus or (kind.startswith("0x03") and self.skeleton):
            return self.gpu(busid, rate, pci, gpus[0] if gpus else None)
        if nics:
            return Nic(key=busid, gb_per_s=rate, ports=self.ports(nics[0]))
        if kind.startswith("0x02"):
            if not self.rate:
                return None
            port = PluginPort(dev=self.nets[id(pci)], gb_per_s=self.rate)
            return Nic(key=busid, gb_per_s=rate, ports=(port,))
        if kind.startswith(("0x03", "0x0680")):
            return None
        inside = _broadcom(pci, 0)
        parts: list[Part] = []
        for each in pci.named("pci"):
            part = self.part(each)
            if isinstance(part, PcieSwitch) and inside and _broadcom(each, 1) == inside:
                parts.extend(part.parts)
            elif part is not None:
                parts.append(part)
        peers = tuple(bus_id(each.text("target")) for each in pci.named("pcilink"))
        return PcieSwitch(key=busid, gb_per_s=rate, parts=tuple(parts), peers=peers)

    def gpu(self, busid: str, rate: float, pci: Element, element: Element | None) -> MachineGpu:
        dev = self.devs.get(id(pci), 0)
        capability, gdr = self.capability, True
        links: list[tuple[str, float]] = []
        if element is not None:
            dev = int(element.text("dev", str(dev)))
            capability = int(element.text("sm", str(capability)))
            gdr = element.text("gdr", "1") != "0"
            each = float(nvlink_gb_per_s(capability, RateClass.MEASURED))
            for link in element.named("nvlink"):
                kind = link.text("tclass", "")
                target = (
                    bus_id(link.text("target"))
                    if kind.startswith("0x03")
                    else PROCESSOR
                    if kind.startswith("0x068001")
                    else NVSWITCH
                )
                links.append((target, int(link.text("count")) * each))
        if not links and self.nvlinks:
            links = [(NVSWITCH, self.nvlinks * float(nvlink_gb_per_s(capability, RateClass.MEASURED)))]
        return MachineGpu(
            key=busid, dev=dev, capability=capability, gb_per_s=rate, gdr=gdr, nvlinks=tuple(links)
        )

    def ports(self, nic: Element) -> tuple[PluginPort, ...]:
        found = []
        for net in nic.named("net"):
            speed = int(net.text("speed", "0"))
            found.append(
                PluginPort(
                    dev=int(net.text("dev")),
                    gb_per_s=(speed if speed > 0 else 10_000) / 8000,
                    latency_us=float(net.text("latency", "0")),
                    port=int(net.text("port", "0")),
                    guid=net.text("guid", ""),
                    gdr=net.text("gdr", "1") != "0",
                    adds=net.text("coll", "0") != "0",
                )
            )
        return tuple(found)


def _all(element: Element) -> list[Element]:
    return [element, *(each for child in element.children for each in _all(child))]


def _broadcom(element: Element, level: int) -> int:
    parts = [
        element.text(key, "").lower().removeprefix("0x").rjust(4, "0")
        for key in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    ]
    identity = "".join(parts)[:13]
    return 4 if identity == "1000c0101000a" else 5 if identity == f"1000c0301000{level}" else 0


def drawn_machine(random: Random, *, most: int = 4) -> HostMachine:
    """A made-up machine: GPUs on NVSwitches, on direct NVLinks or on PCIe alone, and some NICs, on one or two CPUs."""
    capability = random.choice([70, 80, 90, 100])
    count = random.randint(1, most)
    joined = random.choice(["switch", "mesh", "some", "none"])
    link = random.choice([20.0, 50.0, 100.0])
    pcie = random.choice([12.0, 24.0, 48.0])
    mesh = {
        pair: link
        for pair in itertools.combinations(range(count), 2)
        if joined == "mesh" or (joined == "some" and random.random() < 0.6)
    }

    def nvlinks(gpu: int) -> tuple[tuple[str, float], ...]:
        if joined == "switch":
            return ((NVSWITCH, 6 * link),)
        return tuple((f"gpu{sum(pair) - gpu}", rate) for pair, rate in mesh.items() if gpu in pair)

    parts: list[Part] = [
        MachineGpu(key=f"gpu{i}", dev=i, capability=capability, gb_per_s=pcie, nvlinks=nvlinks(i))
        for i in range(count)
    ]
    for i in range(random.randint(1, 4)):
        port = PluginPort(dev=i, gb_per_s=random.choice([12.5, 25.0, 50.0]), gdr=random.random() < 0.9)
        parts.insert(random.randint(0, len(parts)), Nic(key=f"nic{i}", gb_per_s=pcie, ports=(port,)))
    switches: list[Part] = []
    while parts:
        size = random.randint(1, 4)
        some, parts = parts[:size], parts[size:]
        switch = PcieSwitch(key=f"pcie{len(parts)}", gb_per_s=pcie, parts=tuple(some))
        switches += [switch] if random.random() < 0.7 else some
    cut = random.randint(0, len(switches))
    maker = random.choice(["intel", "amd"])
    return HostMachine(
        processors=tuple(
            Processor(
                key=f"cpu{i}", maker=maker, gb_per_s=random.choice([10.0, 16.0, 22.0]), parts=tuple(each)
            )
            for i, each in enumerate((switches[:cut], switches[cut:]))
            if each
        ),
        multicast=joined == "switch" and capability >= 90,
    )
